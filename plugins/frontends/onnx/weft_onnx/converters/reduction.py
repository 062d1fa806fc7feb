"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op

# The last version in which axes are an attribute.
_ATTRIBUTE_UNTIL = {"ReduceSum": 12}


def _axes(c: Context) -> tuple[Dim, ...] | None:
    """Axes as the reductions take them: None for all."""
    axes: tuple[Dim, ...] | None
    if c.version <= _ATTRIBUTE_UNTIL.get(c.op_type, 17):
        axes = c.integers("axes")
    else:
        axes = c.runtime_axes(1, len(c.shape(0)))
    if not axes:
        return () if c.flag("noop_with_empty_axes") else None
    return axes


@onnx_op(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
def reduce(c: Context) -> Value:
    x, axes, keep = c.value(0), _axes(c), c.flag("keepdims", True)
    plain: dict[str, Callable[[tuple[Dim, ...] | None, bool], Operator]] = {
        "ReduceSum": ops.ReduceSum, "ReduceMean": ops.ReduceMean, "ReduceMax": ops.ReduceMax,
        "ReduceMin": ops.ReduceMin, "ReduceProd": ops.ReduceProd,
    }  # fmt: skip
    if c.op_type in plain:
        return c(plain[c.op_type](axes, keep), x)
    dtype = x.dtype
    if c.op_type == "ReduceLogSumExp":
        return _log_sum_exp(c, x, axes, keep)
    if c.op_type in ("ReduceSumSquare", "ReduceL2"):
        wide = c.wide(x)
        total = c(ops.ReduceSum(axes, keep), c.mul(wide, wide))
    elif c.op_type == "ReduceL1":
        wide = c.wide(x)
        total = c(ops.ReduceSum(axes, keep), c(ops.Absolute(), wide))
    else:
        total = c(ops.ReduceSum(axes, keep), c.wide(x))
    if c.op_type in ("ReduceL2", "ReduceLogSum"):
        total = _in_floats(c, ops.Sqrt() if c.op_type == "ReduceL2" else ops.Log(), total)
    return c.cast(total, dtype)


def _in_floats(c: Context, op: Operator, x: Value) -> Value:
    from weft import dtypes as dt

    return c(op, x if x.dtype.is_float else c.cast(x, dt.float64))


def _log_sum_exp(c: Context, x: Value, axes: tuple[Dim, ...] | None, keep: bool) -> Value:
    """log Σ e^x, shifted by the greatest so that nothing overflows."""
    from weft import dtypes as dt

    wide = c.wide(x) if x.dtype.is_float else c.cast(x, dt.float64)
    greatest = c(ops.ReduceMax(axes, True), wide)
    if any(isinstance(d, int) and d == 0 for d in x.shape):
        return c.cast(c(ops.Log(), c(ops.ReduceSum(axes, keep), c(ops.Exp(), wide))), x.dtype)
    # Where all are -∞ the difference would be NaN.
    finite = c(ops.Where(), c(ops.IsInf(), greatest), 0.0, greatest)
    total = c(ops.ReduceSum(axes, True), c(ops.Exp(), c.sub(wide, c.broadcast(finite, x.shape))))
    result = c.add(c(ops.Log(), total), finite)
    if not keep:
        result = c.reshape(result, ops.ReduceSum(axes, False).out_shape(x.shape))
    return c.cast(result, x.dtype)


@onnx_op("ArgMax", "ArgMin")
def arg(c: Context) -> Value:
    op = ops.Argmax if c.op_type == "ArgMax" else ops.Argmin
    return c(op(c.integer("axis"), c.flag("keepdims", True), c.flag("select_last_index")), c.value(0))


@onnx_op("CumSum", "CumProd")
def cumulative(c: Context) -> Value:
    axis = c.runtime_axes(1, len(c.shape(0)))
    assert axis is not None
    op = ops.CumSum if c.op_type == "CumSum" else ops.CumProd
    return c(op(axis[0], c.flag("exclusive"), c.flag("reverse")), c.value(0))
