"""Operations element by element, on real numbers; `complex_numbers` has those on complex ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters import complex_numbers as z
from weft_stablehlo.registry import op

UNARY: dict[str, Operator] = {
    "abs": ops.Absolute(),
    "ceil": ops.Ceil(),
    "chlo.erf": ops.Erf(),
    "cosine": ops.Cos(),
    "exponential": ops.Exp(),
    "exponential_minus_one": ops.Expm1(),
    "floor": ops.Floor(),
    "log": ops.Log(),
    "log_plus_one": ops.Log1p(),
    "logistic": ops.Sigmoid(),
    "negate": ops.Negative(),
    "round_nearest_even": ops.Round(),
    "sine": ops.Sin(),
    "sqrt": ops.Sqrt(),
    "tan": ops.Tan(),
    "tanh": ops.Tanh(),
    "chlo.acosh": ops.Acosh(),
    "chlo.asin": ops.Asin(),
    "chlo.acos": ops.Acos(),
    "chlo.asinh": ops.Asinh(),
    "chlo.atan": ops.Atan(),
    "chlo.atanh": ops.Atanh(),
    "chlo.cosh": ops.Cosh(),
    "chlo.sinh": ops.Sinh(),
    "chlo.tan": ops.Tan(),
}


def _unary(name: str, operator: Operator) -> None:
    def convert(c: Context) -> Any:
        return z.function(c, name) if c.is_complex(0) else c(operator, c.value(0))

    op(name)(convert)


for _name, _operator in UNARY.items():
    _unary(_name, _operator)

BINARY: dict[str, Operator] = {
    "add": ops.Add(),
    "subtract": ops.Subtract(),
    "multiply": ops.Multiply(),
    "maximum": ops.Maximum(),
    "minimum": ops.Minimum(),
    "power": ops.Power(),
}
LOGICAL: dict[str, tuple[Operator, Operator]] = {
    "add": (ops.LogicalOr(), ops.Add()),
    "multiply": (ops.LogicalAnd(), ops.Multiply()),
    "maximum": (ops.LogicalOr(), ops.Maximum()),
    "minimum": (ops.LogicalAnd(), ops.Minimum()),
    "and": (ops.LogicalAnd(), ops.BitwiseAnd()),
    "or": (ops.LogicalOr(), ops.BitwiseOr()),
    "xor": (ops.LogicalXor(), ops.BitwiseXor()),
}
"""What they are of bools, and of numbers."""


def _binary(name: str) -> None:
    def convert(c: Context) -> Any:
        if c.is_complex(0):
            return z.function(c, name)
        x, y = c.value(0), c.value(1)
        if name in LOGICAL:
            return c(LOGICAL[name][0 if x.dtype.is_bool else 1], x, y)
        return c(BINARY[name], x, y)

    op(name)(convert)


for _name in {**BINARY, **LOGICAL}:
    _binary(_name)


@op("divide")
def divide(c: Context) -> Any:
    if c.is_complex(0):
        return z.function(c, "divide")
    x, y = c.value(0), c.value(1)
    return divided(c, x, y) if x.dtype.is_integer else c.div(x, y)


def divided(c: Context, x: Value, y: Value) -> Value:
    """The quotient towards zero; by 0 it is -1, as XLA gives it, or all ones."""
    zero = c(ops.Equal(), y, 0)
    found = c.div(x, c(ops.Where(), zero, 1, y))
    ones = c.number(-1, dt.int64)
    return c(ops.Where(), zero, c.cast(ones, x.dtype), found)


@op("remainder")
def remainder(c: Context) -> Value:
    x, y = c.value(0), c.value(1)
    if not x.dtype.is_integer:
        return c(ops.Fmod(), x, y)
    zero = c(ops.Equal(), y, 0)
    return c(ops.Where(), zero, x, c(ops.Fmod(), x, c(ops.Where(), zero, 1, y)))


@op("not")
def not_(c: Context) -> Value:
    x = c.value(0)
    return c(ops.LogicalNot() if x.dtype.is_bool else ops.BitwiseNot(), x)


@op("sign")
def sign(c: Context) -> Any:
    if c.is_complex(0):
        return z.function(c, "sign")
    x = c.value(0)
    return c(ops.Sign(), x)


@op("rsqrt")
def rsqrt(c: Context) -> Any:
    if c.is_complex(0):
        return z.function(c, "rsqrt")
    x = c.value(0)
    return c.cast(c(ops.Reciprocal(), c(ops.Sqrt(), c.wide(x))), x.dtype)


@op("cbrt")
def cbrt(c: Context) -> Value:
    """By a power, in float64 or with one step of Newton's method."""
    x = c.value(0)
    if x.dtype.bits < 64:
        return c.cast(_root(c, c.cast(x, dt.float64)), x.dtype)
    y = _root(c, x)
    better = c.sub(y, c.div(c.sub(c.mul(y, c.mul(y, y)), x), c.mul(c.mul(y, y), 3.0)))
    usable = c(ops.LogicalAnd(), finite(c, y), c(ops.NotEqual(), y, 0.0))
    return c(ops.Where(), usable, better, y)


def _root(c: Context, x: Value) -> Value:
    size = c(ops.Power(), c(ops.Absolute(), x), 1.0 / 3.0)
    return signed(c, size, x)


def signed(c: Context, size: Value, x: Value) -> Value:
    """What is not negative with the sign of `x`."""
    integer = {16: dt.int16, 32: dt.int32, 64: dt.int64}[x.dtype.bits]
    negative = c(ops.Less(), c(ops.Bitcast(integer), x), 0)
    return c(ops.Where(), negative, c(ops.Negative(), size), size)


def finite(c: Context, x: Value) -> Value:
    return c(ops.Less(), c(ops.Absolute(), x), math.inf)


@op("is_finite")
def is_finite(c: Context) -> Value:
    return finite(c, c.value(0))


@op("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def is_inf(c: Context) -> Value:
    return c(ops.IsInf(c.op_type != "is_pos_inf", c.op_type != "is_neg_inf"), c.value(0))


@op("round_nearest_afz")
def round_away(c: Context) -> Value:
    """To the nearest whole number, halves away from zero."""
    x = c.value(0)
    whole = c(ops.Trunc(), x)
    half = c(ops.GreaterEqual(), c(ops.Absolute(), c.sub(x, whole)), 0.5)
    return c(ops.Where(), half, c.add(whole, c(ops.Sign(), x)), whole)


@op("atan2")
def atan2(c: Context) -> Any:
    if c.is_complex(0):
        return z.function(c, "atan2")
    return angle(c, c.value(0), c.value(1))


def angle(c: Context, y: Value, x: Value) -> Value:
    """The angle of (x, y), by the arctangent of the lesser over the greater, in float64."""
    dtype = x.dtype
    y, x = (c.cast(v, dt.float64) for v in (y, x))
    up, right = c(ops.Absolute(), y), c(ops.Absolute(), x)
    steep = c(ops.Greater(), up, right)
    low, high = c(ops.Minimum(), up, right), c(ops.Maximum(), up, right)
    corner = c(ops.LogicalAnd(), c(ops.IsInf(), up), c(ops.IsInf(), right))
    ratio = c(ops.Where(), c(ops.Equal(), high, 0.0), 0.0, c.div(low, high))
    found = c(ops.Atan(), c(ops.Where(), corner, 1.0, ratio))
    found = c(ops.Where(), steep, c.sub(math.pi / 2, found), found)
    left = c(ops.Less(), c(ops.Bitcast(dt.int64), x), 0)
    found = c(ops.Where(), left, c.sub(math.pi, found), found)
    found = signed(c, found, y)
    nan = c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsNan(), y))
    return c.cast(c(ops.Where(), nan, math.nan, found), dtype)


COMPARISONS: dict[str, Callable[[], Operator]] = {
    "EQ": ops.Equal,
    "NE": ops.NotEqual,
    "LT": ops.Less,
    "LE": ops.LessEqual,
    "GT": ops.Greater,
    "GE": ops.GreaterEqual,
}


@op("compare")
def compare(c: Context) -> Value:
    direction = c.keyword("comparison_direction")
    if c.is_complex(0):
        return z.compared(c, direction)
    x, y = c.value(0), c.value(1)
    if c.keyword("compare_type") == "TOTALORDER":
        x, y = total_order(c, x), total_order(c, y)
    if x.dtype.is_bool and direction not in ("EQ", "NE"):
        x, y = c.cast(x, dt.uint8), c.cast(y, dt.uint8)
    return c(COMPARISONS[direction](), x, y)


def total_order(c: Context, x: Value) -> Value:
    """Integers in the order -NaN, -inf, …, -0, 0, …, inf, NaN of the floats."""
    integer = {16: dt.int16, 32: dt.int32, 64: dt.int64}[x.dtype.bits]
    bits = c(ops.Bitcast(integer), x)
    flipped = c(ops.BitwiseXor(), bits, int(np.iinfo(integer.numpy).max))
    return c(ops.Where(), c(ops.Less(), bits, 0), flipped, bits)


@op("select")
def select(c: Context) -> Any:
    known = c.constant(0)
    if known is not None and known.size and (known == known.reshape(-1)[0]).all():
        return c.operands[1 if known.reshape(-1)[0] else 2]
    found = []
    test = c.value(0)
    for x, y in zip(c.parts(1), c.parts(2), strict=True):
        found.append(c(ops.Where(), test, x, y))
    return Complex(found) if c.is_complex(1) else found[0]


@op("clamp")
def clamp(c: Context) -> Value:
    low, x, high = c.value(0), c.value(1), c.value(2)
    return c(ops.Minimum(), c(ops.Maximum(), x, low), high)


@op("convert")
def convert(c: Context) -> Any:
    (to,) = c.results
    if to.complex:
        if c.is_complex(0):
            return Complex([c.cast(p, to.dtype) for p in c.parts(0)])
        x = c.cast(c.value(0), to.dtype)
        return Complex([x, c.broadcast(c.number(0, to.dtype), x.shape)])
    x = c.pair(0)[0] if c.is_complex(0) else c.value(0)
    return converted(c, x)


def converted(c: Context, x: Value) -> Value:
    """`x` in the dtype of the result; floats beyond the range of an integer become its nearest."""
    to = c.dtype
    if x.dtype.is_float and to.is_integer and to.bits >= 32:
        info = np.iinfo(to.numpy)
        wide = c.cast(x, dt.float64) if x.dtype.bits < 64 else x
        nan = c(ops.IsNan(), wide)
        above = c(ops.GreaterEqual(), wide, float(info.max))
        below = c(ops.LessEqual(), wide, float(info.min))
        safe = c(ops.Where(), c(ops.LogicalOr(), nan, c(ops.LogicalOr(), above, below)), 0.0, wide)
        found = c.cast(safe, to)
        found = c(ops.Where(), above, c.builder.constant(np.array(info.max, to.numpy)), found)
        return c(ops.Where(), below, c.builder.constant(np.array(info.min, to.numpy)), found)
    return c.cast(x, to)


@op("reduce_precision")
def reduce_precision(c: Context) -> Value:
    """Rounds to a float of fewer bits, in the bits of float32 or float64."""
    x = c.value(0)
    kept, wide = c.attribute("mantissa_bits"), c.cast(x, dt.float64 if x.dtype.bits == 64 else dt.float32)
    mantissa, exponent, integer = (52, 11, dt.uint64) if x.dtype.bits == 64 else (23, 8, dt.uint32)
    bits = c(ops.Bitcast(integer), wide)
    top, fraction = 1 << (mantissa + exponent), (1 << mantissa) - 1
    magnitude = c(ops.BitwiseAnd(), bits, top - 1)
    last = mantissa - kept
    if last > 0:
        odd = c(ops.BitwiseAnd(), c(ops.RightShift(), magnitude, last), 1)
        magnitude = c.add(magnitude, c.add(odd, (1 << (last - 1)) - 1))
        magnitude = c(ops.BitwiseAnd(), magnitude, (2 * top - 1) ^ ((1 << last) - 1))
    if c.attribute("exponent_bits") < exponent:
        bias, own = (1 << (c.attribute("exponent_bits") - 1)) - 1, (1 << (exponent - 1)) - 1
        least, most = (own - bias + 1) << mantissa, (own + bias) << mantissa | (fraction ^ ((1 << max(last, 0)) - 1))
        infinity = ((1 << exponent) - 1) << mantissa
        magnitude = c(ops.Where(), c(ops.Greater(), magnitude, most), infinity, magnitude)
        magnitude = c(ops.Where(), c(ops.Less(), magnitude, least), 0, magnitude)
    found = c(ops.Bitcast(wide.dtype), c(ops.BitwiseOr(), c(ops.BitwiseAnd(), bits, top), magnitude))
    return c.cast(c(ops.Where(), c(ops.IsNan(), wide), math.nan, found), x.dtype)
