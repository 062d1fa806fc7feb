"""Normalisation, and factors of channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_caffe2.registry import op
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_caffe2.network import Node


@op("Softmax")
def softmax(c: Node) -> Value:
    """Over all elements from `axis` on together."""
    x, axis = c.value(0), c.axis(c.integer("axis", 1))
    rows = c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return c.reshape(c(ops.Softmax(-1), rows), x.shape)


@op("SpatialBN")
def batch_norm(c: Node) -> Value:
    if not c.integer("is_test", 0):
        raise c.unsupported("is_test: 0, the statistics of the batch itself")
    if c.outputs > 1 or c.count != 5:
        raise c.unsupported(f"{c.count} inputs and {c.outputs} outputs")
    for name in ("momentum", "spatial", "num_batches", "consumed_inputs"):
        c.argument(name)
    x, axis = c.value(0), len(c.shape(0)) - 1 if c.channels_last() else 1
    return c(ops.BatchNorm(c.real("epsilon", 1e-5), axis), x, *(c.value(k) for k in range(1, 5)))


@op("LRN")
def lrn(c: Node) -> list[Value | None]:
    last = c.channels_last()
    x = c.first(c.value(0)) if last else c.value(0)
    size = c.integer("size", 0)
    if size < 1 or size % 2 == 0:
        raise c.error(f"size is {size}, expected an odd number")
    y = c(ops.LRN(size, c.real("alpha", 0), c.real("beta", 0), c.real("bias", 1)), x)
    return [c.last(y) if last else y, None]


@op("InstanceNorm", "GroupNorm")
def instance_norm(c: Node) -> list[Value | None]:
    c.argument("is_test")
    last = c.channels_last()
    x = c.first(c.value(0)) if last else c.value(0)
    epsilon = c.real("epsilon", 1e-5)
    groups = ops.GroupNorm(epsilon, c.integer("group", 32)) if c.op_type == "GroupNorm" else ops.InstanceNorm(epsilon)
    y = c(groups, x, c.value(1), c.value(2))
    return [c.last(y) if last else y, None, None]


@op("LayerNorm")
def layer_norm(c: Node) -> list[Value | None]:
    x, axis = c.value(0), c.axis(c.integer("axis", 1))
    affine = bool(c.integer("elementwise_affine", 0))
    if affine != (c.count == 3):
        raise c.error(f"elementwise_affine is {int(affine)}, with {c.count} inputs")
    behind = c.fixed(x.shape[axis:], "a mean over sizes")
    c.affordable(0 if affine else math.prod(behind), "the factors")
    factors = [c.value(1), c.value(2)] if affine else [
        c.builder.constant(np.full(behind, value, x.dtype.numpy), name) for value, name in ((1, "scale"), (0, "bias"))
    ]  # fmt: skip
    return [c(ops.LayerNorm(axis, c.real("epsilon", 1e-5)), x, *factors), None, None]


@op("Normalize")
def normalize(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis", -1))
    norm = c(ops.Sqrt(), c.sum(c.mul(x, x), (axis,)))
    return c.div(x, c(ops.Maximum(), norm, 1e-12))


@op("AffineChannel")
def affine(c: Node) -> Value:
    c.argument("is_learnable")
    x, behind = c.value(0), 0 if c.channels_last() else len(c.shape(0)) - 2
    scale, bias = (c.reshape(v, (*v.shape, *(1 for _ in range(behind)))) for v in (c.value(1), c.value(2)))
    return c.add(c.mul(x, scale), bias)


@op("NormalizePlanarYUV")
def planar(c: Node) -> Value:
    x, mean, deviation = (c.value(k) for k in range(3))
    if len(x.shape) != 4 or len(mean.shape) != 2 or len(deviation.shape) != 2 or x.dtype != dt.float32:
        raise c.error(f"takes an image and two matrices, got {x.type}, {mean.type} and {deviation.type}")
    # Caffe2 takes the first row for every image.
    mean, deviation = (c.reshape(c.slice(v, 0, 0, 1), (1, v.shape[1], 1, 1)) for v in (mean, deviation))
    return c.div(c.sub(x, mean), deviation)
