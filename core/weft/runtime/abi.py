"""The binary interface between compiled code and whoever runs it: the call context, DLPack's tensor, imports, error codes.

Compiled code reads these by offset; nothing here may move without a new `ABI_VERSION`.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

from weft.dtypes import DType, dtype

ABI_VERSION = 2
ERROR_ARGS = 8
LARGEST = 1 << 47
"""No size, position, step or number of bytes of a run is larger: processors address no more memory. Sums of several, and products with small numbers, fit into
64 bits."""


class Context(ctypes.Structure):
    """What a segment and its kernels get as `ctx`: one per concurrent call."""

    _fields_ = [
        ("version", ctypes.c_int64),
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_int64),
        ("constants", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("allocate_arena", ctypes.c_void_p),
        ("allocate_output", ctypes.c_void_p),
        ("imports", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("error_code", ctypes.c_int64),
        ("error_args", ctypes.c_int64 * ERROR_ARGS),
        ("host", ctypes.c_void_p),
    ]


class Room(ctypes.Structure):
    """Memory that native code has reserved with `posix_memalign`."""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


class Host(ctypes.Structure):
    """What `ctx.host` points to: for the functions of the runtime's own native code that a segment calls, not for segments."""

    _fields_ = [
        ("outputs", ctypes.c_void_p),  # DLTensor**, the `out` of the call
        ("rooms", ctypes.c_void_p),  # Room*, one for each output: where those lie whose sizes only the segment knows
        ("count", ctypes.c_int64),  # of outputs
    ]


OFFSETS: dict[str, int] = {name: getattr(Context, name).offset for name, *_ in Context._fields_}
"""Byte offset of every field of the context, for emitters."""


class DLTensor(ctypes.Structure):
    """DLPack's tensor (the unmanaged part, ABI of DLPack 0.8 and 1.x)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


TENSOR_OFFSETS: dict[str, int] = {name: getattr(DLTensor, name).offset for name, *_ in DLTensor._fields_}


class Trips(ctypes.Structure):
    """What the entry `repeat` of a target's section `loops` gets of a loop, beside the context, the segment and its tensors."""

    _fields_ = [
        ("trips", ctypes.c_int64),  # at most
        ("done", ctypes.c_int64),  # afterwards: those that ended well
        ("going", ctypes.c_int64),  # afterwards: 0 if a test ended it
        ("number", ctypes.c_void_p),  # int64*: the number of the trip, counted on
        ("test", ctypes.c_void_p),  # where a trip says whether there is another, a byte; NULL: it does not say
        ("moving", ctypes.c_int64),  # so many of
        ("moves", ctypes.c_void_p),  # {DLTensor*, int64 bytes}: tensors whose data move on by so much
        ("carried", ctypes.c_int64),  # so many of
        ("swaps", ctypes.c_void_p),  # {DLTensor* in, DLTensor* out}: tensors that exchange their data
    ]


TRIPS_OFFSETS: dict[str, int] = {name: getattr(Trips, name).offset for name, *_ in Trips._fields_}

DEVICE_CPU = 1
DEVICE_CUDA_HOST = 3

_CODES = {
    "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14, "float4_e2m1fn": 17, "bfloat16": 4,
}  # fmt: skip
_KINDS = {"int": 0, "uint": 1, "float": 2, "handle": 3, "complex": 5, "bool": 6}


def dlpack_type(value: object) -> tuple[int, int]:
    """DLPack's (code, bits) of a dtype. Sub-byte types keep their width though we store one element per byte."""
    d: DType = dtype(value)
    return _CODES.get(d.name, _KINDS.get(d.kind, 3)), 8 if d.is_bool else d.bits


def type_word(value: object, rank: int) -> int:
    """`ndim`, `code`, `bits` and `lanes` of a DLTensor read as one little-endian 64-bit word: one comparison checks rank and dtype."""
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
