"""The device "cuda": one NVIDIA GPU through the driver. Runtime: nothing of the compiler is imported.

Everything is started on one stream of the primary context, which torch and cupy use too, and in its order. What a plan
launches again and again becomes a graph of the driver, which starts in one call.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from weft.errors import ExecutionError, InputError
from weft.forks import of_this_process
from weft.machine import Grid
from weft_cuda.architectures import native
from weft_cuda.code import unpack_code
from weft_cuda.driver import Driver, DriverError, driver
from weft_cuda.tensors import Encoded, encoded
from weft_gpu.image import Kernel, Tensor, unpack
from weft_gpu.launch import grid_of
from weft_runtime.arrays import Array
from weft_runtime.device import Borrowed, Device, Memory, Slice, Started, blamed
from weft_runtime.dlpack import foreign_tensor

STAGED = 1 << 20
"""Bytes of the page-locked room through which small arrays are copied: the copy runs on while its caller does."""
_SMALL = 2 << 20
"""Smaller pieces of memory share pages of the driver's."""

ALIGNED = 16
"""Bytes that one thread moves at once: what kernels take begins at a multiple of them."""
_FOREIGN = 256
"""Places of other libraries' tensors that are known again."""
_KNOWN_TENSORS = 1024
"""Tensors at their places that are encoded once."""
_CUDA, _MANAGED = 2, 13
"""Devices of DLPack."""


@dataclass(frozen=True)
class Module:
    """A code section in the driver: its kernels, and by code and symbol each launch's function, and the bytes of shared
    memory that it is launched with."""

    kernels: Mapping[str, Kernel]
    functions: Mapping[tuple[bytes, str], tuple[Any, int]]


class _Call:
    """One launch with its arguments where the driver reads them: pointers and sizes, and tensors behind them."""

    def __init__(
        self, kernel: str, function: Any, grid: tuple[int, int, int], group: tuple[int, int, int], shared: int,
        arguments: Sequence[int], tensors: Sequence[Encoded],
    ) -> None:  # fmt: skip
        self.kernel, self.function, self.grid, self.group, self.shared = kernel, function, grid, group, shared
        self._values = (ctypes.c_int64 * max(1, len(arguments)))(*arguments)  # pointers and sizes alike have 8 bytes
        self._tensors = tensors
        begin, size = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_int64)
        places = [*(begin + k * size for k in range(len(arguments))), *(x.address for x in tensors)]
        self._pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.arguments = ctypes.addressof(self._pointers)


class CudaDevice(Device):
    """One GPU.

    Args:
        ordinal: the driver's number of it.
        found: the driver, or something that plays it.
        graphs: whether launches that are repeated become graphs.

    Raises:
        ExecutionError: there is no driver, or no such GPU.
    """

    def __init__(self, ordinal: int = 0, found: Driver | None = None, graphs: bool = True) -> None:
        super().__init__(f"cuda:{ordinal}" if ordinal else "cuda")
        self._driver = found or driver()
        self._driver("cuInit", 0)
        self.ordinal, self.graphs = ordinal, graphs
        self.handle = self._driver("cuDeviceGet", ordinal)
        self.title = self._driver("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode()
        self.capability = self._driver.capability(self.handle)
        self.most_shared = self._driver.attribute(self.handle, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.limits: Grid = self._driver.grid(self.handle)
        self._capacity = int(self._driver("cuDeviceTotalMem", self.handle))
        self._context = self._driver("cuDevicePrimaryCtxRetain", self.handle)
        with self._current():
            self.stream = self._driver("cuStreamCreate", self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._stage = int(self._driver("cuMemHostAlloc", STAGED, 0))
            self._staged = self._driver("cuEventCreate", self._driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._small = 0
        self._foreign: dict[int, Memory] = {}
        self._tensors: dict[tuple[Tensor, int], Encoded] = {}
        self._recording = False
        self._records: list[tuple[str, Any, Any]] = []
        self._since: Any = None

    def _current(self) -> Any:
        return self._driver.current(self._context)

    # -- memory
    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        with self._current():
            free, _ = self._driver("cuMemGetInfo")
        return max(
            0, int(free) - self._small
        )  # small pieces count, though the driver may have room for them in a page that it has taken already

    def allocate(self, size: int) -> Memory:
        with self._current():
            try:
                address = int(self._driver("cuMemAlloc", max(1, size)))
            except DriverError as error:
                if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                free, total = self._driver("cuMemGetInfo")
                raise ExecutionError(
                    f"device '{self.name}' has no {size} bytes in one piece",
                    why=f"{free} of {total} are free, in pieces",
                    hint="run smaller inputs, or give up other models on the device",
                ) from None
        memory = Memory(size, address)
        if size < _SMALL:
            self._small += size
        weakref.finalize(memory, of_this_process(self._give_back), address, size)
        return memory

    def _give_back(self, address: int, size: int) -> None:
        if size < _SMALL:
            self._small -= size
        with suppress(Exception), self._current():  # nobody hears of it
            self._driver("cuMemFree", address)  # waits for what uses it

    def write(self, target: Slice, data: Array) -> None:
        if not data.nbytes:
            return
        to, source = target.memory.handle + target.offset, data.ctypes.data
        with self._current():
            if data.nbytes <= STAGED:
                self._driver("cuEventSynchronize", self._staged)  # the copy before has left the room
                ctypes.memmove(self._stage, source, data.nbytes)
                self._driver("cuMemcpyHtoDAsync", to, self._stage, data.nbytes, self.stream)
                self._driver("cuEventRecord", self._staged, self.stream)
            else:
                self._driver("cuMemcpyHtoDAsync", to, source, data.nbytes, self.stream)
                self._driver("cuStreamSynchronize", self.stream)  # the caller may change the array

    def read(self, source: Slice, data: Array) -> None:
        if not data.nbytes:
            return
        with self._current():
            self._driver(
                "cuMemcpyDtoHAsync", data.ctypes.data, source.memory.handle + source.offset, data.nbytes, self.stream
            )
            self._driver("cuStreamSynchronize", self.stream)

    def borrow(self, value: Any, name: str) -> Borrowed | None:
        kind, ordinal = (int(n) for n in value.__dlpack_device__())
        if kind not in (_CUDA, _MANAGED) or ordinal != self.ordinal:
            return None
        found = foreign_tensor(value, name, stream=int(self.stream))
        if not found.is_row_major:
            raise InputError(
                f"'{name}' does not lie row by row",
                why=f"its strides are {list(found.strides or ())} bytes",
                hint="make it contiguous",
            )
        if found.address % ALIGNED:
            raise InputError(
                f"'{name}' does not begin at a multiple of {ALIGNED} bytes",
                hint="copy it: it is a piece of a larger tensor",
            )
        memory = self._foreign.get(found.address)
        if memory is None:
            while len(self._foreign) >= _FOREIGN:
                self._foreign.pop(next(iter(self._foreign)))
            memory = self._foreign[found.address] = Memory(0, found.address)
        size = math.prod(found.shape) * found.dtype.itemsize
        return Borrowed(Slice(memory, 0, size), found.dtype, found.shape, (found.capsule, value))

    # -- kernels
    def load(self, image: bytes, entries: Mapping[str, int]) -> Module:
        kernels = unpack(image, entries, tensors=True)
        modules: dict[bytes, Any] = {}
        functions: dict[tuple[bytes, str], tuple[Any, int]] = {}
        with self._current():
            for name, kernel in kernels.items():
                for launch in kernel.launches:
                    code, shared = unpack_code(launch.code, name)
                    if launch.code not in modules:
                        modules[launch.code] = self._load(code, name)
                    if (launch.code, launch.symbol) not in functions:
                        function = self._driver("cuModuleGetFunction", modules[launch.code], launch.symbol.encode())
                        if shared:
                            self._allow(function, shared, name)
                        functions[launch.code, launch.symbol] = function, shared
        module = Module(kernels, functions)
        weakref.finalize(module, of_this_process(self._unload), list(modules.values()))
        return module

    def _load(self, code: bytes, kernel: str) -> Any:
        try:
            return self._driver("cuModuleLoadData", code)
        except DriverError as error:
            if error.code not in (
                "CUDA_ERROR_NO_BINARY_FOR_GPU",
                "CUDA_ERROR_INVALID_IMAGE",
                "CUDA_ERROR_INVALID_SOURCE",
            ):
                raise
            raise ExecutionError(
                f"the code of kernel '{kernel}' does not run on {self.title}",
                why=f"{error.why}; the GPU is sm_{self.capability}",
                hint=f"compile the model for it: cuda -arch={native(self.capability)}",
            ) from None

    def _allow(self, function: Any, shared: int, kernel: str) -> None:
        """Lets a function have more shared memory than one has by itself."""
        if shared > self.most_shared:
            raise ExecutionError(
                f"kernel '{kernel}' does not fit {self.title}",
                why=f"its groups need {shared} bytes of shared memory, {self.most_shared} are allowed",
                hint=f"compile the model for it: cuda -arch={native(self.capability)}",
            )  # fmt: skip
        attribute = self._driver.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._driver("cuFuncSetAttribute", function, attribute, shared)

    def _unload(self, modules: Sequence[Any]) -> None:
        with suppress(Exception), self._current():
            for each in modules:
                self._driver("cuModuleUnload", each)

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        with self._current():
            self._start(self._calls(module, kernel, buffers, dims))

    def _calls(self, module: Module, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> list[_Call]:
        """The launches of a kernel for these sizes, those without a group left out."""
        calls = []
        for launch in module.kernels[kernel].launches:
            grid = grid_of(launch, dims, self.limits, kernel)
            if grid is not None:
                places = [buffers[b].memory.handle + buffers[b].offset for b in launch.buffers]
                function, shared = module.functions[launch.code, launch.symbol]
                tensors = [
                    self._tensor(x, places[x.buffer], buffers[launch.buffers[x.buffer]], kernel) for x in launch.tensors
                ]
                calls.append(
                    _Call(
                        kernel,
                        function,
                        grid,
                        launch.group,
                        shared,
                        [*places, *(int(dims[d]) for d in launch.dims)],
                        tensors,
                    )
                )
        return calls

    def _tensor(self, tensor: Tensor, address: int, place: Slice, kernel: str) -> Encoded:
        if tensor.reach > place.bytes:
            why = f"a tensor of which it copies boxes reaches over {tensor.reach} bytes, its buffer has {place.bytes}"
            raise ExecutionError(f"the code of kernel '{kernel}' is damaged", why=why, hint="compile the model again")
        found = self._tensors.get((tensor, address))
        if found is None:
            while len(self._tensors) >= _KNOWN_TENSORS:
                self._tensors.pop(next(iter(self._tensors)))
            found = self._tensors[tensor, address] = encoded(self._driver, tensor, address)
        return found

    def _start(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            with blamed(self.name, f"kernel '{call.kernel}'"):
                begin = self._mark() if self._recording else None
                self._driver(
                    "cuLaunchKernel",
                    call.function,
                    *call.grid,
                    *call.group,
                    call.shared,
                    self.stream,
                    call.arguments,
                    0,
                )
                if begin is not None:
                    self._records.append((call.kernel, begin, self._mark()))

    def prepare(self, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        calls = []
        for each in launches:
            with blamed(self.name, f"kernel '{each.kernel}'"), self._current():
                calls += self._calls(module, each.kernel, each.buffers, each.dims)
        return _Prepared(self, module, calls)

    def synchronize(self) -> None:
        with self._current():
            self._driver("cuStreamSynchronize", self.stream)

    # -- times
    def _mark(self) -> Any:
        event = self._driver("cuEventCreate", self._driver.api.CUevent_flags.CU_EVENT_DEFAULT)
        self._driver("cuEventRecord", event, self.stream)
        return event

    def record(self, on: bool) -> None:
        with self._current():
            self._forget()
            self._recording = on
            self._since = self._mark() if on else None

    def recorded(self) -> list[tuple[str, float, float]]:
        if not self._recording:
            return []
        with self._current():
            self._driver("cuStreamSynchronize", self.stream)

            def seconds(event: Any) -> float:
                return float(self._driver("cuEventElapsedTime", self._since, event)) / 1000

            found = [(kernel, seconds(begin), seconds(end)) for kernel, begin, end in self._records]
            self._forget(keep=self._since)
        return found

    def _forget(self, keep: Any = None) -> None:
        for event in (*(e for _, *events in self._records for e in events), self._since):
            if event is not None and event is not keep:
                self._driver("cuEventDestroy", event)
        self._records = []


class _Prepared:
    """Launches that are the same every time. The first time they start one by one; the second time says that they are
    worth a graph."""

    def __init__(self, device: CudaDevice, module: Module, calls: Sequence[_Call]) -> None:
        self._device, self._module, self._calls = device, module, calls
        self._starts = 0
        self._graph: Any = None

    def __call__(self) -> None:
        device = self._device
        with device._current():
            if device._recording or not device.graphs or len(self._calls) < 2 or not self._starts:
                device._start(self._calls)
                self._starts += 1
                return
            if self._graph is None:
                self._graph = self._captured()
            device._driver("cuGraphLaunch", self._graph, device.stream)

    def _captured(self) -> Any:
        device, run = self._device, self._device._driver
        run("cuStreamBeginCapture", device.stream, run.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        try:
            device._start(self._calls)
        finally:  # ends the capture also where a launch failed
            failed, graph = run.api.cuStreamEndCapture(device.stream)
        if failed:
            raise run.error("cuStreamEndCapture", failed)
        try:
            made = run("cuGraphInstantiate", graph, 0)
        finally:
            run("cuGraphDestroy", graph)
        weakref.finalize(self, of_this_process(_end), device, made)
        return made


def _end(device: CudaDevice, graph: Any) -> None:
    with suppress(Exception), device._current():
        device._driver("cuGraphExecDestroy", graph)
