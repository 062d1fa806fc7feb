"""Keras itself, with the backend that it is set to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def version() -> str | None:
    """The installed version of Keras."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("keras")
    except PackageNotFoundError:
        return None


def runner(model: Any) -> Run:
    """A model's own outputs, by the names of its inputs in Weft's graph."""
    import keras

    from weft_keras.importer import Importer

    importer = Importer(model, None)
    names = [name for name, _ in importer.ends()[0]]
    structure = importer.structure

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        arrays = [keras.ops.convert_to_tensor(np.asarray(inputs[name])) for name in names]
        result = model(keras.tree.pack_sequence_as(structure, arrays), training=False)
        return [np.asarray(keras.ops.convert_to_numpy(x)) for x in keras.tree.flatten(result)]

    return run


def open_keras(path: str, threads: int) -> Run:
    """A model's own call."""
    from weft_keras.files import model_of
    from weft_keras.reading import the_library

    keras = the_library()
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(threads)
        call = runner(model_of(keras, Path(path)))

        def run(inputs: Mapping[str, Any]) -> list[Any]:
            with torch.no_grad():  # of this call alone: the process may train something else
                return call(inputs)

        return run
    return runner(model_of(keras, Path(path)))


def keras_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between the layers and operations of a functional model, by their names: the first result of those that
    are called once."""
    from weft_keras.files import model_of
    from weft_keras.importer import Importer
    from weft_keras.reading import the_library

    keras = the_library()
    model = model_of(keras, Path(path))
    importer = Importer(model, None)
    inputs, outputs = importer.ends()
    nodes = importer.history(keras.tree.flatten(outputs), {id(t): t for _, t in inputs}) if outputs is not None else []
    names = [node.operation.name for node in nodes]
    tensors = {name: node.outputs[0] for name, node in zip(names, nodes) if names.count(name) == 1}

    def ask(names: Sequence[str], given: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = [name for name in names if name in tensors]
        if not wanted:
            return {}
        part = keras.Model([t for _, t in inputs], [tensors[name] for name in wanted])
        found = part([keras.ops.convert_to_tensor(np.asarray(given[name])) for name, _ in inputs], training=False)
        return {name: np.asarray(keras.ops.convert_to_numpy(x)) for name, x in zip(wanted, found, strict=True)}

    return ask


ENGINES = [EngineKind("keras", version, open_keras, keras_values, ("keras",))]

__all__ = ["ENGINES", "runner"]
