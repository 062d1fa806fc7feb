"""Models with random weights, and what Keras says of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")

Shapes = Sequence[tuple[int | None, ...]]


def the_keras() -> Any:
    import keras

    return keras


def filled(model: Any, seed: int = 5) -> Any:
    """The model, with every weight random, so that none is without effect."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        array = np.asarray(the_keras().ops.convert_to_numpy(variable))
        if array.dtype.kind == "f":
            values = rng.standard_normal(array.shape) * 0.4
            positive = "variance" in variable.path
            variable.assign((abs(values) + 0.5 if positive else values).astype(array.dtype))
    return model


def of_layer(make: Callable[[Any], Any], shapes: Shapes, dtypes: Sequence[str] = ()) -> Any:
    """A functional model of one layer, or of a function of symbolic tensors."""
    keras = the_keras()
    kinds = list(dtypes) + ["float32"] * (len(shapes) - len(dtypes))
    inputs = [keras.Input(shape, name=f"x{k}", dtype=d) for k, (shape, d) in enumerate(zip(shapes, kinds))]
    layer = make(keras)
    takes_list = getattr(layer, "_merge_function", None) is not None or len(inputs) == 1
    outputs = layer(inputs[0]) if len(inputs) == 1 else layer(inputs) if takes_list else layer(*inputs)
    return filled(keras.Model(inputs, outputs))


def data(shapes: Shapes, dtypes: Sequence[str] = (), batch: int = 2, open_: int = 5) -> dict[str, Any]:
    """Arrays for inputs `x0`, `x1`, …; integers are small."""
    rng = np.random.default_rng(batch)
    result = {}
    for k, shape in enumerate(shapes):
        dtype = np.dtype(dtypes[k] if k < len(dtypes) else "float32")
        sizes = (batch, *(open_ if d is None else d for d in shape))
        array = rng.integers(0, 5, sizes) if dtype.kind in "iub" else rng.standard_normal(sizes)
        result[f"x{k}"] = array.astype(dtype)
    return result


def answer(model: Any) -> Callable[[Mapping[str, Any]], list[Any]]:
    """The model's own outputs."""
    from weft_keras.engines import runner

    return runner(model)
