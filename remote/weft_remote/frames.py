"""The messages that a host and an agent exchange, and the files of tensors in them. `libweft/run/serve.c` is the other
side.

    frame   := "WEFT" kind tag length content          32 bits each, little-endian
    tensors := count (code bits lanes rank size*)* data*     in files, data begin at multiples of 64 bytes
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from weft_remote.errors import LinkError
from weft_runtime.abi import dlpack_type
from weft_runtime.dtypes import dtype

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


def frame(kind: int, tag: int, content: bytes = b"") -> bytes:
    return b"WEFT" + struct.pack("<III", kind, tag, len(content)) + content


_NAMES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "complex64", "complex128",
)  # fmt: skip


@cache
def _types() -> dict[tuple[int, int], np.dtype[Any]]:
    """DLPack's code and bits → the element type as numpy has it."""
    return {dlpack_type(name): np.dtype(dtype(name).numpy) for name in _NAMES}


def dtype_of(code: int, bits: int) -> np.dtype[Any]:
    """
    Raises:
        LinkError: there is no such type.
    """
    found = _types().get((code, bits))
    if found is None:
        raise LinkError(f"the board answers with tensors of type {code}, {bits} bits, which Weft does not know")
    return found


def pack(arrays: Sequence[Array], order: str = "little") -> bytes:
    """A file of tensors, row-major; `order` is that of the board's bytes."""
    head = bytearray(struct.pack("<I", len(arrays)))
    for a in arrays:
        code, bits = dlpack_type(a.dtype)
        head += struct.pack(f"<BBHI{a.ndim}q", code, bits, 1, a.ndim, *a.shape)
    data = bytearray(head)
    for a in arrays:
        data += bytes(-len(data) % 64)
        data += (a if order == sys.byteorder else swapped(a)).tobytes()
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


def swapped(array: Array) -> Array:
    """The bytes of every number in the other order; of a complex one those of its two parts."""
    if array.dtype.kind in "biufc":
        return array.byteswap()
    return array.view(f"u{array.dtype.itemsize}").byteswap().view(array.dtype)  # bfloat16 and its like


def unpack(data: bytes, order: str = "little") -> Answer | tuple[int, str]:
    """What a job wrote on a board with this order of bytes: its answer, or its own error.

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
        code, bits, lanes, rank = r.take("BBHI")
        if lanes != 1 or rank > MOST_DIMENSIONS:
            raise LinkError("the answer of a job holds a tensor that is not allowed")
        shape = r.take(f"{rank}q")
        if any(not 0 <= s <= 1 << 40 for s in shape):
            raise LinkError("the answer of a job holds a tensor of an impossible size", where=str(list(shape)))
        types.append((dtype_of(code, bits), shape))
    arrays = []
    for kind, shape in types:
        size = kind.itemsize
        for s in shape:
            size *= s
        if size > len(data) - r.at:
            raise LinkError("the answer of a job is shorter than it says")
        array = np.frombuffer(data, np.uint8, size, r.at).copy().view(kind)
        arrays.append((array if order == sys.byteorder else swapped(array)).reshape(shape))
        r.at += size
    if r.at != len(data):
        raise LinkError("the answer of a job is longer than it says")
    before, after, cold, warm = (None if m == UNKNOWN else float(m) for m in measures)
    celsius = tuple(None if t is None else t / 1000 for t in (cold, warm))
    return Answer(tuple(arrays), seconds, opened * 1e-9, memory, (before, after), (celsius[0], celsius[1]))
