"""Elementwise operators and activations, of numbers that are not quantised."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_frontend.activations import ACTIVATIONS, clipped
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_op

PLAIN: dict[str, Callable[[], Operator]] = {
    "ABS": ops.Absolute, "CEIL": ops.Ceil, "COS": ops.Cos, "EXP": ops.Exp, "FLOOR": ops.Floor,
    "LOG": ops.Log, "LOGICAL_AND": ops.LogicalAnd, "LOGICAL_NOT": ops.LogicalNot, "LOGICAL_OR": ops.LogicalOr,
    "LOGISTIC": ops.Sigmoid, "NEG": ops.Negative, "ROUND": ops.Round, "SIGN": ops.Sign, "SIN": ops.Sin,
    "SQRT": ops.Sqrt, "TANH": ops.Tanh, "BITWISE_XOR": ops.BitwiseXor, "FLOOR_MOD": ops.Mod, "POW": ops.Power,
    "ELU": ops.Elu, "HARD_SWISH": ops.HardSwish, "PRELU": ops.PRelu,
}  # fmt: skip
"""Operators that are one of ours on the same operands."""
FUSED: dict[str, Callable[[], Operator]] = {
    "ADD": ops.Add, "SUB": ops.Subtract, "MUL": ops.Multiply, "DIV": ops.Divide,
}  # fmt: skip
"""Those that a fused activation follows."""
COMPARING: dict[str, Callable[[], Operator]] = {
    "EQUAL": ops.Equal, "NOT_EQUAL": ops.NotEqual, "LESS": ops.Less, "LESS_EQUAL": ops.LessEqual,
    "GREATER": ops.Greater, "GREATER_EQUAL": ops.GreaterEqual, "MAXIMUM": ops.Maximum, "MINIMUM": ops.Minimum,
}  # fmt: skip
"""Those that are the same of numbers and of quantised numbers of one scale."""
STABLEHLO = {"STABLEHLO_ADD": ops.Add, "STABLEHLO_MULTIPLY": ops.Multiply, "STABLEHLO_MAXIMUM": ops.Maximum,
             "STABLEHLO_MINIMUM": ops.Minimum, "STABLEHLO_SHIFT_LEFT": ops.LeftShift}  # fmt: skip
"""Those of StableHLO that LiteRT runs, elementwise."""
CLIPS: dict[str, str] = {"RELU": "relu", "RELU6": "relu6", "RELU_N1_TO_1": "relu_n1_to_1", "RELU_0_TO_1": "relu_0_to_1"}


def _plain(make: Callable[[], Operator]) -> Callable[[Context], Value]:
    return lambda c: c(make(), *c.values())


def _fused(make: Callable[[], Operator]) -> Callable[[Context], Value]:
    return lambda c: c.activated(c(make(), c.value(0), c.value(1)))


def _clip(name: str) -> Callable[[Context], Value]:
    return lambda c: ACTIVATIONS[name](c, c.value(0))


for _name, _make in (*PLAIN.items(), *STABLEHLO.items()):
    tflite_op(_name)(_plain(_make))
for _name, _make in FUSED.items():
    tflite_op(_name)(_fused(_make))
for _name, _make in COMPARING.items():
    moving_op(_name)(_plain(_make))
for _name, _kind in CLIPS.items():
    tflite_op(_name)(_clip(_kind))


@tflite_op("RSQRT")
def rsqrt(c: Context) -> Value:
    return c(ops.Reciprocal(), c(ops.Sqrt(), c.value(0)))


@tflite_op("SQUARE")
def square(c: Context) -> Value:
    x = c.value(0)
    return c.mul(x, x)


@tflite_op("SQUARED_DIFFERENCE")
def squared_difference(c: Context) -> Value:
    d = c.sub(c.value(0), c.value(1))
    return c.mul(d, d)


@tflite_op("LEAKY_RELU")
def leaky_relu(c: Context) -> Value:
    x = c.value(0)
    return c(ops.Where(), c(ops.Greater(), x, 0), x, c.mul(x, c.real("alpha")))


@tflite_op("GELU")
def gelu(c: Context) -> Value:
    return c(ops.Gelu(c.flag("approximate")), c.value(0))


@tflite_op("ADD_N")
def add_n(c: Context) -> Value:
    first, *rest = c.values()
    for x in rest:
        first = c.add(first, x)
    return first


@tflite_op("FLOOR_DIV")
def floor_div(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    if a.dtype.is_float:
        return c(ops.Floor(), c.div(a, b))
    quotient = c.div(a, c.nonzero(b, "a divisor"))
    if a.dtype.kind == "uint":
        return quotient
    low = c(ops.NotEqual(), c.mul(quotient, b), a)
    signs = c(ops.NotEqual(), c(ops.Less(), a, 0), c(ops.Less(), b, 0))
    return c(ops.Where(), c(ops.LogicalAnd(), low, signs), c.sub(quotient, 1), quotient)


@tflite_op("ATAN2")
def atan2(c: Context) -> Value:
    """The angle of the point (x, y), signed zeros and infinities as C has them but for those of both operands."""
    y, x = c.value(0), c.value(1)
    pi, half = 3.141592653589793, 1.5707963267948966
    swap = c(ops.Greater(), c(ops.Absolute(), y), c(ops.Absolute(), x))
    top, below = c(ops.Where(), swap, x, y), c(ops.Where(), swap, y, x)
    flat = c(ops.Equal(), below, 0)
    angle = c(ops.Atan(), c.div(top, c(ops.Where(), flat, c.number(1, x.dtype), below)))
    sign = c(ops.Where(), c(ops.Less(), y, 0), c.number(-1, x.dtype), c.number(1, x.dtype))
    steep = c.sub(c.mul(sign, half), angle)
    back = c(ops.Where(), c(ops.Less(), x, 0), c.add(angle, c.mul(sign, pi)), angle)
    return c(ops.Where(), swap, steep, back)


@tflite_op("RIGHT_SHIFT")
def right_shift(c: Context) -> Value:
    """LiteRT bounds the number of places by 0 and the width less one."""
    x, by = c.value(0), c.value(1)
    bounded = clipped(c, by, 0, x.dtype.bits - 1)
    return c(ops.RightShift(), x, bounded)


@tflite_op("CAST")
def cast(c: Context) -> Value:
    x, to = c.value(0), c.output_dtype()
    if x.dtype.is_float and to.kind == "uint" and to.bits < 64:
        raise c.unsupported(f"{x.dtype} to {to}, which C leaves open")
    return c.cast(x, to)


@tflite_op("DEQUANTIZE")
def dequantize(c: Context) -> Value:
    """Of float16: a cast. Of quantised numbers: in `quantized`."""
    x = c.value(0)
    if not x.dtype.is_float:
        raise c.unsupported(f"{x.dtype} without a scale")
    return c.cast(x, dt.float32)


@moving_op("ZEROS_LIKE")
def zeros_like(c: Context) -> Value:
    x = c.value(0)
    return c.broadcast(c.number(0, x.dtype), x.shape)


@tflite_op("FAKE_QUANT")
def fake_quant(c: Context) -> Value:
    """Rounded to as many steps as integers of these bits have, between limits moved so that 0 is one."""
    import numpy as np

    low, high = np.float32(c.op.options["min"]), np.float32(c.op.options["max"])
    bits, narrow = c.integer("num_bits"), c.flag("narrow_range")
    if not 2 <= bits <= 16 or not low <= 0 <= high or not low < high:
        raise c.error(f"{bits} bits between {low} and {high}")
    least, most = np.float32(1 if narrow else 0), np.float32((1 << bits) - 1)
    scale = np.float32((high - low) / (most - least))
    zero = np.float32(least - np.float32(low / scale))
    zero = least if zero < least else most if zero > most else np.float32(np.floor(zero + np.float32(0.5)))
    nudged = np.float32((least - zero) * scale), np.float32((most - zero) * scale)
    x = clipped(c, c.value(0), float(nudged[0]), float(nudged[1]))
    steps = c.mul(c.sub(x, float(nudged[0])), float(np.float32(1) / scale))
    return c.add(c.mul(c(ops.Floor(), c.add(steps, 0.5)), float(scale)), float(nudged[0]))
