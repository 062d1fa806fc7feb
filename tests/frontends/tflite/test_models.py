"""Whole models: a MobileNet-like net against LiteRT, interpreted, compiled, loaded again, and for another batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import Graph, ModelWriter
from tests.frontends.tflite.oracle import litert

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


def test_changed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(mobilenet(1))
    check_changed_bytes(path, count=60)
