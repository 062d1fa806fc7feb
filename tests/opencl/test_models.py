"""Whole graphs on a device: copies between memories, sizes known only at run time, and saved models that run without
the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import ExecutionError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft_ops import Add, Concat, CountNonZero, MatMul, NonZero, Relu
from weft_runtime.device import open_device
from weft_runtime.plan import Copy, DeviceCall


def dense() -> Graph:
    g = GraphBuilder("dense")
    x = g.input("x", tensor_type("float32", (Var("n"), 24)))
    w = g.constant(np.random.default_rng(0).standard_normal((24, 10)).astype(np.float32), "w")
    g.output(g.add(Relu(), g.add(MatMul(), x, w)), "y")
    return g.build()


def test_one_executable_serves_any_size(tmp_path: Path) -> None:
    graph = dense()
    executable = weft.compile(graph, target="opencl", cache=False)
    (w,) = (v.constant for v in graph.constants())
    for n in (5, 70, 1, 0):
        x = np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)
        np.testing.assert_allclose(
            executable.run({"x": x})["y"], np.maximum(x @ np.asarray(w), 0), rtol=1e-5, atol=1e-5
        )
    executable.save(tmp_path / "dense.weft")
    x = np.ones((3, 24), np.float32)
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np; from weft_runtime.executable import Executable; e = Executable.load(sys.argv[1] +"
        " '/dense.weft'); np.save(sys.argv[1] + '/y.npy', e.run({'x': np.load(sys.argv[1] + '/x.npy')})['y']); assert"
        " not any(m.startswith(('weft.loop', 'weft.codegen', 'weft.graph', 'weft.expr')) for m in sys.modules),"
        " sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), executable.run({"x": x})["y"])


@pytest.mark.needs("weft_llvm")
def test_what_the_host_computes_is_copied_once() -> None:
    """Sizes that depend on data are counted by the host; everything else is on the device."""
    g = GraphBuilder("found")
    x, y = (g.input(name, tensor_type("float32", (6, 4))) for name in "xy")
    total = g.add(Add(), x, y)
    g.output(total, "total")
    positive = g.add(Relu(), total)
    g.output(g.add(NonZero(g.symbol(g.add(CountNonZero(), positive))), positive), "where")
    mixed = MixedCompilation(resolve_targets("opencl, llvm"), cache=False, by_cost=False)
    executable = mixed.run(g.build())
    steps = executable.manifest.steps
    copies = [(s.value, s.source, s.target) for s in steps if isinstance(s, Copy)]
    assert len(copies) == len(set(copies)) and {"x", "y"} <= {
        value for value, source, target in copies if (source, target) == ("host", "opencl")
    }
    assert any(isinstance(s, DeviceCall) for s in steps) and any(s.kind == "native" for s in steps)
    a, b = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)
    results = executable.run({"x": a, "y": b})
    np.testing.assert_array_equal(results["total"], a + b)
    np.testing.assert_array_equal(results["where"], np.stack(np.nonzero(np.maximum(a + b, 0))))


def test_what_no_device_computes_is_declined_with_a_reason() -> None:
    g = GraphBuilder("found")
    x = g.input("x", tensor_type("float32", (6, 4)))
    g.output(g.add(NonZero(g.symbol(g.add(CountNonZero(), x))), x), "where")
    with pytest.raises(UnsupportedError) as caught:
        weft.compile(g.build(), target="opencl", cache=False)
    assert "sizes of other values depend on its result [sizes]" in str(caught.value)


def test_a_model_larger_than_the_memory_is_refused_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = weft.compile(dense(), target="opencl", cache=False)
    device = open_device("opencl")
    x = np.ones((4, 24), np.float32)
    monkeypatch.setattr(device, "_capacity", 0)
    with pytest.raises(ExecutionError, match="device 'opencl' has too little memory") as caught:
        executable.run({"x": x})
    assert "bytes are wanted, 0 of 0 are free" in str(caught.value)
    monkeypatch.undo()
    assert executable.run({"x": x})["y"].shape == (4, 10)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [61, 62, 63, 70])
def test_kernels_of_more_buffers_than_a_device_takes_arguments(count: int) -> None:
    """One after another and added up: one kernel each, whose buffers are memories of their own, or parts of the
    arena."""
    g = GraphBuilder("many")
    xs = [g.input(f"x{k}", tensor_type("float32", (1 + k % 3, Var("n")))) for k in range(count)]
    g.output(g.add(Concat(0), *xs), "joined")
    g.output(g.add(Concat(0), *(g.add(Relu(), x) for x in xs)), "positive")
    executable = weft.compile(g.build(), target="opencl", cache=False)
    for n in (7, 0, 130):
        arrays = {
            f"x{k}": np.random.default_rng(k).standard_normal((1 + k % 3, n)).astype(np.float32) for k in range(count)
        }
        joined = np.concatenate(list(arrays.values()))
        results = executable.run(arrays)
        np.testing.assert_array_equal(results["joined"], joined)
        np.testing.assert_array_equal(results["positive"], np.maximum(joined, 0))
