"""Layers that are not entered: their `call` uses a backend itself, or takes sizes that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend.layouts import among_channels_first, channels_last
from weft_keras.converters.elementwise import softmax_over
from weft_keras.registry import layer
from weft_ops.shapes import product, quotient

if TYPE_CHECKING:
    from weft_keras.call import Call


@layer("Flatten")
def flatten(c: Call) -> Value:
    x = c.tensor("inputs")
    if not x.shape[1:]:
        return c.reshape(x, (*x.shape, 1))
    if not c.channels_last():
        x = channels_last(c, x)
    return c.reshape(x, (x.shape[0], product(x.shape[1:])))


@layer("Reshape")
def reshape(c: Call) -> Value:
    x, target = c.tensor("inputs"), [int(d) for d in c.attribute("target_shape")]
    known = [d for d in target if d != -1]
    rest = quotient(x.shape[1:], known) if -1 in target else 0
    return c.reshape(x, (x.shape[0], *(rest if d == -1 else d for d in target)))


@layer("Activation")
def activation(c: Call) -> Value:
    return c.activated(c.tensor("inputs"))


@layer("RepeatVector")
def repeat_vector(c: Call) -> Value:
    x = c.tensor("inputs")
    return c.broadcast(c.reshape(x, (x.shape[0], 1, x.shape[1])), (x.shape[0], int(c.attribute("n")), x.shape[1]))


@layer("PReLU")
def prelu(c: Call) -> Value:
    x = c.tensor("inputs")
    return c(ops.PRelu(), x, c.as_tensor(c.attribute("alpha"), x.dtype))


@layer("Softmax")
def softmax(c: Call) -> Value:
    x, mask, axis = c.tensor("inputs"), c.arg("mask"), c.attribute("axis")
    if mask is not None:
        kept = c.as_tensor(mask)
        if not kept.dtype.is_bool:
            kept = c(ops.Greater(), kept, 0.5)
        x = c(ops.Where(), kept, x, c.number(-3e4 if x.dtype == dt.float16 else -1e9, x.dtype))
    y = softmax_over(c, x, c.axes(axis, len(x.shape)))
    return y if mask is None else c(ops.Where(), kept, y, c.number(0.0, y.dtype))


@layer("Rescaling")
def rescaling(c: Call) -> Value:
    x = c.tensor("inputs", c.out)
    scale, offset = (np.asarray(c.attribute(n), np.float32) for n in ("scale", "offset"))
    if scale.ndim and c.importer.keras.config.image_data_format() == "channels_first":
        raise c.unsupported("several scales, channels first")
    return c.add(c.mul(x, c.as_tensor(scale, c.out)), c.as_tensor(offset, c.out))


@layer("Normalization")
def normalization(c: Call) -> Value:
    x, layer = c.tensor("inputs", c.out), c.operation
    mean, variance = (c.importer.array(v) for v in (layer.mean, layer.variance))
    deviation = np.maximum(np.sqrt(variance), np.float32(c.importer.keras.config.epsilon()))
    mean, deviation = (c.as_tensor(np.asarray(v, np.float32), c.out) for v in (mean, deviation))
    if layer.invert:
        return c.add(c.mul(x, deviation), mean)
    return c.div(c.sub(x, mean), deviation)


@layer("GroupNormalization")
def group_normalization(c: Call) -> Value:
    x, layer = c.tensor("inputs"), c.operation
    rank = len(x.shape)
    axis = c.axis(int(layer.axis), rank)
    if axis not in (1, rank - 1):
        raise c.unsupported(f"axis {layer.axis} of {rank}")
    (channels,) = c.fixed(x.shape[axis : axis + 1], "channels")
    one = np.ones(channels, np.float32)
    wide = c.wide(x)
    scale = c.as_tensor(layer.gamma if layer.scale else one, wide.dtype)
    bias = c.as_tensor(layer.beta if layer.center else 0 * one, wide.dtype)
    op = ops.GroupNorm(float(layer.epsilon), int(layer.groups))

    def apply(y: Value) -> Value:
        return c(op, y, scale, bias)

    if rank == 2:
        return c.cast(apply(wide), c.out)
    return c.cast(apply(wide) if axis == 1 else among_channels_first(c, wide, apply), c.out)


@layer("GlobalAveragePooling1D")
def global_average_pooling_1d(c: Call) -> Value:
    if c.arg("mask") is not None:
        raise c.unsupported("a mask")
    return c.mean(c.tensor("inputs"), (1 if c.channels_last() else 2,), bool(c.attribute("keepdims")))


@layer("TextVectorization", "StringLookup", "IntegerLookup", "Hashing", "HashedCrossing", refuses=True)
def refused(c: Call) -> Value:
    raise c.unsupported("it computes something other than operations of keras.ops")
