"""Elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_frontend import contents as ct
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_formula, onnx_op

# ONNX operators that are one of ours with no attributes.
_UNARY: dict[str, type[Operator]] = {
    "Abs": ops.Absolute, "Acos": ops.Acos, "Acosh": ops.Acosh, "Asin": ops.Asin, "Asinh": ops.Asinh, "Atan": ops.Atan,
    "Atanh": ops.Atanh,
    "BitwiseNot": ops.BitwiseNot, "Ceil": ops.Ceil, "Cos": ops.Cos, "Cosh": ops.Cosh, "Erf": ops.Erf, "Exp": ops.Exp,
    "Floor": ops.Floor,
    "IsNaN": ops.IsNan, "Log": ops.Log, "Neg": ops.Negative, "Not": ops.LogicalNot, "Reciprocal": ops.Reciprocal,
    "Relu": ops.Relu, "Round": ops.Round,
    "Sigmoid": ops.Sigmoid, "Sign": ops.Sign, "Sin": ops.Sin, "Sinh": ops.Sinh, "Softplus": ops.Softplus,
    "Softsign": ops.Softsign, "Sqrt": ops.Sqrt,
    "Tan": ops.Tan, "Tanh": ops.Tanh, "Mish": ops.Mish, "HardSwish": ops.HardSwish,
}  # fmt: skip
_BINARY: dict[str, type[Operator]] = {
    "Add": ops.Add, "Sub": ops.Subtract, "Mul": ops.Multiply, "Div": ops.Divide, "And": ops.LogicalAnd,
    "Or": ops.LogicalOr, "Xor": ops.LogicalXor,
    "Equal": ops.Equal, "Less": ops.Less, "LessOrEqual": ops.LessEqual, "Greater": ops.Greater,
    "GreaterOrEqual": ops.GreaterEqual,
    "BitwiseAnd": ops.BitwiseAnd, "BitwiseOr": ops.BitwiseOr, "BitwiseXor": ops.BitwiseXor, "PRelu": ops.PRelu,
}  # fmt: skip


@onnx_op(*_UNARY)
def unary(c: Context) -> Value:
    return c(_UNARY[c.op_type](), c.value(0))


@onnx_op(*_BINARY)
def binary(c: Context) -> Value:
    y = c.value(1)
    if c.op_type == "Equal" and y.dtype == dt.string:
        return c.builder.add(ops.StringEqual(), c.value(0), y)
    return c(_BINARY[c.op_type](), c.value(0), _divisor(c, y) if c.op_type == "Div" else y)


def _divisor(c: Context, y: Value) -> Value:
    return c.nonzero(y, "the divisor") if y.dtype.is_integer else y


@onnx_op("Identity")
def identity(c: Context) -> Any:
    return c.operands[0]


@onnx_op("StopGradient")
def stop_gradient(c: Context) -> Any:
    return c.detached(c.operands[0])


# -- attributes -------------------------------------------------------------------------------------------------------


@onnx_op("LeakyRelu")
def leaky_relu(c: Context) -> Value:
    return c(ops.LeakyRelu(c.real("alpha", 0.01)), c.value(0))


@onnx_op("Elu")
def elu(c: Context) -> Value:
    return c(ops.Elu(c.real("alpha", 1.0)), c.value(0))


@onnx_op("Celu")
def celu(c: Context) -> Value:
    return c(ops.Celu(c.real("alpha", 1.0)), c.value(0))


@onnx_op("Selu")
def selu(c: Context) -> Value:
    return c(
        ops.Selu(c.real("alpha", 1.67326319217681884765625), c.real("gamma", 1.05070102214813232421875)), c.value(0)
    )


@onnx_op("HardSigmoid")
def hard_sigmoid(c: Context) -> Value:
    return c(ops.HardSigmoid(c.real("alpha", 0.2), c.real("beta", 0.5)), c.value(0))


@onnx_op("ThresholdedRelu")
def thresholded_relu(c: Context) -> Value:
    return c(ops.ThresholdedRelu(c.real("alpha", 1.0)), c.value(0))


@onnx_op("Shrink")
def shrink(c: Context) -> Value:
    return c(ops.Shrink(c.real("lambd", 0.5), c.real("bias", 0.0)), c.value(0))


@onnx_op("Swish")
def swish(c: Context) -> Value:
    return c(ops.Swish(c.real("alpha", 1.0)), c.value(0))


@onnx_op("Gelu")
def gelu(c: Context) -> Value:
    approximate = c.string("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise c.error(f"approximate is '{approximate}', expected none or tanh")
    return c(ops.Gelu(approximate == "tanh"), c.value(0))


@onnx_op("IsInf")
def is_inf(c: Context) -> Value:
    return c(ops.IsInf(c.flag("detect_negative", True), c.flag("detect_positive", True)), c.value(0))


@onnx_op("Mod")
def mod(c: Context) -> Value:
    return c(ops.Fmod() if c.flag("fmod") else ops.Mod(), c.value(0), _divisor(c, c.value(1)))


@onnx_op("BitShift")
def bit_shift(c: Context) -> Value:
    direction = c.string("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise c.error(f"direction is '{direction}', expected LEFT or RIGHT")
    return c(ops.LeftShift() if direction == "LEFT" else ops.RightShift(), c.value(0), c.value(1))


@onnx_op("Pow")
def power(c: Context) -> Value:
    base, exponent = c.value(0), c.value(1)
    if base.dtype == exponent.dtype:
        return c(ops.Power(), base, exponent)
    # The result has the base's type; the power is taken in the wider of the two, as a float if either is.
    wide = _wider(base.dtype, exponent.dtype)
    return c.cast(c(ops.Power(), c.cast(base, wide), c.cast(exponent, wide)), base.dtype)


def _wider(a: dt.DType, b: dt.DType) -> dt.DType:
    if a.is_float != b.is_float:
        float_one, other = (a, b) if a.is_float else (b, a)
        return dt.float64 if float_one.bits < 64 and other.bits > 32 and b.is_float else float_one
    return a if a.bits >= b.bits else b


# -- any number of operands -------------------------------------------------------------------------------------------


@onnx_op("Sum", "Max", "Min", "Mean")
def variadic(c: Context) -> Value:
    op: Operator = {"Sum": ops.Add(), "Mean": ops.Add(), "Max": ops.Maximum(), "Min": ops.Minimum()}[c.op_type]
    values = c.values()
    if not values:
        raise c.error("has no operand")
    result = values[0]
    for v in values[1:]:
        result = c(op, result, v)
    return c.div(result, len(values)) if c.op_type == "Mean" and len(values) > 1 else result


@onnx_op("Clip")
def clip(c: Context) -> Value:
    x = c.value(0)
    if c.version < 11:
        lo, hi = (c.real(n) if c.has(n) else None for n in ("min", "max"))
        limits = [None if v is None else c.number(v, x.dtype) for v in (lo, hi)]
    else:
        limits = [c.optional(1), c.optional(2)]
    if limits == [None, None]:
        return x
    return c(ops.Clip(), x, *limits)


@onnx_op("Where")
def where(c: Context) -> Value:
    return c(ops.Where(), c.value(0), c.value(1), c.value(2))


# -- types ------------------------------------------------------------------------------------------------------------


def _cast(c: Context, x: Value, to: dt.DType) -> Value:
    if "string" in (x.dtype.name, to.name):
        raise c.unsupported("strings")
    if x.dtype == to:
        return x
    if to.name == "float8_e8m0fnu" and c.string("round_mode", "up") != "nearest":
        return _power_of_two(c, x, c.string("round_mode", "up"), c.flag("saturate", True))
    if x.dtype.is_float and to.is_integer and to.bits < 8:
        # What does not fit wraps, as it does from the integers.
        x = c(ops.Cast(dt.int32), x)
    narrow = to.is_float and to.bits <= 8
    return c(ops.Cast(to, saturate=narrow and c.flag("saturate", True)), x)


def _power_of_two(c: Context, x: Value, mode: str, saturate: bool) -> Value:
    """x as float8_e8m0fnu, which holds powers of two only, rounded up or down: the exponent's bits, plus one if
    something is cut off."""
    if mode not in ("up", "down"):
        raise c.error(f"round_mode is '{mode}', expected up, down or nearest")
    bits = c(ops.Bitcast(dt.uint32), c.cast(x, dt.float32))
    exponent = c(ops.BitwiseAnd(), c(ops.RightShift(), bits, 23), 0xFF)
    fraction = c(ops.BitwiseAnd(), bits, 0x7FFFFF)
    if mode == "up":
        # Exponent 0 means 2^-127 here, half of the least normal number.
        cut = c(
            ops.Greater(),
            fraction,
            c(ops.Where(), c(ops.Equal(), exponent, 0), c.number(0x400000, dt.uint32), c.number(0, dt.uint32)),
        )
        top = c.number(0xFE if saturate else 0xFF, dt.uint32)
        exponent = c(
            ops.Where(),
            c(ops.Equal(), exponent, 0xFF),
            exponent,
            c(ops.Minimum(), c.add(exponent, c.cast(cut, dt.uint32)), top),
        )
    # An infinity saturates, NaN stays.
    infinite = c(ops.LogicalAnd(), c(ops.Equal(), exponent, 0xFF), c(ops.Equal(), fraction, 0))
    if saturate:
        exponent = c(ops.Where(), infinite, c.number(0xFE, dt.uint32), exponent)
    return c(ops.Bitcast(dt.float8_e8m0fnu), c.cast(exponent, dt.uint8))


@onnx_op("Cast", "CastLike")
def cast(c: Context) -> Value:
    x, to = c.value(0), c.dtype("to", dt.float32) if c.op_type == "Cast" else c.operand_dtype(1)
    if to == dt.string:
        return x if x.dtype == to else c.builder.add(ops.NumberToString(), x)
    if x.dtype == dt.string:
        return c.builder.add(ops.StringToNumber(to), x)
    return _cast(c, x, to)


@onnx_op("BitCast")
def bit_cast(c: Context) -> Value:
    x, to = c.value(0), c.dtype("to", dt.float32)
    if x.dtype.bits != to.bits and {x.dtype.name, to.name} not in ({"bool", "uint8"}, {"bool", "int8"}):
        raise c.unsupported(f"{x.dtype} as {to}, of another width")
    return c(ops.Bitcast(to), x)


@onnx_op("Constant")
def constant(c: Context) -> Value:
    data = c.tensor("value")
    fields = {
        "value_float": ("f", np.float32),
        "value_floats": ("floats", np.float32),
        "value_int": ("i", np.int64),
        "value_ints": ("ints", np.int64),
    }
    for name, (field, dtype) in fields.items():
        if c.has(name):
            data = np.array(getattr(c.attribute(name), field), dtype)
    texts = c.strings("value_strings")
    if c.has("value_string") or texts is not None:
        data = np.array(c.string("value_string") if texts is None else texts, object)
    if data is None:
        raise c.unsupported("sparse tensors")
    return c.importer.constant(data, c.node.output[0])


# -- formulas ---------------------------------------------------------------------------------------------------------


@onnx_formula("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Abs", "Sign")
def arithmetic(c: Context) -> ct.Content | None:
    operands = [c.content(k) for k in range(c.count)]
    if operands[0].dtype.is_bool:
        return None
    functions: dict[str, Any] = {
        "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": ct.divide,
        "Mod": lambda a, b: a % b,
        "Min": ct.smaller, "Max": ct.larger, "Neg": lambda a: -a, "Abs": lambda a: ct.larger(a, -a),
        "Sign": lambda a: ct.choose(ct.compare("lt", a, 0), -1, ct.smaller(a, 1)),
    }  # fmt: skip
    if c.op_type == "Mod" and c.flag("fmod"):
        return None
    if c.op_type in ("Div", "Mod") and any(ct.known(x) and x == 0 for x in operands[1].dims()):
        return None
    function = functions[c.op_type]
    result = operands[0]
    if c.op_type in ("Neg", "Abs", "Sign"):
        return ct.each(function, result.dtype, result)
    for other in operands[1:]:
        result = ct.each(function, result.dtype, result, other)
    return result


@onnx_formula("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not")
def logic(c: Context) -> ct.Content | None:
    functions: dict[str, Any] = {
        "Equal": lambda a, b: ct.compare("eq", a, b), "Less": lambda a, b: ct.compare("lt", a, b),
        "LessOrEqual": lambda a, b: ct.compare("le", a, b),
        "Greater": lambda a, b: ct.compare("lt", b, a), "GreaterOrEqual": lambda a, b: ct.compare("le", b, a),
        "And": ct.both, "Or": ct.either, "Not": ct.negation,
    }  # fmt: skip
    return ct.each(functions[c.op_type], dt.bool_, *(c.content(k) for k in range(c.count)))


@onnx_formula("Where")
def choice(c: Context) -> ct.Content | None:
    return ct.each(ct.choose, c.content(1).dtype, c.content(0), c.content(1), c.content(2))


@onnx_formula("Cast", "CastLike")
def cast_content(c: Context) -> ct.Content | None:
    x = c.content(0)
    to = c.dtype("to", dt.float32) if c.op_type == "Cast" else c.operand_dtype(1)
    if to not in ct.KINDS or (to == dt.int32 and x.is_constant):
        return None
    return ct.each(ct.as_bool if to.is_bool else ct.as_int, to, x)
