"""Convolution, pooling, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.graph.nodes import Value
from weft.ops.shapes import axis_of, product
from weft.tensor.language import Dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


def window_pads(c: Context, size: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
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


@onnx_op("AveragePool")
def average_pool(c: Context) -> Value:
    x = c.value(0)
    kernel = c.integers("kernel_shape") or ()
    strides, dilations = c.integers("strides") or (1,) * len(kernel), c.integers("dilations") or (1,) * len(kernel)
    pads = window_pads(c, x.shape[2:], kernel, strides, dilations)
    return c(ops.AveragePool(kernel, strides, pads, dilations, c.flag("ceil_mode"), c.flag("count_include_pad")), x)  # type: ignore[no-any-return]


@onnx_op("MaxPool")
def max_pool(c: Context) -> Value:
    x = c.value(0)
    if len(c.node.output) > 1 and c.node.output[1]:
        raise c.unsupported("indices of the greatest elements")
    kernel = c.integers("kernel_shape") or ()
    strides, dilations = c.integers("strides") or (1,) * len(kernel), c.integers("dilations") or (1,) * len(kernel)
    pads = window_pads(c, x.shape[2:], kernel, strides, dilations)
    return c(ops.MaxPool(kernel, strides, pads, dilations, c.flag("ceil_mode")), x)  # type: ignore[no-any-return]


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
def batch_normalization(c: Context) -> Value:
    if c.flag("training_mode") or (c.version < 14 and len([o for o in c.node.output if o]) > 1):
        raise c.unsupported("training mode")
    return c(ops.BatchNorm(c.real("epsilon", 1e-5)), *(c.value(k) for k in range(5)))  # type: ignore[no-any-return]


@onnx_op("LayerNormalization")
def layer_normalization(c: Context) -> Value:
    if any(c.node.output[1:]):
        raise c.unsupported("mean and deviation as outputs")
    return c(ops.LayerNorm(c.integer("axis", -1), c.real("epsilon", 1e-5)), c.value(0), c.optional(1), c.optional(2))  # type: ignore[no-any-return]


@onnx_op("Softmax", "LogSoftmax", versions=(13, 10_000))
def softmax(c: Context) -> Value:
    op = ops.Softmax if c.op_type == "Softmax" else ops.LogSoftmax
    return c(op(c.integer("axis", -1)), c.value(0))  # type: ignore[no-any-return]


@onnx_op("Softmax", "LogSoftmax", versions=(1, 12))
def flat_softmax(c: Context) -> Value:
    """Before version 13: over all axes from `axis` on, as one."""
    op = ops.Softmax if c.op_type == "Softmax" else ops.LogSoftmax
    x = c.value(0)
    axis = axis_of(c.integer("axis", 1), len(x.shape)) if len(x.shape) else 0
    flat = c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return c.reshape(c(op(1), flat), x.shape)
