"""Weft's PaddlePaddle plugin: the frontend for .json and .pdmodel files, through paddle2onnx. Imports in
milliseconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph


@dataclass(frozen=True)
class PaddleOptions:
    """-params: the parameters; by default the .pdiparams of the same name, if there is one."""

    params: str | os.PathLike[str] | None = None


def sniff(head: bytes) -> bool:
    """Whether a text begins as a program of PaddlePaddle 3: {"base_code": {"magic": "pir"."""
    text = b"".join(head.split())
    return text.startswith(b'{"base_code":{') and b'"magic":"pir"' in text


def load(source: Any, options: PaddleOptions) -> Graph:
    """The graph of a .json or .pdmodel file.

    Raises:
        FrontendError: it is no file, paddle2onnx is missing, or does not convert it.
    """
    from weft_paddle.converted import load_converted

    return load_converted(source, files(source, options) if isinstance(source, Path) else [])


def files(path: Path, options: PaddleOptions) -> list[Path]:
    """The parameters of a program."""
    if options.params is not None:
        return [Path(options.params)]
    found = path.with_suffix(".pdiparams")
    return [found] if found.is_file() else []


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("paddle", (".json", ".pdmodel"), sniff, lambda model: False, load, files, PaddleOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_paddle.engines import ENGINES

    return ENGINES
