"""Elementwise operators. The dtypes of results are PyTorch's own, which say to what operands are cast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_torch.context import Context, Number
from weft_torch.registry import op

# -- of one operand ---------------------------------------------------------------------------------------------------

FLOAT: dict[str, Callable[[], Operator]] = {
    "sin": ops.Sin, "cos": ops.Cos, "tan": ops.Tan, "asin": ops.Asin, "acos": ops.Acos, "atan": ops.Atan,
    "sinh": ops.Sinh, "cosh": ops.Cosh, "tanh": ops.Tanh, "asinh": ops.Asinh, "acosh": ops.Acosh, "atanh": ops.Atanh,
    "exp": ops.Exp, "expm1": ops.Expm1, "log": ops.Log, "log1p": ops.Log1p, "sqrt": ops.Sqrt, "erf": ops.Erf,
    "reciprocal": ops.Reciprocal, "sigmoid": ops.Sigmoid, "silu": ops.Swish, "mish": ops.Mish,
}  # fmt: skip
"""Of integers these give floats."""
SAME: dict[str, Callable[[], Operator]] = {"neg": ops.Negative, "abs": ops.Absolute, "relu": ops.Relu}
WHOLE: dict[str, Callable[[], Operator]] = {
    "floor": ops.Floor, "ceil": ops.Ceil, "trunc": ops.Trunc, "fix": ops.Trunc, "round": ops.Round,
}  # fmt: skip
"""Of integers these give what they get."""


def _float(name: str, make: Callable[[], Operator]) -> None:
    @op(f"aten.{name}")
    def convert(c: Context, x: Value) -> Value:
        return c(make(), c.cast(x, c.result_dtype()))


def _same(name: str, make: Callable[[], Operator]) -> None:
    @op(f"aten.{name}")
    def convert(c: Context, x: Value) -> Value:
        return x if x.dtype.is_bool or (name == "abs" and x.dtype.kind == "uint") else c(make(), x)


def _whole(name: str, make: Callable[[], Operator]) -> None:
    @op(f"aten.{name}")
    def convert(c: Context, x: Value) -> Value:
        return c(make(), x) if x.dtype.is_float else x


for _name, _make in FLOAT.items():
    _float(_name, _make)
for _name, _make in SAME.items():
    _same(_name, _make)
for _name, _make in WHOLE.items():
    _whole(_name, _make)


@op("aten.sign", "aten.sgn")
def sign(c: Context, x: Value) -> Value:
    """PyTorch: the sign of NaN is 0."""
    if x.dtype.is_bool:
        return x
    y = c(ops.Sign(), x)
    return c(ops.Where(), c(ops.IsNan(), x), 0, y) if x.dtype.is_float else y


@op("aten.round.decimals")
def round_decimals(c: Context, x: Value, decimals: int) -> Value:
    if not x.dtype.is_float:
        raise c.unsupported("decimals of integers")
    if decimals == 0:
        return c(ops.Round(), x)
    factor = float(10 ** abs(decimals))
    if decimals < 0:
        return c.mul(c(ops.Round(), c.div(x, factor)), factor)
    return c.div(c(ops.Round(), c.mul(x, factor)), factor)


@op("aten.exp2")
def exp2(c: Context, x: Value) -> Value:
    x = c.wide(c.cast(x, c.result_dtype()))
    return c.cast(c(ops.Power(), c.number(2.0, x.dtype), x), c.result_dtype())


@op("aten.log2", "aten.log10")
def log_of_base(c: Context, x: Value) -> Value:
    x = c.cast(c.cast(x, c.result_dtype()), dt.float64)
    scale = 1 / math.log(2 if c.op_type.endswith("2") else 10)
    return c.cast(c.mul(c(ops.Log(), x), scale), c.result_dtype())


@op("aten.rsqrt")
def rsqrt(c: Context, x: Value) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), c.cast(x, c.result_dtype())))


@op("aten.square")
def square(c: Context, x: Value) -> Value:
    x = c.cast(x, c.result_dtype())
    return c.mul(x, x)


@op("aten.logical_not")
def logical_not(c: Context, x: Value) -> Value:
    return c(ops.LogicalNot(), c.cast(x, dt.bool_))


@op("aten.bitwise_not")
def bitwise_not(c: Context, x: Value) -> Value:
    return c(ops.LogicalNot() if x.dtype.is_bool else ops.BitwiseNot(), x)


@op("aten.isnan", "aten.isinf", "aten.isposinf", "aten.isneginf", "aten.isfinite")
def classify(c: Context, x: Value) -> Value:
    name = c.op_type.partition(".")[2]
    if not x.dtype.is_float:
        return c(ops.Fill(dt.bool_, x.shape, name == "isfinite"))
    if name == "isnan":
        return c(ops.IsNan(), x)
    if name == "isfinite":
        return c(ops.LogicalNot(), c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsInf(), x)))
    return c(ops.IsInf(negative=name != "isposinf", positive=name != "isneginf"), x)


@op("aten.signbit")
def signbit(c: Context, x: Value) -> Value:
    if x.dtype.is_bool:
        return c(ops.Fill(dt.bool_, x.shape, 0))
    if not x.dtype.is_float:
        return c(ops.Less(), x, 0)
    return c(ops.Less(), c(ops.Bitcast({16: dt.int16, 32: dt.int32, 64: dt.int64}[x.dtype.bits]), x), 0)


@op("aten.clone", "aten.alias", "aten.lift_fresh_copy", "aten.lift_fresh", "aten.contiguous", "aten.positive",
    "aten.alias_copy")  # fmt: skip
def unchanged(c: Context, x: Value, *_: Any) -> Value:
    return x


@op("aten.detach", "aten.detach_copy")
def detach(c: Context, x: Value) -> Value:
    found: Value = c.detached(x)
    return found


@op("aten._to_copy", "prims.convert_element_type")
def to_copy(c: Context, x: Value, *_: Any) -> Value:
    return converted(c, x, c.result_dtype())


def converted(c: Context, x: Value, to: DType) -> Value:
    """A value in another dtype, as PyTorch converts: of a float to narrow integers through int32 or int64, whose low
    bits remain."""
    if x.dtype.is_float and to.is_integer and to.bits < 32:
        return c.cast(c.cast(x, dt.int64), to)
    return c.cast(x, to)


@op("aten.to.dtype", "aten.type_as", "aten.to.dtype_layout", "aten.to.device", "aten.to.other")
def to_dtype(c: Context, x: Value, *_: Any) -> Value:
    return converted(c, x, c.result_dtype())


# -- arithmetic -------------------------------------------------------------------------------------------------------


def both(c: Context, x: Any, y: Any) -> tuple[Value, Value]:
    """Two operands in the dtype of the result."""
    dtype = c.result_dtype()
    return c.to(x, dtype), c.to(y, dtype)


@op("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Tensor", "aten.rsub.Scalar")
def add(c: Context, x: Any, y: Any, alpha: Number = 1) -> Value:
    a, b = both(c, x, y)
    if "rsub" in c.op_type:
        a, b = b, a
    known = isinstance(alpha, (int, float))
    if a.dtype.is_bool:
        return c(ops.LogicalOr(), a, b) if not known or alpha else a
    if not known or alpha != 1:  # a size may be one as well
        b = c.mul(b, c.to(alpha, b.dtype))
    return c(ops.Add() if ".add" in c.op_type else ops.Subtract(), a, b)


@op("aten.mul.Tensor", "aten.mul.Scalar")
def mul(c: Context, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    return c(ops.LogicalAnd() if a.dtype.is_bool else ops.Multiply(), a, b)


@op("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(c: Context, x: Any, y: Any) -> Value:
    return c(ops.Divide(), *both(c, x, y))


@op("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_rounded(c: Context, x: Any, y: Any, mode: str | None) -> Value:
    a, b = both(c, x, y)
    if mode is None:
        return c(ops.Divide(), a, b)
    return floor_divided(c, a, b) if mode == "floor" else truncated(c, a, b)


@op("aten.floor_divide", "aten.floor_divide.Scalar")
def floor_divide(c: Context, x: Any, y: Any) -> Value:
    return floor_divided(c, *both(c, x, y))


def truncated(c: Context, a: Value, b: Value) -> Value:
    """The quotient towards zero; an integer divided by zero ends the run, as in PyTorch."""
    if a.dtype.is_float:
        return c(ops.Trunc(), c(ops.Divide(), a, b))
    return c(ops.Divide(), a, c.nonzero(b, "a divisor"))


def floor_divided(c: Context, a: Value, b: Value) -> Value:
    """The quotient rounded down: of floats by way of the remainder, as Python and PyTorch compute it."""
    if a.dtype.kind == "uint":
        return c(ops.Divide(), a, c.nonzero(b, "a divisor"))
    if a.dtype.is_integer:
        b = c.nonzero(b, "a divisor")
        quotient, rest = c(ops.Divide(), a, b), c(ops.Fmod(), a, b)
        below = c(ops.LogicalXor(), c(ops.Less(), rest, 0), c(ops.Less(), b, 0))
        down = c(ops.LogicalAnd(), c(ops.NotEqual(), rest, 0), below)
        return c.sub(quotient, c.cast(down, a.dtype))
    dtype = a.dtype
    a, b = c.wide(a), c.wide(b)
    rest = c(ops.Fmod(), a, b)
    quotient = c.div(c.sub(a, rest), b)
    opposite = c(ops.LogicalXor(), c(ops.Less(), b, 0), c(ops.Less(), rest, 0))
    quotient = c(ops.Where(), c(ops.LogicalAnd(), c(ops.NotEqual(), rest, 0), opposite), c.sub(quotient, 1.0), quotient)
    floor = c(ops.Floor(), quotient)
    floor = c(ops.Where(), c(ops.Greater(), c.sub(quotient, floor), 0.5), c.add(floor, 1.0), floor)
    exact = c(ops.Where(), c(ops.Equal(), quotient, 0), c.mul(c.div(a, b), 0.0), floor)
    return c.cast(c(ops.Where(), c(ops.Equal(), b, 0), c.div(a, b), exact), dtype)


@op("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(c: Context, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    return c(ops.Mod(), a, b if a.dtype.is_float else c.nonzero(b, "a divisor"))


@op("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(c: Context, x: Any, y: Any) -> Value:
    a, b = both(c, x, y)
    return c(ops.Fmod(), a, b if a.dtype.is_float else c.nonzero(b, "a divisor"))


@op("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(c: Context, x: Any, y: Any) -> Value:
    dtype = c.result_dtype()
    if not isinstance(y, Value) and isinstance(x, Value):
        base = c.to(x, dtype)
        if y == 1:
            return base
        if y == 2:
            return c.mul(base, base)
        if y == 3:
            return c.mul(c.mul(base, base), base)
        if dtype.is_float and y in (0.5, -0.5):
            root = c(ops.Sqrt(), base)
            return root if y > 0 else c(ops.Reciprocal(), root)
        if dtype.is_float and y == -1:
            return c(ops.Reciprocal(), base)
    if not dtype.is_float and dtype.is_bool:
        raise c.unsupported("bools")
    return c(ops.Power(), c.to(x, dtype), c.to(y, dtype))


@op("aten.maximum", "aten.minimum", "aten.max.other", "aten.min.other")
def extremum(c: Context, x: Value, y: Value) -> Value:
    return c(ops.Maximum() if ".max" in c.op_type else ops.Minimum(), *both(c, x, y))


@op("aten.fmax", "aten.fmin")
def extremum_of_numbers(c: Context, x: Value, y: Value) -> Value:
    """The greater or lesser; of NaN and a number, the number."""
    a, b = both(c, x, y)
    found = c(ops.Maximum() if ".fmax" in c.op_type else ops.Minimum(), a, b)
    if not a.dtype.is_float:
        return found
    return c(ops.Where(), c(ops.IsNan(), a), b, c(ops.Where(), c(ops.IsNan(), b), a, found))


@op("aten.clamp", "aten.clamp.Tensor", "aten.clip", "aten.clip.Tensor")
def clamp(c: Context, x: Value, low: Any, high: Any) -> Value:
    return clamped(c, c.to(x, c.result_dtype()), low, high)


@op("aten.clamp_min", "aten.clamp_min.Tensor", "aten.clamp_max", "aten.clamp_max.Tensor")
def clamp_one(c: Context, x: Value, bound: Any) -> Value:
    x = c.to(x, c.result_dtype())
    return clamped(c, x, *((bound, None) if "_min" in c.op_type else (None, bound)))


def clamped(c: Context, x: Value, low: Any, high: Any) -> Value:
    """`x` between bounds; where they cross, the upper one; NaN stays, and a bound that is NaN gives it."""
    if low is not None:
        x = c(ops.Maximum(), x, c.to(low, x.dtype))
    return x if high is None else c(ops.Minimum(), x, c.to(high, x.dtype))


@op("aten.atan2")
def atan2(c: Context, y: Value, x: Value) -> Value:
    """The angle of (x, y), by the arctangent of the lesser over the greater, in float64."""
    dtype = c.result_dtype()
    y, x = (c.cast(c.cast(v, dtype), dt.float64) for v in (y, x))
    below, left = (c(ops.Less(), c(ops.Bitcast(dt.int64), v), 0) for v in (y, x))
    # Selections, whose gradients are those of the side that is taken, also where |x| and |y| are equal or 0.
    up, right = (c(ops.Where(), sign, c(ops.Negative(), v), v) for sign, v in ((below, y), (left, x)))
    steep = c(ops.Greater(), up, right)
    low, high = c(ops.Where(), steep, right, up), c(ops.Where(), steep, up, right)
    corner = c(ops.LogicalAnd(), c(ops.IsInf(), up), c(ops.IsInf(), right))
    none = c(ops.Equal(), high, 0.0)
    ratio = c(ops.Where(), none, 0.0, c.div(low, c(ops.Where(), none, 1.0, high)))
    angle = c(ops.Atan(), c(ops.Where(), corner, 1.0, ratio))
    angle = c(ops.Where(), steep, c.sub(math.pi / 2, angle), angle)
    angle = c(ops.Where(), left, c.sub(math.pi, angle), angle)
    angle = c(ops.Where(), below, c(ops.Negative(), angle), angle)
    nan = c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsNan(), y))
    return c.cast(c(ops.Where(), nan, math.nan, angle), dtype)


@op("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(c: Context, x: Value, y: Any) -> Value:
    a, b = both(c, x, y)
    size = c(ops.Absolute(), a)
    bits = {16: dt.int16, 32: dt.int32, 64: dt.int64}[a.dtype.bits]
    return c(ops.Where(), c(ops.Less(), c(ops.Bitcast(bits), b), 0), c(ops.Negative(), size), size)


@op("aten.hypot")
def hypot(c: Context, x: Value, y: Value) -> Value:
    """√(x² + y²), scaled by the greater so that nothing overflows."""
    a, b = (c(ops.Absolute(), c.wide(v)) for v in both(c, x, y))
    high, low = c(ops.Maximum(), a, b), c(ops.Minimum(), a, b)
    plain = c(ops.LogicalAnd(), c(ops.Greater(), high, 0.0), c(ops.LogicalNot(), c(ops.IsInf(), high)))
    ratio = c(ops.Where(), plain, c.div(low, high), 0.0)
    infinite = c(ops.LogicalOr(), c(ops.IsInf(), a), c(ops.IsInf(), b))
    found = c.mul(high, c(ops.Sqrt(), c.add(c.mul(ratio, ratio), 1.0)))
    return c.cast(c(ops.Where(), infinite, math.inf, found), c.result_dtype())


@op("aten.logaddexp", "aten.logaddexp2")
def logaddexp(c: Context, x: Value, y: Value) -> Value:
    scale = math.log(2) if c.op_type.endswith("2") else 1.0
    a, b = (c.mul(c.wide(v), scale) for v in both(c, x, y))
    high = c(ops.Maximum(), a, b)
    apart = c(ops.Negative(), c(ops.Absolute(), c.sub(a, b)))
    found = c.add(high, c(ops.Log1p(), c(ops.Exp(), apart)))
    same = c(ops.LogicalAnd(), c(ops.Equal(), a, b), c(ops.IsInf(), a))
    return c.cast(c.div(c(ops.Where(), same, a, found), scale), c.result_dtype())


@op("aten.addcmul", "aten.addcdiv")
def addc(c: Context, x: Value, y: Value, z: Value, value: Number) -> Value:
    dtype = c.result_dtype()
    x, y, z = (c.cast(v, dtype) for v in (x, y, z))
    y = y if value == 1 else c.mul(y, c.to(value, dtype))
    return c.add(x, c.mul(y, z) if "mul" in c.op_type else c.div(y, z))


@op("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(c: Context, x: Value, end: Value, weight: Any) -> Value:
    dtype = c.result_dtype()
    x, end, weight = c.wide(x), c.wide(end), c.wide(c.to(weight, dtype))
    apart = c.sub(end, x)
    near = c(ops.Less(), c(ops.Absolute(), weight), 0.5)
    from_end = c.sub(end, c.mul(apart, c.sub(1.0, weight)))
    return c.cast(c(ops.Where(), near, c.add(x, c.mul(weight, apart)), from_end), dtype)


__all__ = ["both", "clamped", "converted", "floor_divided"]
