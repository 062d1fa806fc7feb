"""Tensors of other libraries as numpy arrays, without copying: through DLPack, or through `__array__`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from weft_runtime.abi import DEVICE_CPU, DEVICE_CUDA_HOST, DLTensor, dlpack_type
from weft_runtime.dtypes import DType, all_dtypes
from weft_runtime.errors import ExprError, InputError, from_signal

_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


@cache
def _by_code() -> dict[tuple[int, int], DType]:
    # Sub-byte tensors of DLPack are packed, ours take a byte per element: they do not match.
    return {
        dlpack_type(d): d for d in all_dtypes() if d.kind not in ("string", "handle") and (d.bits >= 8 or d.is_bool)
    }


class _Lender:
    """Holds a DLPack capsule for as long as an array shows its memory. The capsule is never marked as used: its own
    destructor gives the tensor back."""

    def __init__(
        self,
        capsule: object,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: np.dtype[Any],
        readonly: bool,
    ) -> None:
        self.capsule = capsule
        # numpy does not know the type codes of ml_dtypes here: the bytes are described, the type is put on by a view.
        self.__array_interface__ = {
            "version": 3,
            "data": (address, readonly),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{dtype.itemsize}",
        }


@dataclass(frozen=True)
class Foreign:
    """A tensor of another library, wherever it lies: the address of its first element, and what its bytes mean.
    `strides` in bytes, None if row-major.

    It stays as it is for as long as `capsule` is held.
    """

    capsule: object
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    readonly: bool

    @property
    def is_row_major(self) -> bool:
        """Whether its elements lie one after another."""
        step = self.dtype.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides or ())):
            if size > 1 and stride != step:
                return False
            step *= size
        return True


def from_dlpack(value: Any, name: str) -> np.ndarray[Any, Any]:
    """`value` (which has `__dlpack__`) as an array over the same memory.

    Raises:
        InputError: it lies on another device, or has an element type that numpy with ml_dtypes lacks.
    """
    device = _device(value, name)
    if device not in (DEVICE_CPU, DEVICE_CUDA_HOST):
        raise InputError(
            f"input '{name}' lies on a {_DEVICES.get(device, f'DLPack type {device}')} device",
            why="this executable runs on the CPU",
            hint="copy it to the CPU first",
        )
    found = foreign_tensor(value, name)
    if 0 in found.shape:
        return np.empty(found.shape, found.dtype)
    return np.asarray(
        _Lender(found.capsule, found.address, found.shape, found.strides, found.dtype, found.readonly)
    ).view(found.dtype)


def _device(value: Any, name: str = "") -> int:
    """The DLPack type of the device that a tensor lies on.

    Raises:
        InputError: it lies nowhere, such as on PyTorch's device "meta".
    """
    if not hasattr(value, "__dlpack_device__"):
        return DEVICE_CPU
    try:
        return int(value.__dlpack_device__()[0])
    except Exception as error:  # foreign code
        if from_signal(error):
            raise
        which = f"input '{name}'" if name else "an input"
        where = f" (device '{value.device}')" if hasattr(value, "device") else ""
        raise InputError(
            f"{which} has no data that can be read{where}",
            why=str(error) or type(error).__name__,
            hint="give a tensor on the CPU",
        ) from error


def foreign_tensor(value: Any, name: str, **asked: Any) -> Foreign:
    """What `value.__dlpack__` tells of a tensor; `asked` goes to it, the consumer's stream, say.

    Raises:
        InputError: it tells nothing that can be used.
    """
    try:
        capsule = value.__dlpack__(**asked)
    except Exception as error:  # foreign code
        if from_signal(error):
            raise
        raise InputError(f"input '{name}' cannot be read through DLPack", why=str(error)) from error
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    readonly = False
    if api.PyCapsule_IsValid(capsule, b"dltensor"):
        tensor = _Managed.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor")).tensor
    elif api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        tensor, readonly = versioned.tensor, bool(versioned.flags & 1)
    else:
        raise InputError(
            f"input '{name}' gave no DLPack tensor", why="its capsule is neither 'dltensor' nor 'dltensor_versioned'"
        )
    element = _by_code().get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if element is None:
        raise InputError(
            f"input '{name}' has an element type that cannot be read",
            why=f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        )
    try:
        dtype = element.numpy
    except ExprError as error:  # without ml_dtypes, where the others are read
        raise InputError(f"input '{name}' cannot be read: {error.what}", why=error.why, hint=error.hint) from error
    rank = tensor.ndim
    shape = tuple((ctypes.c_int64 * rank).from_address(tensor.shape)) if rank else ()
    strides = (
        tuple(s * dtype.itemsize for s in (ctypes.c_int64 * rank).from_address(tensor.strides))
        if rank and tensor.strides
        else None
    )
    if not tensor.data and 0 not in shape:
        raise InputError(
            f"input '{name}' has no data that can be read",
            why="its DLPack tensor has no address",
            hint="give a tensor on the CPU",
        )
    return Foreign(capsule, (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, readonly)


def on_another_device(value: Any) -> bool:
    """Whether a tensor lies where the CPU cannot read it."""
    return _device(value) not in (DEVICE_CPU, DEVICE_CUDA_HOST)


def as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """Any tensor as a numpy array, sharing memory where it can; the dtype is never changed.

    Raises:
        InputError: it is no tensor, or none that the CPU can read.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return from_dlpack(value, name)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except Exception as error:  # foreign code
            if from_signal(error):
                raise
            raise InputError(
                f"input '{name}' has no data that can be read", why=str(error) or type(error).__name__
            ) from error
    raise InputError(
        f"input '{name}' is no tensor, got {type(value).__name__}",
        hint="give a numpy array, or anything with __dlpack__ or __array__",
    )
