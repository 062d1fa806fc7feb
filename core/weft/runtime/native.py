"""Calls native segments: binds arrays to a segment's tensors, calls it, and turns its error codes into errors that name things."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.dtypes import dtype
from weft.errors import ExecutionError, InputError, nearest
from weft.runtime import threads
from weft.runtime.abi import ABI_VERSION, DEVICE_CPU, Context, DLTensor, ErrorCode, dlpack_type
from weft.runtime.arrays import Array, aligned_empty, array_address
from weft.runtime.dlpack import as_array
from weft.runtime.loader import Code, address_of, imports_table
from weft.runtime.plan import Native, TensorInfo

_HUGE = 4 << 20

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ALLOCATE_ARENA = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_ALLOCATE_OUTPUT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))


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

    def __init__(self, segment: NativeSegment) -> None:
        self.inputs = _Tensors(segment.inputs)
        self.outputs = _Tensors(segment.outputs)
        self.dtypes = segment._output_dtypes
        self.results: list[Array | None] = [None] * len(segment.outputs)
        self.failure: BaseException | None = None
        self.memory: mmap.mmap | None = None
        self.context = Context(
            version=ABI_VERSION,
            constants=segment._constant_table,
            parallel_for=segment._pool.parallel_for if segment._pool else None,
            pool=segment._pool.state if segment._pool else None,
            threads=segment.threads,
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
        call.outputs.bind(index, array_address(array), dims)
        return 0
    except (ValueError, OverflowError, MemoryError) as error:
        call.failure = error
        return 1


_ALLOCATE_ARENA_ADDRESS = ctypes.cast(_allocate_arena, ctypes.c_void_p).value
_ALLOCATE_OUTPUT_ADDRESS = ctypes.cast(_allocate_output, ctypes.c_void_p).value


class NativeSegment:
    """A native step, ready to be called. Calls may come from any number of threads; each takes an arena of its own. Results own their memory.

    Args:
        name: of the model, for errors.
        code: the mapped section of the step.
        constants: the step's table, aligned.
        pool: the worker pool, if the code has parallel loops.
        threads_: for a call; 0 without a pool.
    """

    def __init__(
        self,
        name: str,
        step: Native,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        code: Code,
        constants: Sequence[Array],
        pool: threads.Pool | None,
        threads_: int,
    ) -> None:
        self.name, self.step, self.inputs, self.outputs = name, step, tuple(inputs), tuple(outputs)
        self._mapped, self._pool, self.threads = code, pool, threads_
        self._constants = tuple(constants)
        table = (ctypes.c_void_p * max(1, len(self._constants)))(*(array_address(c) for c in self._constants))
        self._table = table
        self._constant_table = ctypes.addressof(table)
        self.address = code.address(step.entry)
        self._run = _RUN(self.address)
        self._input_dtypes = tuple(dtype(i.dtype).numpy for i in self.inputs)
        self._output_dtypes = tuple(dtype(o.dtype).numpy for o in self.outputs)
        self._slots = tuple((i, info.name, of, len(info.shape)) for i, (info, of) in enumerate(zip(self.inputs, self._input_dtypes)))
        # Outputs of constant shape are allocated here, without a call back from native code.
        self._fixed = tuple(_constant(o.shape) for o in self.outputs)
        self._output_names = tuple(o.name for o in self.outputs)
        self._free: list[_Call] = []
        self._most_free = max(4, os.cpu_count() or 1)

    @contextlib.contextmanager
    def lend(self) -> Iterator[_Call]:
        """What a caller of `address` needs, for as long as it calls."""
        try:
            call = self._free.pop()
        except IndexError:
            call = _Call(self)
        try:
            yield call
        finally:
            call.failure = None
            if len(self._free) < self._most_free:
                self._free.append(call)

    def execute(self, values: Sequence[Any], out: Mapping[str, Any] | None = None) -> list[Array]:
        """Inputs in order → outputs in order; `out` is storage by name for some of them."""
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
                    raise wrong_type(self.inputs[i], wanted, array)
                # Kernels may count on the alignment of an element, no more.
                if not (array.flags.c_contiguous and array.flags.aligned):
                    array = np.array(array, order="C")
                held.append(array)
                tensors.bind(i, array_address(array), array.shape)
            for i, shape in enumerate(self._fixed):
                if shape is None:
                    call.outputs.items[i].data = None
                elif out is None or self._output_names[i] not in out:
                    results[i] = fresh = self._room(i, shape)
                    call.outputs.bind(i, array_address(fresh), shape)
            if out is not None:
                copies = self._bind_out(call, out, held)
            code = self._run(call.address, tensors.address, call.outputs.address)
            if code:
                raise self._failure(call, code, held)
            for source, target in copies:
                target[...] = source
            return [_target(r, copies) for r in results] if copies else list(results)  # type: ignore[arg-type] # none is missing now
        finally:
            for i in range(len(results)):
                results[i] = None
            call.failure = None
            if len(self._free) < self._most_free:
                self._free.append(call)

    def _room(self, i: int, shape: tuple[int, ...]) -> Array:
        """Fresh memory for an output."""
        try:
            return aligned_empty(shape, self._output_dtypes[i])
        except (MemoryError, ValueError, OverflowError) as error:
            raise ExecutionError(f"no memory for output '{self.outputs[i].name}' of '{self.name}'", where=str(self.outputs[i]), why=str(error)) from None

    def _bind_out(self, call: _Call, out: Mapping[str, Any], held: list[Array]) -> list[tuple[Array, Array]]:
        """Puts the caller's storage in place; gives (temporary, target) for storage that overlaps an input or other storage."""
        copies = []
        taken = list(held)
        check_names(self.name, out, self.outputs)
        for i, (info, of) in enumerate(zip(self.outputs, self._output_dtypes)):
            if info.name not in out:
                continue
            target = array = storage(info, of, out[info.name])
            if any(np.may_share_memory(array, other) for other in taken):
                target = aligned_empty(array.shape, of)
                copies.append((target, array))
            taken.append(array)
            call.results[i] = target
            call.outputs.bind(i, array_address(target) or None, array.shape)
        return copies

    # -- errors
    def _failure(self, call: _Call, returned: int, arrays: Sequence[Array]) -> Exception:
        context, name = call.context, self.name
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
            step = self.step
            item = step.items[args[0]] if 0 <= args[0] < len(step.items) else f"item {args[0]}"
            return ExecutionError(f"kernel '{item}' of '{name}' failed", why=f"it returned {args[1]}")
        template = self.step.checks.get(code)
        if template is not None:
            what, hint = (fill(t, args) for t in template)
            return ExecutionError(what, where=name, hint=hint or None)
        return ExecutionError(f"'{name}' failed with code {code or returned}", why=f"arguments {args}")


def _constant(shape: Sequence[int | str]) -> tuple[int, ...] | None:
    """The shape, if a run does not change it."""
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) else None


def _target(result: Array, copies: Sequence[tuple[Array, Array]]) -> Array:
    """The caller's own storage where a temporary stood in for it."""
    return next((target for source, target in copies if source is result), result)


def fill(template: str, args: Sequence[int]) -> str:
    """`template` with {0} … {7} replaced; never `str.format`, whose fields reach into objects."""
    for i, value in enumerate(args):
        template = template.replace(f"{{{i}}}", str(value))
    return template


def check_names(model: str, out: Mapping[str, Any], outputs: Sequence[TensorInfo]) -> None:
    """That every storage is for an output.

    Raises:
        InputError: one is not; names the nearest output.
    """
    names = [o.name for o in outputs]
    for name in out:
        if name not in names:
            close = nearest(name, names)
            hint = f"did you mean '{close}'?" if close else None
            raise InputError(f"'{model}' has no output '{name}'", where="\n".join(map(str, outputs)), hint=hint)


def storage(info: TensorInfo, of: np.dtype[Any], given: Any) -> Array:
    """A caller's storage for an output, as an array.

    Raises:
        InputError: it is of another dtype or rank, or cannot be written as it lies.
    """
    array = as_array(given, info.name)
    if array.dtype != of or array.ndim != len(info.shape):
        raise InputError(f"storage for output '{info.name}' does not fit", where=str(info), why=f"it is {array.dtype}{list(array.shape)}")
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        raise InputError(f"storage for output '{info.name}' must be contiguous, aligned and writable", where=str(info))
    return array


def wrong_type(info: TensorInfo, wanted: np.dtype[Any], array: Array) -> InputError:
    """What to say of an input of another dtype or rank."""
    if array.dtype != wanted:
        return InputError(
            f"input '{info.name}' has dtype {array.dtype}, expected {info.dtype}",
            where=str(info),
            hint=f"convert it yourself, for example with .astype({info.dtype!r}): nothing is converted silently",
        )
    return InputError(f"input '{info.name}' has {array.ndim} dimensions, expected {len(info.shape)}", where=str(info), why=f"its shape is {list(array.shape)}")
