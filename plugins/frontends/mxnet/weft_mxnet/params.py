"""Files of parameters: lists of arrays with names, as `mx.nd.save` writes them, of all versions.

file  := 0x112: uint64, 0: uint64, count: uint64, array*, count: uint64, (length: uint64, name)*
array := 0xF993fac9 or …aca: uint32, storage: int32, shape64, device: int32, id: int32, dtype: int32, data
       | 0xF993fac8: uint32, shape64, device, id, dtype, data
       | shape32, device, id, dtype, data                                   before 0.9: the first word is the rank
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.dtypes import bfloat16
from weft.errors import FrontendError
from weft.graph.operator import Array
from weft_frontend.archives import count_of, read_file

LIST, DENSE, OLDER, NEWER = 0x112, 0xF993FAC9, 0xF993FAC8, 0xF993FACA
DTYPES = {
    0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?", 8: "<i2", 9: "<u2", 10: "<u4",
    11: "<u8", 12: "bfloat16",
}  # fmt: skip
MOST_RANK = 32


class _Reader:
    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.at = memoryview(data), path, 0

    def error(self, why: str) -> FrontendError:
        return FrontendError(
            f"'{self.path}' is no file of MXNet's parameters", where=f"byte {self.at}", why=why, hint="is it whole?"
        )

    def take(self, count: int, what: str) -> memoryview:
        left = len(self.data) - self.at
        if not 0 <= count <= left:
            raise self.error(f"{what} would take {count:,} bytes, {left:,} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, dtype: str, what: str) -> int:
        return int(np.frombuffer(self.take(np.dtype(dtype).itemsize, what), dtype)[0])


def read_params(path: Path) -> dict[str, Array]:
    """The arrays of a file, by name, without the prefixes `arg:` and `aux:`.

    Raises:
        FrontendError: it is not there, ill-formed, or holds sparse arrays.
    """
    try:
        reader = _Reader(read_file(path), path)
    except FileNotFoundError:
        raise FrontendError(f"no file '{path}'", hint="give the path of the .params") from None
    if reader.number("<u8", "the header") != LIST:
        raise reader.error("it does not begin as one does")
    reader.number("<u8", "the header")
    arrays = [_array(reader) for _ in range(_count(reader, "arrays", 16))]
    names = []
    for _ in range(_count(reader, "names", 8)):
        name = bytes(reader.take(reader.number("<u8", "a name"), "a name"))
        try:
            names.append(name.decode())
        except UnicodeDecodeError as error:
            raise reader.error(f"a name is no UTF-8: {error}") from None
    if len(names) != len(arrays):
        raise reader.error(f"there are {len(arrays)} arrays and {len(names)} names")
    found: dict[str, Array] = {}
    for full, array in zip(names, arrays):
        short = full.removeprefix("arg:").removeprefix("aux:")
        if short in found:
            raise reader.error(f"two arrays are named '{short}'")
        found[short] = array
    return found


def _count(reader: _Reader, what: str, least: int) -> int:
    count = reader.number("<u8", f"the number of {what}")
    if count * least > len(reader.data):
        raise reader.error(f"there would be {count:,} {what}")
    return count


def _array(reader: _Reader) -> Array:
    first = reader.number("<u4", "an array")
    if first in (DENSE, NEWER):
        storage = reader.number("<i4", "an array")
        if storage not in (-1, 0):
            raise reader.error("an array is sparse, which is not supported")
    rank = reader.number("<i4" if first == NEWER else "<u4", "a shape") if first in (DENSE, NEWER, OLDER) else first
    if not 0 <= rank <= MOST_RANK:
        raise reader.error(f"an array has {rank} dimensions")
    size = "<u4" if first not in (DENSE, NEWER, OLDER) else "<i8"
    shape = tuple(reader.number(size, "a shape") for _ in range(rank))
    if rank == 0 and first != NEWER:
        return np.zeros(0, np.float32)  # an array that was never filled
    reader.take(8, "a device")
    code = reader.number("<i4", "a dtype")
    if code not in DTYPES:
        raise reader.error(f"an array has the dtype {code}, which is not known")
    dtype = bfloat16.numpy if DTYPES[code] == "bfloat16" else np.dtype(DTYPES[code])
    try:
        count = count_of(shape, "an array")
    except FrontendError as error:
        raise reader.error(error.what if error.why is None else f"{error.what}: {error.why}") from None
    return np.frombuffer(reader.take(count * dtype.itemsize, "an array"), dtype).reshape(shape)
