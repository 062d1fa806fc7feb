"""Reductions, positions and orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node
from weft_ops.shapes import product

KINDS: Mapping[str, Callable[[tuple[int, ...], bool], Operator]] = {
    "sum": ops.ReduceSum, "sum_axis": ops.ReduceSum, "mean": ops.ReduceMean, "max": ops.ReduceMax,
    "max_axis": ops.ReduceMax, "min": ops.ReduceMin, "min_axis": ops.ReduceMin, "prod": ops.ReduceProd,
}  # fmt: skip


def _axes(c: Node, x: Value) -> tuple[int, ...]:
    """The axes of a reduction; none given are all."""
    given = c.integers("axis")
    rank = len(x.shape)
    axes = tuple(range(rank)) if given is None else tuple(c.axis(a) for a in given)
    if len(set(axes)) < len(axes):
        raise c.error(f"axis {given} names one twice")
    return tuple(k for k in range(rank) if k not in axes) if c.flag("exclude") else axes


def _kept(c: Node, x: Value, y: Value, axes: tuple[int, ...]) -> Value:
    """A result over all axes has one element, and one dimension."""
    return c.reshape(y, (1,)) if len(axes) == len(x.shape) and not c.flag("keepdims") else y


@op(*KINDS)
def reduction(c: Node) -> Value:
    x = c.value(0)
    axes = _axes(c, x)
    if not axes:
        return x
    return _kept(c, x, c(KINDS[c.op_type](axes, c.flag("keepdims")), x), axes)


@op("norm")
def norm(c: Node) -> Value:
    x, order = c.value(0), c.integer("ord", 2)
    axes = _axes(c, x)
    if order not in (1, 2):
        raise c.error(f"ord is {order}, expected 1 or 2")
    keep = c.flag("keepdims")
    y = c.sum(c(ops.Absolute(), x) if order == 1 else c.mul(x, x), axes, keep)
    return _kept(c, x, y if order == 1 else c(ops.Sqrt(), y), axes)


@op("argmax", "argmin")
def position(c: Node) -> Value:
    """Positions are float32."""
    x = c.value(0)
    if c.text("axis") is None:
        x, axis, keep = c.reshape(x, (product(x.shape),)), 0, True
    else:
        axis, keep = c.axis(c.integer("axis")), c.flag("keepdims")
    kind = ops.Argmax if c.op_type == "argmax" else ops.Argmin
    y = c.cast(c(kind(axis, keep), x), dt.float32)
    return c.reshape(y, (1,)) if not y.shape else y


@op("argmax_channel")
def channel(c: Node) -> Value:
    return c.cast(c(ops.Argmax(1, False), c.value(0)), dt.float32)


@op("topk")
def topk(c: Node) -> Any:
    x = c.value(0)
    axis, k = c.axis(c.integer("axis", -1)), c.integer("k", 1)
    if c.text("axis") is None and "axis" in c.attributes:
        raise c.unsupported("axis None")
    kind = c.choice("ret_typ", "indices", ("indices", "value", "both", "mask"))
    size = x.shape[axis]
    if kind == "mask":
        raise c.unsupported("ret_typ mask")
    count = k if k > 0 else size
    values, indices = c.all(ops.TopK(count, axis, not c.flag("is_ascend")), x)
    found = c.cast(indices, c.dtype("dtype", dt.float32))
    return {"indices": found, "value": values, "both": [values, found]}[kind]


@op("sort", "argsort")
def sort(c: Node) -> Value:
    x = c.value(0)
    axis = c.axis(c.integer("axis", -1))
    if c.text("axis") is None and "axis" in c.attributes:
        raise c.unsupported("axis None")
    values, indices = c.all(ops.TopK(x.shape[axis], axis, not c.flag("is_ascend", True)), x)
    return values if c.op_type == "sort" else c.cast(indices, c.dtype("dtype", dt.float32))
