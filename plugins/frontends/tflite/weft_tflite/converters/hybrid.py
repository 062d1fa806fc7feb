"""Products of floats with quantised weights, as LiteRT computes them: it quantises each batch of the operand to int8 by
its own range first."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.layouts import among_channels_first, reordered
from weft_frontend.windows import padded
from weft_ops.shapes import product
from weft_tflite.context import Context
from weft_tflite.converters.network import (
    as_result,
    depthwise_filter,
    dilations_of,
    fixed,
    groups_of,
    pads_of,
    rows,
    strides_of,
)
from weft_tflite.converters.rounding import number, rounded_value
from weft_tflite.model_file import Quantization


def is_hybrid(c: Context) -> bool:
    """Whether the operand is float32 and the weights are int8."""
    return c.operand_dtype(0) == dt.float32 and c.output_dtype() == dt.float32 and c.operand_dtype(1) == dt.int8


def weights_of(c: Context, axis: int) -> Quantization:
    """The scales of the weights."""
    scale = c.scale(1)
    if (scale.per_axis and scale.axis != axis) or scale.zero.any():
        raise c.unsupported("weights with a zero point, or scales along another axis")
    return scale


def asymmetric(c: Context, x: Value) -> tuple[Value, Value, Value]:
    """The operand as whole numbers (int32) without their zero point, and the scale, of each of the batch; and the zero
    points. The range holds 0."""
    axes = tuple(range(1, len(x.shape)))
    low = c(ops.Minimum(), c(ops.ReduceMin(axes, True), x), 0.0)
    high = c(ops.Maximum(), c(ops.ReduceMax(axes, True), x), 0.0)
    flat = c(ops.Equal(), low, high)
    least, most = c.cast(low, dt.float64), c.cast(high, dt.float64)
    one = number(c, 1.0, dt.float64)
    step = c(ops.Where(), flat, one, c.div(c.sub(most, least), 255.0))
    from_low, from_high = c.div(least, step), c.div(most, step)
    low_error = c.add(c(ops.Absolute(), from_low), 128.0)
    high_error = c.add(c(ops.Absolute(), from_high), 127.0)
    nearer = c(ops.Less(), low_error, high_error)
    zero = c(ops.Where(), nearer, c.sub(-128.0, from_low), c.sub(127.0, from_high))
    zero = rounded_value(c, c(ops.Minimum(), c(ops.Maximum(), zero, -128.0), 127.0))
    zero = c(ops.Where(), flat, number(c, 0.0, dt.float64), zero)
    scale = c.cast(step, dt.float32)
    inverse = c.div(1.0, scale)
    zero32 = c.cast(zero, dt.float32)
    whole = rounded_value(c, c.add(c.mul(x, inverse), zero32))
    whole = c(ops.Minimum(), c(ops.Maximum(), whole, -128.0), 127.0)
    whole = c(ops.Where(), flat, number(c, 0.0, dt.float32), whole)
    return c.cast(whole, dt.int32), scale, c.cast(zero, dt.int32)


def symmetric(c: Context, x: Value) -> tuple[Value, Value]:
    """The operand as whole numbers (int8) between ±127, and the scale, of each of the batch."""
    axes = tuple(range(1, len(x.shape)))
    reach = c(ops.ReduceMax(axes, True), c(ops.Absolute(), x))
    nothing = c(ops.Equal(), reach, 0.0)
    safe = c(ops.Where(), nothing, number(c, 1.0, dt.float32), reach)
    scale = c(ops.Where(), nothing, number(c, 1.0, dt.float32), c.div(safe, 127.0))
    whole = rounded_value(c, c.mul(x, c.div(127.0, safe)))
    whole = c(ops.Minimum(), c(ops.Maximum(), whole, -127.0), 127.0)
    return c.cast(c.cast(whole, dt.int32), dt.int8), scale


def convolution(c: Context, w: Value, scale: Quantization, groups: int) -> Value:
    """A convolution of the quantised operand, times both scales, plus the bias."""
    strides, dilations = strides_of(c), dilations_of(c)
    kernel = fixed(c, w.shape[2:], "a filter's size")

    def apply(x: Value) -> Value:
        pads = pads_of(c, x.shape[2:], kernel, strides, dilations)
        if scale.per_axis:
            whole, step, zero = asymmetric(c, x)
            moved, left = padded(c, c.sub(whole, zero), pads)
            total = c(ops.Conv(strides, left, dilations, groups, dt.int32), moved, c.cast(w, dt.int32))
            factor = number(c, scale.scale.reshape(-1, 1, 1), dt.float32)
            y = c.mul(c.mul(c.cast(total, dt.float32), factor), step)
        else:
            whole, step = symmetric(c, x)
            moved, left = padded(c, whole, pads)
            total = c(ops.ConvInteger(strides, left, dilations, groups), moved, w)
            y = c.mul(c.cast(total, dt.float32), c.mul(step, number(c, scale.scale[0], dt.float32)))
        bias = c.optional(2)
        return c.activated(y if bias is None else c.add(y, c.reshape(bias, (product(bias.shape), 1, 1))))

    return among_channels_first(c, c.value(0), apply)


def conv(c: Context) -> Value:
    w = c.value(1)
    scale = weights_of(c, 0)
    return convolution(c, reordered(c, w, "OHWI", "OIHW"), scale, groups_of(c, c.shape(0)[3], w.shape[3]))


def depthwise_conv(c: Context) -> Value:
    scale = weights_of(c, 3)
    if not scale.per_axis:
        raise c.unsupported("floats with weights of one scale")
    w, groups = depthwise_filter(c)
    return convolution(c, w, scale, groups)


def fully_connected(c: Context) -> Value:
    if c.flag("asymmetric_quantize_inputs"):
        raise c.unsupported("floats that are quantised with zero points")
    x, w, scale = c.value(0), c.value(1), weights_of(c, 0)
    whole, step = symmetric(c, rows(c, x, w.shape[1]))
    total = c.cast(c(ops.MatMulInteger(), whole, c.transpose(w, (1, 0))), dt.float32)
    factor = np.asarray(scale.scale if scale.per_axis else scale.scale[0])
    y = c.mul(total, c.mul(step, number(c, factor, dt.float32)))
    bias = c.optional(2)
    y = y if bias is None else c.add(y, c.reshape(bias, (product(bias.shape),)))
    return as_result(c, x, c.activated(y))
