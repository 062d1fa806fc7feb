"""The functions as compiled code against float64: every float32 under --full, a dense sample otherwise.

python tests/llvm/test_math.py [name ...]     prints the table of docs/math.md: the largest error over all 2**32 arguments
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from weft import dtypes as dt
from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Bitcast, Expr, Ramp, cast_to, eq, ne, select
from weft.loop.nodes import For, Let, Load, Program, Store, Var, buffer, int64, seq
from weft.loop.pipeline import lower_program
from weft_llvm.codegen import jit
from weft_llvm.emitter import FUNCTIONS as NATIVE

Array = np.ndarray[Any, Any]
LIMIT = 4.0
BLOCK, LANES = 1 << 16, 8
# f(-x) is -f(x) or f(x) to the bit, so that the reference is needed for one sign only.
ODD = ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf")
EVEN = ("cos", "cosh")
EXACT = ("sqrt", "floor", "ceil", "trunc", "round", "abs", "isnan", "isinf")
UNARY = [n for n, f in FUNCTIONS.items() if f.arity == 1 and n != "popcount"]


def compiled(name: str, dtype: dt.DType = dt.float32, functions: frozenset[str] = NATIVE) -> Callable[..., Array]:
    """`name` as a function of arrays of BLOCK elements: native code, vectors of LANES."""
    arity = FUNCTIONS[name].arity
    xs = tuple(buffer(f"x{k}", (BLOCK,), dtype) for k in range(arity))
    i = Var("i")
    index = Ramp(i * LANES, int64(1), LANES)
    value: Expr = call(name, *(Load(x, (index,)) for x in xs))
    if value.dtype.is_bool:
        value = cast_to(value, dt.uint8)
    y = buffer("y", (BLOCK,), value.dtype.scalar)
    kernel = jit(lower_program(Program("k", xs, (y,), (), For(i, int64(BLOCK // LANES), Store(y, (index,), value))), functions))
    result = np.empty(BLOCK, y.dtype.numpy)

    def run(*args: Array) -> Array:
        """Overwrites what the call before gave."""
        assert kernel([*args, result]) == 0
        return result

    return run


def all_of(name: str, *args: Array) -> Array:
    """name(args) by native code; any number of elements."""
    f = compiled(name, dt.dtype(args[0].dtype))
    size = len(args[0])
    parts = []
    for at in range(0, size, BLOCK):
        block = [np.ascontiguousarray(np.resize(a[at : at + BLOCK], BLOCK)) for a in args]
        parts.append(f(*block).copy())
    return np.concatenate(parts)[:size]


# -- references and errors ----------------------------------------------------------------------------------------------


def erf(x: Array) -> Array:
    """By libm where it has something to do; by two terms of the series below 2**-12, where the third is beyond float64."""
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
    """Errors in units in the last place of the float64 (or wider) `expected`; infinite for a wrong NaN or the wrong sign."""
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
    """Bits of every step-th float32, of those around all powers of two and around the ends of ranges and pieces of formulas."""
    ends = np.array([0.25, 0.3, 0.5, 1, 1.4, 1.5, 3.75, 3.92, 6, 9, 9.02, 17.33, 44, 87.33655, 88.02969, 88.72284, 89.4, 103.97208, 104, 126, 128, 149, 150])
    middles = np.concatenate([np.arange(0, 2**32, 2**23), np.concatenate([ends, -ends]).astype(np.float32).view(np.uint32)]).astype(np.int64)
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


def against_numpy(name: str, blocks: Iterator[Array]) -> tuple[float, float]:
    """The largest error of float32 `name` over blocks of bits, and where."""
    f = compiled(name)
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
    """Bits → the results of `name`, and how many float32 they are from those of the float64 formula rounded."""
    bits, y, steps = buffer("bits", (BLOCK,), dt.uint32), buffer("y", (BLOCK,), dt.float32), buffer("steps", (BLOCK,), dt.int32)
    i = Var("i")
    index = Ramp(i * LANES, int64(1), LANES)

    def as_bits(e: Expr) -> Expr:
        return Bitcast(e, dt.int32.with_lanes(LANES))

    x = Bitcast(Load(bits, (index,)), dt.float32.with_lanes(LANES))
    value, wide = call(name, x), call(name, cast_to(x, dt.float64))
    v, w = Var("v", value.dtype), Var("w", wide.dtype)
    distance = as_bits(v) - as_bits(cast_to(w, dt.float32))
    if name in ODD + EVEN:
        mirrored = as_bits(call(name, 0.0 - x)) ^ (-(2**31) if name in ODD else 0)
        distance = select(eq(mirrored, as_bits(v)) | eq(x, 0.0), distance, -(2**30))
    distance = select(ne(v, v) & ne(w, w), 0, distance)
    body = Let(v, value, Let(w, wide, seq(Store(y, (index,), v), Store(steps, (index,), distance))))
    kernel = jit(lower_program(Program("k", (bits,), (y, steps), (), For(i, int64(BLOCK // LANES), body)), NATIVE))
    results = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)

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


def sweep(name: str) -> tuple[float, float]:
    """The largest error of float32 `name` over all arguments, and where.

    Compiled float64 formulas, a hundred times as exact as is needed here and many times as fast as libm, find the candidates; numpy's float64 judges them.
    What both formulas might get wrong together is the matter of `samples`.
    """
    if name in EXACT:
        return exactly(name, everything(name))
    f = screen(name)
    largest, where = 0.0, 0.0
    for bits in everything(name):
        y, steps = f(bits)
        # k numbers from the rounded result are at most 2 k + 1/2 units (a unit doubles at a power of two): judge only what could be the largest yet.
        k = max(1, math.ceil((largest - 0.5) / 2 + 1e-9))
        if -k < int(steps.min()) and int(steps.max()) < k:
            continue
        close = np.flatnonzero((steps <= -k) | (steps >= k))
        x = bits[close].view(np.float32)
        if steps[close].min() == -(2**30):
            return math.inf, float(x[int(np.argmin(steps[close]))])
        error = ulps(y[close], reference(name, x.astype(np.float64)))
        at = int(np.argmax(error))
        if error[at] > largest:
            largest, where = float(error[at]), float(x[at])
    return largest, where


@pytest.mark.parametrize("name", UNARY)
def test_float32(name: str) -> None:
    error, where = (exactly if name in EXACT else against_numpy)(name, samples())
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"


@pytest.mark.full
@pytest.mark.parametrize("name", UNARY)
def test_every_float32(name: str) -> None:
    error, where = sweep(name)
    assert error <= LIMIT, f"{name}({where!r}) is {error} ulp off"


def main(names: list[str]) -> None:
    for name in names or UNARY:
        start = time.perf_counter()
        error, where = sweep(name)
        result = "exact |" if name in EXACT and not error else f"{error:.2f} | {np.float32(where)!s}"
        print(f"| {name} | {result} | {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
