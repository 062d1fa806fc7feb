"""Sorting."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_ops.shapes import dim_expr, product
from weft_torch.context import Context
from weft_torch.converters.movement import axis
from weft_torch.registry import op


def _numbers(c: Context, x: Value) -> Value:
    return c.cast(x, dt.uint8) if x.dtype.is_bool else x


def sorted_with_places(c: Context, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    if not x.shape:
        return x, c(ops.Fill(dt.int64, (), 0))
    d = axis(dim, len(x.shape))
    places = c(ops.Argsort(d, descending), _numbers(c, x))
    return c(ops.GatherElements(d), x, places), places


@op("aten.sort", "aten.sort.stable")
def sort(c: Context, x: Value, *options: Any) -> tuple[Value, Value]:
    dim, descending = options[-2:]
    return sorted_with_places(c, x, dim, descending)


@op("aten.argsort", "aten.argsort.stable")
def argsort(c: Context, x: Value, *options: Any) -> Value:
    dim, descending = options[-2:]
    return sorted_with_places(c, x, dim, descending)[1]


@op("aten.topk")
def topk(c: Context, x: Value, k: Any, dim: int, largest: bool, in_order: bool) -> Any:
    if not x.shape:
        return x, c(ops.Fill(dt.int64, (), 0))
    values, places = c.all(ops.TopK(k, axis(dim, len(x.shape)), largest), _numbers(c, x))
    return c.cast(values, x.dtype), places


@op("aten.kthvalue")
def kthvalue(c: Context, x: Value, k: Any, dim: int, keep: bool) -> list[Value]:
    found = sorted_with_places(c, x, dim, False)
    if not x.shape:
        return list(found)
    d = axis(dim, len(x.shape))
    rows = [c.slice(v, d, as_dim(dim_expr(k) - 1), 1) for v in found]
    return [c.reshape(v, c.result_shape(n)) for n, v in enumerate(rows)]


@op("aten.median", "aten.median.dim")
def median(c: Context, x: Value, dim: int = 0, keep: bool = False) -> Any:
    """The lower of the two in the middle; NaN, if there is one."""
    if c.op_type.endswith(".median"):
        flat = c.reshape(x, (product(x.shape),))
        return c.reshape(_median(c, flat, 0)[0], ())
    if not x.shape:
        return x, c(ops.Fill(dt.int64, (), 0))
    found = _median(c, x, axis(dim, len(x.shape)))
    return [c.reshape(v, c.result_shape(k)) for k, v in enumerate(found)]


def _median(c: Context, x: Value, d: int) -> tuple[Value, Value]:
    values, places = sorted_with_places(c, x, d, False)
    middle = as_dim((dim_expr(x.shape[d]) - 1) // 2) if not isinstance(x.shape[d], int) else (x.shape[d] - 1) // 2
    value, place = (c.slice(v, d, middle, 1) for v in (values, places))
    if not x.dtype.is_float:
        return value, place
    nan = c(ops.IsNan(), x)
    some = c(ops.ReduceMax((d,), True), nan)
    first = c(ops.Argmax(d, True), c.cast(nan, dt.uint8))
    return c(ops.Where(), some, float("nan"), value), c(ops.Where(), some, first, place)


__all__ = ["sorted_with_places"]
