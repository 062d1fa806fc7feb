"""Quantised operators whose results TensorFlow Lite Micro computes otherwise than LiteRT (`-kernels=micro`): softmax,
in fixed point throughout. Source: gemmlowp, fixedpoint/fixedpoint.h, and TensorFlow Lite Micro's reference softmax.

Numbers with k integer bits are int32 times 2^(k - 31). Products are rounded to nearest, halves up. Exponentials of the
256 differences that bytes may have are a table, computed here.
"""

from __future__ import annotations

import math

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_tflite.context import Context
from weft_tflite.converters.rounding import number
from weft_tflite.fixed_point import bounds_of, multiplier_of

MOST = 256
"""Elements of a row: of more, a sum might take more than 31 bits."""
_BITS = 5  # integer bits of differences, of 31
_SUM = 12  # of sums
_FACTORS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
_ONE = (1 << 31) - 1


def high(a: int, b: int) -> int:
    """The product of two fractions of 31 bits."""
    return (a * b + (1 << 30)) >> 31


def halved(x: int, times: int) -> int:
    """x / 2^times to nearest, halves away from zero."""
    half = 1 << (times - 1)
    return (x + half) >> times if x >= 0 else -((-x + half) >> times)


def exponential(a: int) -> int:
    """exp of a number ≤ 0 with five integer bits, as one without."""
    if a == 0:
        return _ONE
    quarter = 1 << (31 - _BITS - 2)
    inside = (a & (quarter - 1)) - quarter
    x = (inside << _BITS) + (1 << 28)
    x2 = high(x, x)
    x3, x4 = high(x2, x), high(x2, x2)
    more = halved(high(halved(x4, 2) + x3, 715827883) + x2, 1)
    result = 1895147668 + high(1895147668, x + more)
    for exponent, factor in _FACTORS:
        if (inside - a) & (1 << (31 - _BITS + exponent)):
            result = high(result, factor)
    return result


def exponentials(scale: float, beta: float) -> tuple[list[int], int]:
    """exp(-d · scale · beta) for d in 0 … 255, and the first d that counts as infinitely far."""
    real = min(float(beta) * float(scale) * (1 << (31 - _BITS)), float(_ONE))
    multiplier, shift = multiplier_of(real)
    least = math.floor(((1 << _BITS) - 1) * (1 << (31 - _BITS)) / (1 << shift)) if shift >= 0 else 256
    table = [exponential(high(-d * (1 << max(shift, 0)), multiplier)) if d <= least else 0 for d in range(256)]
    return table, least + 1


def softmax(c: Context) -> Value:
    """Exponentials from a table, their sum, its reciprocal by three steps of Newton's method."""
    x, dtype = c.value(0), c.output_dtype()
    if dtype not in (dt.int8, dt.uint8) or x.dtype != dtype:
        raise c.unsupported(f"quantised {x.dtype} to {dtype} with -kernels=micro")
    length = x.shape[-1]
    if not isinstance(length, int) or not 1 <= length <= MOST:
        raise c.unsupported(f"rows of {length} elements with -kernels=micro, which takes {MOST} at most")
    out = c.output_scale()
    if float(out.scale[0]) != 1 / 256 or int(out.zero[0]) != bounds_of(dtype)[0]:
        raise c.unsupported("a softmax whose results are not in steps of 1/256 with -kernels=micro")
    table, _ = exponentials(float(c.scale(0).scale[0]), float(np.float32(c.op.options["beta"])))
    wide = c.cast(x, dt.int32)
    below = c.sub(c.max(wide, (-1,)), wide)
    powers = c.gather(c.builder.constant(np.array(table, np.int32), "table"), below, 0)
    parts = c.gather(c.builder.constant(np.array([halved(t, _SUM) for t in table], np.int32), "parts"), below, 0)
    total = c.sum(parts, (-1,))
    # The greatest element's part is 2^19: so many bits has the sum at least.
    thresholds = number(c, np.int32(1) << np.arange(20, 31, dtype=np.int32), dt.int32)
    more = c.sum(c.cast(c(ops.GreaterEqual(), total, thresholds), dt.int32), (-1,))
    ahead = c.cast(c.sub(number(c, 12, dt.int32), more), dt.int64)
    rest = c.sub(c(ops.LeftShift(), c.cast(total, dt.int64), ahead), number(c, 1 << 31, dt.int64))
    scale = reciprocal(c, rest)
    places = c.cast(c.add(more, 23), dt.int64)
    product = high_of(c, scale, c.cast(powers, dt.int64))
    half = c(ops.LeftShift(), number(c, 1, dt.int64), c.sub(places, number(c, 1, dt.int64)))
    whole = c.cast(c(ops.RightShift(), c.add(product, half), places), dt.int32)
    low, top = bounds_of(dtype)
    return c.cast(c(ops.Minimum(), c(ops.Maximum(), c.add(whole, low), low), top), dtype)


def reciprocal(c: Context, a: Value) -> Value:
    """1 / (1 + a) for a fraction a, int64."""

    def at(n: int) -> Value:
        return number(c, n, dt.int64)

    half = c(ops.RightShift(), c.add(a, at(_ONE + 1)), at(1))
    x = c.add(high_of(c, half, at(-1010580540)), at(1515870810))
    for _ in range(3):
        left = c.sub(at(1 << 29), high_of(c, half, x))
        x = c.add(x, c.mul(high_of(c, x, left), at(4)))
    return c(ops.Minimum(), c.mul(x, at(2)), at(_ONE))


def high_of(c: Context, a: Value, b: Value) -> Value:
    """`high` of int64 in the range of int32."""
    return c(ops.RightShift(), c.add(c.mul(a, b), number(c, 1 << 30, dt.int64)), number(c, 31, dt.int64))


__all__ = ["exponential", "exponentials", "softmax"]
