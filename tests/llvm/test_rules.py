"""Good rules do not fail: what a rule offers to schedule it schedules, also where blocks cannot all go where it would
have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llvm.test_samples import SAMPLES, graph_of
from tests.ops.test_samples import assert_close

from weft import dtypes as dt
from weft.compilation import Compilation
from weft.errors import LoweringError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.lower.lower import lower_group
from weft.resolve import resolve_target
from weft_ops.activation import Gelu, Tanh
from weft_ops.arithmetic import Absolute, Add, Cast
from weft_ops.indexing import Tile
from weft_ops.movement import Gather, Transpose
from weft_ops.reduction import ReduceSum
from weft_ops.window import MaxUnpool

NO_FAILURES = [
    "Attention-flat", "Attention-masked", "Attention-float16", "Attention-plain", "Attention-grouped",
    "SoftmaxCrossEntropy-none",
    "SoftmaxCrossEntropy-none_ignore", "CumSum-int32", "CumSum-float64", "CumProd-int32", "CumProd-float64",
    "LayerNorm-bare",
]  # fmt: skip


def compiled(graph: Graph) -> tuple[Compilation, Any]:
    compilation = Compilation(resolve_target("llvm"), cache=False)
    return compilation, compilation.run(graph)


@pytest.mark.parametrize("name", NO_FAILURES)
def test_no_rule_fails(name: str) -> None:
    _, sample = SAMPLES[name]
    compilation, executable = compiled(graph_of(sample))
    for kernel in compilation.kernels.values():
        assert kernel.rule != "fallback"
        assert not [why for _, why in kernel.declines if why.startswith("failed")]
    results = executable.run({f"x{k}": x for k, x in enumerate(sample.inputs) if x is not None})
    want = sample.op.reference(*sample.inputs)
    for got, expected in zip(results.values(), want if isinstance(want, tuple) else (want,)):
        assert_close(sample.op, sample, got, expected)


@pytest.mark.parametrize("length", [7, 64, 100, Var("n")])
def test_one_block_left_by_inlining_reduces_its_rows(length: Any) -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor_type("float32", (3, length)))
    builder.output(builder.add(ReduceSum((1,)), builder.add(Absolute(), x)), "y")
    compilation, executable = compiled(builder.build())
    assert all(not why.startswith("failed") for k in compilation.kernels.values() for _, why in k.declines)
    data = np.random.default_rng(0).normal(size=(3, length if isinstance(length, int) else 33)).astype(np.float32)
    (y,) = executable.run({"x": data}).values()
    np.testing.assert_allclose(y, np.abs(data).sum(1), rtol=1e-6)


def test_a_long_formula_is_computed_by_vectors_though_its_operands_are_gathered() -> None:
    """Its operand is read twice, and is one all the same; a second one costs less than the formula."""
    builder = GraphBuilder()
    turned = [builder.add(Transpose((1, 0)), builder.input(n, tensor_type("float32", (40, 48)))) for n in "xyz"]
    builder.output(builder.add(Gelu(), turned[0]), "gelu")
    builder.output(builder.add(Tanh(), builder.add(Add(), *turned[1:])), "tanh")
    compilation, executable = compiled(builder.build())
    steps = [step for k in compilation.kernels.values() for step in k.trace if step.do == "vectorize"]
    assert len(steps) == len(compilation.kernels)
    a, b = (np.random.default_rng(k).normal(size=(40, 48)).astype(np.float32) for k in range(2))
    results = executable.run({"x": a, "y": a, "z": b})
    np.testing.assert_allclose(results["tanh"], np.tanh(a + b).T, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("error::weft.errors.ScheduleWarning")
def test_a_reduction_over_a_repeated_axis() -> None:
    """Its loop is one of copies and one of what is copied: a tile of copies would have gaps."""
    builder = GraphBuilder()
    x = builder.input("x", tensor_type("float64", (3, 5, 7, 4)))
    builder.output(builder.add(ReduceSum((0, 3)), builder.add(Tile((1, 2, 1, 1)), x)), "y")
    data = np.random.default_rng(0).normal(size=(3, 5, 7, 4))
    (y,) = compiled(builder.build())[1].run({"x": data}).values()
    np.testing.assert_allclose(y.reshape(10, 7), np.tile(data, (1, 2, 1, 1)).sum((0, 3)), rtol=1e-12)


def test_a_gathered_reduction_without_rows() -> None:
    builder = GraphBuilder()
    x, at = builder.input("x", tensor_type("int64", (2, 12))), builder.input("at", tensor_type("int64", (9,)))
    picked = builder.add(Cast(dt.float32), builder.add(Gather(1), x, at))
    builder.output(builder.add(ReduceSum((0, 1)), picked), "y")
    _, executable = compiled(builder.build())
    data, index = np.arange(24).reshape(2, 12), np.array([0, 3, 3, 5, 7, 1, 11, 2, 2])
    (y,) = executable.run({"x": data, "at": index}).values()
    np.testing.assert_allclose(y, data[:, index].sum())


def test_a_composite_with_a_program_inside_is_a_clear_error() -> None:
    types = tensor_type("float32", (1, 1, 2, 2)), tensor_type("int64", (1, 1, 2, 2))
    inputs = [Value(n, t) for n, t in zip("xi", types)]
    out = Value("y", tensor_type("float32", (1, 1, 4, 4)))
    body = Graph("unpool", inputs, [out], [Node(MaxUnpool((1, 1, 4, 4)), inputs, [out])], output_names=["y"])
    with pytest.raises(LoweringError, match="ScatterElements is a loop program") as caught:
        lower_group(body)
    assert "MaxUnpool" in str(caught.value) and "decompose" in str(caught.value)
