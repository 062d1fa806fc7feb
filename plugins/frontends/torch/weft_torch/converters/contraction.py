"""Products of matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import product
from weft_torch.context import Context, Number
from weft_torch.converters.reduction import norm
from weft_torch.registry import op


@op("aten.linear")
def linear(c: Context, x: Value, w: Value, bias: Value | None) -> Value:
    y = c(ops.MatMul(), x, c.transpose(w, (1, 0)) if len(w.shape) == 2 else w)
    return y if bias is None else c.add(y, bias)


@op("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot", "aten.inner")
def matmul(c: Context, x: Value, y: Value) -> Value:
    if c.op_type.endswith(".inner"):
        if not x.shape or not y.shape:
            return c.mul(x, y)
        rows = c.reshape(y, (product(y.shape[:-1]), y.shape[-1]))
        return c.reshape(c(ops.MatMul(), x, c.transpose(rows, (1, 0))), c.result_shape())
    return c(ops.MatMul(), x, y)


def scaled(c: Context, x: Value, factor: Number) -> Value:
    return x if factor == 1 else c.mul(x, c.to(factor, x.dtype))


@op("aten.addmm", "aten.addmv", "aten.baddbmm")
def addmm(c: Context, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    y = scaled(c, c(ops.MatMul(), a, b), alpha)
    if beta == 0:  # what is in x, NaN too, does not count
        return y
    return c.add(scaled(c, x, beta), y)


@op("aten._scaled_mm")
def scaled_mm(
    c: Context, x: Value, y: Value, scale: Value, other: Value, bias: Value | None, result: Value | None, *_: Any
) -> Value:
    """A product of 8-bit floats with a scale for each tensor, or for each row and column."""
    rows, columns = x.shape[0], y.shape[1]
    for given, whole in ((scale, (rows, 1)), (other, (1, columns))):
        if given.dtype != dt.float32 or (product(given.shape) != 1 and tuple(given.shape) != whole):
            raise c.unsupported("scales of blocks")
    a, b = (c.cast(v, dt.float32) for v in (x, y))
    scales = [c.reshape(s, ()) if product(s.shape) == 1 else s for s in (scale, other)]
    found = c(ops.MatMul(), c.mul(a, scales[0]), c.mul(b, scales[1]))
    if bias is not None:
        found = c.add(found, c.cast(bias, dt.float32))
    if result is not None and c.result_dtype().bits == 8:
        found = c.div(found, c.reshape(result, ()))
    return c.cast(found, c.result_dtype())


@op("aten._scaled_mm_v2")
def scaled_mm_by_recipes(c: Context, x: Value, y: Value, *given: Any) -> Value:
    """As above where a recipe is one scale for a tensor (0) or one for each row (1)."""
    scales, recipes, _, others, other_recipes, _, bias, *_ = given
    if not {*recipes, *other_recipes} <= {0, 1} or len(scales) != 1 or len(others) != 1:
        raise c.unsupported("scales of blocks")
    return scaled_mm(c, x, y, scales[0], others[0], bias, None)


@op("aten.addr")
def addr(c: Context, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    outer = scaled(c, c.mul(c.reshape(a, (*a.shape, 1)), b), alpha)
    return outer if beta == 0 else c.add(scaled(c, x, beta), outer)


@op("aten.addbmm")
def addbmm(c: Context, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    y = scaled(c, c.sum(c(ops.MatMul(), a, b), (0,), False), alpha)
    return y if beta == 0 else c.add(scaled(c, x, beta), y)


@op("aten.bilinear")
def bilinear(c: Context, x: Value, y: Value, w: Value, bias: Value | None) -> Value:
    rows = tuple(c.reshape(v, (product(v.shape[:-1]), v.shape[-1])) for v in (x, y))
    found = c(ops.Einsum("bn,anm,bm->ba"), rows[0], w, rows[1])
    found = c.reshape(found, c.result_shape())
    return found if bias is None else c.add(found, bias)


@op("aten._trilinear")
def trilinear(c: Context, x: Value, y: Value, z: Value, *given: Any) -> Value:
    """The product of three tensors with axes put in, summed along some."""
    *axes, summed, _ = given
    if product(c.result_shape()) == 0:  # PyTorch gives nothing where every tensor has the axis put in that is unrolled
        return c(ops.Fill(c.result_dtype(), c.result_shape(), 0))
    spread = []
    for v, new in zip((x, y, z), axes, strict=True):
        for d in sorted(new):
            v = c.reshape(v, (*v.shape[:d], 1, *v.shape[d:]))
        spread.append(v)
    found = c.mul(c.mul(spread[0], spread[1]), spread[2])
    return c.sum(found, tuple(summed), False) if summed else found


@op("aten._cdist_forward")
def cdist(c: Context, x: Value, y: Value, p: float, mode: int | None) -> Value:
    rows = c.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    columns = c.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return norm(c, c.sub(rows, columns), p, (-1,))


@op("aten._pdist_forward")
def pdist(c: Context, x: Value, p: float) -> Value:
    n = c.static(x.shape[0], "a number of rows")
    c.affordable(n * n, "pairs of rows")
    first, second = (c.gather(x, c.builder.constant(k), 0) for k in np.triu_indices(n, 1))
    return norm(c, c.sub(first, second), p, (-1,))


# -- convolutions -----------------------------------------------------------------------------------------------------


def _each(values: Sequence[int] | int, n: int) -> tuple[int, ...]:
    """A number for each spatial axis; one may stand for all."""
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * n if len(given) == 1 else given


def _batched(c: Context, x: Value, n: int) -> tuple[Value, bool]:
    """The operand with a batch axis, and whether it had none."""
    return (c.reshape(x, (1, *x.shape)), True) if len(x.shape) == n + 1 else (x, False)


def _finish(c: Context, y: Value, bias: Value | None, alone: bool) -> Value:
    if bias is not None:
        y = c.add(y, c.reshape(bias, (bias.shape[0], *([1] * (len(y.shape) - 2)))))
    return c.reshape(y, y.shape[1:]) if alone else y


def convolved(
    c: Context, x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    x, alone = _batched(c, x, len(w.shape) - 2)
    return _finish(c, c(_conv(c, w, stride, padding, dilation, groups), x, w), bias, alone)


def _conv(c: Context, w: Value, stride: Any, padding: Any, dilation: Any, groups: int) -> ops.Conv:
    n = len(w.shape) - 2
    strides, dilations = _each(stride, n), _each(dilation, n)
    if isinstance(padding, str):
        spans = [d * (_static(c, k) - 1) if padding == "same" else 0 for d, k in zip(dilations, w.shape[2:])]
        pads = (*(s // 2 for s in spans), *(s - s // 2 for s in spans))
    else:
        pads = _each(padding, n) * 2
    return ops.Conv(strides, c.statics(pads, "padding"), dilations, groups)


def _static(c: Context, d: Dim) -> int:
    return c.static(d, "a kernel size")


@op("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv(
    c: Context, x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    return convolved(c, x, w, bias, stride, padding, dilation, groups)


@op("aten.conv_transpose1d", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    extra: Any,
    groups: int,
    dilation: Any,
) -> Value:
    x, alone = _batched(c, x, len(w.shape) - 2)
    return _finish(c, c(_transposed_conv(w, stride, padding, extra, groups, dilation), x, w), bias, alone)


def _transposed_conv(w: Value, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any) -> ops.ConvTranspose:
    n = len(w.shape) - 2
    return ops.ConvTranspose(_each(stride, n), _each(padding, n) * 2, _each(dilation, n), _each(extra, n), groups)


@op("aten.convolution", "aten._convolution", "aten._convolution.deprecated")
def convolution(
    c: Context, x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: int, *_: Any,
) -> Value:  # fmt: skip
    if transposed:
        return conv_transpose(c, x, w, bias, stride, padding, extra, groups, dilation)
    return convolved(c, x, w, bias, stride, padding, dilation, groups)


@op("aten.convolution_backward")
def convolution_backward(
    c: Context, gradient: Value, x: Value, w: Value, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, extra: Any, groups: int, wanted: Sequence[bool],
) -> Sequence[Value | None]:  # fmt: skip
    """By the operand, the weights and the bias; None: not wanted."""
    made = (
        _transposed_conv(w, stride, padding, extra, groups, dilation)
        if transposed
        else _conv(c, w, stride, padding, dilation, groups)
    )
    by_x, by_w = c.gradients(made, (x, w), gradient)
    axes = (0, *range(2, len(gradient.shape)))
    by_bias = c.cast(c.sum(c.wide(gradient), axes, False), gradient.dtype) if wanted[2] else None
    return by_x if wanted[0] else None, by_w if wanted[1] else None, by_bias


@op("aten.conv_tbc")
def conv_tbc(c: Context, x: Value, w: Value, bias: Value, pad: int) -> Value:
    """Of [time, batch, channels], with weights [time, channels, filters]."""
    y = convolved(c, c.transpose(x, (1, 2, 0)), c.transpose(w, (2, 1, 0)), bias, 1, pad, 1, 1)
    return c.transpose(y, (2, 0, 1))


__all__ = ["convolved"]
