"""Calls native segments: binds arrays to a segment's tensors, calls it, and turns its error codes into errors that name
things."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft_runtime import threads
from weft_runtime.abi import ABI_VERSION, DEVICE_CPU, DLTensor, ErrorCode, Room, dlpack_type
from weft_runtime.arrays import Array, aligned_empty, array_address
from weft_runtime.dlpack import as_array
from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, ExecutionError, InputError, fill, nearest
from weft_runtime.formulas import Formula, formula, symbol_of
from weft_runtime.loader import Code, free
from weft_runtime.plan import Native, TensorInfo
from weft_runtime.support import owning_context

_KEPT = 16 << 20
"""Rooms of more bytes are given back after a call."""

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


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
            self.shapes[i][: len(shape)] = shape  # type: ignore[call-overload]  # typeshed takes lists, ctypes any sequence
            self.last[i] = shape


class _Call:
    """All that one call needs for itself: context, arena, tensors. Reused by later calls, never by two at once.

    What a segment asks for while it runs is memory of native code, which this holds: the arena, and a room for each
    output whose sizes only the segment knows.
    """

    def __init__(self, segment: NativeSegment) -> None:
        self.inputs = _Tensors(segment.inputs)
        self.outputs = _Tensors(segment.outputs)
        self.results: list[Array | None] = [None] * len(segment.outputs)
        self.rooms = (Room * max(1, len(segment.outputs)))()
        pool = threads.process_pool() if segment.threads else None
        self.context = owning_context(
            self.outputs.address,
            len(segment.outputs),
            self.rooms,
            self.outputs,
            version=ABI_VERSION,
            constants=segment._constant_table,
            parallel_for=pool.parallel_for if pool else None,
            pool=pool.state if pool else None,
            threads=segment.threads,
        )
        self.address = ctypes.addressof(self.context)

    def leave(self, i: int) -> None:
        """Lets the segment find room for an output."""
        self.outputs.items[i].data = None
        self.outputs.last[i] = None  # the segment writes the shape

    def give_back(self, room: Room) -> None:
        data, room.data, room.bytes = room.data, None, 0
        free(data)


class Segment:
    """A native step with what it takes and gives.

    Attributes:
        name: of the model, for errors.
        input_dtypes, output_dtypes: as numpy has them.
        fixed: for each output its shape, if a run does not change it.
        symbols: sizes of inputs that are symbols → the input and its axis.
    """

    def __init__(self, name: str, step: Native, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        self.name, self.step, self.inputs, self.outputs = name, step, tuple(inputs), tuple(outputs)
        self.input_dtypes = tuple(dtype(i.dtype).numpy for i in self.inputs)
        self.output_dtypes = tuple(dtype(o.dtype).numpy for o in self.outputs)
        self.fixed = tuple(_constant(o.shape) for o in self.outputs)
        self.symbols: dict[str, tuple[int, int]] = {}
        for i, info in enumerate(self.inputs):
            for axis, d in enumerate(info.shape):
                symbol = symbol_of(d)
                if symbol is not None:
                    self.symbols.setdefault(symbol, (i, axis))
        self._sizes = tuple(
            None if fixed else _sizes(o.shape, self.symbols) for o, fixed in zip(self.outputs, self.fixed)
        )

    def foreseen(self, i: int, inputs: Sequence[Array]) -> tuple[int, ...] | None:
        """The shape of an output, if constants or sizes of inputs say it."""
        if self.fixed[i] is not None:
            return self.fixed[i]
        sizes = self._sizes[i]
        if sizes is None:
            return None
        env = {symbol: inputs[k].shape[axis] for symbol, (k, axis) in self.symbols.items()}
        try:
            found = tuple([int(d(env)) for d in sizes])
        except (KeyError, ZeroDivisionError, OverflowError):
            return None
        return None if any(d < 0 for d in found) else found

    def execute(self, values: Sequence[Any], out: Mapping[str, Any] | None = None) -> list[Array]:
        """Inputs in order → outputs in order; `out` is storage by name for some of them."""
        raise NotImplementedError

    def failure(
        self,
        returned: int,
        code: int,
        args: Sequence[int],
        arrays: Sequence[Array],
        shapes: Sequence[Sequence[int]],
        given: Container[str] = (),
    ) -> Exception:
        """What to raise.

        Args:
            returned: by the segment.
            code, args: of the context.
            arrays: the inputs.
            shapes: of the outputs, as far as they are known.
            given: the outputs for which the caller has storage.
        """
        name = self.name
        if code == ErrorCode.INPUT_SIZE:
            info, axis, expected, got = self.inputs[args[0]], args[1], args[2], args[3]
            formula = info.shape[axis]
            shown = str(expected) if isinstance(formula, int) else f"{expected} ({formula})"
            return InputError(
                f"input '{info.name}' has size {got} on axis {axis}, expected {shown}",
                where=str(info),
                why=f"its shape is {list(arrays[args[0]].shape)}",
            )
        if code == ErrorCode.OUTPUT_SIZE:
            out = self.outputs[args[0]]
            if out.name not in given:
                what = (
                    f"output '{out.name}' of '{name}' has size {args[2]} on axis {args[1]}, its manifest says {args[3]}"
                )
                return ExecutionError(what, where=str(out), hint="compile the model again")
            return InputError(
                f"storage for output '{out.name}' has size {args[3]} on axis {args[1]}, the result has {args[2]}",
                where=str(out),
            )
        if code == ErrorCode.INPUT_TYPE:
            return InputError(
                f"input '{self.inputs[args[0]].name}' has another rank or dtype",
                where=str(self.inputs[args[0]]),
                why=f"rank {args[1]}, DLPack type word {args[2]:#x}",
            )
        if code == ErrorCode.DATA_SIZE:
            info = self.inputs[args[0]]
            return InputError(
                f"input '{info.name}' has {args[2]} elements, element {args[1]} is needed", where=str(info)
            )
        if code == ErrorCode.ARENA:
            return ExecutionError(
                f"'{name}' cannot get {args[0]} bytes of memory for intermediate results", hint="run smaller inputs"
            )
        if code == ErrorCode.OUTPUT_ALLOCATION:
            out = self.outputs[args[0]]
            shape = list(shapes[args[0]])
            return ExecutionError(
                f"no memory for output '{out.name}' of '{name}'", where=str(out), why=f"its shape is {shape}"
            )
        if code == ErrorCode.KERNEL:
            step = self.step
            item = step.items[args[0]] if 0 <= args[0] < len(step.items) else f"item {args[0]}"
            return ExecutionError(f"kernel '{item}' of '{name}' failed", why=f"it returned {args[1]}")
        if code == ErrorCode.OVERFLOW:
            item = f"'{self.step.items[args[0]]}'" if 0 <= args[0] < len(self.step.items) else "the start"
            return ExecutionError(
                f"a size that {item} of '{name}' needs is beyond 64 bits",
                why=_shapes(self.inputs, arrays),
                hint="run smaller inputs",
            )
        template = self.step.checks.get(code)
        if template is not None:
            what, hint = (fill(t, args) for t in template)
            return ExecutionError(what, where=name, hint=hint or None)
        return ExecutionError(f"'{name}' failed with code {code or returned}", why=f"arguments {list(args)}")

    def no_memory(self, error: MemoryError, arrays: Sequence[Array]) -> ExecutionError:
        """The error of a call that a MemoryError ended, with these inputs."""
        return ExecutionError(
            f"no memory for a call of '{self.name}'",
            why=str(error) or _shapes(self.inputs, arrays),
            hint="run smaller inputs",
        )


class NativeSegment(Segment):
    """A native step, ready to be called. Calls may come from any number of threads; each takes an arena of its own.
    Results own their memory.

    Args:
        name: of the model, for errors.
        code: the mapped section of the step.
        constants: the step's table, aligned.
        threads_: for a call; 0 if the code has no parallel loops.
    """

    def __init__(
        self,
        name: str,
        step: Native,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        code: Code,
        constants: Sequence[Array],
        threads_: int,
    ) -> None:
        super().__init__(name, step, inputs, outputs)
        self._mapped, self.threads = code, threads_
        self._constants = tuple(constants)
        table = (ctypes.c_void_p * max(1, len(self._constants)))(*(array_address(c) for c in self._constants))
        self._table = table
        self._constant_table = ctypes.addressof(table)
        self.address = code.address(step.entry)
        self._run = _RUN(self.address)
        self._slots = tuple(
            (i, info.name, of, len(info.shape)) for i, (info, of) in enumerate(zip(self.inputs, self.input_dtypes))
        )
        # Results are made here, those whose sizes are constants or say themselves in sizes of inputs; the segment finds
        # room for the others.
        self._open = tuple(i for i, fixed in enumerate(self.fixed) if fixed is None)
        self._output_names = tuple(o.name for o in self.outputs)
        self._overwritable = frozenset(step.overwrites)
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
            for i, shape in enumerate(self.fixed):
                if out is not None and self._output_names[i] in out:
                    continue
                fresh = self._room(i, shape) if shape is not None else self._foreseen(i, held)
                if fresh is None:
                    call.leave(i)
                else:
                    results[i] = fresh
                    call.outputs.bind(i, array_address(fresh), fresh.shape)
            if out is not None:
                copies = self._bind_out(call, out, held)
            code = self._run(call.address, tensors.address, call.outputs.address)
            if code:
                raise self._said(call, code, held, out or ())
            for i in self._open:
                if results[i] is None:
                    results[i] = self._taken(call, i)
            for source, target in copies:
                target[...] = source
            return [_target(r, copies) for r in results] if copies else list(results)  # type: ignore[arg-type]  # none is missing now
        except MemoryError as error:
            raise self.no_memory(error, held) from None
        except BaseException:  # of a handler of signals, too, at any place
            call.context.error_code = 0
            raise
        finally:
            for i in range(len(results)):
                results[i] = None
            if len(self._free) < self._most_free:
                self._free.append(call)

    def _room(self, i: int, shape: tuple[int, ...]) -> Array:
        """Fresh memory for an output."""
        try:
            return aligned_empty(shape, self.output_dtypes[i])
        except (MemoryError, ValueError, OverflowError) as error:
            raise ExecutionError(
                f"no memory for output '{self.outputs[i].name}' of '{self.name}'",
                where=str(self.outputs[i]),
                why=str(error),
            ) from None

    def _foreseen(self, i: int, inputs: Sequence[Array]) -> Array | None:
        """Memory for an output whose sizes follow from those of inputs; None if they do not, or there is none, which
        the segment then tells."""
        shape = self.foreseen(i, inputs)
        try:
            return None if shape is None else aligned_empty(shape, self.output_dtypes[i])
        except (MemoryError, ValueError, OverflowError):
            return None

    def _taken(self, call: _Call, i: int) -> Array:
        """A result for which the segment has found room."""
        room = call.rooms[i]
        array = self._room(i, tuple(call.outputs.shapes[i][: len(self.outputs[i].shape)]))
        ctypes.memmove(array_address(array), room.data, array.nbytes)
        if room.bytes > _KEPT:
            call.give_back(room)
        return array

    def _said(self, call: _Call, returned: int, arrays: Sequence[Array], given: Container[str]) -> Exception:
        """The error that the context of a call tells."""
        context = call.context
        code, args = int(context.error_code), [int(a) for a in context.error_args]
        context.error_code = 0
        shapes = [tuple(s[: len(o.shape)]) for s, o in zip(call.outputs.shapes, self.outputs)]
        return self.failure(returned, code, args, arrays, shapes, given)

    def _overwrites(self, output: int, place: int, array: Array, other: Array) -> bool:
        """Whether the storage of an output is the very memory of an input, and may be."""
        return (
            (output, place) in self._overwritable
            and array_address(array) == array_address(other)
            and array.nbytes == other.nbytes
        )

    def _bind_out(self, call: _Call, out: Mapping[str, Any], held: list[Array]) -> list[tuple[Array, Array]]:
        """Puts the caller's storage in place; gives (temporary, target) for storage that overlaps an input or other
        storage."""
        copies = []
        taken = list(held)
        check_names(self.name, out, self.outputs)
        for i, (info, of) in enumerate(zip(self.outputs, self.output_dtypes)):
            if info.name not in out:
                continue
            target = array = storage(info, of, out[info.name])
            if any(
                np.may_share_memory(array, other) and not (k < len(held) and self._overwrites(i, k, array, other))
                for k, other in enumerate(taken)
            ):
                target = aligned_empty(array.shape, of)
                copies.append((target, array))
            taken.append(array)
            call.results[i] = target
            call.outputs.bind(i, array_address(target) or None, array.shape)
        return copies


def _shapes(infos: Sequence[TensorInfo], arrays: Sequence[Array]) -> str:
    """The sizes that a call was given."""
    return "its inputs are " + ", ".join(f"{i.name}: {i.dtype}{list(a.shape)}" for i, a in zip(infos, arrays))


def _constant(shape: Sequence[int | str]) -> tuple[int, ...] | None:
    """The shape, if a run does not change it."""
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) else None


def _sizes(shape: Sequence[int | str], symbols: Mapping[str, tuple[int, int]]) -> tuple[Formula, ...] | None:
    """The formulas of a shape, if they can be computed from these symbols."""
    try:
        found = tuple(formula(d) for d in shape)
        for d in found:
            d(dict.fromkeys(symbols, 1))
    except (KeyError, ArchiveError):
        return None
    except (ZeroDivisionError, OverflowError):
        pass
    return found


def _target(result: Array, copies: Sequence[tuple[Array, Array]]) -> Array:
    """The caller's own storage where a temporary stood in for it."""
    return next((target for source, target in copies if source is result), result)


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
        raise InputError(
            f"storage for output '{info.name}' does not fit",
            where=str(info),
            why=f"it is {array.dtype}{list(array.shape)}",
        )
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
    return InputError(
        f"input '{info.name}' has {array.ndim} dimensions, expected {len(info.shape)}",
        where=str(info),
        why=f"its shape is {list(array.shape)}",
    )
