"""A checkpoint (TensorBundle): NAME.index, a sorted table as LevelDB writes it, says where in NAME.data-… each tensor
is. Sizes and places are checked before anything is read, checksums behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from weft.errors import FrontendError, UnsupportedError
from weft.graph.operator import Array
from weft_frontend.archives import count_of, inside, read_file
from weft_frontend.protos import parse_binary
from weft_tensorflow.checksum import crc32c, unmasked
from weft_tensorflow.schema import schema
from weft_tensorflow.tensors import dtype_of, shape_of

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
MOST_INDEX = 1 << 28
"""Bytes of an index."""
MOST_SHARDS = 65_536
HINT = "is it whole? copy it again"


class Bundle:
    """The tensors of a checkpoint, read when they are asked for.

    Args:
        folder: that it lies in.
        name: of the checkpoint, e.g. "variables".

    Raises:
        FrontendError: it is damaged, or leaves the folder.
    """

    def __init__(self, folder: Path, name: str = "variables") -> None:
        self.folder, self.name = folder, name
        self.path = inside(folder, f"{name}.index")
        self._read: dict[str, Array] = {}
        entries = dict(_entries(read_file(self.path, MOST_INDEX), self.path))
        header = parse_binary(schema()["BundleHeader"], entries.pop(b"", b""), f"'{self.path}' is no checkpoint")
        if header.endianness:
            raise UnsupportedError(f"the checkpoint '{self.path}' has its numbers' highest byte first")
        if not 1 <= header.num_shards <= MOST_SHARDS:
            raise FrontendError(f"'{self.path}' is damaged", why=f"it has {header.num_shards} files", hint=HINT)
        self.shards = int(header.num_shards)
        self.entries = {key.decode("utf-8", "replace"): value for key, value in entries.items()}

    def read(self, name: str, where: str) -> Array:
        """A tensor.

        Args:
            where: it is asked for.

        Raises:
            FrontendError: there is none of this name, its data is not there, or is damaged.
            UnsupportedError: Weft has no such dtype, or it is stored in parts.
        """
        if name not in self._read:
            self._read[name] = self._tensor(name, where)
        return self._read[name]

    def _tensor(self, name: str, where: str) -> Array:
        if name not in self.entries:
            raise FrontendError(f"the checkpoint '{self.path}' has no tensor '{name}'", where=where)
        entry = parse_binary(schema()["BundleEntry"], self.entries[name], f"'{self.path}' is damaged")
        if entry.slices:
            raise UnsupportedError(f"variable '{name}' is stored in parts", where=where)
        dtype = dtype_of(entry.dtype, f"tensor '{name}' of '{self.path}'")
        shape = shape_of(entry.shape, str(self.path))
        path = inside(self.folder, f"{self.name}.data-{entry.shard_id:05d}-of-{self.shards:05d}")

        def bad(why: str) -> FrontendError:
            return FrontendError(f"tensor '{name}' of '{path}' is damaged", where=where, why=why, hint=HINT)

        if shape is None or min(shape, default=0) < 0 or not 0 <= entry.shard_id < self.shards:
            raise bad(f"its shape is {shape}, its file {entry.shard_id} of {self.shards}")
        wanted = count_of(shape, f"tensor '{name}' of '{path}'") * dtype.numpy.itemsize
        if entry.size != wanted:
            raise bad(f"it has {entry.size:,} bytes, {dtype}{list(shape)} takes {wanted:,}")
        try:
            there = path.stat().st_size
        except FileNotFoundError:
            raise FrontendError(f"no file '{path}'", where=where, why=f"it holds the tensor '{name}'") from None
        if entry.offset < 0 or entry.offset + wanted > there:
            raise bad(f"it would end at byte {entry.offset + wanted:,} of {there:,}")
        data = np.fromfile(path, np.uint8, wanted, offset=entry.offset)
        if len(data) != wanted or crc32c(data) != unmasked(entry.crc32c):
            raise bad("its checksum is wrong")
        if dtype.is_bool:
            data = data != 0
        return data.view(dtype.numpy).reshape(shape)


def _entries(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table."""

    def bad(why: str) -> FrontendError:
        return FrontendError(f"'{path}' is no checkpoint's index", why=why, hint=HINT)

    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        raise bad("it does not end as one does")
    try:
        place = 0
        footer = data[-FOOTER:-8]
        _, place = _number(footer, place)
        _, place = _number(footer, place)
        offset, place = _number(footer, place)
        size, place = _number(footer, place)
        total = 0
        for _, handle in _block(data, offset, size, path):
            offset, after = _number(handle, 0)
            size, _ = _number(handle, after)
            total += size
            if total > len(data):
                raise bad("its blocks are more than it has bytes")
            yield from _block(data, offset, size, path)
    except (IndexError, ValueError) as error:
        raise bad(f"it does not parse: {error}") from None


def _block(data: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block: a key shares a number of bytes with the one before it."""
    end = offset + size
    if end + 5 > len(data):
        raise ValueError(f"a block would end at byte {end + 5:,} of {len(data):,}")
    if data[end]:
        raise UnsupportedError(f"the index '{path}' is compressed", hint="save the model without snappy")
    if crc32c(data[offset : end + 1]) != unmasked(int.from_bytes(data[end + 1 : end + 5], "little")):
        raise ValueError("the checksum of a block is wrong")
    block = data[offset:end]
    restarts = int.from_bytes(block[-4:], "little")
    last = len(block) - 4 - 4 * restarts
    if last < 0:
        raise ValueError("a block has no entries")
    place, key = 0, b""
    while place < last:
        shared, place = _number(block, place)
        more, place = _number(block, place)
        length, place = _number(block, place)
        if shared > len(key) or place + more + length > last:
            raise ValueError("an entry leaves its block")
        key = key[:shared] + block[place : place + more]
        yield key, block[place + more : place + more + length]
        place += more + length


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def find(folder: Path) -> Bundle | None:
    """The checkpoint of a SavedModel; None: it has no variables."""
    below = folder / "variables"
    if not (below / "variables.index").exists():
        return None
    return Bundle(inside(folder, "variables"))


__all__ = ["Bundle", "find"]
