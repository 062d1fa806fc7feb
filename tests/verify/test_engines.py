"""Against an engine: a converter that is wrong is found by the engine's values between nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.needs import require
from tests.verify.planted import given, model, verify

from weft.graph.evaluate import evaluate
from weft.loading import load
from weft_testing.verify.verify import Engine


def onnx_model(path: Path) -> Path:
    """Three nodes of products, differences and tanh; the second difference is `difference1`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for k in range(3):
        weights.append(numpy_helper.from_array(random.standard_normal((6, 6)).astype(np.float32), f"w{k}"))
        weights.append(numpy_helper.from_array(random.standard_normal(6).astype(np.float32), f"b{k}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{k}"], [f"p{k}"], name=f"product{k}"))
        nodes.append(helper.make_node("Sub" if k == 1 else "Add", [f"p{k}", f"b{k}"], [f"d{k}"], name=f"difference{k}"))
        nodes.append(helper.make_node("Tanh", [f"d{k}"], [f"t{k}"], name=f"tanh{k}"))
        x = f"t{k}"
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6])] for name in ("x", x)]
    graph = helper.make_graph(nodes, "three", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def onnxruntime(path: Path) -> Engine:
    require("onnxruntime")
    from weft_onnx.engines import ENGINES

    kind = next(k for k in ENGINES if k.name == "onnxruntime")
    assert kind.values is not None
    return Engine("onnxruntime", kind.open(str(path), 1), kind.values(str(path)))


def inputs() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)}


def test_a_model_that_is_read_rightly(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "model.onnx")
    found = verify(load(path), inputs(), "llvm", onnxruntime(path), every=True)
    assert found.passed and found.against == "onnxruntime"


def test_a_converter_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_frontend.registry import Registered
    from weft_onnx.registry import REGISTRY
    from weft_ops import Add

    path = onnx_model(tmp_path / "model.onnx")
    engine = onnxruntime(path)

    def wrong(c: Any) -> Any:
        return c(Add(), c.value(0), c.value(1))

    load(path)  # converters are registered with the first model
    monkeypatch.setitem(REGISTRY._converters, ("", "Sub"), [Registered(wrong, 1, 10_000)])
    found = verify(load(path), inputs(), "llvm", engine)
    (blame,) = found.blames
    assert (blame.kind, blame.operator, blame.names) == ("frontend", "Add", ("difference1",))
    assert blame.target == "" and blame.title == "the model is read otherwise"
    assert (
        blame.why
        == "the graph's reference and onnxruntime differ: what the frontend made of the model, or onnxruntime, is wrong"
    )
    assert blame.carried is not None and blame.carried.wrong


def test_an_engine_that_tells_no_values() -> None:
    graph = model()

    def run(arrays: Mapping[str, Any]) -> list[Any]:
        return [r + np.float32(0.5) for r in evaluate(graph, arrays)]

    found = verify(graph, given(), "llvm", Engine("other", run))
    (blame,) = found.blames
    assert (blame.kind, blame.node, blame.names) == ("frontend", "", ())


def test_values_are_asked_for_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_testing.verify.verify import _EngineValues

    monkeypatch.setattr(_EngineValues, "AT_ONCE", 2)
    graph, asked = model(), []
    known: dict[str, Any] = {}
    evaluate(graph, given(), lambda value, array: known.update({value.name: array}))

    def values(names: Sequence[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(tuple(names))
        return {n: known[n] + np.float32(n == "bias1") for n in names if n != "product1"}

    def run(arrays: Mapping[str, Any]) -> list[Any]:
        return [known["end2"] + np.float32(0.5)]

    found = verify(graph, given(), "llvm", Engine("other", run, values))
    assert found.blames[0].names == ("layer1/bias",)
    assert asked == [("product0", "bias0"), ("end0", "product1"), ("bias1", "end1")]
