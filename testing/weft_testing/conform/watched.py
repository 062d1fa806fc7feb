"""A device in a device: what it is asked passes through, its buffers lie between guards and begin as rubbish, and it
can be made to fail."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft_runtime.arrays import ALIGNMENT, Array
from weft_runtime.device import Device, Memory, Slice

RUBBISH = 0xFF
"""What memory is full of before anybody writes: no number as a float, and minus one as an integer."""


@dataclass(frozen=True)
class _Piece:
    memory: Memory
    guards: tuple[Array, Array] = field(compare=False)


class Watched(Device):
    """See the module.

    `fault`: called before each operation with its name ("allocate", "write", "read", "load", "launch", "synchronize");
    what it raises, happens. `limit`: bytes that it has from now on, if fewer than it has.
    `guard`: bytes on both sides of each piece of memory: a whole number of those that buffers are aligned to, and of no
    higher power of two.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device.name)
        self.device = device
        self.lock = device.lock
        self.align = device.align
        self.guard = 3 * max(ALIGNMENT, device.align)
        self.fault: Callable[[str], None] = lambda operation: None
        self.limit: int | None = None
        self.launches = 0
        self._used = 0

    @property
    def capacity(self) -> int:
        return self.device.capacity

    @property
    def free(self) -> int:
        free = max(0, self.device.free - 2 * self.guard)
        return free if self.limit is None else min(free, max(0, self.limit - self._used))

    def allocate(self, size: int) -> Memory:
        self.fault("allocate")
        inner = self.device.reserve(size + 2 * self.guard)
        self.device.write(Slice(inner, 0, inner.size), np.full(size + 2 * self.guard, RUBBISH, np.uint8))
        ends = Slice(inner, 0, self.guard), Slice(inner, self.guard + size, self.guard)
        memory = Memory(size, _Piece(inner, (self._peek(ends[0]), self._peek(ends[1]))))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def _peek(self, s: Slice) -> Array:
        data = np.empty(s.bytes, np.uint8)
        self.device.read(s, data)
        return data

    def _inner(self, s: Slice) -> Slice:
        return Slice(s.memory.handle.memory, s.offset + self.guard, s.bytes)

    def write(self, target: Slice, data: Array) -> None:
        self.fault("write")
        self.device.write(self._inner(target), data)

    def read(self, source: Slice, data: Array) -> None:
        self.fault("read")
        self.device.read(self._inner(source), data)

    def load(self, image: bytes, entries: Mapping[str, int]) -> Any:
        self.fault("load")
        return self.device.load(image, entries)

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        self.fault("launch")
        self.launches += 1
        self.device.launch(module, kernel, [self._inner(b) for b in buffers], dims)
        self.device.synchronize()
        for k, b in enumerate(buffers):
            piece: _Piece = b.memory.handle
            ends = Slice(piece.memory, 0, self.guard), Slice(piece.memory, self.guard + b.memory.size, self.guard)
            for end, guard, where in zip(ends, piece.guards, ("before", "beyond")):
                if not np.array_equal(self._peek(end), guard):
                    raise ExecutionError(
                        f"kernel '{kernel}' wrote {where} buffer {k} on device '{self.name}'",
                        why=f"the buffer has {b.bytes} bytes",
                    )

    def synchronize(self) -> None:
        self.fault("synchronize")
        self.device.synchronize()
