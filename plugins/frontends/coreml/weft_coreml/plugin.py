"""Weft's Core ML plugin: the frontend for .mlmodel files and .mlpackage folders. Imports in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


@dataclass(frozen=True)
class CoreMLOptions:
    """-function: the one that is read, of a program that has several. -dims: sizes of axes that the model leaves open,
    by the names that the graph shows, e.g. image_2=224. -state: of states that a call changes, "fresh" or "inputs"."""

    function: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    state: str | None = None

    def __post_init__(self) -> None:
        if self.state not in (None, "fresh", "inputs"):
            raise ValueError(f"state is '{self.state}', expected 'fresh' or 'inputs'")
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"dims gives '{name}' the size {size}")


def load(source: Any, options: CoreMLOptions) -> Graph:
    """The graph of a model: the path of an .mlmodel or an .mlpackage, or the bytes of an .mlmodel.

    Raises:
        FrontendError: the model cannot be read, or is ill-formed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_coreml.model_file import read_model
    from weft_coreml.models import import_model

    return import_model(read_model(source), options)


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes are a model's: its version, 1 to 99, and behind it its description, which begins
    with an input, whose first field is its name, or with a function. ONNX has a text there, TensorFlow another message.
    """
    if len(head) < 4 or head[0] != 0x08 or not 0 < head[1] < 100 or head[2] != 0x12:
        return False
    description = _behind_length(head[3:])
    if description[:2] in (b"\xa2\x01", b"\xaa\x01"):
        return True
    return description[:1] == b"\n" and _behind_length(description[1:])[:1] == b"\n"


def _behind_length(data: bytes) -> bytes:
    """What follows a length, a number of seven bits a byte."""
    size = next((k for k, byte in enumerate(data[:6]) if byte < 0x80), 5)
    return data[size + 1 :]


def folder(path: Path) -> bool:
    """Whether a folder is an .mlpackage: it has a manifest, and its parts below Data."""
    return (path / "Manifest.json").is_file() and (path / "Data").is_dir()


def files(path: Path, options: CoreMLOptions) -> list[Path]:
    """Of a package all its files; of an .mlmodel the weights beside it, which programs may have."""
    if path.is_dir():
        return [file for file in sorted(path.rglob("*")) if file.is_file()]
    weights = path.parent / "weights"
    return [file for file in sorted(weights.glob("*.bin")) if file.is_file()]


@hookimpl
def frontends() -> list[Frontend]:
    return [
        Frontend("coreml", (".mlmodel", ".mlpackage"), sniff, lambda model: False, load, files, CoreMLOptions, folder),
    ]
