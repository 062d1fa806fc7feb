"""Products on tensor cores, whole: compiled, launched on the played driver, with the reference's result. Tails, epilogues, batches, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.fake import FakeApi

import weft
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.ops import Add, Conv, MatMul, Relu
from weft.testing.plugin import resolve_target
from weft_cuda.intrinsics import MMAS

FLOATS: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def product(dtype: str, rows: int | str, terms: int, columns: int, batch: tuple[int, ...] = (), layer: bool = False) -> Graph:
    g = GraphBuilder("product")
    x = g.input("x", tensor_type(dtype, (*batch, Var(rows) if isinstance(rows, str) else rows, terms)))
    w = g.input("w", tensor_type(dtype, (*batch, terms, columns)))
    y = g.add(MatMul(), x, w)
    if layer:
        y = g.add(Relu(), g.add(Add(), y, g.input("b", tensor_type(dtype, (columns,)))))
    g.output(y, "y")
    return g.build()


def convolution(dtype: str) -> Graph:
    g = GraphBuilder("convolution")
    x, w = g.input("x", tensor_type(dtype, (2, 16, 9, 9))), g.input("w", tensor_type(dtype, (24, 16, 3, 3)))
    g.output(g.add(Conv((1, 1), (1, 1, 1, 1)), x, w), "y")
    return g.build()


def data(graph: Graph, dtype: str, rows: int = 40) -> dict[str, Any]:
    """Small integers: products and their sums are exact in float32, so that it does not matter in which order they are added."""
    rng = np.random.default_rng(0)
    shapes = {v.name: tuple(d if isinstance(d, int) else rows for d in v.shape) for v in graph.inputs}
    return {name: rng.integers(-4, 5, shape).astype(FLOATS[dtype]) for name, shape in shapes.items()}


CASES: dict[str, tuple[str, Callable[[], Graph], str]] = {
    "whole tiles": ("float16", lambda: product("float16", 64, 64, 64), "f16"),
    "tails": ("float16", lambda: product("float16", 50, 37, 45), "f16"),
    "a layer": ("float16", lambda: product("float16", 40, 64, 48, layer=True), "f16"),
    "batches": ("bfloat16", lambda: product("bfloat16", 32, 32, 40, (3,)), "bf16"),
    "rows known at run time": ("bfloat16", lambda: product("bfloat16", "n", 48, 32, layer=True), "bf16"),
    "a convolution": ("float16", lambda: convolution("float16"), "f16"),
    "tf32": ("float32", lambda: product("float32", 48, 40, 32), "tf32"),
}


@pytest.mark.parametrize("name", CASES)
def test_products(api: FakeApi, name: str) -> None:
    dtype, make, word = CASES[name]
    graph = make()
    exe = weft.compile(graph, target="cuda -arch=sm_90" + (" -tf32" if word == "tf32" else ""), cache=False)
    inputs = data(graph, dtype)
    got = exe.run(inputs)["y"]
    assert any(f"weft_mma_{word}(" in text for text in api.modules)
    (want,) = evaluate(graph, list(inputs.values()))
    np.testing.assert_array_equal(got.astype(np.float64), np.asarray(want).astype(np.float64))


def test_float32_is_not_rounded_unless_asked_for(api: FakeApi) -> None:
    exe = weft.compile(product("float32", 48, 40, 32), target="cuda -arch=sm_90", cache=False)
    exe.run(data(product("float32", 48, 40, 32), "float32"))
    assert api.modules and not any("weft_mma" in text for text in api.modules)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nvrtc_takes_large_ones(arch: str, dtype: str) -> None:
    """As large as those that are measured: 8192 and an odd size."""
    for size in (8192, 1000):
        exe = weft.compile(product(dtype, size, size, size), target=f"cuda -arch={arch}", cache=False)
        (section,) = exe.manifest.sections
        assert b"\x7fELF" in exe._code[section]


def test_machines_know_their_tensor_cores() -> None:
    fast, slow = (resolve_target(f"cuda -arch={a}").machine for a in ("sm_90", "sm_75"))
    assert fast.flops_per_cycle["float16"] == 16 * fast.flops_per_cycle["float32"] == 4096
    assert slow.flops_per_cycle["float16"] == slow.flops_per_cycle["float32"]
    assert {m.factor.name for m in MMAS} <= fast.flops_per_cycle.keys()
