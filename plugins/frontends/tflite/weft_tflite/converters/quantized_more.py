"""Reductions, resizing, transposed convolutions and the rest of quantised operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.layouts import among_channels_first, channels_first, channels_last, reordered
from weft_tflite.context import Context
from weft_tflite.converters.network import fixed, pads_of, strides_of
from weft_tflite.converters.quantized import (
    bounded,
    eight_bits,
    filter_of,
    finished,
    one_scale,
    scaled,
    scales_of,
    shifted,
    single,
    zero_of,
)
from weft_tflite.converters.reduction import reduced_axes
from weft_tflite.converters.rounding import number
from weft_tflite.converters.tables import looked_up
from weft_tflite.fixed_point import bounds_of, multiplier_of
from weft_tflite.registry import quantized_op

F32 = np.float32


# -- reductions -------------------------------------------------------------------------------------------------------


@quantized_op("MEAN")
def mean(c: Context) -> Value:
    """The sum without zero points, times the ratio of scales over the count."""
    eight_bits(c, 0)
    x = c.value(0)
    axes = reduced_axes(c, x)
    count = math.prod(fixed(c, [x.shape[a] for a in axes], "sizes"))
    total = c.sum(shifted(c, 0), axes, c.flag("keep_dims"))
    ratio = np.float64(single(c, c.scale(0), "the operand").scale[0])
    multiplier, shift = multiplier_of(float(ratio / np.float64(single(c, c.output_scale(), "the result").scale[0])))
    if count:
        places = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << places) // count, shift - places
    return bounded(c, c(ops.FixedPointScale(), total, number(c, multiplier), number(c, shift)))


# -- of two ------------------------------------------------------------------------------------------------------------


@quantized_op("SQUARED_DIFFERENCE")
def squared_difference(c: Context) -> Value:
    """Both operands on twice the larger scale, with 7 bits more; their difference squared has 14."""
    eight_bits(c, 0, 1)
    a, b, y = scales_of(c)
    twice = np.float64(F32(2) * max(a, b))
    parts = [scaled(c, c.mul(shifted(c, k), 1 << 7), float(np.float64(s) / twice)) for k, s in enumerate((a, b))]
    difference = c.sub(*parts)
    real = float(twice * twice / np.float64(F32(1 << 14) * y))
    return bounded(c, scaled(c, c.mul(difference, difference), real))


@quantized_op("PRELU")
def prelu(c: Context) -> Value:
    eight_bits(c, 0, 1)
    a, slope, y = scales_of(c)
    x = shifted(c, 0)
    same = scaled(c, x, float(np.float64(F32(a / y))))
    less = scaled(c, c.mul(x, shifted(c, 1)), float(np.float64(F32(F32(a * slope) / y))))
    return bounded(c, c(ops.Where(), c(ops.GreaterEqual(), x, 0), same, less))


# -- a table ----------------------------------------------------------------------------------------------------------


def _high16(a: int, b: int) -> int:
    """The upper half of the doubled product of 16 bits, to nearest."""
    return 32767 if a == b == -32768 else (a * b + (1 << 14)) >> 15


def _divided(x: int, places: int) -> int:
    """x / 2^places to nearest, halves away from zero."""
    mask = (1 << places) - 1
    return (x >> places) + int((x & mask) > (mask >> 1) + int(x < 0))


def _short(multiplier: int) -> int:
    return 32767 if multiplier >= (1 << 31) - 1 - (1 << 15) else (multiplier + (1 << 15)) >> 16


def _cut(x: int) -> int:
    return max(-32768, min(32767, x))


@quantized_op("HARD_SWISH")
def hard_swish(c: Context) -> Value:
    """Of each of 256 numbers what arithmetic of 16 bits makes of it."""
    eight_bits(c, 0)
    out, zero = single(c, c.output_scale(), "the result"), zero_of(c, 0)
    fine = F32(F32(1 / 128) * c.scale(0).scale[0])
    multiplier, exponent = multiplier_of(float(F32(fine / out.scale[0])))
    reluish, places = multiplier_of(float(F32(fine / F32(F32(3) / F32(32768)))))
    if exponent > 0:
        raise c.unsupported("a scale of the result below that of the operand / 128")
    low, high = bounds_of(c.output_dtype())
    table = []
    for given in range(low, high + 1):
        value = (given - zero) * 128
        scaled = _high16(value, _short(multiplier))
        gate = _cut(value << (places - 1)) if places > 0 else value
        gate = _high16(gate, _short(reluish))
        gate = _cut(gate * 2) if places > 0 else _divided(gate, -places)
        gate = (gate + (1 << 15)) >> 1
        product = gate * scaled
        result = abs(product) // (1 << 15) * (1 if product >= 0 else -1)
        table.append(max(low, min(high, _divided(result, -exponent) + int(out.zero[0]))))
    return looked_up(c, c.value(0), np.array(table).astype(c.output_dtype().numpy))


# -- pictures ---------------------------------------------------------------------------------------------------------


def _places(c: Context, size: int, wanted: int) -> tuple[Any, Any, Any]:
    """Of each element of a resized axis its lower and upper neighbour, and the weight of the upper one of 2^10."""
    align, half = c.flag("align_corners"), c.flag("half_pixel_centers")
    c.affordable(wanted, "the places of an axis")
    step = ((1 << 10) * size + wanted // 2) // wanted
    if align and wanted > 1:
        step = ((1 << 10) * (size - 1) + (wanted - 1) // 2) // (wanted - 1)
    at = np.arange(wanted, dtype=np.int64) * step + ((step // 2 - (1 << 9)) if half else 0)
    towards: Callable[[Any], Any] = lambda x: np.sign(x) * (np.abs(x) // (1 << 10))
    lower = np.maximum(towards(at), 0)
    upper = np.minimum(towards(at + (1 << 10) - 1), size - 1)
    return lower, upper, at - (lower << 10)


@quantized_op("RESIZE_BILINEAR")
def resize_bilinear(c: Context) -> Value:
    one_scale(c)
    x, sizes = c.value(0), c.numbers(1, "the size")
    assert sizes is not None
    if x.dtype != dt.int8 or min(sizes) < 1:
        raise c.unsupported(f"quantised {x.dtype} to {list(sizes)}")
    height, width = fixed(c, x.shape[1:3], "sizes")

    def apply(x: Value) -> Value:
        y = c.cast(x, dt.int32)
        for axis, size, wanted in ((2, height, sizes[0]), (3, width, sizes[1])):
            lower, upper, weight = _places(c, size, wanted)
            shape = (wanted, 1) if axis == 2 else (wanted,)
            first, second = (c.gather(y, number(c, p), axis) for p in (lower, upper))
            ahead, behind = number(c, ((1 << 10) - weight).reshape(shape)), number(c, weight.reshape(shape))
            y = c.add(c.mul(first, ahead), c.mul(second, behind))
        half = c(ops.Where(), c(ops.Greater(), y, 0), number(c, 1 << 19), number(c, -(1 << 19)))
        return c.cast(c.div(c.add(y, half), 1 << 20), x.dtype)

    return among_channels_first(c, x, apply)


@quantized_op("TRANSPOSE_CONV")
def transpose_conv(c: Context) -> Value:
    """A convolution with the turned filter over the operand with zeros between its elements."""
    wanted, strides = c.numbers(0, "the result's shape"), strides_of(c)
    assert wanted is not None
    c.op_operands(2, 1, 3)  # as the other convolutions have them
    w, scale = filter_of(c, 0)
    w = reordered(c, w, "OHWI", "OIHW")
    kernel = fixed(c, w.shape[2:], "a filter's size")
    pads = fixed(c, pads_of(c, wanted[1:3], kernel, strides, (1, 1)), "pads")
    x = channels_first(c, shifted(c, 0))
    n, channels = x.shape[:2]
    height, width = fixed(c, x.shape[2:], "sizes")
    y = c.reshape(x, (n, channels, height, 1, width, 1))
    y = c.pad(y, (*(0,) * 6, 0, 0, 0, strides[0] - 1, 0, strides[1] - 1))
    y = c.reshape(y, (n, channels, height * strides[0], width * strides[1]))
    around = []
    for k in range(2):
        before = kernel[k] - 1 - pads[k]
        around.append((before, wanted[1 + k] + kernel[k] - 1 - before - y.shape[2 + k]))
    y = c.pad(y, (0, 0, around[0][0], around[1][0], 0, 0, around[0][1], around[1][1]))
    turned = c.slice(c.slice(w, 2, kernel[0] - 1, kernel[0], -1), 3, kernel[1] - 1, kernel[1], -1)
    moved = c.sub(c.cast(turned, dt.int32), int(scale.zero[0]))
    total = c(ops.Conv((1, 1), (0,) * 4, (1, 1), 1, dt.int32), y, moved)
    return channels_last(c, finished(c, total, scale, 2))
