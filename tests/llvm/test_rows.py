"""Softmax and its like on rows of any length: short rows, too, are gone through by vectors."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.test_samples import assert_close

import weft
from weft.compilation import Compilation
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Operator, Sample
from weft.resolve import resolve_target
from weft_ops.normalization import LogSoftmax, Softmax

CPUS = ["", " -mcpu=x86-64-v3", " -mcpu=x86-64"] if platform.machine() == "x86_64" else [""]


def graph_of(op: Operator, shape: tuple[int, ...], dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    b.output(b.add(op, b.input("x", tensor_type(dtype, shape))), "y")
    return b.build()


@st.composite
def rows(draw: Any) -> tuple[Operator, tuple[int, ...], str, str]:
    shape = (*draw(st.lists(st.integers(1, 9), max_size=2)), draw(st.integers(1, 40)), draw(st.integers(1, 70)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    op = draw(st.sampled_from((Softmax, LogSoftmax)))(axis)
    return op, shape, draw(st.sampled_from(("float32", "float32", "float64", "float16"))), draw(st.sampled_from(CPUS))


@settings(max_examples=40, deadline=None)
@given(rows())
def test_rows_of_every_length(case: tuple[Operator, tuple[int, ...], str, str]) -> None:
    op, shape, dtype, cpu = case
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = weft.compile(graph_of(op, shape, dtype), target="llvm -threads=2" + cpu, cache=False).run({"x": x})["y"]
    assert_close(op, Sample(op, (x,)), y, np.asarray(op.reference(x)))


@pytest.mark.parametrize(("length", "lanes"), [(4, 4), (8, 8), (13, 8), (16, 16), (50, 16), (3, 0)])
def test_vectors_of_a_short_row_are_as_long_as_fit(length: int, lanes: int) -> None:
    compilation = Compilation(resolve_target("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu -threads=1"), cache=False)
    compilation.run(graph_of(Softmax(-1), (1000, length)))
    (kernel,) = compilation.kernels.values()
    found = re.findall(r"for exp\w* in (\d+) vectorized", str(kernel.scheduled))
    assert kernel.rule == "rowwise" and found == ([str(lanes)] if lanes else [])
