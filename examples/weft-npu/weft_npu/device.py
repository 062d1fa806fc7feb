"""The device "npu": DRAM of its own, and the simulator that runs kernels on it."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft_npu.isa import Kernel, decode, listing
from weft_npu.simulator import Counts, Program, Run, table
from weft_runtime.arrays import Array
from weft_runtime.device import Device, Memory, Slice

CAPACITY = 1 << 30
"""Bytes of DRAM."""


def pack(kernels: Mapping[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """A code section: each kernel's length in 4 bytes, then its binary form; and where each begins."""
    image, entries = b"", {}
    for name, code in kernels.items():
        entries[name] = len(image)
        image += struct.pack("<I", len(code)) + code
    return image, entries


def unpack(image: bytes, entries: Mapping[str, int]) -> dict[str, Kernel]:
    """The kernels of a code section. Raises ExecutionError for what is none."""
    found = {}
    for name, at in entries.items():
        if not 0 <= at <= len(image) - 4:
            raise ExecutionError(
                f"kernel '{name}' of the npu lies outside its section", why=f"it begins at {at} of {len(image)} bytes"
            )
        (size,) = struct.unpack_from("<I", image, at)
        if size > len(image) - at - 4:
            raise ExecutionError(
                f"kernel '{name}' of the npu is cut short", why=f"it has {size} bytes, {len(image) - at - 4} are there"
            )
        found[name] = decode(image[at + 4 : at + 4 + size])
    return found


class Module:
    """A code section, ready to run."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self.kernels = kernels
        self.programs = {name: Program(k) for name, k in kernels.items()}

    def __str__(self) -> str:
        return listing(list(self.kernels.items()))


class Npu(Device):
    """One simulated chip.

    `counts`: what each kernel took since the device was opened or `reset`; `loaded`: kernels by name.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__("npu")
        self._capacity, self._used = capacity, 0
        self.counts: dict[str, Counts] = {}
        self.loaded: dict[str, Kernel] = {}

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return self._capacity - self._used

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, np.full(-(-size // 4), np.nan, np.float32))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def write(self, target: Slice, data: Array) -> None:
        self._bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        data.reshape(-1).view(np.uint8)[...] = self._bytes(source)[: data.nbytes]

    def _bytes(self, s: Slice) -> Array:
        return s.memory.handle.view(np.uint8)[s.offset : s.offset + s.bytes]  # type: ignore[no-any-return]

    def load(self, image: bytes, entries: Mapping[str, int]) -> Module:
        module = Module(unpack(image, entries))
        self.loaded.update(module.kernels)
        return module

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        views = []
        for k, s in enumerate(buffers):
            if s.offset % 4:
                raise ExecutionError(
                    f"buffer {k} of kernel '{kernel}' does not begin at a whole element",
                    why=f"it begins at byte {s.offset}",
                )
            views.append(s.memory.handle[s.offset // 4 : (s.offset + s.bytes) // 4])
        found = Run(module.programs[kernel], views, kernel).run()
        self.counts.setdefault(kernel, Counts()).add(found)

    def synchronize(self) -> None:
        """Nothing runs on after `launch`."""

    def reset(self) -> None:
        """Forgets what was counted."""
        self.counts.clear()

    def report(self) -> str:
        """Cycles, utilisation of the matrix unit's peak, and how busy each unit was, kernel by kernel."""
        return table(self.counts)
