"""Whole models: a MobileNet-like net against LiteRT, interpreted, compiled, loaded again, and for another batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import Graph, ModelWriter
from tests.frontends.tflite.oracle import litert

import weft
from weft.hooks import StageReport
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend

RNG = np.random.default_rng(3)
WINDOW = {"padding": 0, "stride_w": 1, "stride_h": 1, "fused_activation_function": 3}


def numbers(*shape: int) -> Any:
    return RNG.normal(0, 0.4, shape).astype(np.float32)


def mobilenet(batch: int = -1) -> bytes:
    """A convolution, two blocks of depthwise and pointwise ones with a residual, pooling, a dense layer, softmax."""
    model = ModelWriter()
    graph: Graph = model.graph()
    x = graph.input("float32", (batch, 16, 16, 3), name="image")

    def conv(x: int, channels: int, out: int, size: int, stride: int) -> int:
        shape = {"shape": (1, size, size, out), "type": "float32"}
        w, b = graph.constant(numbers(out, 3, 3, channels)), graph.constant(numbers(out))
        return graph.op("CONV_2D", [x, w, b], [shape], **{**WINDOW, "stride_w": stride, "stride_h": stride})[0]

    def block(x: int, channels: int, size: int) -> int:
        shape = {"shape": (1, size, size, channels), "type": "float32"}
        w, b = graph.constant(numbers(1, 3, 3, channels)), graph.constant(numbers(channels))
        y = graph.op("DEPTHWISE_CONV_2D", [x, w, b], [shape], depth_multiplier=1, **WINDOW)[0]
        w, b = graph.constant(numbers(channels, 1, 1, channels)), graph.constant(numbers(channels))
        y = graph.op("CONV_2D", [y, w, b], [shape], **{**WINDOW, "fused_activation_function": 0})[0]
        return graph.op("ADD", [x, y], [shape])[0]

    y = conv(x, 3, 16, 8, 2)
    for _ in range(2):
        y = block(y, 16, 8)
    pooled = {"shape": (1, 1, 1, 16), "type": "float32"}
    y = graph.op("AVERAGE_POOL_2D", [y], [pooled], padding=1, stride_w=8, stride_h=8, filter_width=8, filter_height=8)[
        0
    ]
    y = graph.op("RESHAPE", [y, graph.constant(np.int32([-1, 16]))], [{"shape": (1, 16), "type": "float32"}])[0]
    ten = {"shape": (1, 10), "type": "float32"}
    y = graph.op("FULLY_CONNECTED", [y, graph.constant(numbers(10, 16)), graph.constant(numbers(10))], [ten])[0]
    graph.outputs = graph.op("SOFTMAX", [y], [{**ten, "name": "scores"}], beta=1.0)
    return model.bytes()


@pytest.mark.needs("ai_edge_litert", "weft_llvm")
def test_a_mobilenet() -> None:
    model = mobilenet()
    others = [{"image": numbers(3, 16, 16, 3)}]
    check_frontend(FrontendCase(model, {"image": numbers(1, 16, 16, 3)}, litert(model), "tflite", others=others))


def step(model: ModelWriter, name: str, operator: str, number: float) -> None:
    """A sub-graph of (count, x): count + 1 and x with a number."""
    graph = model.graph(name)
    count, x = graph.input("int32", (), name="count"), graph.input("float32", (3,), name="x")
    one = {"shape": (), "type": "int32"}
    more = graph.op("ADD", [count, graph.constant(np.int32(1))], [one])[0]
    y = graph.op(operator, [x, graph.constant(np.float32(number))], [{"shape": (3,), "type": "float32"}])[0]
    graph.outputs = [more, y]


@pytest.mark.needs("ai_edge_litert")
def test_branches() -> None:
    model = ModelWriter()
    graph = model.graph()
    test, count = graph.input("bool", (), name="test"), graph.input("int32", (), name="count")
    x = graph.input("float32", (3,), name="x")
    step(model, "then", "MUL", 3.0)
    step(model, "else", "SUB", 1.5)
    results = [{"shape": (), "type": "int32"}, {"shape": (3,), "type": "float32"}]
    graph.outputs = graph.op("IF", [test, count, x], results, then_subgraph_index=1, else_subgraph_index=2)
    data = model.bytes()
    feeds = [{"test": np.array(t), "count": np.array(4, np.int32), "x": numbers(3)} for t in (True, False)]
    check_frontend(FrontendCase(data, feeds[0], litert(data), "tflite", others=feeds[1:]), target=None)


@pytest.mark.needs("ai_edge_litert")
def test_loops() -> None:
    model = ModelWriter()
    graph = model.graph()
    count, x = graph.input("int32", (), name="count"), graph.input("float32", (3,), name="x")
    test = model.graph("test")
    inner = test.input("int32", (), name="count")
    test.input("float32", (3,), name="x")
    test.outputs = test.op("LESS", [inner, test.constant(np.int32(5))], [{"shape": (), "type": "bool"}])
    step(model, "body", "MUL", 1.5)
    results = [{"shape": (), "type": "int32"}, {"shape": (3,), "type": "float32"}]
    graph.outputs = graph.op("WHILE", [count, x], results, cond_subgraph_index=1, body_subgraph_index=2)
    data = model.bytes()
    feeds = [{"count": np.array(n, np.int32), "x": numbers(3)} for n in (0, 3, 9)]
    check_frontend(FrontendCase(data, feeds[0], litert(data), "tflite", others=feeds[1:]), target=None)


@pytest.mark.needs("weft_llvm")
def test_one_transposition_is_left() -> None:
    """That of the input, whose layout is the caller's."""
    found: dict[str, Any] = {}

    def look(report: StageReport) -> None:
        if report.stage == "cancel_transposes":
            found["graph"] = report.result

    weft.compile(mobilenet(1), target="llvm", cache=False, on_stage=look)
    names = [n.op.operator_name for n in found["graph"].nodes]
    assert names.count("Conv") == 5 and names.count("Transpose") == 1


def test_changed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(mobilenet(1))
    check_changed_bytes(path, count=60)
