"""The messages that a host and an agent exchange, and the files of tensors in them. `libweft/run/serve.c` is the other
side.

    frame   := "WEFT" kind tag length content          32 bits each, little-endian
    tensors := count (code bits lanes rank size*)* data*     in files, data begin at multiples of 64 bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_remote.errors import LinkError

VERSION = 1
HELLO, ALIVE, HAVE, PUT, RUN, CANCEL = range(1, 7)
RESULT, ERROR, DATA, STILL = range(65, 69)
HEADER = 16
LARGEST = 256 << 10
"""Bytes of a frame's content."""
CHUNK = LARGEST - 48
"""Bytes of a file in one PUT."""
MOST_TENSORS, MOST_DIMENSIONS, MOST_SAMPLES = 1024, 64, 100_000
UNKNOWN = -(1 << 63)

Array = np.ndarray[Any, Any]

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {
    "bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip
"""DLPack's code and bits of element types that numpy does not have."""


def frame(kind: int, tag: int, content: bytes = b"") -> bytes:
    return b"WEFT" + struct.pack("<III", kind, tag, len(content)) + content


def type_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's code and bits."""
    if dtype.name in _NAMED:
        return _NAMED[dtype.name]
    if dtype.kind not in _KINDS:
        raise ValueError(f"tensors of {dtype.name} do not leave this machine")
    return _KINDS[dtype.kind], dtype.itemsize * 8


def dtype_of(code: int, bits: int) -> np.dtype[Any]:
    """The inverse of `type_of`.

    Raises:
        LinkError: there is no such type.
    """
    for name, pair in _NAMED.items():
        if pair == (code, bits):
            from weft_runtime.dtypes import dtype

            return np.dtype(dtype(name).numpy)
    letter = next((k for k, v in _KINDS.items() if v == code), None)
    if letter is None or bits not in (8, 16, 32, 64, 128):
        raise LinkError(f"the board answers with tensors of type {code}, {bits} bits, which Weft does not know")
    return np.dtype(np.bool_) if letter == "b" else np.dtype(f"<{letter}{bits // 8}")


def pack(arrays: Sequence[Array]) -> bytes:
    """A file of tensors, row-major."""
    head = bytearray(struct.pack("<I", len(arrays)))
    for a in arrays:
        code, bits = type_of(a.dtype)
        head += struct.pack(f"<BBHI{a.ndim}q", code, bits, 1, a.ndim, *a.shape)
    data = bytearray(head)
    for a in arrays:
        data += bytes(-len(data) % 64)
        data += np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes()
    return bytes(data)


@dataclass(frozen=True)
class Answer:
    """What a job gave.

    Attributes:
        arrays: the outputs; none if they were not asked for.
        seconds: of every counted run, by the board's monotonic clock, in order.
        opened: seconds to check and open the program.
        memory: the most bytes that the job had in memory at once.
        clock: of the first core in Hz, before the counted runs and after; None where the board does not tell.
        temperature: in degrees Celsius, likewise.
    """

    arrays: tuple[Array, ...]
    seconds: tuple[float, ...]
    opened: float
    memory: int
    clock: tuple[float | None, float | None]
    temperature: tuple[float | None, float | None]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + form)
        if size > len(self.data) - self.at:
            raise LinkError("the answer of a job is shorter than it says")
        self.at += size
        return struct.unpack_from("<" + form, self.data, self.at - size)


def unpack(data: bytes) -> Answer | tuple[int, str]:
    """What a job wrote: its answer, or its own error.

    Raises:
        LinkError: it is neither.
    """
    r = _Reader(data)
    (code,) = r.take("I")
    if code:
        return code, data[4:].decode(errors="replace")
    (count,) = r.take("I")
    samples, opened, memory = r.take("3Q")
    measures = r.take("4q")
    if count > MOST_TENSORS or samples > MOST_SAMPLES:
        raise LinkError("the answer of a job has more in it than is allowed")
    seconds = tuple(t * 1e-9 for t in r.take(f"{samples}Q"))
    types = []
    for _ in range(count):
        kind, bits, lanes, rank = r.take("BBHI")
        if lanes != 1 or rank > MOST_DIMENSIONS:
            raise LinkError("the answer of a job holds a tensor that is not allowed")
        shape = r.take(f"{rank}q")
        if any(not 0 <= s <= 1 << 40 for s in shape):
            raise LinkError("the answer of a job holds a tensor of an impossible size", where=str(list(shape)))
        types.append((dtype_of(kind, bits), shape))
    arrays = []
    for dtype, shape in types:
        size = dtype.itemsize
        for s in shape:
            size *= s
        if size > len(data) - r.at:
            raise LinkError("the answer of a job is shorter than it says")
        array = np.frombuffer(data, np.uint8, size, r.at).copy().view(dtype).reshape(shape)
        arrays.append(array.astype(dtype.newbyteorder("="), copy=False))
        r.at += size
    if r.at != len(data):
        raise LinkError("the answer of a job is longer than it says")
    before, after, cold, warm = (None if m == UNKNOWN else float(m) for m in measures)
    celsius = tuple(None if t is None else t / 1000 for t in (cold, warm))
    return Answer(tuple(arrays), seconds, opened * 1e-9, memory, (before, after), (celsius[0], celsius[1]))
