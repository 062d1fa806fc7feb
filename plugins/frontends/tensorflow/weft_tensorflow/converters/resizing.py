"""Resizing, cutting out of images, blocks of space."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft.tensor.language import as_dim
from weft_frontend.layouts import channels_first, channels_last
from weft_ops.shapes import dim_expr
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
    x, boxes, which = c.value(0), c.value(1), c.value(2)
    height, width = c.fixed(c.shape_at(3, "the size"), "the size")
    method = c.choice("method", "bilinear", ("bilinear", "nearest"))
    x = c.cast(x, dt.float32)
    which = c.within(c.cast(which, dt.int64), 0, as_dim(dim_expr(x.shape[0]) - 1), "an image")
    images = channels_first(c, c.gather(x, which, 0))
    grid = []
    inside = []
    for count, low, high, size in ((width, 1, 3, x.shape[2]), (height, 0, 2, x.shape[1])):
        (extent,) = c.fixed((size,), "an image's size")
        start, end = c.pick(boxes, 1, low), c.pick(boxes, 1, high)
        rows = start.shape[0]
        if count > 1:
            step = c.div(c.mul(c.sub(end, start), float(extent - 1)), float(count - 1))
            ramp = c.builder.constant(np.arange(count, dtype=np.float32))
            at = c.add(c.reshape(c.mul(start, float(extent - 1)), (rows, 1)), c.mul(c.reshape(step, (rows, 1)), ramp))
        else:
            at = c.reshape(c.mul(c.mul(c.add(start, end), 0.5), float(extent - 1)), (rows, 1))
        inside.append(c(ops.LogicalAnd(), c(ops.GreaterEqual(), at, 0.0), c(ops.LessEqual(), at, float(extent - 1))))
        if method == "nearest":
            at = c(ops.Floor(), c.add(at, 0.5))
        grid.append(c.sub(c.div(c.mul(at, 2.0), float(max(extent - 1, 1))), 1.0))
    rows = boxes.shape[0]
    across = c.broadcast(c.reshape(grid[0], (rows, 1, width, 1)), (rows, height, width, 1))
    down = c.broadcast(c.reshape(grid[1], (rows, height, 1, 1)), (rows, height, width, 1))
    sampled = c(ops.GridSample("linear", "border", True), images, c.concat([across, down], 3))
    valid = c(ops.LogicalAnd(), c.reshape(inside[0], (rows, 1, 1, width)), c.reshape(inside[1], (rows, 1, height, 1)))
    filled = c(ops.Where(), valid, sampled, c.number(c.real("extrapolation_value", 0.0), dt.float32))
    return channels_last(c, filled)
