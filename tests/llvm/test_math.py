"""The functions as compiled code against float64: every float32 under --full, a dense sample otherwise.

python tests/llvm/test_math.py [name ...]     prints the table of docs/math.md: the largest error over all 2**32
                                              arguments
"""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import dtypes as dt
from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Bitcast, Expr, Ramp, Var, cast_to, maximum, minimum, ne, select
from weft.loop.math_tables import ROUNDED_TWICE
from weft.loop.nodes import For, Let, Load, Program, Store, buffer, int64, seq
from weft.loop.pipeline import lower_program
from weft_llvm.codegen import jit
from weft_llvm.emitter import FUNCTIONS as NATIVE

Array = np.ndarray[Any, Any]
LIMIT = 4.0
BLOCK, LANES = 1 << 16, 8
# f(-x) is -f(x) or f(x) to the bit, so that the reference is needed for one sign only.
ODD = ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf")
EVEN = ("cos", "cosh")
PERIODIC = ("sin", "cos", "tan")
EXACT = ("sqrt", "floor", "ceil", "trunc", "round", "abs", "isnan", "isinf")
UNARY = [n for n, f in FUNCTIONS.items() if f.arity == 1 and n != "popcount"]


def compiled(
    name: str, dtype: dt.DType = dt.float32, functions: frozenset[str] = NATIVE, options: str = ""
) -> Callable[..., Array]:
    """`name` as a function of arrays of BLOCK elements: native code, vectors of LANES."""
    arity = FUNCTIONS[name].arity
    xs = tuple(buffer(f"x{k}", (BLOCK,), dtype) for k in range(arity))
    i = Var("i")
    index = Ramp(i * LANES, int64(1), LANES)
    value: Expr = call(name, *(Load(x, (index,)) for x in xs))
    if value.dtype.is_bool:
        value = cast_to(value, dt.uint8)
    y = buffer("y", (BLOCK,), value.dtype.scalar)
    kernel = jit(
        lower_program(Program("k", xs, (y,), (), For(i, int64(BLOCK // LANES), Store(y, (index,), value))), functions),
        options,
    )
    result = np.empty(BLOCK, y.dtype.numpy)

    def run(*args: Array) -> Array:
        """Overwrites what the call before gave."""
        assert kernel([*args, result]) == 0
        return result

    return run


def all_of(name: str, *args: Array, functions: frozenset[str] = NATIVE, options: str = "") -> Array:
    """name(args) by native code; any number of elements."""
    f = compiled(name, dt.dtype(args[0].dtype), functions, options)
    size = len(args[0])
    parts = []
    for at in range(0, size, BLOCK):
        block = [np.ascontiguousarray(np.resize(a[at : at + BLOCK], BLOCK)) for a in args]
        parts.append(f(*block).copy())
    return np.concatenate(parts)[:size]


# -- references and errors
# ----------------------------------------------------------------------------------------------


def erf(x: Array) -> Array:
    """By libm where it has something to do; by two terms of the series below 2**-12, where the third is beyond
    float64."""
    result = np.where(np.isnan(x), x, np.sign(x))
    a = np.abs(x)
    small = a < 2.0**-12
    result[small] = x[small] * (2 / math.sqrt(math.pi)) * (1 - x[small] * x[small] / 3)
    middle = np.flatnonzero(~small & (a < 6.0))
    result[middle] = np.fromiter(map(math.erf, x[middle].tolist()), np.float64, len(middle))
    return result


def reference(name: str, x: Array) -> Array:
    """In float64."""
    with np.errstate(all="ignore"):
        return erf(x) if name == "erf" else np.asarray(FUNCTIONS[name].evaluate(x))


def ulps(got: Array, expected: Array) -> Array:
    """Errors in units in the last place of the float64 (or wider) `expected`; infinite for a wrong NaN or the wrong
    sign."""
    info = np.finfo(got.dtype)
    edge = expected.dtype.type(2.0) ** info.maxexp
    with np.errstate(all="ignore"):
        # Infinity stands where the next number would be: overflow a step too early or too late is an error of one step.
        e = np.clip(expected, -edge, edge)
        g = np.clip(got.astype(expected.dtype), -edge, edge)
        exponent = np.clip(np.frexp(e)[1] - 1, info.minexp, info.maxexp - 1)
        error = np.abs(g - e) / np.ldexp(expected.dtype.type(1), exponent - info.nmant)
    nan = np.isnan(expected) | np.isnan(got)
    wrong = np.where(nan, ~(np.isnan(expected) & np.isnan(got)), np.signbit(got) != np.signbit(expected))
    return np.where(wrong, np.inf, np.where(nan, 0.0, error))


def samples(step: int = 4099) -> Iterator[Array]:
    """Bits of every step-th float32, of those around all powers of two and around the ends of ranges and pieces of
    formulas."""
    ends = np.array(
        [
            0.25,
            0.3,
            0.5,
            1,
            1.4,
            1.5,
            3.75,
            3.92,
            6,
            9,
            9.02,
            17.33,
            44,
            87.33655,
            88.02969,
            88.72284,
            89.4,
            103.97208,
            104,
            126,
            128,
            149,
            150,
        ]
    )
    middles = np.concatenate(
        [np.arange(0, 2**32, 2**23), np.concatenate([ends, -ends]).astype(np.float32).view(np.uint32)]
    ).astype(np.int64)
    around = (middles[:, None] + np.arange(-32, 33)) % 2**32
    bits = np.concatenate([np.arange(0, 2**32, step), around.ravel()]).astype(np.uint32)
    for start in range(0, len(bits), BLOCK):
        yield np.resize(bits[start : start + BLOCK], BLOCK)


def exactly(name: str, blocks: Iterator[Array]) -> tuple[float, float]:
    f = compiled(name)
    for bits in blocks:
        x = bits.view(np.float32)
        y = f(x)
        with np.errstate(all="ignore"):
            want = np.asarray(FUNCTIONS[name].evaluate(x)).astype(y.dtype)
        same = y.view(f"u{y.itemsize}") == want.view(f"u{y.itemsize}")
        if not same.all():
            same |= np.isnan(y) & np.isnan(want)
            if not same.all():
                return math.inf, float(x[~same][0])
    return 0.0, 0.0


def against_numpy(name: str, blocks: Iterator[Array], f: Callable[..., Array] | None = None) -> tuple[float, float]:
    """The largest error of float32 `name` over blocks of bits, and where. `f`: what computes it."""
    f = f or compiled(name)
    largest, where = 0.0, 0.0
    for bits in blocks:
        x = bits.view(np.float32)
        with np.errstate(invalid="ignore"):
            error = ulps(f(x), reference(name, x.astype(np.float64)))
        at = int(np.argmax(error))
        if error[at] > largest:
            largest, where = float(error[at]), float(x[at])
    return largest, where


def screen(name: str) -> Callable[[Array], tuple[Array, Array]]:
    """Bits → the results of `name`, and what `ulps` says of them against the float64 formula."""
    bits, y, error = (
        buffer("bits", (BLOCK,), dt.uint32),
        buffer("y", (BLOCK,), dt.float32),
        buffer("error", (BLOCK,), dt.float32),
    )
    i = Var("i")
    index = Ramp(i * LANES, int64(1), LANES)

    def as_bits(e: Expr) -> Expr:
        return Bitcast(e, (dt.int32 if e.dtype.bits == 32 else dt.int64).with_lanes(LANES))

    def clipped(e: Expr) -> Expr:
        return minimum(maximum(e, -(2.0**128)), 2.0**128)

    x = Bitcast(Load(bits, (index,)), dt.float32.with_lanes(LANES))
    value, wide = call(name, x), call(name, cast_to(x, dt.float64))
    v, w = Var("v", value.dtype), Var("w", wide.dtype)
    exponent = (as_bits(minimum(maximum(call("abs", w), 2.0**-126), 2.0**127)) >> 52) - 1023
    per_unit = Bitcast((1023 + 23 - exponent) << 52, dt.float64.with_lanes(LANES))
    units = call("abs", clipped(cast_to(v, dt.float64)) - clipped(w)) * per_unit
    # A NaN here is one of the two; the sign bits are compared as numbers would hide those of zeros.
    wrong = ne(units, units) | ne(as_bits(v) < 0, as_bits(w) < 0)
    if name in ODD + EVEN:
        mirrored = as_bits(call(name, Bitcast(as_bits(x) ^ -(2**31), x.dtype)))
        wrong = wrong | ne(mirrored ^ (-(2**31) if name in ODD else 0), as_bits(v))
    units = select(ne(v, v) & ne(w, w), 0.0, select(wrong, math.inf, units))
    body = Let(v, value, Let(w, wide, seq(Store(y, (index,), v), Store(error, (index,), cast_to(units, dt.float32)))))
    kernel = jit(lower_program(Program("k", (bits,), (y, error), (), For(i, int64(BLOCK // LANES), body)), NATIVE))
    results = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)

    def run(block: Array) -> tuple[Array, Array]:
        assert kernel([block, *results]) == 0
        return results

    return run


def everything(name: str) -> Iterator[Array]:
    """The bits of all float32; of one sign where `screen` looks at the other."""
    bits = np.arange(BLOCK, dtype=np.uint32)
    for _ in range((2**31 if name in ODD + EVEN else 2**32) // BLOCK):
        yield bits
        bits += np.uint32(BLOCK)


def constant(f: Callable[[Array], Array], bits: Array, ends: Array, name: str) -> tuple[Array, Array]:
    """What `f` and the reference say at both ends of a block on which `f` is constant, on the other sign too; otherwise
    two that differ infinitely."""
    with np.errstate(all="ignore"):
        want = reference(name, ends.astype(np.float64))
        rounded = want.astype(np.float32)
    no = np.full(2, np.nan, np.float32), np.ones(2)
    if rounded[0] != rounded[1] and not np.isnan(rounded).all():
        return no
    values: list[Array] = []
    for flip in (0, 2**31) if name in ODD + EVEN else (0,):
        y = f((bits ^ np.uint32(flip)).view(np.float32))
        one = np.isnan(y).all() if np.isnan(rounded[0]) else y.view(np.uint32).min() == y.view(np.uint32).max()
        if not one:
            return no
        values.append(y[[0, -1]].copy())
    if (
        len(values) == 2
        and not np.isnan(rounded[0])
        and (values[0].view(np.uint32) ^ values[1].view(np.uint32) != (2**31 if name in ODD else 0)).any()
    ):
        return no
    return values[0], want


def sweep(name: str) -> tuple[float, float]:
    """The largest error of float32 `name` over all arguments, and where.

    Compiled float64 formulas, a hundred times as exact as is needed here and many times as fast as libm, find the
    candidates; numpy's float64 judges them. What both formulas might get wrong together is the matter of `samples`.
    Blocks that a function maps to one number are told by their ends.
    """
    if name in EXACT:
        return exactly(name, everything(name))
    f, g = screen(name), compiled(name)
    largest, where = 0.0, 0.0
    for bits in everything(name):
        if name not in PERIODIC:
            # Where a monotonic function rounds to one number, the ends of the block have the largest error, and no NaN
            # has one.
            ends = bits[[0, -1]].view(np.float32)
            error = ulps(*constant(g, bits, ends, name))
            if error.max() < math.inf:
                if error.max() > largest:
                    largest, where = float(error.max()), float(ends[int(np.argmax(error))])
                continue
        y, error = f(bits)
        if error.max() <= largest:
            continue
        candidates = np.flatnonzero(error > largest)
        x = bits[candidates].view(np.float32)
        error = error[candidates]
        if np.isfinite(error).all():
            with np.errstate(invalid="ignore"):
                error = ulps(y[candidates], reference(name, x.astype(np.float64)))
        at = int(np.argmax(error))
        if error[at] > largest:
            largest, where = float(error[at]), float(x[at])
    return largest, where


@pytest.mark.parametrize("name", UNARY)
def test_float32(name: str) -> None:
    error, where = (exactly if name in EXACT else against_numpy)(name, samples())
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="its oldest processors have no fma")
@pytest.mark.parametrize("name", [n for n in UNARY if n not in EXACT])
def test_without_fma(name: str) -> None:
    """Products and sums in its place, where the formula says so, are no worse than LIMIT."""
    functions = NATIVE | {ROUNDED_TWICE}
    error, where = against_numpy(name, samples(40099), compiled(name, dt.float32, functions, "-mcpu=x86-64"))
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"
    error, where = float64_error(name, 1 << 12, functions, "-mcpu=x86-64")
    assert error <= LIMIT, f"{name}({where!r}) in float64 is {error} ulp off"


@pytest.mark.full
@pytest.mark.parametrize("name", UNARY)
def test_every_float32(name: str) -> None:
    error, where = sweep(name)
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"


# -- pow
# ----------------------------------------------------------------------------------------------------------------


def powers(dtype: Any, size: int) -> tuple[Array, Array]:
    """Pairs: each special number with each, random bits, whole exponents, results all over the range and at its ends,
    bases close to 1."""
    rng = np.random.default_rng(11)
    info = np.finfo(dtype)
    digits = info.nmant + 1
    special = [
        0,
        0.5,
        1,
        1 + info.eps,
        1 - info.epsneg,
        1.5,
        2,
        3,
        4,
        5,
        2.5,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        3 * info.smallest_subnormal,
        np.inf,
    ]
    # The last odd numbers, the first that are always even, and halves.
    special += [
        2.0**digits - 1,
        2.0**digits,
        2.0**digits + 2,
        2.0 ** (digits - 1) + 1,
        2.0 ** (digits - 1) - 0.5,
        63,
        64,
        126,
        127,
        149,
        150,
        1023,
        1074,
    ]
    both = np.array([*special, *(-s for s in special), np.nan]).astype(dtype)
    bits = (
        rng.integers(0, 2 ** (8 * info.dtype.itemsize), (2, size), dtype=np.uint64)
        .astype(f"u{info.dtype.itemsize}")
        .view(dtype)
    )
    x = np.abs(bits[0])
    with np.errstate(all="ignore"):
        log = np.log2(x.astype(np.float64))
        everywhere = (rng.uniform(info.minexp - digits - 3, info.maxexp + 3, size) / log).astype(dtype)
        ends = (
            rng.choice([info.minexp - digits, info.minexp, info.maxexp], size) / log * (1 + rng.normal(0, 1e-5, size))
        ).astype(dtype)
    close = (1 + rng.uniform(-1, 1, size) * 2.0 ** rng.uniform(-digits, 0, size)).astype(dtype)
    with np.errstate(all="ignore"):
        lifted = (rng.uniform(info.minexp, info.maxexp, size) / np.log2(close.astype(np.float64))).astype(dtype)
    whole = rng.integers(-40, 41, size).astype(dtype)
    pairs = [
        (np.repeat(both, len(both)), np.tile(both, len(both))),
        (bits[0], bits[1]),
        (x, everywhere),
        (x, ends),
        (close, lifted),
        (-close * 3, whole),
        (bits[0], whole),
    ]
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow(dtype: Any, request: pytest.FixtureRequest) -> None:
    error, where = pow_error(
        dtype, (1 << 21 if dtype is np.float32 else 1 << 17) if request.config.getoption("--full") else 1 << 15
    )
    assert error <= LIMIT, f"pow{where} is {error} ulp off"


def pow_error(dtype: Any, size: int) -> tuple[float, tuple[Any, Any]]:
    x, y = powers(dtype, size)
    wide = np.float64 if dtype is np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        error = ulps(all_of("pow", x, y), np.power(x.astype(wide), y.astype(wide)))
    at = int(np.argmax(error))
    return float(error[at]), (x[at], y[at])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_is_that_of_annex_f(dtype: Any) -> None:
    """C99, F.9.4.4."""
    inf, nan = math.inf, math.nan
    cases = [
        (0.0, -3, inf), (-0.0, -3, -inf), (-0.0, -2, inf), (-0.0, -2.5, inf), (0.0, -inf, inf), (-0.0, -inf, inf), (0.0,
            3, 0.0), (-0.0, 3, -0.0),
        (-0.0, 2, 0.0), (-0.0, 2.5, 0.0), (-1, inf, 1), (-1, -inf, 1), (1, nan, 1), (1, inf, 1), (1, -inf, 1), (nan,
            0.0, 1), (nan, -0.0, 1),
        (inf, 0.0, 1), (-inf, -0.0, 1), (-2, 0.5, nan), (-0.5, -1.5, nan), (0.5, -inf, inf), (-0.5, -inf, inf), (2,
            -inf, 0.0), (-2, -inf, 0.0),
        (0.5, inf, 0.0), (-0.5, inf, 0.0), (2, inf, inf), (-2, inf, inf), (-inf, -3, -0.0), (-inf, -2, 0.0), (-inf,
            -2.5, 0.0), (-inf, 3, -inf),
        (-inf, 2, inf), (-inf, 2.5, inf), (inf, -1, 0.0), (inf, 1, inf), (nan, 1, nan), (2, nan, nan), (nan, nan, nan),
        (-inf, inf, inf), (-inf, -inf, 0.0),
    ]  # fmt: skip
    x, y, want = np.array(cases, dtype).T
    got = all_of("pow", x, y)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


# -- other dtypes
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_every_narrow_float(dtype: dt.DType, name: str) -> None:
    """All 2**16: the nearest number, but where the float32 in between is within its own error of the middle of two."""
    x = np.arange(BLOCK, dtype=np.uint32).astype(np.uint16).view(dtype.numpy)
    got = compiled(name, dtype)(x)
    with np.errstate(all="ignore"):
        want = reference(name, x.astype(np.float64))
        if want.dtype == bool:
            np.testing.assert_array_equal(got, want)
            return
        # numpy rounds float64 to a narrow float by way of float32: of odd last bits (von Neumann's) that is one
        # rounding.
        single = want.astype(np.float32)
        toward = np.where(np.abs(single.astype(np.float64)) > np.abs(want), np.nextafter(single, np.float32(0)), single)
        odd = np.where(toward.astype(np.float64) != want, (toward.view(np.uint32) | 1).view(np.float32), toward)
        nearest = np.where(np.isfinite(want), odd, single).astype(dtype.numpy)
    same = (got.view(np.uint16) == nearest.view(np.uint16)) | (np.isnan(want) & np.isnan(got.astype(np.float64)))
    if name in EXACT:
        assert same.all(), f"{name}({x[~same][0]})"
        return
    # The others: both neighbours are as good as the float32 result tells.
    g, n = got[~same].astype(np.float64), nearest[~same].astype(np.float64)
    middle = (g + n) / 2
    assert (np.abs(want[~same] - middle) <= 4 * np.spacing(np.abs(middle).astype(np.float32))).all(), (
        f"{name}({x[~same]}): {g}, not {n}"
    )
    assert len(g) <= 8, f"{name} is not the nearest number {len(g)} times"


@pytest.mark.parametrize("name", [n for n in UNARY if n not in EXACT])
def test_float64(name: str) -> None:
    error, where = float64_error(name, 1 << 14)
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"


def float64_error(name: str, size: int, functions: frozenset[str] = NATIVE, options: str = "") -> tuple[float, float]:
    """Over random numbers; the reference is numpy's long double, for erf libm's float64."""
    rng = np.random.default_rng(13)
    bits = rng.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    powers = np.ldexp(1.0, np.arange(-1074, 1024))
    x = np.concatenate(
        [
            bits,
            *(rng.uniform(-b, b, size) for b in (1, 2, 10, 50, 750)),
            rng.normal(0, 1, size) * 2.0 ** rng.uniform(-60, 4, size),
            powers,
            -powers,
        ]
    )
    x = np.concatenate([x, np.abs(x[:size]), 1 + x[-4000:], [0.0, -0.0, np.inf, -np.inf, np.nan]])
    with np.errstate(all="ignore"):
        error = ulps(
            all_of(name, x, functions=functions, options=options),
            erf(x).astype(np.longdouble) if name == "erf" else FUNCTIONS[name].evaluate(x.astype(np.longdouble)),
        )
    at = int(np.argmax(error))
    return float(error[at]), float(x[at])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_float64_of_many_turns(name: str) -> None:
    rng = np.random.default_rng(12)
    size = 1 << 15
    near = np.floor(rng.uniform(2.0**29, 2.0**31, size)) * (np.pi / 2)
    # As close to a multiple of pi/2 as float64 comes, and both sides of where the reduction changes.
    edges = [
        6381956970095103 * 2.0**797,
        5319372648326541 * 2.0**255,
        1.7976931348623157e308,
        2.0**30,
        float(np.nextafter(2.0**30, 0)),
        np.inf,
        np.nan,
    ]
    x = np.concatenate([np.exp2(rng.uniform(20, 1024, size)), np.exp2(np.arange(1024.0)), near, edges])
    x = np.concatenate([x, -x])
    with np.errstate(invalid="ignore"):
        error = ulps(all_of(name, x), FUNCTIONS[name].evaluate(x.astype(np.longdouble)))
    at = int(np.argmax(error))
    assert error[at] <= 2.5, f"{name}({x[at]!r}) is {error[at]} ulp off"


def test_subnormals_in_threads_of_the_pool() -> None:
    """Nothing is flushed to zero, neither in the caller's thread nor in the pool's."""
    size = 1 << 12
    a = weft.placeholder((size,), name="a")
    s = weft.schedule(weft.compute((size,), lambda i: call("sin", a[i]) * 0.5), target="llvm -threads=2")
    (block,) = s.blocks()
    (loop,) = s.loops(block)
    outer, inner = s.split(loop, [None, 16])
    s.vectorize(inner)
    s.parallel(outer)
    x = np.arange(2, 2 * size + 2, 2, dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(weft.build(s)(x), x * np.float32(0.5))
    with np.errstate(under="ignore"):
        y = np.linspace(-103.9, -88, size, dtype=np.float32)
        got = all_of("exp", y)
        assert ulps(got, np.exp(y.astype(np.float64))).max() <= LIMIT and (got > 0).all()


def main(names: list[str]) -> None:
    for name in names or UNARY:
        start = time.perf_counter()
        error, where = sweep(name)
        result = "exact |" if name in EXACT and not error else f"{error:.2f} | {np.float32(where)!s}"
        print(f"| {name} | {result} | {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
