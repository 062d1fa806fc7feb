"""Tensors as the Tensor Memory Accelerator is told of them: 128 bytes that the driver makes. Runtime: nothing of the
compiler is imported.

The driver's function is called by its address. It writes to a multiple of 64 bytes, where the bindings' own object need
not lie. Source: CUDA Driver API, "Tensor Map Object Managment", cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import ctypes

from weft.errors import ExecutionError
from weft_cuda.driver import Driver, DriverError
from weft_gpu.image import Tensor

SIZE, ALIGNED = 128, 128
"""Bytes of what the driver makes, and what its address is a multiple of."""
VERSION = 12000
"""Of CUDA, in which the function is there as it is called here."""
_DTYPES = {1: 0, 2: 1, 4: 2, 8: 4}
"""Bytes of an element → CU_TENSOR_MAP_DATA_TYPE_UINT8, 16, 32, 64: elements are copied as they are, and what is zero
has no bit set."""
_INTERLEAVE, _SWIZZLE, _PROMOTION, _FILL = 0, 0, 2, 0
"""None, none, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, zeros."""
FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32), ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ctypes.c_int,
)  # fmt: skip


class Encoded:
    """What a kernel's parameter is copied from; it lies at `address` as long as this object lives."""

    def __init__(self) -> None:
        self._room = (ctypes.c_uint8 * (SIZE + ALIGNED))()
        self.address = -(-ctypes.addressof(self._room) // ALIGNED) * ALIGNED


def encoded(driver: Driver, tensor: Tensor, address: int) -> Encoded:
    """A tensor whose buffer is at `address`.

    Raises:
        ExecutionError: the driver knows no tensors, or does not take this one.
    """
    made, n = Encoded(), len(tensor.sizes)
    place, why = 0, "it has no cuTensorMapEncodeTiled"
    try:
        place, _ = driver("cuGetProcAddress", b"cuTensorMapEncodeTiled", VERSION, 0)
    except DriverError as error:  # of a driver older than what is asked for
        why = f"cuTensorMapEncodeTiled: {error.why}"
    if not int(place):
        raise ExecutionError(
            "the driver copies no boxes of tensors", why=why, hint="install a driver of CUDA 12 or newer"
        )
    extents, strides = (ctypes.c_uint64 * n)(*tensor.extents), (ctypes.c_uint64 * max(1, n - 1))(*tensor.strides)
    sizes, steps = (ctypes.c_uint32 * n)(*tensor.sizes), (ctypes.c_uint32 * n)(*[1] * n)
    result = FUNCTION(int(place))(
        made.address, _DTYPES[tensor.bytes], n, address, extents, strides, sizes, steps, _INTERLEAVE, _SWIZZLE,
        _PROMOTION, _FILL
    )  # fmt: skip
    if result:
        known = {int(r): r for r in driver.api.CUresult}
        what = (
            f"{tensor.extents} elements of {tensor.bytes} bytes at {address:#x}, {tensor.strides} bytes apart, boxes of"
            f" {tensor.sizes}"
        )
        raise driver.error(f"cuTensorMapEncodeTiled of {what}", known.get(result, result))
    return made
