"""Runs archives for WebAssembly in this process, through the package wasmtime: to test them, and where no machine code
may be made.

The modules of an archive share one memory, one table of functions and one stack, as the conventions for dynamic linking
of WebAssembly say (tool-conventions, DynamicLinking.md). The memory holds the stack below `_STACK` bytes, so that a
stack that is too long ends the run, and above it the modules' data, constants, tensors and arenas.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft_runtime.abi import ABI_VERSION, CONTEXT, DEVICE_CPU, ERROR_ARGS, HOST, ROOM, TENSOR, dlpack_type
from weft_runtime.arrays import Array, aligned_empty, array_address
from weft_runtime.dlpack import as_array
from weft_runtime.errors import ArchiveError, ExecutionError
from weft_runtime.native import Segment, check_names, storage, wrong_type
from weft_runtime.plan import Native, TensorInfo

MACHINE = "wasm32"
"""What a manifest calls it."""
INSTALL = "install it: pip install 'weft-runtime[wasm]'"
THREADS = "atomics"
"""The extension of code whose memory several threads share. The package wasmtime cannot hand such memory to a
module."""
_POINTER = 4
_PAGE = 65536
_MOST = 1 << 32
_STACK = 128 << 10
_ALIGN = 64


def available() -> bool:
    """Whether this process can run WebAssembly."""
    return importlib.util.find_spec("wasmtime") is not None


def lacking(features: Sequence[str]) -> tuple[str, str] | None:
    """Why code that needs these extensions does not run in this process, and a hint; None if it does."""
    if not available():
        return "needs the package wasmtime", INSTALL
    if THREADS in features:
        hint = "export it for browsers and node, or leave out +atomics"
        return "shares its memory with threads and does not run", hint
    return None


class Host:
    """A memory, and the modules in it. One call at a time: `lock`."""

    def __init__(self) -> None:
        try:
            import wasmtime
        except ImportError:
            raise ExecutionError("code for WebAssembly needs the package wasmtime here", hint=INSTALL) from None
        self.lock = threading.Lock()
        self._wasmtime: Any = wasmtime
        config = wasmtime.Config()
        # Else wasmtime learns of accesses beyond the memory from the system's signals. Other code of the process may
        # take them: then the process would end.
        config.signals_based_traps = False
        self._store: Any = wasmtime.Store(wasmtime.Engine(config))
        of, i32 = self._store, wasmtime.ValType.i32()
        self._memory: Any = wasmtime.Memory(of, wasmtime.MemoryType(wasmtime.Limits(_STACK // _PAGE + 1, None)))
        self._table: Any = wasmtime.Table(
            of, wasmtime.TableType(wasmtime.ValType.funcref(), wasmtime.Limits(1, None)), None
        )
        self._stack: Any = wasmtime.Global(of, wasmtime.GlobalType(i32, True), wasmtime.Val.i32(_STACK))
        self._top = _STACK
        self._free: dict[int, list[int]] = {}
        self._size: dict[int, int] = {}
        reserve = wasmtime.Func(of, wasmtime.FuncType([wasmtime.ValType.i64()], [i32]), self.reserve)
        release = wasmtime.Func(of, wasmtime.FuncType([i32], []), self.release)
        self._given = {
            "memory": self._memory, "__indirect_function_table": self._table, "__stack_pointer": self._stack,
            "weft_reserve": reserve, "weft_release": release,
        }  # fmt: skip

    # -- memory
    def reserve(self, size: int) -> int:
        """The address of so many bytes, a multiple of 64, or 0 if there are none."""
        if not 0 <= size <= _MOST:
            return 0
        rounded = room(size)
        free = self._free.get(rounded)
        if free:
            return free.pop()
        at = self._top
        pages = -(-(at + rounded) // _PAGE) - self._memory.size(self._store)
        if pages > 0:
            if at + rounded > _MOST:
                return 0
            try:
                self._memory.grow(self._store, pages)
            except self._wasmtime.WasmtimeError:
                return 0
        self._top = at + rounded
        self._size[at] = rounded
        return at

    def release(self, at: int) -> None:
        """Gives back what was reserved; 0 is nothing."""
        at &= _MOST - 1
        if at:
            self._free.setdefault(self._size[at], []).append(at)

    def place(self, array: Array) -> int:
        """Reserves memory and copies an array there.

        Raises:
            MemoryError: there is none.
        """
        at = self.need(array.nbytes)
        self.write(at, array)
        return at

    def need(self, size: int) -> int:
        """As `reserve`.

        Raises:
            MemoryError: there is none.
        """
        at = self.reserve(max(1, size))
        if not at:
            raise MemoryError(f"{size} bytes, of the {_MOST} that a memory of 32 bits has")
        return at

    def write(self, at: int, array: Array) -> None:
        if array.nbytes:
            ctypes.memmove(self._base + at, array_address(array), array.nbytes)

    def put(self, at: int, data: bytes) -> None:
        ctypes.memmove(self._base + at, data, len(data))

    def get(self, at: int, size: int) -> bytes:
        return ctypes.string_at(self._base + at, size)

    def read(self, at: int, array: Array) -> None:
        """Fills an array with what lies there."""
        if array.nbytes:
            ctypes.memmove(array_address(array), self._base + at, array.nbytes)

    @property
    def _base(self) -> int:
        return ctypes.addressof(self._memory.data_ptr(self._store).contents)

    # -- modules
    def load(self, image: bytes, name: str) -> Module:
        """Places a module in the memory.

        Raises:
            ArchiveError: it is none that can be placed, or needs what wasmtime does not have.
        """
        w = self._wasmtime
        try:
            size, align, functions = needed(image)
            module = w.Module(self._store.engine, image)
            base = -(-self.need(size + align) // align) * align
            first = self._table.grow(self._store, functions, None)
            given = {
                **self._given,
                "__memory_base": w.Global(self._store, w.GlobalType(w.ValType.i32(), False), w.Val.i32(base)),
                "__table_base": w.Global(self._store, w.GlobalType(w.ValType.i32(), False), w.Val.i32(first)),
            }
            asked = [(i.module, i.name) for i in module.imports]
            unknown = [f"{m}.{n}" for m, n in asked if m != "env" or n not in given]
            if unknown:
                raise ValueError(f"it imports {', '.join(unknown)}")
            found = w.Instance(self._store, module, [given[n] for _, n in asked]).exports(self._store)
        except (w.WasmtimeError, w.Trap, ValueError, MemoryError) as error:
            raise ArchiveError(f"the code of '{name}' is no WebAssembly that runs here", why=str(error)) from None
        return Module(self, {n: found[n] for n in found})

    def function(self, function: object) -> int:
        """The address of a function of a module, for code that calls it."""
        at: int = self._table.grow(self._store, 1, function)
        return at

    def call(self, function: Any, *args: int) -> int:
        """Raises ExecutionError if the code ends by itself."""
        try:
            found: int = function(self._store, *args)
        except (self._wasmtime.Trap, self._wasmtime.WasmtimeError) as error:
            self._stack.set_value(self._store, self._wasmtime.Val.i32(_STACK))
            raise ExecutionError("compiled code ended by itself", why=str(error).strip()) from None
        return found


class Module:
    """Code in a host's memory, by the names that it exports."""

    def __init__(self, host: Host, exports: Mapping[str, Any]) -> None:
        self.host, self.exports = host, exports
        self._addresses: dict[str, int] = {}

    def address(self, name: str) -> int:
        if name not in self._addresses:
            self._addresses[name] = self.host.function(self.exports[name])
        return self._addresses[name]


def room(size: int) -> int:
    """The bytes that are reserved for so many: a multiple of 64, and at most an eighth more than asked from 512 on, so
    that what is given back fits what is asked for next."""
    step = max(_ALIGN, 1 << max(0, size.bit_length() - 4))
    return -(-max(1, size) // step) * step


def needed(module: bytes) -> tuple[int, int, int]:
    """Bytes of data, their alignment, and places in the table of functions that a module wants (section dylink.0).

    Raises:
        ValueError: it has no such section.
    """

    def number(at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 35, 7):
            if at >= len(module):
                break
            byte = module[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise ValueError("a number that has no end")

    head = b"\x08dylink.0\x01"
    if module[:9] != b"\0asm\1\0\0\0\0":
        raise ValueError("it does not begin with the section dylink.0")
    _, at = number(9)
    if module[at : at + len(head)] != head:
        raise ValueError("it does not begin with the section dylink.0")
    _, at = number(at + len(head))
    size, at = number(at)
    power, at = number(at)
    functions, at = number(at)
    if power > 16 or functions > 1 << 20:
        raise ValueError(f"it wants an alignment of 2^{power} bytes and {functions} functions")
    return size, 1 << power, functions


class WasmSegment(Segment):
    """A native step of an archive for WebAssembly, ready to be called.

    Args:
        name: of the model, for errors.
        module: the section of the step.
        constants: where each of the step's table lies.
    """

    def __init__(
        self,
        name: str,
        step: Native,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        module: Module,
        constants: Sequence[int],
    ) -> None:
        super().__init__(name, step, inputs, outputs)
        self._host, self._run = module.host, module.exports.get(step.entry)
        if self._run is None:
            raise ArchiveError(f"the code of '{name}' has no entry '{step.entry}'")
        h = self._host
        table = h.need(_POINTER * len(constants))
        h.put(table, np.array(constants, "<u4").tobytes())
        self._tensors = [self._described(infos) for infos in (self.inputs, self.outputs)]
        self._rooms = h.need(ROOM.size(_POINTER) * len(self.outputs))
        h.put(self._rooms, bytes(ROOM.size(_POINTER) * len(self.outputs)))
        host = {"outputs": self._tensors[1][0], "rooms": self._rooms, "count": len(self.outputs)}
        context = {
            "version": ABI_VERSION, "constants": table, "host": h.need(HOST.size(_POINTER)),
            "allocate_arena": module.address("allocate_arena"), "allocate_output": module.address("allocate_output"),
        }  # fmt: skip
        h.put(context["host"], HOST.packed(host, _POINTER))
        self._context = h.need(CONTEXT.size(_POINTER))
        h.put(self._context, CONTEXT.packed(context, _POINTER))

    def _described(self, infos: Sequence[TensorInfo]) -> tuple[int, list[int], list[int]]:
        """Tensors without data: where the pointers to them lie, where each lies, where their shapes do."""
        h = self._host
        places, shapes = [], []
        for info in infos:
            code, bits = dlpack_type(info.dtype)
            shapes.append(h.need(8 * len(info.shape)))
            places.append(h.need(TENSOR.size(_POINTER)))
            given = {
                "device_type": DEVICE_CPU, "ndim": len(info.shape), "code": code, "bits": bits, "lanes": 1,
                "shape": shapes[-1],
            }  # fmt: skip
            h.put(places[-1], TENSOR.packed(given, _POINTER))
        pointers = h.need(_POINTER * len(infos))
        h.put(pointers, np.array(places, "<u4").tobytes())
        return pointers, places, shapes

    def execute(self, values: Sequence[Any], out: Mapping[str, Any] | None = None) -> list[Array]:
        """Inputs in order → outputs in order; `out` is storage by name for some of them."""
        arrays = [self._checked(i, value) for i, value in enumerate(values)]
        given = out or {}
        check_names(self.name, given, self.outputs)
        targets = {
            i: storage(o, self.output_dtypes[i], given[o.name]) for i, o in enumerate(self.outputs) if o.name in given
        }
        held: list[int] = []
        with self._host.lock:
            try:
                return self._called(arrays, targets, held, given)
            except MemoryError as error:
                raise self.no_memory(error, arrays) from None
            finally:
                for at in held:
                    self._host.release(at)

    def _checked(self, i: int, value: Any) -> Array:
        array = value if type(value) is np.ndarray else as_array(value, self.inputs[i].name)
        if array.dtype != self.input_dtypes[i] or array.ndim != len(self.inputs[i].shape):
            raise wrong_type(self.inputs[i], self.input_dtypes[i], array)
        return np.ascontiguousarray(array).reshape(array.shape)

    def _called(
        self, arrays: Sequence[Array], targets: Mapping[int, Array], held: list[int], given: Mapping[str, Any]
    ) -> list[Array]:
        h = self._host
        (ins, in_places, in_shapes), (outs, out_places, out_shapes) = self._tensors
        for array, place, shape in zip(arrays, in_places, in_shapes):
            held.append(h.place(array))
            self._bind(place, shape, held[-1], array.shape)
        data: list[int] = []
        for i, (place, shape) in enumerate(zip(out_places, out_shapes)):
            sizes = targets[i].shape if i in targets else self.foreseen(i, arrays)
            if sizes is None:
                data.append(0)
                self._bind(place, shape, 0, ())
                continue
            held.append(h.need(int(np.prod(sizes, dtype=object)) * self.output_dtypes[i].itemsize))
            data.append(held[-1])
            self._bind(place, shape, held[-1], sizes)
        returned = h.call(self._run, self._context, ins, outs)
        results = []
        if returned:
            raise self._said(returned, arrays, given)
        for i, (place, shape) in enumerate(zip(out_places, out_shapes)):
            sizes = self._sizes_at(shape, len(self.outputs[i].shape))
            array = targets[i] if i in targets else aligned_empty(sizes, self.output_dtypes[i])
            h.read(data[i] or int.from_bytes(h.get(place, _POINTER), "little"), array)
            results.append(array)
        return results

    def _bind(self, place: int, shape: int, data: int, sizes: Sequence[int]) -> None:
        self._host.put(place, data.to_bytes(_POINTER, "little"))
        self._host.put(shape, np.array(sizes, "<i8").tobytes())

    def _sizes_at(self, shape: int, rank: int) -> tuple[int, ...]:
        return tuple(np.frombuffer(self._host.get(shape, 8 * rank), "<i8").tolist())

    def _said(self, returned: int, arrays: Sequence[Array], given: Mapping[str, Any]) -> Exception:
        """The error that the context tells."""
        at = self._context + CONTEXT.offsets(_POINTER)["error_code"]
        code, *args = np.frombuffer(self._host.get(at, 8 + 8 * ERROR_ARGS), "<i8").tolist()
        self._host.put(at, bytes(8))
        shapes = [self._sizes_at(s, len(o.shape)) for s, o in zip(self._tensors[1][2], self.outputs)]
        return self.failure(returned, code, args, arrays, shapes, given)


__all__ = ["INSTALL", "MACHINE", "Host", "Module", "WasmSegment", "available"]
