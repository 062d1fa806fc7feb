"""Attention for CUDA: compiled for each architecture as large as models have it, and launched on the played driver,
with the reference's result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cuda.fake import FakeApi

import weft
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops.attention import ScaledDotProductAttention


def attention(dtype: str, heads: int, queries: Any, keys: Any, size: int) -> Graph:
    b = GraphBuilder("attention")
    q, k, v = (
        b.input(name, tensor_type(dtype, (1, heads, n, size))) for name, n in (("q", queries), ("k", keys), ("v", keys))
    )
    mask = b.input("mask", tensor_type(dtype, (1, 1, queries, keys)))
    b.output(b.add(ScaledDotProductAttention(size**-0.5), q, k, v, mask), "y")
    return b.build()


@pytest.mark.parametrize("sizes", [(20, 24), ("s", "t")], ids=["known", "of a run"])
def test_attention(api: FakeApi, sizes: tuple[Any, Any]) -> None:
    queries, keys = (Var(n) if isinstance(n, str) else n for n in sizes)
    graph = attention("float32", 2, queries, keys, 16)
    exe = weft.compile(graph, target="cuda -arch=sm_90", cache=False)
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 2, 20, 16), "k": (1, 2, 24, 16), "v": (1, 2, 24, 16), "mask": (1, 1, 20, 24)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    np.testing.assert_allclose(exe.run(inputs)["y"], evaluate(graph, inputs)[0], rtol=1e-5, atol=1e-6)
    assert len(api.modules) == 1


@pytest.mark.parametrize(
    ("arch", "dtype", "queries", "size"), [("sm_80", "float32", 128, 64), ("sm_90", "float16", 1024, 128)]
)
def test_nvrtc_takes_large_ones(arch: str, dtype: str, queries: int, size: int) -> None:
    exe = weft.compile(attention(dtype, 12, queries, queries, size), target=f"cuda -arch={arch}", cache=False)
    (section,) = exe.manifest.sections
    assert b"\x7fELF" in exe._code[section]
