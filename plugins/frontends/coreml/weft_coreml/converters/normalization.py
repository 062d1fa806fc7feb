"""Normalisations."""

from __future__ import annotations

import weft_ops as ops
from weft.graph.nodes import Value
from weft_coreml.context import Context
from weft_coreml.registry import op


def vector(c: Context, x: Value, name: str, fill: float, size: object) -> Value:
    """A vector of channels; of one value where it is left out."""
    given = c.maybe(name)
    if given is not None:
        return c.cast(given, x.dtype)
    return c(ops.Fill(x.dtype, (size,), fill))  # type: ignore[arg-type]


@op("batch_norm")
def batch_norm(c: Context) -> Value:
    x = c.of("x")
    mean, variance = c.cast(c.of("mean"), x.dtype), c.cast(c.of("variance"), x.dtype)
    scale, bias = (vector(c, x, name, fill, mean.shape[0]) for name, fill in (("gamma", 1), ("beta", 0)))
    return c(ops.BatchNorm(c.real("epsilon", 1e-5)), x, scale, bias, mean, variance)


@op("instance_norm")
def instance_norm(c: Context) -> Value:
    x = c.of("x")
    scale, bias = (vector(c, x, name, fill, x.shape[1]) for name, fill in (("gamma", 1), ("beta", 0)))
    return c(ops.InstanceNorm(c.real("epsilon", 1e-5)), x, scale, bias)


@op("l2_norm")
def l2_norm(c: Context) -> Value:
    """Over the last three axes."""
    x = c.of("x")
    wide = c.wide(x)
    total = c.sum(c.mul(wide, wide), tuple(range(max(len(x.shape) - 3, 0), len(x.shape))))
    return c.cast(c.div(wide, c(ops.Sqrt(), c.add(total, c.real("epsilon", 1e-6)))), x.dtype)


@op("layer_norm")
def layer_norm(c: Context) -> Value:
    x = c.of("x")
    rank = len(x.shape)
    axes = sorted(c.axis(a, rank) for a in c.ints("axes", range(rank)))
    scale, bias = c.maybe("gamma"), c.maybe("beta")
    scale, bias = (None if v is None else c.cast(v, x.dtype) for v in (scale, bias))
    last = list(range(rank - len(axes), rank))
    if axes == last:
        return c(ops.LayerNorm(-len(axes), c.real("epsilon", 1e-5)), x, scale, bias)
    order = [*(d for d in range(rank) if d not in axes), *axes]
    y = c(ops.LayerNorm(-len(axes), c.real("epsilon", 1e-5)), c.transpose(x, order), scale, bias)
    return c.transpose(y, [order.index(d) for d in range(rank)])


@op("local_response_norm")
def local_response_norm(c: Context) -> Value:
    made = ops.LRN(c.integer("size"), c.real("alpha", 1e-4), c.real("beta", 0.75), c.real("k", 1.0))
    return c(made, c.of("x"))


__all__ = ["vector"]
