"""Weft's MXNet plugin: the frontend for symbols (.json) and their parameters (.params). Imports in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


@dataclass(frozen=True)
class MxnetOptions:
    """-shapes: sizes of inputs, by name, e.g. data=1x3x224x224; what a symbol does not say. -params: the parameters; by
    default NAME-0000.params for NAME-symbol.json, or the only ones there. -batch: the first size of every input; 0
    leaves it open, as `batch`."""

    shapes: Mapping[str, str] = field(default_factory=dict)
    params: str | os.PathLike[str] | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 0:
            raise ValueError(f"the batch is {self.batch}")
        for name, shape in self.shapes.items():
            if not all(size.isascii() and size.isdigit() for size in shape.split("x")):
                raise ValueError(f"shapes gives '{name}' the sizes '{shape}': write them as 1x3x224x224")


def sniff(head: bytes) -> bool:
    """Whether a text looks like a symbol: an object whose first key lists nodes."""
    text = head.lstrip()
    return text[:1] == b"{" and text[1:].lstrip()[:7] == b'"nodes"' and b'"op"' in text


def load(source: Any, options: MxnetOptions) -> Graph:
    """The graph of a symbol, a path or the bytes of a .json.

    Raises:
        FrontendError: it cannot be read, is ill-formed, or its parameters are others.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_mxnet.symbol import load_symbol

    return load_symbol(source, options)


def files(path: Path, options: MxnetOptions) -> list[Path]:
    """The parameters of a symbol."""
    from weft_mxnet.symbol import find_params

    found = find_params(path, options)
    return [] if found is None else [found]


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("mxnet", (".json",), sniff, lambda model: False, load, files, MxnetOptions)]
