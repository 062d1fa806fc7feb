"""Weft's Keras plugin: the frontend for models of Keras 3, as objects and as files. Imports in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class KerasOptions:
    """-batch: the first size of every input; by default open, as `batch`, where the model leaves it open."""

    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"the batch is {self.batch}")


def sniff(head: bytes) -> bool:
    """Whether a file looks like a model: an archive that begins with one of its members, or HDF5."""
    if not head.startswith(b"PK\3\4"):
        return head.startswith(HDF5)
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return name in (b"metadata.json", b"config.json", b"model.weights.h5")


def accepts(model: object) -> bool:
    """Whether an object is a model of Keras: one of its classes is keras.Model."""
    return any(
        base.__name__ == "Model" and (base.__module__ or "").split(".", 1)[0] == "keras" for base in type(model).__mro__
    )


def load(source: Any, options: KerasOptions) -> Graph:
    """The graph of a model: a path, the bytes of a file, or a keras.Model.

    Raises:
        FrontendError: it cannot be read, or Keras is not installed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_keras.reading import load_model

    return load_model(source, options)


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("keras", (".keras", ".h5", ".hdf5"), sniff, accepts, load, None, KerasOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_keras.engines import ENGINES

    return ENGINES
