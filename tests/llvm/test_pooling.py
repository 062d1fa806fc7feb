"""Pooling of any window: lanes along the results, however few, with operands that lie apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.test_samples import assert_close

import weft
from weft.compilation import Compilation
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Sample
from weft.resolve import resolve_target
from weft_ops.window import AveragePool, MaxPool, Pool


@st.composite
def pools(draw: Any) -> tuple[Pool, tuple[int, ...]]:
    axes = draw(st.integers(1, 3))
    kernel = tuple(draw(st.lists(st.integers(1, 7 if axes < 3 else 3), min_size=axes, max_size=axes)))
    strides = tuple(draw(st.lists(st.integers(1, 9), min_size=axes, max_size=axes)))
    pads = tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    most = {1: 200, 2: 40, 3: 12}[axes]
    size = tuple(draw(st.integers(k, max(k, most))) for k in kernel)
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 9)), *size)
    if draw(st.booleans()):
        return MaxPool(kernel, strides, pads, (), draw(st.booleans())), shape
    return AveragePool(kernel, strides, pads, (), draw(st.booleans()), draw(st.booleans())), shape


def graph_of(op: Pool, shape: tuple[int, ...], dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    b.output(b.add(op, b.input("x", tensor_type(dtype, shape))), "y")
    return b.build()


@settings(max_examples=60, deadline=None)
@given(pools(), st.sampled_from(("float32", "float32", "float64", "float16")))
def test_every_pool_is_that_of_its_reference(case: tuple[Pool, tuple[int, ...]], dtype: str) -> None:
    op, shape = case
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = weft.compile(graph_of(op, shape, dtype), target="llvm -threads=2", cache=False).run({"x": x})["y"]
    assert_close(op, Sample(op, (x,)), y, op.reference(x))


@pytest.mark.parametrize("stride", [2, 3, 8])
def test_windows_are_no_rows(stride: int) -> None:
    """What divides a sum by its count shares its loops, as a normalisation does; its windows have no rows."""
    compilation = Compilation(resolve_target("llvm -threads=1"), cache=False)
    compilation.run(graph_of(AveragePool((2, 2), (stride, stride)), (1, 3, 64, 64)))
    (kernel,) = compilation.kernels.values()
    assert kernel.rule == "reduction"
    reason = "window: a reduction is one of windows that slide along its operand, which have no rows"
    assert dict(kernel.declines)["rowwise"] == reason
    ways = {c.name.rpartition(".")[2]: c.value for c in kernel.choices}
    assert ways["lanes"] == "outputs"


def test_few_results_that_are_read_with_gaps_are_a_vector_of_a_power_of_two() -> None:
    compilation = Compilation(resolve_target("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu -threads=1"), cache=False)
    compilation.run(graph_of(MaxPool((3, 3), (2, 2), (0, 1, 0, 0)), (4, 8, 17, 26)))
    (kernel,) = compilation.kernels.values()
    text = str(kernel.scheduled)
    assert "in 16 vectorized" in text and "in 13 vectorized" not in text
