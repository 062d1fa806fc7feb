"""Models that keep something between calls, against LiteRT over several calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import ModelWriter

import weft
from weft.errors import UnsupportedError
from weft.graph.evaluate import evaluate

RNG = np.random.default_rng(5)
F32 = {"type": "float32"}


def numbers(*shape: int) -> Any:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def several(model: bytes, feeds: list[Any]) -> list[Any]:
    """What LiteRT gives at one call after another."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    results = []
    for x in feeds:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        results.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    return results


def lstm(peepholes: bool = False) -> bytes:
    model = ModelWriter()
    graph = model.graph()
    x = graph.input("float32", (2, 5, 3), name="x")
    weights = [graph.constant(numbers(4, n)) for n in (3, 3, 3, 3, 4, 4, 4, 4)]
    peeps = [graph.constant(numbers(4)) for _ in range(3)] if peepholes else [-1] * 3
    biases = [graph.constant(numbers(4)) for _ in range(4)]
    states = [graph.tensor("float32", (2, 4), name=n, more={5: ("?", True)}) for n in ("h", "c")]
    inputs = [x, *weights, *peeps, *biases, -1, -1, *states]
    graph.outputs = graph.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [{"shape": (2, 5, 4), "name": "y", **F32}],
        fused_activation_function=4, time_major=False,
    )  # fmt: skip
    return model.bytes()


def rnn() -> bytes:
    model = ModelWriter()
    graph = model.graph()
    x = graph.input("float32", (2, 5, 3), name="x")
    parts = [graph.constant(numbers(4, 3)), graph.constant(numbers(4, 4)), graph.constant(numbers(4))]
    h = graph.tensor("float32", (2, 4), name="h", more={5: ("?", True)})
    graph.outputs = graph.op(
        "UNIDIRECTIONAL_SEQUENCE_RNN", [x, *parts, h], [{"shape": (2, 5, 4), "name": "y", **F32}],
        fused_activation_function=4, time_major=False,
    )  # fmt: skip
    return model.bytes()


def counter(assigns: bool = True) -> bytes:
    """A variable that begins as 2 and has x added at every call; the result is what it was, times x."""
    model = ModelWriter()
    graph = model.graph()
    first = model.graph("first")
    resource = {"type": "RESOURCE", "shape": ()}
    handle = first.op("VAR_HANDLE", [], [resource], shared_name="total")[0]
    first.op("ASSIGN_VARIABLE", [handle, first.constant(np.full(3, 2, np.float32))], [])
    x = graph.input("float32", (3,), name="x")
    graph.op("CALL_ONCE", [], [], init_subgraph_index=1)
    handle = graph.op("VAR_HANDLE", [], [resource], shared_name="total")[0]
    old = graph.op("READ_VARIABLE", [handle], [{"shape": (3,), **F32}])[0]
    if assigns:
        graph.op("ASSIGN_VARIABLE", [handle, graph.op("ADD", [old, x], [{"shape": (3,), **F32}])[0]], [])
    graph.outputs = graph.op("MUL", [old, x], [{"shape": (3,), "name": "y", **F32}])
    return model.bytes()


def svdf() -> bytes:
    model = ModelWriter()
    graph = model.graph()
    x = graph.input("float32", (2, 3), name="x")
    parts = [graph.constant(numbers(*s)) for s in ((8, 3), (8, 5), (4,))]
    kept = graph.tensor("float32", (2, 40), name="kept", more={5: ("?", True)})
    result = {"shape": (2, 4), "name": "y", **F32}
    graph.outputs = graph.op("SVDF", [x, *parts, kept], [result], rank=2, fused_activation_function=1)
    return model.bytes()


def one_step() -> bytes:
    model = ModelWriter()
    graph = model.graph()
    x = graph.input("float32", (2, 3), name="x")
    parts = [graph.constant(numbers(*s)) for s in ((4, 3), (4, 4), (4,))]
    h = graph.tensor("float32", (2, 4), name="h", more={5: ("?", True)})
    graph.outputs = graph.op(
        "RNN", [x, *parts, h], [{"shape": (2, 4), "name": "y", **F32}], fused_activation_function=4
    )
    return model.bytes()


MODELS = {
    "svdf": svdf(),
    "one step": one_step(),
    "lstm": lstm(),
    "lstm with peepholes": lstm(True),
    "rnn": rnn(),
    "variable": counter(),
}


@pytest.mark.needs("ai_edge_litert")
@pytest.mark.parametrize("name", MODELS)
def test_states_that_are_inputs(name: str) -> None:
    model = MODELS[name]
    graph = weft.load(model, frontend="tflite", state="inputs")
    states = {v.name: np.zeros(v.shape, np.float32) for v in graph.inputs[1:]}
    if name == "variable":
        states = {"total": np.full(3, 2, np.float32)}
    assert graph.output_names == ["y", *sorted(f"{n}.after" for n in states)]
    feeds = [numbers(*graph.inputs[0].shape) for _ in range(3)]
    for x, wanted in zip(feeds, several(model, feeds)):
        y, *after = evaluate(graph, {"x": x, **states})
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
        states = dict(zip(sorted(states), after))


@pytest.mark.needs("ai_edge_litert")
@pytest.mark.parametrize("name", MODELS)
def test_states_that_begin_anew(name: str) -> None:
    model = MODELS[name]
    graph = weft.load(model, frontend="tflite", state="fresh")
    x = numbers(*graph.inputs[0].shape)
    (y,) = evaluate(graph, {"x": x})
    np.testing.assert_allclose(y, several(model, [x])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_state_that_nothing_is_said_of(name: str) -> None:
    with pytest.raises(UnsupportedError, match="it keeps a state between calls: the option state: 'fresh' begins"):
        weft.load(MODELS[name], frontend="tflite")


def test_a_variable_that_no_call_changes() -> None:
    (y,) = evaluate(weft.load(counter(False), frontend="tflite"), {"x": np.float32([1, 2, 3])})
    np.testing.assert_array_equal(y, [2, 4, 6])
