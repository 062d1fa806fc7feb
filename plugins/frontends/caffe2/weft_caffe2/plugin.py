"""Weft's Caffe2 plugin: the frontend for predict_net.pb and init_net.pb. Imports in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8", "uint16", "int16", "bool")


@dataclass(frozen=True)
class Caffe2Options:
    """-shapes: sizes of inputs, by name, e.g. data=1x3x224x224; a network does not say them. -dtypes: dtypes of inputs,
    by name, e.g. ids=int64; float32 by default. -init: the network that gives the weights; by default the file beside
    predict_net.pb whose name has "init" for "predict". -batch: the first size of every input; 0 leaves it open, as
    `batch`."""

    shapes: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    init: str | os.PathLike[str] | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 0:
            raise ValueError(f"the batch is {self.batch}")
        for name, shape in self.shapes.items():
            if not all(size.isascii() and size.isdigit() for size in shape.split("x")):
                raise ValueError(f"shapes gives '{name}' the sizes '{shape}': write them as 1x3x224x224")
        for name, dtype in self.dtypes.items():
            if dtype not in DTYPES:
                raise ValueError(f"dtypes gives '{name}' the dtype '{dtype}', expected one of {', '.join(DTYPES)}")


def sniff(head: bytes) -> bool:
    """Whether bytes begin as a NetDef: a name, if there is one, then an operator, which begins with a blob's name, its
    own name or its type. TensorFlow's graphs begin with a node, whose first field is a text in a message."""
    if head[:1] == b"\n":
        size = head[1] if len(head) > 1 else 0
        name, head = head[2 : 2 + size], head[2 + size :]
        if size > 127 or len(name) < size or not name.isascii() or not name.decode().isprintable():
            return False
    if head[:1] != b"\x12":
        return False
    at = 1
    while at < 6 and head[at : at + 1] and head[at] > 127:
        at += 1
    return head[at + 1 : at + 2] in (b"\n", b"\x12", b"\x1a", b'"')


def load(source: Any, options: Caffe2Options) -> Graph:
    """The graph of a network, a path or the bytes of a predict_net.pb.

    Raises:
        FrontendError: it cannot be read, is ill-formed, or its weights are others.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_caffe2.network import load_network

    return load_network(source, options)


def files(path: Path, options: Caffe2Options) -> list[Path]:
    """The other one of predict_net.pb and init_net.pb."""
    from weft_caffe2.network import pair

    return [file for file in pair(path, options) if file != path]


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("caffe2", (".pb",), sniff, lambda model: False, load, files, Caffe2Options)]
