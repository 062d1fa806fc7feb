"""Reads model files: checks that they are ONNX, maps large weights instead of copying them, follows external data
inside the model's folder."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from weft.errors import FrontendError, from_signal
from weft_frontend.protos import not_text
from weft_onnx.wire import GRAPH, INITIALIZER, MAPPED, RAW_DATA, encoded, fields

Array = np.ndarray[Any, Any]


@dataclass
class Model:
    """A parsed model. `mapped`: the raw data of large initialisers, by name, cut out of `proto` and seen in place."""

    proto: onnx.ModelProto
    folder: Path | None = None
    mapped: dict[str, memoryview] = field(default_factory=dict)


def read_model(source: Any) -> Model:
    """A model from a path, bytes or a ModelProto.

    Raises:
        FrontendError: no such file, not ONNX, or ill-formed beyond the operators.
    """
    if isinstance(source, onnx.ModelProto):
        return _checked(Model(source), "this ModelProto")
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
        except OSError as error:
            raise FrontendError(f"cannot read '{path}'", why=str(error.strerror or error)) from error
        return _parsed(data, f"'{path}'", path.resolve().parent)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(memoryview(source).cast("B"), "these bytes", None)
    raise FrontendError(
        f"cannot read a model from a {type(source).__name__}", hint="give a path, bytes or an onnx.ModelProto"
    )


def _parsed(data: memoryview, what: str, folder: Path | None) -> Model:
    if not data.nbytes:
        raise FrontendError(
            f"{what} is not an ONNX model", why="it is empty", hint="was it cut short? save or copy it again"
        )
    mapped: dict[str, memoryview] = {}
    try:
        proto = onnx.ModelProto.FromString(_without_weights(data, mapped))
    except Exception as error:  # the decoder's own exception class differs between protobuf's implementations
        if from_signal(error):
            raise
        raise FrontendError(
            f"{what} is not an ONNX model",
            why=f"it does not parse as a ModelProto: {error}",
            hint="is the file complete?",
        ) from error
    return _checked(Model(proto, folder, mapped), what)


def _checked(model: Model, what: str) -> Model:
    proto = model.proto
    lacks = [
        name
        for name, ok in (
            ("ir_version", proto.ir_version),
            ("graph", proto.HasField("graph")),
            ("opset_import", proto.opset_import),
        )
        if not ok
    ]
    if lacks:
        raise FrontendError(
            f"{what} is not an ONNX model", why=f"it has no {' and no '.join(lacks)}", hint="is the file complete?"
        )
    garbled = not_text(proto)
    if garbled:
        raise FrontendError(f"{what} is not an ONNX model", why=garbled, hint="is the file damaged?")
    return model


# -- weights ----------------------------------------------------------------------------------------------------------


def _message(number: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    return [encoded(number << 3 | 2), encoded(sum(len(p) for p in parts)), *parts]


def _without_weights(data: memoryview, mapped: dict[str, memoryview]) -> bytes:
    """The serialised model without the raw data of large initialisers, which goes to `mapped` as views."""
    if len(data) < MAPPED:
        return bytes(data)
    parts: list[bytes | memoryview] = []
    for number, kind, start, payload, end in fields(data):
        if number == GRAPH and kind == 2:
            parts += _message(GRAPH, _graph_without_weights(data[payload:end], mapped))
        else:
            parts.append(data[start:end])
    return b"".join(parts)


def _graph_without_weights(data: memoryview, mapped: dict[str, memoryview]) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = []
    for number, kind, start, payload, end in fields(data):
        if number != INITIALIZER or kind != 2 or end - payload < MAPPED:
            parts.append(data[start:end])
            continue
        tensor, kept, name, raw = data[payload:end], [], "", None
        for n, k, s, p, e in fields(tensor):
            if n == RAW_DATA and k == 2 and e - p >= MAPPED:
                raw = tensor[p:e]
                continue
            if n == 8 and k == 2:
                name = bytes(tensor[p:e]).decode()
            kept.append(tensor[s:e])
        if raw is None or not name or name in mapped:
            parts.append(data[start:end])
        else:
            mapped[name] = raw
            parts += _message(INITIALIZER, kept)
    return parts


def external_files(path: Path) -> list[Path]:
    """The files that tensors of a model have their data in, as far as loading may read them; none if the model cannot
    be read (loading it says why)."""
    from weft_onnx.tensors import inside

    try:
        model = read_model(path)
    except FrontendError:
        return []
    assert model.folder is not None
    found: dict[Path, None] = {}
    for tensor in _tensors(model.proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            for entry in tensor.external_data:
                if entry.key == "location":
                    with suppress(FrontendError):  # outside of the model's folder, which loading refuses
                        found[inside(model.folder, entry.value, tensor.name)] = None
    return list(found)


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor that a message holds, wherever it is."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                yield from _tensors(inner)
