"""pyobjc's Metal as far as weft-metal uses it, on this machine: memory is numpy's, texts run by the shim, and every
call is kept.

Commands run when their buffer is waited for, not before: what forgets to wait finds old bytes. What a Mac would refuse
is refused: buffers beyond the table, offsets that are no multiple of 4, groups larger than a pipeline has, encoders
that are not ended, pages that are not whole.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.gpu.shim.shims import Library, ShimError

_ENTRIES = 31


class Error:
    def __init__(self, text: str) -> None:
        self.text = text

    def localizedDescription(self) -> str:
        return self.text


class MTLSize:
    def __init__(self, width: int, height: int, depth: int) -> None:
        self.width, self.height, self.depth = width, height, depth

    def __iter__(self) -> Any:
        return iter((self.width, self.height, self.depth))


class Contents:
    """objc.varlist."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def as_buffer(self, length: int) -> memoryview:
        return memoryview(self.memory)[:length]


class Buffer:
    def __init__(self, memory: Any, length: int) -> None:
        self.memory, self._length = memory, length

    def length(self) -> int:
        return self._length

    def contents(self) -> Contents:
        return Contents(self.memory)

    def gpuAddress(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class State:
    def __init__(self, library: Library, most: int) -> None:
        self.library, self.most = library, most

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self.most


class Compiled:
    """An MTLLibrary, and the MTLFunction of it."""

    def __init__(self, text: str, symbol: str) -> None:
        self.text, self.symbol = text, symbol

    def newFunctionWithName_(self, name: str) -> Compiled | None:
        return self if name == self.symbol else None


class Options:
    math: int | None = None

    @classmethod
    def alloc(cls) -> Options:
        return cls()

    def init(self) -> Options:
        return self

    def setMathMode_(self, mode: int) -> None:
        self.math = mode


class Encoder:
    def __init__(self, commands: Commands) -> None:
        self.commands, self.state, self.ended = commands, None, False
        self.table: dict[int, tuple[Any, int]] = {}
        self.resident: list[Any] = []

    def setComputePipelineState_(self, state: State) -> None:
        self.state = state

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        assert 0 <= index < _ENTRIES and offset % 4 == 0 and 0 <= offset <= buffer.length()
        self.table[index] = buffer, offset

    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int) -> None:
        assert 0 <= index < _ENTRIES and len(data) == length <= 4096
        self.table[index] = Buffer(bytearray(data), length), 0

    def useResource_usage_(self, buffer: Buffer, usage: int) -> None:
        self.resident.append(buffer)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: MTLSize, threads: MTLSize) -> None:
        assert self.state is not None and not self.ended and all(n > 0 for n in groups)
        assert threads.width * threads.height * threads.depth <= self.state.most
        self.commands.dispatched.append((self.state, dict(self.table), tuple(groups), tuple(threads)))

    def endEncoding(self) -> None:
        self.ended = True


class Commands:
    """An MTLCommandBuffer."""

    clock = 100.0

    def __init__(self, queue: Queue) -> None:
        self.queue, self.dispatched, self.encoder = queue, [], None  # type: ignore[var-annotated]
        self._status, self._error = 0, None
        self._began = self._ended = 0.0

    def computeCommandEncoder(self) -> Encoder:
        self.encoder = Encoder(self)
        return self.encoder

    def commit(self) -> None:
        assert self.encoder is not None and self.encoder.ended and self._status == 0
        self._status = 2
        self.queue.committed.append(self)
        self.queue.gpu.calls.append(f"commit {len(self.dispatched)}")

    def run(self) -> None:
        self._began = Commands.clock
        for state, table, groups, threads in self.dispatched:
            Commands.clock += 0.001
            addresses = {k: b.gpuAddress() + offset for k, (b, offset) in table.items()}
            try:
                state.library.launch(0, addresses, [], groups, threads, self.queue.gpu.seed)
            except ShimError as error:
                self._status, self._error = 5, Error(str(error))
                break
        else:
            self._status = 4
        self._ended = Commands.clock

    def waitUntilCompleted(self) -> None:
        self.queue.gpu.calls.append("wait")
        while self in self.queue.committed:
            self.queue.committed.pop(0).run()

    def status(self) -> int:
        return self._status

    def error(self) -> Error | None:
        return self._error

    def GPUStartTime(self) -> float:
        return self._began

    def GPUEndTime(self) -> float:
        return self._ended


class Queue:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.committed = gpu, []  # type: ignore[var-annotated]

    def commandBuffer(self) -> Commands:
        return Commands(self)


class Gpu:
    """An MTLDevice.

    Args:
        unified: one memory for it and the host.
        families: MTLGPUFamily's numbers that it belongs to.
        most: threads of a pipeline.
    """

    def __init__(
        self,
        unified: bool = True,
        capacity: int = 1 << 30,
        families: tuple[int, ...] = (5001, 2002, 1007),
        most: int = 1024,
    ) -> None:
        self.unified, self.capacity, self.families, self.most = unified, capacity, families, most
        self.calls: list[str] = []
        self.options: list[Options] = []
        self.held = 0
        self.seed = 0
        self.compilable: Callable[[str], bool] = lambda text: True

    def name(self) -> str:
        return "Apple M0"

    def hasUnifiedMemory(self) -> bool:
        return self.unified

    def supportsFamily_(self, number: int) -> bool:
        return number in self.families

    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(1024, 1024, 1024)

    def recommendedMaxWorkingSetSize(self) -> int:
        return self.capacity

    def maxBufferLength(self) -> int:
        return self.capacity // 2

    def newCommandQueue(self) -> Queue:
        return Queue(self)

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        assert options == 0
        if length <= 0 or self.held + length > self.capacity:
            return None
        self.calls.append(f"buffer {length}")
        memory = np.full(length + 64, 0xFF, np.uint8)
        start = -memory.ctypes.data % 64
        buffer = Buffer(memory[start : start + length], length)
        self.held += length
        weakref.finalize(buffer, self._release, length)
        return buffer

    def _release(self, length: int) -> None:
        self.held -= length

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, pages: Any, length: int, options: int, deallocator: Any
    ) -> Buffer | None:
        assert ctypes.addressof(pages) % mmap.PAGESIZE == 0 and length % mmap.PAGESIZE == 0 and deallocator is None
        self.calls.append(f"pages {length // mmap.PAGESIZE}")
        return Buffer(pages, length)

    def newLibraryWithSource_options_error_(
        self, text: str, options: Options, error: None
    ) -> tuple[Compiled | None, Error | None]:
        self.options.append(options)
        symbol = re.search(r"\[\[kernel.*?\]\] void (\w+)\(", text)
        assert symbol is not None and "#include <metal_stdlib>" in text
        try:
            Library("metal", [(symbol[1], text)])
        except ShimError as refused:
            found = re.search(rf"{symbol[1]}:(\d+:\d+): error: (.*)", str(refused))
            assert found is not None
            return None, Error(f"Compilation failed: \n\nprogram_source:{found[1]}: error: {found[2]}\n")
        return Compiled(text, symbol[1]), None

    def newComputePipelineStateWithFunction_error_(
        self, function: Compiled, error: None
    ) -> tuple[State | None, Error | None]:
        if not self.compilable(function.text):
            return None, Error("Threadgroup memory size (65536) exceeds the maximum threadgroup memory allowed (32768)")
        return State(Library("metal", [(function.symbol, function.text)]), self.most), None


class FakeMetal:
    """The module."""

    MTLCompileOptions = Options
    MTLSize = MTLSize

    def __init__(self, gpu: Gpu | None) -> None:
        self.gpu = gpu

    def MTLCreateSystemDefaultDevice(self) -> Gpu | None:
        return self.gpu
