"""Keras itself, with the backend that it is set to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        torch.set_grad_enabled(False)
    return runner(model_of(keras, Path(path)))


ENGINES = [EngineKind("keras", version, open_keras, None, ("keras",))]

__all__ = ["ENGINES", "runner"]
