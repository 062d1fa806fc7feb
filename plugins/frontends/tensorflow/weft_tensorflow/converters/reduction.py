"""Reductions, running sums and orders."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op


def reduced_axes(c: Context, x: Value) -> tuple[int, ...]:
    """The axes that operand 1 names, each once."""
    found = c.numbers(1, "the axes")
    assert found is not None
    return tuple(dict.fromkeys(c.axis(a, len(x.shape)) for a in found))


def _reduction(make: Callable[..., Operator]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x = c.value(0)
        axes = reduced_axes(c, x) if c.known(1) is not None else c.runtime_axes(1, len(x.shape))
        return c(make(axes, c.flag("keep_dims")), x)

    return convert


REDUCTIONS: dict[str, Callable[..., Operator]] = {
    "Sum": ops.ReduceSum, "Mean": ops.ReduceMean, "Prod": ops.ReduceProd, "Max": ops.ReduceMax, "Min": ops.ReduceMin,
    "Any": ops.ReduceMax, "All": ops.ReduceMin,
}  # fmt: skip
for _name, _make in REDUCTIONS.items():
    tf_op(_name)(_reduction(_make))


@tf_op("EuclideanNorm")
def euclidean_norm(c: Context) -> Value:
    x = c.value(0)
    return c(ops.Sqrt(), c(ops.ReduceSum(reduced_axes(c, x), c.flag("keep_dims")), c.mul(x, x)))


def _best(make: Callable[..., ops.Argmax]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x = c.value(0)
        axis = c.axis(c.number_at(1, "the axis"), len(x.shape)) if c.given(1) else 0
        return c.cast(c(make(axis), x), c.dtype("output_type", dt.int64))

    return convert


tf_op("ArgMax")(_best(ops.Argmax))
tf_op("ArgMin")(_best(ops.Argmin))


@tf_op("TopKV2", "TopK")
def topk(c: Context) -> list[Value]:
    k = c.dim_at(1, "k") if c.op_type == "TopKV2" else c.integer("k")
    values, indices = c.all(ops.TopK(k, -1), c.value(0))
    return [values, c.cast(indices, c.dtype("index_type", dt.int32))]


@tf_op("InTopKV2", "InTopK")
def in_top_k(c: Context) -> Value:
    """Whether fewer than k predictions are above that of the target, which must be finite."""
    x, targets = c.value(0), c.cast(c.value(1), dt.int64)
    (classes,) = c.fixed(x.shape[-1:], "the number of classes")
    k = c.dim_at(2, "k") if c.op_type == "InTopKV2" else c.integer("k")
    targets = c.within(targets, 0, classes - 1, "a target")
    own = c(ops.GatherElements(1), x, c.reshape(targets, (*targets.shape, 1)))
    above = c.sum(c.cast(c(ops.Greater(), x, own), dt.int64), (1,), False)
    return c(ops.Less(), above, c.dim(k))


def _running(make: Callable[..., Operator]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x = c.value(0)
        axis = c.axis(c.number_at(1, "the axis"), len(x.shape))
        return c(make(axis, c.flag("exclusive"), c.flag("reverse")), x)

    return convert


tf_op("Cumsum")(_running(ops.CumSum))
tf_op("Cumprod")(_running(ops.CumProd))


@tf_op("MatrixDeterminant")
def determinant(c: Context) -> Value:
    return c(ops.Det(), c.value(0))
