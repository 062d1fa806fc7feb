"""Launches with more buffers than a device takes arguments: their kernels get `BASES` of them, and a table of where
each buffer begins in which.

A plan's values are parts of few memories, so that mostly the bases are those. Where there are more, what does not find
a place is copied into one more, and back when the kernel is done. The text is that of `dialect.by_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from weft_opencl.devices import BASES
from weft_runtime.device import Memory, Slice

_ALIGNED = 64
"""Bytes: what kernels take begins at a multiple of them."""


@dataclass(frozen=True)
class Copied:
    """A part of a memory, and where its copy begins in the common one; bytes."""

    handle: Any
    offset: int
    copy: int
    size: int


@dataclass(frozen=True)
class Table:
    """What a launch takes in place of its buffers, ready.

    Args:
        bases: as many as the kernel takes.
        table: for each buffer the number of its base, then for each where it begins there, in bytes.
        copies: what is to be copied into the last base before the launch, and back behind it.
    """

    bases: tuple[Memory, ...]
    table: Any
    copies: tuple[Copied, ...] = ()

    @staticmethod
    def of(context: Any, buffers: Sequence[Slice], reserve: Callable[[int], Memory]) -> Table:
        """The table of a launch's buffers. `reserve`: bytes → memory, for what is copied."""
        ranges: dict[int, tuple[Memory, int, int]] = {}
        for x in buffers:
            _, first, end = ranges.get(id(x.memory), (x.memory, x.offset, x.offset))
            ranges[id(x.memory)] = x.memory, min(first, x.offset), max(end, x.offset + x.bytes)
        places = {key: (k, 0) for k, key in enumerate(ranges)}  # base, and what is to be added to an offset
        bases = [memory for memory, _, _ in ranges.values()]
        copies: list[Copied] = []
        if len(bases) > BASES:
            total = 0
            for key, (memory, first, end) in list(ranges.items())[BASES - 1 :]:
                places[key] = BASES - 1, total - first
                if end > first:
                    copies.append(Copied(memory.handle, first, total, end - first))
                total += -(-(end - first) // _ALIGNED) * _ALIGNED
            bases[BASES - 1 :] = [reserve(total)]
        bases += bases[:1] * (BASES - len(bases))
        rows = [places[id(x.memory)] for x in buffers]
        numbers = np.array(
            [base for base, _ in rows] + [shift + x.offset for (_, shift), x in zip(rows, buffers)], np.uint64
        )
        table = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=numbers)
        return Table(tuple(bases), table, tuple(copies))

    @property
    def arguments(self) -> list[Any]:
        """The kernel's, behind its dims."""
        return [*(b.handle for b in self.bases), self.table]

    def enqueue(self, queue: Any, launch: Callable[[], Any]) -> Any:
        """Enqueues a launch between its copies; its event."""
        common = self.bases[-1].handle
        for c in self.copies:
            cl.enqueue_copy(queue, common, c.handle, byte_count=c.size, src_offset=c.offset, dst_offset=c.copy)
        event = launch()
        for c in self.copies:
            cl.enqueue_copy(queue, c.handle, common, byte_count=c.size, src_offset=c.copy, dst_offset=c.offset)
        return event
