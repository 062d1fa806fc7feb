"""Statistics of batch normalisations: by their batches, running ones as states, those that a model updates itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import weft
from weft.errors import ExecutionError, InputError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import Add, BatchNorm, If, MatMul, Multiply, Tanh
from weft_training.step import TrainingStep

RNG = np.random.default_rng(5)
WEIGHTS = {
    "w": RNG.normal(size=(4, 3)),
    "scale": RNG.normal(size=3) + 1,
    "bias": RNG.normal(size=3),
}
MEAN, VARIANCE = RNG.normal(size=3), RNG.uniform(0.5, 2, 3)
EPSILON, RATE, BATCH = 1e-3, 0.2, 6


def normalised(batch: Any = BATCH, uses: int = 1) -> Graph:
    """`uses`: how often it goes through the same normalisation."""
    b = GraphBuilder("normalised")
    x = b.input("x", tensor_type("float32", [batch, 4]))
    values = {n: b.constant(a.astype(np.float32), n) for n, a in {**WEIGHTS, "mean": MEAN, "var": VARIANCE}.items()}
    y = b.add(MatMul(), x, values["w"])
    for _ in range(uses):
        y = b.add(BatchNorm(EPSILON), y, values["scale"], values["bias"], values["mean"], values["var"])
    b.output(b.add(Tanh(), y), "y")
    return b.build()


def batch(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {n: rng.normal(size=(BATCH, k)).astype(np.float32) for n, k in (("x", 4), ("targets", 3))}


def loss_of(weights: dict[str, Any], given: dict[str, Any]) -> tuple[float, Any]:
    """The loss in float64, and what is normalised."""
    h = given["x"].astype(np.float64) @ weights["w"]
    low = h - h.mean(0)
    y = np.tanh(low / np.sqrt((low * low).mean(0) + EPSILON) * weights["scale"] + weights["bias"])
    return float(((y - given["targets"]) ** 2).mean()), h


def descended(weights: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The weights after a step of gradient descent, by central differences."""
    results = {n: a.copy() for n, a in weights.items()}
    for name, array in weights.items():
        for k in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {n: a.copy() for n, a in weights.items()}
                moved[name][k] += step
                sides.append(loss_of(moved, given)[0])
            results[name][k] -= RATE * (sides[0] - sides[1]) / 2e-6
    return results


def interpreted(step: TrainingStep, given: dict[str, Any], rate: float = RATE) -> float:
    """One step by the definitions of the operators; the loss."""
    graph = step.planned.graph
    own = step.parameters | step.states
    inputs = {**given, **own, "learning_rate": np.float32(rate), "step": np.float64(step.steps + 1)}
    found = evaluate(graph, {v.name: np.asarray(inputs[v.name]) for v in graph.inputs})
    results = dict(zip(graph.output_names, found))
    for name, array in own.items():
        array[...] = results[f"new.{name}"]
    step.steps += 1
    return float(results["loss"])


@pytest.mark.parametrize("how", ["llvm", "interpreted"])
def test_steps_follow_the_formulas(how: str) -> None:
    """Against float64: the normalisation by the batch, its gradients, the running mean, and the running variance with
    a divisor of one less. Float32 has 2⁻²⁴, and a dozen operations with sums of a few terms lose less than a hundred
    times of it."""
    step = weft.compile_training(normalised(), "squared_error", statistics="update", statistics_momentum=0.3)
    assert set(step.parameters) == set(WEIGHTS) and set(step.states) == {"mean", "var"}
    weights, mean, var = {n: a.astype(np.float32).astype(np.float64) for n, a in WEIGHTS.items()}, MEAN, VARIANCE
    for k in range(4):
        given = batch(k)
        got = interpreted(step, given) if how == "interpreted" else float(step(given, RATE)["loss"])
        want, h = loss_of(weights, given)
        weights = descended(weights, given)
        mean, var = 0.7 * mean + 0.3 * h.mean(0), 0.7 * var + 0.3 * h.var(0, ddof=1)
        assert got == pytest.approx(want, rel=1e-5)
    for name, want_array in {**weights, "mean": mean, "var": var}.items():
        np.testing.assert_allclose((step.parameters | step.states)[name], want_array, rtol=1e-5, atol=1e-5)


def residual(depth: int) -> Graph:
    """Blocks of a product, a batch normalisation and a tanh, each beside a residual."""
    rng = np.random.default_rng(depth)
    b = GraphBuilder("residual")
    h = b.input("x", tensor_type("float32", [256, 16]))
    for k in range(depth):
        y = b.add(MatMul(), h, b.constant(rng.normal(size=(16, 16)).astype(np.float32) / 4, f"w{k}"))
        starts = {"scale": np.ones, "bias": np.zeros, "mean": np.zeros, "var": np.ones}
        y = b.add(BatchNorm(), y, *(b.constant(of(16, np.float32), f"{n}{k}") for n, of in starts.items()))
        h = b.add(Add(), h, b.add(Tanh(), y))
    b.output(h, "y")
    return b.build()


def test_memory_grows_with_the_square_root_of_the_depth_beside_them() -> None:
    """Running statistics read means of the forward pass, which must not be computed again for them, all at once."""
    made = {d: [trained(residual(d), memory) for memory in ("sqrt", "min-time")] for d in (8, 32)}
    peaks = {d: [step.planned.peak for step in steps] for d, steps in made.items()}
    assert peaks[32][0] < 2.5 * peaks[8][0] and peaks[32][1] > 3.5 * peaks[8][1]
    assert 2 * peaks[32][0] < peaks[32][1] and made[32][0].planned.again > 0.5
    rng = np.random.default_rng(0)
    given = {n: rng.normal(size=(256, 16)).astype(np.float32) for n in ("x", "targets")}
    one, other = made[32]
    for _ in range(2):  # sums are fused with other operators in the one than in the other
        np.testing.assert_allclose(one(given, RATE)["loss"], other(given, RATE)["loss"], rtol=1e-5)
    for name, array in other.states.items():
        np.testing.assert_allclose(one.states[name], array, rtol=1e-3, atol=1e-4)


def trained(graph: Graph, memory: Any) -> TrainingStep:
    return weft.compile_training(graph, "squared_error", weft.SGD(0.9), memory=memory, statistics="update")


def test_statistics_of_a_normalisation_that_is_used_twice_move_twice() -> None:
    step = weft.compile_training(normalised(uses=2), "squared_error", statistics="update")
    given = batch(0)
    step(given, 0.0)
    h = given["x"].astype(np.float64) @ WEIGHTS["w"]
    y = (h - h.mean(0)) / np.sqrt(h.var(0) + EPSILON) * WEIGHTS["scale"] + WEIGHTS["bias"]
    mean = 0.9 * (0.9 * MEAN + 0.1 * h.mean(0)) + 0.1 * y.mean(0)
    np.testing.assert_allclose(step.states["mean"], mean, rtol=1e-5, atol=1e-6)


def test_a_constant_that_stands_for_several_is_not_shared() -> None:
    """Exporters write equal weights once: zeros may be means, and the biases of layers."""
    b = GraphBuilder("shared")
    x = b.input("x", tensor_type("float32", [6, 3]))
    zeros, ones = (b.constant(np.full(3, n, np.float32), name) for n, name in ((0, "zeros"), (1, "ones")))
    scales = [b.constant(np.full(3, n, np.float32), f"scale{n}") for n in (1, 2)]
    h = b.add(BatchNorm(EPSILON), x, scales[0], zeros, zeros, ones)
    b.output(b.add(BatchNorm(EPSILON), h, scales[1], zeros, zeros, ones), "y")
    step = weft.compile_training(b.build(), "squared_error", statistics="update")
    assert set(step.parameters) == {"zeros", "scale1", "scale2"}
    means, variances = (sorted(n for n in step.states if n.startswith(k)) for k in ("zeros", "ones"))
    assert len(means) == len(variances) == 2 and "zeros" not in means
    given = {"x": batch(0)["targets"] + 1, "targets": np.zeros((6, 3), np.float32)}
    step(given, 0.0)
    x0 = given["x"].astype(np.float64)
    y0 = (x0 - x0.mean(0)) / np.sqrt(x0.var(0) + EPSILON)
    for name, value in zip(means, (x0, y0)):
        np.testing.assert_allclose(step.states[name], 0.1 * value.mean(0), rtol=1e-5, atol=1e-6)
    for name, value in zip(variances, (x0, y0)):
        np.testing.assert_allclose(step.states[name], 0.9 + 0.1 * value.var(0, ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(step.parameters["zeros"], np.zeros(3))


def test_by_default_they_are_constants() -> None:
    step = weft.compile_training(normalised(), "squared_error")
    assert set(step.parameters) == set(WEIGHTS) and not step.states
    assert "mean" not in {i.name for i in step.executable.inputs}


def test_a_step_that_is_taken_back_leaves_them(tmp_path: Path) -> None:
    step = weft.compile_training(normalised(), "squared_error", statistics="update")
    step(batch(0), RATE)
    before = {n: a.copy() for n, a in step.states.items()}
    given = batch(1)
    step({**given, "targets": np.full_like(given["targets"], np.inf)}, RATE)
    assert step.steps == 1 and all(np.array_equal(before[n], a) for n, a in step.states.items())
    assert not np.allclose(before["mean"], MEAN)


def test_a_checkpoint_has_them(tmp_path: Path) -> None:
    step = weft.compile_training(normalised(), "squared_error", statistics="update")
    step(batch(0), RATE)
    step.save(tmp_path / "c.safetensors")
    again = weft.compile_training(normalised(), "squared_error", statistics="update")
    again.load(tmp_path / "c.safetensors")
    for one in (step, again):
        one(batch(1), RATE)
    assert all(a.tobytes() == again.states[n].tobytes() for n, a in step.states.items())
    assert all(a.tobytes() == again.parameters[n].tobytes() for n, a in step.parameters.items())


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_they_follow_those_of_pytorch(mode: str) -> None:
    """A module in training mode trains as in PyTorch; one that is exported for inference does with "update"."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    model[1].running_mean.normal_()
    model.train(mode == "train")
    x, y = torch.randn(5, 8, 3, 6, 6), torch.randint(0, 3, (5, 8))
    step = weft.compile_training(
        model,
        "cross_entropy",
        weft.SGD(momentum=0.9),
        statistics="model" if mode == "train" else "update",
        inputs=(x[0],),
    )
    name = next(i.name for i in step.executable.inputs if i.name not in {**step.parameters, **step.states})
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for k in range(5):
        got = float(step({name: x[k].numpy(), "targets": y[k].numpy()}, rate=0.1)["loss"])
        loss = nn.functional.cross_entropy(model(x[k]), y[k])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert got == pytest.approx(loss.item(), rel=2e-5)
    wanted = {n: a.detach().numpy() for n, a in model.state_dict().items()}
    if mode == "eval":
        del wanted["1.num_batches_tracked"]  # what the inference does not read is not in the model
    for n, want in wanted.items():
        np.testing.assert_allclose((step.parameters | step.states)[n], want, rtol=1e-4, atol=1e-5)


def test_an_onnx_model_in_training_mode_has_its_own() -> None:
    """With its momentum, and the variance with the number of elements as divisor, which ONNX says."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[6, 3] x) => (float[6, 3] y, float[3] next_mean, float[3] next_var)
        <float[3] s = {1.0, 2.0, 0.5}, float[3] b = {0.0, 1.0, 0.0}, float[3] mean = {1.0, 2.0, 3.0},
         float[3] var = {1.0, 1.0, 2.0}> {
            y, next_mean, next_var = BatchNormalization <training_mode = 1, momentum = 0.8> (x, s, b, mean, var)
        }"""
    )
    step = weft.compile_training(model, "squared_error", outputs=True)
    assert set(step.parameters) == {"s", "b"} and set(step.states) == {"mean", "var"}
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for _ in range(2):
        results = step({"x": x, "targets": np.zeros((6, 3), np.float32)}, rate=0.1)
    assert set(results) == {"loss", "y"}
    for name, start, now in (("mean", np.array([1, 2, 3]), x.mean(0)), ("var", np.array([1, 1, 2]), x.var(0))):
        np.testing.assert_allclose(step.states[name], 0.64 * start + 0.36 * now, rtol=1e-5, atol=1e-6)


def test_an_onnx_model_may_have_one_constant_for_several() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[6, 3] x) => (float[6, 3] y, float[3] next_mean, float[3] next_var)
        <float[3] ones = {1.0, 1.0, 1.0}, float[3] b = {0.0, 1.0, 0.0}> {
            y, next_mean, next_var = BatchNormalization <training_mode = 1> (x, ones, b, ones, ones)
        }"""
    )
    step = weft.compile_training(model, "squared_error")
    assert set(step.parameters) == {"ones", "b"} and len(step.states) == 2
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    step({"x": x, "targets": np.zeros((6, 3), np.float32)}, rate=0.0)
    np.testing.assert_array_equal(step.parameters["ones"], np.ones(3))
    for state, now in zip(step.states.values(), (x.mean(0), x.var(0))):
        np.testing.assert_allclose(state, 0.9 + 0.1 * now, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": "frozen"}, "statistics: expected 'model' or 'update', got 'frozen'"),
        ({"statistics": "update", "statistics_momentum": 1.5}, "statistics_momentum: expected 0 … 1, got 1.5"),
        ({"statistics": "update", "trainable": ["w", "mean"]}, "'mean' is not trained: each step writes"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        weft.compile_training(normalised(), "squared_error", **options)


def test_a_batch_of_one_has_no_variance() -> None:
    with pytest.raises(UnsupportedError, match="needs several elements for each of its means") as caught:
        weft.compile_training(normalised(1), "squared_error", statistics="update")
    assert "float32[1, 3]" in str(caught.value.why)
    step = weft.compile_training(normalised(Var("n")), "squared_error", statistics="update")
    step(batch(0), RATE)
    with pytest.raises(ExecutionError, match="the batch has 1"):
        step({n: a[:1] for n, a in batch(0).items()}, RATE)
    assert step.steps == 1


def test_what_has_no_running_statistics_is_refused() -> None:
    inner = GraphBuilder("then")
    x = inner.input("h", tensor_type("float32", [6, 3]))
    vectors = [inner.constant(np.ones(3, np.float32), n) for n in ("s", "b", "m", "v")]
    inner.output(inner.add(BatchNorm(), x, *vectors))
    other = GraphBuilder("orelse")
    other.output(other.add(Tanh(), other.input("k", tensor_type("float32", [6, 3]))))
    b = GraphBuilder("branch")
    h = b.add(
        Multiply(), b.input("x", tensor_type("float32", [6, 3])), b.constant(np.ones((6, 3), np.float32), "weight")
    )
    condition = b.input("on", tensor_type("bool", []))
    b.output(b.add_all(If(inner.build(), other.build()), condition, h, h)[0], "y")
    with pytest.raises(UnsupportedError, match="in the body of a branch or loop has no running statistics"):
        weft.compile_training(b.build(), "squared_error", statistics="update")
    b = GraphBuilder("sums")
    x = b.input("x", tensor_type("float32", [6, 3]))
    s, o, m, v = (b.constant(np.ones(3, np.float32), n) for n in ("s", "o", "m", "v"))
    b.output(b.add(BatchNorm(), x, s, o, b.add(Add(), m, o), v), "y")
    with pytest.raises(UnsupportedError, match="statistics of a normalisation are computed of several constants"):
        weft.compile_training(b.build(), "squared_error", statistics="update")
