"""Weft's Darknet plugin: the frontend for `.cfg` files and their `.weights`. Imports in milliseconds."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.hooks import Frontend, hookimpl


@dataclass(frozen=True)
class DarknetOptions:
    """-weights: a file, or bytes; by default the .weights beside the .cfg. -width, -height: of the input, instead of those in [net]."""

    weights: str | os.PathLike[str] | bytes | bytearray | memoryview | None = None
    width: int | None = None
    height: int | None = None


def load(source: Any, options: DarknetOptions) -> Any:
    """The graph of a .cfg, a path or bytes. FrontendError: it cannot be read, or has other weights; UnsupportedError: names all that is not supported."""
    from weft_darknet.network import load_network

    return load_network(source, options)


@hookimpl
def frontends() -> list[Frontend]:
    files = lambda cfg, options: [Path(options.weights) if isinstance(options.weights, (str, os.PathLike)) else cfg.with_suffix(".weights")]
    return [Frontend("darknet", (".cfg",), lambda head: b"[net" in head, lambda model: False, load, files, DarknetOptions)]
