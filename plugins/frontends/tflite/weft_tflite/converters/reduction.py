"""Reductions, running sums and orders."""

from __future__ import annotations

from collections.abc import Callable

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim
from weft_ops.shapes import axes_of, axis_of
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_op


def reduced_axes(c: Context, x: Value) -> tuple[int, ...]:
    """The axes that operand 1 names, each once."""
    found = c.numbers(1, "the axes")
    assert found is not None
    return axes_of(tuple(dict.fromkeys(axis_of(a, len(x.shape)) for a in found)), len(x.shape)) if x.shape else ()


def _reduction(make: Callable[..., Operator]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x = c.value(0)
        return c(make(reduced_axes(c, x), c.flag("keep_dims")), x)

    return convert


tflite_op("SUM")(_reduction(ops.ReduceSum))
tflite_op("MEAN")(_reduction(ops.ReduceMean))
tflite_op("REDUCE_PROD")(_reduction(ops.ReduceProd))
for _name, _make in {"REDUCE_MAX": ops.ReduceMax, "REDUCE_MIN": ops.ReduceMin, "REDUCE_ANY": ops.ReduceMax,
                     "REDUCE_ALL": ops.ReduceMin}.items():  # fmt: skip
    moving_op(_name)(_reduction(_make))


def _best(make: Callable[..., ops.Argmax]) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x, axes = c.value(0), c.numbers(1, "the axis")
        assert axes is not None and len(axes) == 1
        return c.cast(c(make(axis_of(axes[0], len(x.shape))), x), c.output_dtype())

    return convert


moving_op("ARG_MAX")(_best(ops.Argmax))
moving_op("ARG_MIN")(_best(ops.Argmin))


@moving_op("TOPK_V2")
def topk(c: Context) -> list[Value]:
    x, k = c.value(0), c.dims(1, "k")
    assert k is not None and len(k) == 1
    count: Dim = k[0]
    values, indices = c.all(ops.TopK(count, -1), x)
    return [values, c.cast(indices, c.output_dtype(1))]


@tflite_op("CUMSUM")
def cumsum(c: Context) -> Value:
    x, axes = c.value(0), c.numbers(1, "the axis")
    assert axes is not None and len(axes) == 1
    return c(ops.CumSum(axis_of(axes[0], len(x.shape)), c.flag("exclusive"), c.flag("reverse")), x)
