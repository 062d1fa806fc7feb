"""Reductions and scans along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import product
from weft_torch.context import Context, Number
from weft_torch.converters.movement import axis
from weft_torch.registry import op


def axes_of(x: Value, dims: Any) -> tuple[int, ...]:
    """Axes as reductions take them: None or none given for all."""
    rank = len(x.shape)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    found = [dims] if isinstance(dims, int) else list(dims)
    return tuple(axis(d, rank) for d in found) if rank else ()


def number_of(c: Context, x: Value, axes: Sequence[int]) -> Dim:
    """How many elements are reduced to one."""
    return product([x.shape[a] for a in axes])


def _as_value(c: Context, count: Dim, dtype: dt.DType) -> Value:
    return c.cast(c.dim(count), dtype)


@op("aten.sum", "aten.sum.dim_IntList")
def sum_(c: Context, x: Value, dims: Any = None, keep: Any = False, dtype: Any = None) -> Value:
    if c.op_type.endswith(".sum"):  # whose second argument is the dtype
        dims, keep = None, False
    return c(ops.ReduceSum(axes_of(x, dims), bool(keep)), c.cast(x, c.result_dtype()))


@op("prims.sum", "prims.prod")
def reduced(c: Context, x: Value, dims: Any, *_: Any) -> Value:
    kind = ops.ReduceSum if c.op_type.endswith("sum") else ops.ReduceProd
    return c(kind(axes_of(x, dims), False), c.cast(x, c.result_dtype()))


@op("aten.nansum")
def nansum(c: Context, x: Value, dims: Any, keep: bool, dtype: Any) -> Value:
    x = c.cast(x, c.result_dtype())
    if x.dtype.is_float:
        x = c(ops.Where(), c(ops.IsNan(), x), 0, x)
    return c(ops.ReduceSum(axes_of(x, dims), keep), x)


@op("aten.mean", "aten.mean.dim")
def mean(c: Context, x: Value, dims: Any = None, keep: Any = False, dtype: Any = None) -> Value:
    if c.op_type.endswith(".mean"):
        dims, keep = None, False
    return c(ops.ReduceMean(axes_of(x, dims), bool(keep)), c.cast(x, c.result_dtype()))


@op("aten.prod", "aten.prod.dim_int")
def prod(c: Context, x: Value, dim: Any = None, keep: Any = False, dtype: Any = None) -> Value:
    if c.op_type.endswith(".prod"):
        dim, keep = None, False
    return c(ops.ReduceProd(axes_of(x, dim), bool(keep)), c.cast(x, c.result_dtype()))


@op("aten.amax", "aten.amin")
def extreme(c: Context, x: Value, dims: Any, keep: bool) -> Value:
    return c((ops.ReduceMax if "max" in c.op_type else ops.ReduceMin)(axes_of(x, dims), keep), x)


@op("aten.max", "aten.min")
def extreme_of_all(c: Context, x: Value) -> Value:
    return c((ops.ReduceMax if "max" in c.op_type else ops.ReduceMin)(None, False), x)


@op("aten.max.dim", "aten.min.dim")
def extreme_with_place(c: Context, x: Value, dim: int, keep: bool) -> tuple[Value, Value]:
    greatest = "max" in c.op_type
    if not x.shape:
        return x, c(ops.Fill(dt.int64, (), 0))
    d = axis(dim, len(x.shape))
    return (
        c((ops.ReduceMax if greatest else ops.ReduceMin)((d,), keep), x),
        c((ops.Argmax if greatest else ops.Argmin)(d, keep), _ordered(c, x)),
    )


def _ordered(c: Context, x: Value) -> Value:
    return c.cast(x, dt.uint8) if x.dtype.is_bool else x


@op("aten.aminmax")
def aminmax(c: Context, x: Value, dim: int | None, keep: bool) -> tuple[Value, Value]:
    axes = axes_of(x, dim)
    return c(ops.ReduceMin(axes, keep), x), c(ops.ReduceMax(axes, keep), x)


@op("aten.argmax", "aten.argmin")
def arg(c: Context, x: Value, dim: int | None, keep: bool) -> Value:
    make = ops.Argmax if "max" in c.op_type else ops.Argmin
    if not x.shape:
        return c(ops.Fill(dt.int64, (), 0))
    if dim is None:
        found = c(make(0, False), c.reshape(_ordered(c, x), (product(x.shape),)))
        return c.reshape(found, c.result_shape())
    return c(make(axis(dim, len(x.shape)), keep), _ordered(c, x))


@op("aten.any", "aten.any.dim", "aten.any.dims", "aten.all", "aten.all.dim", "aten.all.dims")
def truth(c: Context, x: Value, dims: Any = None, keep: bool = False) -> Value:
    reduced = (ops.ReduceMax if ".any" in c.op_type else ops.ReduceMin)(axes_of(x, dims), keep)
    return c.cast(c(reduced, c.cast(x, dt.bool_)), c.result_dtype())


@op("aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.std_mean.correction")
def variance(c: Context, x: Value, dims: Any, correction: Number | None = None, keep: bool = False) -> Any:
    name = c.op_type.split(".")[1]
    axes, wide = axes_of(x, dims), c.wide(x)
    centre = c(ops.ReduceMean(axes, True), wide)
    apart = c.sub(wide, centre)
    total = c(ops.ReduceSum(axes, keep), c.mul(apart, apart))
    count, less = number_of(c, x, axes), 1 if correction is None else correction
    if isinstance(count, int):
        found = c.div(total, c.number(max(count - less, 0), wide.dtype))
    else:
        found = c.div(total, c(ops.Maximum(), c.sub(_as_value(c, count, wide.dtype), less), 0))
    if "std" in name:
        found = smooth_at_zero(c, found, lambda y: c(ops.Sqrt(), y))
    found = c.cast(found, c.result_dtype())
    if not name.endswith("_mean"):
        return found
    return found, c.cast(centre if keep else c.reshape(centre, found.shape), c.result_dtype(1))


@op("aten.linalg_vector_norm", "aten.norm.Scalar", "aten.norm.ScalarOpt_dim")
def vector_norm(c: Context, x: Value, order: Number | None, dims: Any = None, keep: bool = False, *_: Any) -> Value:
    p, axes = 2.0 if order is None else float(order), axes_of(x, dims)
    wide = c.wide(c.cast(x, c.result_dtype()))
    return c.cast(norm(c, wide, p, axes, keep), c.result_dtype())


def norm(c: Context, x: Value, p: float, axes: tuple[int, ...] | None, keep: bool = False) -> Value:
    """The p-norm over axes; of any order, also of one that is no norm. At 0 its gradient is 0."""
    size = c(ops.Absolute(), x)
    if p == math.inf:
        return c(ops.ReduceMax(axes, keep), size)
    if p == -math.inf:
        return c(ops.ReduceMin(axes, keep), size)
    if p == 0:
        return c(ops.ReduceSum(axes, keep), c.cast(c(ops.NotEqual(), size, 0), size.dtype))
    if p == 1:
        return c(ops.ReduceSum(axes, keep), size)
    if p == 2:
        return smooth_at_zero(c, c(ops.ReduceSum(axes, keep), c.mul(size, size)), lambda y: c(ops.Sqrt(), y))
    powers = power_of(c, size, p) if 0 < p < 1 else c(ops.Power(), size, c.number(p, size.dtype))
    total = c(ops.ReduceSum(axes, keep), powers)
    return power_of(c, total, 1 / p) if p > 0 else c(ops.Power(), total, c.number(1 / p, size.dtype))


def power_of(c: Context, x: Value, exponent: float) -> Value:
    """x to a positive power, whose gradient at 0 is 0."""
    return smooth_at_zero(c, x, lambda y: c(ops.Power(), y, c.number(exponent, y.dtype)))


def smooth_at_zero(c: Context, x: Value, function: Callable[[Value], Value]) -> Value:
    """A function of x that is 0 at 0 and has no finite gradient there, with the gradient 0: the middle of those that a
    norm has to all sides."""
    none = c(ops.Equal(), x, 0.0)
    return c(ops.Where(), none, 0.0, function(c(ops.Where(), none, 1.0, x)))


@op("aten.logsumexp")
def logsumexp(c: Context, x: Value, dims: Any, keep: bool) -> Value:
    axes = axes_of(x, dims)
    wide = c.wide(c.cast(x, c.result_dtype()))
    greatest = c(ops.ReduceMax(axes, True), wide)
    finite = c(ops.Where(), c(ops.IsInf(), greatest), 0.0, greatest)  # else the difference would be NaN
    total = c(ops.ReduceSum(axes, True), c(ops.Exp(), c.sub(wide, finite)))
    found = c.add(c(ops.Log(), total), finite)
    return c.cast(c.reshape(found, c.result_shape()), c.result_dtype())


@op("aten.cumsum", "aten.cumprod")
def cumulative(c: Context, x: Value, dim: int, dtype: Any) -> Value:
    x = c.cast(x, c.result_dtype())
    if not x.shape:
        return x
    return c((ops.CumSum if "sum" in c.op_type else ops.CumProd)(axis(dim, len(x.shape))), x)


@op("aten.count_nonzero", "aten.count_nonzero.dim_IntList")
def count_nonzero(c: Context, x: Value, dims: Any = None) -> Value:
    return c(ops.ReduceSum(axes_of(x, dims), False), c.cast(c.cast(x, dt.bool_), dt.int64))


@op("aten._softmax", "aten.softmax.int", "aten._log_softmax", "aten.log_softmax.int", "aten._safe_softmax")
def softmax(c: Context, x: Value, dim: int, *_: Any) -> Value:
    x = c.cast(x, c.result_dtype())
    log = "log_softmax" in c.op_type
    if not x.shape:
        return c(ops.Where(), c(ops.IsNan(), x), x, 0.0 if log else 1.0)
    d = axis(dim, len(x.shape))
    if "_safe" not in c.op_type:
        return c((ops.LogSoftmax if log else ops.Softmax)(d), x)
    dead = c(ops.Equal(), c(ops.ReduceMax((d,), True), x), -math.inf)
    # What is not taken must not be NaN, or its gradient were.
    return c(ops.Where(), dead, 0.0, c(ops.Softmax(d), c(ops.Where(), dead, 0.0, x)))


@op("aten.numel", "aten.sym_numel")
def numel(c: Context, x: Value) -> Any:
    return c.dim(product(x.shape))


__all__ = ["axes_of"]
