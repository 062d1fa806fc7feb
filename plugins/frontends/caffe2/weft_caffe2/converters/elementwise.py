"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_caffe2.registry import op

if TYPE_CHECKING:
    from weft_caffe2.network import Node

ONE: dict[str, Operator] = {
    "Abs": ops.Absolute(), "Acos": ops.Acos(), "Asin": ops.Asin(), "Atan": ops.Atan(), "Ceil": ops.Ceil(), "Cos":
        ops.Cos(),
    "Cosh": ops.Cosh(), "Erf": ops.Erf(), "Exp": ops.Exp(), "Floor": ops.Floor(), "Log": ops.Log(), "Negative":
        ops.Negative(),
    "Not": ops.LogicalNot(), "Reciprocal": ops.Reciprocal(), "Relu": ops.Relu(), "Sigmoid": ops.Sigmoid(), "Sign":
        ops.Sign(),
    "Sin": ops.Sin(), "Sinh": ops.Sinh(), "Softplus": ops.Softplus(), "Softsign": ops.Softsign(), "Sqrt": ops.Sqrt(),
    "Swish": ops.Swish(), "Tan": ops.Tan(), "Tanh": ops.Tanh(),
}  # fmt: skip
TWO: dict[str, Operator] = {
    "Add": ops.Add(), "Sub": ops.Subtract(), "Mul": ops.Multiply(), "Div": ops.Divide(), "LT": ops.Less(), "LE":
        ops.LessEqual(),
    "GT": ops.Greater(), "GE": ops.GreaterEqual(), "EQ": ops.Equal(), "NE": ops.NotEqual(), "And": ops.LogicalAnd(),
    "Or": ops.LogicalOr(), "Xor": ops.LogicalXor(),
}  # fmt: skip
MANY: dict[str, Operator] = {"Sum": ops.Add(), "Max": ops.Maximum(), "Min": ops.Minimum(), "Mean": ops.Add()}
SAME = ("Copy", "Alias", "EnsureDense", "EnsureCPUOutput", "CopyCPUToGPU", "CopyGPUToCPU", "CopyToCPU")


@op(*ONE)
def one(c: Node) -> Value:
    c.text("order", "NCHW")
    return c(ONE[c.op_type], c.value(0))


@op(*SAME)
def same(c: Node) -> Value:
    return c.value(0)


@op("StopGradient")
def stop_gradient(c: Node) -> Value:
    found: Value = c.detached(c.value(0))
    return found


def legacy(c: Node, x: Value, y: Value) -> Value:
    """The second operand as `broadcast=1` lays it along the first: from `axis` on, by default at the end."""
    if not c.integer("broadcast", 0):
        return y
    rank, own = len(x.shape), len(y.shape)
    axis = c.integer("axis", -1)
    axis = rank - own if axis == -1 else axis
    if not 0 <= axis <= rank - own:
        raise c.error(f"broadcasting along axis {axis}: operands of {rank} and {own} dimensions")
    return c.reshape(y, (*y.shape, *(1 for _ in range(rank - own - axis))))


@op(*TWO)
def two(c: Node) -> Value:
    x, y = c.value(0), c.value(1)
    y = legacy(c, x, y)
    if c.op_type == "Div" and x.dtype.is_integer:
        raise c.unsupported("a quotient of integers")
    return c(TWO[c.op_type], x, y)


@op(*MANY)
def many(c: Node) -> Value:
    xs = c.values()
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise c.error(f"takes blobs of one shape, got {', '.join(str(x.type) for x in xs)}")
    y = xs[0]
    for x in xs[1:]:
        y = c(MANY[c.op_type], y, x)
    return c.mul(y, 1 / len(xs)) if c.op_type == "Mean" else y


@op("Pow")
def power(c: Node) -> Value:
    x = c.value(0)
    if c.count > 1:
        return c(ops.Power(), x, legacy(c, x, c.value(1)))
    if not c.has("exponent"):
        raise c.error("needs an exponent")
    return c(ops.Power(), x, c.real("exponent", 1))


POWERS: dict[str, Callable[[Node, Value], Value]] = {
    "Sqr": lambda c, x: c.mul(x, x),
    "Cube": lambda c, x: c.mul(c.mul(x, x), x),
    "Rsqrt": lambda c, x: c.div(1.0, c(ops.Sqrt(), x)),
}


@op(*POWERS)
def powers(c: Node) -> Value:
    return POWERS[c.op_type](c, c.value(0))


@op("Scale")
def scale(c: Node) -> Value:
    return c.mul(c.value(0), c.real("scale", 1))


@op("LeakyRelu")
def leaky(c: Node) -> Value:
    return c(ops.LeakyRelu(c.real("alpha", 0.01)), c.value(0))


@op("Elu")
def elu(c: Node) -> Value:
    return c(ops.Elu(c.real("alpha", 1)), c.value(0))


@op("Selu")
def selu(c: Node) -> Value:
    return c(ops.Selu(c.real("alpha", 1.6732632), c.real("scale", 1.050701)), c.value(0))


@op("HardSigmoid")
def hard_sigmoid(c: Node) -> Value:
    return c(ops.HardSigmoid(c.real("alpha", 0.2), c.real("beta", 0.5)), c.value(0))


@op("Gelu")
def gelu(c: Node) -> Value:
    return c(ops.Gelu(approximate=bool(c.integer("fast_gelu", 0))), c.value(0))


@op("Clip")
def clip(c: Node) -> Value:
    y, least = c.value(0), float(np.finfo(np.float32).min)
    low, high = c.real("min", least), c.real("max", -least)
    y = y if low <= least else c(ops.Maximum(), y, low)
    return y if high >= -least else c(ops.Minimum(), y, high)


@op("PRelu")
def prelu(c: Node) -> Value:
    x, slope, last = c.value(0), c.value(1), c.channels_last()
    (count,) = c.fixed(slope.shape, "slopes")
    behind = 0 if last or count == 1 else len(x.shape) - 2
    return c(ops.PRelu(), x, c.reshape(slope, (count, *(1 for _ in range(behind)))))


@op("Where")
def where(c: Node) -> Value:
    x, y, condition = c.value(1), c.value(2), c.value(0)
    if not (x.shape == y.shape == condition.shape):
        raise c.error("takes three blobs of one shape")
    return c(ops.Where(), condition, x, y)


@op("Cast")
def cast(c: Node) -> Value:
    c.argument("from_type")
    x = c.value(0)
    if not c.has("to"):
        raise c.error("needs a dtype, the argument to")
    return c.cast(x, c.dtype_argument("to", x.dtype))


@op("Dropout")
def dropout(c: Node) -> list[Value | None]:
    c.argument("ratio")
    if not c.integer("is_test", 0):
        raise c.unsupported("is_test: 0, which is for training")
    return [c.value(0), None]
