"""The device `wave`: it places data and kernels in the chip's memory and starts the chip."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from weft_runtime.arrays import Array
from weft_runtime.device import Device, Memory, Slice

from weft_wave.isa import decode
from weft_wave.simulator import MEMORY, Chip, Code

ARGUMENTS = 4096
"""Bytes at the start of the memory that are for kernels' arguments."""
ALIGN = 64


class WaveDevice(Device):
    """One chip."""

    def __init__(self, memory: int = MEMORY) -> None:
        super().__init__("wave")
        self.chip = Chip(memory)
        self._holes: list[tuple[int, int]] = [(ARGUMENTS, memory - ARGUMENTS)]
        self._capacity = memory - ARGUMENTS

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        """What can be had in one piece."""
        return max((size for _, size in self._holes), default=0)

    @property
    def cycles(self) -> int:
        """Since the device was opened."""
        return self.chip.cycles

    def allocate(self, size: int) -> Memory:
        whole = max(-(-size // ALIGN) * ALIGN, ALIGN)
        for n, (start, room) in enumerate(self._holes):
            if room >= whole:
                self._holes[n : n + 1] = [(start + whole, room - whole)] if room > whole else []
                memory = Memory(size, start)
                weakref.finalize(memory, self._give_back, start, whole)
                return memory
        raise MemoryError(f"{size} bytes are wanted in one piece, {self.free} are free")

    def _give_back(self, start: int, size: int) -> None:
        holes: list[tuple[int, int]] = []
        for at, room in sorted([*self._holes, (start, size)]):
            if holes and sum(holes[-1]) == at:
                holes[-1] = (holes[-1][0], holes[-1][1] + room)
            else:
                holes.append((at, room))
        self._holes = holes

    def write(self, target: Slice, data: Array) -> None:
        self._bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        data.reshape(-1).view(np.uint8)[...] = self._bytes(source)[: data.nbytes]

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, tuple[list[Code], int]]:
        kernels = {name: decode(image, at) for name, at in entries.items()}
        return {name: (self.chip.assemble(code), arguments) for name, (code, arguments) in kernels.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        code, count = module[kernel]
        arguments = [*(_address(b) for b in buffers), *dims]
        if len(arguments) != count:
            raise ValueError(f"kernel {kernel} takes {count} arguments, and was given {len(arguments)}")
        if 8 * count > ARGUMENTS:
            raise ValueError(f"kernel {kernel} has {count} arguments; {ARGUMENTS // 8} have room")
        self.chip.longs[:count] = arguments
        self.chip.run(code, 0)

    def synchronize(self) -> None:
        pass

    def _bytes(self, piece: Slice) -> Array:
        start = _address(piece)
        return self.chip.memory[start : start + piece.bytes]


def _address(piece: Slice) -> int:
    return int(piece.memory.handle) + piece.offset
