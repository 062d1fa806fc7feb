"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_frontend.activations import clipped
from weft_keras.registry import operation
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_keras.call import Call

UNARY: Mapping[str, Operator] = {
    "Abs": ops.Absolute(), "Absolute": ops.Absolute(), "Arccos": ops.Acos(), "Arccosh": ops.Acosh(),
    "Arcsin": ops.Asin(), "Arcsinh": ops.Asinh(), "Arctan": ops.Atan(), "Arctanh": ops.Atanh(), "Cos": ops.Cos(),
    "Cosh": ops.Cosh(), "Erf": ops.Erf(), "Exp": ops.Exp(), "Expm1": ops.Expm1(), "Fabs": ops.Absolute(),
    "Log": ops.Log(), "Log1p": ops.Log1p(), "Mish": ops.Mish(), "Negative": ops.Negative(),
    "Reciprocal": ops.Reciprocal(), "Relu": ops.Relu(), "Selu": ops.Selu(), "Sigmoid": ops.Sigmoid(),
    "Sign": ops.Sign(), "Silu": ops.Swish(), "Sin": ops.Sin(), "Sinh": ops.Sinh(), "Softplus": ops.Softplus(),
    "Softsign": ops.Softsign(), "Sqrt": ops.Sqrt(), "Tan": ops.Tan(), "Tanh": ops.Tanh(),
    "HardSilu": ops.HardSwish(), "HardSigmoid": ops.HardSigmoid(1 / 6, 0.5),
}  # fmt: skip
"""Of floats, and of integers that Keras makes floats of."""
ROUNDING: Mapping[str, Operator] = {"Ceil": ops.Ceil(), "Floor": ops.Floor(), "Trunc": ops.Trunc()}
BINARY: Mapping[str, Operator] = {
    "Add": ops.Add(), "Subtract": ops.Subtract(), "Multiply": ops.Multiply(), "Maximum": ops.Maximum(),
    "Minimum": ops.Minimum(),
}  # fmt: skip
DIVIDING: Mapping[str, Operator] = {"Divide": ops.Divide(), "TrueDivide": ops.Divide()}
COMPARING: Mapping[str, Operator] = {
    "Equal": ops.Equal(), "NotEqual": ops.NotEqual(), "Greater": ops.Greater(), "GreaterEqual": ops.GreaterEqual(),
    "Less": ops.Less(), "LessEqual": ops.LessEqual(),
}  # fmt: skip
LOGICAL: Mapping[str, Operator] = {
    "LogicalAnd": ops.LogicalAnd(), "LogicalOr": ops.LogicalOr(), "LogicalXor": ops.LogicalXor(),
}  # fmt: skip


@operation(*UNARY)
def unary(c: Call) -> Value:
    return c(UNARY[c.op_type], c.tensor("x", c.out))


@operation(*ROUNDING)
def rounding(c: Call) -> Value:
    x = c.tensor("x")
    return c.cast(x if x.dtype.is_integer else c(ROUNDING[c.op_type], x), c.out)


@operation("Round")
def round_(c: Call) -> Value:
    if c.attribute("decimals"):
        raise c.unsupported("decimals")
    x = c.tensor("x")
    return c.cast(x if x.dtype.is_integer else c(ops.Round(), x), c.out)


@operation(*BINARY, *DIVIDING)
def binary(c: Call) -> Value:
    """Of numbers in the dtype of the result."""
    if c.out.is_bool:
        raise c.unsupported("of booleans")
    op = {**BINARY, **DIVIDING}[c.op_type]
    return c(op, c.tensor("x1", c.out), c.tensor("x2", c.out))


@operation("Power")
def power(c: Call) -> Value:
    if not c.out.is_float:
        raise c.unsupported("of integers")
    x, exponent = c.tensor("x1", c.out), c.arg("x2")
    if isinstance(exponent, (int, float)) and exponent == 2:
        return c.mul(x, x)
    return c(ops.Power(), x, c.tensor("x2", c.out))


@operation("FloorDivide")
def floor_divide(c: Call) -> Value:
    x, y = c.tensor("x1", c.out), c.tensor("x2", c.out)
    if c.out.is_float:  # by way of the remainder, as Python, NumPy and PyTorch compute it: 1 // 0.1 is 9
        quotient = c.div(c.sub(x, c(ops.Mod(), x, y)), y)
        floor = c(ops.Floor(), quotient)
        floor = c(ops.Where(), c(ops.Greater(), c.sub(quotient, floor), 0.5), c.add(floor, 1.0), floor)
        return c(ops.Where(), c(ops.Equal(), y, 0.0), c.div(x, y), floor)
    y = c.nonzero(y, "the divisor")
    return c.div(c.sub(x, c(ops.Mod(), x, y)), y)


@operation("Mod")
def mod(c: Call) -> Value:
    x, y = c.tensor("x1", c.out), c.tensor("x2", c.out)
    return c(ops.Mod(), x, y if c.out.is_float else c.nonzero(y, "the divisor"))


@operation("DivideNoNan")
def divide_no_nan(c: Call) -> Value:
    x, y = c.tensor("x1", c.out), c.tensor("x2", c.out)
    return c(ops.Where(), c(ops.Equal(), y, 0.0), c.number(0.0, c.out), c.div(x, y))


@operation(*COMPARING)
def comparing(c: Call) -> Value:
    return c(COMPARING[c.op_type], *c.promoted("x1", "x2"))


@operation(*LOGICAL)
def logical(c: Call) -> Value:
    return c(LOGICAL[c.op_type], c.tensor("x1", dt.bool_), c.tensor("x2", dt.bool_))


@operation("LogicalNot")
def logical_not(c: Call) -> Value:
    return c(ops.LogicalNot(), c.tensor("x", dt.bool_))


@operation("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(c: Call) -> Value:
    op: Operator = {"BitwiseAnd": ops.BitwiseAnd(), "BitwiseOr": ops.BitwiseOr(), "BitwiseXor": ops.BitwiseXor()}[
        c.op_type
    ]
    return c(op, c.tensor("x", c.out), c.tensor("y", c.out))


@operation("Where")
def where(c: Call) -> Value:
    if c.arg("x1") is None or c.arg("x2") is None:
        raise c.unsupported("of a condition alone")
    return c(ops.Where(), c.tensor("condition", dt.bool_), *c.promoted("x1", "x2"))


@operation("Cast", "SaturateCast")
def cast(c: Call) -> Value:
    x = c.tensor("x")
    if c.op_type == "SaturateCast" and not (c.out.is_float and (x.dtype.is_float or x.dtype.is_integer)):
        raise c.unsupported(f"{x.dtype} to {c.out}")
    return c.cast(x, c.out)


@operation("Copy", "ConvertToTensor", "Array")
def copy(c: Call) -> Value:
    return c.tensor("x", c.out)


@operation("StopGradient")
def stop_gradient(c: Call) -> Value:
    found: Value = c.detached(c.tensor("variable", c.out))
    return found


@operation("Square")
def square(c: Call) -> Value:
    x = c.tensor("x", c.out)
    return c.mul(x, x)


@operation("Rsqrt")
def rsqrt(c: Call) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), c.tensor("x", c.out)))


@operation("Log2", "Log10")
def logarithm(c: Call) -> Value:
    factor = {"Log2": 1.4426950408889634, "Log10": 0.4342944819032518}[c.op_type]
    return c.mul(c(ops.Log(), c.tensor("x", c.out)), factor)


@operation("Isnan", "Isinf", "Isfinite")
def classes(c: Call) -> Value:
    x = c.tensor("x")
    if not x.dtype.is_float:
        raise c.unsupported(f"of {x.dtype}")
    if c.op_type == "Isfinite":
        return c(ops.LogicalNot(), c(ops.LogicalOr(), c(ops.IsNan(), x), c(ops.IsInf(), x)))
    return c(ops.IsNan() if c.op_type == "Isnan" else ops.IsInf(), x)


@operation("Clip")
def clip(c: Call) -> Value:
    low, high = c.attribute("x_min"), c.attribute("x_max")
    bounds = [None if b is None else c.as_tensor(b, c.out) for b in (low, high)]
    return c(ops.Clip(), c.tensor("x", c.out), *bounds)


# -- activations ------------------------------------------------------------------------------------------------------


@operation("ReLU")
def relu(c: Call) -> Value:
    """`keras.activations.relu`, with all its options."""
    x, slope = c.tensor("x"), float(c.attribute("negative_slope"))
    most, threshold = c.attribute("max_value"), float(c.attribute("threshold"))
    if slope and most is None and not threshold:
        return c(ops.LeakyRelu(slope), x)
    positive = x
    if threshold:
        positive = c(ops.Where(), c(ops.Greater(), x, threshold), x, c.number(0.0, x.dtype))
        low = None if most is None else 0.0
        positive = clipped(c, positive, low, None if most is None else float(most))
    else:
        positive = clipped(c, c(ops.Relu(), x), None, None if most is None else float(most))
    if not slope:
        return positive
    return c.sub(positive, c.mul(c(ops.Relu(), c.sub(threshold, x)), slope))


def by_attribute(name: str, make: Callable[[float], Operator]) -> Callable[[Call], Value]:
    return lambda c: c(make(float(c.attribute(name))), c.tensor("x"))


operation("LeakyRelu")(by_attribute("negative_slope", ops.LeakyRelu))
operation("Elu")(by_attribute("alpha", ops.Elu))
operation("Celu")(by_attribute("alpha", ops.Celu))


@operation("Gelu")
def gelu(c: Call) -> Value:
    return c(ops.Gelu(bool(c.attribute("approximate"))), c.tensor("x"))


@operation("Relu6")
def relu6(c: Call) -> Value:
    return clipped(c, c.tensor("x"), 0.0, 6.0)


@operation("HardTanh")
def hard_tanh(c: Call) -> Value:
    return clipped(c, c.tensor("x"), -1.0, 1.0)


@operation("LogSigmoid")
def log_sigmoid(c: Call) -> Value:
    return c(ops.Negative(), c(ops.Softplus(), c(ops.Negative(), c.tensor("x"))))


@operation("TanhShrink")
def tanh_shrink(c: Call) -> Value:
    x = c.tensor("x")
    return c.sub(x, c(ops.Tanh(), x))


@operation("SparseSigmoid")
def sparse_sigmoid(c: Call) -> Value:
    return clipped(c, c.mul(c.add(c.tensor("x"), 1.0), 0.5), 0.0, 1.0)


@operation("Squareplus")
def squareplus(c: Call) -> Value:
    x = c.tensor("x")
    return c.mul(c.add(x, c(ops.Sqrt(), c.add(c.mul(x, x), float(c.attribute("b"))))), 0.5)


@operation("Glu")
def glu(c: Call) -> Value:
    x = c.tensor("x")
    axis = c.axis(c.attribute("axis"), len(x.shape))
    (size,) = c.fixed(x.shape[axis : axis + 1], "an axis that is halved")
    left, right = (c.slice(x, axis, k * (size // 2), size // 2) for k in (0, 1))
    return c.mul(left, c(ops.Sigmoid(), right))


@operation("HardShrink", "SoftShrink")
def shrink(c: Call) -> Value:
    limit = float(c.attribute("threshold"))
    return c(ops.Shrink(limit, limit if c.op_type == "SoftShrink" else 0.0), c.tensor("x"))


@operation("Softmax", "LogSoftmax")
def softmax(c: Call) -> Value:
    x = c.tensor("x")
    return softmax_over(c, x, c.axes(c.attribute("axis"), len(x.shape)), c.op_type == "LogSoftmax")


def softmax_over(c: Call, x: Value, axes: Sequence[int], logarithm: bool = False) -> Value:
    """Softmax over several axes together, which go last as one."""
    op = ops.LogSoftmax if logarithm else ops.Softmax
    if len(axes) == 1:
        return c(op(axes[0]), x)
    order = [k for k in range(len(x.shape)) if k not in axes] + list(axes)
    moved, rest = c.transpose(x, order), len(x.shape) - len(axes)
    flat = c.reshape(moved, (*moved.shape[:rest], product(moved.shape[rest:])))
    y = c.reshape(c(op(rest), flat), moved.shape)
    return c.transpose(y, [order.index(k) for k in range(len(order))])
