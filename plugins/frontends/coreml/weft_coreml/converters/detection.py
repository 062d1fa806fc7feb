"""Boxes that do not overlap better ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_coreml.context import Context
from weft_coreml.network import Layer
from weft_coreml.registry import layer, op
from weft_ops.composing import Composer
from weft_ops.shapes import dim_expr, dim_min


@dataclass(frozen=True)
class Suppression:
    """How boxes are chosen.

    Args:
        overlap: above which intersection over union a box goes for a better one; one element.
        least: the score above which a box counts; None: every one does.
        most: boxes that are chosen at most.
        by_class: a box goes for a better one of its own class alone, that of its greatest score.
    """

    overlap: Value
    least: Value | None
    most: Dim
    by_class: bool


@dataclass(frozen=True)
class Chosen:
    """The best boxes of one image, by falling score: which [min(most, boxes)], int64, and how many of these count
    (int64, one element)."""

    places: Value
    count: Value


def chosen(c: Composer, boxes: Value, scores: Value, how: Suppression, one_at_least: bool) -> Chosen:
    """Boxes [boxes, 4] (centre x, y, width, height) with scores [boxes, classes].

    Args:
        one_at_least: where no box counts, the one of the greatest score does.
    """
    n, classes = scores.shape
    boxes, scores = c.cast(boxes, dt.float32), c.cast(scores, dt.float32)
    best = c.max(scores, (1,), False)
    rated = c.reshape(best, (1, 1, n))
    if how.by_class:
        own = c.reshape(c(ops.Argmax(1, False), scores), (1, n))
        each = c.reshape(c(ops.Iota(dt.int64, (classes,))), (classes, 1))
        rated = c.reshape(c(ops.Where(), c(ops.Equal(), own, each), c.reshape(best, (1, n)), -np.inf), (1, classes, n))
    least = c.builder.constant(np.array([-np.inf], np.float32)) if how.least is None else how.least
    found, number = c.all(ops.NonMaxSuppression(how.most, True), c.reshape(boxes, (1, n, 4)), rated, how.overlap, least)
    # Behind those that were found there is room: a place that no box has.
    row = c(ops.Iota(dt.int64, (found.shape[0],)))
    at = c(ops.Where(), c(ops.Less(), row, number), c.pick(found, 1, 2), c.dim(n))
    room = c(ops.Fill(dt.int64, (as_dim(dim_expr(n) + 1),), 0))
    marks = c(ops.ScatterND("max"), room, c.reshape(at, (at.shape[0], 1)), c(ops.Fill(dt.int64, at.shape, 1)))
    kept = c(ops.Equal(), c.slice(marks, 0, 0, n), 1)
    if one_at_least:
        top = c(ops.Equal(), c(ops.Iota(dt.int64, (n,))), c(ops.Argmax(0, False), best))
        kept = c(ops.LogicalOr(), kept, c(ops.LogicalAnd(), top, c(ops.Equal(), number, 0)))
    limit = dim_min(how.most, n)
    _, places = c.all(ops.TopK(limit, 0, True), c(ops.Where(), kept, best, -np.inf))
    count = c(ops.Minimum(), c.sum(c.cast(kept, dt.int64), (0,)), c.dim(how.most))
    return Chosen(places, count)


def filled(c: Composer, x: Value, found: Chosen, most: Dim, fill: float) -> Value:
    """The chosen rows of x, [most, ...], those that do not count are `fill`."""
    rows = c.gather(x, found.places, 0)
    limit = rows.shape[0]
    if limit != most:
        rows = c.pad(rows, (0,) * len(rows.shape) + (as_dim(dim_expr(most) - limit), *((0,) * (len(rows.shape) - 1))))
    counts = c(ops.Less(), c(ops.Iota(dt.int64, (most,))), found.count)
    counts = c.reshape(counts, (most, *(1,) * (len(rows.shape) - 1)))
    return c(ops.Where(), counts, rows, c.number(fill, rows.dtype))


def suppressed(c: Context, boxes: Value, scores: Value, how: Suppression) -> list[Value]:
    """Of a batch [batch, boxes, 4] and [batch, boxes, classes]: boxes, scores, places and numbers of those chosen,
    filled up with zeros, and places with -1."""
    (batch,) = c.static(boxes.shape[:1], "a batch")
    if isinstance(how.most, int) and how.most < 1:
        raise c.error(f"at most {how.most} boxes")
    parts: list[list[Value]] = [[], [], [], []]
    for k in range(batch):
        one, rates = c.pick(boxes, 0, k), c.pick(scores, 0, k)
        found = chosen(c, one, rates, how, True)
        places = c(ops.Iota(dt.int64, (one.shape[0],)))
        rows = [filled(c, v, found, how.most, fill) for v, fill in ((one, 0), (rates, 0), (places, -1))]
        for part, row in zip(parts, (*rows, c.reshape(found.count, ()))):
            part.append(c.reshape(row, (1, *row.shape)))
    return [part[0] if batch == 1 else c.concat(part, 0) for part in parts]


@op("non_maximum_suppression")
def non_maximum_suppression(c: Context) -> list[Value]:
    boxes, scores = c.of("boxes"), c.of("scores")
    newer = not c.has("score_threshold")
    if newer:  # [batch, 4, boxes] and [batch, classes, boxes]
        boxes, scores = c.transpose(boxes, (0, 2, 1)), c.transpose(scores, (0, 2, 1))
    limits = [None if c.maybe(n) is None else c.reshape(c.cast(c.of(n), dt.float32), (1,))
              for n in ("iou_threshold", "score_threshold")]  # fmt: skip
    if limits[0] is None:
        raise c.error("operand 'iou_threshold' is missing")
    how = Suppression(limits[0], limits[1], c.integer("max_boxes"), c.flag("per_class_suppression"))
    found = suppressed(c, boxes, scores, how)
    if newer:
        return [*(c.transpose(v, (0, 2, 1)) for v in found[:2]), c.cast(found[2], dt.int32)]
    return [*found[:2], *(c.cast(v, dt.int32) for v in found[2:])]


@layer("NonMaximumSuppression")
def non_maximum_suppression_layer(c: Layer) -> list[Value]:
    """Inputs behind the scores are used instead of the parameters."""
    p = c.parameters
    limits = [c.reshape(c.x(k), (1,)) if k < len(c.operands) else c.builder.constant(np.array([number], np.float32))
              for k, number in ((2, p.iouThreshold), (3, p.scoreThreshold))]  # fmt: skip
    most: Dim = int(p.maxBoxes)
    if len(c.operands) > 4:
        (most,) = c.sizes(c.reshape(c.as_value(c.integers_of(4), "max_boxes"), (1,)), "the number of boxes")
    boxes, scores = c.x(0), c.x(1)
    return suppressed(c, boxes, scores, Suppression(limits[0], limits[1], most, p.perClassSuppression))


__all__ = ["Chosen", "Suppression", "chosen", "filled"]
