"""Convolution, pooling, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr, product


def window_pads(
    c: Context, size: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Pads of a window operator: given, or by auto_pad from the sizes."""
    auto = c.string("auto_pad", "NOTSET")
    n = len(size)
    if auto in ("NOTSET", ""):
        return c.integers("pads") or (0,) * (2 * n)
    if auto == "VALID":
        return (0,) * (2 * n)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise c.error(f"auto_pad is '{auto}', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    before, after = [], []
    for d, k, s, dilation in zip(size, kernel, strides, dilations):
        if not isinstance(k, int) or (not isinstance(d, int) and s != 1):
            raise c.unsupported(f"auto_pad {auto} over sizes known only at run time")
        span = (k - 1) * dilation + 1
        # With stride 1 the padding does not depend on the size.
        total = max((-(-d // s) - 1) * s + span - d, 0) if isinstance(d, int) else span - 1
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (*before, *after)


def add_bias(c: Context, y: Value, bias: Value | None) -> Value:
    """A bias per channel added to y [n, c, …]."""
    if bias is None:
        return y
    return c.add(y, c.reshape(bias, (1, bias.shape[0], *(1 for _ in y.shape[2:]))))


@onnx_op("Conv")
def conv(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    n = len(x.shape) - 2
    strides, dilations = c.integers("strides") or (1,) * n, c.integers("dilations") or (1,) * n
    pads = window_pads(c, x.shape[2:], w.shape[2:], strides, dilations)
    return add_bias(c, c(ops.Conv(strides, pads, dilations, c.integer("group", 1)), x, w), c.optional(2))


@onnx_op("ConvTranspose")
def conv_transpose(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    n = len(x.shape) - 2
    strides, dilations = c.integers("strides") or (1,) * n, c.integers("dilations") or (1,) * n
    extra, wanted = c.integers("output_padding") or (0,) * n, c.integers("output_shape")
    auto = c.string("auto_pad", "NOTSET")
    pads = c.integers("pads") or (0,) * (2 * n)
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        before: list[int] = []
        after: list[int] = []
        for k, (d, size) in enumerate(zip(x.shape[2:], w.shape[2:])):
            if not isinstance(size, int) or not isinstance(d, int):
                raise c.unsupported("output_shape over sizes known only at run time")
            span = (size - 1) * dilations[k] + 1
            # Without an output_shape the output is stride times the input.
            total = (
                span + extra[k] - strides[k] if wanted is None else strides[k] * (d - 1) + extra[k] + span - wanted[k]
            )
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        pads = (*before, *after)
    elif auto == "VALID":
        pads = (0,) * (2 * n)
    return add_bias(
        c, c(ops.ConvTranspose(strides, pads, dilations, extra, c.integer("group", 1)), x, w), c.optional(2)
    )


def pool(c: Context, x: Value) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
    """Kernel, strides, pads, dilations and ceil_mode of a pool."""
    kernel = c.integers("kernel_shape") or ()
    strides, dilations = c.integers("strides") or (1,) * len(kernel), c.integers("dilations") or (1,) * len(kernel)
    return kernel, strides, window_pads(c, x.shape[2:], kernel, strides, dilations), dilations, c.flag("ceil_mode")


@onnx_op("AveragePool")
def average_pool(c: Context) -> Value:
    x = c.value(0)
    return c(ops.AveragePool(*pool(c, x), c.flag("count_include_pad")), x)


@onnx_op("LpPool")
def lp_pool(c: Context) -> Value:
    x = c.value(0)
    return c(ops.LpPool(*pool(c, x), c.integer("p", 2)), x)


@onnx_op("MaxPool")
def max_pool(c: Context) -> Any:
    x = c.value(0)
    if len(c.node.output) > 1 and c.node.output[1]:
        return c.all(ops.MaxPoolWithIndices(*pool(c, x), c.flag("storage_order")), x)
    return c(ops.MaxPool(*pool(c, x)), x)


@onnx_op("MaxUnpool")
def max_unpool(c: Context) -> Value:
    x = c.value(0)
    kernel = c.integers("kernel_shape") or ()
    n = len(kernel)
    strides, pads = c.integers("strides") or (1,) * n, c.integers("pads") or (0,) * (2 * n)
    natural = tuple(
        as_dim((d - 1) * s + k - pads[j] - pads[j + n]) for j, (d, s, k) in enumerate(zip(x.shape[2:], strides, kernel))
    )
    shape = (*x.shape[:2], *natural)
    indices = c.within(c.value(1), 0, as_dim(dim_expr(product(shape)) - 1), "index")
    wanted = c.dims(2, "the output shape")
    if wanted is not None and tuple(wanted) != shape:
        # Indices are flat in the natural shape.
        y = c(ops.MaxUnpool(shape), x, indices)
        return c(ops.Pad((*([0] * len(shape)), *(as_dim(dim_expr(w) - d) for w, d in zip(wanted, shape)))), y)
    return c(ops.MaxUnpool(shape), x, indices)


@onnx_op("GlobalLpPool")
def global_lp_pool(c: Context) -> Value:
    x, p = c.value(0), c.integer("p", 2)
    size = tuple(d for d in x.shape[2:] if isinstance(d, int))
    if len(size) < len(x.shape) - 2:
        raise c.unsupported("sizes known only at run time")
    return c(ops.LpPool(size, p=p), x)


@onnx_op("Col2Im")
def col2im(c: Context) -> Value:
    image, block = c.dims(1, "the image's shape"), c.dims(2, "the block's shape")
    assert image is not None and block is not None
    op = ops.Col2Im(image, block, c.integers("strides") or (), c.integers("pads") or (), c.integers("dilations") or ())
    x = c.value(0)
    # Where the sizes are known only at run time, x's number of windows is what they give.
    return c(op, c.reshape(x, (*x.shape[:2], product(op.windows()))))


@onnx_op("GlobalAveragePool")
def global_average_pool(c: Context) -> Value:
    x = c.value(0)
    return c.mean(x, range(2, len(x.shape)))


@onnx_op("GlobalMaxPool")
def global_max_pool(c: Context) -> Value:
    x = c.value(0)
    return c.max(x, range(2, len(x.shape)))


# -- normalisation ----------------------------------------------------------------------------------------------------


@onnx_op("BatchNormalization")
def batch_normalization(c: Context) -> Any:
    epsilon = c.real("epsilon", 1e-5)
    if not c.flag("training_mode"):
        if c.version < 14 and any(c.node.output[1:]):
            raise c.unsupported("training mode before version 14")
        return c(ops.BatchNorm(epsilon), *(c.value(k) for k in range(5)))
    # Training: this batch's own moments, and running means of them.
    x, scale, bias, mean, variance = (c.value(k) for k in range(5))
    axes = (0, *range(2, len(x.shape)))
    now = c.mean(x, axes)
    low = c.sub(x, now)
    moment = c.mean(c.mul(low, low), axes)
    here = [c.reshape(v, (x.shape[1],)) for v in (now, moment)]
    y = c(ops.BatchNorm(epsilon), x, scale, bias, *here)
    momentum = c.real("momentum", 0.9)
    # Constants stay visible, and are not computed with at import: a training makes them states.
    running = [c.builder.add(ops.Identity(), v) if v.constant is not None else v for v in (mean, variance)]
    return y, *(
        c.add(c.mul(old, momentum), c.mul(c.cast(new, old.dtype), 1 - momentum)) for old, new in zip(running, here)
    )


@onnx_op("LayerNormalization")
def layer_normalization(c: Context) -> Any:
    axis, epsilon = c.integer("axis", -1), c.real("epsilon", 1e-5)
    x = c.value(0)
    y = c(ops.LayerNorm(axis, epsilon), x, c.optional(1), c.optional(2))
    if not any(c.node.output[1:]):
        return y
    wide, axes = c.wide(x), range(axis_of(axis, len(x.shape)), len(x.shape))
    mean = c.mean(wide, axes)
    low = c.sub(wide, mean)
    return y, mean, c(ops.Reciprocal(), c(ops.Sqrt(), c.add(c.mean(c.mul(low, low), axes), epsilon)))


@onnx_op("RMSNormalization")
def rms_normalization(c: Context) -> Value:
    return c(ops.RMSNorm(c.integer("axis", -1), c.real("epsilon", 1e-5)), c.value(0), c.value(1))


@onnx_op("InstanceNormalization")
def instance_normalization(c: Context) -> Value:
    return c(ops.InstanceNorm(c.real("epsilon", 1e-5)), *(c.value(k) for k in range(3)))


@onnx_op("GroupNormalization", versions=(21, 10_000))
def group_normalization(c: Context) -> Value:
    return c(ops.GroupNorm(c.real("epsilon", 1e-5), c.integer("num_groups")), *(c.value(k) for k in range(3)))


@onnx_op("LRN")
def lrn(c: Context) -> Value:
    return c(ops.LRN(c.integer("size"), c.real("alpha", 1e-4), c.real("beta", 0.75), c.real("bias", 1.0)), c.value(0))


@onnx_op("LpNormalization")
def lp_normalization(c: Context) -> Value:
    return c(ops.LpNorm(c.integer("axis", -1), c.integer("p", 2)), c.value(0))


@onnx_op("Hardmax", versions=(13, 10_000))
def hardmax(c: Context) -> Value:
    return c(ops.Hardmax(c.integer("axis", -1)), c.value(0))


@onnx_op("Softmax", "LogSoftmax", versions=(13, 10_000))
def softmax(c: Context) -> Value:
    op = ops.Softmax if c.op_type == "Softmax" else ops.LogSoftmax
    return c(op(c.integer("axis", -1)), c.value(0))


@onnx_op("Softmax", "LogSoftmax", "Hardmax", versions=(1, 12))
def flat_softmax(c: Context) -> Value:
    """Before version 13: over all axes from `axis` on, as one."""
    op = {"Softmax": ops.Softmax, "LogSoftmax": ops.LogSoftmax, "Hardmax": ops.Hardmax}[c.op_type]
    x = c.value(0)
    axis = axis_of(c.integer("axis", 1), len(x.shape)) if len(x.shape) else 0
    flat = c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return c.reshape(c(op(1), flat), x.shape)
