"""Weft's TensorFlow plugin: the frontend for SavedModels and frozen graphs, and TensorFlow as a peer. Imports in
milliseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

MODEL = "saved_model.pb"
"""The file that makes a folder a SavedModel."""


@dataclass(frozen=True)
class TensorflowOptions:
    """-signature: the one that is read; by default serving_default, or the only one. -tags: of the graph that is read,
    e.g. serve. -inputs, -outputs: names of a frozen graph's, e.g. image:0. -shapes: of inputs, by name, e.g.
    image=1x224x224x3; a ? is left open. -dims: sizes of axes that the model leaves open, by the names that the graph
    shows, e.g. image_0=4. -state: of variables that a call changes, "fresh" or "inputs". -tables: files with
    the contents of tables that the model does not fill, by their names."""

    signature: str | None = None
    tags: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    shapes: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    state: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state not in (None, "fresh", "inputs"):
            raise ValueError(f"state is '{self.state}', expected 'fresh' or 'inputs'")
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"dims gives '{name}' the size {size}")
        for name, shape in self.shapes.items():
            if not re.fullmatch(r"|(\d{1,9}|\?)(x(\d{1,9}|\?))*", shape):
                raise ValueError(f"shapes gives '{name}' the sizes '{shape}': write them as 1x224x224x3")


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes are those of a SavedModel or of a graph: of messages that begin with messages."""
    if head[:2] == b"\x08\x01" and head[2:3] == b"\x12":  # the version, then a graph with its description
        graph = _behind_length(head, 3)  # Core ML's descriptions begin with an input, whose first field is its name
        return graph[:1] == b"\n" and _behind_length(graph, 1)[:1] != b"\n"
    inner = _behind_length(head, 1) if head[:1] == b"\n" else b""
    if inner[:1] != b"\n":
        return False
    length, name = inner[1:2], _behind_length(inner, 1)  # a node: its name, then its operator
    return bool(length) and length[0] < 0x80 and name[length[0] : length[0] + 1] == b"\x12"


def _behind_length(data: bytes, place: int) -> bytes:
    """What follows a length, a number of seven bits a byte."""
    for k in range(place, min(place + 6, len(data))):
        if data[k] < 0x80:
            return data[k + 1 :]
    return b""


def accepts(model: object) -> bool:
    """Whether an object is a message of TensorFlow."""
    kind = type(model)
    return kind.__module__.startswith("tensorflow.core.") and kind.__name__ in ("GraphDef", "SavedModel")


def load(source: Any, options: TensorflowOptions) -> Graph:
    """The graph of a model: the folder of a SavedModel, the path of a .pb, its bytes, or a message.

    Raises:
        FrontendError: the model cannot be read, or is ill-formed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_tensorflow.importer import import_model
    from weft_tensorflow.model_file import read_model

    return import_model(read_model(source, options), options)


def files(path: Path, options: TensorflowOptions) -> list[Path]:
    """The variables of a SavedModel that its .pb names, of a folder all files."""
    from weft_frontend.archives import files_below

    if path.is_dir():
        return [file for file in files_below(path) if file != path]
    variables = path.parent / "variables"
    return list(files_below(variables)) if path.name == MODEL and variables.is_dir() else []


def folder(path: Path) -> bool:
    """Whether a folder is a SavedModel."""
    return (path / MODEL).is_file()


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("tensorflow", (".pb",), sniff, accepts, load, files, TensorflowOptions, folder)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_tensorflow.engines import ENGINES

    return ENGINES
