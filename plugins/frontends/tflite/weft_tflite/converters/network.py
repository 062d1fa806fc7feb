"""Convolutions, pooling, fully connected layers, normalisations and resizing, of floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_frontend.layouts import among_channels_first, channels_first, channels_last, reordered
from weft_frontend.windows import padded, same_pads
from weft_ops.shapes import product, quotient
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_op

SAME, VALID = 0, 1


def strides_of(c: Context, axes: str = "hw") -> tuple[int, ...]:
    """The strides of a window operator; each is at least 1."""
    found = tuple(c.integer(f"stride_{a}") for a in axes)
    if min(found) < 1:
        raise c.error(f"strides {list(found)}, expected at least 1")
    return found


def dilations_of(c: Context, axes: str = "hw") -> tuple[int, ...]:
    found = tuple(c.integer(f"dilation_{a}_factor") for a in axes)
    if min(found) < 1:
        raise c.error(f"dilations {list(found)}, expected at least 1")
    return found


def pads_of(
    c: Context, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Dim, ...]:
    """The pads (begin…, end…) of a window operator."""
    padding = c.integer("padding")
    if padding not in (SAME, VALID):
        raise c.error(f"padding {padding}, expected 0 (SAME) or 1 (VALID)")
    if padding == VALID:
        return (0,) * (2 * len(kernel))
    return same_pads(sizes, kernel, strides, dilations)


def fixed(c: Context, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Sizes that must be numbers."""
    found = tuple(d for d in dims if isinstance(d, int))
    if len(found) < len(dims):
        raise c.unsupported(f"{what} known only at run time")
    return found


def per_channel(c: Context, bias: Value, axes: int = 2) -> Value:
    """A bias as it is added to channels that are axis 1."""
    return c.reshape(bias, (product(bias.shape), *(1,) * axes))


def convolution(c: Context, w: Value, groups: int, axes: str = "hw") -> Value:
    """The convolution of operand 0, whose channels come last, with a filter OI…, plus operand 2."""
    strides, dilations = strides_of(c, axes), dilations_of(c, axes)
    kernel = fixed(c, w.shape[2:], "a filter's size")

    def apply(x: Value) -> Value:
        pads = pads_of(c, x.shape[2:], kernel, strides, dilations)
        x, left = padded(c, x, pads)
        y = c(ops.Conv(strides, left, dilations, groups), x, w)
        bias = c.optional(2)
        return c.activated(y if bias is None else c.add(y, per_channel(c, bias, len(axes))))

    return among_channels_first(c, c.value(0), apply)


def groups_of(c: Context, channels: Dim, taken: Dim) -> int:
    """How many groups of channels a filter that takes so many of them makes."""
    if not isinstance(channels, int) or not isinstance(taken, int) or taken < 1 or channels % taken:
        raise c.error(f"a filter of {taken} channels for {channels}")
    return channels // taken


@tflite_op("CONV_2D")
def conv(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    return convolution(c, reordered(c, w, "OHWI", "OIHW"), groups_of(c, x.shape[3], w.shape[3]))


def depthwise_filter(c: Context) -> tuple[Value, int]:
    """The filter of a depthwise convolution as OIHW, and its groups."""
    x, w = c.value(0), c.value(1)
    if w.shape[0] != 1 or not isinstance(x.shape[3], int):
        raise c.error(f"a filter of shape {list(w.shape)}, expected 1 first")
    groups_of(c, w.shape[3], x.shape[3])
    return reordered(c, w, "IHWO", "OIHW"), x.shape[3]


@tflite_op("DEPTHWISE_CONV_2D")
def depthwise_conv(c: Context) -> Value:
    w, groups = depthwise_filter(c)
    return convolution(c, w, groups)


@tflite_op("CONV_3D")
def conv_3d(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    return convolution(c, reordered(c, w, "DHWIO", "OIDHW"), groups_of(c, x.shape[4], w.shape[3]), "dhw")


def transposed_convolution(c: Context, x: Value, w: Value, bias: Value | None, axes: str) -> Value:
    """The gradient of a convolution whose operand has the shape that operand 0 says; `w` is IO… ."""
    wanted = c.dims(0, "the result's shape")
    strides = strides_of(c, axes)
    kernel = fixed(c, w.shape[2:], "a filter's size")
    assert wanted is not None
    sizes = fixed(c, wanted[1:-1], "the result's size")
    dilations = (1,) * len(axes) if axes == "hw" else dilations_of(c, axes)
    pads = pads_of(c, sizes, kernel, strides, dilations)
    half = len(axes)
    extra: list[int] = []
    for k, size in enumerate(fixed(c, x.shape[1:-1], "the operand's size")):
        before, after = pads[k], pads[half + k]
        assert isinstance(before, int) and isinstance(after, int)
        extra.append(sizes[k] - ((size - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - before - after))
    if min(extra) < 0:
        raise c.error(f"a result of {list(sizes)} of an operand of {list(x.shape[1:-1])}")
    op = ops.ConvTranspose(strides, fixed(c, pads, "pads"), dilations, tuple(extra), 1)
    y = c(op, channels_first(c, x), w)
    return channels_last(c, c.activated(y if bias is None else c.add(y, per_channel(c, bias, half))))


@tflite_op("TRANSPOSE_CONV")
def transpose_conv(c: Context) -> Value:
    return transposed_convolution(c, c.value(2), reordered(c, c.value(1), "OHWI", "IOHW"), c.optional(3), "hw")


@tflite_op("CONV_3D_TRANSPOSE")
def conv_3d_transpose(c: Context) -> Value:
    return transposed_convolution(c, c.value(2), reordered(c, c.value(1), "DHWOI", "IODHW"), c.optional(3), "dhw")


# -- pooling ----------------------------------------------------------------------------------------------------------


def window_of(c: Context, x: Value) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and pads of a pool over `x`, whose channels come last."""
    kernel, strides = (c.integer("filter_height"), c.integer("filter_width")), strides_of(c)
    if min(kernel) < 1:
        raise c.error(f"a window of {list(kernel)}")
    pads = pads_of(c, x.shape[1:3], kernel, strides, (1, 1))
    return kernel, strides, fixed(c, pads, "pads")


@tflite_op("AVERAGE_POOL_2D")
def average_pool(c: Context) -> Value:
    x = c.value(0)
    op = ops.AveragePool(*window_of(c, x))
    return among_channels_first(c, x, lambda x: c.activated(c(op, x)))


@tflite_op("MAX_POOL_2D")
def max_pool(c: Context) -> Value:
    x = c.value(0)
    op = ops.MaxPool(*window_of(c, x))
    return among_channels_first(c, x, lambda x: c.activated(c(op, x)))


@tflite_op("L2_POOL_2D")
def l2_pool(c: Context) -> Value:
    x = c.value(0)
    op = ops.AveragePool(*window_of(c, x))
    return among_channels_first(c, x, lambda x: c.activated(c(ops.Sqrt(), c(op, c.mul(x, x)))))


# -- products ---------------------------------------------------------------------------------------------------------


def rows(c: Context, x: Value, length: Dim) -> Value:
    """An operand of a fully connected layer as a matrix of rows of this length."""
    if len(x.shape) == 2 and x.shape[1] == length:
        return x
    return c.reshape(x, (quotient(x.shape, (length,)), length))


def as_result(c: Context, x: Value, y: Value) -> Value:
    """The result of a fully connected layer, with the operand's axes where they are kept."""
    return c.reshape(y, (*x.shape[:-1], y.shape[1])) if c.flag("keep_num_dims") else y


@tflite_op("FULLY_CONNECTED")
def fully_connected(c: Context) -> Value:
    x, w, bias = c.value(0), c.value(1), c.optional(2)
    if c.integer("weights_format"):
        raise c.unsupported("shuffled weights")
    y = c(ops.MatMul(), rows(c, x, w.shape[1]), c.transpose(w, (1, 0)))
    y = y if bias is None else c.add(y, c.reshape(bias, (product(bias.shape),)))
    return as_result(c, x, c.activated(y))


def adjointed(c: Context, x: Value, flag: str) -> Value:
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if c.flag(flag) else x


@tflite_op("BATCH_MATMUL")
def batch_matmul(c: Context) -> Value:
    return c(ops.MatMul(), adjointed(c, c.value(0), "adj_x"), adjointed(c, c.value(1), "adj_y"))


# -- normalisations ---------------------------------------------------------------------------------------------------


@tflite_op("SOFTMAX")
def softmax(c: Context) -> Value:
    x, beta = c.value(0), c.real("beta")
    return c(ops.Softmax(-1), x if beta == 1 else c.mul(x, beta))


@tflite_op("LOG_SOFTMAX")
def log_softmax(c: Context) -> Value:
    return c(ops.LogSoftmax(-1), c.value(0))


@tflite_op("L2_NORMALIZATION")
def l2_normalization(c: Context) -> Value:
    x = c.value(0)
    length = c(ops.Sqrt(), c(ops.Maximum(), c.sum(c.mul(x, x), (-1,)), 1e-6))
    return c.activated(c.div(x, length))


@tflite_op("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(c: Context) -> Value:
    size = 2 * c.integer("radius") + 1
    op = ops.LRN(size, c.real("alpha") * size, c.real("beta"), c.real("bias"))
    return among_channels_first(c, c.value(0), lambda x: c(op, x))


# -- resizing ---------------------------------------------------------------------------------------------------------


def resized(c: Context, mode: Any, nearest: Any = "floor") -> Value:
    sizes = c.dims(1, "the size")
    assert sizes is not None and len(sizes) == 2
    align, half = c.flag("align_corners"), c.flag("half_pixel_centers")
    if align and half:
        raise c.error("both align_corners and half_pixel_centers")
    coordinates: Any = "align_corners" if align else "half_pixel" if half else "asymmetric"
    x = c.value(0)
    op = ops.Resize((x.shape[0], x.shape[3], *sizes), mode, coordinates, nearest)
    return among_channels_first(c, x, lambda x: c(op, x))


@tflite_op("RESIZE_BILINEAR")
def resize_bilinear(c: Context) -> Value:
    return resized(c, "linear")


@moving_op("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(c: Context) -> Value:
    plain = not c.flag("align_corners") and not c.flag("half_pixel_centers")
    return resized(c, "nearest", "floor" if plain else "round_prefer_ceil")


@moving_op("DEPTH_TO_SPACE")
def depth_to_space(c: Context) -> Value:
    op = ops.DepthToSpace(block_of(c))
    return among_channels_first(c, c.value(0), lambda x: c(op, x))


@moving_op("SPACE_TO_DEPTH")
def space_to_depth(c: Context) -> Value:
    op = ops.SpaceToDepth(block_of(c))
    return among_channels_first(c, c.value(0), lambda x: c(op, x))


def block_of(c: Context) -> int:
    block = c.integer("block_size")
    if block < 1:
        raise c.error(f"a block of {block}")
    return block
