"""functions.wgsl and what is made beside it, element by element on an adapter: against numpy in float64, and Python's
integers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import wgpu

from weft import dtypes as dt
from weft_webgpu.definitions import WgslDefinitions, library
from weft_webgpu.device import WebgpuDevice
from weft_webgpu.dialect import dialect
from weft_webgpu.language import PAIR, WgslLanguage

Array = np.ndarray[Any, Any]
TYPES = {"f": "f32", "u": "u32", "i": "i32", "w": PAIR}


def run(
    device: WebgpuDevice, call: str, arguments: Sequence[Array], result: str, made: WgslDefinitions | None = None
) -> Array:
    """`call` of x0, x1 … for each element. 64-bit integers are arrays of uint64 here, `result` a numpy dtype."""
    made = made or WgslDefinitions(WgslLanguage(dialect(8)))
    for name in re.findall(r"weft_\w+", call):
        if name in library():
            made.use(name)
    kinds = [*(a.dtype for a in arguments), np.dtype(result)]
    types = [PAIR if d.itemsize == 8 else {"f": "f32", "u": "u32", "i": "i32"}[d.kind] for d in kinds]
    declared = [f"@group(0) @binding({k}) var<storage, read_write> b{k}: array<{t}>;" for k, t in enumerate(types)]
    n, last = len(arguments[0]), len(arguments)
    values = "".join(f"let x{k} = b{k}[i]; " for k in range(last))
    body = f"  let i = g.x; if (i >= {n}u) {{ return; }} {values} b{last}[i] = {call};"
    head = "@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) g: vec3<u32>) {"
    source = "\n\n".join(["\n".join(declared), *made.texts(), f"{head}\n{body}\n}}"])
    d = device.device
    pipeline = d.create_compute_pipeline(
        layout="auto", compute={"module": d.create_shader_module(code=source), "entry_point": "main"}
    )
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    given = [d.create_buffer_with_data(data=np.ascontiguousarray(a), usage=usage) for a in arguments]
    given.append(d.create_buffer(size=n * kinds[-1].itemsize, usage=usage))
    entries = [{"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}} for k, b in enumerate(given)]
    group = d.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = d.create_command_encoder()
    begun = encoder.begin_compute_pass()
    begun.set_pipeline(pipeline)
    begun.set_bind_group(0, group)
    begun.dispatch_workgroups(-(-n // 64))
    begun.end()
    d.queue.submit([encoder.finish()])
    return np.frombuffer(d.queue.read_buffer(given[-1]), result)


def units(got: Array, exact: Array) -> Array:
    """How far float32 results are off, in units in the last place. Results that are subnormal may be 0."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        right = (got == near) | (np.isnan(got) & np.isnan(near))
        apart = np.abs(got.astype(np.float64) - exact) / np.spacing(np.maximum(np.abs(near), np.float32(2**-126)))
    apart[right | ((np.abs(exact) < 2.0**-126) & (np.abs(got) <= 2.0**-126))] = 0
    apart[np.isnan(apart)] = np.inf
    return np.asarray(apart)


def floats(count: int = 60_000) -> Array:
    rng = np.random.default_rng(5)
    any_bits = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    ends = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1e-45, -1e-45, 1e-38, 88.7, 88.8, -87.4, 3.4e38])
    near = [rng.uniform(-1, 1, count), rng.uniform(-90, 90, count), rng.uniform(0.5, 2, count)]
    return np.concatenate([any_bits, ends, *(x.astype(np.float32) for x in near)])


SINGLE: list[tuple[str, Callable[..., Any], float]] = [
    ("exp", np.exp, 2), ("exp2", np.exp2, 2), ("expm1", np.expm1, 2.5), ("sinh", np.sinh, 4.5), ("cosh", np.cosh, 4.5),
    ("tanh", np.tanh, 3), ("log", np.log, 1.5), ("log1p", np.log1p, 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "exact", "bound"), SINGLE, ids=[name for name, _, _ in SINGLE])
def test_functions_of_one_number(device: WebgpuDevice, name: str, exact: Callable[..., Any], bound: float) -> None:
    x = floats()
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
        want = np.where(np.abs(want) > np.finfo(np.float32).max, np.sign(want) * np.inf, want)
    got = run(device, f"weft_{name}(x0)", [x], "float32")
    apart = units(got, want)
    assert apart.max() <= bound, (x[apart.argmax()], got[apart.argmax()], want[apart.argmax()])


@pytest.mark.parametrize(("name", "bound"), [("sin", 2.5), ("cos", 2.5), ("tan", 4)])
def test_angles_of_any_size(device: WebgpuDevice, name: str, bound: float) -> None:
    """Beyond 10^6 the exact angle comes from integers: 2^k modulo 2 π with 200 bits."""
    x = floats(4000)
    x = x[np.isfinite(x)]
    pi = 3141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825342117068
    turn, scale = 2 * pi * (1 << 300), 10**99

    def reduced(value: float) -> float:
        top, bottom = abs(value).as_integer_ratio()
        rest = (top * scale * (1 << 300)) % (turn * bottom)
        return math.copysign(rest / (bottom * scale * (1 << 300)), value)

    exact = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[name]
    want = exact(np.array([reduced(float(v)) if abs(v) > 1e6 else float(v) for v in x]))
    got = run(device, f"weft_{name}(x0)", [x], "float32")
    apart = units(got, want)
    assert apart.max() <= bound, (x[apart.argmax()], got[apart.argmax()], want[apart.argmax()])
    ends = run(device, f"weft_{name}(x0)", [np.float32([np.inf, -np.inf, np.nan])], "float32")
    assert np.isnan(ends).all()


def pairs_of_floats() -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(6)
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, 2.5, 1e10, 1e-40, 16777217])
    whole = rng.integers(-6, 7, 20_000).astype(np.float32)
    return [
        (np.repeat(special, len(special)), np.tile(special, len(special))),
        (rng.uniform(0, 4, 50_000).astype(np.float32), rng.uniform(-60, 60, 50_000).astype(np.float32)),
        (whole, rng.permutation(whole)),
        (floats(8000), rng.permutation(floats(8000))),
    ]


def test_powers(device: WebgpuDevice) -> None:
    for a, b in pairs_of_floats():
        with np.errstate(all="ignore"):
            want = np.power(a.astype(np.float64), b.astype(np.float64))
            want = np.where(np.abs(want) > np.finfo(np.float32).max, np.sign(want) * np.inf, want)
        got = run(device, "weft_pow(x0, x1)", [a, b], "float32")
        apart = units(got, want)
        worst = apart.argmax()
        assert apart.max() <= 4, (a[worst], b[worst], got[worst], want[worst])


def test_remainders_are_exact(device: WebgpuDevice) -> None:
    for a, b in pairs_of_floats():
        for name, exact in (("fmod", np.fmod), ("floormod_f32", np.mod)):
            with np.errstate(all="ignore"):
                want = exact(a, b)
            got = run(device, f"weft_{name}(x0, x1)", [a, b], "float32")
            if name != "fmod":  # numpy gives the dividend for an infinite divisor of the other sign, and -0 at times
                kept = np.isfinite(b)
                got, want = got[kept], want[kept]
            np.testing.assert_array_equal(got, want)


def numbers() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    edges = [0, 1, 2, 3, 31, 32, 33, 63, 64, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    edges += [(1 << 64) - k for k in (2, 3, 7, 1 << 31, 1 << 33)] + [10**18, 12345678901]
    a, b = (np.array(edges, np.uint64).repeat(len(edges)), np.tile(np.array(edges, np.uint64), len(edges)))
    shifts = rng.integers(0, 64, (2, 5000), np.uint64)
    wide = rng.integers(0, 1 << 64, (2, 5000), np.uint64, endpoint=False) >> shifts
    return np.concatenate([a, wide[0]]), np.concatenate([b, wide[1]])


def signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def floored(a: int, b: int) -> tuple[int, int]:
    return (a // b, a % b) if b else (a, 0)


def truncated(a: int, b: int) -> tuple[int, int]:
    if not b:
        return a, 0
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


PAIRS: dict[str, Callable[[int, int], int]] = {
    "add_64": lambda a, b: a + b, "sub_64": lambda a, b: a - b, "mul_64": lambda a, b: a * b,
    "min_u64": min, "max_u64": max,
    "floordiv_u64": lambda a, b: floored(a, b)[0], "floormod_u64": lambda a, b: floored(a, b)[1],
    "floordiv_i64": lambda a, b: floored(signed(a), signed(b))[0],
    "floormod_i64": lambda a, b: floored(signed(a), signed(b))[1],
    "truncdiv_i64": lambda a, b: truncated(signed(a), signed(b))[0],
    "truncmod_i64": lambda a, b: truncated(signed(a), signed(b))[1],
    "min_i64": lambda a, b: min(signed(a), signed(b)), "max_i64": lambda a, b: max(signed(a), signed(b)),
    "shl_u64": lambda a, b: a << b if b < 64 else 0, "shr_u64": lambda a, b: a >> b if b < 64 else 0,
    "shr_i64": lambda a, b: signed(a) >> min(b, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_integers_of_64_bits(device: WebgpuDevice, name: str) -> None:
    a, b = numbers()
    want = np.array([PAIRS[name](int(x), int(y)) % (1 << 64) for x, y in zip(a, b)], np.uint64)
    np.testing.assert_array_equal(run(device, f"weft_{name}(x0, x1)", [a, b], "uint64"), want)


def test_integers_of_64_bits_as_floats_and_back(device: WebgpuDevice) -> None:
    a, _ = numbers()
    np.testing.assert_array_equal(run(device, "weft_f32_of_u64(x0)", [a], "float32"), a.astype(np.float32))
    np.testing.assert_array_equal(
        run(device, "weft_f32_of_i64(x0)", [a], "float32"), a.view(np.int64).astype(np.float32)
    )
    x = floats(20_000)

    def saturated(value: float, least: int, most: int) -> int:
        if math.isnan(value):
            return 0
        return least if value <= least else most if value >= most else int(value)

    for name, least, most in (("i64", -(1 << 63), (1 << 63) - 1), ("u64", 0, (1 << 64) - 1)):
        want = np.array([saturated(float(v), least, most) % (1 << 64) for v in x], np.uint64)
        np.testing.assert_array_equal(run(device, f"weft_{name}_of_f32(x0)", [x], "uint64"), want)


NARROW = [d for d in dt.all_dtypes() if d.is_float and d.bits <= 16]


@pytest.mark.parametrize("d", NARROW, ids=lambda d: d.name)
def test_floats_of_few_bits(device: WebgpuDevice, d: dt.DType) -> None:
    """Every value widened; rounding at and beside every value, between neighbours, and of any float32."""
    made = WgslDefinitions(WgslLanguage(dialect(8)))
    wide, narrow = made.widen(d), made.narrow(d)
    word = np.uint16 if d.bits == 16 else np.uint8
    every = np.arange(1 << d.bits, dtype=np.uint32)
    values = every.astype(word).view(d.numpy).astype(np.float32)
    got = run(device, f"{wide}(x0)", [every], "float32", made)
    np.testing.assert_array_equal(got, values)
    finite = np.sort(values[np.isfinite(values)])
    with np.errstate(all="ignore"):
        between = (finite[1:].astype(np.float64) + finite[:-1]) / 2
        x = np.concatenate([finite, between, np.nextafter(between.astype(np.float32), np.inf), floats(30_000)])
        x = np.concatenate([x, np.nextafter(x, np.float32(-np.inf))]).astype(np.float32)
        x = x[np.abs(np.where(np.isfinite(x), x, 1)) >= 2.0**-126]
        want = x.astype(d.numpy).view(word).astype(np.uint32)
    got = run(device, f"{narrow}(x0)", [x], "uint32", made)
    same = got == want
    nan = np.isnan(x)
    assert same[~nan].all(), (x[~nan & ~same][:5], got[~nan & ~same][:5], want[~nan & ~same][:5])
    back = got.astype(word).view(d.numpy).astype(np.float32)
    assert np.isnan(back[nan]).all() or d.name == "float4_e2m1fn" or not nan.any()


@pytest.mark.parametrize("d", [dt.int8, dt.uint8, dt.int16, dt.int32, dt.uint32], ids=str)
def test_floats_as_integers(device: WebgpuDevice, d: dt.DType) -> None:
    made = WgslDefinitions(WgslLanguage(dialect(8)))
    name = made.to_integer(d, dt.float32)
    x = floats(20_000)
    info = np.iinfo(d.numpy)
    want = np.array([0 if math.isnan(v) else int(max(info.min, min(info.max, float(v)))) for v in x], np.int64)
    got = run(device, f"{name}(x0)", [x], "int32" if d.kind == "int" else "uint32", made)
    np.testing.assert_array_equal(got.astype(np.int64), want)
