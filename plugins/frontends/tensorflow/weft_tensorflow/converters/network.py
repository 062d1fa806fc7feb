"""Convolutions, pooling, products, normalisations and resizing.

Operands whose channels come last (NHWC) are imported with transpositions around the operators, which the compiler
cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim
from weft_frontend.layouts import channels_first, channels_last, reordered
from weft_frontend.windows import padded, same_pads, transposed_same_pads
from weft_ops.shapes import product
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op

FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW")
PADDINGS = ("SAME", "VALID", "EXPLICIT")


def among_channels_first(c: Context, x: Value, apply: Callable[[Value], Value]) -> Value:
    """`apply`, which takes and gives channels as axis 1, on an operand of the node's format."""
    return apply(x) if first(c) else channels_last(c, apply(channels_first(c, x)))


def first(c: Context) -> bool:
    """Whether channels are axis 1."""
    default = "NDHWC" if "3D" in c.op_type else "NHWC"
    return c.choice("data_format", default, FORMATS)[1] == "C"


def spatial(c: Context, name: str, axes: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """An attribute with a number for each axis, of which those of batch and channels are 1."""
    found = c.integers(name, default)
    if len(found) != axes + 2:
        raise c.error(f"attribute '{name}' is {list(found)}, expected {axes + 2} numbers")
    inner = found[2:] if first(c) else found[1:-1]
    if min(found) < 1:
        raise c.error(f"attribute '{name}' is {list(found)}, expected at least 1")
    if found[0] != 1 or (found[1] if first(c) else found[-1]) != 1:
        raise c.unsupported(f"{name} {list(found)}, over the batch or the channels")
    return inner


def pads_of(
    c: Context, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Dim, ...]:
    """The pads (begin…, end…) of a window operator."""
    padding = c.choice("padding", None, PADDINGS)
    if padding == "VALID":
        return (0,) * (2 * len(kernel))
    if padding == "SAME":
        return same_pads(sizes, kernel, strides, dilations)
    found = c.integers("explicit_paddings", ())
    if len(found) != 2 * len(kernel) + 4 or min(found) < 0:
        raise c.error(f"attribute 'explicit_paddings' is {list(found)}")
    inner = found[4:] if first(c) else found[2:-2]
    return (*inner[::2], *inner[1::2])


def filter_of(c: Context, w: Value, axes: str) -> Value:
    return reordered(c, w, f"{axes}IO", f"OI{axes}")


def groups_of(c: Context, channels: Dim, taken: Dim) -> int:
    """How many groups of channels a filter that takes so many of them makes."""
    if not isinstance(channels, int) or not isinstance(taken, int):
        return 1  # which the convolution requires at run time
    if taken < 1 or channels % taken:
        raise c.error(f"a filter of {taken} channels for {channels}")
    return channels // taken


def convolution(c: Context, x: Value, w: Value, groups: int, axes: int) -> Value:
    """The convolution of an operand of the node's format with a filter OI…."""
    ones = (1,) * (axes + 2)
    strides, dilations = spatial(c, "strides", axes), spatial(c, "dilations", axes, ones)
    kernel = c.fixed(w.shape[2:], "a filter's size")

    def apply(x: Value) -> Value:
        x, left = padded(c, x, pads_of(c, x.shape[2:], kernel, strides, dilations))
        return c(ops.Conv(strides, left, dilations, groups), x, w)

    return among_channels_first(c, x, apply)


def channels_of(c: Context, x: Value) -> Dim:
    return x.shape[1] if first(c) else x.shape[-1]


@tf_op("Conv2D")
def conv_2d(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    return convolution(c, x, filter_of(c, w, "HW"), groups_of(c, channels_of(c, x), w.shape[2]), 2)


@tf_op("Conv3D")
def conv_3d(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    return convolution(c, x, filter_of(c, w, "DHW"), groups_of(c, channels_of(c, x), w.shape[3]), 3)


@tf_op("DepthwiseConv2dNative")
def depthwise_conv(c: Context) -> Value:
    """A filter [h, w, channels, multiplier]."""
    x, w = c.value(0), c.value(1)
    height, width, channels, multiplier = c.fixed(w.shape, "a filter's size")
    w = c.reshape(w, (height, width, 1, channels * multiplier))
    return convolution(c, x, filter_of(c, w, "HW"), groups_of(c, channels_of(c, x), 1), 2)


def transposed(c: Context, axes: int, letters: str) -> Value:
    """The gradient of a convolution by its operand, whose shape operand 0 says; operand 1 is the filter, …IO."""
    wanted, w, y = c.shape_at(0, "the result's shape"), c.value(1), c.value(2)
    ones = (1,) * (axes + 2)
    strides, dilations = spatial(c, "strides", axes), spatial(c, "dilations", axes, ones)
    if len(wanted) == axes:  # spatial sizes alone, as an old form has it
        wanted = (0, *wanted, 0) if not first(c) else (0, 0, *wanted)
    kernel = c.fixed(w.shape[:axes], "a filter's size")
    inner = wanted[2:] if first(c) else wanted[1:-1]
    sizes = y.shape[2:] if first(c) else y.shape[1:-1]
    groups = groups_of(c, channels_of(c, y), w.shape[-1])
    if groups != 1:
        raise c.unsupported("a gradient of a grouped convolution")
    pads, extra = transposed_pads(c, sizes, inner, kernel, strides, dilations)
    op = ops.ConvTranspose(strides, pads, dilations, extra, 1)
    filters = reordered(c, w, f"{letters}OI", f"IO{letters}")
    return among_channels_first(c, y, lambda y: c(op, y, filters))


def transposed_pads(
    c: Context,
    sizes: Sequence[Dim],
    wanted: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads and output padding with which an operand of `sizes` gives `wanted`."""
    half = len(sizes)
    if not all(isinstance(d, int) for d in (*sizes, *wanted)):
        padding = c.choice("padding", None, PADDINGS)
        if padding == "SAME":
            # Sizes are those of the operand times the stride, as layers ask for them.
            return transposed_same_pads(kernel, strides, dilations)
        if padding == "VALID" and all(k >= s for k, s in zip(kernel, strides)):
            return (0,) * (2 * half), (0,) * half
        raise c.unsupported("sizes known only at run time")
    numbers, results = c.fixed(sizes, "sizes"), c.fixed(wanted, "sizes")
    pads = c.fixed(pads_of(c, results, kernel, strides, dilations), "pads")
    extra = []
    for k, size in enumerate(numbers):
        span = (size - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1
        extra.append(results[k] - (span - pads[k] - pads[half + k]))
    if min(extra) < 0 or any(e >= s for e, s in zip(extra, strides)):
        raise c.error(f"a result of {list(results)} of an operand of {list(numbers)}")
    return pads, tuple(extra)


@tf_op("Conv2DBackpropInput")
def conv_2d_transposed(c: Context) -> Value:
    return transposed(c, 2, "HW")


@tf_op("Conv3DBackpropInputV2")
def conv_3d_transposed(c: Context) -> Value:
    return transposed(c, 3, "DHW")


@tf_op("DepthwiseConv2dNativeBackpropInput")
def depthwise_transposed(c: Context) -> Value:
    w, y = c.value(1), c.value(2)
    wanted = c.shape_at(0, "the result's shape")
    height, width, channels, multiplier = c.fixed(w.shape, "a filter's size")
    strides = spatial(c, "strides", 2)
    inner, sizes = (wanted[2:], y.shape[2:]) if first(c) else (wanted[1:-1], y.shape[1:-1])
    pads, extra = transposed_pads(c, sizes, inner, (height, width), strides, (1, 1))
    filters = c.transpose(c.reshape(w, (height, width, channels * multiplier)), (2, 0, 1))
    filters = c.reshape(filters, (channels * multiplier, 1, height, width))
    op = ops.ConvTranspose(strides, pads, (1, 1), extra, channels)
    return among_channels_first(c, y, lambda y: c(op, y, filters))


@tf_op("BiasAdd")
def bias_add(c: Context) -> Value:
    x, bias = c.value(0), c.value(1)
    if c.choice("data_format", "NHWC", FORMATS)[1] == "C" and len(x.shape) > 2:
        bias = c.reshape(bias, (product(bias.shape), *(1,) * (len(x.shape) - 2)))
    return c.add(x, bias)


# -- pooling ----------------------------------------------------------------------------------------------------------


def pooled(
    c: Context,
    x: Value,
    axes: int,
    make: Callable[..., Operator],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    filling: float | None,
) -> Value:
    """A pool; where pads are formulas `filling` fills them, if it can."""

    def apply(x: Value) -> Value:
        pads = pads_of(c, x.shape[2:], kernel, strides, (1,) * axes)
        if filling is None:
            return c(make(kernel, strides, c.fixed(pads, "pads")), x)
        x, left = padded(c, x, pads, filling)
        return c(make(kernel, strides, left), x)

    return among_channels_first(c, x, apply)


def least(x: Value) -> float:
    return float("-inf") if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)


@tf_op("MaxPool", "MaxPool3D")
def max_pool(c: Context) -> Value:
    x, axes = c.value(0), 3 if c.op_type == "MaxPool3D" else 2
    if c.text("data_format", "NHWC") == "NCHW_VECT_C":
        raise c.unsupported("data_format NCHW_VECT_C")
    return pooled(c, x, axes, ops.MaxPool, spatial(c, "ksize", axes), spatial(c, "strides", axes), least(x))


@tf_op("MaxPoolV2")
def max_pool_v2(c: Context) -> Value:
    x = c.value(0)
    windows = [c.numbers(k, "the window") for k in (1, 2)]
    if any(w is None or len(w) != 4 or w[0] != 1 or w[1 if first(c) else 3] != 1 or min(w) < 1 for w in windows):
        raise c.unsupported(f"windows {windows}")
    kernel, strides = (w[2:] if first(c) else w[1:3] for w in windows if w is not None)
    return pooled(c, x, 2, ops.MaxPool, kernel, strides, least(x))


@tf_op("AvgPool", "AvgPool3D")
def average_pool(c: Context) -> Value:
    """Pads do not count."""
    axes = 3 if c.op_type == "AvgPool3D" else 2
    kernel, strides = spatial(c, "ksize", axes), spatial(c, "strides", axes)
    if c.choice("padding", None, PADDINGS) == "EXPLICIT":
        raise c.unsupported("explicit pads")
    return pooled(c, c.value(0), axes, ops.AveragePool, kernel, strides, None)


@tf_op("MaxPoolWithArgmax")
def max_pool_with_argmax(c: Context) -> list[Value]:
    """Places are counted in an image of the operand, whose channels come last, with those before it if asked for."""
    x = c.value(0)
    kernel, strides = spatial(c, "ksize", 2), spatial(c, "strides", 2)
    height, width, channels = x.shape[1:]
    planes = channels_first(c, x)
    pads = c.fixed(pads_of(c, planes.shape[2:], kernel, strides, (1, 1)), "pads")
    best, places = c.all(ops.MaxPoolWithIndices(kernel, strides, pads), planes)
    batch = c.reshape(c(ops.Iota(dt.int64, (x.shape[0],))), (x.shape[0], 1, 1, 1))
    channel = c.reshape(c(ops.Iota(dt.int64, (channels,))), (channels, 1, 1))
    area, depth = c.dim(product((height, width))), c.dim(channels)
    inside = c.sub(places, c.mul(c.add(c.mul(batch, depth), channel), area))
    flat = c.add(c.mul(inside, depth), channel)
    if c.flag("include_batch_in_index"):
        flat = c.add(flat, c.mul(batch, c.mul(area, depth)))
    return [channels_last(c, best), c.cast(channels_last(c, flat), c.dtype("Targmax", dt.int64))]


# -- products ---------------------------------------------------------------------------------------------------------


def adjointed(c: Context, x: Value, *flags: str) -> Value:
    rank = len(x.shape)
    turned = sum(c.flag(name) for name in flags) == 1
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if turned else x


@tf_op("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "SparseMatMul")
def matmul(c: Context) -> Value:
    a, b = adjointed(c, c.value(0), "transpose_a", "adj_x"), adjointed(c, c.value(1), "transpose_b", "adj_y")
    wanted = c.dtype("Tout", a.dtype) if c.op_type == "BatchMatMulV3" else a.dtype
    if wanted != a.dtype or b.dtype != a.dtype:
        a, b = c.cast(a, wanted), c.cast(b, wanted)
    return c(ops.MatMul(), a, b)


@tf_op("Einsum")
def einsum(c: Context) -> Value:
    return c(ops.Einsum(c.text("equation")), *c.values())


@tf_op("Cross")
def cross(c: Context) -> Value:
    a, b = c.value(0), c.value(1)
    parts = []
    for k in range(3):
        p, q = (k + 1) % 3, (k + 2) % 3
        here = c.mul(c.slice(a, -1, p, 1), c.slice(b, -1, q, 1))
        there = c.mul(c.slice(a, -1, q, 1), c.slice(b, -1, p, 1))
        parts.append(c.sub(here, there))
    return c.concat(parts, len(a.shape) - 1)


# -- normalisations ---------------------------------------------------------------------------------------------------


@tf_op("Softmax")
def softmax(c: Context) -> Value:
    return c(ops.Softmax(-1), c.value(0))


@tf_op("LogSoftmax")
def log_softmax(c: Context) -> Value:
    return c(ops.LogSoftmax(-1), c.value(0))


@tf_op("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(c: Context) -> list[Any]:
    x, scale, offset, mean, variance = (c.value(k) for k in range(5))
    epsilon = c.real("epsilon", 1e-4)
    axis = 1 if c.choice("data_format", "NHWC", FORMATS)[1] == "C" else len(x.shape) - 1
    if not c.flag("is_training", True):
        # Transposed, it folds into the convolution before it.
        normalise = ops.BatchNorm(epsilon)
        if axis == 1:
            y = c(normalise, x, scale, offset, mean, variance)
        else:
            y = channels_last(c, c(normalise, channels_first(c, x), scale, offset, mean, variance))
        return [y, mean, variance, mean, variance, variance][: c.outputs]
    if c.real("exponential_avg_factor", 1.0) != 1.0:
        raise c.unsupported("statistics that run on")
    others = tuple(k for k in range(len(x.shape)) if k != axis)
    wide = c.cast(x, scale.dtype)
    found = c.mean(wide, others)
    off = c.sub(wide, found)
    spread = c.mean(c.mul(off, off), others)
    at = tuple(-1 if k == axis else 1 for k in range(len(x.shape)))
    weights, bias = (c.reshape(v, tuple(v.shape[0] if d == -1 else 1 for d in at)) for v in (scale, offset))
    y = c.add(c.mul(c.div(off, c(ops.Sqrt(), c.add(spread, epsilon))), weights), bias)
    flat_mean, flat_spread = (c.reshape(v, (x.shape[axis],)) for v in (found, spread))
    count = product([x.shape[k] for k in others])
    several = c.cast(c.dim(count), scale.dtype)
    sample = c.mul(flat_spread, c.div(several, c(ops.Maximum(), c.sub(several, 1.0), 1.0)))
    return [c.cast(y, x.dtype), flat_mean, sample, flat_mean, flat_spread, flat_spread][: c.outputs]


@tf_op("LRN")
def lrn(c: Context) -> Value:
    size = 2 * c.integer("depth_radius", 5) + 1
    op = ops.LRN(size, c.real("alpha", 1.0) * size, c.real("beta", 0.5), c.real("bias", 1.0))
    x = c.value(0)
    return channels_last(c, c(op, channels_first(c, x)))


@tf_op("L2Loss")
def l2_loss(c: Context) -> Value:
    x = c.value(0)
    return c.mul(c.sum(c.mul(x, x), tuple(range(len(x.shape))), False), 0.5)


@tf_op("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(c: Context) -> list[Value]:
    x, labels = c.value(0), c.value(1)
    log = c(ops.LogSoftmax(-1), x)
    loss = c(ops.Negative(), c.sum(c.mul(log, labels), (len(log.shape) - 1,), False))
    return [loss, c.sub(c(ops.Softmax(-1), x), labels)]


@tf_op("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy(c: Context) -> list[Value]:
    x, labels = c.value(0), c.value(1)
    (classes,) = c.fixed(x.shape[-1:], "the number of classes")
    labels = c.within(c.cast(labels, dt.int64), 0, classes - 1, "a label")
    values = c.builder.constant(np.array([0, 1], x.dtype.numpy))
    marks = c(ops.OneHot(classes, -1), labels, values)
    loss = c(ops.Negative(), c.sum(c.mul(c(ops.LogSoftmax(-1), x), marks), (len(x.shape) - 1,), False))
    return [loss, c.sub(c(ops.Softmax(-1), x), marks)]
