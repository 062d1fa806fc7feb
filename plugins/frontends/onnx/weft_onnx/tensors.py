"""TensorProto → numpy: every dtype, raw and typed fields, external data; without a copy where the bytes allow it."""

from __future__ import annotations

import math
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft_frontend.archives import count_of

Array = np.ndarray[Any, Any]
T = onnx.TensorProto

_SAME = (
    "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32",
    "uint64", "complex64", "complex128",
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn",
    "float8_e8m0fnu", "uint2", "int2",
)  # fmt: skip
_RENAMED = {
    "float32": "FLOAT", "float64": "DOUBLE", "float8_e4m3fn": "FLOAT8E4M3FN", "float8_e4m3fnuz": "FLOAT8E4M3FNUZ",
    "float8_e5m2": "FLOAT8E5M2",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ", "float4_e2m1fn": "FLOAT4E2M1", "float8_e8m0fnu": "FLOAT8E8M0",
}  # fmt: skip
# Enumerators that the installed onnx is too old to have are left out.
DTYPES: dict[int, DType] = {
    getattr(T, enumerator): dt.dtype("bool" if name == "bool" else name)
    for name in _SAME
    if hasattr(T, enumerator := _RENAMED.get(name, name.upper()))
}


def dtype_of(data_type: int, what: str) -> DType:
    """The dtype of an ONNX element type.

    Raises:
        FrontendError: there is no such type.
    """
    found = DTYPES.get(data_type)
    if found is None:
        raise FrontendError(f"{what} has element type {data_type}, which is unknown")
    return found


def to_array(tensor: onnx.TensorProto, raw: memoryview | None = None, folder: Path | None = None) -> Array:
    """The data of a tensor; `raw` is its raw data if that was left in the file, `folder` the model's, for external
    data.

    Raises:
        FrontendError: sizes that do not fit, or external data that may not be read.
    """
    what = f"tensor '{tensor.name}'"
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    count = count_of(shape, what)
    if dtype.name == "string":
        return _strings(tensor, shape, what)
    if tensor.data_location == T.EXTERNAL:
        return _of_bytes(_external(tensor, folder, _stored_bytes(count, dtype)), dtype, shape, what)
    if raw is None and tensor.HasField("raw_data"):
        raw = memoryview(tensor.raw_data)
    if raw is not None:
        return _of_bytes(raw, dtype, shape, what)
    return _of_fields(tensor, dtype, shape, what)


def _stored_bytes(count: int, dtype: DType) -> int:
    return -(-count * dtype.bits // 8) if dtype.bits < 8 and not dtype.is_bool else count * dtype.bytes


def _of_bytes(raw: Any, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    count = math.prod(shape)
    want = _stored_bytes(count, dtype)
    size = raw.nbytes if isinstance(raw, (np.ndarray, memoryview)) else len(raw)
    if size != want:
        raise FrontendError(f"{what} has {size} byte(s) of data, {dtype}{list(shape)} takes {want}")
    if dtype.bits < 8 and not dtype.is_bool:
        return _unpacked(np.frombuffer(raw, np.uint8), dtype, count).reshape(shape)
    if not count:
        return np.zeros(shape, dtype.numpy)
    array = np.frombuffer(raw, dtype.numpy).reshape(shape)
    if sys.byteorder == "big":
        array = array.byteswap()
    # Protobuf aligns nothing. numpy reads such arrays all the same, and whoever needs them aligned copies them then:
    # once.
    return array


def _strings(tensor: onnx.TensorProto, shape: tuple[int, ...], what: str) -> Array:
    if len(tensor.string_data) != math.prod(shape):
        raise FrontendError(
            f"{what} has {len(tensor.string_data)} element(s) of data, string{list(shape)} takes {math.prod(shape)}"
        )
    array = np.empty(len(tensor.string_data), object)
    try:
        array[:] = [s.decode() for s in tensor.string_data]
    except UnicodeDecodeError as error:
        raise FrontendError(f"{what} has a string that is no UTF-8", why=str(error)) from None
    return array.reshape(shape)


def _unpacked(packed: Array, dtype: DType, count: int) -> Array:
    """Elements of less than a byte, the first in the low bits."""
    per = 8 // dtype.bits
    mask = (1 << dtype.bits) - 1
    parts = np.stack([(packed >> (dtype.bits * k)) & mask for k in range(per)], axis=-1).reshape(-1)[:count]
    if dtype.kind == "int":
        sign = 1 << (dtype.bits - 1)
        return ((parts.astype(np.int8) ^ sign) - sign).astype(dtype.numpy)
    if dtype.kind == "uint":
        return parts.astype(dtype.numpy)
    return parts.view(dtype.numpy)


def _of_fields(tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    count = math.prod(shape)
    name = dtype.name
    if name in ("float32", "complex64"):
        data = np.array(tensor.float_data, np.float32)
    elif name in ("float64", "complex128"):
        data = np.array(tensor.double_data, np.float64)
    elif name == "int64":
        data = np.array(tensor.int64_data, np.int64)
    elif name in ("uint32", "uint64"):
        data = np.array(tensor.uint64_data, np.uint64).astype(dtype.numpy)
    else:
        data = np.array(tensor.int32_data, np.int32)
    if dtype.kind == "complex":
        data = data.view(dtype.numpy)
    elif dtype.bits < 8 and not dtype.is_bool:
        data = _unpacked(data.astype(np.uint8), dtype, count)
    elif dtype.is_float and dtype.bits == 16:
        data = data.astype(np.uint16).view(dtype.numpy)
    elif dtype.is_float and dtype.bits == 8:
        data = data.astype(np.uint8).view(dtype.numpy)
    else:
        data = data.astype(dtype.numpy, copy=False)
    if data.size != count:
        raise FrontendError(f"{what} has {data.size} element(s) of data, {dtype}{list(shape)} takes {count}")
    return data.reshape(shape)


# -- external data ----------------------------------------------------------------------------------------------------


def _external(tensor: onnx.TensorProto, folder: Path | None, want: int) -> Array:
    what = f"tensor '{tensor.name}'"
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise FrontendError(
            f"{what} is in a file of its own, '{location}'",
            hint="load the model from its path, not from bytes or an object",
        )
    path = inside(folder, location, what)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", want))
    except ValueError as error:
        raise FrontendError(
            f"{what} has an offset or length in '{location}' that is no number", why=str(error)
        ) from error
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FrontendError(f"{what} is in '{location}', which cannot be read", why=str(error.strerror)) from error
    if offset < 0 or length < 0 or offset + length > size:
        raise FrontendError(
            f"{what} is at bytes {offset} … {offset + length} of '{location}', which has {size}",
            hint="is that file complete?",
        )
    if length != want:
        raise FrontendError(f"{what} takes {want} byte(s), {length} are given in '{location}'")
    return np.memmap(path, np.uint8, "r", offset, (length,)) if length else np.zeros(0, np.uint8)


def inside(folder: Path, location: str, what: str) -> Path:
    """The file of external data, which must lie in the model's folder: a model must not be able to read what its user
    did not give it."""
    posix = PurePosixPath(location)
    windows = PureWindowsPath(location)
    if (
        not location
        or posix.is_absolute()
        or windows.is_absolute()
        or windows.drive
        or ".." in posix.parts
        or "\\" in location
        or "\0" in location
    ):
        raise FrontendError(
            f"{what} is in '{location}', outside of the model's folder", hint="external data must be beside the model"
        )
    path = folder
    for part in posix.parts:
        path = path / part
        if path.is_symlink():
            why = "a link may leave the model's folder"
            raise FrontendError(
                f"{what} is in '{location}', through the link '{path.name}'", why=why, hint="copy the file there"
            )
    return path
