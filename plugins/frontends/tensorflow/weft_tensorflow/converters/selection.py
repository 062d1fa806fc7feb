"""Results whose number only the run knows: different elements, chosen boxes, partitions."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.movement import segment_count
from weft_ops.shapes import product
from weft_runtime.abi import LARGEST
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op


@tf_op("Unique", "UniqueWithCounts")
def unique(c: Context) -> list[Value]:
    """The different elements in order of first occurrence, and which of them each is."""
    x, to = c.value(0), c.dtype("out_idx", dt.int32)
    if len(x.shape) != 1:
        raise c.error(f"an operand of {len(x.shape)} dimension(s), expected 1")
    first, inverse, counts, number = c.all(ops.UniqueRows(False), c.reshape(x, (x.shape[0], 1)))
    (found,) = c.sizes(number, "the number of different elements")
    first, counts = (c.slice(v, 0, 0, found) for v in (first, counts))
    return [c.gather(x, first, 0), c.cast(inverse, to), c.cast(counts, to)]


def limit_of(c: Context, k: int) -> Dim:
    """Operand k, how many boxes are chosen at most."""
    known = c.known(k)
    if known is not None:
        return as_dim(known.dims()[0])
    count = c.reshape(c.clamped(c.cast(c.value(k), dt.int64), 0, LARGEST), (1,))
    return c.sizes(count, "the number of boxes")[0]


def chosen_boxes(c: Context, boxes: Value, scores: Value, limit: Dim, threshold: Value, least: Value | None) -> Value:
    """Which boxes are chosen, [number, 3]: batch, class and box."""
    chosen, number = c.all(ops.NonMaxSuppression(limit), boxes, scores, threshold, least)
    (count,) = c.sizes(number, "the number of boxes")
    return c.slice(chosen, 0, 0, count)


@tf_op("NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5")
def non_max_suppression(c: Context) -> list[Value]:
    """Boxes of one class; scores that are not above the threshold are left out."""
    if c.op_type == "NonMaxSuppressionV5":
        sigma = c.constant(5)
        if sigma is None or sigma.any():
            raise c.unsupported("soft suppression")
    boxes, scores = c.value(0), c.value(1)
    count, limit = boxes.shape[0], limit_of(c, 2)
    threshold = c.reshape(c.value(3), (1,))
    least = None if c.op_type == "NonMaxSuppressionV2" else c.reshape(c.value(4), (1,))
    rows = chosen_boxes(c, c.reshape(boxes, (1, count, 4)), c.reshape(scores, (1, 1, count)), limit, threshold, least)
    places = c.cast(c.pick(rows, 1, 2), dt.int32)
    number = c.dim(places.shape[0], dt.int32)
    found = c.gather(scores, places, 0)
    if c.flag("pad_to_max_output_size"):
        if not isinstance(limit, int):
            raise c.unsupported("results padded to a number known only at run time")
        more = as_dim(limit - places.shape[0])
        places, found = c.pad(places, (0, more)), c.pad(found, (0, more))
    results = {"NonMaxSuppressionV4": [places, number], "NonMaxSuppressionV5": [places, found, number]}
    return results.get(c.op_type, [places])


def where_true(c: Context, test: Value) -> Value:
    """The places at which a vector is true."""
    size = as_dim(c.builder.symbol(c(ops.CountNonZero(), test)))
    return c.reshape(c(ops.NonZero(size), test), (size,))


@tf_op("DynamicPartition")
def dynamic_partition(c: Context) -> list[Value]:
    x, which = c.value(0), c.value(1)
    many = len(which.shape)
    count = product(which.shape)
    flat, rows = c.reshape(which, (count,)), c.reshape(x, (count, *x.shape[many:]))
    return [c.gather(rows, where_true(c, c(ops.Equal(), flat, k)), 0) for k in range(c.integer("num_partitions"))]


@tf_op("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(c: Context) -> Value:
    """Slices put in the places that indices name; of one named twice the last."""
    count = c.integer("N")
    indices, parts = [c.value(k) for k in range(count)], [c.value(count + k) for k in range(count)]
    behind = parts[0].shape[len(indices[0].shape) :]
    flat = [c.reshape(i, (product(i.shape),)) for i in indices]
    rows = [c.reshape(p, (i.shape[0], *behind)) for p, i in zip(parts, flat)]
    where = c.concat(flat, 0)
    size = segment_count(c, c.reshape(c(ops.ReduceMax((0,), True), where), (1,)))
    ground = c.broadcast(c.number(0, rows[0].dtype), (size, *behind))
    where = c.within(where, 0, None, "an index")
    return c(ops.ScatterND(), ground, c.reshape(where, (where.shape[0], 1)), c.concat(rows, 0))


@tf_op("DenseBincount", "Bincount")
def bincount(c: Context) -> Value:
    """How many elements have each number below a size, or the sum of their weights."""
    x, size = c.value(0), c.dim_at(1, "the size")
    weights = c.value(2)
    if len(x.shape) > 1 and c.op_type == "DenseBincount":
        raise c.unsupported("an operand of two dimensions")
    count = product(x.shape)
    flat = c.within(c.reshape(x, (count,)), 0, None, "an element")
    if product(weights.shape) == 0:
        added = c.broadcast(c.number(1, weights.dtype), (count,))
    else:
        added = c.reshape(weights, (count,))
    # What is not below the size goes to a place behind, which is cut off.
    last = c.cast(c.dim(size), flat.dtype)
    flat = c(ops.Minimum(), flat, last)
    ground = c.broadcast(c.number(0, weights.dtype), (as_dim(size + 1),))
    once = c.flag("binary_output")
    found = c(ops.ScatterND("max" if once else "add"), ground, c.reshape(flat, (count, 1)), added)
    return c.slice(found, 0, 0, size)


@tf_op("Roll")
def roll(c: Context) -> Value:
    """Each element goes on by a shift, which may be known only at run time."""
    x, shifts, axes = c.value(0), c.value(1), c.numbers(2, "the axes")
    assert axes is not None
    known = c.constant(1)
    flat = c.reshape(c.cast(shifts, dt.int64), (product(shifts.shape),))
    if product(shifts.shape) != len(axes):
        raise c.error(f"{product(shifts.shape)} shifts for {len(axes)} axes")
    for k, a in enumerate(axes):
        axis = c.axis(a, len(x.shape))
        size = x.shape[axis]
        if known is not None and isinstance(size, int):
            by = int(np.reshape(known, -1)[k]) % size if size else 0
            if by:
                x = c.concat([c.slice(x, axis, size - by, by), c.slice(x, axis, 0, size - by)], axis)
            continue
        places = c(ops.Mod(), c.sub(c(ops.Iota(dt.int64, (size,))), c.pick(flat, 0, k)), c.dim(size))
        x = c.gather(x, places, axis)
    return x
