"""Weft's TensorFlow Lite plugin: the frontend, and LiteRT as a peer. Imports in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


@dataclass(frozen=True)
class TFLiteOptions:
    """-signature: the one that is read, of a model that has several. -dims: sizes of axes that the model leaves open,
    by the names that the graph shows, e.g. input_0=4. -state: of variables that a call changes, "fresh" or "inputs".
    -kernels: whose results quantised operators have to the bit, where they differ: "litert", or "micro", TensorFlow
    Lite Micro."""

    signature: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    state: str | None = None
    kernels: str = "litert"

    def __post_init__(self) -> None:
        if self.kernels not in ("litert", "micro"):
            raise ValueError(f"kernels is '{self.kernels}', expected 'litert' or 'micro'")
        if self.state not in (None, "fresh", "inputs"):
            raise ValueError(f"state is '{self.state}', expected 'fresh' or 'inputs'")
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"dims gives '{name}' the size {size}")


def load(source: Any, options: TFLiteOptions) -> Graph:
    """The graph of a model: the path of a .tflite, or its bytes.

    Raises:
        FrontendError: the model cannot be read, or is ill-formed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_tflite.importer import import_model
    from weft_tflite.model_file import read_model

    return import_model(read_model(source), options.signature, options.dims, options.state, options.kernels)


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes are a model's: its identifier stands behind the offset of the root."""
    return head[4:8] == b"TFL3"


def files(path: Path, options: TFLiteOptions) -> list[Path]:
    """None: a model is one file."""
    return []


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("tflite", (".tflite",), sniff, lambda model: False, load, files, TFLiteOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_tflite.engines import ENGINES

    return ENGINES
