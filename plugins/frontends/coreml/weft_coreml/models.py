"""Which kind of model a file holds, and who reads it."""

from __future__ import annotations

from weft.errors import FrontendError
from weft.graph.nodes import Graph
from weft_coreml.model_file import ModelFile
from weft_coreml.plugin import CoreMLOptions
from weft_coreml.schema import chosen

KINDS_FROM = 200
"""Fields of a model that are its kind have this number or a greater one."""


def kind_of(message: object) -> str | None:
    """The kind of a model, by the format's name."""
    fields = message.DESCRIPTOR.fields  # type: ignore[attr-defined]
    return chosen(message, tuple(f.name for f in fields if f.number >= KINDS_FROM))


def import_model(file: ModelFile, options: CoreMLOptions) -> Graph:
    """The graph of a model.

    Raises:
        FrontendError: it is ill-formed, or holds no model.
        UnsupportedError: it is of a kind that is not read, or uses what is not supported.
    """
    kind = kind_of(file.message)
    if kind is None:
        raise FrontendError(f"'{file.title}' holds no model", why="it describes inputs and outputs alone")
    if options.function is not None and kind != "mlProgram":
        raise FrontendError(f"function '{options.function}' is given, and the model is no program ({kind})")
    if kind == "mlProgram":
        from weft_coreml.program import import_program

        return import_program(file, options)
    if kind.startswith("neuralNetwork"):
        from weft_coreml.network import import_network

        return import_network(file, options, kind)
    from weft_coreml.classical import import_classical

    return import_classical(file, options)


__all__ = ["import_model", "kind_of"]
