"""Resizing, cutting out of images, blocks of space."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft.tensor.language import Dim, as_dim
from weft_frontend.layouts import channels_first, channels_last
from weft_frontend.windows import same_pads
from weft_ops.shapes import dim_expr, simplified
from weft_tensorflow.context import Context
from weft_tensorflow.converters.network import among_channels_first
from weft_tensorflow.registry import tf_op


def resized(c: Context, mode: Any, nearest: Any = "floor") -> Value:
    sizes = c.shape_at(1, "the size")
    if len(sizes) != 2:
        raise c.error(f"sizes {list(sizes)}")
    align, half = c.flag("align_corners"), c.flag("half_pixel_centers")
    if align and half:
        raise c.error("both align_corners and half_pixel_centers")
    coordinates: Any = "align_corners" if align else "half_pixel" if half else "asymmetric"
    x = c.value(0)
    if (mode != "nearest" and not x.dtype.is_float) or (mode != "nearest" and x.dtype != dt.float64):
        x = c.cast(x, dt.float32)
    op = ops.Resize((x.shape[0], x.shape[3], *sizes), mode, coordinates, nearest)
    return channels_last(c, c(op, channels_first(c, x)))


@tf_op("ResizeBilinear")
def resize_bilinear(c: Context) -> Value:
    return resized(c, "linear")


@tf_op("ResizeBicubic")
def resize_bicubic(c: Context) -> Value:
    """As a matrix for each axis: TensorFlow takes the coefficients of 1,024 places between two elements."""
    x, sizes = c.cast(c.value(0), dt.float32), c.fixed(c.shape_at(1, "the size"), "the size")
    if len(sizes) != 2 or min(sizes) < 1:
        raise c.error(f"sizes {list(sizes)}")
    half, align = c.flag("half_pixel_centers"), c.flag("align_corners")
    planes = channels_first(c, x)
    height, width = (
        c.builder.constant(cubic_weights(n, m, half, align))
        for n, m in zip(c.fixed(planes.shape[2:], "the operand's size"), sizes)
    )
    c.affordable(sum(m * n for m, n in zip(sizes, c.fixed(planes.shape[2:], "sizes"))), "the coefficients")
    return channels_last(c, c(ops.MatMul(), c(ops.MatMul(), height, planes), c.transpose(width, (1, 0))))


def cubic_weights(size: int, wanted: int, half: bool, align: bool) -> Array:
    """What each of the elements of an axis adds to each of the resized axis, [wanted, size]."""
    steps, a = 1024, -0.5 if half else -0.75
    near, far = np.arange(steps + 1) / steps, np.arange(steps + 1) / steps + 1
    inner = (((a + 2) * near - (a + 3)) * near * near + 1).astype(np.float32)
    outer = (((a * far - 5 * a) * far + 8 * a) * far - 4 * a).astype(np.float32)
    scale = np.float32((size - 1) / (wanted - 1) if align and wanted > 1 else size / wanted)
    place = np.arange(wanted, dtype=np.float32)
    place = (place + np.float32(0.5)) * scale - np.float32(0.5) if half else place * scale
    first = np.floor(place)
    offset = np.rint((place - first) * np.float32(steps)).astype(np.int64)
    found = np.zeros((wanted, size), np.float32)
    weights = (outer[offset], inner[offset], inner[steps - offset], outer[steps - offset])
    for k, weight in enumerate(weights):
        at = first.astype(np.int64) + k - 1
        inside = np.clip(at, 0, size - 1)
        # Centers of pixels: what lies outside does not count; else the element at the border does again.
        np.add.at(found, (np.arange(wanted), inside), np.where((at == inside) | (not half), weight, 0))
    if half:
        found /= found.sum(1, keepdims=True)
    return found


@tf_op("ResizeNearestNeighbor")
def resize_nearest(c: Context) -> Value:
    """TensorFlow rounds (i + 1/2) · scale down, of centers of pixels, and halves away from zero where corners meet."""
    if c.flag("half_pixel_centers"):
        return resized(c, "nearest", "round_prefer_ceil")
    return resized(c, "nearest", "round_prefer_ceil" if c.flag("align_corners") else "floor")


@tf_op("DepthToSpace")
def depth_to_space(c: Context) -> Value:
    op = ops.DepthToSpace(block_of(c))
    return among_channels_first(c, c.value(0), lambda x: c(op, x))


@tf_op("SpaceToDepth")
def space_to_depth(c: Context) -> Value:
    op = ops.SpaceToDepth(block_of(c))
    return among_channels_first(c, c.value(0), lambda x: c(op, x))


def block_of(c: Context) -> int:
    block = c.integer("block_size")
    if block < 1:
        raise c.error(f"a block of {block}")
    return block


@tf_op("CropAndResize")
def crop_and_resize(c: Context) -> Value:
    """Boxes of images, [y1, x1, y2, x2] in parts of their size, each sampled at a grid of points; outside a number."""
    x, boxes, which = c.cast(c.value(0), dt.float32), c.value(1), c.value(2)
    height, width = c.shape_at(3, "the size")
    method = c.choice("method", "bilinear", ("bilinear", "nearest"))
    which = c.within(c.cast(which, dt.int64), 0, as_dim(dim_expr(x.shape[0]) - 1), "an image")
    rows = boxes.shape[0]
    shape = (rows, height, width, 1)
    places, parts, inside = [], [], []
    for count, low, size, at in (
        (height, 0, x.shape[1], (rows, height, 1, 1)),
        (width, 1, x.shape[2], (rows, 1, width, 1)),
    ):
        last = c.cast(c.dim(simplified(as_dim(dim_expr(size) - 1))), dt.float32)
        point = sampled(c, c.mul(c.pick(boxes, 1, low), last), c.mul(c.pick(boxes, 1, low + 2), last), count)
        inside.append(
            c.reshape(c(ops.LogicalAnd(), c(ops.GreaterEqual(), point, 0.0), c(ops.LessEqual(), point, last)), at)
        )
        point = c(ops.Minimum(), c(ops.Maximum(), point, 0.0), last)
        before = c(ops.Floor(), c.add(point, 0.5) if method == "nearest" else point)
        places.append([c.broadcast(c.reshape(c.cast(v, dt.int64), at), shape) for v in (before, c(ops.Ceil(), point))])
        parts.append(c.reshape(c.sub(point, before), at))
    image = c.broadcast(c.reshape(which, (rows, 1, 1, 1)), shape)

    def corner(row: int, column: int) -> Value:
        return c(ops.GatherND(), x, c.concat([image, places[0][row], places[1][column]], 3))

    if method == "nearest":
        found = corner(0, 0)
    else:
        top, below = (c.add(corner(k, 0), c.mul(c.sub(corner(k, 1), corner(k, 0)), parts[1])) for k in (0, 1))
        found = c.add(top, c.mul(c.sub(below, top), parts[0]))
    valid = c(ops.LogicalAnd(), *inside)
    return c(ops.Where(), valid, found, c.number(c.real("extrapolation_value", 0.0), dt.float32))


def sampled(c: Context, start: Value, end: Value, count: Dim) -> Value:
    """Points from the start to the end, or the one between them, [boxes, count]."""
    column = (start.shape[0], 1)
    if count == 1:
        return c.reshape(c.mul(c.add(start, end), 0.5), column)
    gaps = c.cast(c.dim(simplified(as_dim(dim_expr(count) - 1))), start.dtype)
    step = c.reshape(c.div(c.sub(end, start), gaps), column)
    ramp = c.cast(c(ops.Iota(dt.int64, (count,))), start.dtype)
    several = c.add(c.reshape(start, column), c.mul(step, ramp))
    if isinstance(count, int):
        return several
    middle = c.reshape(c.mul(c.add(start, end), 0.5), column)
    return c(ops.Where(), c(ops.Greater(), gaps, 0.0), several, middle)


@tf_op("ResizeArea")
def resize_area(c: Context) -> Value:
    """The mean of what each element covers, as a matrix for each axis."""
    x, sizes = c.cast(c.value(0), dt.float32), c.fixed(c.shape_at(1, "the size"), "the size")
    if c.flag("align_corners") or len(sizes) != 2 or min(sizes) < 1:
        raise c.unsupported("align_corners")
    planes = channels_first(c, x)
    given = c.fixed(planes.shape[2:], "the operand's size")
    c.affordable(sum(m * n for m, n in zip(sizes, given)), "the coefficients")
    height, width = (c.builder.constant(covered(n, m)) for n, m in zip(given, sizes))
    return channels_last(c, c(ops.MatMul(), c(ops.MatMul(), height, planes), c.transpose(width, (1, 0))))


def covered(size: int, wanted: int) -> Array:
    """The part of each element of an axis in each of the resized axis, [wanted, size]."""
    edges = np.arange(wanted + 1) * (size / wanted)
    low, high = edges[:-1, None], edges[1:, None]
    places = np.arange(size)[None]
    part = np.clip(np.minimum(high, places + 1) - np.maximum(low, places), 0, None)
    found: Array = (part / part.sum(1, keepdims=True)).astype(np.float32)
    return found


@tf_op("ExtractImagePatches")
def extract_image_patches(c: Context) -> Value:
    """Windows of an image, whose elements lie one after another along the channels."""
    x = c.value(0)
    kernel, strides, rates = (c.integers(n)[1:3] for n in ("ksizes", "strides", "rates"))
    if min(*kernel, *strides, *rates) < 1:
        raise c.error(f"windows {list(kernel)}, strides {list(strides)}, rates {list(rates)}")
    pads = (0,) * 4
    if c.choice("padding", None, ("SAME", "VALID")) == "SAME":
        pads = same_pads(x.shape[1:3], kernel, strides, rates)  # type: ignore[assignment]
    x = c.pad(x, (0, *pads[:2], 0, 0, *pads[2:], 0))
    sizes = []
    for size, extent, stride, rate in zip(x.shape[1:3], kernel, strides, rates):
        sizes.append(simplified(as_dim((dim_expr(size) - ((extent - 1) * rate + 1)) // stride + 1)))
    parts = []
    c.affordable(kernel[0] * kernel[1], "the elements of a window")
    for i in range(kernel[0]):
        rows = c.slice(x, 1, i * rates[0], sizes[0], strides[0])
        parts += [c.slice(rows, 2, j * rates[1], sizes[1], strides[1]) for j in range(kernel[1])]
    return c.concat(parts, 3)


# -- colours ----------------------------------------------------------------------------------------------------------


@tf_op("AdjustContrastv2")
def adjust_contrast(c: Context) -> Value:
    x, factor = c.value(0), c.value(1)
    rank = len(x.shape)
    mean = c.mean(x, (rank - 3, rank - 2))
    return c.add(c.mul(c.sub(x, mean), factor), mean)


@tf_op("AdjustSaturation")
def adjust_saturation(c: Context) -> Value:
    """What each channel lacks of the greatest grows with the saturation, which stays within 0 … 1."""
    x, factor = c.value(0), c.value(1)
    last = (len(x.shape) - 1,)
    best, least = c(ops.ReduceMax(last, True), x), c(ops.ReduceMin(last, True), x)
    span = c.sub(best, least)
    empty = c(ops.Equal(), span, 0.0)
    old = c.div(span, c(ops.Where(), empty, c.number(1, x.dtype), best))
    new = c(ops.Minimum(), c(ops.Maximum(), c.mul(old, factor), 0.0), 1.0)
    ratio = c.div(new, c(ops.Where(), empty, c.number(1, x.dtype), old))
    return c.sub(best, c.mul(c.sub(best, x), ratio))


@tf_op("AdjustHue")
def adjust_hue(c: Context) -> Value:
    """The hue, of 0 … 6 along red, yellow, green, cyan, blue and magenta, goes on by six times the operand."""
    x, delta = c.value(0), c.reshape(c.value(1), ())
    last = len(x.shape) - 1
    best, least = c(ops.ReduceMax((last,), True), x), c(ops.ReduceMin((last,), True), x)
    span = c.sub(best, least)
    red, green, blue = (c.slice(x, last, k, 1) for k in range(3))
    gray = c(ops.Equal(), span, 0.0)
    divisor = c(ops.Where(), gray, c.number(1, x.dtype), span)

    def towards(first: Value, second: Value, base: float) -> Value:
        return c.add(c.div(c.sub(first, second), divisor), base)

    hue = c(ops.Where(), c(ops.Equal(), green, best), towards(blue, red, 2.0), towards(red, green, 4.0))
    hue = c(ops.Where(), c(ops.Equal(), red, best), towards(green, blue, 0.0), hue)
    hue = c(ops.Where(), gray, c.number(0, x.dtype), hue)
    hue = c(ops.Mod(), c.add(hue, c.mul(c.cast(delta, x.dtype), 6.0)), c.number(6, x.dtype))

    def channel(at: float, sign: float) -> Value:
        far = c(ops.Absolute(), c.sub(hue, at))
        share = c.sub(far, 1.0) if sign > 0 else c.sub(2.0, far)
        share = c(ops.Minimum(), c(ops.Maximum(), share, 0.0), 1.0)
        return c.add(least, c.mul(span, share))

    return c.concat([channel(3.0, 1), channel(2.0, -1), channel(4.0, -1)], last)
