"""Elementwise operators and activations."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_frontend.activations import ACTIVATIONS, clipped
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op

PLAIN: dict[str, Callable[[], Operator]] = {
    "Abs": ops.Absolute, "Acos": ops.Acos, "Acosh": ops.Acosh, "Add": ops.Add, "AddV2": ops.Add, "Asin": ops.Asin,
    "Asinh": ops.Asinh, "Atan": ops.Atan, "Atanh": ops.Atanh, "BiasAddV1": ops.Add, "BitwiseAnd": ops.BitwiseAnd,
    "BitwiseOr": ops.BitwiseOr, "BitwiseXor": ops.BitwiseXor, "Ceil": ops.Ceil, "Cos": ops.Cos, "Cosh": ops.Cosh,
    "Elu": ops.Elu, "Erf": ops.Erf, "Exp": ops.Exp, "Expm1": ops.Expm1, "Floor": ops.Floor, "FloorMod": ops.Mod,
    "Greater": ops.Greater, "GreaterEqual": ops.GreaterEqual, "Inv": ops.Reciprocal, "Invert": ops.BitwiseNot,
    "IsInf": ops.IsInf, "IsNan": ops.IsNan, "Less": ops.Less, "LessEqual": ops.LessEqual, "Log": ops.Log,
    "Log1p": ops.Log1p, "LogicalAnd": ops.LogicalAnd, "LogicalNot": ops.LogicalNot, "LogicalOr": ops.LogicalOr,
    "Maximum": ops.Maximum, "Minimum": ops.Minimum, "Mul": ops.Multiply, "Neg": ops.Negative, "Pow": ops.Power,
    "RealDiv": ops.Divide, "Reciprocal": ops.Reciprocal, "Rint": ops.Round, "Selu": ops.Selu,
    "Sigmoid": ops.Sigmoid, "Sign": ops.Sign, "Sin": ops.Sin, "Sinh": ops.Sinh, "Softplus": ops.Softplus,
    "Softsign": ops.Softsign, "Sqrt": ops.Sqrt, "Sub": ops.Subtract, "Tan": ops.Tan, "Tanh": ops.Tanh,
}  # fmt: skip
"""Operators that are one of ours on the same operands."""


def _plain(make: Callable[[], Operator]) -> Callable[[Context], Value]:
    return lambda c: c(make(), *c.values())


def _activation(kind: str) -> Callable[[Context], Value]:
    return lambda c: ACTIVATIONS[kind](c, c.value(0))


for _name, _make in PLAIN.items():
    tf_op(_name)(_plain(_make))
for _name, _kind in {"Relu": "relu", "Relu6": "relu6"}.items():
    tf_op(_name)(_activation(_kind))


@tf_op("Round")
def round_(c: Context) -> Value:
    """Halves to even; integers are whole."""
    x = c.value(0)
    return x if x.dtype.is_integer else c(ops.Round(), x)


@tf_op("IsFinite")
def is_finite(c: Context) -> Value:
    x = c.value(0)
    return c(ops.LogicalNot(), c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsInf(), x)))


@tf_op("Equal", "NotEqual")
def equal(c: Context) -> Value:
    """Operands that do not broadcast may be unequal by an attribute."""
    a, b = c.value(0), c.value(1)
    if a.dtype.kind == "string":
        found = c.builder.add(ops.StringEqual(), a, b)
        return found if c.op_type == "Equal" else c(ops.LogicalNot(), found)
    return c(ops.Equal() if c.op_type == "Equal" else ops.NotEqual(), a, b)


@tf_op("Rsqrt")
def rsqrt(c: Context) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), c.value(0)))


@tf_op("Square")
def square(c: Context) -> Value:
    x = c.value(0)
    return c.mul(x, x)


@tf_op("SquaredDifference")
def squared_difference(c: Context) -> Value:
    d = c.sub(c.value(0), c.value(1))
    return c.mul(d, d)


@tf_op("LeakyRelu")
def leaky_relu(c: Context) -> Value:
    return c(ops.LeakyRelu(c.real("alpha", 0.2)), c.value(0))


@tf_op("Erfc")
def erfc(c: Context) -> Value:
    return c.sub(1.0, c(ops.Erf(), c.value(0)))


@tf_op("AddN", "AccumulateNV2")
def add_n(c: Context) -> Value:
    first, *rest = c.values()
    for x in rest:
        first = c.add(first, x)
    return first


def floored(c: Context, a: Value, b: Value) -> Value:
    """The quotient, rounded down."""
    if a.dtype.is_float:
        return c(ops.Floor(), c.div(a, b))
    quotient = c.div(a, c.nonzero(b, "a divisor"))
    if a.dtype.kind == "uint":
        return quotient
    low = c(ops.NotEqual(), c.mul(quotient, b), a)
    signs = c(ops.NotEqual(), c(ops.Less(), a, 0), c(ops.Less(), b, 0))
    return c(ops.Where(), c(ops.LogicalAnd(), low, signs), c.sub(quotient, 1), quotient)


@tf_op("FloorDiv")
def floor_div(c: Context) -> Value:
    return floored(c, c.value(0), c.value(1))


@tf_op("Div", "TruncateDiv")
def truncate_div(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    if a.dtype.is_float:
        quotient = c.div(a, b)
        return quotient if c.op_type == "Div" else c(ops.Trunc(), quotient)
    return c.div(a, c.nonzero(b, "a divisor"))


@tf_op("Mod", "TruncateMod")
def truncate_mod(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    return c(ops.Fmod(), a, b if a.dtype.is_float else c.nonzero(b, "a divisor"))


@tf_op("DivNoNan")
def div_no_nan(c: Context) -> Value:
    """0 where the divisor is."""
    a, b = c.value(0), c.value(1)
    return c(ops.Where(), c(ops.Equal(), b, 0), c.number(0, a.dtype), c.div(a, b))


@tf_op("MulNoNan")
def mul_no_nan(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    return c(ops.Where(), c(ops.Equal(), b, 0), c.number(0, a.dtype), c.mul(a, b))


@tf_op("Xdivy")
def xdivy(c: Context) -> Value:
    """0 where the first operand is."""
    a, b = c.value(0), c.value(1)
    return c(ops.Where(), c(ops.Equal(), a, 0), c.number(0, a.dtype), c.div(a, b))


@tf_op("Xlogy", "Xlog1py")
def xlogy(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    log = c(ops.Log() if c.op_type == "Xlogy" else ops.Log1p(), b)
    return c(ops.Where(), c(ops.Equal(), a, 0), c.number(0, a.dtype), c.mul(a, log))


def angle(c: Context, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), signed zeros and infinities as C has them but for those of both operands."""
    pi, half = 3.141592653589793, 1.5707963267948966
    swap = c(ops.Greater(), c(ops.Absolute(), y), c(ops.Absolute(), x))
    top, below = c(ops.Where(), swap, x, y), c(ops.Where(), swap, y, x)
    flat = c(ops.Equal(), below, 0)
    angle = c(ops.Atan(), c.div(top, c(ops.Where(), flat, c.number(1, x.dtype), below)))
    sign = c(ops.Where(), c(ops.Less(), y, 0), c.number(-1, x.dtype), c.number(1, x.dtype))
    steep = c.sub(c.mul(sign, half), angle)
    back = c(ops.Where(), c(ops.Less(), x, 0), c.add(angle, c.mul(sign, pi)), angle)
    return c(ops.Where(), swap, steep, back)


@tf_op("Atan2")
def atan2(c: Context) -> Value:
    return angle(c, c.value(0), c.value(1))


@tf_op("LeftShift", "RightShift")
def shift(c: Context) -> Value:
    """TensorFlow bounds the number of places by 0 and the width less one."""
    x, by = c.value(0), c.value(1)
    bounded = clipped(c, by, 0, x.dtype.bits - 1)
    return c(ops.LeftShift() if c.op_type == "LeftShift" else ops.RightShift(), x, bounded)


@tf_op("ClipByValue")
def clip_by_value(c: Context) -> Value:
    return c(ops.Minimum(), c(ops.Maximum(), c.value(0), c.value(1)), c.value(2))


def cast_to(c: Context, x: Value, to: DType) -> Value:
    if x.dtype.is_float and to.kind == "uint" and to.bits < 64:
        # As TensorFlow's kernels do: through a signed integer of twice the width, whose lowest bits stay.
        return c.cast(c.cast(x, dt.int64 if to.bits == 32 else dt.int32), to)
    return c.cast(x, to)


@tf_op("Cast")
def cast(c: Context) -> Value:
    return cast_to(c, c.value(0), c.dtype("DstT"))


@tf_op("Select", "SelectV2")
def select(c: Context) -> Value:
    """In the older operator a condition of one dimension chooses along the first axis."""
    test, a, b = c.value(0), c.value(1), c.value(2)
    behind = len(a.shape) - len(test.shape)
    if c.op_type == "Select" and behind > 0 and len(test.shape) == 1:
        test = c.reshape(test, (*test.shape, *(1,) * behind))
    return c(ops.Where(), test, a, b)


@tf_op("ZerosLike", "OnesLike")
def like(c: Context) -> Value:
    x = c.value(0)
    return c.broadcast(c.number(int(c.op_type == "OnesLike"), x.dtype), x.shape)
