"""weft.h for ctypes: its structures, and its functions in a library."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from weft_native.errors import Code, WeftError

API_VERSION = 1


class Error(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("code", ctypes.c_int32), ("message", ctypes.c_char * 504)]

    def check(self, result: int) -> None:
        """Raises what a function that returned `result` wrote here.

        Raises:
            WeftError: `result` is no WEFT_OK.
        """
        if result != 0:
            raise WeftError(Code(result), self.message.decode("utf-8", "replace"))


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("threads", ctypes.c_int32), ("sha256", ctypes.c_char_p)]


class ProgramInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
    ]


class ValueInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


def sized(structure: type[Any]) -> Any:
    """A structure that says its size."""
    return structure(size=ctypes.sizeof(structure))


_P = ctypes.POINTER
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "api_version": (ctypes.c_int32, []),
    "open": (ctypes.c_int32, [ctypes.c_char_p, _P(Options), _P(ctypes.c_void_p), _P(Error)]),
    "open_memory": (
        ctypes.c_int32,
        [ctypes.c_void_p, ctypes.c_size_t, _P(Options), _P(ctypes.c_void_p), _P(Error)],
    ),
    "close": (None, [ctypes.c_void_p]),
    "describe": (ctypes.c_int32, [ctypes.c_void_p, _P(ProgramInfo), _P(Error)]),
    "input": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_int32, _P(ValueInfo), _P(Error)]),
    "output": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_int32, _P(ValueInfo), _P(Error)]),
    "run": (ctypes.c_int32, [ctypes.c_void_p, _P(_P(Tensor)), _P(_P(Tensor)), _P(Error)]),
    "release": (None, [_P(Tensor)]),
}
"""Result and arguments of each function."""


@dataclass(frozen=True)
class Library:
    """The functions of weft.h in a library, which stays loaded until the process ends."""

    path: str
    api_version: Any
    open: Any
    open_memory: Any
    close: Any
    describe: Any
    input: Any
    output: Any
    run: Any
    release: Any


def load_library(path: str | os.PathLike[str], prefix: str | None = None) -> Library:
    """Loads libweft, or a library that `weft export` wrote.

    Args:
        prefix: that of `weft export --prefix`.

    Raises:
        WeftError: it cannot be loaded, is no library of Weft (both Code.FILE), or is older than this package
            (Code.VERSION).
    """
    path = os.fspath(path)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise WeftError(Code.FILE, f"the library '{path}' cannot be loaded\nwhy: {error}") from None
    found = {}
    for name, (result, arguments) in _FUNCTIONS.items():
        symbol = f"{prefix}_weft_{name}" if prefix else f"weft_{name}"
        try:
            function = library[symbol]  # an object of its own, unlike an attribute
        except AttributeError:
            why = f"why: it has no function '{symbol}'"
            hint = "hint: give the prefix that it was exported with, if it has one"
            raise WeftError(Code.FILE, f"'{path}' is no library of Weft\n{why}\n{hint}") from None
        function.restype, function.argtypes = result, arguments
        found[name] = function
    if found["api_version"]() < API_VERSION:
        raise WeftError(Code.VERSION, f"the library '{path}' is older than this package")
    return Library(path, **found)
