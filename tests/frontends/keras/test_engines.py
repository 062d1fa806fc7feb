"""Keras as an engine: outputs and values between layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras.nets import filled, the_keras

import weft
from weft.graph.evaluate import evaluate
from weft_keras.engines import ENGINES

pytestmark = pytest.mark.needs("keras")


def saved(folder: Path) -> Path:
    keras = the_keras()
    x = keras.Input((6, 5, 3), name="image")
    y = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(x)
    z = keras.layers.Dropout(0.5, name="drop")(y)
    shared = keras.layers.Dense(4, name="shared")
    y = keras.layers.BatchNormalization(name="norm")(shared(shared(z))) * 2.0
    model = filled(keras.Model(x, keras.layers.Dense(3, name="last")(keras.layers.Flatten()(y))))
    path = folder / "m.keras"
    model.save(path)
    return path


def test_outputs_and_values_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (engine,) = ENGINES
    given = {"image": np.random.default_rng(1).standard_normal((2, 6, 5, 3)).astype(np.float32)}
    graph = weft.load(path)
    (want,) = engine.open(str(path), 1)(given)
    np.testing.assert_allclose(evaluate(graph, given)[0], want, rtol=1e-4, atol=1e-5)
    assert engine.values is not None
    ask = engine.values(str(path))
    values: dict[str, Any] = {v.name: v for n in graph.nodes for v in n.outputs}
    found = ask(list(values), given)
    assert {"conv", "norm", "flatten"} <= set(found) and not {"shared", "drop"} & set(found)
    assert ask(["nothing"], given) == {}
    graph.outputs = [values[name] for name in found]
    for name, mine in zip(found, evaluate(graph, given), strict=True):
        np.testing.assert_allclose(mine, found[name], rtol=1e-4, atol=1e-5, err_msg=name)
