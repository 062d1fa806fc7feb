"""Products, convolutions, pools, normalisations and resizing: operations that Weft has whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_frontend.layouts import among_channels_first, reordered
from weft_frontend.windows import padded, same_pads
from weft_keras.registry import layer, operation

if TYPE_CHECKING:
    from weft_keras.call import Call

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def each(given: Any, rank: int) -> tuple[int, ...]:
    """A setting for every spatial axis, of which one may be given for all."""
    found = [int(v) for v in given] if isinstance(given, (tuple, list)) else [int(given)]
    return tuple(found * rank if len(found) == 1 else found)


def arranged(c: Call, x: Value, apply: Callable[[Value], Value]) -> Value:
    """`apply`, whose channels are axis 1, in the layout of the operation."""
    return among_channels_first(c, x, apply) if c.channels_last() else apply(x)


def pads_of(c: Call, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
            ) -> tuple[Dim, ...]:  # fmt: skip
    padding = str(c.attribute("padding")).lower()
    if padding == "same":
        return same_pads(sizes, kernel, strides, dilations)
    if padding == "causal" and len(kernel) == 1:
        return ((kernel[0] - 1) * dilations[0], 0)
    if padding != "valid":
        raise c.unsupported(f"padding '{padding}'")
    return (0,) * (2 * len(kernel))


def convolved(c: Call, x: Value, w: Value, strides: Sequence[int], groups: int, valid: bool = False) -> Value:
    """The convolution of `x`, channels being axis 1, with a filter OI…."""
    rank = len(x.shape) - 2
    kernel = c.fixed(w.shape[2:], "a filter's size")
    dilations = (1,) * rank if valid else each(c.attribute("dilation_rate"), rank)
    pads = (0,) * (2 * rank) if valid else pads_of(c, x.shape[2:], kernel, strides, dilations)
    x, left = padded(c, x, pads)
    return c(ops.Conv(tuple(strides), left, dilations, groups), x, w)


def channels_of(c: Call, x: Value) -> int:
    return c.fixed([x.shape[-1 if c.channels_last() else 1]], "channels")[0]


@operation("Conv")
def conv(c: Call) -> Value:
    return convolution(c, c.tensor("inputs", c.out), c.tensor("kernel", c.out))


@layer("Conv1D", "Conv2D", "Conv3D")
def conv_layer(c: Call) -> Value:
    y = convolution(c, c.tensor("inputs", c.out), c.as_tensor(c.attribute("kernel"), c.out))
    return c.activated(biased(c, y))


@layer("Dense")
def dense(c: Call) -> Value:
    y = c(ops.MatMul(), c.tensor("inputs", c.out), c.as_tensor(c.attribute("kernel"), c.out))
    return c.activated(y if c.attribute("bias") is None else c.add(y, c.as_tensor(c.attribute("bias"), c.out)))


def biased(c: Call, y: Value) -> Value:
    """`y` plus the bias of the layer, one number for each channel."""
    bias = c.attribute("bias")
    if bias is None:
        return y
    bias = c.as_tensor(bias, c.out)
    return c.add(y, bias if c.channels_last() else c.reshape(bias, (*bias.shape, *(1,) * (len(y.shape) - 2))))


def convolution(c: Call, x: Value, w: Value) -> Value:
    letters = SPATIAL[len(x.shape) - 2]
    (taken,) = c.fixed(w.shape[-2:-1], "a filter's channels")
    channels = channels_of(c, x)
    if channels % taken:
        raise c.error(f"a filter of {taken} channels for {channels}")
    w = reordered(c, w, f"{letters}IO", f"OI{letters}")
    strides = each(c.attribute("strides"), len(letters))
    return arranged(c, x, lambda x: convolved(c, x, w, strides, channels // taken))


def depthwise_filter(c: Call, w: Value, letters: str) -> Value:
    """[…, channels, multiplier] → [channels · multiplier, 1, …]."""
    *kernel, channels, multiplier = c.fixed(w.shape, "a filter's size")
    w = reordered(c, w, f"{letters}IO", f"IO{letters}")
    return c.reshape(w, (channels * multiplier, 1, *kernel))


@operation("DepthwiseConv")
def depthwise_conv(c: Call) -> Value:
    x, w = c.tensor("inputs", c.out), c.tensor("kernel", c.out)
    letters = SPATIAL[len(x.shape) - 2]
    w = depthwise_filter(c, w, letters)
    strides = each(c.attribute("strides"), len(letters))
    return arranged(c, x, lambda x: convolved(c, x, w, strides, channels_of_first(c, x)))


def channels_of_first(c: Call, x: Value) -> int:
    return c.fixed(x.shape[1:2], "channels")[0]


@operation("SeparableConv")
def separable_conv(c: Call) -> Value:
    x = c.tensor("inputs", c.out)
    letters = SPATIAL[len(x.shape) - 2]
    depthwise = depthwise_filter(c, c.tensor("depthwise_kernel", c.out), letters)
    pointwise = reordered(c, c.tensor("pointwise_kernel", c.out), f"{letters}IO", f"OI{letters}")
    strides = each(c.attribute("strides"), len(letters))

    def apply(x: Value) -> Value:
        y = convolved(c, x, depthwise, strides, channels_of_first(c, x))
        return convolved(c, y, pointwise, (1,) * len(letters), 1, valid=True)

    return arranged(c, x, apply)


def transposed_pads(kernel: int, stride: int, dilation: int, padding: str, extra: int | None) -> tuple[int, int]:
    """How many elements of the whole result, stride · (size - 1) + extent, are left out before and after; negative:
    zeros are added."""
    extent = (kernel - 1) * dilation + 1
    if padding == "valid":
        return 0, -(max(stride - extent, 0) if extra is None else extra)
    total = stride + extent - 2 if extra is None else extent + extent % 2 - 2 + extra
    before = min(total // 2 + total % 2, extent - 1)
    return extent - 1 - before, extent - 1 - (total - before)


@operation("ConvTranspose")
def conv_transpose(c: Call) -> Value:
    x, w = c.tensor("inputs", c.out), c.tensor("kernel", c.out)
    letters = SPATIAL[len(x.shape) - 2]
    rank = len(letters)
    kernel = c.fixed(w.shape[:rank], "a filter's size")
    strides, dilations = each(c.attribute("strides"), rank), each(c.attribute("dilation_rate"), rank)
    padding, given = str(c.attribute("padding")).lower(), c.attribute("output_padding")
    if padding not in ("same", "valid"):
        raise c.unsupported(f"padding '{padding}'")
    extras: Sequence[int | None] = [None] * rank if given is None else each(given, rank)
    pads = [transposed_pads(k, s, d, padding, e) for k, s, d, e in zip(kernel, strides, dilations, extras)]
    w = reordered(c, w, f"{letters}OI", f"IO{letters}")
    op = ops.ConvTranspose(strides, tuple(p[0] for p in pads) + tuple(p[1] for p in pads), dilations, (0,) * rank, 1)
    return arranged(c, x, lambda x: c(op, x, w))


@operation("MaxPool", "AveragePool")
def pool(c: Call) -> Value:
    x = c.tensor("inputs")
    rank = len(x.shape) - 2
    kernel, given = each(c.attribute("pool_size"), rank), c.attribute("strides")
    strides = kernel if given is None else each(given, rank)

    def apply(x: Value) -> Value:
        pads = pads_of(c, x.shape[2:], kernel, strides, (1,) * rank)
        if c.op_type == "MaxPool":
            y, left = padded(c, x, pads, -float("inf"))
            return c(ops.MaxPool(kernel, strides, left), y)
        return c(ops.AveragePool(kernel, strides, c.fixed(pads, "the pads of a mean")), x)

    return arranged(c, x, apply)


# -- products ---------------------------------------------------------------------------------------------------------


@operation("Matmul")
def matmul(c: Call) -> Value:
    return c(ops.MatMul(), c.tensor("x1", c.out), c.tensor("x2", c.out))


@operation("Dot")
def dot(c: Call) -> Value:
    x, y = c.tensor("x1", c.out), c.tensor("x2", c.out)
    if not x.shape or not y.shape:
        return c.mul(x, y)
    if len(y.shape) > 2:
        raise c.unsupported(f"of {x.type} and {y.type}")
    return c(ops.MatMul(), x, y)


@operation("Einsum")
def einsum(c: Call) -> Value:
    xs = [c.as_tensor(x, c.out) for x in c.arg("operands")]
    return c(ops.Einsum(c.attribute("subscripts").replace(" ", "")), *xs)


@layer("EinsumDense")
def einsum_dense(c: Call) -> Value:
    x, w = c.tensor("inputs", c.out), c.as_tensor(c.attribute("kernel"), c.out)
    y = c(ops.Einsum(c.attribute("equation").replace(" ", "")), x, w)
    return c.activated(y if c.attribute("bias") is None else c.add(y, c.as_tensor(c.attribute("bias"), c.out)))


@operation("Tensordot")
def tensordot(c: Call) -> Value:
    x, y, axes = c.tensor("x1", c.out), c.tensor("x2", c.out), c.attribute("axes")
    m, n = len(x.shape), len(y.shape)
    if isinstance(axes, int):
        pairs = [(m - axes + k, k) for k in range(axes)]
    else:
        left, right = (c.axes(a, r) for a, r in zip(axes, (m, n)))
        pairs = list(zip(left, right, strict=True))
    first = [chr(97 + k) for k in range(m)]
    second = [chr(97 + m + k) for k in range(n)]
    for a, b in pairs:
        second[b] = first[a]
    result = [s for k, s in enumerate(first) if k not in {a for a, _ in pairs}]
    result += [s for k, s in enumerate(second) if k not in {b for _, b in pairs}]
    return c(ops.Einsum(f"{''.join(first)},{''.join(second)}->{''.join(result)}"), x, y)


# -- normalisations ---------------------------------------------------------------------------------------------------


def along(c: Call, factor: Value, axes: Sequence[int], rank: int) -> Value:
    """A factor whose axes are some of an operand's, so that it broadcasts to the operand."""
    if len(factor.shape) == rank:
        return factor
    sizes = iter(factor.shape)
    return c.reshape(factor, [next(sizes) if k in axes else 1 for k in range(rank)])


@operation("BatchNorm")
def batch_norm(c: Call) -> Value:
    factors = [c.arg(n) for n in ("scale", "offset", "mean", "variance")]
    return batch_normalized(c, c.tensor("x", c.out), factors)


@layer("BatchNormalization")
def batch_normalization(c: Call) -> Value:
    one = c.operation
    factors = [one.gamma if one.scale else None, one.beta if one.center else None, one.moving_mean, one.moving_variance]
    return c.cast(batch_normalized(c, c.wide(c.tensor("inputs")), factors), c.out)


def batch_normalized(c: Call, x: Value, factors: Sequence[Any]) -> Value:
    """By scale, offset, mean and variance, of which the first two may be missing."""
    axis = c.axis(int(c.attribute("axis")), len(x.shape))
    (channels,) = c.fixed(x.shape[axis : axis + 1], "channels")
    missing = (np.ones(channels, np.float32), np.zeros(channels, np.float32))
    values = [c.as_tensor(missing[k] if f is None else f, x.dtype) for k, f in enumerate(factors)]
    epsilon = float(c.attribute("epsilon"))
    if axis == len(x.shape) - 1 and axis > 1:
        return among_channels_first(c, x, lambda x: c(ops.BatchNorm(epsilon, 1), x, *values))
    return c(ops.BatchNorm(epsilon, axis), x, *values)


@operation("LayerNorm")
def layer_norm(c: Call) -> Value:
    x = c.tensor("x", c.out)
    if c.attribute("rms_scaling"):
        return deviated(c, c.wide(x))
    return normalized(c, ops.LayerNorm, c.wide(x), ("gamma", "beta"))


def deviated(c: Call, x: Value) -> Value:
    """x / √(variance + ε), times gamma: what `rms_scaling` means. No mean is taken away and no beta added."""
    given, axes = c.attribute("epsilon"), sorted(c.axes(c.attribute("axis"), len(x.shape)))
    centre = c.mean(x, axes)
    apart = c.sub(x, centre)
    variance = c.mean(c.mul(apart, apart), axes)
    epsilon = float(c.importer.keras.config.epsilon() if given is None else given)
    y = c.div(x, c(ops.Sqrt(), c.add(variance, epsilon)))
    gamma = c.arg("gamma")
    return c.cast(y if gamma is None else c.mul(y, along(c, c.as_tensor(gamma, x.dtype), axes, len(x.shape))), c.out)


@operation("RMSNorm")
def rms_norm(c: Call) -> Value:
    return normalized(c, ops.RMSNorm, c.wide(c.tensor("x", c.out)), ("scale",))


def normalized(c: Call, kind: Any, x: Value, names: Sequence[str]) -> Value:
    """A normalisation over the last axes; over others, these go last."""
    rank, given = len(x.shape), c.attribute("epsilon")
    epsilon = float(c.importer.keras.config.epsilon() if given is None else given)
    axes = sorted(c.axes(c.attribute("axis"), rank))
    factors = [None if c.arg(n) is None else along(c, c.tensor(n, x.dtype), axes, rank) for n in names]
    order = [k for k in range(rank) if k not in axes] + axes
    moved = [None if v is None else c.transpose(v, order) for v in (x, *factors)]
    y = c(kind(rank - len(axes), epsilon), *moved)
    return c.cast(c.transpose(y, [order.index(k) for k in range(rank)]), c.out)


@operation("Normalize")
def normalize(c: Call) -> Value:
    """x / √max(Σx², ε²), as Keras has it for the Euclidean norm."""
    x, given = c.tensor("x", c.out), c.attribute("epsilon")
    if c.attribute("order") != 2:
        raise c.unsupported(f"order {c.attribute('order')}")
    epsilon = float(c.importer.keras.config.epsilon() if given is None else given)
    axis = c.attribute("axis")
    total = c.sum(c.mul(x, x), c.axes(axis, len(x.shape)))
    limit = max(epsilon * epsilon, float(np.finfo(np.float32).tiny))
    return c.div(x, c(ops.Sqrt(), c(ops.Maximum(), total, limit)))
