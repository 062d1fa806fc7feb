"""The binary interface between compiled code and its caller: structures, functions, imports and error codes.

`STRUCTURES` describes every structure that compiled code and the runtime share. The ctypes classes
below, the offsets that emitters use (`OFFSETS`, `TENSOR_OFFSETS`, …) and the C header (`weft_runtime.header`) are made
from it. Compiled code reads fields by offset; nothing here may move without a new `ABI_VERSION`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from weft_runtime.dtypes import DType, dtype

ABI_VERSION = 2
"""Version of the binary interface; archives of another one are refused."""
ERROR_ARGS = 8
"""Most arguments of an error code."""
LARGEST = 1 << 47
"""No size, position, step or number of bytes of a run is larger: processors address no more memory. Sums of several,
and products with small numbers, fit into 64 bits."""

Kind: TypeAlias = Literal["pointer", "int64", "uint64", "int32", "uint16", "uint8"]
"""Type of a field: pointer, or an integer of so many bits."""
ByteOrder: TypeAlias = Literal["little", "big"]
"""Order of a number's bytes in memory, as `sys.byteorder` says it."""
POINTER = 8
"""Bytes of a pointer on the processors that the runtime runs native code on."""
_BYTES = {"int64": 8, "uint64": 8, "int32": 4, "uint16": 2, "uint8": 1}
_CTYPES: dict[str, Any] = {
    "pointer": ctypes.c_void_p, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64, "int32": ctypes.c_int32,
    "uint16": ctypes.c_uint16, "uint8": ctypes.c_uint8,
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A field of a structure. `c` is the C type of a pointer; `count` is the length of an array."""

    name: str
    kind: Kind
    meaning: str
    c: str = ""
    count: int = 1


@dataclass(frozen=True)
class Structure:
    """A structure as C lays it out: fields in order, each at a multiple of its own size, the whole a multiple of the
    largest of these.

    This holds on every processor with 64-bit integers aligned to 8 bytes: x86-64, aarch64, riscv64, s390x, and with
    pointers of 4 bytes wasm32, arm, riscv32. C on 32-bit x86 aligns them to 4; code for it keeps to this layout.
    """

    name: str
    meaning: str
    fields: tuple[Field, ...]

    def offsets(self, pointer: int = POINTER) -> dict[str, int]:
        """Byte offset of every field, for pointers of 4 or 8 bytes."""
        return self._layout(pointer)[0]

    def size(self, pointer: int = POINTER) -> int:
        """Bytes of the structure, for pointers of 4 or 8 bytes."""
        return self._layout(pointer)[1]

    def _layout(self, pointer: int) -> tuple[dict[str, int], int]:
        if pointer not in (4, 8):
            raise ValueError(f"pointers have 4 or 8 bytes, not {pointer}")
        offsets, at, most = {}, 0, 1
        for f in self.fields:
            size = _BYTES.get(f.kind, pointer)
            at = -(-at // size) * size
            offsets[f.name] = at
            at += size * f.count
            most = max(most, size)
        return offsets, -(-at // most) * most

    def packed(
        self, values: Mapping[str, int | Sequence[int]], pointer: int = POINTER, order: ByteOrder = "little"
    ) -> bytes:
        """The structure as it lies in memory; fields without a value are 0, and arrays are sequences."""
        out, offsets = bytearray(self.size(pointer)), self.offsets(pointer)
        for f in self.fields:
            given, size = values.get(f.name, 0), _BYTES.get(f.kind, pointer)
            for k, value in enumerate([given] if isinstance(given, int) else given):
                at = offsets[f.name] + k * size
                out[at : at + size] = value.to_bytes(size, order, signed=value < 0)
        return bytes(out)

    def ctypes_fields(self) -> list[tuple[str, Any]]:
        """`_fields_` of the ctypes class."""
        return [(f.name, _CTYPES[f.kind] * f.count if f.count > 1 else _CTYPES[f.kind]) for f in self.fields]


CONTEXT = Structure("weft_context", "What a segment and its kernels get as `ctx`: one per concurrent call.", (
    Field("version", "int64", "ABI_VERSION of the runtime"),
    Field("arena", "pointer", "memory of this call, aligned to 64 bytes", "void *"),
    Field("arena_bytes", "int64", "bytes of the arena"),
    Field("constants", "pointer", "where each constant of the segment lies", "void *const *"),
    Field("parallel_for", "pointer", "runs a parallel loop; NULL: loops run in the thread of the caller",
        "weft_parallel_for *"),
    Field("allocate_arena", "pointer", "makes the arena larger", "weft_allocate_arena *"),
    Field("allocate_output", "pointer", "finds memory for an output", "weft_allocate_output *"),
    Field("imports", "pointer",
        "functions of the C library, in the order of the imports; NULL for those that the system lacks",
        "void *const *"),
    Field("pool", "pointer", "the state of the worker pool, which parallel_for reads", "void *"),
    Field("threads", "int64", "threads that parallel_for may use, the caller's included; 0: there is no pool"),
    Field("error_code", "int64", "0, or why the run ended"),
    Field("error_args", "int64", "what the error code says about", count=ERROR_ARGS),
    Field("host", "pointer", "weft_host, for functions of the runtime that a segment calls, not for segments",
        "void *"),
))  # fmt: skip
"""Structure of the context of a call."""
TENSOR = Structure("weft_tensor", "DLPack's DLTensor (the unmanaged part, ABI of DLPack 0.8 and 1.x).", (
    Field("data", "pointer", "the memory that the elements lie in; NULL: an output without storage", "void *"),
    Field("device_type", "int32", "DLDevice.device_type"),
    Field("device_id", "int32", "DLDevice.device_id"),
    Field("ndim", "int32", "dimensions"),
    Field("code", "uint8", "DLDataType.code"),
    Field("bits", "uint8", "DLDataType.bits"),
    Field("lanes", "uint16", "DLDataType.lanes, 1"),
    Field("shape", "pointer", "size of each dimension", "int64_t *"),
    Field("strides", "pointer", "elements from one index to the next; NULL: row-major", "int64_t *"),
    Field("byte_offset", "uint64", "where in the memory the first element lies"),
))  # fmt: skip
"""Structure of a tensor."""
ROOM = Structure("weft_room", "Memory that native code has reserved with `posix_memalign`.", (
    Field("data", "pointer", "the memory", "void *"),
    Field("bytes", "int64", "its size"),
))  # fmt: skip
"""Structure of reserved memory."""
HOST = Structure("weft_host",
"What `ctx.host` points to: for functions of the runtime's own native code, not for segments.", (
    Field("outputs", "pointer", "the `out` of the call", "weft_tensor *const *"),
    Field("rooms", "pointer", "for each output, where it lies if only the segment knows its size", "weft_room *"),
    Field("count", "int64", "outputs"),
))  # fmt: skip
"""Structure of the runtime's own data of a call."""
MOVE = Structure("weft_move", "A tensor of a loop whose data move on after each iteration.", (
    Field("tensor", "pointer", "the tensor", "weft_tensor *"),
    Field("bytes", "int64", "by how many bytes"),
))  # fmt: skip
"""Structure of a tensor that advances in a loop."""
SWAP = Structure("weft_swap", "Two tensors of a loop that exchange their data after each iteration.", (
    Field("taken", "pointer", "an input of the segment", "weft_tensor *"),
    Field("given", "pointer", "an output of the segment", "weft_tensor *"),
))  # fmt: skip
"""Structure of a pair of tensors that a loop exchanges."""
TRIPS = Structure("weft_trips", "What the entry `repeat` of the section `loops` gets of a loop.", (
    Field("trips", "int64", "iterations at most"),
    Field("done", "int64", "afterwards: iterations that ended well"),
    Field("going", "int64", "afterwards: 0 if a test ended the loop"),
    Field("number", "pointer", "the number of the iteration, counted on", "int64_t *"),
    Field("test", "pointer", "where an iteration says whether there is another, a byte; NULL: it does not say",
        "const uint8_t *"),
    Field("moving", "int64", "length of `moves`"),
    Field("moves", "pointer", "tensors whose data move on", "const weft_move *"),
    Field("carried", "int64", "length of `swaps`"),
    Field("swaps", "pointer", "tensors that exchange their data", "const weft_swap *"),
))  # fmt: skip
"""Structure of a loop that native code runs."""
STRUCTURES: tuple[Structure, ...] = (TENSOR, CONTEXT, ROOM, HOST, MOVE, SWAP, TRIPS)
"""Every structure, in an order in which C can declare them."""


@dataclass(frozen=True)
class Function:
    """A type of functions that cross the interface, as C writes it. 0 is success where the result is an int32."""

    name: str
    result: str
    parameters: str
    meaning: str


FUNCTIONS: tuple[Function, ...] = (
    Function("weft_kernel", "int32_t", "weft_context *ctx, void *const *buffers, const int64_t *dims",
        "A kernel: inputs, outputs, scratch."),
    Function("weft_run", "int32_t", "weft_context *ctx, const weft_tensor *const *in, weft_tensor *const *out",
        "A segment."),
    Function("weft_task", "void", "weft_context *ctx, void *closure, int64_t index, int64_t thread",
        "A task of a parallel loop."),
    Function("weft_parallel_for", "int32_t", "weft_context *ctx, weft_task *task, void *closure, int64_t tasks",
        "Runs tasks 0 to tasks - 1."),
    Function("weft_allocate_arena", "void *", "weft_context *ctx, int64_t bytes",
        "Makes the arena at least so large; NULL if it cannot."),
    Function(
        "weft_allocate_output", "int32_t", "weft_context *ctx, int64_t index, int64_t rank, const int64_t *shape",
        "Writes data and shape of an output without storage.",
    ),
    Function(
        "weft_repeat", "int32_t",
        "weft_context *ctx, weft_run *run, const weft_tensor *const *in, weft_tensor *const *out, weft_trips *trips",
        "Calls a segment again and again.",
    ),
)  # fmt: skip
"""Every type of functions that cross the interface, in an order in which C can declare them."""


class Context(ctypes.Structure):
    """`CONTEXT` in this process."""

    _fields_ = CONTEXT.ctypes_fields()


class DLTensor(ctypes.Structure):
    """`TENSOR` in this process."""

    _fields_ = TENSOR.ctypes_fields()


class Room(ctypes.Structure):
    """`ROOM` in this process."""

    _fields_ = ROOM.ctypes_fields()


class Host(ctypes.Structure):
    """`HOST` in this process."""

    _fields_ = HOST.ctypes_fields()


class Move(ctypes.Structure):
    """`MOVE` in this process."""

    _fields_ = MOVE.ctypes_fields()


class Swap(ctypes.Structure):
    """`SWAP` in this process."""

    _fields_ = SWAP.ctypes_fields()


class Trips(ctypes.Structure):
    """`TRIPS` in this process."""

    _fields_ = TRIPS.ctypes_fields()


OFFSETS: dict[str, int] = CONTEXT.offsets()
"""Byte offset of every field of the context where pointers have 8 bytes, for emitters."""
TENSOR_OFFSETS: dict[str, int] = TENSOR.offsets()
"""The same of `TENSOR`."""
TRIPS_OFFSETS: dict[str, int] = TRIPS.offsets()
"""The same of `TRIPS`."""

POOL_BYTES = 32768
"""What the worker pool may use of its state. Zeros are a pool without workers."""
POOL_SPIN = 320
"""Where in the pool's state the number of counter ticks stands that an idle thread spins before it sleeps; 0: the
pool's own guess."""

DEVICE_CPU = 1
"""DLPack's kDLCPU: memory of the host."""
DEVICE_CUDA_HOST = 3
"""DLPack's kDLCUDAHost: page-locked memory of the host."""

_CODES = {
    "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14,
    "float4_e2m1fn": 17, "bfloat16": 4,
}  # fmt: skip
_KINDS = {"int": 0, "uint": 1, "float": 2, "handle": 3, "complex": 5, "bool": 6}


def dlpack_type(value: object) -> tuple[int, int]:
    """DLPack's (code, bits) of a dtype. Sub-byte types keep their width though we store one element per byte."""
    d: DType = dtype(value)
    return _CODES.get(d.name, _KINDS.get(d.kind, 3)), 8 if d.is_bool else d.bits


def type_word(value: object, rank: int) -> int:
    """`ndim`, `code`, `bits` and `lanes` of a DLTensor as one 64-bit word: one comparison checks rank and dtype. In a
    little-endian memory they lie as this word does."""
    code, bits = dlpack_type(value)
    return rank | code << 32 | bits << 40 | 1 << 48


IMPORTS: tuple[str, ...] = (
    "pthread_create",
    "pthread_attr_init",
    "pthread_attr_setdetachstate",
    "pthread_attr_setstacksize",
    "pthread_attr_destroy",
    "pthread_sigmask",
    "sched_getcpu",
    "sched_getaffinity",
    "sched_setaffinity",
    "syscall",
    "getpid",
    "__ulock_wait",
    "__ulock_wake",
    "posix_memalign",
    "free",
    "memcpy",
    "madvise",
)
"""libc functions that native code may use, in table order; NULL where the system has none."""


class ErrorCode(IntEnum):
    """`ctx.error_code`. From FIRST_CHECK on, texts are templates in the manifest."""

    OK = 0
    INPUT_TYPE = 1  # input, rank got, (code | bits << 8 | lanes << 16) got
    INPUT_SIZE = 2  # input, axis, expected, got
    OUTPUT_SIZE = 3  # output, axis, expected, got (axis -1: rank or dtype)
    ARENA = 4  # bytes
    OUTPUT_ALLOCATION = 5  # output
    KERNEL = 6  # number of the item in the segment, what the kernel returned
    DATA_SIZE = 7  # buffer, index wanted, elements there
    OVERFLOW = 8  # number of the item in the segment whose formulas leave int64; -1: what is done before the items
    FIRST_CHECK = 100
