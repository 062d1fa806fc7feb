"""Whole models: compiled answers equal the graph's own meaning, and, with --full, those of the framework that made the
model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models import NAMES, TORCH_HINT, export, twin

import weft
from weft import dtypes as dt
from weft.expr.nodes import Var, mul
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops.activation import Gelu, Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Reshape, Transpose
from weft_ops.normalization import LayerNorm, Softmax
from weft_ops.reduction import ReduceMean
from weft_runtime.executable import Executable

pytestmark = pytest.mark.filterwarnings(
    "error::weft.errors.ScheduleWarning"
)  # kernels that a rule failed at would be slow

TOLERANCE = 1e-4
"""Of the largest magnitude of the right answer."""


def assert_near(got: Any, want: Any) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * float(np.abs(want).max()))


def assert_one_native_step(executable: Executable) -> None:
    assert [step.kind for step in executable.manifest.steps] == ["native"], executable.plan


# -- twins, in CI -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layers"), [("resnet18", None), ("bert_base_s128", 2)])
def test_twin(name: str, layers: int | None) -> None:
    model, inputs = twin(name, layers=layers)
    graph = weft.load(model)
    executable = weft.compile(graph, "llvm")
    assert_one_native_step(executable)
    (got,) = executable.run(inputs).values()
    (want,) = evaluate(graph, inputs)
    assert_near(got, want)


# -- models that the framework exports, with --full -------------------------------------------------------------------


@pytest.fixture
def framework() -> None:
    """Absent, it is a failure: a full run that leaves them out would claim too much."""
    missing = [m for m in ("torch", "transformers", "onnxscript") if importlib.util.find_spec(m) is None]
    if missing:
        pytest.fail(f"--full exports models, which needs {', '.join(missing)}: {TORCH_HINT}")


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_framework(name: str, framework: None, tmp_path: Path) -> None:
    path, inputs, want = export(name, tmp_path)
    executable = weft.compile(path, "llvm", cache=False)
    assert_one_native_step(executable)
    (got,) = executable.run(inputs).values()
    assert_near(got, want)


# -- one executable for every size ------------------------------------------------------------------------------------


class _Layers:
    def __init__(self, name: str) -> None:
        self.builder, self.random = GraphBuilder(name), np.random.default_rng(0)

    def weight(self, *shape: int) -> Any:
        return self.builder.constant(
            self.random.normal(0, float(np.prod(shape[1:] or shape)) ** -0.5, shape).astype(np.float32)
        )

    def add(self, op: Any, *inputs: Any) -> Any:
        return self.builder.add(op, *inputs)


def conv_net() -> Graph:
    """Batch, height and width are free; the mean makes the output's size independent of the picture's."""
    net = _Layers("conv_net")
    n, h, w = (Var(s, dt.int64) for s in ("n", "h", "w"))
    x = net.builder.input("x", tensor_type("float32", (n, 3, h, w)))
    x = net.add(Relu(), net.add(Conv(strides=(2, 2), pads=(1, 1, 1, 1)), x, net.weight(20, 3, 3, 3)))
    y = net.add(Relu(), net.add(Conv(pads=(1, 1, 1, 1)), x, net.weight(20, 20, 3, 3)))
    y = net.add(Relu(), net.add(Add(), x, y))
    y = net.add(Conv(pads=(1, 1, 1, 1), groups=20), y, net.weight(20, 1, 3, 3))
    net.builder.output(net.add(MatMul(), net.add(ReduceMean(axes=(2, 3)), y), net.weight(20, 7)), "scores")
    net.builder.output(y, "features")
    return net.builder.build()


def transformer(width: int = 32, heads: int = 4) -> Graph:
    """Batch and sequence are free."""
    net = _Layers("transformer")
    n, s = Var("n", dt.int64), Var("s", dt.int64)
    x = net.builder.input("x", tensor_type("float32", (n, s, width)))
    one, zero = net.builder.constant(np.ones(width, np.float32)), net.builder.constant(np.zeros(width, np.float32))

    def split(value: Any, *order: int) -> Any:
        return net.add(Transpose(order), net.add(Reshape((n, s, heads, width // heads)), value))

    for _ in range(2):
        y = net.add(LayerNorm(), x, one, zero)
        q, k, v = (net.add(MatMul(), y, net.weight(width, width)) for _ in range(3))
        scores = net.add(Softmax(axis=-1), net.add(MatMul(), split(q, 0, 2, 1, 3), split(k, 0, 2, 3, 1)))
        y = net.add(Transpose((0, 2, 1, 3)), net.add(MatMul(), scores, split(v, 0, 2, 1, 3)))
        x = net.add(Add(), x, net.add(MatMul(), net.add(Reshape((n, s, width)), y), net.weight(width, width)))
        y = net.add(Gelu(), net.add(MatMul(), net.add(LayerNorm(), x, one, zero), net.weight(width, 4 * width)))
        x = net.add(Add(), x, net.add(MatMul(), y, net.weight(4 * width, width)))
    net.builder.output(net.add(Reshape((mul(n, s), width)), x), "rows")
    return net.builder.build()


@pytest.mark.parametrize(
    ("graph", "shapes"),
    [
        (conv_net(), [(1, 3, 16, 16), (2, 3, 17, 31), (5, 3, 5, 1), (1, 3, 64, 40)]),
        (transformer(), [(1, 1, 32), (1, 7, 32), (3, 16, 32), (2, 65, 32)]),
    ],
    ids=lambda p: p.name if isinstance(p, Graph) else "",
)
def test_any_size(graph: Graph, shapes: list[tuple[int, ...]]) -> None:
    executable = weft.compile(graph, "llvm")
    assert_one_native_step(executable)
    random = np.random.default_rng(1)
    for shape in shapes:
        x = random.standard_normal(shape).astype(np.float32)
        got = executable.run({"x": x})
        for value, want in zip(got.values(), evaluate(graph, [x])):
            assert_near(value, want)
