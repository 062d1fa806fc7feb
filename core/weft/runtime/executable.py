"""Runs compiled code: binds arrays to a segment's tensors, calls it, and turns its error codes into errors that name things."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import mmap
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from weft.dtypes import dtype
from weft.errors import ArchiveError, ExecutionError, InputError, nearest
from weft.runtime import cpu_features, threads
from weft.runtime.abi import ABI_VERSION, DEVICE_CPU, Context, DLTensor, ErrorCode, dlpack_type
from weft.runtime.dlpack import as_array
from weft.runtime.loader import Code, address_of, imports_table
from weft.runtime.plan import ConstantInfo, Manifest, Native, SectionInfo, TensorInfo

Array: TypeAlias = "np.ndarray[Any, Any]"
ALIGNMENT = 64
_HUGE = 4 << 20
_void_at = ctypes.c_void_p.from_address
_ALIGN_FROM = 4096

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ALLOCATE_ARENA = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_ALLOCATE_OUTPUT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))


@dataclass(frozen=True)
class NativeCode:
    """A linked image and its entries, as the compiler hands it over."""

    image: bytes
    entries: Mapping[str, int]
    plugin: str = ""
    version: str = ""
    features: tuple[str, ...] = field(default=())
    architecture: str = ""  # LLVM's name; empty: this machine's


def _described_address(array: Array) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _find_data_field() -> int | None:
    """Where an array object holds its data pointer: right after the object header, by numpy's C ABI. None if this Python is laid out otherwise."""
    offset = object.__basicsize__
    samples: list[Array] = [np.empty(3), np.empty((2, 2), np.int8)[1:], np.empty((), np.uint16)]
    try:
        if all(ctypes.c_void_p.from_address(id(a) + offset).value == _described_address(a) for a in samples):
            return offset
    except (ValueError, TypeError):
        pass
    return None


_DATA_FIELD = _find_data_field() if sys.implementation.name == "cpython" else None


def _address(array: Array) -> int:
    # Asking the array takes 2.5 µs, a quarter of a small call; reading its field a tenth of that.
    if _DATA_FIELD is None:
        return _described_address(array)
    return _void_at(id(array) + _DATA_FIELD).value or 0


def aligned_empty(shape: tuple[int, ...], of: np.dtype[Any]) -> Array:
    """A fresh array; one of a page or more starts on a cache line, which wide stores want."""
    count = math.prod(shape) * of.itemsize
    if count < _ALIGN_FROM:
        return np.empty(shape, of)
    store = np.empty(count + ALIGNMENT, np.uint8)
    return np.ndarray(shape, of, store, -_address(store) % ALIGNMENT)


def aligned(array: Array) -> Array:
    """The array itself if it is contiguous and starts on a cache line, else a copy that does."""
    array = np.asarray(array)
    if array.flags.c_contiguous and _address(array) % ALIGNMENT == 0 and array.dtype.isnative:
        return array
    count = array.nbytes
    store = np.empty(count + ALIGNMENT, np.uint8)
    copy: Array = np.ndarray(array.shape, array.dtype.newbyteorder("="), store, -_address(store) % ALIGNMENT)
    copy[...] = array
    return copy


class _Tensors:
    """DLTensors with room for their shapes, and the array of pointers to them that a segment takes."""

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        count = len(infos)
        self.tensors = (DLTensor * max(1, count))()
        self.pointers = (ctypes.c_void_p * max(1, count))()
        self.shapes = [(ctypes.c_int64 * max(1, len(info.shape)))() for info in infos]
        self.last: list[tuple[int, ...] | None] = [None] * count
        self.items = [self.tensors[i] for i in range(count)]
        for tensor, shape, info, i in zip(self.items, self.shapes, infos, range(count)):
            tensor.device_type, tensor.ndim, tensor.lanes = DEVICE_CPU, len(info.shape), 1
            tensor.code, tensor.bits = dlpack_type(info.dtype)
            tensor.shape = ctypes.addressof(shape)
            self.pointers[i] = ctypes.addressof(tensor)
        self.address = ctypes.addressof(self.pointers)

    def bind(self, i: int, data: int | None, shape: tuple[int, ...]) -> None:
        self.items[i].data = data
        if shape != self.last[i]:
            self.shapes[i][: len(shape)] = shape  # type: ignore[call-overload]
            self.last[i] = shape


class _Call:
    """All that one call needs for itself: context, arena, tensors. Reused by later calls, never by two at once."""

    def __init__(self, executable: Executable) -> None:
        self.inputs = _Tensors(executable.inputs)
        self.outputs = _Tensors(executable.outputs)
        self.dtypes = executable._output_dtypes
        self.results: list[Array | None] = [None] * len(executable.outputs)
        self.failure: BaseException | None = None
        self.memory: mmap.mmap | None = None
        self.context = Context(
            version=ABI_VERSION,
            constants=executable._constant_table,
            parallel_for=executable._pool.parallel_for if executable._pool else None,
            pool=executable._pool.state if executable._pool else None,
            threads=executable.threads,
            allocate_arena=_ALLOCATE_ARENA_ADDRESS,
            allocate_output=_ALLOCATE_OUTPUT_ADDRESS,
            imports=ctypes.addressof(imports_table()),
        )
        self.address = ctypes.addressof(self.context)
        _calls[self.address] = self

    def grow(self, size: int) -> int | None:
        """Gives the arena at least `size` bytes, keeping what it holds."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        address = address_of(memory)
        if self.memory is not None and self.context.arena_bytes:
            ctypes.memmove(address, self.context.arena, self.context.arena_bytes)
        self.memory = memory  # frees the old one
        self.context.arena, self.context.arena_bytes = address, size
        return address


_calls: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()


@_ALLOCATE_ARENA  # type: ignore[untyped-decorator]
def _allocate_arena(ctx: int, size: int) -> int | None:
    call = _calls[ctx]
    try:
        return call.grow(size)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        call.failure = error
        return None


@_ALLOCATE_OUTPUT  # type: ignore[untyped-decorator]
def _allocate_output(ctx: int, index: int, rank: int, shape: Any) -> int:
    call = _calls[ctx]
    try:
        dims = tuple(shape[:rank])
        array = aligned_empty(dims, call.dtypes[index])
        call.results[index] = array
        call.outputs.bind(index, _address(array), dims)
        return 0
    except (ValueError, OverflowError, MemoryError) as error:
        call.failure = error
        return 1


_ALLOCATE_ARENA_ADDRESS = ctypes.cast(_allocate_arena, ctypes.c_void_p).value
_ALLOCATE_OUTPUT_ADDRESS = ctypes.cast(_allocate_output, ctypes.c_void_p).value


class Executable:
    """A compiled model.

    Calls may come from any number of threads; each takes an arena of its own. Results own their memory.
    """

    def __init__(self, manifest: Manifest, code: Mapping[str, bytes], constants: Mapping[str, Array], *, threads_: int | None = None) -> None:
        """For `build` and `load`, which are how executables come to be."""
        if len(manifest.steps) != 1:
            raise ExecutionError(f"'{manifest.name}' has a plan of {len(manifest.steps)} steps", why="this runtime runs plans of one native step")
        self.manifest = manifest
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self._code = dict(code)
        self._constants = {c.name: aligned(constants[c.name]) for c in manifest.constants}
        table = (ctypes.c_void_p * max(1, len(manifest.constants)))(*(_address(self._constants[c.name]) for c in manifest.constants))
        self._table = table
        self._constant_table = ctypes.addressof(table)
        step = manifest.steps[0]
        # Code for another machine can be saved and inspected here, not mapped; here also means a processor that lacks an instruction.
        self.foreign = manifest.machine != cpu_features.machine() or bool(cpu_features.missing_features(manifest.features))
        self._run: Any = None
        self._pool: threads.Pool | None = None
        if not self.foreign:
            self._mapped = Code(self._code[step.section], manifest.sections[step.section].entries)
            self._run = _RUN(self._mapped.address(step.entry))
        if manifest.pool is not None and not self.foreign:
            self._pool = threads.process_pool(self._code[manifest.pool], manifest.sections[manifest.pool].entries)
        # 0 tells kernels that there is no pool: parallel loops run inline.
        self.threads = (threads_ or manifest.threads or threads.default_threads()) if self._pool else 0
        self._input_dtypes = tuple(dtype(i.dtype).numpy for i in self.inputs)
        self._output_dtypes = tuple(dtype(o.dtype).numpy for o in self.outputs)
        self._slots = tuple((i, info.name, of, len(info.shape)) for i, (info, of) in enumerate(zip(self.inputs, self._input_dtypes)))
        # Outputs of constant shape are allocated here, without a call back from native code.
        self._fixed = tuple(o.shape if all(isinstance(d, int) for d in o.shape) else None for o in self.outputs)
        self._output_names = tuple(o.name for o in self.outputs)
        self._free: list[_Call] = []
        self._most_free = max(4, os.cpu_count() or 1)

    @classmethod
    def build(
        cls,
        *,
        name: str,
        target: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        code: Mapping[str, NativeCode],
        step: Native,
        constants: Mapping[str, Array] | None = None,
        checks: Mapping[int, tuple[str, str]] | None = None,
        pool: str | None = None,
        arena: str = "0",
        threads: int | None = None,
        machine: str | None = None,
        weft: str = "",
    ) -> Executable:
        """An executable of what the compiler made.

        Args:
            code: section name → image; `step.section` and `pool` name sections.
            constants: in the order of the segment's constant table.
            checks: error code → (what, hint), templates over {0} … {7}.
        """
        held = {k: aligned(v) for k, v in (constants or {}).items()}
        manifest = Manifest(
            name=name,
            target=target,
            machine=machine or next((c.architecture for c in code.values() if c.architecture), cpu_features.machine()),
            features=tuple(sorted({f for c in code.values() for f in c.features})),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            steps=(step,),
            sections={k: SectionInfo(hashlib.sha256(c.image).hexdigest(), len(c.image), dict(c.entries), c.plugin, c.version) for k, c in code.items()},
            constants=tuple(ConstantInfo(k, dtype(v.dtype).name, v.shape) for k, v in held.items()),
            checks=dict(checks or {}),
            pool=pool,
            arena=arena,
            threads=threads,
            weft=weft,
        )
        return cls(manifest, {k: c.image for k, c in code.items()}, held)

    # -- text
    @property
    def plan(self) -> str:
        """The steps, for people."""
        return self.manifest.plan()

    def __repr__(self) -> str:
        return f"Executable({self.manifest.name}({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))}), target={self.manifest.target!r})"

    # -- running
    def __call__(self, *args: Any) -> Any:
        """Inputs by position; the output, or a tuple of several."""
        if len(args) != len(self.inputs):
            raise InputError(f"'{self.manifest.name}' takes {len(self.inputs)} inputs, got {len(args)}", where="\n".join(map(str, self.inputs)) or None)
        results = self._execute(args, None)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Inputs by name → outputs by name.

        Args:
            inputs: numpy arrays, or anything with `__dlpack__` or `__array__`; dtypes must be exactly those of `self.inputs`.
            out: storage for some or all outputs: contiguous writable arrays of their dtype and size.

        Raises:
            InputError: an input or `out` that is missing, unknown, or of another dtype, rank or size.
            ExecutionError: the run itself failed.
        """
        try:
            values = [inputs[info.name] for info in self.inputs]
            fits = len(values) == len(inputs)
        except (KeyError, TypeError, IndexError):  # no such name, or no mapping
            fits = False
        if not fits:
            raise self._wrong_names(inputs)
        if out is not None and not isinstance(out, Mapping):
            raise InputError(f"`out` takes storage by output name, got {type(out).__name__}", hint=f"give a dict such as {{{self._output_names[0]!r}: array}}")
        return dict(zip(self._output_names, self._execute(values, out)))

    def _wrong_names(self, inputs: Mapping[str, Any]) -> InputError:
        known = [i.name for i in self.inputs]
        if not isinstance(inputs, Mapping):
            return InputError(
                f"`run` takes inputs by name, got {type(inputs).__name__}",
                where="\n".join(map(str, self.inputs)) or None,
                hint="give a dict of name → array, or call the executable itself with arrays in this order",
            )
        missing = [n for n in known if n not in inputs]
        unknown = [n for n in inputs if n not in known]
        parts = []
        if missing:
            parts.append("missing " + ", ".join(repr(n) for n in missing))
        if unknown:
            parts.append("unknown " + ", ".join(repr(n) for n in unknown))
        close = nearest(unknown[0], known) if unknown else None
        return InputError(
            f"inputs of '{self.manifest.name}' do not match: {'; '.join(parts)}",
            where="\n".join(map(str, self.inputs)) or None,
            hint=f"did you mean '{close}'?" if close else None,
        )

    def _execute(self, values: Sequence[Any], out: Mapping[str, Any] | None) -> list[Array]:
        if self._run is None:
            here = cpu_features.machine()
            if self.manifest.machine != here:
                what = f"'{self.manifest.name}' was compiled for {self.manifest.machine}, this machine is {here}"
            else:
                lacking = ", ".join(cpu_features.missing_features(self.manifest.features))
                what = f"'{self.manifest.name}' was compiled for a processor with {lacking}, which this machine lacks"
            raise ExecutionError(what, where=self.manifest.target, hint="save it, and run the archive there")
        try:
            call = self._free.pop()
        except IndexError:
            call = _Call(self)
        held = []  # arrays made here live until the call is over
        copies: list[tuple[Array, Array]] = []
        results = call.results
        try:
            tensors = call.inputs
            for (i, name, wanted, rank), value in zip(self._slots, values):
                array = value if type(value) is np.ndarray else as_array(value, name)
                if array.dtype != wanted or array.ndim != rank:
                    raise self._wrong_type(i, array)
                # Kernels may count on the alignment of an element, no more.
                if not (array.flags.c_contiguous and array.flags.aligned):
                    array = np.array(array, order="C")
                held.append(array)
                tensors.bind(i, _address(array), array.shape)
            for i, shape in enumerate(self._fixed):
                if shape is None:
                    call.outputs.items[i].data = None
                elif out is None or self._output_names[i] not in out:
                    results[i] = fresh = aligned_empty(shape, self._output_dtypes[i])  # type: ignore[arg-type]
                    call.outputs.bind(i, _address(fresh), shape)  # type: ignore[arg-type]
            if out is not None:
                copies = self._bind_out(call, out, held)
            code = self._run(call.address, tensors.address, call.outputs.address)
            if code:
                raise self._failure(call, code, held)
            for source, target in copies:
                target[...] = source
            return [_target(r, copies) for r in results] if copies else list(results)  # type: ignore
        finally:
            for i in range(len(results)):
                results[i] = None
            call.failure = None
            if len(self._free) < self._most_free:
                self._free.append(call)

    def _bind_out(self, call: _Call, out: Mapping[str, Any], held: list[Array]) -> list[tuple[Array, Array]]:
        """Puts the caller's storage in place; gives (temporary, target) for storage that overlaps an input or other storage."""
        copies = []
        taken = list(held)
        for name in out:
            if name not in self._output_names:
                close = nearest(name, self._output_names)
                raise InputError(
                    f"'{self.manifest.name}' has no output '{name}'",
                    where="\n".join(map(str, self.outputs)),
                    hint=f"did you mean '{close}'?" if close else None,
                )
        for i, (info, of) in enumerate(zip(self.outputs, self._output_dtypes)):
            if info.name not in out:
                continue
            array = as_array(out[info.name], info.name)
            if array.dtype != of or array.ndim != len(info.shape):
                raise InputError(f"storage for output '{info.name}' does not fit", where=str(info), why=f"it is {array.dtype}{list(array.shape)}")
            if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
                raise InputError(f"storage for output '{info.name}' must be contiguous, aligned and writable", where=str(info))
            target = array
            if any(np.may_share_memory(array, other) for other in taken):
                target = aligned_empty(array.shape, of)
                copies.append((target, array))
            taken.append(array)
            call.results[i] = target
            call.outputs.bind(i, _address(target) or None, array.shape)
        return copies

    # -- errors
    def _wrong_type(self, i: int, array: Array) -> InputError:
        info = self.inputs[i]
        if array.dtype != self._input_dtypes[i]:
            return InputError(
                f"input '{info.name}' has dtype {array.dtype}, expected {info.dtype}",
                where=str(info),
                hint=f"convert it yourself, for example with .astype({info.dtype!r}): nothing is converted silently",
            )
        return InputError(
            f"input '{info.name}' has {array.ndim} dimensions, expected {len(info.shape)}", where=str(info), why=f"its shape is {list(array.shape)}"
        )

    def _failure(self, call: _Call, returned: int, arrays: Sequence[Array]) -> Exception:
        context, name = call.context, self.manifest.name
        code, args = int(context.error_code), [int(a) for a in context.error_args]
        context.error_code = 0
        if code == ErrorCode.INPUT_SIZE:
            info, axis, expected, got = self.inputs[args[0]], args[1], args[2], args[3]
            formula = info.shape[axis]
            shown = str(expected) if isinstance(formula, int) else f"{expected} ({formula})"
            return InputError(
                f"input '{info.name}' has size {got} on axis {axis}, expected {shown}", where=str(info), why=f"its shape is {list(arrays[args[0]].shape)}"
            )
        if code == ErrorCode.OUTPUT_SIZE:
            out = self.outputs[args[0]]
            return InputError(f"storage for output '{out.name}' has size {args[3]} on axis {args[1]}, the result has {args[2]}", where=str(out))
        if code == ErrorCode.INPUT_TYPE:
            return InputError(
                f"input '{self.inputs[args[0]].name}' has another rank or dtype",
                where=str(self.inputs[args[0]]),
                why=f"rank {args[1]}, DLPack type word {args[2]:#x}",
            )
        if code == ErrorCode.DATA_SIZE:
            info = self.inputs[args[0]]
            return InputError(f"input '{info.name}' has {args[2]} elements, element {args[1]} is needed", where=str(info))
        if code == ErrorCode.ARENA:
            return ExecutionError(
                f"'{name}' cannot get {args[0]} bytes of memory for intermediate results",
                why=str(call.failure) if call.failure else None,
                hint="run smaller inputs",
            )
        if code == ErrorCode.OUTPUT_ALLOCATION:
            out = self.outputs[args[0]]
            return ExecutionError(f"no memory for output '{out.name}' of '{name}'", where=str(out), why=str(call.failure) if call.failure else None)
        if code == ErrorCode.KERNEL:
            step = self.manifest.steps[0]
            item = step.items[args[0]] if 0 <= args[0] < len(step.items) else f"item {args[0]}"
            return ExecutionError(f"kernel '{item}' of '{name}' failed", why=f"it returned {args[1]}")
        template = self.manifest.checks.get(code)
        if template is not None:
            what, hint = (_fill(t, args) for t in template)
            return ExecutionError(what, where=name, hint=hint or None)
        return ExecutionError(f"'{name}' failed with code {code or returned}", why=f"arguments {args}")

    # -- archive
    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Writes the executable to a file, atomically: a reader sees the old file or the new one.

        Args:
            durable: return when the file is on the disk. Without, it may be lost or damaged if the system crashes soon, and is refused then.
        """
        from weft.runtime import archive

        archive.save(Path(path), self.manifest, self._code, self._constants, durable)

    @classmethod
    def load(cls, path: str | os.PathLike[str], expect: str | None = None, *, threads: int | None = None) -> Executable:
        """Opens a saved executable. Running it runs the machine code in the file, so load only files that you trust.

        Nothing in the file runs while it is loaded. Weights are mapped, not read: they cost memory only as they are used, shared among processes.

        Args:
            expect: "sha256:<hex>" of the whole file, as sha256sum prints it: anything else is refused.
            threads: instead of those that the target string or WEFT_THREADS asks for.

        Raises:
            ArchiveError: truncated, foreign, corrupt, newer, for another machine, or not what `expect` says.
        """
        from weft.runtime import archive

        content = archive.load(Path(path), expect)
        manifest = content.manifest
        here = cpu_features.machine()
        if manifest.machine != here:
            raise ArchiveError(
                f"{path} holds code for {manifest.machine}, this machine is {here}",
                hint=f"compile it for this machine; it was made for target {manifest.target!r}",
            )
        lacking = cpu_features.missing_features(manifest.features)
        if lacking:
            raise ArchiveError(
                f"{path} needs CPU features that this machine lacks: {', '.join(lacking)}",
                why=f"it was made for target {manifest.target!r}",
                hint="compile it for this machine, or for an older -mcpu",
            )
        return cls(manifest, content.code, content.constants, threads_=threads)

    @staticmethod
    def inspect(path: str | os.PathLike[str]) -> Manifest:
        """The manifest of a saved executable; maps no code, checks no section."""
        from weft.runtime import archive

        return archive.inspect(Path(path))


def _target(result: Array | None, copies: Sequence[tuple[Array, Array]]) -> Array | None:
    """The caller's own storage where a temporary stood in for it."""
    return next((target for source, target in copies if source is result), result)


def _fill(template: str, args: Sequence[int]) -> str:
    """`template` with {0} … {7} replaced; never `str.format`, whose fields reach into objects."""
    for i, value in enumerate(args):
        template = template.replace(f"{{{i}}}", str(value))
    return template
