"""Constants as kernels read them: copied once, packed by their layouts, beside the rest of a compilation.

The copies are the only ones that stay. What a constant was read from is let go page by page: the mapped model file
costs no memory once it is packed.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from weft.graph.nodes import Value
from weft_runtime.arrays import aligned_empty

Array: TypeAlias = "np.ndarray[Any, Any]"


class Weights:
    """Packs constants one after another on a thread of its own, in the order given; numpy moves bytes without Python's
    lock.

    A context manager: at its end what has not been packed is not wanted any more.

    `made`: the ids of values that nobody but this compilation knows. Their data goes once it is packed: transformed
    weights are larger than the model's.
    """

    def __init__(self, values: Iterable[Value], made: Collection[int] = ()) -> None:
        self._pool = ThreadPoolExecutor(1, "weft-weights")
        self._packed: dict[int, Future[Array]] = {
            id(v): self._pool.submit(self._pack, v, id(v) in made) for v in values
        }

    @staticmethod
    def _pack(value: Value, made: bool) -> Array:
        stored = packed(value)
        if made:
            value.keep_stored(stored)
        return stored

    def __getitem__(self, value: Value) -> Array:
        """The stored form of a constant, when it is ready."""
        return self._packed[id(value)].result()

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def packed(value: Value) -> Array:
    """A constant's data as stored by its layout: memory of its own, contiguous, on a cache line if it is a page or
    more."""
    data, layout = value.constant, value.tensor.layout
    assert data is not None
    if layout is None:
        stored = aligned_empty(data.shape, data.dtype.newbyteorder("="))
        stored[...] = data
    else:
        stored = layout.pack(data, aligned_empty)
    release_pages(data)
    return stored


def _address(data: Array) -> int:
    return int(data.__array_interface__["data"][0])


def release_pages(data: Array) -> None:
    """Releases the pages of a mapped file that contain `data` in this process; a later access reads the file again."""
    base: object = data
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not data.size or not memoryview(base).readonly:
        return
    reach = [(n - 1) * stride for n, stride in zip(data.shape, data.strides)]
    at = _address(data) - _address(np.frombuffer(base, np.uint8))
    first = (at + sum(r for r in reach if r < 0)) // mmap.PAGESIZE * mmap.PAGESIZE
    end = at + sum(r for r in reach if r > 0) + data.itemsize
    with contextlib.suppress(OSError, AttributeError):  # a system without it
        base.madvise(mmap.MADV_DONTNEED, first, end - first)
