"""Weft's ONNX plugin: the frontend, and the peers that run ONNX models. Imports in milliseconds: `onnx` only when a
model is read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import forks
from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

forks.need("onnx")


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes look like a ModelProto: it opens with ir_version (field 1), a small varint, then a
    length-delimited field. The producer's name (field 2) is a text: other formats have a message there."""
    if len(head) < 4 or head[0] != 0x08 or not 0 < head[1] < 0x40:
        return False
    if head[2] != 0x12:
        return head[2] in (0x1A, 0x22, 0x3A, 0x42)
    name = head[4:5] if head[3] < 0x80 else head[5:6]
    return head[3] == 0 or (name >= b" " and not b"\x80" <= name < b"\xc0")


def accepts(model: object) -> bool:
    """Whether an object is an onnx.ModelProto; imports nothing to say no."""
    if not type(model).__module__.startswith("onnx"):
        return False
    import onnx

    return isinstance(model, onnx.ModelProto)


@dataclass(frozen=True)
class OnnxOptions:
    """-dims: sizes of dimensions that the model leaves open, by their names, e.g. batch=4,sequence=128."""

    dims: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"dims gives '{name}' the size {size}")


def load(source: Any, options: OnnxOptions) -> Graph:
    """The graph of a model: a path, bytes or a ModelProto.

    Raises:
        FrontendError: the model cannot be read, or is ill-formed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_onnx.wire import look_at

    if isinstance(source, Path):
        with suppress(OSError):  # reading it says why
            look_at(source)  # before `onnx` is imported
    from weft_onnx.importer import import_model
    from weft_onnx.model_file import read_model

    return import_model(read_model(source), options.dims)


def files(path: Path, options: OnnxOptions) -> list[Path]:
    """The files that hold a model's external data, as far as the model can be read.

    Raises:
        FrontendError: a look at the file shows that it is no model.
    """
    from weft_onnx.wire import look_at, mentions

    look_at(path)
    if not mentions(path, b"location"):
        return []
    from weft_onnx.model_file import external_files

    return external_files(path)


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("onnx", (".onnx",), sniff=sniff, accepts=accepts, load=load, files=files, options=OnnxOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_onnx.engines import ENGINES

    return ENGINES
