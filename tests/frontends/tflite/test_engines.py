"""LiteRT as a peer: what it runs, and the values between operators that it gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.frontends.tflite.models import ModelWriter

from weft_tflite.engines import ENGINES, litert_values, open_litert

pytestmark = pytest.mark.needs("ai_edge_litert")


@pytest.fixture
def path(tmp_path: Path) -> str:
    model = ModelWriter()
    graph = model.graph()
    x = graph.input("float32", (-1, 3), name="x")
    half = graph.op("MUL", [x, graph.constant(np.float32(0.5))], [{"shape": (1, 3), "type": "float32", "name": "half"}])
    graph.outputs = graph.op("NEG", half, [{"shape": (1, 3), "type": "float32", "name": "y"}])
    file = tmp_path / "m.tflite"
    file.write_bytes(model.bytes())
    return str(file)


def test_it_runs_models_of_other_sizes(path: str) -> None:
    run = open_litert(path, 1)
    for batch in (1, 4):
        x = np.arange(3 * batch, dtype=np.float32).reshape(batch, 3)
        np.testing.assert_array_equal(run({"x": x})[0], -x / 2)


def test_it_gives_values_between_operators(path: str) -> None:
    x = np.ones((2, 3), np.float32)
    found = litert_values(path)(["half", "nothing"], {"x": x})
    assert list(found) == ["half"]
    np.testing.assert_array_equal(found["half"], x / 2)


def test_it_is_listed() -> None:
    (engine,) = ENGINES
    assert engine.name == "litert" and engine.available() is not None and engine.values is litert_values
