"""weft.h through ctypes: a library, archives and exports, as any program would use them."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weft_runtime.abi import DEVICE_CPU, DLTensor, dlpack_type
from weft_runtime.cpu_features import machine
from weft_runtime.dtypes import dtype

Array = np.ndarray[Any, Any]
_TEXT, _INT = ctypes.c_char_p, ctypes.c_int32


class Error(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("code", _INT), ("message", ctypes.c_char * 504)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("threads", _INT), ("sha256", _TEXT)]


class ProgramInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("inputs", _INT), ("outputs", _INT), ("threads", _INT), ("name", _TEXT),
                ("target", _TEXT), ("version", _TEXT)]  # fmt: skip


class ValueInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("ndim", _INT), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("name", _TEXT), ("dtype", _TEXT),
                ("shape", ctypes.POINTER(ctypes.c_int64))]  # fmt: skip


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@cache
def library() -> Path:
    """libweft.so for this machine, built once."""
    from libweft import build

    return build.library(Path(tempfile.mkdtemp(prefix="weft-libweft-")), machine())


@cache
def loaded(path: Path) -> Any:
    return ctypes.CDLL(str(path))


class Tensor:
    """A weft_tensor with what it points to."""

    def __init__(self, array: Array | None, rank: int = 0) -> None:
        self.array = array
        shape = array.shape if array is not None else (0,) * rank
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.raw = DLTensor(device_type=DEVICE_CPU, ndim=len(shape), lanes=1, shape=ctypes.addressof(self.shape))
        if array is not None:
            self.raw.code, self.raw.bits = dlpack_type(array.dtype)
            self.raw.data = array.ctypes.data

    @property
    def address(self) -> int:
        return ctypes.addressof(self.raw)


class Program:
    """A program of libweft, or, without an archive, of an export."""

    def __init__(
        self, file: Path | bytes | None, of: Path | None = None, *, threads: int = 0, sha256: str | None = None
    ) -> None:
        self.weft = loaded(of or library())
        self.error = Error(size=ctypes.sizeof(Error))
        self.handle = ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), threads, sha256.encode() if sha256 is not None else None)
        ends = (ctypes.byref(options), ctypes.byref(self.handle), ctypes.byref(self.error))
        if isinstance(file, bytes):
            self.kept = ctypes.create_string_buffer(file, len(file))
            self.check(self.weft.weft_open_memory(self.kept, ctypes.c_size_t(len(file)), *ends))
        else:
            self.check(self.weft.weft_open(str(file).encode() if file is not None else None, *ends))
        self.info = ProgramInfo(size=ctypes.sizeof(ProgramInfo))
        self.check(self.weft.weft_describe(self.handle, ctypes.byref(self.info), ctypes.byref(self.error)))
        self.inputs = [self.value(self.weft.weft_input, k) for k in range(self.info.inputs)]
        self.outputs = [self.value(self.weft.weft_output, k) for k in range(self.info.outputs)]

    def check(self, code: int) -> None:
        if code:
            assert self.error.code == code
            raise Refused(code, self.error.message.decode())

    def value(self, ask: Any, k: int) -> tuple[str, str, list[int]]:
        found = ValueInfo(size=ctypes.sizeof(ValueInfo))
        self.check(ask(self.handle, k, ctypes.byref(found), ctypes.byref(self.error)))
        assert (found.code, found.bits) == dlpack_type(found.dtype.decode()) and found.lanes == 1
        return found.name.decode(), found.dtype.decode(), [found.shape[d] for d in range(found.ndim)]

    def run(self, given: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Inputs by name → outputs by name; `out` is storage for some of them."""
        ins = [Tensor(np.array(given[name], order="C")) for name, _, _ in self.inputs]
        outs = [Tensor((out or {}).get(name), len(shape)) for name, _, shape in self.outputs]
        self.check(self.call(ins, outs))
        found = {}
        for tensor, (name, kind, _) in zip(outs, self.outputs):
            if tensor.array is not None:
                found[name] = tensor.array
                continue
            shape, of = tuple(tensor.shape[: tensor.raw.ndim]), dtype(kind).numpy
            assert tensor.raw.data and tensor.raw.data % 64 == 0
            content = ctypes.string_at(tensor.raw.data, int(np.prod(shape, dtype=np.int64)) * of.itemsize)
            found[name] = np.frombuffer(content, of).reshape(shape)
            self.weft.weft_release(ctypes.c_void_p(tensor.address))
            assert tensor.raw.data is None
        return found

    def call(self, ins: list[Tensor], outs: list[Tensor]) -> int:
        lists = [(ctypes.c_void_p * max(1, len(ts)))(*(t.address for t in ts)) for ts in (ins, outs)]
        return int(self.weft.weft_run(self.handle, *lists, ctypes.byref(self.error)))

    def close(self) -> None:
        self.weft.weft_close(self.handle)
        self.handle = ctypes.c_void_p()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
