"""Training steps: optimisers, clipping, what is trained, and steps that must not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import ExecutionError, GraphError, InputError, UnsupportedError
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops import Add, Exp, Floor, Log, Loop, MatMul, Multiply, ReduceMean, Sqrt, Tanh
from weft_training.optimizers import SGD, Adagrad, AdamW, Optimizer

RNG = np.random.default_rng(0)
W1 = RNG.normal(size=(8, 16)).astype(np.float32) * 0.3
B1 = np.zeros(16, np.float32)
W2 = RNG.normal(size=(16, 3)).astype(np.float32) * 0.3
X = RNG.normal(size=(32, 8)).astype(np.float32)
Y = RNG.normal(size=(32, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, 32)


def perceptron() -> Graph:
    b = GraphBuilder("perceptron")
    x = b.input("x", tensor_type("float32", [32, 8]))
    h = b.add(Tanh(), b.add(Add(), b.add(MatMul(), x, b.constant(W1, "w1")), b.constant(B1, "b1")))
    b.output(b.add(MatMul(), h, b.constant(W2, "w2")), "y")
    return b.build()


OPTIMIZERS: dict[str, tuple[Optimizer, Callable[[Any, Any], Any]]] = {
    "sgd": (SGD(), lambda t, p: t.optim.SGD(p, 0.05)),
    "momentum": (
        SGD(momentum=0.9, weight_decay=0.01),
        lambda t, p: t.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "dampened": (SGD(0.9, dampening=0.5), lambda t, p: t.optim.SGD(p, 0.05, momentum=0.9, dampening=0.5)),
    "nesterov": (SGD(momentum=0.9, nesterov=True), lambda t, p: t.optim.SGD(p, 0.05, momentum=0.9, nesterov=True)),
    "adamw": (AdamW(), lambda t, p: t.optim.AdamW(p, 0.05)),
    "adagrad": (Adagrad(decay=0.1, weight_decay=0.01), lambda t, p: t.optim.Adagrad(p, 0.05, 0.1, 0.01)),
}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_follow_those_of_pytorch(name: str, clip: float | None) -> None:
    import torch

    optimizer, theirs = OPTIMIZERS[name]
    step = weft.compile_training(perceptron(), "squared_error", optimizer, clip=clip)
    parameters = [torch.tensor(a.copy(), requires_grad=True) for a in (W1, B1, W2)]
    other = theirs(torch, parameters)
    for _ in range(40):
        got = float(step({"x": X, "targets": Y}, rate=0.05)["loss"])
        w1, b1, w2 = parameters
        loss = ((torch.tanh(torch.tensor(X) @ w1 + b1) @ w2 - torch.tensor(Y)) ** 2).mean()
        other.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        other.step()
        assert got == pytest.approx(loss.item(), rel=2e-5)
    for parameter, name in zip(parameters, ("w1", "b1", "w2")):
        np.testing.assert_allclose(step.parameters[name], parameter.detach().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("memory", ["min-time", "cut", "sqrt", "1 MB", 1 << 20])
def test_what_is_kept_changes_no_bit(memory: str | int) -> None:
    step = weft.compile_training(perceptron(), optimizer=SGD(0.9), memory=memory)
    want = weft.compile_training(perceptron(), optimizer=SGD(0.9), memory="min-time")
    for _ in range(3):
        a, b = (s({"x": X, "targets": LABELS}, rate=0.1)["loss"] for s in (step, want))
        assert a.tobytes() == b.tobytes()
    assert all(step.parameters[n].tobytes() == want.parameters[n].tobytes() for n in want.parameters)


def test_updates_write_over_parameters() -> None:
    """Neither parameters nor states have a second copy: results have their memory, which the executable says it may."""
    step = weft.compile_training(perceptron(), optimizer=AdamW())
    named = [o.name for o in step.executable.outputs]
    held = {named[k] for s in step.executable.manifest.steps for k, _ in s.overwrites}
    assert held == {f"new.{n}" for n in (*step.parameters, *step.states)}
    before = {n: a.ctypes.data for n, a in (step.parameters | step.states).items()}
    step({"x": X, "targets": LABELS}, rate=0.01)
    assert {n: a.ctypes.data for n, a in (step.parameters | step.states).items()} == before
    assert not np.array_equal(step.parameters["w1"], W1)


def test_the_model_stays_as_it_was() -> None:
    graph = perceptron()
    text = str(graph)
    weft.compile_training(graph)
    assert str(graph) == text and all(v.constant is not None for v in graph.constants())


def test_outputs_come_with_the_loss() -> None:
    step = weft.compile_training(perceptron(), outputs=True)
    results = step({"x": X, "targets": LABELS}, rate=0.0)
    assert set(results) == {"loss", "y"}
    np.testing.assert_allclose(results["y"], np.tanh(X @ W1 + B1) @ W2, rtol=1e-5, atol=1e-5)


def test_only_what_is_named_is_trained() -> None:
    for trainable in (["w2"], lambda name: name == "w2"):
        step = weft.compile_training(perceptron(), trainable=trainable)
        assert list(step.parameters) == ["w2"]
        step({"x": X, "targets": LABELS}, rate=0.1)
    with pytest.raises(InputError, match="no constant of floats called 'w3'") as caught:
        weft.compile_training(perceptron(), trainable=["w3"])
    assert "did you mean 'w" in str(caught.value.hint)


def floored() -> Graph:
    b = GraphBuilder("floored")
    x = b.input("x", tensor_type("float32", [4, 8]))
    b.output(b.add(ReduceMean(), b.add(Floor(), b.add(MatMul(), x, b.constant(W1, "w1")))), "y")
    return b.build()


def test_what_no_gradient_reaches_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="there is nothing to train") as caught:
        weft.compile_training(floored(), None)
    assert "none of the model's constants" in str(caught.value.why)
    with pytest.raises(UnsupportedError, match="no gradient reaches 'w1'") as caught:
        weft.compile_training(floored(), None, trainable=["w1"])
    assert "jumps" in str(caught.value.why)


def test_a_budget_that_cannot_be_met_says_the_least() -> None:
    with pytest.raises(UnsupportedError, match="does not fit") as caught:
        weft.compile_training(perceptron(), memory="2 KB")
    assert "it takes about" in str(caught.value.why)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "much"}, "no amount of memory"),
        ({"memory": -1}, "no amount of memory"),
        ({"loss": "cross_entropie"}, "there is no loss 'cross_entropie'"),
        ({"clip": 0.0}, "clip: expected a positive norm"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        weft.compile_training(perceptron(), **options)


def test_a_loss_is_one_number() -> None:
    with pytest.raises(GraphError, match="it must be one number"):
        weft.compile_training(perceptron(), None)


def test_the_step_has_its_own_inputs() -> None:
    step = weft.compile_training(perceptron())
    with pytest.raises(InputError, match="the step has 'w1' itself"):
        step({"x": X, "targets": LABELS, "w1": W1}, rate=0.1)
    with pytest.raises(InputError, match="missing 'targets'"):
        step({"x": X}, rate=0.1)


def exploding(builder: GraphBuilder, outputs: Sequence[Value]) -> Value:
    return builder.add(ReduceMean(), builder.add(Log(), builder.add(Exp(), outputs[0])))


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_loss_that_is_not_finite_changes_nothing(clip: float | None) -> None:
    step = weft.compile_training(perceptron(), exploding, AdamW(), clip=clip)
    step({"x": X}, rate=0.1)
    before = {n: a.copy() for n, a in (step.parameters | step.states).items()}
    result = step({"x": np.full_like(X, np.nan)}, rate=0.1)
    assert np.isnan(result["loss"]) and step.steps == 1
    assert all(np.array_equal(before[n], a) for n, a in (step.parameters | step.states).items())
    step.parameters["w2"][:] = 1e30
    found = step.first_not_finite({"x": X})
    assert found is not None and "Exp()" in found


def test_models_with_loops_are_trained() -> None:
    """A loop is a step of its own in the plan: parameters and results go through the host there."""
    step_type = tensor_type("float32", [4])
    inside = GraphBuilder("body")
    inside.input("k", tensor_type("int64", []))
    state = inside.input("h", step_type)
    scale = inside.input("s", step_type)
    inside.output(inside.add(Tanh(), inside.add(Multiply(), state, scale)))
    b = GraphBuilder("looped")
    x = b.input("x", step_type)
    trips = b.constant(np.array(3), "trips")
    scale_value = b.constant(np.full(4, 0.5, np.float32), "scale")
    (last,) = b.add_all(Loop(inside.build(), carried=1, count=3), trips, None, x, scale_value)
    b.output(b.add(ReduceMean(), last), "y")
    step = weft.compile_training(b.build(), None, SGD(momentum=0.5))
    given = {"x": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}
    losses = [float(step(given, rate=1.0)["loss"]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_gradients_that_are_not_finite_change_nothing_if_they_are_clipped() -> None:
    """The root of 0 has an infinite derivative, and a loss that is finite."""
    b = GraphBuilder("root")
    x = b.input("x", tensor_type("float32", [4]))
    weights = b.constant(np.ones(4, np.float32), "w")
    b.output(b.add(ReduceMean(), b.add(Sqrt(), b.add(Multiply(), x, weights))), "y")
    step = weft.compile_training(b.build(), None, SGD(momentum=0.9), clip=1.0)
    trainer = weft.Trainer(step, lambda k: {"x": np.full(4, float(k < 2), np.float32)}, rate=0.1, progress=False)
    with pytest.raises(ExecutionError, match="the gradients of step 3 are not finite, its loss is 0"):
        trainer.run(5)
    assert step.steps == 2 and np.isfinite(step.parameters["w"]).all()


def test_names_that_the_step_has_itself() -> None:
    b = GraphBuilder("named")
    x = b.input("x", tensor_type("float32", [4, 8]))
    b.output(b.add(ReduceMean(), b.add(Tanh(), b.add(MatMul(), x, b.constant(W1, "w1")))), "loss")
    assert list(weft.compile_training(b.build(), None, trainable="w1").parameters) == ["w1"]
    with pytest.raises(GraphError, match="outputs called loss"):
        weft.compile_training(b.build(), None, outputs=True)
