"""Order and selection by data."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr, product
from weft_runtime.abi import LARGEST


@onnx_op("TopK")
def top_k(c: Context) -> Any:
    if c.version < 10:
        k: Any = c.integer("k")
    else:
        dims = c.dims(1, "k")
        assert dims is not None
        k = dims[0]
    return c.all(ops.TopK(k, c.integer("axis", -1), c.flag("largest", True)), c.value(0))


@onnx_op("Unique")
def unique(c: Context) -> Any:
    x = c.value(0)
    if c.has("axis"):
        axis = axis_of(c.integer("axis"), len(x.shape))
        order = (axis, *(d for d in range(len(x.shape)) if d != axis))
        lines = c.transpose(x, order)
    else:
        axis, order = 0, (0,)
        lines = c.reshape(x, (product(x.shape),))
    rows = c.reshape(lines, (lines.shape[0], product(lines.shape[1:])))
    first, inverse, counts, number = c.all(ops.UniqueRows(c.flag("sorted", True)), rows)
    (found,) = c.sizes(number, "the number of different elements")
    first, counts = (c.slice(v, 0, 0, found) for v in (first, counts))
    y = c.gather(lines, first, 0)
    return c.transpose(y, tuple(order.index(d) for d in range(len(order)))), first, inverse, counts


@onnx_op("Compress")
def compress(c: Context) -> Value:
    x, condition = c.value(0), c.value(1)
    axis = c.integer("axis")
    if not c.has("axis"):
        x, axis = c.reshape(x, (product(x.shape),)), 0
    (count,) = c.sizes(c(ops.CountNonZero(), condition), "the number of elements taken")
    return c.gather(x, c.reshape(c(ops.NonZero(count), condition), (count,)), axis)


@onnx_op("NonMaxSuppression")
def non_max_suppression(c: Context) -> Value:
    boxes, scores = c.value(0), c.value(1)
    limit = None
    if c.given(2):
        known = c.known(2)
        limit = (
            known.dims()
            if known is not None
            else c.sizes(c.clamped(c.cast(c.value(2), dt.int64), 0, LARGEST), "the number of boxes")
        )
    threshold = c.optional(3)
    if threshold is None:
        threshold = c.builder.constant(np.zeros((), np.float32))
    op = ops.NonMaxSuppression(limit[0] if limit else 0, c.flag("center_point_box"))
    chosen, number = c.all(op, boxes, scores, threshold, c.optional(4))
    (count,) = c.sizes(number, "the number of boxes")
    return c.slice(chosen, 0, 0, count)


@onnx_op("TensorScatter")
def tensor_scatter(c: Context) -> Value:
    """The update at a moving place along one axis: every element takes the update's if its place lies in it, else keeps
    its own."""
    past, update = c.value(0), c.value(1)
    axis = axis_of(c.integer("axis", -2), len(past.shape))
    rank, size, length = len(past.shape), past.shape[axis], update.shape[axis]
    line = c(ops.Iota(dt.int64, (size, *(1 for _ in range(rank - axis - 1)))))
    at = c.optional(2)
    place = line
    if at is not None:
        if c.string("mode", "linear") == "linear":
            at = c.within(at, 0, as_dim(dim_expr(size) - length), "write index")
        place = c.sub(line, c.reshape(c.cast(at, dt.int64), (past.shape[0], *(1 for _ in range(rank - 1)))))
    if c.string("mode", "linear") == "circular":
        place = c(ops.Mod(), place, c.dim(size))
    inside = c(ops.LogicalAnd(), c(ops.GreaterEqual(), place, 0), c(ops.Less(), place, c.dim(length)))
    safe = c(ops.Maximum(), c(ops.Minimum(), place, c.sub(c.dim(length), 1)), 0)
    taken = c(ops.GatherElements(axis), update, c.broadcast(safe, past.shape))
    return c(ops.Where(), inside, taken, past)
