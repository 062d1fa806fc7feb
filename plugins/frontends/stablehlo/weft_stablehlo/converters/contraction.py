"""Products of tensors, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir.dialects import stablehlo

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import product
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters.movement import padded
from weft_stablehlo.registry import op


@op("dot_general")
def dot_general(c: Context) -> Any:
    numbers = stablehlo.DotDimensionNumbers(c.op.attributes["dot_dimension_numbers"])
    batch = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
    summed = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
    return complex_product(c, lambda x, y: multiplied(c, x, y, batch, summed))


@op("dot")
def dot(c: Context) -> Any:
    return complex_product(c, lambda x, y: c(ops.MatMul(wider(c, x)), x, y))


def complex_product(c: Context, product_of: Any) -> Any:
    """A product that is linear in both operands, of complex numbers by those of their parts."""
    if not c.is_complex(0):
        return product_of(c.value(0), c.value(1))
    (a, b), (re, im) = c.pair(0), c.pair(1)
    return Complex([c.sub(product_of(a, re), product_of(b, im)), c.add(product_of(a, im), product_of(b, re))])


def wider(c: Context, x: Value) -> DType | None:
    """The dtype of the result where it is another than the operands'."""
    return c.dtype if x.dtype != c.dtype else None


Axes = tuple[tuple[int, ...], tuple[int, ...]]


def multiplied(c: Context, x: Value, y: Value, batch: Axes, summed: Axes) -> Value:
    """The product over some axes of each operand; the result has the axes of the batch, then the others of x, those of
    y."""
    logical = c.dtype.is_bool and x.dtype.is_bool and y.dtype.is_bool
    if logical or x.dtype != y.dtype:
        wanted = dt.int32 if logical else c.dtype
        x, y = c.cast(x, wanted), c.cast(y, wanted)
    if not logical and (c.dtype.is_bool or x.dtype.is_bool):
        raise c.unsupported("of bools and numbers")
    rows = tuple(k for k in range(len(x.shape)) if k not in (*batch[0], *summed[0]))
    columns = tuple(k for k in range(len(y.shape)) if k not in (*batch[1], *summed[1]))
    lead = tuple(x.shape[k] for k in batch[0])
    m, n = tuple(x.shape[k] for k in rows), tuple(y.shape[k] for k in columns)
    length = product(tuple(x.shape[k] for k in summed[0]))
    result = (*lead, *m, *n)
    if c.empty((*result, length)):
        return c(ops.Fill(c.dtype, result))
    x = c.transpose(x, (*batch[0], *rows, *summed[0]))
    y = c.transpose(y, (*batch[1], *summed[1], *columns))
    x = c.reshape(x, (*lead, product(m), length) if len(lead) or len(m) != 1 else (*m, length))
    y = c.reshape(y, (*lead, length, product(n)))
    if logical:  # whether any pair is of two that hold
        return c.reshape(c(ops.NotEqual(), c(ops.MatMul(), x, y), 0), result)
    if c.dtype.bits < x.dtype.bits:
        return c.reshape(c.cast(c(ops.MatMul(), x, y), c.dtype), result)
    return c.reshape(c(ops.MatMul(wider(c, x)), x, y), result)


@op("convolution")
def convolution(c: Context) -> Any:
    return complex_product(c, lambda x, w: convolved(c, x, w, pairs(c)))


def pairs(c: Context) -> list[tuple[int, int]]:
    """What is added in front of each spatial axis and behind it."""
    found = c.integers("padding")
    n = len(numbers_of(c).input_spatial_dimensions)
    return [(found[2 * k], found[2 * k + 1]) for k in range(n)] if found else [(0, 0)] * n


def numbers_of(c: Context) -> Any:
    return stablehlo.ConvDimensionNumbers(c.op.attributes["dimension_numbers"])


def convolved(c: Context, x: Value, w: Value, pads: Sequence[tuple[int, int]]) -> Value:
    numbers = numbers_of(c)
    n = len(numbers.input_spatial_dimensions)
    x = c.transpose(
        x, (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions)
    )
    w = c.transpose(
        w,
        (
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
    )
    strides, apart, dilations = (c.integers(k, (1,) * n) for k in ("window_strides", "lhs_dilation", "rhs_dilation"))
    for k, backward in enumerate(c.integers("window_reversal")):
        w = c.reversed(w, 2 + k) if backward else w
    groups, batches = c.attribute("feature_group_count", 1), c.attribute("batch_group_count", 1)
    if batches > 1:
        # Groups of the batch become groups of the channels.
        size = x.shape[0]
        if not isinstance(size, int):
            raise c.unsupported("groups of a batch whose size is known only at run time")
        split = c.reshape(x, (batches, size // batches, *x.shape[1:]))
        moved = c.transpose(split, (1, 0, *range(2, 3 + n)))
        x = c.reshape(moved, (size // batches, product((batches, x.shape[1])), *x.shape[2:]))
        groups = batches
    placed = numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions
    order = [placed.index(k) for k in range(n + 2)]
    y = c.transpose(summed_windows(c, x, w, strides, pads, apart, dilations, groups), order)
    return c.cast(y, c.dtype)


def summed_windows(
    c: Context,
    x: Value,
    w: Value,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    apart: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """The convolution of x [n, c, in…] with w [oc, c/groups, kernel…]."""
    dtype = c.dtype if x.dtype.bits <= c.dtype.bits else x.dtype
    if x.dtype != w.dtype:
        x, w = c.cast(x, dtype), c.cast(w, dtype)
    n = len(strides)
    if n == 0:
        x, w = c.reshape(x, (*x.shape, 1)), c.reshape(w, (*w.shape, 1))
        y = summed_windows(c, x, w, (1,), [(0, 0)], (1,), (1,), groups)
        return c.reshape(y, y.shape[:2])
    if any(a > 1 for a in apart) or any(p < 0 for pair in pads for p in pair):
        zero = c.number(0, x.dtype)
        low, high = (0, 0, *(p[0] for p in pads)), (0, 0, *(p[1] for p in pads))
        x = padded(c, x, zero, low, high, (0, 0, *(a - 1 for a in apart)))
        pads = [(0, 0)] * n
    given: tuple[Dim, ...] = (*(p[0] for p in pads), *(p[1] for p in pads))
    op = ops.Conv(tuple(strides), given, tuple(dilations), groups, dtype if x.dtype != dtype else None)  # type: ignore[arg-type]
    return c(op, x, w)
