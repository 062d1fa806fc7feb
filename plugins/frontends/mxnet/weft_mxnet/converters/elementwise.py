"""Elementwise operators: on two operands, on one and a number, on one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node

ONE: Mapping[str, Callable[[], Operator]] = {
    "abs": ops.Absolute, "arccos": ops.Acos, "arccosh": ops.Acosh, "arcsin": ops.Asin, "arcsinh": ops.Asinh,
    "arctan": ops.Atan, "arctanh": ops.Atanh, "ceil": ops.Ceil, "cos": ops.Cos, "cosh": ops.Cosh, "erf": ops.Erf,
    "exp": ops.Exp, "floor": ops.Floor, "log": ops.Log, "negative": ops.Negative, "reciprocal": ops.Reciprocal,
    "relu": ops.Relu, "rint": ops.Round, "sigmoid": ops.Sigmoid, "sign": ops.Sign, "sin": ops.Sin, "sinh": ops.Sinh,
    "softsign": ops.Softsign, "sqrt": ops.Sqrt, "tan": ops.Tan, "tanh": ops.Tanh, "trunc": ops.Trunc, "fix": ops.Trunc,
}  # fmt: skip
TWO: Mapping[str, Callable[[], Operator]] = {
    "add": ops.Add, "sub": ops.Subtract, "mul": ops.Multiply, "div": ops.Divide, "maximum": ops.Maximum,
    "minimum": ops.Minimum, "power": ops.Power,
}  # fmt: skip
TESTS: Mapping[str, Callable[[], Operator]] = {
    "equal": ops.Equal, "greater": ops.Greater, "greater_equal": ops.GreaterEqual, "lesser": ops.Less,
    "lesser_equal": ops.LessEqual,
}  # fmt: skip
NAMES: Mapping[str, str] = {
    **{f"broadcast_{n}": n for n in (*TWO, *TESTS, "not_equal")},
    **{f"elemwise_{n}": n for n in ("add", "sub", "mul", "div")},
    "broadcast_plus": "add", "broadcast_minus": "sub", "_plus": "add", "_Plus": "add", "_minus": "sub", "_Minus": "sub",
    "_mul": "mul", "_Mul": "mul", "_div": "div", "_Div": "div", "_add": "add", "_sub": "sub", "_maximum": "maximum",
    "_minimum": "minimum", "_power": "power", "_Power": "power", "_Maximum": "maximum", "_Minimum": "minimum",
    "_grad_add": "add", "_equal": "equal", "_greater": "greater", "_greater_equal": "greater_equal",
    "_lesser": "lesser", "_lesser_equal": "lesser_equal", "_not_equal": "not_equal",
}  # fmt: skip
SCALAR: Mapping[str, str] = {
    "_plus_scalar": "add", "_PlusScalar": "add", "_minus_scalar": "sub", "_MinusScalar": "sub", "_mul_scalar": "mul",
    "_MulScalar": "mul", "_div_scalar": "div", "_DivScalar": "div", "_maximum_scalar": "maximum",
    "_MaximumScalar": "maximum", "_minimum_scalar": "minimum", "_MinimumScalar": "minimum", "_power_scalar": "power",
    "_PowerScalar": "power", "_rminus_scalar": "-sub", "_RMinusScalar": "-sub", "_rdiv_scalar": "-div",
    "_RDivScalar": "-div", "_rpower_scalar": "-power", "_RPowerScalar": "-power",
    **{f"_{n}_scalar": n for n in (*TESTS, "not_equal")},
}  # fmt: skip


def _applied(c: Node, name: str, x: Value, y: Value) -> Value:
    """A test gives numbers of its operands' dtype, as MXNet's do."""
    if name in TWO:
        return c(TWO[name](), x, y)
    test = c(ops.LogicalNot(), c(ops.Equal(), x, y)) if name == "not_equal" else c(TESTS[name](), x, y)
    return c.cast(test, x.dtype)


@op(*NAMES)
def two(c: Node) -> Value:
    return _applied(c, NAMES[c.op_type], c.value(0), c.value(1))


@op(*SCALAR)
def scalar(c: Node) -> Value:
    x, name = c.value(0), SCALAR[c.op_type]
    number = c.real("scalar")
    if not x.dtype.is_float and number != int(number):
        raise c.unsupported(f"the number {number} with {x.dtype}")
    y = c.number(number if x.dtype.is_float else int(number), x.dtype)
    swapped = name.startswith("-")
    return _applied(c, name.lstrip("-"), *((y, x) if swapped else (x, y)))


@op(*ONE)
def one(c: Node) -> Value:
    return c(ONE[c.op_type](), c.value(0))


@op("square")
def square(c: Node) -> Value:
    return c.mul(c.value(0), c.value(0))


@op("rsqrt")
def rsqrt(c: Node) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), c.value(0)))


@op("round")
def round_(c: Node) -> Value:
    """Halves away from zero."""
    x = c.value(0)
    return c.mul(c(ops.Sign(), x), c(ops.Floor(), c.add(c(ops.Absolute(), x), 0.5)))


@op("log2", "log10", "log1p", "expm1")
def logarithm(c: Node) -> Value:
    x = c.value(0)
    if c.op_type == "log1p":
        return c(ops.Log(), c.add(x, 1.0))
    if c.op_type == "expm1":
        return c.sub(c(ops.Exp(), x), 1.0)
    return c.mul(c(ops.Log(), x), 1.4426950408889634 if c.op_type == "log2" else 0.4342944819032518)


@op("smooth_l1")
def smooth_l1(c: Node) -> Value:
    x, square_ = c.value(0), c.real("scalar", 1.0) ** 2
    size = c(ops.Absolute(), x)
    inside = c(ops.Less(), size, 1 / square_)
    return c(ops.Where(), inside, c.mul(c.mul(x, x), square_ / 2), c.sub(size, 0.5 / square_))


@op("hard_sigmoid")
def hard_sigmoid(c: Node) -> Value:
    return c(ops.HardSigmoid(c.real("alpha", 0.2), c.real("beta", 0.5)), c.value(0))


@op("Activation")
def activation(c: Node) -> Value:
    kind = c.choice("act_type", "", ("relu", "sigmoid", "tanh", "softrelu", "softsign", "log_sigmoid", "mish"))
    x = c.value(0)
    if kind == "log_sigmoid":
        return c(ops.Negative(), c(ops.Softplus(), c(ops.Negative(), x)))
    kinds: Mapping[str, Operator] = {
        "relu": ops.Relu(), "sigmoid": ops.Sigmoid(), "tanh": ops.Tanh(), "softrelu": ops.Softplus(),
        "softsign": ops.Softsign(), "mish": ops.Mish(),
    }  # fmt: skip
    return c(kinds[kind], x)


@op("LeakyReLU")
def leaky_relu(c: Node) -> Value:
    kind, x = c.choice("act_type", "leaky", ("leaky", "elu", "selu", "gelu", "prelu", "rrelu")), c.value(0)
    if kind == "prelu":
        slope = c.value(1)
        wide = slope.shape != (1,) and len(x.shape) > 1
        return c(ops.PRelu(), x, c.reshape(slope, (slope.shape[0], *(1 for _ in x.shape[2:]))) if wide else slope)
    if kind == "rrelu":
        return c(ops.LeakyRelu((c.real("lower_bound", 0.125) + c.real("upper_bound", 0.334)) / 2), x)
    slope_ = c.real("slope", 0.25)
    kinds: Mapping[str, Operator] = {
        "leaky": ops.LeakyRelu(slope_), "elu": ops.Elu(slope_), "selu": ops.Selu(), "gelu": ops.Gelu(),
    }  # fmt: skip
    return c(kinds[kind], x)


@op("clip")
def clip(c: Node) -> Value:
    return c(ops.Minimum(), c(ops.Maximum(), c.value(0), c.real("a_min")), c.real("a_max"))


@op("where")
def where(c: Node) -> Value:
    test, x, y = c.value(0), c.value(1), c.value(2)
    test = c(ops.LogicalNot(), c(ops.Equal(), test, 0))
    if len(test.shape) == 1 and len(x.shape) > 1:
        test = c.reshape(test, (test.shape[0], *(1 for _ in x.shape[1:])))
    return c(ops.Where(), test, x, y)


@op("add_n", "ElementWiseSum", "_sum")
def add_n(c: Node) -> Value:
    y, *rest = c.values()
    for x in rest:
        y = c.add(y, x)
    return y


@op("Cast", "cast")
def cast(c: Node) -> Value:
    return c.cast(c.value(0), c.dtype("dtype", dt.float32))


@op("amp_cast")
def amp_cast(c: Node) -> Value:
    x = c.value(0)
    return c.cast(x, c.dtype("dtype", dt.float32)) if x.dtype.is_float else x


@op("zeros_like", "ones_like")
def like(c: Node) -> Value:
    x = c.value(0)
    return c.broadcast(c.reshape(c.number(int(c.op_type == "ones_like"), x.dtype), (1,) * len(x.shape)), x.shape)
