"""A model as it is stored: the graph, its functions, signatures and checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import FrontendError, nearest
from weft_frontend.archives import inside, read_file
from weft_frontend.protos import MOST_BYTES, parse_binary
from weft_tensorflow.bundle import Bundle, find
from weft_tensorflow.plugin import MODEL, TensorflowOptions
from weft_tensorflow.schema import schema
from weft_tensorflow.tensors import shape_of

INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")
"""Signatures that are no model's."""
MOST_CONSUMER = 3000
"""The newest version of the graph's format (`min_consumer`) that is known; today's is 0."""
NEWEST = 1
"""The newest version of SavedModels."""


@dataclass(frozen=True)
class TensorRef:
    """A tensor of a signature: where it is ("x:0"), its DataType (0: unknown), and its sizes (None: unknown)."""

    where: str
    type: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """A function of the model: its inputs and outputs by name."""

    key: str
    inputs: Mapping[str, TensorRef]
    outputs: Mapping[str, TensorRef]


@dataclass(frozen=True)
class Model:
    """A graph with what belongs to it.

    Attributes:
        signature: None of a frozen graph, whose inputs the graph tells.
        folder: of a SavedModel.
        assets: files of the folder, by the nodes that stand for their paths.
        starting: nodes that are run when it is loaded, once.
    """

    name: str
    graph: Any
    signature: Signature | None
    saver: Any
    bundle: Bundle | None
    tags: tuple[str, ...] = ()
    folder: Path | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)
    starting: tuple[str, ...] = ()


def read_model(source: Any, options: TensorflowOptions) -> Model:
    """A model of a folder, a path, bytes or a message.

    Raises:
        FrontendError: it cannot be read.
    """
    folder: Path | None = None
    if isinstance(source, Path):
        folder = source if source.is_dir() else source.parent
        path = inside(source, MODEL) if source.is_dir() else source
        data, what, name = read_file(path, MOST_BYTES), f"'{path}' is no model of TensorFlow", source.stem
        saved = path.name == MODEL or _is_saved(data)
    else:
        data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else source.SerializeToString()
        what, name, saved = "the bytes are no model of TensorFlow", "graph", _is_saved(data)
    if not saved:
        graph = parse_binary(schema()["GraphDef"], data, what)
        _check(graph, what)
        return Model(name, graph, None, None, None)
    message = parse_binary(schema()["SavedModel"], data, what)
    if message.saved_model_schema_version > NEWEST:
        raise FrontendError(what, why=f"it is of version {message.saved_model_schema_version}, {NEWEST} is the newest")
    meta = _graph_of_tags(message, options.tags, what)
    _check(meta.graph_def, what)
    signature = _signature(meta, options.signature, what)
    bundle = None if folder is None else find(folder)
    assets = {
        a.tensor_info.name.split(":")[0]: Path("assets") / a.filename for a in meta.asset_file_def if a.tensor_info.name
    }
    tags = tuple(meta.meta_info_def.tags)
    return Model(name, meta.graph_def, signature, meta.saver_def, bundle, tags, folder, assets, _starting(meta))


def _starting(meta: Any) -> tuple[str, ...]:
    """The nodes that are run when a model is loaded: of TensorFlow 2 in a signature, of 1 in a collection."""
    found = [i.value.name for e in meta.signature_def if e.key == INTERNAL[0] for i in e.value.outputs]
    for entry in meta.collection_def:
        if entry.key in ("saved_model_main_op", "legacy_init_op"):
            found.extend(entry.value.node_list.value)
    return tuple(name.split(":")[0] for name in found if name)


def _is_saved(data: bytes) -> bool:
    return data[:3] == b"\x08\x01\x12"


def _check(graph: Any, what: str) -> None:
    if not graph.node:
        raise FrontendError(what, why="its graph has no nodes")
    if graph.versions.min_consumer > MOST_CONSUMER:
        raise FrontendError(what, why=f"it needs version {graph.versions.min_consumer} of the graph's format")


def _graph_of_tags(message: Any, tags: tuple[str, ...], what: str) -> Any:
    """The graph of these tags; by default that for serving, or the only one."""
    known = [tuple(m.meta_info_def.tags) for m in message.meta_graphs]
    if not known:
        raise FrontendError(what, why="it has no graph")
    wanted = set(tags) if tags else {"serve"}
    for tagged, meta in zip(known, message.meta_graphs):
        if set(tagged) == wanted:
            return meta
    if not tags and len(known) == 1:
        return message.meta_graphs[0]
    shown = "; ".join(", ".join(t) or "none" for t in known[:20])
    raise FrontendError(f"the model has no graph with the tags {', '.join(sorted(wanted))}", hint=f"it has {shown}")


def _signature(meta: Any, key: str | None, what: str) -> Signature:
    """The signature that is read.

    Raises:
        FrontendError: there is none of this key, or it takes one to choose among several.
    """
    found = {e.key: e.value for e in meta.signature_def if e.key not in INTERNAL and e.value.outputs}
    if not found:
        raise FrontendError(what, why="it has no signatures", hint="save it with signatures=…")
    if key is None:
        key = "serving_default" if "serving_default" in found else next(iter(found)) if len(found) == 1 else None
    if key is None:
        raise FrontendError(
            f"the model has {len(found)} signatures: {', '.join(repr(k) for k in list(found)[:20])}",
            hint="choose one: signature=…",
        )
    if key not in found:
        close = nearest(key, found)
        hint = f"did you mean '{close}'?" if close else f"its signatures: {', '.join(list(found)[:20])}"
        raise FrontendError(f"the model has no signature '{key}'", hint=hint)
    chosen = found[key]
    return Signature(key, _refs(chosen.inputs, key), _refs(chosen.outputs, key))


def _refs(entries: Any, key: str) -> dict[str, TensorRef]:
    """The tensors of a signature, by name, in the order of names, as the order in the file means nothing."""
    found = {}
    for entry in sorted(entries, key=lambda e: str(e.key)):
        info = entry.value
        if not info.name:
            raise FrontendError(f"'{entry.key}' of signature '{key}' is no tensor", why="it may be a composite of some")
        where = f"signature '{key}', '{entry.key}'"
        found[entry.key] = TensorRef(info.name, info.dtype, shape_of(info.tensor_shape, where))
    return found


__all__ = ["Model", "Signature", "TensorRef", "read_model"]
