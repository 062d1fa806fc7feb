"""Reductions."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft_coreml.context import Context
from weft_coreml.registry import op

KINDS: dict[str, Any] = {
    "sum": ops.ReduceSum, "mean": ops.ReduceMean, "max": ops.ReduceMax, "min": ops.ReduceMin, "prod": ops.ReduceProd,
}  # fmt: skip


@op(*(f"reduce_{kind}" for kind in KINDS))
def reduced(c: Context) -> Value:
    return reduce_axes(c, c.of("x"), c.op_type.removeprefix("reduce_"))


def reduce_axes(c: Context, x: Value, kind: str) -> Value:
    """A reduction over the operator's axes: all, if none are named."""
    rank = len(x.shape)
    axes = tuple(c.axis(a, rank) for a in c.ints("axes")) or tuple(range(rank))
    if not rank:
        return x
    return c(KINDS[kind](axes, c.flag("keep_dims")), x)


@op("reduce_l1_norm")
def l1_norm(c: Context) -> Value:
    return reduce_axes(c, c(ops.Absolute(), c.of("x")), "sum")


@op("reduce_sum_square", "reduce_l2_norm")
def sum_square(c: Context) -> Value:
    x = c.of("x")
    if c.op_type == "reduce_sum_square":
        return reduce_axes(c, c.mul(x, x), "sum")
    wide = c.wide(x)
    return c.cast(c(ops.Sqrt(), reduce_axes(c, c.mul(wide, wide), "sum")), x.dtype)


@op("reduce_log_sum")
def log_sum(c: Context) -> Value:
    return c(ops.Log(), reduce_axes(c, c.of("x"), "sum"))


@op("reduce_log_sum_exp")
def log_sum_exp(c: Context) -> Value:
    x = c.wide(c.of("x"))
    rank = len(x.shape)
    axes = tuple(c.axis(a, rank) for a in c.ints("axes")) or tuple(range(rank))
    top = c.max(x, axes)
    found = c(ops.Log(), c(ops.ReduceSum(axes, c.flag("keep_dims")), c(ops.Exp(), c.sub(x, top))))
    return c.cast(c.add(found, c.reshape(top, found.shape)), c.of("x").dtype)


@op("reduce_argmax", "reduce_argmin")
def argument(c: Context) -> Value:
    x = c.of("x")
    kind = ops.Argmax if c.op_type == "reduce_argmax" else ops.Argmin
    return c.cast(c(kind(c.axis(c.integer("axis", -1), len(x.shape)), c.flag("keep_dims")), x), c.result_dtype())


@op("cumsum")
def cumsum(c: Context) -> Value:
    x = c.of("x")
    return c(ops.CumSum(c.axis(c.integer("axis", 0), len(x.shape)), c.flag("exclusive"), c.flag("reverse")), x)


__all__ = ["reduce_axes"]
