"""Elementwise layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_caffe.numbers import decimal
from weft_caffe.registry import layer

if TYPE_CHECKING:
    from weft_caffe.network import Layer


@layer("ReLU")
def relu(c: Layer) -> Value:
    slope = c.parameters("relu_param").negative_slope
    return c(ops.LeakyRelu(decimal(slope)) if slope else ops.Relu(), c.value(0))


@layer("ReLU6")
def relu6(c: Layer) -> Value:
    return c(ops.Minimum(), c(ops.Relu(), c.value(0)), 6.0)


@layer("PReLU")
def prelu(c: Layer) -> Value:
    x = c.value(0)
    shared = c.parameters("prelu_param").channel_shared
    channels = 1 if shared else c.fixed(x.shape[1:2], "channels")[0]
    slope = c.weight(0, (channels,), "slope")
    return c(ops.PRelu(), x, c.reshape(slope, (channels, *(1 for _ in x.shape[2:]))))


@layer("ELU")
def elu(c: Layer) -> Value:
    return c(ops.Elu(decimal(c.parameters("elu_param").alpha)), c.value(0))


@layer("Swish")
def swish(c: Layer) -> Value:
    return c(ops.Swish(decimal(c.parameters("swish_param").beta)), c.value(0))


@layer("Clip")
def clip(c: Layer) -> Value:
    p = c.parameters("clip_param")
    if not p.HasField("min") or not p.HasField("max"):
        raise c.error("needs min and max")
    return c(ops.Minimum(), c(ops.Maximum(), c.value(0), decimal(p.min)), decimal(p.max))


@layer("Sigmoid")
def sigmoid(c: Layer) -> Value:
    return c(ops.Sigmoid(), c.value(0))


@layer("TanH")
def tanh(c: Layer) -> Value:
    return c(ops.Tanh(), c.value(0))


@layer("AbsVal")
def absolute(c: Layer) -> Value:
    return c(ops.Absolute(), c.value(0))


@layer("BNLL")
def bnll(c: Layer) -> Value:
    return c(ops.Softplus(), c.value(0))


@layer("Power")
def power(c: Layer) -> Value:
    p, y = c.parameters("power_param"), c.value(0)
    if p.scale != 1:
        y = c.mul(y, decimal(p.scale))
    if p.shift:
        y = c.add(y, decimal(p.shift))
    return y if p.power == 1 else c(ops.Power(), y, decimal(p.power))


@layer("Exp")
def exponential(c: Layer) -> Value:
    p, x = c.parameters("exp_param"), c.value(0)
    if p.base != -1 and p.base <= 0:
        raise c.error(f"base is {p.base}, expected a positive number or -1")
    rate = 1.0 if p.base == -1 else math.log(decimal(p.base))
    inner = c.add(c.mul(x, rate * decimal(p.scale)), rate * decimal(p.shift))
    return c(ops.Exp(), inner)


@layer("Log")
def logarithm(c: Layer) -> Value:
    p, x = c.parameters("log_param"), c.value(0)
    if p.base != -1 and (p.base <= 0 or p.base == 1):
        raise c.error(f"base is {p.base}, expected a positive number other than 1, or -1")
    y = c(ops.Log(), c.add(c.mul(x, decimal(p.scale)), decimal(p.shift)))
    return y if p.base == -1 else c.mul(y, 1 / math.log(decimal(p.base)))


@layer("Threshold")
def threshold(c: Layer) -> Value:
    limit = decimal(c.parameters("threshold_param").threshold)
    return c.cast(c(ops.Greater(), c.value(0), limit), dt.float32)


@layer("Dropout")
def dropout(c: Layer) -> Value:
    p = c.parameters("dropout_param")
    if p.HasField("scale_train") and not p.scale_train:
        return c.mul(c.value(0), 1 - decimal(p.dropout_ratio if p.HasField("dropout_ratio") else 0.5))
    return c.value(0)


@layer("Eltwise")
def eltwise(c: Layer) -> Value:
    p, xs = c.parameters("eltwise_param"), c.values()
    method = p.DESCRIPTOR.fields_by_name["operation"].enum_type.values_by_number[p.operation].name
    if len(xs) < 2 or any(x.shape != xs[0].shape for x in xs):
        raise c.error(f"takes two or more blobs of one shape, got {', '.join(str(x.type) for x in xs)}")
    factors = [decimal(v) for v in p.coeff]
    if factors and (method != "SUM" or len(factors) != len(xs)):
        raise c.error(f"{method} of {len(xs)} blobs has {len(factors)} coefficients")
    if factors:
        xs = [x if f == 1 else c.mul(x, f) for x, f in zip(xs, factors)]
    operator: Operator = {"PROD": ops.Multiply(), "SUM": ops.Add(), "MAX": ops.Maximum()}[method]
    y = xs[0]
    for x in xs[1:]:
        y = c(operator, y, x)
    return y
