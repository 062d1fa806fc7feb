"""The weights of an archive: a file of the format safetensors, whose tensors begin at multiples of 64 bytes."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from weft_runtime.arrays import in_order
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError
from weft_runtime.plan import ConstantInfo
from weft_runtime.plan_words import Stretch
from weft_runtime.threads import available_threads

ALIGNMENT = 64
_MOST_HEADER = 100 << 20  # safetensors' own limit
_PIECE = 4 << 20

_SAFETENSORS = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


def _layout(constants: Mapping[str, np.ndarray[Any, Any]]) -> tuple[bytes, dict[str, tuple[int, int]], int]:
    """safetensors header (padded), where each tensor lies after it, and how many bytes follow it.

    The format allows no holes: what aligns the next tensor is a tensor itself.
    """
    entries: dict[str, Any] = {}
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for name, array in constants.items():
        gap = -at % ALIGNMENT
        if gap:
            entries[f"weft.padding.{at}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [at, at + gap]}
            at += gap
        kind = _SAFETENSORS.get(dtype(array.dtype).name)
        shape = (
            list(array.shape) if kind else [array.nbytes]
        )  # an element type the format lacks is stored as bytes; the manifest tells the truth
        entries[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [at, at + array.nbytes]}
        places[name] = (at, at + array.nbytes)
        at += array.nbytes
    header = json.dumps(
        {"__metadata__": {"format": "weft"}, **entries}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    return struct.pack("<Q", len(header)) + header, places, at


def places_in_weights(constants: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Stretch]:
    header, places, _ = _layout(constants)
    return {name: Stretch(len(header) + begin, end - begin) for name, (begin, end) in places.items()}


def weights_pieces(constants: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[memoryview | bytes]:
    """The bytes of weights.safetensors, piece by piece."""
    header, places, _ = _layout(constants)
    yield header
    at = 0
    for name, array in constants.items():
        begin, end = places[name]
        if begin > at:
            yield bytes(begin - at)
        if end > begin:
            yield in_order(array, "little").data
        at = end


def hash_pieces(parts: Iterable[memoryview | bytes]) -> tuple[str, int]:
    """sha256 of the sha256 of each 4 MiB of all parts together, and how many bytes they have."""
    total = 0

    def pieces() -> Iterator[list[memoryview]]:
        nonlocal total
        piece: list[memoryview] = []
        room = _PIECE
        for part in parts:
            rest = memoryview(part)
            total += len(rest)
            while len(rest):
                piece.append(rest[:room])
                rest = rest[room:]
                room -= len(piece[-1])
                if not room:
                    yield piece
                    piece, room = [], _PIECE
        if piece:
            yield piece

    def digest(piece: list[memoryview]) -> bytes:
        found = hashlib.sha256()
        for part in piece:
            found.update(part)  # without Python's lock
        return found.digest()

    with ThreadPoolExecutor(available_threads(), "weft-hash") as pool:
        return hashlib.sha256(b"".join(pool.map(digest, pieces()))).hexdigest(), total


def read_weights(data: memoryview, infos: tuple[ConstantInfo, ...], where: str) -> dict[str, np.ndarray[Any, Any]]:
    if len(data) < 8:
        raise ArchiveError(f"{where} has truncated weights")
    (size,) = struct.unpack_from("<Q", data, 0)
    if size > min(len(data) - 8, _MOST_HEADER):
        raise ArchiveError(f"{where} has malformed weights", why=f"a header of {size} bytes")
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{where} has malformed weights", why=str(error)) from None
    body = data[8 + size :]
    flat = np.frombuffer(body, np.uint8)
    found = {}
    for info in infos:
        entry = header.get(info.name) if isinstance(header, dict) else None
        of = dtype(info.dtype).numpy
        count = of.itemsize
        for d in info.shape:
            count *= d
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(o) is int for o in offsets)):
            raise ArchiveError(f"{where} has no weights '{info.name}'")
        begin, end = offsets
        if not (0 <= begin <= end <= len(body) and end - begin == count):
            raise ArchiveError(
                f"{where} has malformed weights",
                why=f"'{info.name}' needs {count} bytes, its place is {begin} … {end} of {len(body)}",
            )
        found[info.name] = _native(flat[begin:end].view(of)).reshape(info.shape)
    return found


def _native(stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers as safetensors has them, which is little-endian, as this process has them."""
    return stored if sys.byteorder == "little" else in_order(stored, "little").view(stored.dtype)
