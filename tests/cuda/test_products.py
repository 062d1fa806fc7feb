"""Products on tensor cores, whole: compiled, launched on the played driver, with the reference's result. Tails,
epilogues, batches, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.fake import FakeApi
from tests.gpu.shim.shims import guarded, run

import weft
from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling import Schedule
from weft_cuda.dialect import CUDA
from weft_cuda.intrinsics import MMAS
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.schedules.contraction import ContractionRule
from weft_ops import Add, Conv, Einsum, MatMul, Relu, Transpose
from weft_testing.plugin import resolve_target

FLOATS: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "int8": np.int8}


def product(
    dtype: str, rows: int | str, terms: int, columns: int, batch: tuple[int, ...] = (), layer: bool = False
) -> Graph:
    g = GraphBuilder("product")
    x = g.input("x", tensor_type(dtype, (*batch, Var(rows) if isinstance(rows, str) else rows, terms)))
    w = g.input("w", tensor_type(dtype, (*batch, terms, columns)))
    y = g.add(MatMul(), x, w)
    if layer:
        y = g.add(Relu(), g.add(Add(), y, g.input("b", tensor_type(dtype, (columns,)))))
    g.output(y, "y")
    return g.build()


def convolution(dtype: str, size: int = 9) -> Graph:
    g = GraphBuilder("convolution")
    x, w = g.input("x", tensor_type(dtype, (2, 16, size, size))), g.input("w", tensor_type(dtype, (24, 16, 3, 3)))
    g.output(g.add(Conv((1, 1), (1, 1, 1, 1)), x, w), "y")
    return g.build()


def data(graph: Graph, dtype: str, rows: int = 40) -> dict[str, Any]:
    """Small integers: products and their sums are exact in float32, so that it does not matter in which order they are
    added."""
    rng = np.random.default_rng(0)
    shapes = {v.name: tuple(d if isinstance(d, int) else rows for d in v.shape) for v in graph.inputs}
    return {name: rng.integers(-4, 5, shape).astype(FLOATS[dtype]) for name, shape in shapes.items()}


def along(dtype: str) -> Graph:
    """Both factors lie along the sum, as weights of torch do."""
    g = GraphBuilder("along")
    x, w = g.input("x", tensor_type(dtype, (72, 88))), g.input("w", tensor_type(dtype, (96, 88)))
    g.output(g.add(Einsum("ik,jk->ij"), x, w), "y")
    return g.build()


CASES: dict[str, tuple[str, Callable[[], Graph], str]] = {
    "whole tiles": ("float16", lambda: product("float16", 64, 64, 64), "f16"),
    "tails": ("float16", lambda: product("float16", 50, 37, 45), "f16"),
    "a layer": ("float16", lambda: product("float16", 40, 64, 48, layer=True), "f16"),
    "batches": ("bfloat16", lambda: product("bfloat16", 32, 32, 40, (3,)), "bf16"),
    "rows known at run time": ("bfloat16", lambda: product("bfloat16", "n", 48, 32, layer=True), "bf16"),
    "a convolution": ("float16", lambda: convolution("float16"), "f16"),
    "rows of 14 in tiles of 16": ("float16", lambda: convolution("float16", 14), "f16"),
    "rows of 7 in tiles of 16": ("bfloat16", lambda: convolution("bfloat16", 7), "bf16"),
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


def bytes_of(rows: int, terms: int, columns: int) -> Graph:
    g = GraphBuilder("bytes")
    x, w = g.input("x", tensor_type("int8", (rows, terms))), g.input("w", tensor_type("int8", (columns, terms)))
    g.output(g.add(MatMul(dt.int32), x, g.add(Transpose((1, 0)), w)), "y")
    return g.build()


WIDE: dict[str, tuple[str, Callable[[], Graph], str]] = {
    "whole tiles": ("float16", lambda: product("float16", 256, 192, 256), "f16<64, 0, 1>"),
    "tails and a layer": ("float16", lambda: product("float16", 130, 200, 136, layer=True), "f16<64, 0, 1>"),
    "odd tails": ("bfloat16", lambda: product("bfloat16", 70, 67, 77), "bf16<64, 0, 1>"),
    "along the sum": ("bfloat16", lambda: along("bfloat16"), "bf16<64, 0, 0>"),
    "batches": ("float16", lambda: product("float16", 64, 64, 80, (3,)), "f16<64, 0, 1>"),
    "rows known at run time": ("bfloat16", lambda: product("bfloat16", "n", 48, 80, layer=True), "bf16<64, 0, 1>"),
    "tf32": ("float32", lambda: along("float32"), "tf32<64, 0, 0>"),
    "bytes": ("int8", lambda: bytes_of(72, 160, 80), "s8<64, 0, 0>"),
}


@pytest.mark.parametrize("columns", [64, pytest.param(128, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", WIDE)
def test_products_of_warp_groups(api: FakeApi, monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    """On sm_90a, where the model is made to think that they always pay."""
    from weft.rates import GridRates
    from weft_gpu import machines
    from weft_gpu.schedules import fragments

    monkeypatch.setattr(
        fragments, "rate", lambda kit, machine: 1e6 if kit.product.warps > 1 and kit.columns == columns else 1.0
    )
    monkeypatch.setattr(machines, "GridRates", lambda **k: GridRates(matrix_step_cycles=0.0, **k))
    dtype, make, word = WIDE[name]
    graph = make()
    exe = weft.compile(graph, target="cuda -arch=sm_90a" + (" -tf32" if dtype == "float32" else ""), cache=False)
    inputs = data(graph, dtype)
    got = exe.run(inputs)["y"]
    assert any(f"weft_wgmma_{word.replace('64', str(columns))}(" in text for text in api.modules), [
        t[:3000] for t in api.modules
    ]
    (want,) = evaluate(graph, list(inputs.values()))
    np.testing.assert_array_equal(got.astype(np.float64), np.asarray(want).astype(np.float64))


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_factors_along_and_across_the_sum(left: int, right: int) -> None:
    """One kernel, into which transposes are inlined; tails in all directions."""
    rows, terms, columns = 72, 200, 88
    g = GraphBuilder("turned")
    x = g.input("x", tensor_type("float16", (terms, rows) if left else (rows, terms)))
    w = g.input("w", tensor_type("float16", (terms, columns) if right else (columns, terms)))
    g.output(
        g.add(MatMul(), g.add(Transpose((1, 0)), x) if left else x, w if right else g.add(Transpose((1, 0)), w)), "y"
    )
    target = resolve_target("cuda -arch=sm_90a")
    name = f"wgmma_f16_64_{('along', 'across')[left]}_{('along', 'across')[right]}"
    choices = {"fragments": name, "warp_tile": "2x1 of 1x2 by 1 ahead"}
    s = Schedule(lower_group(g.build(), "kernel"), target.machine, intrinsics=target.intrinsics, overrides=choices)
    ContractionRule().apply(s)
    assert f'tensorize="{name}"' in str(s.program)
    codegen = GpuCodegen(CUDA, machine=target.machine)
    kernel = Kernel.from_bytes(
        codegen.compile(lower_program(s.program, codegen.functions, extra=target.loop_passes())).object, "kernel"
    )
    assert all(b"weft_copy_async<16>" in launch.code for launch in kernel.launches)
    rng = np.random.default_rng(left + 2 * right)
    arrays = [
        guarded(rng.integers(-4, 5, tuple(b.shape)).astype(np.float16)) for b in [v.type for v in g.build().inputs]
    ]
    y = guarded(np.zeros((rows, columns), np.float16))
    run(kernel, "cuda", [*arrays, y], seed=2)
    a, b = (np.asarray(v, np.float64) for v in arrays)
    np.testing.assert_array_equal(y.astype(np.float64), (a.T if left else a) @ (b if right else b.T))


def test_large_products_take_warp_groups_where_they_are() -> None:
    for arch, word in (("sm_90a", "wgmma"), ("sm_90", "mma")):
        target = resolve_target(f"cuda -arch={arch}")
        s = Schedule(
            lower_group(product("float16", 4096, 4096, 4096), "kernel"), target.machine, intrinsics=target.intrinsics
        )
        ContractionRule().apply(s)
        assert f'tensorize="{word}_f16' in str(s.program)


def test_float32_is_not_rounded_unless_asked_for(api: FakeApi) -> None:
    exe = weft.compile(product("float32", 48, 40, 32), target="cuda -arch=sm_90", cache=False)
    exe.run(data(product("float32", 48, 40, 32), "float32"))
    assert api.modules and not any("weft_mma" in text for text in api.modules)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
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
