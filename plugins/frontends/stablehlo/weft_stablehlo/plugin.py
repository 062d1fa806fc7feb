"""Weft's plugin for StableHLO: the frontend, and XLA as a peer. Imports in milliseconds: jaxlib only when a model is
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import forks
from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

forks.need("jaxlib")


@dataclass(frozen=True)
class StableHLOOptions:
    """-dims: sizes of axes that the model leaves open, by the names that the graph shows, e.g. batch=4. -function: the
    one that is read; by default main, or the only public one."""

    dims: Mapping[str, int] = field(default_factory=dict)
    function: str | None = None

    def __post_init__(self) -> None:
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"dims gives '{name}' the size {size}")


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes are those of MLIR's bytecode, or of a text with a module or a function."""
    if head[:4] == b"ML\xefR":
        return True
    return b"stablehlo." in head or b"func.func" in head or b"\nmodule " in head or head.startswith(b"module ")


def accepts(model: object) -> bool:
    """Whether an object is one that JAX lowered or exported, or a module of MLIR; imports nothing to say no."""
    kind = type(model)
    module, name = kind.__module__ or "", kind.__name__
    return (module.startswith("jax.") and name in ("Lowered", "Exported")) or (
        module.startswith("jaxlib.mlir") and name == "Module"
    )


def load(source: Any, options: StableHLOOptions) -> Graph:
    """The graph of a module: a path, its bytes, or an object of JAX's.

    Raises:
        FrontendError: it cannot be read, or jaxlib is not installed.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_stablehlo.reading import read_model

    model = read_model(source)
    from weft_stablehlo.importer import import_module

    return import_module(model, options.dims, options.function)


def files(path: Path, options: StableHLOOptions) -> list[Path]:
    """None: a model is one file."""
    return []


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("stablehlo", (".mlir", ".mlirbc"), sniff, accepts, load, files, StableHLOOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_stablehlo.engines import ENGINES

    return ENGINES
