"""Operators on sizes known only at run time: the same samples, every size of two or more a symbol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.ops.test_samples import assert_close, outputs_of, types_of

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr.evaluate import evaluate as evaluate_expr
from weft.expr.nodes import Expr, Var
from weft.graph.inferred import Inferred
from weft.graph.nodes import GraphBuilder, TensorType
from weft.graph.operator import Elementwise, Sample
from weft.tensor.evaluate import evaluate
from weft.tensor.language import Dim, Tensor, placeholder
from weft_ops import ALL_OPERATORS, CumSum, ReduceMax, ReduceMean, ReduceProd, ReduceSum
from weft_ops.reduction import Reduction


def symbolic(shape: tuple[int, ...]) -> tuple[Dim, ...]:
    return tuple(d if d < 2 else Var(f"n{d}", dt.int64) for d in shape)


def cases() -> Iterator[Any]:
    for op in ALL_OPERATORS:
        for k, sample in enumerate(op.samples()):
            types = [None if t is None else TensorType(t.dtype, symbolic(t.shape)) for t in types_of(sample)]  # type: ignore[arg-type]
            try:
                sample.op.infer(*types)
            except GraphError:
                continue  # attributes name a size
            yield pytest.param(sample, id=f"{op.__name__}-{sample.name or k}")


def placeholders(sample: Sample) -> tuple[list[Tensor | None], dict[Tensor, Any], dict[str, int]]:
    inputs = [
        None if x is None else placeholder(symbolic(x.shape), x.dtype, f"x{k}") for k, x in enumerate(sample.inputs)
    ]
    given = {t: x for t, x in zip(inputs, sample.inputs) if t is not None and x is not None}
    dims = {f"n{d}": d for x in sample.inputs if x is not None for d in x.shape if d > 1}
    return inputs, given, dims


@pytest.mark.parametrize("sample", list(cases()))
def test_sizes_as_symbols(sample: Sample) -> None:
    inputs, given, dims = placeholders(sample)
    types = [None if t is None else TensorType(t.dtype, t.shape) for t in inputs]
    inferred = Inferred.of(sample.op.infer(*types)).types
    want = outputs_of(sample.op, sample.inputs)
    for type_, y in zip(inferred, want):
        assert isinstance(type_, TensorType)
        assert tuple(int(evaluate_expr(d, dims)) if isinstance(d, Expr) else d for d in type_.shape) == y.shape
    if isinstance(sample.op, Elementwise):
        return
    for a in sample.op.algorithms().values():
        if a.form == "tensors" and sample.op.applies(a.name, *types) is None:
            result = a.function(sample.op, *inputs)
            for got, w in zip(evaluate(result if isinstance(result, tuple) else (result,), given, dims), want):
                assert_close(sample.op, sample, got, w)
        elif a.form == "decompose" and sample.op.applies(a.name, *types) is None:
            builder = GraphBuilder()
            values = [None if t is None else builder.input(f"x{k}", t) for k, t in enumerate(types)]
            try:
                a.function(sample.op, builder, *values)
            except GraphError as error:
                assert "expected a number" in str(error)


@pytest.mark.parametrize("op", [ReduceSum, ReduceProd, ReduceMax, ReduceMean])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0, 2), (-1, 1), (1, 0)])
def test_reduction_over_axes_known_at_run_time(op: type[Reduction], keepdims: bool, axes: tuple[int, ...]) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    runtime = op(tuple(Var(f"axis{k}", dt.int64) for k in range(len(axes))), keepdims)
    t = placeholder(x.shape, "float32", "x")
    env = {f"axis{k}": a for k, a in enumerate(axes)}
    got = evaluate(runtime.algorithms()["direct"].function(runtime, t), {t: x}, env)
    want = op(axes, keepdims).reference(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert (
        tuple(int(evaluate_expr(d, env)) for d in map(_expr, runtime.infer(TensorType(dt.float32, x.shape)).shape))
        == want.shape
    )


def _expr(d: Dim) -> Expr:
    from weft_ops.shapes import dim_expr

    return dim_expr(d)


def test_running_sum_along_an_axis_known_at_run_time() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType(dt.float32, (2, 3, 4)))
    op = CumSum(Var("axis", dt.int64), reverse=True)
    assert op.applies("direct") == "the axis is known only at run time"
    result = op.algorithms()["by_reshape"].function(op, builder, x)
    assert result.shape == (2, 3, 4)
    inner = builder.graph.nodes[0].output.shape
    for axis, want in ((0, (1, 2, 12)), (1, (2, 3, 4)), (2, (6, 4, 1))):  # a symbol is not negative
        assert tuple(int(evaluate_expr(_expr(d), {"axis": axis})) for d in inner) == want
