"""Weft's Darknet plugin: the frontend for `.cfg` files and their `.weights`. Imports in milliseconds."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import FrontendError
from weft.hooks import Frontend, hookimpl


@dataclass(frozen=True)
class DarknetOptions:
    """-weights: a file, or bytes; by default the .weights beside the .cfg. -width, -height: of the input, instead of
    those in [net]. -state: of networks with recurrent layers, see `weft_darknet.recurrent`, "fresh" or "inputs"."""

    weights: str | os.PathLike[str] | bytes | bytearray | memoryview | None = None
    width: int | None = None
    height: int | None = None
    state: str | None = None

    def __post_init__(self) -> None:
        if self.state not in (None, "fresh", "inputs"):
            raise ValueError(f"state is '{self.state}', expected 'fresh' or 'inputs'")


def load(source: Any, options: DarknetOptions) -> Any:
    """The graph of a .cfg, a path or bytes. FrontendError: it cannot be read, or has other weights; UnsupportedError:
    names all that is not supported."""
    from weft_darknet.network import load_network

    if isinstance(source, Path) and source.is_file():
        files(source, options)
    return load_network(source, options)


def files(cfg: Path, options: DarknetOptions) -> list[Path]:
    """The .weights of a .cfg. FrontendError: one of both begins with zeros, which neither a text nor a header does,
    however many follow."""
    weights = Path(options.weights) if isinstance(options.weights, (str, os.PathLike)) else cfg.with_suffix(".weights")
    for path in (cfg, weights):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(16)
            if len(head) == 16 and not any(head):
                raise FrontendError(
                    f"'{path}' is not a Darknet network: it begins with zeros",
                    hint="was it cut short, or never filled? copy it again",
                )
    return [weights]


@hookimpl
def frontends() -> list[Frontend]:
    return [
        Frontend("darknet", (".cfg",), lambda head: b"[net" in head, lambda model: False, load, files, DarknetOptions)
    ]
