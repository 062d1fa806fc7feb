"""A library behind a plugin: products by OpenBLAS are numpy's, nothing is copied, what it does not take says why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.openblas.conftest import FOLDER

import weft
from weft import dtypes as dt
from weft.errors import ExecutionError, TargetError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import int_const
from weft.loop.parser import parse_program
from weft.lower.lower import lower_group
from weft_interpreter.interpret import interpret
from weft_ops import MatMul, Relu
from weft_runtime.device import open_device
from weft_runtime.executable import Executable
from weft_testing.imports import imports_beyond
from weft_testing.intrinsics import check_intrinsic
from weft_testing.models import mlp

pytestmark = pytest.mark.usefixtures("openblas")

BATCH, ROWS = Var("batch", dt.int64), Var("rows", dt.int64)
SIZES = {"batch": 3, "rows": 5}


def product(a: Any, b: Any, dtype: str = "float32") -> Graph:
    g = GraphBuilder("product")
    g.output(g.add(MatMul(), g.input("a", tensor_type(dtype, a)), g.input("b", tensor_type(dtype, b))), "c")
    return g.build()


def arrays(a: Any, b: Any, dtype: str, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"a": a, "b": b}
    return {
        name: rng.standard_normal([d if isinstance(d, int) else SIZES[d.name] for d in shape]).astype(dtype)
        for name, shape in shapes.items()
    }


def check(got: Any, inputs: dict[str, Any]) -> None:
    expected = np.matmul(inputs["a"].astype(np.float64), inputs["b"].astype(np.float64))
    assert got.shape == expected.shape
    bound = (
        np.finfo(inputs["a"].dtype).eps
        * (inputs["a"].shape[-1] + 1)
        * np.matmul(np.abs(inputs["a"]), np.abs(inputs["b"]))
    )
    assert (np.abs(got - expected) <= bound + 1e-300).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((7, 9), (9, 5)), ((9,), (9, 5)), ((7, 9), (9,)), ((9,), (9,)), ((4, 1), (1, 5)), ((1, 9), (9, 1)),
        ((BATCH, 12, ROWS, 8), (BATCH, 12, 8, ROWS)), ((BATCH, 5, 8), (8, 3)), ((2, 1, 4, 8), (3, 8, 5)), ((1, 1, 4),
            (7, 4, 1)),
        ((4, 0), (0, 5)), ((0, 4), (4, 5)), ((2, 3, 4), (2, 4, 0)), ((0, 3, 4), (0, 4, 5)), ((2, 3, 0), (2, 0, 4)),
    ],
)  # fmt: skip
def test_products_are_numpys(a: Any, b: Any, dtype: str) -> None:
    inputs = arrays(a, b, dtype)
    exe = weft.compile(product(a, b, dtype), "openblas", cache=False)
    check(exe.run(inputs)["c"], inputs)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_calls_mean_what_the_loops_mean(data: st.DataObject) -> None:
    """Batches broadcast in any way: the loop pass's program, interpreted, is numpy's product."""
    from weft_openblas.instructions import gemm
    from weft_openblas.products import call_library

    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    ends = [data.draw(st.integers(1, 6)) for _ in range(3)]
    a = [data.draw(st.sampled_from([d, 1])) for d in batch] + [ends[0], ends[1]]
    b = batch[data.draw(st.integers(0, len(batch))) :] + [ends[1], ends[2]]
    inputs = arrays(a, b, "float64")
    naive = lower_group(product(a, b, "float64"), "kernel")
    called = call_library(naive)
    assert "openblas.dgemm" in str(called) and "block" not in str(called)
    given_arrays = [
        x.reshape([int_const(d) for d in p.shape]) for x, p in zip(inputs.values(), naive.inputs, strict=True)
    ]
    (got,) = interpret(called, given_arrays, intrinsics={"openblas.dgemm": gemm}).values()
    check(got.reshape(np.matmul(*inputs.values()).shape), inputs)


def test_its_functions_do_what_they_mean() -> None:
    from weft_openblas.instructions import INTRINSICS

    assert sum(check_intrinsic(i) for i in INTRINSICS) == 16


def test_it_computes_with_another_target_and_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("openblas")
    for name in ("read", "write", "allocate"):
        monkeypatch.setattr(device, name, lambda *args: pytest.fail("something is copied"))
    exe = weft.compile(mlp(), "openblas -always, llvm", cache=False)
    x = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float32)
    assert [s.kind for s in exe.manifest.steps].count("device") == 2
    np.testing.assert_allclose(
        exe.run({"x": x})["y"], weft.compile(mlp(), "llvm", cache=False).run({"x": x})["y"], rtol=1e-4, atol=1e-6
    )


def test_costs_decide() -> None:
    """Four threads of the library beside one of the generated code: worth its start where the product is large."""
    steps = {}
    for size in (16, 512):
        exe = weft.compile(product((size, size), (size, size)), "openblas -threads=4, llvm -threads=1", cache=False)
        steps[size] = {s.kind for s in exe.manifest.steps}
    assert "device" in steps[512] and steps[16] == {"native"}


def test_an_archive_runs(tmp_path: Path) -> None:
    inputs = arrays((BATCH, 8), (8, 4), "float32")
    weft.compile(product((BATCH, 8), (8, 4)), "openblas", cache=False).save(tmp_path / "p.weft")
    check(Executable.load(tmp_path / "p.weft").run(inputs)["c"], inputs)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (product((4, 8), (8, 3), "float16"), "OpenBLAS multiplies float32 and float64, not float16 [dtype]"),
        (product((4, 8), (8, 3), "int32"), "OpenBLAS multiplies float32 and float64, not int32 [dtype]"),
        (mlp(), "OpenBLAS has no Relu [operator]"),
    ],
)
def test_what_it_does_not_take_says_why(graph: Graph, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        weft.compile(graph, "openblas", cache=False)
    assert f"openblas: {reason}" in str(caught.value)


def test_loops_that_are_no_product_are_declined_with_a_reason() -> None:
    from weft_openblas.products import as_calls

    g = GraphBuilder("no_product")
    g.output(g.add(Relu(), g.input("x", tensor_type("float32", (4,)))), "y")
    assert str(as_calls(lower_group(g.build(), "kernel"))) == "Decline(code='operator', reason='OpenBLAS has no Relu')"
    assert getattr(as_calls(lower_group(product((4, 8), (8, 3), "bfloat16"), "kernel")), "code", None) == "no_product"
    assert getattr(as_calls(lower_group(product((4, 8), (8, 3), "int64"), "kernel")), "code", None) == "dtype"


def test_a_matrix_that_lies_transposed_is_read_as_it_lies() -> None:
    from weft_openblas.instructions import gemm
    from weft_openblas.products import call_library

    text = str(lower_group(product((4, 6), (6, 5)), "kernel"))
    turned = parse_program(
        text.replace("in1: float32[6, 5]", "in1: float32[5, 6]").replace(
            "in1[matmul_vr0, matmul_vi1]", "in1[matmul_vi1, matmul_vr0]"
        )
    )
    called = call_library(turned)
    assert "openblas.sgemm(in0[0, 0], 0, 6, in1[0, 0], 1, 6, matmul[0, 0], 5, 4, 5, 6)" in str(called)
    x, y = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(30, dtype=np.float32).reshape(5, 6)
    (got,) = interpret(called, [x, y], intrinsics={"openblas.sgemm": gemm}).values()
    np.testing.assert_array_equal(got, x @ y.T)


def test_sizes_beyond_the_librarys_integers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_openblas import device

    exe = weft.compile(product((BATCH, 300), (300, 4)), "openblas", cache=False)
    inputs = arrays((BATCH, 300), (300, 4), "float32")
    monkeypatch.setattr(device, "LARGEST", 299)
    text = (
        "failed on device 'openblas'\n  why: OverflowError: a size of 300 is too large for OpenBLAS, which counts"
        " to 299"
    )
    with pytest.raises(ExecutionError, match=text):
        exe.run(inputs)
    monkeypatch.undo()
    assert math.isfinite(exe.run(inputs)["c"].sum())


def test_without_the_library_the_target_is_not_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from weft_openblas import device

    from weft_runtime import device as devices

    graph = product((BATCH, 8), (8, 4))
    weft.compile(graph, "openblas", cache=False).save(tmp_path / "p.weft")
    monkeypatch.setattr(device, "PACKAGE", "no_such_package")
    advice = "why: the package that carries OpenBLAS is not installed: pip install scipy-openblas32"
    with pytest.raises(TargetError) as caught:
        weft.compile(graph, "openblas, llvm", cache=False)
    assert str(caught.value) == f"target 'openblas' is not here\n  {advice}"
    monkeypatch.setattr(devices, "_open", {})
    with pytest.raises(ExecutionError) as failed:
        Executable.load(tmp_path / "p.weft").run(arrays((BATCH, 8), (8, 4), "float32"))
    assert str(failed.value) == f"the device 'openblas' is not here\n  {advice}"


def test_an_option_out_of_range() -> None:
    with pytest.raises(TargetError, match="-threads is 1 to 64, got 0"):
        weft.compile(product((4, 8), (8, 4)), "openblas -threads=0")


def test_nothing_but_public_names_is_imported() -> None:
    assert imports_beyond(FOLDER / "weft_openblas") == []
