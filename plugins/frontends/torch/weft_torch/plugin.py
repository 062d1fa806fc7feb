"""Weft's PyTorch plugin: the frontend, and PyTorch as a peer. Imports in milliseconds: `torch` only when a model is
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft import forks
from weft.hooks import EngineKind, Frontend, hookimpl

if TYPE_CHECKING:
    from weft.graph.nodes import Graph

forks.need("torch")


@dataclass(frozen=True)
class TorchOptions:
    """How a module is exported; given by name, `weft.compile(module, inputs=(x,), dynamic_shapes=…)`.

    inputs: example arguments, a tuple, or one tensor. named_inputs: example keyword arguments. dynamic_shapes: as
    `torch.export.export` takes them. strict: export through Dynamo. An exported program takes none of them.
    """

    inputs: Any | None = None
    named_inputs: Mapping[str, Any] | None = None
    dynamic_shapes: Any | None = None
    strict: bool = False


def sniff(head: bytes) -> bool:
    """Whether a file's first bytes are those of an archive that PyTorch writes: a zip whose members stand in a folder.
    What torch.save and TorchScript write is taken too, to say why it is not read."""
    if head[:4] != b"PK\x03\x04":
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return name.partition(b"/")[2].startswith((b"data/", b"data.pkl", b"models/", b"archive_format", b"byteorder"))


def accepts(model: object) -> bool:
    """Whether an object is a module, not one of Keras, or an exported program; imports nothing to say no."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:  # then there is no such object
        return False
    # With torch as its backend, a model of Keras is a module as well; it is left to a frontend of Keras.
    if any((base.__module__ or "").split(".", 1)[0] == "keras" for base in type(model).__mro__):
        return False
    return isinstance(model, (torch.nn.Module, torch.export.ExportedProgram))


def load(source: Any, options: TorchOptions) -> Graph:
    """The graph of a module, an exported program, or a .pt2 file.

    Raises:
        FrontendError: it cannot be exported or read, or example inputs are missing.
        UnsupportedError: it uses what is not supported; lists everything.
    """
    from weft_torch.reading import exported

    program = exported(source, options)
    from weft_torch.importer import import_program

    return import_program(program)


@hookimpl
def frontends() -> list[Frontend]:
    return [Frontend("torch", (".pt2",), sniff=sniff, accepts=accepts, load=load, options=TorchOptions)]


@hookimpl
def engines() -> list[EngineKind]:
    from weft_torch.engines import ENGINES

    return ENGINES
