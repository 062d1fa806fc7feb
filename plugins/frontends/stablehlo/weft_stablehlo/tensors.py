"""MLIR's types and constants as Weft's dtypes, sizes and arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft_frontend.operands import Unsupported

DTYPES = {
    "i1": dt.bool_, "i2": dt.int2, "i4": dt.int4, "i8": dt.int8, "i16": dt.int16, "i32": dt.int32, "i64": dt.int64,
    "ui2": dt.uint2, "ui4": dt.uint4, "ui8": dt.uint8, "ui16": dt.uint16, "ui32": dt.uint32, "ui64": dt.uint64,
    "f16": dt.float16, "bf16": dt.bfloat16, "f32": dt.float32, "f64": dt.float64, "f8E4M3FN": dt.float8_e4m3fn,
    "f8E4M3FNUZ": dt.float8_e4m3fnuz, "f8E5M2": dt.float8_e5m2, "f8E5M2FNUZ": dt.float8_e5m2fnuz,
    "f8E8M0FNU": dt.float8_e8m0fnu, "f4E2M1FN": dt.float4_e2m1fn, "index": dt.int64,
}  # fmt: skip
"""By MLIR's name."""
COMPLEX = {"complex<f32>": dt.float32, "complex<f64>": dt.float64}
"""The dtype of the parts of complex numbers."""
MOST_ELEMENTS = 1 << 31
"""Elements of a constant at most: a line of text may state any number of equal ones."""
_HEX = re.compile(r'dense<"0x([0-9A-F]*)">')


@dataclass(frozen=True)
class Tensor:
    """The type of a tensor.

    Args:
        dtype: of its elements, or of the parts of complex ones.
        shape: None stands for a size that is known only at run time.
        complex: whether its elements are complex numbers.
    """

    dtype: DType
    shape: tuple[int | None, ...]
    complex: bool = False

    @property
    def is_static(self) -> bool:
        return None not in self.shape


def tensor_type(type: Any) -> Tensor:
    """A type of MLIR's as that of a tensor.

    Raises:
        Unsupported: it is none, its rank is unknown, or Weft has no such dtype.
    """
    if not isinstance(type, ir.RankedTensorType):
        raise Unsupported(f"type {type}")
    shape = tuple(None if type.is_dynamic_dim(k) else type.get_dim_size(k) for k in range(type.rank))
    name = str(type.element_type)
    if name in COMPLEX:
        return Tensor(COMPLEX[name], shape, True)
    if name not in DTYPES:
        raise Unsupported(f"dtype {name}")
    return Tensor(DTYPES[name], shape)


def array_of(attribute: Any, text: str, type: Tensor) -> np.ndarray[Any, Any]:
    """The elements of a constant.

    Args:
        attribute: MLIR's, or None where Python has no class for it.
        text: the operation as MLIR prints it, which is read where MLIR gives no array.
        type: the constant's; of complex numbers the array is complex.

    Raises:
        FrontendError: it is larger than `MOST_ELEMENTS`, or its elements are not in the file.
    """
    shape = tuple(d or 0 for d in type.shape)
    if np.prod(shape, dtype=object) > MOST_ELEMENTS:
        raise FrontendError(f"a constant of {np.prod(shape, dtype=object)} elements", why=f"at most {MOST_ELEMENTS}")
    numpy = type.dtype.numpy
    if type.complex:
        numpy = np.dtype(np.complex64 if type.dtype == dt.float32 else np.complex128)
    if 0 in shape:
        return np.zeros(shape, numpy)
    if isinstance(attribute, ir.DenseElementsAttr):
        try:
            found = np.asarray(attribute)
        except TypeError:  # of a dtype that has no buffer in Python
            return _parsed(text, numpy, shape)
        if found.dtype == numpy:
            return np.array(found).reshape(shape)
    return _parsed(text, numpy, shape)


def _parsed(text: str, numpy: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements that a text of MLIR's holds: raw bytes, one for all, or nested lists."""
    raw = _HEX.search(text)
    if raw is not None:
        data = np.frombuffer(bytes.fromhex(raw.group(1)), numpy)
        return filled(data, shape)
    start = text.find("dense<")
    if start < 0:
        raise FrontendError("a constant whose elements are not in the file", where=text[:200])
    body = text[start + 6 : text.rindex("> : ")]
    parts = [p for p in re.split(r"[\[\](),\s]+", body) if p]
    if numpy.kind == "c":
        numbers = [_number(p, np.dtype(f"f{numpy.itemsize // 2}")) for p in parts]
        data = np.array(numbers, f"f{numpy.itemsize // 2}").view(numpy)
    else:
        data = np.array([_number(p, numpy) for p in parts]).astype(numpy)
    return filled(data, shape)


def filled(data: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Elements in a shape; one stands for all."""
    return np.array(np.broadcast_to(data.reshape(()), shape) if data.size == 1 else data.reshape(shape))


def _number(text: str, numpy: np.dtype[Any]) -> Any:
    """One element; floats that have no decimal form are written as their bits."""
    if text.startswith("0x"):
        bits = np.array([int(text, 16)], f"u{numpy.itemsize}")
        return bits.view(numpy)[0]
    return {"true": True, "false": False}[text] if text in ("true", "false") else float(text)


__all__ = ["COMPLEX", "DTYPES", "Tensor", "array_of", "tensor_type"]
