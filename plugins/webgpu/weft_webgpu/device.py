"""The device "webgpu": one adapter by the package wgpu, one queue that works in order.

It runs saved models too, and imports nothing of the compiler.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import wgpu

from weft.errors import ExecutionError
from weft.machine import Grid
from weft_gpu.image import Launch, unpack
from weft_gpu.launch import grid_of
from weft_runtime.arrays import Array
from weft_runtime.device import Device, Memory, Slice, Started, blamed
from weft_webgpu.adapter import LIMITS
from weft_webgpu.limits import ALIGN, LARGEST, MOST_GROUPS
from weft_webgpu.text import Text

CAPACITY = 1 << 36
"""Bytes that are taken for the device's memory: WebGPU tells no number. What a driver does not give is an error of its
own."""
_TOGETHER = 64
"""Launches that are recorded before they are submitted."""


@dataclass(frozen=True)
class _Loaded:
    """A launch and its text."""

    launch: Launch
    text: Text


@dataclass(frozen=True)
class _Ready:
    """A launch with all that it takes: copies before it and behind it (from, offset, to, offset, bytes), and what is
    dispatched."""

    pipeline: Any
    group: Any
    grid: tuple[int, int, int]
    before: tuple[tuple[Any, int, Any, int, int], ...] = ()
    behind: tuple[tuple[Any, int, Any, int, int], ...] = ()


class WebgpuDevice(Device):
    """One opened device.

    Args:
        name: as plans call it.
        adapter: wgpu's.
    """

    align = ALIGN

    def __init__(self, name: str, adapter: Any) -> None:
        super().__init__(name)
        most = adapter.limits
        self.device = adapter.request_device_sync(required_limits={k: most[k] for k in LIMITS})
        self.queue = self.device.queue
        self.largest = int(most["max-buffer-size"]) // ALIGN * ALIGN - ALIGN
        self.bound = min(LARGEST, int(most["max-storage-buffer-binding-size"]))
        self.bindings = int(most["max-storage-buffers-per-shader-stage"])
        threads = int(most["max-compute-invocations-per-workgroup"])
        axes = tuple(int(most[f"max-compute-workgroup-size-{axis}"]) for axis in "xyz")
        self.limits = Grid(
            threads, (axes[0], axes[1], axes[2]), (2**31 - 1, MOST_GROUPS, MOST_GROUPS), 1, 65536, threads
        )
        self._used = 0
        self._mark = self._buffer(4)
        self._empty = self._buffer(ALIGN * self.bindings)
        self._recorded: list[_Ready] = []
        self._pipelines: dict[tuple[str, str], tuple[Any, Any]] = {}

    # -- memory
    @property
    def capacity(self) -> int:
        return CAPACITY

    @property
    def free(self) -> int:
        return max(0, CAPACITY - self._used)

    def reserve(self, size: int) -> Memory:
        if self.largest < size <= self.free:
            raise ExecutionError(
                f"device '{self.name}' has no piece of memory so large",
                why=f"{size} bytes are wanted, it gives at most {self.largest} in one piece",
                hint="run smaller inputs",
            )
        return super().reserve(size)

    def allocate(self, size: int) -> Memory:
        memory = Memory(size, self._buffer(size))
        self._used += size
        weakref.finalize(memory, self._give_back, size, memory.handle)
        return memory

    def _give_back(self, size: int, handle: Any) -> None:
        self._used -= size

    def _buffer(self, size: int) -> Any:
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        return self.device.create_buffer(size=_up(size + 16, ALIGN), usage=usage)

    def write(self, target: Slice, data: Array) -> None:
        if not data.nbytes:
            return
        self._submit()
        flat, begin = data.reshape(-1).view(np.uint8), target.offset
        start, end = begin // 4 * 4, _up(begin + flat.nbytes, 4)
        if (start, end) != (begin, begin + flat.nbytes):  # copies are of words: what else is in them stays
            words = np.frombuffer(self.queue.read_buffer(target.memory.handle, start, end - start), np.uint8).copy()
            words[begin - start : begin - start + flat.nbytes] = flat
            flat = words
        self.queue.write_buffer(target.memory.handle, start, flat)

    def read(self, source: Slice, data: Array) -> None:
        if data.nbytes:
            self._submit()
            start, end = source.offset // 4 * 4, _up(source.offset + data.nbytes, 4)
            found = np.frombuffer(self.queue.read_buffer(source.memory.handle, start, end - start), np.uint8)
            data.reshape(-1).view(np.uint8)[...] = found[source.offset - start :][: data.nbytes]

    # -- code
    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, list[_Loaded]]:
        found: dict[str, list[_Loaded]] = {}
        for name, kernel in unpack(image, entries).items():
            found[name] = [_Loaded(launch, self._text(launch, name)) for launch in kernel.launches]
        return found

    def _text(self, launch: Launch, kernel: str) -> Text:
        try:
            text = Text(launch.code.decode())
        except UnicodeDecodeError as error:
            self._damaged(kernel, str(error))
        wanted = len(text.types)
        if wanted != len(launch.buffers) and not text.joined:
            self._damaged(kernel, f"'{launch.symbol}' binds {wanted} buffers, its launch has {len(launch.buffers)}")
        if wanted > self.bindings:
            raise ExecutionError(
                f"kernel '{kernel}' binds {wanted} buffers, device '{self.name}' allows {self.bindings}",
                hint=f"compile with -buffers={self.bindings}",
            )
        return text

    def _damaged(self, kernel: str, why: str) -> NoReturn:
        raise ExecutionError(
            f"kernel '{kernel}' for device '{self.name}' is no text", why=why, hint="compile the model again"
        )

    def _pipeline(self, loaded: _Loaded, first: tuple[int, ...], kernel: str) -> tuple[Any, Any]:
        """The compiled text of a launch in which some bindings are others, and the layout of its bindings."""
        text, symbol = loaded.text, loaded.launch.symbol
        source = text.with_aliases(first)
        found = self._pipelines.get((source, symbol))
        if found is not None:
            return found
        kept = [k for k, of in enumerate(first) if k == of]
        entries = [_entry(k, "storage") for k in kept] + ([_entry(len(first), "uniform")] if text.sized else [])
        try:
            layout = self.device.create_bind_group_layout(entries=entries)
            pipeline = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": self.device.create_shader_module(code=source), "entry_point": symbol},
            )
        except wgpu.GPUError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ExecutionError(
                f"the compiler refuses kernel '{kernel}' for device '{self.name}'", where="\n".join(lines[:12]) or None,
                hint="`weft inspect --stage source` shows the whole text",
            ) from None  # fmt: skip
        self._pipelines[source, symbol] = pipeline, layout
        return pipeline, layout

    def _ready(self, loaded: _Loaded, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> _Ready | None:
        """What a launch takes; None if it has no groups."""
        launch, text = loaded.launch, loaded.text
        missing = [f"buffer {b} of {len(buffers)}" for b in launch.buffers if b >= len(buffers)] + [
            f"dim {d} of {len(dims)}" for d in launch.dims if d >= len(dims)
        ]
        if missing:
            raise ExecutionError(f"a launch of kernel '{kernel}' needs {missing[0]}", hint="compile the model again")
        groups = grid_of(launch, dims, self.limits, kernel)
        if groups is None:
            return None
        sizes = [int(dims[d]) for d in launch.dims]
        if any(n > LARGEST for n in sizes):
            raise ExecutionError(
                f"kernel '{kernel}' cannot be launched on device '{self.name}'",
                why=f"a size is {max(sizes)}, there it is at most {LARGEST}", hint="run smaller inputs",
            )  # fmt: skip
        slices = [buffers[b] for b in launch.buffers]
        if text.joined:
            return self._joined(loaded, kernel, slices, sizes, _folded(groups, kernel))
        self._check_bound(kernel, max((x.bytes for x in slices), default=0))
        first, before, bound = self._apart(text, slices)
        pipeline, layout = self._pipeline(loaded, first, kernel)
        entries = [_bound(k, handle, begin, _up(max(size, 16), 16)) for k, (handle, begin, size) in bound.items()]
        return self._grouped(
            pipeline, layout, entries, len(slices), sizes, text, _folded(groups, kernel), tuple(before)
        )

    def _check_bound(self, kernel: str, size: int) -> None:
        if size > self.bound:
            raise ExecutionError(
                f"kernel '{kernel}' cannot be launched on device '{self.name}'",
                why=f"it takes a buffer of {size} bytes, the device binds at most {self.bound} at once",
                hint="run smaller inputs",
            )

    def _apart(
        self, text: Text, slices: Sequence[Slice]
    ) -> tuple[tuple[int, ...], list[tuple[Any, int, Any, int, int]], dict[int, tuple[Any, int, int]]]:
        """Bindings that do not overlap: for each buffer whose binding it has, copies to be made before the launch, and
        where each binding is (buffer, begin, bytes).

        Of buffers in one place that have one type, the last is bound. A buffer that overlaps a later one otherwise is
        an input, and is copied: outputs do not overlap, and come behind the inputs.
        """
        first = list(range(len(slices)))
        before: list[tuple[Any, int, Any, int, int]] = []
        bound: dict[int, tuple[Any, int, int]] = {}
        for i in reversed(range(len(slices))):
            a = slices[i]
            if not a.bytes:
                bound[i] = self._empty, ALIGN * i, 16
                continue
            later = [j for j in range(i + 1, len(slices)) if slices[j].bytes and slices[j].memory is a.memory]
            over = [
                j
                for j in later
                if a.offset < slices[j].offset + slices[j].bytes and slices[j].offset < a.offset + a.bytes
            ]
            same = [j for j in over if slices[j].offset == a.offset and text.types[j] == text.types[i]]
            if over and len(same) == len(over):
                first[i] = first[same[-1]]
                handle, begin, size = bound[first[i]]
                bound[first[i]] = handle, begin, max(size, a.bytes)
            elif over:
                copy = self._buffer(a.bytes)
                before.append((a.memory.handle, a.offset, copy, 0, _up(a.bytes, 4)))
                bound[i] = copy, 0, a.bytes
            else:
                bound[i] = a.memory.handle, a.offset, a.bytes
        return tuple(first), before, bound

    def _joined(
        self, loaded: _Loaded, kernel: str, slices: Sequence[Slice], sizes: list[int], grid: tuple[int, int, int]
    ) -> _Ready:
        """A launch whose buffers lie in one array: their memory if that is one, else a copy of what is used of each,
        which is copied back."""
        ranges: dict[int, tuple[Memory, int, int]] = {}
        for x in slices:
            _, begin, end = ranges.get(id(x.memory), (x.memory, x.offset, x.offset))
            ranges[id(x.memory)] = x.memory, min(begin, x.offset), max(end, x.offset + x.bytes)
        copies: list[tuple[Any, int, Any, int, int]] = []
        if len(ranges) == 1:
            ((memory, _, _),) = ranges.values()
            handle, size = memory.handle, memory.size
            places = {id(memory): 0}
        else:
            places, size = {}, 0
            for key, (_, begin, end) in ranges.items():
                places[key] = size - begin
                size += _up(end - begin, ALIGN)
            handle = self._buffer(size)
            copies = [
                (memory.handle, begin, handle, places[key] + begin, _up(end - begin, 4))
                for key, (memory, begin, end) in ranges.items()
                if end > begin
            ]
        self._check_bound(kernel, size)
        words = sizes + [(places[id(x.memory)] + x.offset) // 4 for x in slices]
        pipeline, layout = self._pipeline(loaded, (0,), kernel)
        entries = [_bound(0, handle, 0, _up(max(size, 16), 16))]
        behind = tuple((to, there, source, here, n) for source, here, to, there, n in copies)
        return self._grouped(pipeline, layout, entries, 1, words, loaded.text, grid, tuple(copies), behind)

    def _grouped(
        self, pipeline: Any, layout: Any, entries: list[Any], number: int, words: Sequence[int], text: Text,
        grid: tuple[int, int, int], before: tuple[Any, ...] = (), behind: tuple[Any, ...] = (),
    ) -> _Ready:  # fmt: skip
        if text.sized:
            data = struct.pack(f"<{len(words)}i", *words)
            table = self.device.create_buffer_with_data(
                data=data + bytes(-len(data) % 16), usage=wgpu.BufferUsage.UNIFORM
            )
            entries.append(_bound(number, table, 0, table.size))
        return _Ready(pipeline, self.device.create_bind_group(layout=layout, entries=entries), grid, before, behind)

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        found = [self._ready(loaded, kernel, buffers, dims) for loaded in module[kernel]]
        self._record([x for x in found if x is not None])

    def prepare(self, module: Any, launches: Sequence[Started]) -> Callable[[], None]:
        ready: list[_Ready] = []
        for each in launches:
            with blamed(self.name, f"kernel '{each.kernel}'"):
                found = (self._ready(x, each.kernel, each.buffers, each.dims) for x in module[each.kernel])
                ready += [x for x in found if x is not None]

        def start() -> None:
            self._record(ready)
            self._submit()

        return start

    def _record(self, ready: Sequence[_Ready]) -> None:
        self._recorded += ready
        if len(self._recorded) >= _TOGETHER:
            self._submit()

    def _submit(self) -> None:
        """Starts what is recorded."""
        recorded, self._recorded = self._recorded, []
        if not recorded:
            return
        encoder = self.device.create_command_encoder()
        begun = None
        for x in recorded:
            if begun is not None and x.before:
                begun.end()
                begun = None
            for copy in x.before:
                encoder.copy_buffer_to_buffer(*copy)
            begun = begun or encoder.begin_compute_pass()
            begun.set_pipeline(x.pipeline)
            begun.set_bind_group(0, x.group)
            begun.dispatch_workgroups(*x.grid)
            if x.behind:
                begun.end()
                begun = None
            for copy in x.behind:
                encoder.copy_buffer_to_buffer(*copy)
        if begun is not None:
            begun.end()
        self.queue.submit([encoder.finish()])

    def synchronize(self) -> None:
        # A copy to the host waits for all that was submitted; `on_submitted_work_done_sync` of wgpu 0.32 fails.
        self._submit()
        self.queue.read_buffer(self._mark, 0, 4)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _entry(k: int, kind: str) -> dict[str, Any]:
    return {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}


def _bound(k: int, handle: Any, offset: int, size: int) -> dict[str, Any]:
    return {"binding": k, "resource": {"buffer": handle, "offset": offset, "size": size}}


def _folded(groups: tuple[int, int, int], kernel: str) -> tuple[int, int, int]:
    """A grid of more groups along x than a dispatch has goes on along z."""
    x, y, z = groups
    turns = -(-x // MOST_GROUPS)
    if turns * z > MOST_GROUPS:
        raise ExecutionError(
            f"kernel '{kernel}' cannot be launched",
            where=f"grid {x} × {y} × {z}",
            why=f"WebGPU launches {MOST_GROUPS} groups along an axis at most",
            hint="run smaller inputs",
        )
    return min(x, MOST_GROUPS), y, z * turns
