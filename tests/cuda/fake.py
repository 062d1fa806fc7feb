"""A GPU that is not here: the driver's functions as far as weft-cuda calls them, over the host's memory.

What is started on a stream is done only when somebody waits for it, as late as a GPU may: what relies on more is seen.
Kernels are texts, which `tests.gpu.shim` compiles and runs with real threads. Addresses outside of what was allocated,
a call without a context, and a kernel that is launched beyond the limits are errors as the driver reports them.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver as real
from tests.gpu.shim.shims import Library, PlayedTensor

from weft_cuda.tensors import FUNCTION

OK = real.CUresult.CUDA_SUCCESS
Answer = tuple[Any, ...]


@dataclass
class Stream:
    """What was started and is not done. Unlike addresses, things are their own handles."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    captured: list[Callable[[], None]] | None = None

    def __int__(self) -> int:
        return id(self)

    def add(self, work: Callable[[], None]) -> None:
        (self.waiting if self.captured is None else self.captured).append(work)

    def drain(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


@dataclass
class Event:
    """`number`: of work done before it, once it has happened; `stream`: where it was recorded last."""

    stream: Stream | None = None
    time: float | None = None


@dataclass(eq=False)
class Function:
    """A kernel of a module: its symbol and its text."""

    symbol: str
    text: str
    shared: int = 48 << 10

    @property
    def parameters(self) -> list[str]:
        """Of each what it is: a pointer, a tensor or a size."""
        head = re.search(rf"void .*?{re.escape(self.symbol)}\((.*?)\) \{{", self.text, re.S)
        assert head is not None, self.text
        return [
            "pointer" if "*" in p else "tensor" if "weft_tensor " in p else "size"
            for p in head[1].split(",")
            if p.strip()
        ]


class FakeApi:
    """The driver, with one GPU or more. `log`: the functions called, in order. `fail`: function → what it answers the
    next time.

    `piece`: bytes that can be had at once.
    """

    CUfunction_attribute = real.CUfunction_attribute
    CUdevice_attribute = real.CUdevice_attribute
    CUstream_flags = real.CUstream_flags
    CUevent_flags = real.CUevent_flags
    CUstreamCaptureMode = real.CUstreamCaptureMode
    CUresult = real.CUresult

    def __init__(self, gpus: int = 1, memory: int = 64 << 20, capability: int = 90) -> None:
        self.gpus, self.memory, self.capability = gpus, memory, capability
        self.piece = memory // 2
        self.log: list[str] = []
        self.fail: dict[str, Any] = {}
        self.pieces: dict[int, Any] = {}
        self.modules: list[Any] = []
        self.graphs = 0
        self.streams: list[Stream] = []
        self.clock = 0.0
        self.contexts = threading.local()
        self.encoded: list[tuple[Any, ...]] = []
        self.encode = FUNCTION(self._encode)  # what has an address must live as long as it

    def _encode(
        self, to: int, dtype: int, rank: int, base: int, extents: Any, strides: Any, sizes: Any, steps: Any,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        """cuTensorMapEncodeTiled, with its checks: into what the shim takes."""
        each = {0: 1, 1: 2, 2: 4, 4: 8}.get(dtype, 0)
        bad = int(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        if not self._stack():
            return int(real.CUresult.CUDA_ERROR_INVALID_CONTEXT)
        if "cuTensorMapEncodeTiled" in self.fail:
            return int(self.fail.pop("cuTensorMapEncodeTiled"))
        if (
            not each
            or not 1 <= rank <= 5
            or to % 128
            or base % 16
            or (interleave, swizzle, fill) != (0, 0, 0)
            or promotion not in range(4)
        ):
            return bad
        found = extents[:rank], strides[: rank - 1], sizes[:rank]
        if (
            any(not 0 < n <= 1 << 32 for n in found[0])
            or any(n % 16 or not 0 < n < 1 << 40 for n in found[1])
            or any(not 0 < n <= 256 for n in found[2])
        ):
            return bad
        if sizes[0] * each % 16 or any(n != 1 for n in steps[:rank]):
            return bad
        ctypes.memmove(to, ctypes.byref(PlayedTensor.make(base, each, *found)), ctypes.sizeof(PlayedTensor))
        self.encoded.append((each, *map(tuple, found)))
        return 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("cu"):
            return found

        def call(*args: Any) -> Any:
            self.log.append(name)
            wrong = self.fail.pop(name, None)
            if wrong is not None:
                for stream in self.streams:
                    stream.captured = None if name == "cuStreamEndCapture" else stream.captured  # it ends in any case
                return (wrong, *((None,) * 2))[: 2 if name not in ("cuMemGetInfo",) else 3]
            try:
                return found(*args)
            except _Refused as error:
                return (error.result, None)

        return call

    # -- what is here
    def cuInit(self, flags: int) -> Answer:
        return (OK,) if self.gpus else (real.CUresult.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self) -> Answer:
        return OK, 13050

    def cuGetErrorString(self, error: Any) -> Answer:
        return OK, error.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower().encode()

    def cuDeviceGetCount(self) -> Answer:
        return OK, self.gpus

    def cuDeviceGet(self, ordinal: int) -> Answer:
        return (OK, ordinal) if ordinal < self.gpus else (real.CUresult.CUDA_ERROR_INVALID_DEVICE, None)

    def cuDeviceGetName(self, length: int, device: int) -> Answer:
        return OK, b"Fake GPU" + bytes(length - 8)

    def cuDeviceTotalMem(self, device: int) -> Answer:
        return OK, self.memory

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> Answer:
        numbers = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability // 10, "COMPUTE_CAPABILITY_MINOR": self.capability % 10,
            "MULTIPROCESSOR_COUNT": 4,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
            "MAX_THREADS_PER_BLOCK": 1024, "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64,
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535, "WARP_SIZE": 32, "MAX_REGISTERS_PER_BLOCK": 65536,
            "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
        }  # fmt: skip
        return OK, numbers[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDevicePrimaryCtxRetain(self, device: int) -> Answer:
        return OK, f"context {device}"

    # -- contexts
    def _stack(self) -> list[Any]:
        if not hasattr(self.contexts, "stack"):
            self.contexts.stack = []
        return self.contexts.stack  # type: ignore[no-any-return]

    def _in_context(self) -> None:
        if not self._stack():
            raise _Refused(real.CUresult.CUDA_ERROR_INVALID_CONTEXT)

    def cuCtxPushCurrent(self, context: Any) -> Answer:
        self._stack().append(context)
        return (OK,)

    def cuCtxPopCurrent(self) -> Answer:
        self._in_context()
        return OK, self._stack().pop()

    # -- memory
    def cuMemGetInfo(self) -> Answer:
        self._in_context()
        return OK, self._free(), self.memory

    def _free(self) -> int:
        return self.memory - sum(-(-p.size // 512) * 512 for p in self.pieces.values())

    def cuMemAlloc(self, size: int) -> Answer:
        self._in_context()
        if size <= 0:
            raise _Refused(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        if size > self._free() or size > self.piece:
            raise _Refused(real.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        room = np.full(size + 256, 0xFF, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        self.pieces[address] = room[address - room.ctypes.data :][:size]
        return OK, address

    def cuMemFree(self, address: int) -> Answer:
        self._in_context()
        for stream in self.streams:
            stream.drain()
        del self.pieces[int(address)]
        return (OK,)

    def cuMemHostAlloc(self, size: int, flags: int) -> Answer:
        self._in_context()
        self.page_locked = np.zeros(size, np.uint8)
        return OK, self.page_locked.ctypes.data

    def _check(self, address: int, size: int) -> None:
        if not any(at <= address and address + size <= at + p.size for at, p in self.pieces.items()):
            raise _Refused(real.CUresult.CUDA_ERROR_INVALID_VALUE)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: Stream) -> Answer:
        self._in_context()
        self._check(int(to), size)
        stream.add(lambda: ctypes.memmove(int(to), int(source), size))
        return (OK,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: Stream) -> Answer:
        self._in_context()
        self._check(int(source), size)
        stream.add(lambda: ctypes.memmove(int(to), int(source), size))
        return (OK,)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: Stream) -> Answer:
        return self.cuMemcpyHtoDAsync(to, source, size, stream)

    # -- streams and events
    def cuStreamCreate(self, flags: int) -> Answer:
        self._in_context()
        self.streams.append(Stream())
        return OK, self.streams[-1]

    def cuStreamSynchronize(self, stream: Stream) -> Answer:
        self._in_context()
        if stream.captured is not None:
            raise _Refused(real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        stream.drain()
        return (OK,)

    def cuEventCreate(self, flags: int) -> Answer:
        self._in_context()
        return OK, Event()

    def cuEventRecord(self, event: Event, stream: Stream) -> Answer:
        self._in_context()
        event.stream, event.time = stream, None

        def happen() -> None:
            event.time = self.clock

        stream.add(happen)
        return (OK,)

    def cuEventSynchronize(self, event: Event) -> Answer:
        self._in_context()
        if event.stream is not None and event.time is None:
            event.stream.drain()
        return (OK,)

    def cuEventElapsedTime(self, begin: Event, end: Event) -> Answer:
        if begin.time is None or end.time is None:
            raise _Refused(real.CUresult.CUDA_ERROR_NOT_READY)
        return OK, end.time - begin.time

    def cuEventDestroy(self, event: Event) -> Answer:
        return (OK,)

    # -- kernels
    def cuModuleLoadData(self, image: bytes) -> Answer:
        self._in_context()
        if not image.startswith(b"// "):
            raise _Refused(real.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU)
        self.modules.append(image.decode())
        return OK, image.decode()

    def cuModuleUnload(self, module: str) -> Answer:
        self._in_context()
        self.modules.remove(module)
        return (OK,)

    def cuModuleGetFunction(self, module: str, name: bytes) -> Answer:
        if f" {name.decode()}(" not in module:
            raise _Refused(real.CUresult.CUDA_ERROR_NOT_FOUND)
        return OK, Function(name.decode(), module)

    def cuFuncSetAttribute(self, f: Function, attribute: Any, value: int) -> Answer:
        assert attribute == real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if value > 227 << 10:
            raise _Refused(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        f.shared = value
        return (OK,)

    def cuLaunchKernel(
        self,
        f: Function,
        gx: int,
        gy: int,
        gz: int,
        bx: int,
        by: int,
        bz: int,
        shared: int,
        stream: Stream,
        arguments: int,
        extra: int,
    ) -> Answer:
        self._in_context()
        if not all((gx, gy, gz)) or max(gy, gz) > 65535 or not 0 < bx * by * bz <= 1024 or shared > f.shared:
            raise _Refused(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        kinds = f.parameters
        table = (ctypes.c_void_p * len(kinds)).from_address(arguments)
        given: dict[str, list[int]] = {"pointer": [], "size": [], "tensor": []}
        tensors = []
        for at, kind in zip(table, kinds):  # the driver reads them now
            if kind == "tensor":
                tensors.append(
                    PlayedTensor.from_buffer_copy(ctypes.string_at(int(at or 0), ctypes.sizeof(PlayedTensor)))
                )
                given[kind].append(ctypes.addressof(tensors[-1]))
                self._check(tensors[-1].base, 0)
                continue
            given[kind].append(ctypes.c_int64.from_address(int(at or 0)).value)
            if kind == "pointer":
                self._check(given[kind][-1], 0)
        text = f.text.replace("extern __shared__", "__shared__").replace(
            "weft_shared[]", f"weft_shared[{max(1, shared)}]"
        )
        library = Library("cuda", [(f.symbol, text)])

        def work() -> None:
            self.clock += 0.5
            assert len(tensors) == len(given["tensor"])  # they are kept
            library.launch(0, [*given["pointer"], *given["tensor"]], given["size"], (gx, gy, gz), (bx, by, bz))

        stream.add(work)
        return (OK,)

    # -- tensors
    def cuGetProcAddress(self, symbol: bytes, cudaVersion: int, flags: int) -> Answer:
        assert symbol == b"cuTensorMapEncodeTiled" and cudaVersion >= 12000
        return OK, ctypes.cast(self.encode, ctypes.c_void_p).value if self.capability >= 90 else 0, 0

    # -- graphs
    def cuStreamBeginCapture(self, stream: Stream, mode: Any) -> Answer:
        self._in_context()
        stream.captured = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Stream) -> Answer:
        found, stream.captured = stream.captured, None
        return OK, found

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> Answer:
        self.graphs += 1
        return OK, tuple(graph)

    def cuGraphDestroy(self, graph: Any) -> Answer:
        return (OK,)

    def cuGraphLaunch(self, graph: tuple[Any, ...], stream: Stream) -> Answer:
        self._in_context()
        for work in graph:
            stream.add(work)
        return (OK,)

    def cuGraphExecDestroy(self, graph: Any) -> Answer:
        self.graphs -= 1
        return (OK,)


class _Refused(Exception):
    def __init__(self, result: Any) -> None:
        self.result = result
