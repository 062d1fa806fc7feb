"""Normalisation, and factors along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft_caffe.numbers import decimal
from weft_caffe.registry import layer

if TYPE_CHECKING:
    from weft_caffe.network import Layer


@layer("BatchNorm")
def batch_norm(c: Layer) -> Value:
    p, x = c.parameters("batch_norm_param"), c.value(0)
    if p.HasField("use_global_stats") and not p.use_global_stats:
        raise c.unsupported("use_global_stats: false, the statistics of the batch itself")
    channels = 1 if len(x.shape) == 1 else c.fixed(x.shape[1:2], "channels")[0]
    mean, variance = (np.asarray(c.weight(k, (channels,), n).constant) for k, n in ((0, "mean"), (1, "variance")))
    count = float(np.asarray(c.weight(2, (1,), "count").constant)[0])
    with np.errstate(over="ignore", invalid="ignore"):  # of weights that are not finite, which stay as they are
        mean, variance = (a * np.float32(0 if count == 0 else 1 / count) for a in (mean, variance))
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    values = [c.builder.constant(a, n) for a, n in ((ones, "scale"), (zeros, "bias"))]
    values += [c.builder.constant(a, n) for a, n in ((mean, "mean"), (variance, "variance"))]
    axis = 1 if len(x.shape) > 1 else 0
    return c(ops.BatchNorm(decimal(p.eps), axis), x, *values)


def _along(c: Layer, factor: Value, axis: int) -> Value:
    """An operand whose axes are those of bottom 0 from `axis` on, so that it broadcasts."""
    rank = len(c.shape(0))
    behind = rank - axis - len(factor.shape)
    if behind < 0:
        raise c.error(f"{len(factor.shape)} axes do not fit at axis {axis} of {rank}")
    return c.reshape(factor, (*factor.shape, *(1 for _ in range(behind))))


def _learned(c: Layer, p: Any, k: int, name: str) -> Value:
    """Blob k over `num_axes` axes of bottom 0 from `axis` on."""
    shape = c.shape(0)
    axis = c.axis(p.axis)
    end = len(shape) if p.num_axes == -1 else axis + p.num_axes
    if p.num_axes < -1 or end > len(shape):
        raise c.error(f"num_axes {p.num_axes} at axis {axis} of {len(shape)}")
    return _along(c, c.weight(k, c.fixed(shape[axis:end], name), name), axis if p.num_axes else len(shape))


@layer("Scale")
def scale(c: Layer) -> Value:
    p, x = c.parameters("scale_param"), c.value(0)
    two = c.count > 1
    factor = _along(c, c.value(1), c.axis(p.axis)) if two else _learned(c, p, 0, "scale")
    y = c.mul(x, factor)
    if not p.bias_term:
        return y
    if two:
        shape = c.fixed(c.shape(1), "a learned bias")
        return c.add(y, _along(c, c.weight(0, shape, "bias"), c.axis(p.axis)))
    return c.add(y, _learned(c, p, 1, "bias"))


@layer("Bias")
def bias(c: Layer) -> Value:
    p, x = c.parameters("bias_param"), c.value(0)
    return c.add(x, _along(c, c.value(1), c.axis(p.axis)) if c.count > 1 else _learned(c, p, 0, "bias"))


@layer("LRN")
def lrn(c: Layer) -> Value:
    p, x = c.parameters("lrn_param"), c.value(0)
    size, alpha, beta = int(p.local_size), decimal(p.alpha), decimal(p.beta)
    if size % 2 == 0:
        raise c.error(f"local_size is {size}, expected an odd number")
    if p.norm_region == 0:
        return c(ops.LRN(size, alpha, beta, decimal(p.k)), x)
    # Within a channel the mean is over a window and its pads, and the bias is 1.
    half = size // 2
    mean = c(ops.AveragePool((size, size), (1, 1), (half,) * 4, (1, 1), False, True), c.mul(x, x))
    return c.div(x, c(ops.Power(), c.add(c.mul(mean, alpha), 1.0), beta))


@layer("MVN")
def mvn(c: Layer) -> Value:
    p, x = c.parameters("mvn_param"), c.value(0)
    axes = tuple(range(1 if p.across_channels else 2, len(x.shape)))
    if not axes:
        raise c.error(f"takes at least {2 if p.across_channels else 3} dimensions, got {len(x.shape)}")
    centred = c.sub(x, c.mean(x, axes))
    if not p.normalize_variance:
        return centred
    deviation = c(ops.Sqrt(), c.mean(c.mul(centred, centred), axes))
    return c.div(centred, c.add(deviation, decimal(p.eps)))


@layer("Normalize")
def normalize(c: Layer) -> Value:
    p, x = c.parameters("norm_param"), c.value(0)
    axes = tuple(range(1, len(x.shape))) if p.across_spatial else (1,)
    norm = c(ops.Sqrt(), c.add(c.sum(c.mul(x, x), axes), decimal(p.eps)))
    channels = 1 if p.channel_shared else c.fixed(x.shape[1:2], "channels")[0]
    factor = c.weight(0, (channels,), "scale")
    return c.mul(c.div(x, norm), c.reshape(factor, (1, channels, *(1 for _ in x.shape[2:]))))


@layer("Softmax")
def softmax(c: Layer) -> Value:
    return c(ops.Softmax(c.axis(c.parameters("softmax_param").axis)), c.value(0))
