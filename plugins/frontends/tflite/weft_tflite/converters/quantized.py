"""Products, sums and pools of quantised numbers, equal to the bit to LiteRT's reference kernels.

Sums are int32, scaled by a multiplier and a shift (`FixedPointScale`), moved by the zero point and cut to the bounds of
the fused activation. int16 sums are int64, scaled by a multiplier of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft_frontend.layouts import among_channels_first, reordered
from weft_frontend.windows import padded
from weft_ops.shapes import product
from weft_tflite.context import Context
from weft_tflite.converters import hybrid
from weft_tflite.converters.movement import pads as pads_of_operand
from weft_tflite.converters.movement import space_to_batch
from weft_tflite.converters.network import (
    as_result,
    depthwise_filter,
    dilations_of,
    fixed,
    groups_of,
    pads_of,
    rows,
    strides_of,
    window_of,
)
from weft_tflite.converters.rounding import number, rounded_value
from weft_tflite.fixed_point import activation_bounds, bounds_of, multipliers_of
from weft_tflite.model_file import Quantization
from weft_tflite.registry import quantized_op

EIGHT = (dt.int8, dt.uint8)
Array = np.ndarray[Any, Any]


def scaled(c: Context, x: Value, real: float | Array) -> Value:
    """int32 times a number ≥ 0, or one of each channel in an array that broadcasts."""
    multiplier, shift = multipliers_of(np.asarray(real, np.float64))
    return c(ops.FixedPointScale(), x, number(c, multiplier), number(c, shift))


def scaled_wide(c: Context, x: Value, real: float | Array) -> Value:
    """int64 sums times a number, by multipliers of 16 bits, rounded once, halves up; int32."""
    multiplier, shift = multipliers_of(np.asarray(real, np.float64))
    wide = multiplier.astype(np.int64)
    reduced = np.where(wide < 0x7FFF0000, (wide + (1 << 15)) >> 16, 0x7FFF)
    places = 15 - shift.astype(np.int64)
    if np.any(places < 1):
        raise c.unsupported("scales whose ratio is 2^14 or more")
    half = np.int64(1) << (places - 1)
    y = c.add(c.mul(x, number(c, reduced, dt.int64)), number(c, half, dt.int64))
    return c.cast(c(ops.RightShift(), y, number(c, places, dt.int64)), dt.int32)


def scaled_real(c: Context, x: Value, real: Array) -> Value:
    """Integer sums times numbers in float64, to the nearest whole number, halves away from zero; int32."""
    return c.cast(rounded_value(c, c.mul(c.cast(x, dt.float64), number(c, real, dt.float64))), dt.int32)


def bounded(c: Context, y: Value, activation: str = "linear", k: int = 0) -> Value:
    """int32 without a zero point as result k: moved, cut to the bounds of the activation."""
    scale, dtype = c.output_scale(k), c.output_dtype(k)
    bounds = activation_bounds(activation, scale, dtype)
    if bounds is None:
        raise c.unsupported(f"a fused {activation}")
    if scale.zero[0]:
        y = c.add(y, int(scale.zero[0]))
    return c.cast(c(ops.Minimum(), c(ops.Maximum(), y, bounds[0]), bounds[1]), dtype)


def zero_of(c: Context, k: int) -> int:
    return int(single(c, c.scale(k), f"input {k}").zero[0])


def single(c: Context, scale: Quantization, what: str) -> Quantization:
    """A scale that is one for all elements."""
    if scale.per_axis:
        raise c.unsupported(f"{what} with several scales")
    return scale


def shifted(c: Context, k: int) -> Value:
    """Operand k as int32 without its zero point."""
    x, zero = c.cast(c.value(k), dt.int32), zero_of(c, k)
    return c.sub(x, zero) if zero else x


def eight_bits(c: Context, *operands: int) -> None:
    """Raises Unsupported unless these operands and the result are int8, or uint8."""
    found = {c.operand_dtype(k) for k in operands} | {c.output_dtype()}
    if len(found) != 1 or not found <= set(EIGHT):
        raise c.unsupported(f"quantised {', '.join(sorted(map(str, found)))}")


# -- products ---------------------------------------------------------------------------------------------------------


def ratio(c: Context, weights: Quantization, per_channel: bool) -> Array:
    """input scale · weights' scales / output scale, as LiteRT computes it."""
    x, y = c.scale(0).scale[0], c.output_scale().scale[0]
    if per_channel:
        return np.float64(x) * weights.scale.astype(np.float64) / np.float64(y)
    return np.asarray(np.float64(np.float32(x * weights.scale[0])) / np.float64(y))


def filter_of(c: Context, axis: int) -> tuple[Value, Quantization]:
    """The weights and their scales, which may differ along `axis`."""
    w, scale = c.value(1), c.scale(1)
    if scale.per_axis and scale.axis != axis:
        raise c.unsupported(f"scales along axis {scale.axis} of the weights")
    if c.output_dtype() != c.operand_dtype(0) or c.operand_dtype(0) not in (*EIGHT, dt.int16):
        raise c.unsupported(f"quantised {c.operand_dtype(0)} to {c.output_dtype()}")
    if (w.dtype == dt.uint8) != (c.operand_dtype(0) == dt.uint8) or w.dtype not in EIGHT:
        raise c.unsupported(f"quantised {c.operand_dtype(0)} with weights of {w.dtype}")
    if w.dtype == dt.int8 and scale.zero.any():
        raise c.unsupported("weights of int8 with a zero point")
    return w, scale


def wide_enough(c: Context) -> DType:
    return dt.int64 if c.operand_dtype(0) == dt.int16 else dt.int32


def finished(c: Context, y: Value, scale: Quantization, axes: int) -> Value:
    """A sum, plus operand 2, as the result; channels are followed by so many axes."""
    bias = c.optional(2)
    if y.dtype == dt.int64 and bias is not None and bias.dtype != dt.int64:
        raise c.unsupported("int16 with a bias of int32")
    if bias is not None:
        flat = c.reshape(bias, (product(bias.shape), *(1,) * axes))
        y = c.add(y, c.cast(flat, y.dtype))
    real = ratio(c, scale, c.operand_dtype(0) != dt.uint8 or c.op_type == "FULLY_CONNECTED")
    real = real if scale.per_axis else real.reshape(-1)[:1]
    if c.op_type == "FULLY_CONNECTED" and c.importer.kernels == "litert":
        # Whose reference kernel alone computes in float64.
        return bounded(c, scaled_real(c, y, real.reshape(-1)), c.activation)
    real = real.reshape(-1, *(1,) * axes) if real.size > 1 else real.reshape(())
    if y.dtype == dt.int64:
        return bounded(c, scaled_wide(c, y, real), c.activation)
    return bounded(c, scaled(c, y, real), c.activation)


def convolution(c: Context, w: Value, scale: Quantization, groups: int) -> Value:
    strides, dilations = strides_of(c), dilations_of(c)
    kernel = fixed(c, w.shape[2:], "a filter's size")
    zero, wide = zero_of(c, 0), wide_enough(c)
    weights_zero = number(c, scale.zero[0], w.dtype) if scale.zero[0] else None

    def apply(x: Value) -> Value:
        pads = pads_of(c, x.shape[2:], kernel, strides, dilations)
        x, left = padded(c, x, pads, zero)
        if wide == dt.int64:
            op = ops.Conv(strides, left, dilations, groups, dt.int64)
            return finished(c, c(op, c.cast(x, dt.int64), c.cast(w, dt.int64)), scale, 2)
        op_ = ops.ConvInteger(strides, left, dilations, groups)
        x_zero = number(c, zero, x.dtype) if zero else None
        return finished(c, c(op_, x, w, x_zero, weights_zero), scale, 2)

    return among_channels_first(c, c.value(0), apply)


@quantized_op("CONV_2D")
def conv(c: Context) -> Value:
    if hybrid.is_hybrid(c):
        return hybrid.conv(c)
    w, scale = filter_of(c, 0)
    groups = groups_of(c, c.shape(0)[3], w.shape[3])
    return convolution(c, reordered(c, w, "OHWI", "OIHW"), scale, groups)


@quantized_op("DEPTHWISE_CONV_2D")
def depthwise_conv(c: Context) -> Value:
    if hybrid.is_hybrid(c):
        return hybrid.depthwise_conv(c)
    _, scale = filter_of(c, 3)
    w, groups = depthwise_filter(c)
    return convolution(c, w, scale, groups)


@quantized_op("FULLY_CONNECTED")
def fully_connected(c: Context) -> Value:
    if c.integer("weights_format"):
        raise c.unsupported("shuffled weights")
    if hybrid.is_hybrid(c):
        return hybrid.fully_connected(c)
    w, scale = filter_of(c, 0)
    x, zero = c.value(0), zero_of(c, 0)
    flat, turned = rows(c, x, w.shape[1]), c.transpose(w, (1, 0))
    if wide_enough(c) == dt.int64:
        y = c(ops.MatMul(dt.int64), c.cast(flat, dt.int64), c.cast(turned, dt.int64))
    else:
        x_zero = number(c, zero, x.dtype) if zero else None
        w_zero = number(c, scale.zero[0], w.dtype) if scale.zero[0] else None
        y = c(ops.MatMulInteger(), flat, turned, x_zero, w_zero)
    return as_result(c, x, finished(c, y, scale, 0))


@quantized_op("BATCH_MATMUL")
def batch_matmul(c: Context) -> Value:
    from weft_tflite.converters.network import adjointed

    eight_bits(c, 0, 1)
    a, b = adjointed(c, shifted(c, 0), "adj_x"), adjointed(c, shifted(c, 1), "adj_y")
    x, w, y = c.scale(0).scale[0], c.scale(1).scale[0], c.output_scale().scale[0]
    real = np.float64(np.float32(x * w)) / np.float64(y)
    return bounded(c, scaled(c, c(ops.MatMul(), a, b), float(real)))


# -- pools ------------------------------------------------------------------------------------------------------------


def one_scale(c: Context) -> None:
    """Raises Unsupported unless operands and results have one scale and zero point."""
    if not c.same_scales():
        raise c.unsupported("quantised tensors of different scales")


def clipped(c: Context, y: Value) -> Value:
    """Numbers of the result's scale after the fused activation."""
    bounds = activation_bounds(c.activation, c.output_scale(), c.output_dtype())
    if bounds is None:
        raise c.unsupported(f"a fused {c.activation}")
    low, high = bounds
    least, most = bounds_of(c.output_dtype())
    y = c(ops.Maximum(), y, low) if low > least else y
    return c(ops.Minimum(), y, high) if high < most else y


@quantized_op("MAX_POOL_2D")
def max_pool(c: Context) -> Value:
    one_scale(c)
    x = c.value(0)
    op = ops.MaxPool(*window_of(c, x))
    return among_channels_first(c, x, lambda x: clipped(c, c(op, x)))


@quantized_op("AVERAGE_POOL_2D")
def average_pool(c: Context) -> Value:
    """Sums by a convolution with ones, divided by the elements of each window, halves away from zero."""
    one_scale(c)
    x, dtype = c.value(0), c.output_dtype()
    kernel, strides, pads = window_of(c, x)
    height, width, channels = fixed(c, x.shape[1:], "sizes")

    def apply(x: Value) -> Value:
        if kernel == (height, width) and not any(pads):
            total = c.sum(c.cast(x, dt.int32), (2, 3))
            counts = np.full((), height * width)
        else:
            c.affordable(channels * kernel[0] * kernel[1], "the elements of windows")
            op = ops.Conv(strides, pads, (1, 1), channels, dt.int32)
            total = c(op, c.cast(x, dt.int32), number(c, np.ones((channels, 1, *kernel))))
            ones = ops.Conv(strides, pads, (1, 1), 1, dt.int32)
            counts = ones.reference(np.ones((1, 1, height, width), np.int32), np.ones((1, 1, *kernel), np.int32))
        half = counts // 2
        negative = c(ops.Less(), total, 0)
        moved = c(ops.Where(), negative, c.sub(total, number(c, half)), c.add(total, number(c, half)))
        mean = c.div(moved, number(c, counts))
        bounds = activation_bounds(c.activation, c.output_scale(), dtype)
        if bounds is None:
            raise c.unsupported(f"a fused {c.activation}")
        return c.cast(c(ops.Minimum(), c(ops.Maximum(), mean, bounds[0]), bounds[1]), dtype)

    return among_channels_first(c, x, apply)


# -- sums and products of two -----------------------------------------------------------------------------------------


def _sum(apply: Callable[[Context, Value, Value], Value]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        if c.output_dtype() not in (*EIGHT, dt.int16) or c.operand_dtype(0) != c.output_dtype():
            raise c.unsupported(f"quantised {c.operand_dtype(0)} to {c.output_dtype()}")
        left = 20
        if c.output_dtype() == dt.int16:
            if c.flag("pot_scale_int16") and all(_power(s) for s in scales_of(c)):
                raise c.unsupported("int16 of scales that are powers of two")
            left = 15
        a, b, y = scales_of(c)
        twice = np.float64(np.float32(2) * max(a, b))
        parts = [scaled(c, c.mul(shifted(c, k), 1 << left), float(np.float64(s) / twice)) for k, s in enumerate((a, b))]
        total = apply(c, *parts)
        return bounded(c, scaled(c, total, float(twice / np.float64(np.float32(1 << left) * y))), c.activation)

    return convert


def scales_of(c: Context) -> tuple[Any, Any, Any]:
    """The scales of two operands and of the result, float32."""
    for k in (0, 1):
        single(c, c.scale(k), f"input {k}")
    return c.scale(0).scale[0], c.scale(1).scale[0], single(c, c.output_scale(), "the result").scale[0]


def _power(scale: float) -> bool:
    from math import frexp

    return frexp(float(scale))[0] == 0.5


quantized_op("ADD")(_sum(lambda c, a, b: c.add(a, b)))
quantized_op("SUB")(_sum(lambda c, a, b: c.sub(a, b)))


@quantized_op("MUL")
def mul(c: Context) -> Value:
    if c.output_dtype() not in (*EIGHT, dt.int16) or c.operand_dtype(0) != c.output_dtype():
        raise c.unsupported(f"quantised {c.operand_dtype(0)} to {c.output_dtype()}")
    a, b, y = scales_of(c)
    real = float(np.float32(np.float32(a * b) / y))
    return bounded(c, scaled(c, c.mul(shifted(c, 0), shifted(c, 1)), real), c.activation)


# -- movement that needs the zero point -------------------------------------------------------------------------------


@quantized_op("PAD")
def pad(c: Context) -> Value:
    one_scale(c)
    x = c.value(0)
    return c(ops.Pad(pads_of_operand(c, len(x.shape))), x, number(c, zero_of(c, 0), x.dtype))


@quantized_op("SPACE_TO_BATCH_ND")
def space_to_batch_nd(c: Context) -> Value:
    one_scale(c)
    return space_to_batch(c, number(c, zero_of(c, 0), c.operand_dtype(0)))


@quantized_op("CONCATENATION")
def concatenation(c: Context) -> Value:
    from weft_ops.shapes import axis_of

    one_scale(c)
    return clipped(c, c.concat(c.values(), axis_of(c.integer("axis"), len(c.shape(0)))))


# -- between floats and integers --------------------------------------------------------------------------------------


@quantized_op("QUANTIZE")
def quantize(c: Context) -> Value:
    x, dtype = c.value(0), c.output_dtype()
    out = single(c, c.output_scale(), "the result")
    if x.dtype == dt.float32:
        low, high = bounds_of(dtype)
        steps = rounded_value(c, c.div(x, number(c, out.scale[0], dt.float32)))
        # What is beyond int32 is cut first, as the conversion would leave it open.
        zero = int(out.zero[0])
        steps = c(ops.Minimum(), c(ops.Maximum(), steps, float(low - zero)), float(high - zero))
        return c.cast(c.add(c.cast(steps, dt.int32), zero), dtype)
    if x.dtype not in (*EIGHT, dt.int16, dt.int32):
        raise c.unsupported(f"{x.dtype} to {dtype}")
    real = float(np.float64(single(c, c.scale(0), "the operand").scale[0]) / np.float64(out.scale[0]))
    return bounded(c, scaled(c, shifted(c, 0), real))


@quantized_op("DEQUANTIZE")
def dequantize(c: Context) -> Value:
    x, scale = c.value(0), c.scale(0)
    if not scale.per_axis:
        return c.mul(c.cast(shifted(c, 0), dt.float32), number(c, scale.scale[0], dt.float32))
    behind = (1,) * (len(x.shape) - 1 - scale.axis)
    zero, factor = scale.zero.reshape(-1, *behind), scale.scale.reshape(-1, *behind)
    moved = c.sub(c.cast(x, dt.int32), number(c, zero))
    return c.mul(c.cast(moved, dt.float32), number(c, factor, dt.float32))
