"""Reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import weft_ops as ops
from weft.graph.nodes import Value
from weft_caffe2.registry import op

if TYPE_CHECKING:
    from weft_caffe2.network import Node

KINDS: dict[str, Callable[[Node, Value, tuple[int, ...], bool], Value]] = {
    "Sum": lambda c, x, axes, keep: c.sum(x, axes, keep),
    "Mean": lambda c, x, axes, keep: c.mean(x, axes, keep),
    "Max": lambda c, x, axes, keep: c.max(x, axes, keep),
    "Min": lambda c, x, axes, keep: c(ops.ReduceMin(axes, keep), x),
    "L1": lambda c, x, axes, keep: c.sum(c(ops.Absolute(), x), axes, keep),
    "L2": lambda c, x, axes, keep: c(ops.Sqrt(), c.sum(c.mul(x, x), axes, keep)),
}


@op(*(f"Reduce{kind}" for kind in KINDS))
def reduce(c: Node) -> Value:
    x = c.value(0)
    given = c.integers("axes")
    axes = tuple(sorted({c.axis(a) for a in given})) if given else tuple(range(len(x.shape)))
    return KINDS[c.op_type.removeprefix("Reduce")](c, x, axes, bool(c.integer("keepdims", 1)))


@op(*(f"Reduce{side}{kind}" for side in ("Front", "Back") for kind in ("Sum", "Mean", "Max")))
def reduce_side(c: Node) -> Value:
    x, count, rank = c.value(0), c.integer("num_reduce_dim", 1), len(c.shape(0))
    if c.count > 1 or not 0 <= count <= rank:
        raise c.unsupported(f"num_reduce_dim {count} of {rank} dimension(s), or lengths that are an input")
    front = c.op_type.startswith("ReduceFront")
    axes = tuple(range(count)) if front else tuple(range(rank - count, rank))
    return KINDS[c.op_type.removeprefix("ReduceFront").removeprefix("ReduceBack")](c, x, axes, False)


@op("SumElements", "SumSqrElements")
def elements(c: Node) -> Value:
    x = c.value(0)
    axes = tuple(range(len(x.shape)))
    y = c.mul(x, x) if c.op_type == "SumSqrElements" else x
    return c.mean(y, axes, False) if c.integer("average", 0) else c.sum(y, axes, False)


@op("ArgMax", "ArgMin")
def arg(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis", -1))
    operator = ops.Argmax if c.op_type == "ArgMax" else ops.Argmin
    return c(operator(axis, bool(c.integer("keepdims", 1))), x)
