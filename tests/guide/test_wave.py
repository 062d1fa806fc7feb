"""The target that was written by the guide alone: public names only, and models on it agree with the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.guide.conftest import FOLDERS

import weft
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops.activation import Relu, Sigmoid
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Concat
from weft_ops.normalization import Softmax
from weft_ops.reduction import ReduceMean
from weft_ops.sorting import TopK
from weft_ops.window import AveragePool, MaxPool
from weft_runtime.device import open_device
from weft_runtime.executable import Executable
from weft_testing.imports import imports_beyond
from weft_testing.models import mlp

SIZE = 19  # of pictures: strips, windows and strides all have a rest


def cnn() -> Graph:
    """Strides, a depthwise and a dilated convolution, a sum around one, both pools, a concatenation, a dense layer: `x`
    float32[2, 3, 19, 19] → `y`."""
    rng = np.random.default_rng(4)
    g = GraphBuilder("cnn")

    def data(*shape: int) -> Value:
        return g.constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32), "w")

    def conv(x: Value, before: int, after: int, size: int = 3, **attributes: Any) -> Value:
        weights = data(after, before // attributes.get("groups", 1), size, size)
        return g.add(Add(), g.add(Conv(**attributes), x, weights), data(after, 1, 1))

    around = {"pads": (1, 1, 1, 1)}
    x = g.input("x", tensor_type("float32", (2, 3, SIZE, SIZE)))
    y = g.add(Relu(), conv(x, 3, 12, strides=(2, 2), **around))
    z = g.add(Sigmoid(), conv(y, 12, 12, groups=12, **around))
    y = g.add(Relu(), g.add(Add(), y, conv(z, 12, 12, 1)))
    y = g.add(Concat(axis=1), *(g.add(pool(kernel=(2, 2), strides=(2, 2)), y) for pool in (MaxPool, AveragePool)))
    y = g.add(Relu(), conv(y, 24, 70, dilations=(2, 2), pads=(2, 2, 2, 2)))
    y = g.add(
        Softmax(),
        g.add(Add(), g.add(MatMul(), g.add(ReduceMean(axes=(2, 3), keepdims=False), y), data(70, 10)), data(10)),
    )
    g.output(y, "y")
    return g.build()


def agrees(executable: Executable, host: Executable, x: Any) -> None:
    """To a few units in the last place of the greatest: sums are added in another order."""
    (want,) = host.run({"x": x}).values()
    (got,) = executable.run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=4e-6 * max(1.0, float(np.abs(want).max())))


def test_nothing_but_public_names_is_imported() -> None:
    assert imports_beyond(FOLDERS["wave"]) == []  # neither the package nor its tests do
    assert len(list((FOLDERS["wave"] / "weft_wave").glob("*.py"))) >= 10


def test_a_plugin_that_is_not_used_imports_nothing_heavy() -> None:
    code = (
        "import sys, weft_wave.plugin; print([m for m in ('numpy', 'typer', 'weft.loop', 'weft_wave.codegen') if m in"
        " sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDERS["wave"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.usefixtures("wave")
@pytest.mark.parametrize("batch", [3, "batch"])
def test_an_mlp_agrees_with_the_host(batch: int | str) -> None:
    graph = mlp(batch=batch, features=(40, 130, 64, 7))
    both, host = (weft.compile(graph, target, cache=False) for target in ("wave, llvm", "llvm"))
    assert {s.kind for s in both.manifest.steps} <= {"copy", "device"}
    for rows in (3,) if isinstance(batch, int) else (1, 5):
        agrees(both, host, np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32))


@pytest.mark.usefixtures("wave")
def test_convolutions_agree_with_the_host(tmp_path: Path) -> None:
    both, host = (weft.compile(cnn(), target, cache=False) for target in ("wave, llvm", "llvm"))
    assert [s.kind for s in both.manifest.steps] == ["copy", "device", "copy"]
    x = np.random.default_rng(0).standard_normal((2, 3, SIZE, SIZE)).astype(np.float32)
    before = open_device("wave").cycles  # type: ignore[attr-defined]
    agrees(both, host, x)
    assert open_device("wave").cycles > before  # type: ignore[attr-defined]
    both.save(tmp_path / "cnn.weft")
    agrees(Executable.load(tmp_path / "cnn.weft"), host, x)


@pytest.mark.usefixtures("wave")
def test_what_it_does_not_take_is_computed_by_the_host() -> None:
    g = GraphBuilder("best")
    x = g.input("x", tensor_type("float32", (4, 30)))
    weights = np.random.default_rng(2).standard_normal((30, 70)).astype(np.float32)
    g.output(g.add_all(TopK(k=3), g.add(MatMul(), x, g.constant(weights, "w")))[0], "y")
    graph = g.build()
    both, host = (weft.compile(graph, target, cache=False) for target in ("wave, llvm", "llvm"))
    assert [s.kind for s in both.manifest.steps] == ["copy", "device", "copy", "native"]
    agrees(both, host, np.random.default_rng(1).standard_normal((4, 30)).astype(np.float32))
    with pytest.raises(weft.WeftError, match=r"1 of 2 nodes are not computed by 'wave'\n.*TopK.*\n.*wave: "):
        weft.compile(graph, "wave, llvm", strict=True, cache=False)
