"""Sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_ops.shapes import dim_expr, product
from weft_torch.context import Context
from weft_torch.converters.indexing import nonzero_places
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


@op("aten.nanmedian", "aten.nanmedian.dim")
def nanmedian(c: Context, x: Value, dim: int = 0, keep: bool = False) -> Any:
    """The lower of the two in the middle of those that are numbers."""
    alone = c.op_type.endswith(".nanmedian")
    if not x.shape:
        return x if alone else (x, c(ops.Fill(dt.int64, (), 0)))
    y = c.reshape(x, (product(x.shape),)) if alone else x
    d = 0 if alone else axis(dim, len(x.shape))
    values, places = sorted_with_places(c, y, d, False)
    if not x.dtype.is_float:
        raise c.unsupported("integers")
    some = c(ops.ReduceSum((d,), True), c.cast(c(ops.LogicalNot(), c(ops.IsNan(), y)), dt.int64))
    middle = c(ops.Maximum(), c(ops.RightShift(), c.sub(some, 1), 1), 0)
    value, place = (c(ops.GatherElements(d), v, middle) for v in (values, places))
    if alone:
        return c.reshape(value, ())
    nothing = c(ops.Equal(), some, 0)
    place = c(ops.Where(), nothing, 0, place)
    return [c.reshape(v, c.result_shape(k)) for k, v in enumerate((value, place))]


@op("aten._unique2", "aten.unique_consecutive")
def unique(c: Context, x: Value, *options: Any) -> list[Value]:
    """Of sorted elements, or as they are, those that differ from the one before; NaN differs from all."""
    together = c.op_type.endswith("consecutive")
    if together and options[-1] is not None and len(x.shape) != 1:
        raise c.unsupported("slices along an axis")
    # What is not asked for has no elements, or as many as if it were.
    inverse, counts = (not any(isinstance(d, int) and d == 0 for d in c.fake(k).shape) for k in (1, 2))
    n = product(x.shape)
    flat = c.reshape(x, (n,))
    k = c(ops.Iota(dt.int64, (n,)))
    values, places = (flat, k) if together else sorted_with_places(c, flat, 0, False)
    before = c.gather(values, c(ops.Maximum(), c.sub(k, 1), 0), 0)
    new = c(ops.LogicalOr(), c(ops.Equal(), k, 0), c(ops.NotEqual(), values, before))
    first = c.pick(nonzero_places(c, new), 0, 0)
    group = c.sub(c(ops.CumSum(0), c.cast(new, dt.int64)), 1)
    nothing = c(ops.Fill(dt.int64, (0,), 0))
    found = [c.gather(values, first, 0), nothing, nothing]
    if inverse:
        zeros = c(ops.Fill(dt.int64, (n,), 0))
        found[1] = c.reshape(c(ops.ScatterElements(0), zeros, places, group), x.shape)
    if counts:
        zeros = c(ops.Fill(dt.int64, found[0].shape, 0))
        found[2] = c(ops.ScatterElements(0, "add"), zeros, group, c(ops.Fill(dt.int64, (n,), 1)))
    return found


LONGEST = 1024
"""Elements along an axis whose prefixes are all looked at."""


def _prefixes(c: Context, x: Value, d: int, fill: float) -> Value:
    """The prefixes of `x` along an axis, as a last axis, filled up with a value."""
    n = x.shape[d]
    if not isinstance(n, int) or n > LONGEST:
        raise c.unsupported(f"an axis of {n} elements, at most {LONGEST}")
    order = [*(k for k in range(len(x.shape)) if k != d), d]
    rows = c.transpose(x, order)
    rows = c.reshape(rows, (*rows.shape[:-1], 1, n))
    held = c.builder.constant(np.tril(np.ones((n, n), bool)))
    return c(ops.Where(), held, rows, c.number(fill, x.dtype))


def _back(c: Context, y: Value, d: int) -> Value:
    rank = len(y.shape)
    return c.transpose(y, (*range(d), rank - 1, *range(d, rank - 1)))


@op("aten.cummax", "aten.cummin")
def cumulative_extreme(c: Context, x: Value, dim: int) -> Any:
    if not x.shape:
        return x, c(ops.Fill(dt.int64, (), 0))
    if not x.dtype.is_float:
        raise c.unsupported("integers")
    d, greatest = axis(dim, len(x.shape)), "max" in c.op_type
    if c.fakes[0].shape[d] == 0:
        return x, c(ops.Fill(dt.int64, x.shape, 0))
    # A number that is as far as any comes first where all of a prefix are infinite: its own place counts then.
    rows = _prefixes(c, x, d, -math.inf if greatest else math.inf)
    kind, place = (ops.ReduceMax, ops.Argmax) if greatest else (ops.ReduceMin, ops.Argmin)
    n = x.shape[d]
    values, places = c(kind((-1,), False), rows), c(place(len(rows.shape) - 1, False, True), rows)
    places = c(ops.Minimum(), places, c(ops.Iota(dt.int64, (n,))))
    return _back(c, values, d), _back(c, places, d)


@op("aten.logcumsumexp", "aten._logcumsumexp")
def logcumsumexp(c: Context, x: Value, dim: int) -> Value:
    if not x.shape:
        return x
    d = axis(dim, len(x.shape))
    rows = _prefixes(c, c.wide(x), d, -math.inf)
    greatest = c(ops.ReduceMax((-1,), True), rows)
    finite = c(ops.Where(), c(ops.IsInf(), greatest), 0.0, greatest)
    total = c(ops.ReduceSum((-1,), True), c(ops.Exp(), c.sub(rows, finite)))
    found = c.add(c(ops.Log(), total), finite)
    return c.cast(_back(c, c.reshape(found, found.shape[:-1]), d), x.dtype)


__all__ = ["sorted_with_places"]
