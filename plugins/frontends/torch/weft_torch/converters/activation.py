"""Activations."""

from __future__ import annotations

import weft_ops as ops
from weft.graph.nodes import Value
from weft_torch.context import Context, Number
from weft_torch.converters.elementwise import clamped
from weft_torch.registry import op


@op("aten.gelu")
def gelu(c: Context, x: Value, approximate: str) -> Value:
    return c(ops.Gelu(approximate == "tanh"), x)


@op("aten.threshold_backward")
def threshold_backward(c: Context, gradient: Value, x: Value, threshold: Number) -> Value:
    if gradient.dtype != x.dtype:
        raise c.unsupported("operands of two dtypes: PyTorch's exporter and its kernels say different results' dtypes")
    return c(ops.Where(), c(ops.LessEqual(), x, c.number(threshold, x.dtype)), 0, gradient)


@op("aten.leaky_relu")
def leaky_relu(c: Context, x: Value, slope: Number) -> Value:
    return c(ops.LeakyRelu(float(slope)), x)


@op("aten.elu")
def elu(c: Context, x: Value, alpha: Number, scale: Number, input_scale: Number) -> Value:
    if scale == 1 and input_scale == 1:
        return c(ops.Elu(float(alpha)), x)
    wide = c.wide(x)
    below = c.mul(c(ops.Expm1(), c.mul(wide, float(input_scale))), float(alpha) * float(scale))
    return c.cast(c(ops.Where(), c(ops.Greater(), wide, 0), c.mul(wide, float(scale)), below), x.dtype)


@op("aten.selu")
def selu(c: Context, x: Value) -> Value:
    return c(ops.Selu(), x)


@op("aten.celu")
def celu(c: Context, x: Value, alpha: Number) -> Value:
    return c(ops.Celu(float(alpha)), x)


@op("aten.hardswish")
def hardswish(c: Context, x: Value) -> Value:
    return c(ops.HardSwish(), x)


@op("aten.hardsigmoid")
def hardsigmoid(c: Context, x: Value) -> Value:
    return c(ops.HardSigmoid(1 / 6, 0.5), x)


@op("aten.relu6")
def relu6(c: Context, x: Value) -> Value:
    return clamped(c, x, 0, 6)


@op("aten.hardtanh")
def hardtanh(c: Context, x: Value, low: Number, high: Number) -> Value:
    return clamped(c, x, low, high)


@op("aten.softplus")
def softplus(c: Context, x: Value, beta: Number, threshold: Number) -> Value:
    if beta == 0:
        raise c.unsupported("beta 0")
    wide = c.wide(x)
    scaled = c.mul(wide, float(beta))
    soft = c.div(c(ops.Softplus(), scaled), float(beta))
    return c.cast(c(ops.Where(), c(ops.Greater(), scaled, float(threshold)), wide, soft), x.dtype)


@op("aten.softshrink")
def softshrink(c: Context, x: Value, lambd: Number) -> Value:
    return c(ops.Where(), c(ops.IsNan(), x), x, c(ops.Shrink(float(lambd), float(lambd)), x))


@op("aten.hardshrink")
def hardshrink(c: Context, x: Value, lambd: Number) -> Value:
    inside = c(ops.LogicalAnd(), c(ops.GreaterEqual(), x, -float(lambd)), c(ops.LessEqual(), x, float(lambd)))
    return c(ops.Where(), inside, c.number(0, x.dtype), x)


@op("aten.threshold")
def threshold(c: Context, x: Value, bound: Number, value: Number) -> Value:
    return c(ops.Where(), c(ops.LessEqual(), x, c.to(bound, x.dtype)), c.to(value, x.dtype), x)


@op("aten._prelu_kernel", "aten.prelu")
def prelu(c: Context, x: Value, slope: Value) -> Value:
    if c.op_type.endswith(".prelu") and len(slope.shape) == 1 and len(x.shape) > 1:
        slope = c.reshape(slope, (slope.shape[0], *([1] * (len(x.shape) - 2))))
    elif c.op_type.endswith(".prelu"):
        slope = c.reshape(slope, ())
    return c(ops.PRelu(), x, slope)


@op("aten.logit")
def logit(c: Context, x: Value, eps: Number | None) -> Value:
    x = c.wide(c.cast(x, c.result_dtype()))
    if eps is not None:
        x = clamped(c, x, float(eps), 1 - float(eps))
    return c.cast(c(ops.Log(), c.div(x, c.sub(1.0, x))), c.result_dtype())


__all__ = ["threshold"]
