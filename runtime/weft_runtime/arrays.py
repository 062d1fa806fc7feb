"""Arrays that native code reads: their address and alignment."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, TypeAlias

import numpy as np

from weft_runtime.abi import LARGEST, ByteOrder

Array: TypeAlias = "np.ndarray[Any, Any]"
"""A numpy array of any dtype."""
ALIGNMENT = 64
"""Bytes to which buffers of kernels are aligned."""
_void_at = ctypes.c_void_p.from_address
_ALIGN_FROM = 4096


def _described_address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _find_data_field() -> int | None:
    """Where an array object holds its data pointer: right after the object header, by numpy's C ABI. None if this
    Python is laid out otherwise."""
    offset = object.__basicsize__
    samples: list[Array] = [np.empty(3), np.empty((2, 2), np.int8)[1:], np.empty((), np.uint16)]
    try:
        if all(ctypes.c_void_p.from_address(id(a) + offset).value == _described_address(a) for a in samples):
            return offset
    except (ValueError, TypeError):
        pass
    return None


_DATA_FIELD = _find_data_field() if sys.implementation.name == "cpython" else None


def array_address(array: Array) -> int:
    """Where the array's first element lies."""
    # Asking the array takes 2.5 µs, a quarter of a small call; reading its field a tenth of that.
    if _DATA_FIELD is None:
        return _described_address(array)
    return _void_at(id(array) + _DATA_FIELD).value or 0


def aligned_empty(shape: tuple[int, ...], of: np.dtype[Any], alignment: int | None = None) -> Array:
    """A fresh array that starts at a multiple of `alignment`; without it, one of a page or more starts on a cache line,
    which wide stores want.

    Raises:
        MemoryError: there is no such memory.
        ValueError: a size is negative.
    """
    count = math.prod(shape) * of.itemsize
    if count > LARGEST:
        raise MemoryError(f"{list(shape)} elements of {of} take {count} bytes")
    if alignment is None and count < _ALIGN_FROM:
        return np.empty(shape, of)
    each = alignment or ALIGNMENT
    store = np.empty(count + each, np.uint8)
    return np.ndarray(shape, of, store, -array_address(store) % each)


def in_order(array: Array, order: ByteOrder) -> Array:
    """The array's bytes, flat, as a processor of that byte order has them in memory. An array that has them so already
    is not copied if it is contiguous."""
    array = np.ascontiguousarray(array)
    # A complex number is two numbers.
    size = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    words = array.reshape(-1).view(np.dtype(f"u{size}")) if size > 1 else array.reshape(-1).view(np.uint8)
    own = sys.byteorder if array.dtype.isnative else {"little": "big", "big": "little"}[sys.byteorder]
    return (words if own == order else words.byteswap()).view(np.uint8)


def aligned(array: Array, alignment: int = ALIGNMENT) -> Array:
    """The array itself if it is contiguous and starts at a multiple of `alignment`, by default a cache line, else a
    copy that does."""
    array = np.asarray(array)
    if array.flags.c_contiguous and array_address(array) % alignment == 0 and array.dtype.isnative:
        return array
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="), alignment)
    copy[...] = array
    return copy
