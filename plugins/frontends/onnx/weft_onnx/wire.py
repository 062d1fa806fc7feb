"""protobuf's wire format, as far as weights are cut out of a model and a file is looked at before it is read."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from weft.errors import FrontendError

OUTERMOST = 100_000
"""Fields of a model beside its graph, at most: operator sets, functions and notes."""
# ModelProto.graph, GraphProto.initializer, TensorProto.raw_data: the way to the weights.
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
# Payloads from this size on stay in the file.
MAPPED = 4096


def look_at(path: Path) -> None:
    """Follows the outermost fields of a model file from length to length, which takes no time and no memory, however
    large it is.

    Raises:
        FrontendError: they are none, or do not end with the file.
        OSError: the file cannot be read.
    """
    if not path.stat().st_size:
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        try:
            for count, _ in enumerate(fields(data)):
                if count == OUTERMOST:
                    raise ValueError(f"it has more than {OUTERMOST:,} fields beside its graph")
        except (ValueError, IndexError) as error:
            why = f"it does not parse as a ModelProto: {error}"
            raise FrontendError(f"'{path}' is not an ONNX model", why=why, hint="is the file complete?") from error


def mentions(path: Path, word: bytes) -> bool:
    """Whether a model file has these bytes anywhere but in the raw data of its large initialisers, which are not read;
    True if it is no model within.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.stat().st_size:
        return False
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        at = 0
        try:
            for start, end in _weights(data):
                if mapped.find(word, at, start) >= 0:
                    return True
                at = end
        except (ValueError, IndexError):
            return True
        return mapped.find(word, at) >= 0


def _weights(data: memoryview) -> Iterator[tuple[int, int]]:
    """Where the raw data of large initialisers start and end."""
    for number, kind, _, graph, end in fields(data):
        for n, k, _, tensor, e in fields(data[graph:end]) if number == GRAPH and kind == 2 else ():
            for m, w, _, start, z in (
                fields(data[graph + tensor : graph + e]) if n == INITIALIZER and k == 2 and e - tensor >= MAPPED else ()
            ):
                if m == RAW_DATA and w == 2:
                    yield graph + tensor + start, graph + tensor + z


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def encoded(value: int) -> bytes:
    """A number as the wire format has it, seven bits a byte."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, start, payload start, end) of every field of a message.

    Raises:
        ValueError: the bytes are no message.
        IndexError: they end within a field.
    """
    at, size = 0, len(data)
    while at < size:
        start = at
        tag, at = _varint(data, at)
        kind, payload = tag & 7, at
        if not tag >> 3:
            raise ValueError("a field of number 0")
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 1:
            at += 8
        elif kind == 2:
            length, payload = _varint(data, at)
            at = payload + length
        elif kind == 5:
            at += 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at > size:
            raise ValueError(f"field {tag >> 3} ends {at - size} byte(s) beyond the end")
        yield tag >> 3, kind, start, payload, at
