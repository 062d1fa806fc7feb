"""Random numbers of programs and of networks: their shapes, and that their means are within five standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.coreml.models import network, one

import weft
from weft.errors import UnsupportedError
from weft.graph.evaluate import evaluate

F = np.float32
SHAPE = (40, 50)
# Operator or layer, its parameters, mean and standard deviation of its numbers.
PROGRAMS: list[tuple[str, dict[str, Any], float, float]] = [
    ("random_uniform", {"low": 2.0, "high": 6.0}, 4.0, 4 / 12**0.5), ("random_uniform", {}, 0.5, 1 / 12**0.5),
    ("random_normal", {"mean": 3.0, "stddev": 0.5}, 3.0, 0.5), ("random_bernoulli", {"prob": 0.25}, 0.25, 0.1875**0.5),
]  # fmt: skip
LAYERS: list[tuple[str, dict[str, Any], float, float]] = [
    ("randomUniform", {"minVal": 2.0, "maxVal": 6.0}, 4.0, 4 / 12**0.5),
    ("randomNormal", {"mean": 3.0, "stdDev": 0.5}, 3.0, 0.5), ("randomBernoulli", {"prob": 0.25}, 0.25, 0.1875**0.5),
]  # fmt: skip


def plausible(found: Any, mean: float, deviation: float) -> None:
    assert abs(found.mean() - mean) < 5 * deviation / found.size**0.5
    assert abs(found.std() - deviation) < 0.1 * deviation


@pytest.mark.parametrize("kind, given, mean, deviation", PROGRAMS)
@pytest.mark.parametrize("seed", [-1, 7])
def test_operators(kind: str, given: Any, mean: float, deviation: float, seed: int) -> None:
    model = one(kind, {}, {"shape": list(SHAPE), "seed": seed, **given}, [np.zeros(SHAPE, F)])
    graph = weft.load(model, frontend="coreml")
    first, second = evaluate(graph, {})[0], evaluate(graph, {})[0]
    assert first.shape == SHAPE and first.dtype == F
    plausible(first, mean, deviation)
    assert np.array_equal(first, second) == (seed != -1)


def test_an_operator_takes_its_shape_at_run_time() -> None:
    shape = np.array(SHAPE, np.int32)
    model = one("random_normal", {"shape": shape}, {"mean": 1.0}, [("FLOAT32", (None, None))])
    found = evaluate(weft.load(model, frontend="coreml"), {"shape": shape})[0]
    assert found.shape == SHAPE
    plausible(found, 1.0, 1.0)


@pytest.mark.parametrize("kind, given, mean, deviation", LAYERS)
@pytest.mark.parametrize("how", ["Like", "Static", "Dynamic"])
def test_layers(kind: str, given: Any, mean: float, deviation: float, how: str) -> None:
    inputs = {"Like": {"a": np.zeros(SHAPE, F)}, "Static": {}, "Dynamic": {"a": np.array(SHAPE, F)}}[how]
    parameters = {**given, "seed": 3, **({"outputShape": list(SHAPE)} if how == "Static" else {})}
    found = evaluate(weft.load(network(kind + how, parameters, inputs), frontend="coreml"), inputs)[0]
    assert found.shape == SHAPE and found.dtype == F
    plausible(found, mean, deviation)


CHANCES = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], F)


def shares(found: Any) -> Any:
    return np.stack([(found == k).mean(1) for k in range(3)], 1)


@pytest.mark.parametrize("mode", ["logits", "probs"])
def test_categories(mode: str) -> None:
    x = CHANCES if mode == "probs" else np.log(CHANCES) + 3
    model = one("random_categorical", {"x": x}, {"mode": mode, "size": 4000, "seed": 5}, [np.zeros((2, 4000), F)])
    found = evaluate(weft.load(model, frontend="coreml"), {"x": x})[0]
    assert found.dtype == F and np.allclose(shares(found), CHANCES, atol=0.04)
    parameters = {"numSamples": 4000, "seed": 5, "isLogits": mode == "logits", "temperature": 1.0}
    graph = weft.load(network("categoricalDistribution", parameters, {"a": x}), frontend="coreml")
    assert np.allclose(shares(evaluate(graph, {"a": x})[0]), CHANCES, atol=0.04)
    with pytest.raises(UnsupportedError, match=r"temperature of 0\.5"):
        weft.load(network("categoricalDistribution", {**parameters, "temperature": 0.5}, {"a": x}), frontend="coreml")
