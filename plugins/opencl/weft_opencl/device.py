"""The device "opencl": one device of a driver, its context, one queue that works in order, and programs that are kept
on disk as the driver compiled them.

It runs saved models too, and imports nothing of the compiler.
"""

from __future__ import annotations

import hashlib
import re
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyopencl as cl

from weft.errors import ExecutionError
from weft.machine import Grid
from weft_gpu.image import Launch, unpack
from weft_gpu.launch import grid_of
from weft_opencl.devices import BASES, Found, build_options, grid, keeps_programs
from weft_opencl.table import Table
from weft_runtime.arrays import Array
from weft_runtime.cache import Cache
from weft_runtime.device import Device, Memory, Slice, Started, blamed
from weft_runtime.threads import available_threads

_COMPILERS = 8
"""Threads that wait for the driver's compiler, at most."""
_TEXTS = 16
"""Launches whose texts make one program, at most: a driver's compiler takes longer to begin than to compile one of
them."""


@dataclass(frozen=True)
class _Text:
    """What launches are compiled from: as a section has it and as text, what the function is called in it, and whose it
    is."""

    code: bytes
    source: str
    symbol: str
    kernel: str


class _Refused(Exception):
    """What the driver's compiler says of a text that it does not take."""


@dataclass
class _Loaded:
    """A launch, ready: `program` and `kernel` are the driver's."""

    launch: Launch
    program: Any
    kernel: Any


class OpenclDevice(Device):
    """One opened device.

    Args:
        name: as plans call it.
        device: which.
        cache: of compiled programs; by default the user's, and none where the driver keeps them itself.
    """

    def __init__(self, name: str, device: Found, cache: Cache | None = None) -> None:
        super().__init__(name)
        self.found = device
        self.context = cl.Context([device.device])
        self.queue = cl.CommandQueue(self.context, device.device)
        self.cache = cache if cache is not None or keeps_programs(device.device) else Cache("opencl")
        self.limits: Grid = grid(device.device)
        self.options = build_options(device.device)
        self.compiled = 0
        """Programs that were compiled from source, and not found in the cache."""
        self._capacity, self._used = int(device.device.global_mem_size), 0
        self._largest = int(device.device.max_mem_alloc_size)
        self._events: list[tuple[str, list[Any]]] | None = None

    # -- memory
    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def free(self) -> int:
        return max(0, self._capacity - self._used)  # what others hold drivers do not tell

    def reserve(self, size: int) -> Memory:
        if self._largest < size <= self.free:
            why = (
                f"{size} bytes are wanted, its driver gives at most {self._largest} in one piece; {self.free} of"
                f" {self.capacity} are free"
            )
            raise ExecutionError(
                f"device '{self.name}' has no piece of memory so large", why=why, hint="run smaller inputs"
            )
        return super().reserve(size)

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(1, size)))
        self._used += size
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        self._used -= size

    def write(self, target: Slice, data: Array) -> None:
        if data.nbytes:
            cl.enqueue_copy(
                self.queue,
                target.memory.handle,
                data.reshape(-1).view(np.uint8),
                dst_offset=target.offset,
                is_blocking=True,
            )

    def read(self, source: Slice, data: Array) -> None:
        if data.nbytes:
            cl.enqueue_copy(
                self.queue,
                data.reshape(-1).view(np.uint8),
                source.memory.handle,
                src_offset=source.offset,
                is_blocking=True,
            )

    # -- code
    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, list[_Loaded]]:
        kernels = unpack(image, entries)
        texts: dict[bytes, _Text] = {}
        for kernel in kernels.values():
            for launch in kernel.launches:
                if launch.code not in texts:
                    texts[launch.code] = self._text(launch, kernel.name)
        groups = _together(list(texts.values()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a compiler remarks is no error
            with ThreadPoolExecutor(max(1, min(_COMPILERS, available_threads(), len(groups)))) as pool:
                made = list(pool.map(self._programs, groups))
        programs = {text.code: program for group, those in zip(groups, made) for text, program in zip(group, those)}
        return {
            name: [self._loaded(launch, programs[launch.code], name) for launch in kernel.launches]
            for name, kernel in kernels.items()
        }

    def _text(self, launch: Launch, kernel: str) -> _Text:
        try:
            return _Text(launch.code, launch.code.decode(), launch.symbol, kernel)
        except UnicodeDecodeError as error:
            raise ExecutionError(
                f"kernel '{kernel}' for device '{self.name}' is no text", why=str(error), hint="compile the model again"
            ) from None

    @cached_property
    def _compiler(self) -> str:
        return f"1 {self.found.title} {self.found.version} {' '.join(self.options)}"

    def _programs(self, texts: Sequence[_Text]) -> list[Any]:
        """For each text the compiled program that it is in: one of all, or where the compiler does not take that, each
        its own."""
        if len(texts) > 1:
            with suppress(_Refused):
                return [self._program(_joined(texts))] * len(texts)
        found = []
        for text in texts:
            try:
                found.append(self._program(text.source))
            except _Refused as error:
                raise self._refusal(text.kernel, text.source, str(error)) from None
        return found

    def _program(self, source: str) -> Any:
        """The compiled program of a text, from the cache if it is there.

        Raises:
            _Refused: the compiler does not take it.
        """
        key = f"{self._compiler} {hashlib.sha256(source.encode()).hexdigest()}"
        binary = self.cache.get(key) if self.cache is not None else None
        if self.cache is not None and binary is not None:
            try:
                return cl.Program(self.context, [self.found.device], [binary]).build(self.options)
            except cl.Error:  # of a driver that has changed and does not say so
                self.cache.discard(key)
        program = cl.Program(self.context, source)
        program.get_info(
            cl.program_info.NUM_DEVICES
        )  # once it is asked anything, pyopencl leaves the keeping of binaries to us
        try:
            program.build(self.options)
        except cl.Error as error:
            raise _Refused(
                program.get_build_info(self.found.device, cl.program_build_info.LOG).strip() or str(error)
            ) from None
        self.compiled += 1
        if self.cache is not None:
            binaries = program.get_info(cl.program_info.BINARIES)
            if len(binaries) == 1 and binaries[0]:
                self.cache.put(key, bytes(binaries[0]))
        return program

    def _refusal(self, kernel: str, text: str, log: str) -> ExecutionError:
        said = next((line for line in log.splitlines() if "error" in line.lower()), log.splitlines()[0] if log else "")
        at = re.search(r":(\d+):\d+", said) or re.search(r":(\d+):\d+", log)
        lines = text.splitlines()
        where = None
        if at is not None and 1 <= int(at[1]) <= len(lines):
            where = f"line {at[1]}: {lines[int(at[1]) - 1].strip()}"
        return ExecutionError(
            f"the driver's compiler refuses kernel '{kernel}' for device '{self.name}'", where=where,
            why=said.strip() or None,
            hint=f"the driver is {self.found.version}; `weft inspect --stage source` shows the whole text",
        )  # fmt: skip

    def _loaded(self, launch: Launch, program: Any, kernel: str) -> _Loaded:
        try:
            found = cl.Kernel(program, launch.symbol)
        except cl.Error:
            raise ExecutionError(
                f"the program of kernel '{kernel}' has no '{launch.symbol}'", hint="compile the model again"
            ) from None
        wanted, given = found.num_args, 2 * len(launch.buffers) + len(launch.dims)
        if wanted not in (given, _by_table(launch)):
            raise ExecutionError(
                f"'{launch.symbol}' of kernel '{kernel}' takes {wanted} arguments, its launch has {given}",
                hint="compile the model again",
            )
        return _Loaded(launch, program, found)

    def _run(
        self, loaded: _Loaded, own: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]
    ) -> Callable[[], Any] | None:
        """What enqueues a launch, whose arguments `own`, a kernel of the driver, keeps; None if it has no groups."""
        launch = loaded.launch
        missing = [f"buffer {b} of {len(buffers)}" for b in launch.buffers if b >= len(buffers)] + [
            f"dim {d} of {len(dims)}" for d in launch.dims if d >= len(dims)
        ]
        if missing:
            raise ExecutionError(f"a launch of kernel '{kernel}' needs {missing[0]}", hint="compile the model again")
        groups = grid_of(launch, dims, self.limits, kernel)
        if groups is None:
            return None
        sizes = [np.int64(dims[d]) for d in launch.dims]
        size = tuple(n * t for n, t in zip(groups, launch.group))
        if own.num_args == _by_table(launch):
            table = Table.of(self.context, [buffers[b] for b in launch.buffers], self.reserve)
            own.set_args(*sizes, *table.arguments)
            return lambda: table.enqueue(
                self.queue, lambda: cl.enqueue_nd_range_kernel(self.queue, own, size, launch.group)
            )
        arguments: list[Any] = []
        for b in launch.buffers:
            arguments += [buffers[b].memory.handle, np.uint64(buffers[b].offset)]
        own.set_args(*arguments, *sizes)
        return lambda: cl.enqueue_nd_range_kernel(self.queue, own, size, launch.group)

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        found = (self._run(loaded, loaded.kernel, kernel, buffers, dims) for loaded in module[kernel])
        self._note(kernel, [enqueue() for enqueue in found if enqueue is not None])
        self.queue.flush()

    def prepare(self, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        ready = []
        for each in launches:
            with blamed(self.name, f"kernel '{each.kernel}'"):
                found = (
                    self._run(x, cl.Kernel(x.program, x.launch.symbol), each.kernel, each.buffers, each.dims)
                    for x in module[each.kernel]
                )
                ready.append((each.kernel, [enqueue for enqueue in found if enqueue is not None]))

        def start() -> None:
            for kernel, those in ready:
                with blamed(self.name, f"kernel '{kernel}'"):
                    self._note(kernel, [enqueue() for enqueue in those])
            self.queue.flush()

        return start

    def _note(self, kernel: str, events: list[Any]) -> None:
        if self._events is not None:
            self._events.append((kernel, events))

    def synchronize(self) -> None:
        self.queue.finish()

    # -- times
    def record(self, on: bool) -> None:
        self.queue.finish()
        properties = cl.command_queue_properties.PROFILING_ENABLE if on else 0
        self.queue = cl.CommandQueue(self.context, self.found.device, properties)
        self._events = [] if on else None

    def recorded(self) -> list[tuple[str, float, float]]:
        self.queue.finish()
        found: list[tuple[str, float, float]] = []
        for kernel, events in self._events or ():
            if events:
                found.append((kernel, events[0].profile.start * 1e-9, events[-1].profile.end * 1e-9))
            else:
                last = found[-1][2] if found else 0.0
                found.append((kernel, last, last))
        self._events = None if self._events is None else []
        return found


def _by_table(launch: Launch) -> int:
    """How many arguments a kernel has that takes its buffers by a table: an odd number more than dims. One that takes
    each buffer has an even number more."""
    return len(launch.dims) + BASES + 1


def _together(texts: Sequence[_Text]) -> list[list[_Text]]:
    """Which texts make one program: as many as may, none of them with functions of one name."""
    groups: list[list[_Text]] = []
    for text in texts:
        if not groups or len(groups[-1]) >= _TEXTS or any(text.symbol == other.symbol for other in groups[-1]):
            groups.append([])
        groups[-1].append(text)
    return groups


def _joined(texts: Sequence[_Text]) -> str:
    """One text of several: of what stands between blank lines, what they share stands once, before any of them wants
    it."""
    pieces = dict.fromkeys(piece for text in texts for piece in text.source.rstrip("\n").split("\n\n"))
    return "\n\n".join(pieces) + "\n"
