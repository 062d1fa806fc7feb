"""Matrices of SIMD groups: what the intrinsics say they mean, and products of every dtype, as text run by the shim."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.gpu.shim.targets import shimmed

from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.scheduling.intrinsic import Call
from weft_metal.dialect import dialect
from weft_metal.families import FAMILIES
from weft_metal.intrinsics import TEMPLATES, intrinsics
from weft_ops.contraction import MatMul
from weft_testing.conform.kernels import runner
from weft_testing.conform.kit import Kit
from weft_testing.intrinsics import check_intrinsic
from weft_testing.plugin import resolve_target

NUMPY: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def product(dtype: str, m: int, k: int, n: int) -> Graph:
    g = GraphBuilder("product")
    g.output(
        g.add(MatMul(), *(g.input(name, tensor_type(dtype, shape)) for name, shape in (("a", (m, k)), ("b", (k, n))))),
        "c",
    )
    return g.build()


@pytest.mark.parametrize("name", [i.name for i in intrinsics()])
def test_meanings(name: str) -> None:
    intrinsic = next(i for i in intrinsics() if i.name == name)
    assert check_intrinsic(intrinsic) > 0
    codes = [c for c in (intrinsic.compute, intrinsic.reset, intrinsic.update) if c is not None]
    assert all(isinstance(c, Call) and c.name in TEMPLATES for c in codes)


@pytest.mark.parametrize(
    "name",
    [i.name if i.name == "simdgroup_load_bf16" else pytest.param(i.name, marks=pytest.mark.full) for i in intrinsics()],
)
def test_texts_on_fragments(name: str) -> None:
    """What level 4 of the conformance kit does on a GPU, with the played instructions."""
    every = {i.name: i for i in intrinsics()}
    with shimmed("metal -family=apple9", "metal") as called:
        assert (
            check_intrinsic(every[name], run=runner(Kit.open(called, quick=False)), copies=every.values(), warp=32)
            >= 16
        )


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_who_has_them(family: str) -> None:
    found = resolve_target(f"metal -family={family}")
    assert bool(found.intrinsics) == (family != "mac2")
    if family == "mac2":
        assert not any(
            "simdgroup" in line for line in (*dialect(False, False).header, *dialect(False, False).intrinsics.values())
        )


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("size", [(64, 64, 64), (128, 40, 72), (33, 100, 50)])
def test_products(dtype: str, size: tuple[int, int, int]) -> None:
    """Whole tiles, and ragged ones."""
    m, k, n = size
    graph = product(dtype, m, k, n)
    rng = np.random.default_rng(m)
    fed = {name: rng.integers(-8, 9, shape).astype(NUMPY[dtype]) for name, shape in (("a", (m, k)), ("b", (k, n)))}
    with shimmed("metal", "metal") as called:
        compiled = Kit.open(called, quick=False).compile_alone(graph)
        (got,) = compiled.executable.run(fed).values()
        got = np.array(got)
    (kernel,) = compiled.kernels.values()
    assert kernel.code is not None and b"simdgroup_multiply_accumulate" in kernel.code.object
    (want,) = evaluate(graph, fed)
    np.testing.assert_array_equal(got, want)  # every sum is exact in float32, and rounded once
