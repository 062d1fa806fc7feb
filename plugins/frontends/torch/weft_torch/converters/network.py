"""Pooling and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import ceildiv
from weft.graph.identity import Require
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.windows import ceil_pads
from weft_ops.shapes import dim_expr, product
from weft_torch.context import Context
from weft_torch.converters.movement import tidy
from weft_torch.registry import op


def each(values: Any, n: int) -> tuple[int, ...]:
    """A number for each spatial axis; one may stand for all."""
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * n if len(given) == 1 else given


def axes_in(c: Context) -> int:
    """How many spatial axes an operator's name says."""
    return int(next(ch for ch in c.op_type if ch in "123"))


def batched(c: Context, x: Value, n: int) -> Value:
    return c.reshape(x, (1, *x.shape)) if len(x.shape) == n + 1 else x


# -- pooling ----------------------------------------------------------------------------------------------------------


@op("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d", "aten.max_pool1d_with_indices",
    "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")  # fmt: skip
def max_pool(c: Context, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    n = axes_in(c)
    kernel = each(kernel, n)
    strides = each(stride, n) if stride else kernel
    y = batched(c, x, n)
    kind = ops.MaxPoolWithIndices if "indices" in c.op_type else ops.MaxPool
    made = kind(kernel, strides, each(padding, n) * 2, each(dilation, n), ceil)
    if "indices" not in c.op_type:
        return c.reshape(c(made, y), c.result_shape())
    values, places = c.all(made, y)
    # PyTorch counts places within one channel.
    places = c(ops.Mod(), places, c(ops.Maximum(), c.dim(product(y.shape[2:])), 1))
    return c.reshape(values, c.result_shape()), c.reshape(places, c.result_shape(1))


@op("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward")
def max_pool_backward(
    c: Context, gradient: Value, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    places: Value,
) -> Value:  # fmt: skip
    n = axes_in(c)
    kernel = each(kernel, n)
    strides = each(stride, n) if stride else kernel
    size = x.shape[-n:]
    gradient, places = batched(c, gradient, n), batched(c, places, n)
    # Weft counts places within the whole tensor.
    channels = c.reshape(c(ops.Iota(dt.int64, (product(places.shape[:2]),))), (*places.shape[:2], *([1] * n)))
    places = c.add(places, c.mul(channels, c.dim(product(size))))
    made = ops.MaxPoolGradient(kernel, strides, each(padding, n) * 2, each(dilation, n), ceil, size=size)
    return c.reshape(c(made, gradient, places), c.result_shape())


@op("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def avg_pool(
    c: Context, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: int | None = None
) -> Value:
    y = batched(c, x, axes_in(c))
    made, factor = _average(c, y, kernel, stride, padding, ceil, include, divisor)
    found = c(made, y)
    return c.reshape(found if factor == 1 else c.mul(found, factor), c.result_shape())


@op("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def avg_pool_backward(
    c: Context, gradient: Value, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool,
    divisor: int | None,
) -> Value:  # fmt: skip
    n = axes_in(c)
    y, gradient = batched(c, x, n), batched(c, gradient, n)
    made, factor = _average(c, y, kernel, stride, padding, ceil, include, divisor)
    (found,) = c.gradients(made, (y,), gradient if factor == 1 else c.mul(gradient, factor))
    assert found is not None
    return c.reshape(found, c.result_shape())


def _average(
    c: Context, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: int | None
) -> tuple[ops.AveragePool, float]:
    """The operator for x [batch, channels, …], and by what its result is multiplied."""
    n = axes_in(c)
    kernel = each(kernel, n)
    strides = each(stride, n) if stride else kernel
    pads = each(padding, n) * 2
    if divisor is None:
        return ops.AveragePool(kernel, strides, pads, (), ceil, include and any(pads)), 1
    if ceil:
        ends = [ceil_pads(*a) for a in zip(x.shape[2:], kernel, strides, pads[:n], pads[n:])] if _sized(x, n) else []
        if not ends:
            raise c.unsupported("divisor_override with ceil_mode, of sizes known only at run time")
        pads = (*pads[:n], *c.statics(ends, "pads"))
    return ops.AveragePool(kernel, strides, pads, (), False, True), int(np.prod(kernel)) / divisor


def _sized(x: Value, n: int) -> bool:
    return all(isinstance(d, int) for d in x.shape[-n:])


def spans(n: int, count: int) -> list[tuple[int, int]]:
    """The parts of an axis that adaptive pooling makes one element of each."""
    return [(k * n // count, -(-((k + 1) * n) // count)) for k in range(count)]


@dataclass(frozen=True)
class Parts:
    """The parts of an axis that adaptive pooling makes one element of each: where they begin, how long they are, all
    as long as the longest: (count, longest) places, and which of these belong to the part. A place that does not is
    that of the part's last element."""

    first: Value
    length: Value
    places: Value
    inside: Value
    longest: Dim


def parts(c: Context, size: Dim, count: Dim) -> Parts:
    """Part k begins at k · size / count, rounded down, and ends at (k + 1) · size / count, rounded up."""
    k = c(ops.Iota(dt.int64, (count,)))
    first = c.div(c.mul(k, c.dim(size)), c.dim(count))
    last = c.div(c.add(c.mul(c.add(k, 1), c.dim(size)), c.dim(as_dim(dim_expr(count) - 1))), c.dim(count))
    longest = most(size, count)
    step = c(ops.Iota(dt.int64, (longest,)))
    length = c.sub(last, first)
    rows = c.reshape(length, (count, 1))
    places = c.add(c.reshape(first, (count, 1)), c(ops.Minimum(), step, c.sub(rows, 1)))
    return Parts(first, length, places, c(ops.Less(), step, rows), longest)


def most(size: Dim, count: Dim) -> Dim:
    """The length of the longest part, or one more."""
    if isinstance(size, int) and isinstance(count, int):
        return max((-(-((k + 1) * size) // count) - k * size // count for k in range(count)), default=0)
    return tidy(as_dim(ceildiv(dim_expr(size), dim_expr(count)) + 1))


def _some(c: Context, x: Value, d: int) -> Value:
    """`x`, provided that an axis has elements."""
    size = x.shape[d]
    if isinstance(size, int) and size > 0:
        return x
    return c.required(x, Require(size, 1, None, "adaptive pooling of an axis of {0} elements", (size,), c.op_type))


@op("aten.adaptive_avg_pool1d", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d",
    "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(c: Context, x: Value, sizes: Any) -> Value:
    n = axes_in(c)
    if 0 in c.result_shape():
        return c(ops.Fill(x.dtype, c.result_shape(), 0))
    wide = c.wide(x)
    y = wide
    for k, count in enumerate(c.result_shape()[-n:]):
        d = len(x.shape) - n + k
        y = _averaged(c, y, d, count)
    return c.cast(y, x.dtype)


def _averaged(c: Context, x: Value, d: int, count: Dim) -> Value:
    size = x.shape[d]
    if count == size:
        return x
    if isinstance(count, int) and count == 1:
        return c.mean(x, (d,))
    if isinstance(size, int) and isinstance(count, int) and size % count == 0:
        shape = (*x.shape[:d], count, size // count, *x.shape[d + 1 :])
        return c.mean(c.reshape(x, shape), (d + 1,), False)
    x = _some(c, x, d)
    found = parts(c, size, count)
    behind = [1] * (len(x.shape) - d - 1)
    inside = c.reshape(found.inside, (count, found.longest, *behind))
    total = c.sum(c(ops.Where(), inside, c.gather(x, found.places, d), 0), (d + 1,), False)
    return c.div(total, c.reshape(c.cast(found.length, x.dtype), (count, *behind)))


@op("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(c: Context, x: Value, sizes: Any) -> tuple[Value, Value]:
    """Every part of each axis is taken in full, filled up with its last element, which changes no maximum."""
    n, rank = axes_in(c), len(x.shape)
    if 0 in c.result_shape():
        return c(ops.Fill(x.dtype, c.result_shape(), 0)), c(ops.Fill(dt.int64, c.result_shape(), 0))
    front = rank - n
    size, counts = x.shape[front:], c.result_shape()[front:]
    y, found = x, []
    for k, (m, count) in enumerate(zip(size, counts)):
        y = _some(c, y, front + 2 * k)
        found.append(parts(c, m, count))
        y = c.gather(y, found[-1].places, front + 2 * k)
    order = (*range(front), *(front + 2 * k for k in range(n)), *(front + 2 * k + 1 for k in range(n)))
    y = c.reshape(c.transpose(y, order), (*x.shape[:front], *counts, product([f.longest for f in found])))
    rest = c(ops.Argmax(-1, False), y)
    inner: list[Value] = []
    for f in reversed(found):
        inner.insert(0, c(ops.Mod(), rest, c.dim(f.longest)))
        rest = c.div(rest, c.dim(f.longest))
    place: Value | None = None
    for k, (f, at) in enumerate(zip(found, inner)):
        start = c.reshape(f.first, [counts[k] if j == k else 1 for j in range(n)])
        within = c.add(c(ops.Minimum(), at, c.sub(c.reshape(f.length, start.shape), 1)), start)
        place = within if place is None else c.add(c.mul(place, c.dim(size[k])), within)
    assert place is not None
    return c(ops.ReduceMax((-1,), False), y), place


@op("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(c: Context, x: Value, places: Value, *_: Any) -> Value:
    """Places within one channel, of elements put into zeros."""
    n = axes_in(c)
    shape = c.result_shape()
    front = shape[: len(shape) - n]
    size = product(shape[len(shape) - n :])
    count = product(x.shape[len(x.shape) - n :])
    zeros = c(ops.Fill(x.dtype, (product(front), size), 0))
    at = c.within(c.reshape(places, (product(front), count)), 0, as_dim(size - 1), "index")
    return c.reshape(c(ops.ScatterElements(1), zeros, at, c.reshape(x, (product(front), count))), shape)


# -- normalisation ----------------------------------------------------------------------------------------------------


@op("aten.layer_norm")
def layer_norm(
    c: Context, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, eps: float, *_: Any
) -> Value:
    return c(ops.LayerNorm(-len(shape), eps), x, scale, bias)


@op("aten.native_layer_norm")
def native_layer_norm(
    c: Context, x: Value, shape: Sequence[int], scale: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    axes = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    wide = c.wide(x)
    mean = c.mean(wide, axes)
    apart = c.sub(wide, mean)
    variance = c.mean(c.mul(apart, apart), axes)
    inverse = c(ops.Reciprocal(), c(ops.Sqrt(), c.add(variance, eps)))
    if any(v is not None and v.dtype != x.dtype for v in (scale, bias)):  # narrow x with wide parameters
        scale, bias = (v if v is None else c.cast(v, wide.dtype) for v in (scale, bias))
        y = c.cast(c(ops.LayerNorm(-len(shape), eps), wide, scale, bias), x.dtype)
    else:
        y = c(ops.LayerNorm(-len(shape), eps), x, scale, bias)
    return y, c.cast(mean, c.result_dtype(1)), c.cast(inverse, c.result_dtype(2))


@op("aten.rms_norm", "aten._fused_rms_norm")
def rms_norm(c: Context, x: Value, shape: Sequence[int], scale: Value | None, eps: float | None) -> Any:
    import torch

    # Of half precision that of float32, in which PyTorch computes.
    epsilon = torch.finfo(torch.float64 if x.dtype == dt.float64 else torch.float32).eps if eps is None else eps
    y = c(ops.RMSNorm(-len(shape), epsilon), x, scale)
    if "fused" not in c.op_type:
        return y
    wide = c.wide(x)
    power = c.mean(c.mul(wide, wide), tuple(range(len(x.shape) - len(shape), len(x.shape))))
    return y, c.cast(c(ops.Reciprocal(), c(ops.Sqrt(), c.add(power, epsilon))), c.result_dtype(1))


@op("aten.group_norm")
def group_norm(
    c: Context, x: Value, groups: int, scale: Value | None, bias: Value | None, eps: float, *_: Any
) -> Value:
    channels = x.shape[1]
    scale = c(ops.Fill(x.dtype, (channels,), 1)) if scale is None else scale
    bias = c(ops.Fill(x.dtype, (channels,), 0)) if bias is None else bias
    return c(ops.GroupNorm(eps, groups), x, scale, bias)


@op("aten._native_batch_norm_legit_no_training")
def batch_norm(
    c: Context,
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    channels = mean.shape[0]
    scale = c(ops.Fill(mean.dtype, (channels,), 1)) if scale is None else scale
    bias = c(ops.Fill(mean.dtype, (channels,), 0)) if bias is None else bias
    y = c(ops.BatchNorm(eps), x, scale, bias, mean, variance)
    nothing = c.builder.constant(np.zeros(0, c.result_dtype(1).numpy))
    return y, nothing, nothing


@op("aten.batch_norm")
def batch_norm_whole(
    c: Context, x: Value, scale: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    training: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    if training or mean is None or variance is None:
        raise c.unsupported("statistics of the batch; call eval() on the module before it is exported")
    return batch_norm(c, x, scale, bias, mean, variance, momentum, eps)[0]


@op("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.native_dropout")
def dropout(c: Context, x: Value, p: float, train: bool) -> Any:
    if train and p:
        raise c.unsupported("random numbers: the module is training; call eval() before it is exported")
    return (x, c(ops.Fill(dt.bool_, x.shape, 1))) if "native" in c.op_type else x


@op("aten.col2im")
def col2im(c: Context, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    y = c.reshape(x, (1, *x.shape)) if len(x.shape) == 2 else x
    made = ops.Col2Im(tuple(size), tuple(kernel), tuple(stride), tuple(padding) * 2, tuple(dilation))
    return c.reshape(c(made, y), c.result_shape())


__all__ = ["axes_in", "batched", "each"]
