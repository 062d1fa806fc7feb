"""Operators of each element, and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_coreml.context import Context
from weft_coreml.registry import op

BINARY: dict[str, Callable[[], Any]] = {
    "add": ops.Add, "sub": ops.Subtract, "mul": ops.Multiply, "maximum": ops.Maximum, "minimum": ops.Minimum,
    "mod": ops.Mod, "pow": ops.Power, "equal": ops.Equal, "not_equal": ops.NotEqual, "less": ops.Less,
    "less_equal": ops.LessEqual, "greater": ops.Greater, "greater_equal": ops.GreaterEqual,
}  # fmt: skip
LOGICAL: dict[str, Callable[[], Any]] = {
    "logical_and": ops.LogicalAnd, "logical_or": ops.LogicalOr, "logical_xor": ops.LogicalXor,
}  # fmt: skip
UNARY: dict[str, Callable[[], Any]] = {
    "abs": ops.Absolute, "acos": ops.Acos, "asin": ops.Asin, "atan": ops.Atan, "atanh": ops.Atanh, "ceil": ops.Ceil,
    "cos": ops.Cos, "cosh": ops.Cosh, "erf": ops.Erf, "exp": ops.Exp, "floor": ops.Floor, "round": ops.Round,
    "sign": ops.Sign, "sin": ops.Sin, "sinh": ops.Sinh, "sqrt": ops.Sqrt, "tan": ops.Tan, "tanh": ops.Tanh,
    "logical_not": ops.LogicalNot, "relu": ops.Relu, "sigmoid": ops.Sigmoid, "silu": ops.Swish,
    "softplus": ops.Softplus, "softsign": ops.Softsign,
}  # fmt: skip
WHOLE = ("ceil", "floor", "round")
"""Operators that leave integers as they are."""


@op(*BINARY)
def binary(c: Context) -> Value:
    x, y = c.of("x"), c.of("y")
    kind = BINARY[c.op_type]()
    if x.dtype.is_bool and c.op_type in ("add", "sub", "mul", "less", "less_equal", "greater", "greater_equal"):
        x, y = c.cast(x, dt.int32), c.cast(y, dt.int32)
    if x.dtype != y.dtype:
        wide = c.result_dtype() if not c.result_dtype().is_bool else max(x.dtype, y.dtype, key=lambda d: d.bits)
        x, y = c.cast(x, wide), c.cast(y, wide)
    return c(kind, x, y)


@op(*LOGICAL)
def logical(c: Context) -> Value:
    return c(LOGICAL[c.op_type](), c.cast(c.of("x"), dt.bool_), c.cast(c.of("y"), dt.bool_))


@op("real_div")
def real_div(c: Context) -> Value:
    """A quotient of floats; of integers it is made one again, towards zero."""
    x, y = c.of("x"), c.of("y")
    if x.dtype.is_float:
        return c.div(x, y)
    return c.cast(c.div(c.cast(x, dt.float32), c.cast(y, dt.float32)), c.result_dtype())


@op("floor_div")
def floor_div(c: Context) -> Value:
    x, y = c.of("x"), c.of("y")
    if x.dtype.is_float:
        return c(ops.Floor(), c.div(x, y))
    y = c.nonzero(y, "divisor")
    quotient = c.div(x, y)
    if x.dtype.kind == "uint":
        return quotient
    rest = c.sub(x, c.mul(quotient, y))
    below = c(
        ops.LogicalAnd(), c(ops.NotEqual(), rest, 0), c(ops.NotEqual(), c(ops.Less(), rest, 0), c(ops.Less(), y, 0))
    )
    return c(ops.Where(), below, c.sub(quotient, 1), quotient)


@op(*UNARY)
def unary(c: Context) -> Value:
    x = c.of("x")
    return x if x.dtype.is_integer and c.op_type in WHOLE else c(UNARY[c.op_type](), x)


@op("exp2")
def exp2(c: Context) -> Value:
    x = c.of("x")
    if x.dtype.is_float:
        return c(ops.Power(), c.number(2, x.dtype), x)
    return c.cast(c(ops.Power(), c.number(2, dt.float32), c.cast(x, dt.float32)), c.result_dtype())


@op("square")
def square(c: Context) -> Value:
    x = c.of("x")
    return c.mul(x, x)


def _shifted(c: Context, default: float) -> Value:
    """`x` and a small number; the smallest ones are 0 in half precision."""
    x = c.of("x")
    epsilon = c.real("epsilon", default)
    return x if float(x.dtype.numpy.type(epsilon)) == 0 else c.add(x, epsilon)


@op("log")
def log(c: Context) -> Value:
    return c(ops.Log(), _shifted(c, 1e-45))


@op("inverse")
def inverse(c: Context) -> Value:
    return c(ops.Reciprocal(), _shifted(c, 1e-4))


@op("rsqrt")
def rsqrt(c: Context) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), _shifted(c, 1e-12)))


@op("threshold")
def threshold(c: Context) -> Value:
    return c(ops.Maximum(), c.of("x"), _number(c, "alpha"))


def _number(c: Context, name: str) -> float | int:
    x = c.of("x")
    return c.integer(name) if x.dtype.is_integer else c.real(name)


@op("clip")
def clip(c: Context) -> Value:
    return c(ops.Minimum(), c(ops.Maximum(), c.of("x"), _number(c, "alpha")), _number(c, "beta"))


@op("cast")
def cast(c: Context) -> Value:
    return c.cast(c.of("x"), c.dtype_named("dtype"))


@op("identity")
def identity(c: Context) -> Any:
    return c.at("x")


@op("select")
def select(c: Context) -> Value:
    test, a, b = c.of("cond"), c.of("a"), c.of("b")
    return c(ops.Where(), c.cast(test, dt.bool_), a, b)


# -- activations ------------------------------------------------------------------------------------------------------


@op("relu6")
def relu6(c: Context) -> Value:
    return c(ops.Minimum(), c(ops.Relu(), c.of("x")), 6)


@op("clamped_relu")
def clamped_relu(c: Context) -> Value:
    return c(ops.Minimum(), c(ops.LeakyRelu(c.real("alpha")), c.of("x")), c.real("beta"))


@op("elu")
def elu(c: Context) -> Value:
    return c(ops.Elu(c.real("alpha")), c.of("x"))


@op("leaky_relu")
def leaky_relu(c: Context) -> Value:
    return c(ops.LeakyRelu(c.real("alpha")), c.of("x"))


@op("linear_activation")
def linear_activation(c: Context) -> Value:
    return c.add(c.mul(c.of("x"), c.real("alpha")), c.real("beta"))


@op("scaled_tanh")
def scaled_tanh(c: Context) -> Value:
    return c.mul(c(ops.Tanh(), c.mul(c.of("x"), c.real("beta"))), c.real("alpha"))


@op("sigmoid_hard")
def sigmoid_hard(c: Context) -> Value:
    return c(ops.HardSigmoid(c.real("alpha"), c.real("beta")), c.of("x"))


@op("thresholded_relu")
def thresholded_relu(c: Context) -> Value:
    """x where it is at least alpha: weft's own operator is for greater ones."""
    x, alpha = c.of("x"), c.real("alpha")
    return c(ops.Where(), c(ops.GreaterEqual(), x, alpha), x, 0.0)


def per_channel(c: Context, x: Value, name: str) -> Value:
    """A vector of channels, which are axis 1 of `x`; of a vector `x` axis 0."""
    v = c.cast(c.of(name), x.dtype)
    rank = len(x.shape)
    return c.reshape(v, (*v.shape, *([1] * (rank - 2)))) if len(v.shape) == 1 and rank > 2 else v


@op("prelu")
def prelu(c: Context) -> Value:
    x = c.of("x")
    return c(ops.PRelu(), x, per_channel(c, x, "alpha"))


@op("softplus_parametric")
def softplus_parametric(c: Context) -> Value:
    x = c.of("x")
    return c.mul(c(ops.Softplus(), c.mul(x, per_channel(c, x, "beta"))), per_channel(c, x, "alpha"))


@op("gelu")
def gelu(c: Context) -> Value:
    x = c.of("x")
    mode = c.word("mode", "EXACT", ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"))
    if mode == "SIGMOID_APPROXIMATION":
        return c(ops.Swish(1.702), x)
    return c(ops.Gelu(mode == "TANH_APPROXIMATION"), x)


@op("softmax")
def softmax(c: Context) -> Value:
    x = c.of("x")
    return c(ops.Softmax(c.axis(c.integer("axis", -1), len(x.shape))), x) if x.shape else c.add(c.mul(x, 0), 1)


__all__ = ["per_channel"]
