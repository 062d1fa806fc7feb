"""Weft's Caffe plugin: the frontend for `.prototxt` files and their `.caffemodel`. Imports in milliseconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


@dataclass(frozen=True)
class CaffeOptions:
    """-weights: the .caffemodel; by default the one beside the .prototxt that has its name, or the only one there.
    -batch: the first size of every input, in place of that in the network; 0 leaves it open, as `batch`."""

    weights: str | os.PathLike[str] | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 0:
            raise ValueError(f"the batch is {self.batch}")


def sniff(head: bytes) -> bool:
    """Whether a text looks like a network: it names layers, or inputs with their sizes."""
    return any(
        word in head for word in (b"layer {", b"layers {", b"layer{", b"layers{", b"input_dim:", b"input_shape {")
    )


def load(source: Any, options: CaffeOptions) -> Graph:
    """The graph of a network, a path or the bytes of a .prototxt.

    Raises:
        FrontendError: it cannot be read, is ill-formed, or its weights are others.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_caffe.network import load_network

    return load_network(source, options)


def files(path: Path, options: CaffeOptions) -> list[Path]:
    """The other one of .prototxt and .caffemodel."""
    from weft_caffe.network import pair

    return [file for file in pair(path, options) if file != path]


@hookimpl
def frontends() -> list[Frontend]:
    return [
        Frontend("caffe", (".prototxt", ".caffemodel"), sniff, lambda model: False, load, files, CaffeOptions),
    ]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_caffe.engines import ENGINES

    return ENGINES
