"""Bits of integers, and other dtypes of the same bits."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.registry import op

UNSIGNED = {8: dt.uint8, 16: dt.uint16, 32: dt.uint32, 64: dt.uint64}
SIGNED = {8: dt.int8, 16: dt.int16, 32: dt.int32, 64: dt.int64}


def same_bits(c: Context, x: Value, to: DType) -> Value:
    return x if x.dtype == to else c(ops.Bitcast(to), x)


@op("shift_left", "shift_right_logical", "shift_right_arithmetic")
def shift(c: Context) -> Value:
    x, by = c.value(0), c.value(1)
    own = x.dtype
    if own.bits < 8:
        raise c.unsupported(f"of {own}")
    to = (SIGNED if c.op_type == "shift_right_arithmetic" else UNSIGNED)[own.bits]
    operator = ops.LeftShift() if c.op_type == "shift_left" else ops.RightShift()
    # A number of places that is negative is one beyond the width, in unsigned numbers.
    places = c(ops.Minimum(), same_bits(c, by, UNSIGNED[own.bits]), own.bits)
    return same_bits(c, c(operator, same_bits(c, x, to), same_bits(c, places, to)), own)


@op("popcnt")
def popcnt(c: Context) -> Value:
    x = c.value(0)
    return same_bits(c, ones(c, same_bits(c, x, UNSIGNED[x.dtype.bits])), x.dtype)


def ones(c: Context, x: Value) -> Value:
    """How many bits are 1, of unsigned integers, by sums of neighbours."""
    bits = x.dtype.bits
    for width in (1, 2, 4, 8, 16, 32):
        if width >= bits:
            break
        mask = sum(((1 << width) - 1) << k for k in range(0, bits, 2 * width))
        low = c(ops.BitwiseAnd(), x, mask)
        x = c.add(low, c(ops.BitwiseAnd(), c(ops.RightShift(), x, width), mask))
    return x


@op("count_leading_zeros")
def count_leading_zeros(c: Context) -> Value:
    """The ones of what has all bits below the first one set."""
    x = c.value(0)
    bits = x.dtype.bits
    y = same_bits(c, x, UNSIGNED[bits])
    width = 1
    while width < bits:
        y = c(ops.BitwiseOr(), y, c(ops.RightShift(), y, width))
        width *= 2
    return same_bits(c, c.sub(bits, ones(c, y)), x.dtype)


@op("bitcast_convert")
def bitcast_convert(c: Context) -> Any:
    (to,) = c.results
    if c.is_complex(0) and to.complex:
        return Complex(c.parts(0))
    if c.is_complex(0) or to.complex:
        raise c.unsupported("complex numbers")
    x = c.value(0)
    if x.dtype.bits == to.dtype.bits:
        return same_bits(c, x, to.dtype)
    if not to.is_static or min(x.dtype.bits, to.dtype.bits) < 8 or x.dtype.is_bool or to.dtype.is_bool:
        raise c.unsupported(f"of {x.dtype} to {to.dtype}")
    return _narrower(c, x, to.dtype) if x.dtype.bits > to.dtype.bits else _wider(c, x, to.dtype)


def _narrower(c: Context, x: Value, to: DType) -> Value:
    """Each element as several along a new last axis, the lowest bits first."""
    bits = same_bits(c, x, UNSIGNED[x.dtype.bits])
    parts = []
    for k in range(0, x.dtype.bits, to.bits):
        part = c.cast(c(ops.BitwiseAnd(), c(ops.RightShift(), bits, k), (1 << to.bits) - 1), UNSIGNED[to.bits])
        parts.append(c.reshape(part, (*x.shape, 1)))
    return same_bits(c, c.concat(parts, len(x.shape)), to)


def _wider(c: Context, x: Value, to: DType) -> Value:
    """The elements of the last axis as one, the lowest bits first."""
    wide = UNSIGNED[to.bits]
    bits = c.cast(same_bits(c, x, UNSIGNED[x.dtype.bits]), wide)
    found = None
    for k in range(to.bits // x.dtype.bits):
        part = c.pick(bits, -1, k)
        part = c(ops.LeftShift(), part, k * x.dtype.bits) if k else part
        found = part if found is None else c(ops.BitwiseOr(), found, part)
    assert found is not None
    return same_bits(c, found, to)
