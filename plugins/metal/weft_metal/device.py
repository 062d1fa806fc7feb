"""The device "metal": the GPU that macOS prefers, one queue that works in order, and texts that the system compiles and
keeps.

It runs saved models too, and imports nothing of the compiler.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.machine import Grid
from weft_gpu.image import Launch, unpack
from weft_gpu.launch import grid_of
from weft_metal.families import DIMS
from weft_runtime.arrays import Array
from weft_runtime.device import Device, Memory, Slice, Started, blamed
from weft_runtime.threads import available_threads

_SHARED = 0
"""MTLResourceStorageModeShared: one memory for the host and the GPU."""
_READ_WRITE = 3
"""MTLResourceUsageRead | MTLResourceUsageWrite."""
_FAILED = 5
"""MTLCommandBufferStatusError."""
_SAFE = 0
"""MTLMathModeSafe: arithmetic as IEEE 754 has it."""
_COMPILERS = 8
_MOST_WAITING = 64
"""Command buffers that are not waited for, at most: a queue has no more."""


@dataclass(frozen=True)
class _Piece:
    """Where a memory is: a Metal buffer, and the byte at which the memory begins in it."""

    buffer: Any
    offset: int = 0
    host: Array | None = None
    """The array whose pages the buffer is: it lives as long."""


@dataclass(frozen=True)
class _Ready:
    """A launch, compiled: a pipeline state."""

    launch: Launch
    state: Any


class MetalDevice(Device):
    """One opened GPU. Where the host and it have one memory, values are the host's arrays, which nobody copies.

    Args:
        metal, gpu: pyobjc's module and its MTLDevice; by default what is here.
    """

    def __init__(self, metal: Any = None, gpu: Any = None) -> None:
        from weft_metal import driver

        super().__init__("metal")
        self.metal = metal if metal is not None else driver.metal()
        self.gpu = gpu if gpu is not None else driver.gpu()
        self.shares_memory = bool(self.gpu.hasUnifiedMemory())
        self.queue = self.gpu.newCommandQueue()
        if self.queue is None:
            raise ExecutionError("the GPU gives no queue", why=str(self.gpu.name()))
        most = self.gpu.maxThreadsPerThreadgroup()
        self.limits = Grid(
            int(most.width), (int(most.width), int(most.height), int(most.depth)), (2**31 - 1, 2**31 - 1, 2**31 - 1)
        )  # of one axis the GPU allows as many as in all
        self._capacity, self._used = int(self.gpu.recommendedMaxWorkingSetSize()), 0
        self._largest = int(self.gpu.maxBufferLength())
        self._waiting: list[tuple[Any, str]] = []
        self._noted: list[tuple[str, Any]] | None = None

    # -- memory
    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return max(0, self._capacity - self._used)

    def reserve(self, size: int) -> Memory:
        if self._largest < size <= self.free:
            why = (
                f"{size} bytes are wanted, a buffer of {self.gpu.name()} has at most {self._largest}; {self.free} of"
                f" {self.capacity} are free"
            )
            raise ExecutionError(
                f"device '{self.name}' has no piece of memory so large", why=why, hint="run smaller inputs"
            )
        return super().reserve(size)

    def allocate(self, size: int) -> Memory:
        buffer = self.gpu.newBufferWithLength_options_(max(16, size), _SHARED)
        if buffer is None:
            raise ExecutionError(
                f"device '{self.name}' has too little memory",
                why=f"{size} bytes are wanted, {self.free} of {self.capacity} were free",
            )
        memory = Memory(size, _Piece(buffer))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def share(self, data: Array) -> Memory:
        """The pages of an array as a buffer of the GPU's; whole pages, so that it may begin inside."""
        if data.nbytes == 0:
            return Memory(0, _Piece(self.gpu.newBufferWithLength_options_(16, _SHARED)))
        address = data.ctypes.data
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        length = -(-(address + data.nbytes - first) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = (ctypes.c_char * length).from_address(first)
        buffer = self.gpu.newBufferWithBytesNoCopy_length_options_deallocator_(pages, length, _SHARED, None)
        if buffer is None:
            raise ExecutionError(
                f"device '{self.name}' does not take memory of the host", why=f"{length} bytes from {first:#x} on"
            )
        return Memory(data.nbytes, _Piece(buffer, address - first, data))

    def _bytes(self, piece: Slice) -> Array:
        at = piece.memory.handle
        every = np.frombuffer(at.buffer.contents().as_buffer(at.buffer.length()), np.uint8)
        return every[at.offset + piece.offset : at.offset + piece.offset + piece.bytes]

    def write(self, target: Slice, data: Array) -> None:
        self.synchronize()  # kernels may still read what was there
        self._bytes(target)[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, source: Slice, data: Array) -> None:
        self.synchronize()
        data.reshape(-1).view(np.uint8)[...] = self._bytes(source)[: data.nbytes]

    # -- code
    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, list[_Ready]]:
        kernels = unpack(image, entries)
        wanted = {(x.symbol, x.code): k.name for k in kernels.values() for x in k.launches}
        with ThreadPoolExecutor(max(1, min(_COMPILERS, available_threads(), len(wanted)))) as pool:
            states = dict(zip(wanted, pool.map(lambda key: self._state(key[0], key[1], wanted[key]), wanted)))
        found = {}
        for name, kernel in kernels.items():
            found[name] = [_Ready(x, states[x.symbol, x.code]) for x in kernel.launches]
            for ready in found[name]:
                self._check(ready, name)
        return found

    def _state(self, symbol: str, code: bytes, kernel: str) -> Any:
        """The pipeline of a text. The system keeps what it has compiled, from process to process."""
        try:
            text = code.decode()
        except UnicodeDecodeError as error:
            raise ExecutionError(
                f"kernel '{kernel}' for device '{self.name}' is no text", why=str(error), hint="compile the model again"
            ) from None
        options = self.metal.MTLCompileOptions.alloc().init()
        if hasattr(options, "setMathMode_"):  # macOS 15
            options.setMathMode_(_SAFE)
        else:
            options.setFastMathEnabled_(False)
        library, refusal = self.gpu.newLibraryWithSource_options_error_(text, options, None)
        if library is None:
            raise self._refused(kernel, text, _said(refusal))
        function = library.newFunctionWithName_(symbol)
        if function is None:
            raise ExecutionError(f"the text of kernel '{kernel}' has no '{symbol}'", hint="compile the model again")
        state, refusal = self.gpu.newComputePipelineStateWithFunction_error_(function, None)
        if state is None:
            why = f"{self.gpu.name()}: {_said(refusal)}"
            raise ExecutionError(
                f"kernel '{kernel}' cannot run on device '{self.name}'",
                where=symbol,
                why=why,
                hint="compile it for this GPU: -family=…",
            )
        return state

    def _check(self, ready: _Ready, kernel: str) -> None:
        x, y, z = ready.launch.group
        most = int(ready.state.maxTotalThreadsPerThreadgroup())
        if x * y * z > most:
            raise ExecutionError(
                f"kernel '{kernel}' cannot run on device '{self.name}'", where=ready.launch.symbol,
                why=f"{x * y * z} threads are wanted in a group, with as many registers {most} are allowed",
                hint="compile it for this GPU: -family=…",
            )  # fmt: skip

    def _refused(self, kernel: str, text: str, said: str) -> ExecutionError:
        at = re.search(r"program_source:(\d+):\d+: error: (.*)", said)
        lines = text.splitlines()
        where = f"line {at[1]}: {lines[int(at[1]) - 1].strip()}" if at and 1 <= int(at[1]) <= len(lines) else None
        return ExecutionError(
            f"Metal's compiler refuses kernel '{kernel}'", where=where, why=(at[2] if at else said) or None,
            hint="`weft inspect --stage source` shows the whole text",
        )  # fmt: skip

    # -- launches
    def _encoded(self, encoder: Any, ready: _Ready, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> bool:
        """Adds a launch to a command buffer; False if it has no groups."""
        launch = ready.launch
        lacks = [f"buffer {b} of {len(buffers)}" for b in launch.buffers if b >= len(buffers)] + [
            f"dim {d} of {len(dims)}" for d in launch.dims if d >= len(dims)
        ]
        if lacks:
            raise ExecutionError(f"a launch of kernel '{kernel}' needs {lacks[0]}", hint="compile the model again")
        groups = grid_of(launch, dims, self.limits, kernel)
        if groups is None:
            return False
        encoder.setComputePipelineState_(ready.state)
        places = [
            (buffers[b].memory.handle.buffer, buffers[b].memory.handle.offset + buffers[b].offset)
            for b in launch.buffers
        ]
        if len(places) <= DIMS:
            for k, (buffer, offset) in enumerate(places):
                encoder.setBuffer_offset_atIndex_(buffer, offset, k)
        else:
            for buffer in {id(b): b for b, _ in places}.values():
                encoder.useResource_usage_(buffer, _READ_WRITE)
            table = np.array([buffer.gpuAddress() + offset for buffer, offset in places], np.uint64).tobytes()
            encoder.setBytes_length_atIndex_(table, len(table), 0)
        sizes = np.array([dims[d] for d in launch.dims] or [0], np.int64).tobytes()
        encoder.setBytes_length_atIndex_(sizes, len(sizes), DIMS)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(
            self.metal.MTLSize(*groups), self.metal.MTLSize(*launch.group)
        )
        return True

    def _start(self, module: Any, launches: Sequence[Started]) -> None:
        """One command buffer of them all."""
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        try:
            for each in launches:
                with blamed(self.name, f"kernel '{each.kernel}'"):
                    for ready in module[each.kernel]:
                        self._encoded(encoder, ready, each.kernel, each.buffers, each.dims)
        finally:
            encoder.endEncoding()  # an encoder must be ended, whatever becomes of its commands
        commands.commit()
        name = launches[0].kernel if len(launches) == 1 else f"{launches[0].kernel}' … '{launches[-1].kernel}"
        self._waiting.append((commands, name))
        if self._noted is not None:
            self._noted.append((name, commands))
        if len(self._waiting) >= _MOST_WAITING:
            self.synchronize()

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        self._start(module, [Started(kernel, tuple(buffers), tuple(dims))])

    def prepare(self, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        def start() -> None:
            if self._noted is None:
                if launches:
                    self._start(module, launches)
                return
            for each in launches:  # times are those of command buffers
                self._start(module, [each])

        return start

    def synchronize(self) -> None:
        waiting, self._waiting = self._waiting, []
        for commands, _ in waiting:
            commands.waitUntilCompleted()
        for commands, name in waiting:
            if commands.status() == _FAILED:
                raise ExecutionError(f"kernel '{name}' failed on device '{self.name}'", why=_said(commands.error()))

    # -- times
    def record(self, on: bool) -> None:
        self.synchronize()
        self._noted = [] if on else None

    def recorded(self) -> list[tuple[str, float, float]]:
        self.synchronize()
        found = [
            (kernel, float(commands.GPUStartTime()), float(commands.GPUEndTime()))
            for kernel, commands in self._noted or ()
        ]
        self._noted = None if self._noted is None else []
        return found


def _said(error: Any) -> str:
    """An NSError in words."""
    return "the system does not say why" if error is None else str(error.localizedDescription())
