"""Where a model comes from: an object, or a file that is checked before Keras sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from weft.errors import FrontendError
from weft.graph.nodes import Graph
from weft_keras.plugin import KerasOptions


def the_library() -> Any:
    """Keras.

    Raises:
        FrontendError: it, or its backend, is not installed; or it is older than 3.
    """
    try:
        import keras
    except ImportError as error:
        name = getattr(error, "name", None) or "keras"
        backend = os.environ.get("KERAS_BACKEND", "that of ~/.keras/keras.json, or tensorflow")
        raise FrontendError(
            "Keras cannot be imported",
            why=f"{name} is not installed" + ("" if name == "keras" else f"; the backend is {backend}"),
            hint='pip install "weft-keras[keras]", and KERAS_BACKEND=torch',
        ) from error
    if int(keras.__version__.split(".", 1)[0]) < 3:
        raise FrontendError(f"Keras {keras.__version__} is installed, Weft reads models of Keras 3",
                            hint='pip install "weft-keras[keras]"')  # fmt: skip
    return keras


def load_model(source: Any, options: KerasOptions) -> Graph:
    """The graph of a model: a path, the bytes of a file, or a keras.Model."""
    keras = the_library()
    from weft_keras.files import model_of
    from weft_keras.importer import Importer

    if isinstance(source, (Path, bytes)):
        source = model_of(keras, source)
    return Importer(source, options.batch).run()
