"""Products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node
from weft_ops.shapes import product


def _channels_first(c: Node, rank: int) -> None:
    known = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
    layout = c.text("layout")
    if layout is not None and layout != known.get(rank):
        raise c.unsupported(f"layout {layout}")


@op("Convolution", "Convolution_v1")
def convolution(c: Node) -> Value:
    x, w = c.value(0), c.value(1)
    rank = len(x.shape) - 2
    _channels_first(c, len(x.shape))
    pads = c.spatial("pad", rank, 0)
    strides, dilations = c.spatial("stride", rank, 1), c.spatial("dilate", rank, 1)
    y = c(ops.Conv(strides, (*pads, *pads), dilations, c.integer("num_group", 1)), x, w)
    return y if c.flag("no_bias") else _biased(c, y, c.value(2))


@op("Deconvolution")
def deconvolution(c: Node) -> Value:
    x, w = c.value(0), c.value(1)
    rank = len(x.shape) - 2
    _channels_first(c, len(x.shape))
    if c.integers("target_shape") is not None and any(c.integers("target_shape") or ()):
        raise c.unsupported("target_shape")
    pads, extra = c.spatial("pad", rank, 0), c.spatial("adj", rank, 0)
    strides, dilations = c.spatial("stride", rank, 1), c.spatial("dilate", rank, 1)
    operator = ops.ConvTranspose(strides, (*pads, *pads), dilations, extra, c.integer("num_group", 1))
    y = c(operator, x, w)
    return y if c.flag("no_bias", True) else _biased(c, y, c.value(2))


def _biased(c: Node, y: Value, bias: Value) -> Value:
    return c.add(y, c.reshape(bias, (1, bias.shape[0], *(1 for _ in y.shape[2:]))))


@op("FullyConnected")
def fully_connected(c: Node) -> Value:
    x, w = c.value(0), c.value(1)
    if c.flag("flatten", True):
        x = c.reshape(x, (x.shape[0], product(x.shape[1:])))
    y = c(ops.MatMul(), x, c.transpose(w, (1, 0)))
    return y if c.flag("no_bias") else c.add(y, c.value(2))


@op("Pooling", "Pooling_v1")
def pooling(c: Node) -> Value:
    x = c.value(0)
    rank = len(x.shape) - 2
    _channels_first(c, len(x.shape))
    method = c.choice("pool_type", "max", ("max", "avg", "sum", "lp"))
    power = c.integer("p_value", 2) if method == "lp" else 2
    axes = tuple(range(2, rank + 2))
    if c.flag("global_pool"):
        if method == "lp":
            raise c.unsupported("global pooling of type lp")
        return {"max": c.max, "avg": c.mean, "sum": c.sum}[method](x, axes)
    kernel, strides, pads = c.spatial("kernel", rank, 0), c.spatial("stride", rank, 1), c.spatial("pad", rank, 0)
    if min(kernel, default=0) < 1 or min(strides) < 1:
        raise c.error(f"kernel {kernel}, stride {strides}")
    convention = c.choice("pooling_convention", "valid", ("valid", "full", "same"))
    both = (*pads, *pads)
    ceil = convention == "full"
    if convention == "same":
        if any(pads):
            raise c.unsupported("pooling_convention same with pads")
        both = (*pads, *(_up_to_whole(c, d, k, s) for d, k, s in zip(x.shape[2:], kernel, strides)))
    if ceil and any(
        isinstance(d, int) and -(-(d + 2 * p - k) // s) * s >= d + p
        for d, k, s, p in zip(x.shape[2:], kernel, strides, pads)
    ):
        raise c.unsupported("pooling_convention full with a window that begins behind the operand")
    arguments = (kernel, strides, both, (1,) * rank, ceil)
    if method == "max":
        return c(ops.MaxPool(*arguments), x)
    if method == "lp":
        return c(ops.LpPool(*arguments, power), x)
    include = c.flag("count_include_pad", True)
    if convention == "same" and include and method == "avg":
        raise c.unsupported("pooling_convention same with count_include_pad")
    if method == "avg":
        return c(ops.AveragePool(*arguments, include), x)
    if ceil:
        raise c.unsupported("pooling_convention full of type sum")
    return c.mul(c(ops.AveragePool(*arguments, True), x), float(math.prod(kernel)))


def _up_to_whole(c: Node, size: Dim, kernel: int, stride: int) -> int:
    """The pad after with which windows give ⌈size / stride⌉ elements, none of them before."""
    (fixed,) = c.fixed([size], "pooling_convention same")
    return max((-(-fixed // stride) - 1) * stride + kernel - fixed, 0)


@op("_contrib_AdaptiveAvgPooling2D")
def adaptive_average(c: Node) -> Value:
    x = c.value(0)
    wanted = c.integers("output_size") or (1,)
    wanted = wanted * 2 if len(wanted) == 1 else wanted
    for axis, size in enumerate(wanted, 2):
        x = _adapted(c, x, axis, size)
    return x


def _adapted(c: Node, x: Value, axis: int, wanted: int) -> Value:
    """Means over parts of an axis, from ⌊k·size/wanted⌋ to ⌈(k + 1)·size/wanted⌉."""
    (size,) = c.fixed(x.shape[axis : axis + 1], "adaptive pooling")
    if wanted < 1:
        raise c.error(f"output_size is {wanted}")
    c.affordable(wanted, "the parts of an axis")
    bounds = [(k * size // wanted, -(-(k + 1) * size // wanted)) for k in range(wanted)]
    return c.concat([c.mean(c.slice(x, axis, a, b - a), (axis,)) for a, b in bounds], axis)


@op("UpSampling")
def up_sampling(c: Node) -> Value:
    if c.choice("sample_type", "nearest", ("nearest", "bilinear")) != "nearest" or c.count > 1:
        raise c.unsupported("sample_type bilinear, and several operands")
    x, scale = c.value(0), c.integer("scale", 1)
    if scale < 1:
        raise c.error(f"scale is {scale}")
    n, channels, height, width = x.shape
    spread = c.reshape(x, (n, channels, height, 1, width, 1))
    spread = c.broadcast(spread, (n, channels, height, scale, width, scale))
    return c.reshape(spread, (n, channels, _times(height, scale), _times(width, scale)))


def _times(d: Dim, factor: int) -> Dim:
    return d * factor if isinstance(d, int) else as_dim(wrap(d, dt.int64) * factor)


@op("dot")
def dot(c: Node) -> Value:
    x, y = c.value(0), c.value(1)
    x = c.transpose(x, (*range(1, len(x.shape)), 0)) if c.flag("transpose_a") else x
    y = c.transpose(y, (len(y.shape) - 1, *range(len(y.shape) - 1))) if c.flag("transpose_b") else y
    if not x.shape or not y.shape:
        raise c.error("takes operands of at least one dimension")
    rows = c.reshape(x, (product(x.shape[:-1]), x.shape[-1]))
    columns = c.reshape(y, (y.shape[0], product(y.shape[1:])))
    return c.reshape(c(ops.MatMul(), rows, columns), (*x.shape[:-1], *y.shape[1:]))


@op("batch_dot", "_linalg_gemm2", "linalg_gemm2")
def batch_dot(c: Node) -> Value:
    x, y = c.value(0), c.value(1)
    order: Sequence[int] = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
    x = c.transpose(x, order) if c.flag("transpose_a") else x
    y = c.transpose(y, order) if c.flag("transpose_b") else y
    if c.integer("axis", -2) != -2:
        raise c.unsupported("axis")
    product_ = c(ops.MatMul(), x, y)
    alpha = c.real("alpha", 1.0)
    return product_ if alpha == 1 else c.mul(product_, alpha)
