"""Programs, and arrays as tensors of weft.h."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_native.errors import Code, WeftError
from weft_native.interface import Error, Library, Options, ProgramInfo, Tensor, ValueInfo, load_library, sized

Array = np.ndarray[Any, Any]
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
"""numpy's letters of DLPack's type codes."""


@dataclass(frozen=True)
class Value:
    """What an input or output is.

    Attributes:
        dtype: the element type by name: "float32".
        shape: sizes; None for one that is open.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    _code: int
    _bits: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """numpy's element type, or that of ml_dtypes.

        Raises:
            WeftError: numpy lacks it, and ml_dtypes is not installed or lacks it, too (Code.UNSUPPORTED).
        """
        if self._code in _KINDS and self._bits >= 8:
            return np.dtype(f"{_KINDS[self._code]}{self._bits // 8}")
        try:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.dtype))
            return found
        except (ImportError, AttributeError):
            hint = "hint: pip install ml_dtypes"
            raise WeftError(Code.UNSUPPORTED, f"'{self.name}' is {self.dtype}, which numpy lacks\n{hint}") from None


class _Memory:
    """Memory that Weft gave an output, for as long as an array shows it."""

    def __init__(self, library: Library, tensor: Tensor, shape: Any, dtype: np.dtype[Any]) -> None:
        self._library, self._tensor, self._shape = library, tensor, shape
        sizes = tuple(int(n) for n in shape[: tensor.ndim])
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data, False),
            "shape": sizes,
            "typestr": f"|V{dtype.itemsize}",
        }

    def __del__(self) -> None:
        self._library.release(ctypes.byref(self._tensor))


class Program:
    """A loaded model, from `load`.

    Several threads may run it at once, and other threads of Python go on while it runs. `close`, or the end of a `with`
    block, gives its memory back; arrays that it gave stay valid.

    Attributes:
        name: the model's.
        target: what it was compiled for.
        version: of Weft, by which it was compiled.
        threads: of a run.
        inputs: what it takes, in order.
        outputs: what it gives, in order.
    """

    def __init__(self, library: Library, handle: ctypes.c_void_p, archive: Array | None) -> None:
        self._library, self._handle, self._archive = library, handle, archive
        self._lock, self._users, self._closed = threading.Lock(), 0, False
        error, info = sized(Error), sized(ProgramInfo)
        error.check(library.describe(handle, info, error))
        self.name, self.target, self.version = info.name.decode(), info.target.decode(), info.version.decode()
        self.threads = int(info.threads)
        self.inputs = tuple(self._value(library.input, i) for i in range(info.inputs))
        self.outputs = tuple(self._value(library.output, i) for i in range(info.outputs))

    def _value(self, function: Any, index: int) -> Value:
        error, info = sized(Error), sized(ValueInfo)
        error.check(function(self._handle, index, info, error))
        shape = tuple(None if n < 0 else int(n) for n in info.shape[: info.ndim])
        return Value(info.name.decode(), info.dtype.decode(), shape, info.code, info.bits)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Runs the model.

        Args:
            inputs: an array for each input, by its name: numpy's, or of any library that has DLPack's protocol, in host
                memory. One that is not row-major is copied.
            out: arrays that results are written to, by the names of outputs: row-major, writable, of the sizes of the
                results.

        Returns:
            Every output by its name, in order: new arrays, or those of `out`.

        Raises:
            WeftError: a name is missing or unknown, or the program is closed (Code.ARGUMENT); an array does not fit
                (Code.INPUT, Code.OUTPUT); the run failed.
        """
        self._same_names("inputs", inputs, self.inputs)
        if out is not None:
            unknown = [n for n in out if n not in {o.name for o in self.outputs}]
            if unknown:
                self._same_names("outputs", out, self.outputs)
        arrays = [_given(v, inputs[v.name]) for v in self.inputs]
        tensors = [_tensor(v, a) for v, a in zip(self.inputs, arrays)]
        storage = [None if out is None or v.name not in out else _storage(v, out[v.name]) for v in self.outputs]
        results = [_tensor(v, a) for v, a in zip(self.outputs, storage)]
        types = [v.numpy_dtype for v in self.outputs]  # may fail: before there is memory to give back
        error = sized(Error)
        with self._use():
            error.check(self._library.run(self._handle, _pointers(tensors), _pointers(results), error))
        found = {}
        for v, dtype, array, (tensor, shape) in zip(self.outputs, types, storage, results):
            if array is None:
                array = np.asarray(_Memory(self._library, tensor, shape, dtype)).view(dtype)
            found[v.name] = array
        return found

    def __call__(self, *arrays: Any) -> Any:
        """`run` with inputs by their order; the one result, or a tuple of results.

        Raises:
            WeftError: as `run`.
        """
        if len(arrays) != len(self.inputs):
            raise WeftError(Code.ARGUMENT, f"'{self.name}' takes {len(self.inputs)} inputs, {len(arrays)} are given")
        found = tuple(self.run({v.name: a for v, a in zip(self.inputs, arrays)}).values())
        return found[0] if len(found) == 1 else found

    def _same_names(self, kind: str, given: Mapping[str, Any], values: tuple[Value, ...]) -> None:
        wanted = [v.name for v in values]
        if sorted(given) != sorted(wanted):
            missing, unknown = [n for n in wanted if n not in given], [n for n in given if n not in wanted]
            parts = [f"{what} {', '.join(n)}" for what, n in (("without", missing), ("with unknown", unknown)) if n]
            names = f"where: {kind}: {', '.join(wanted)}"
            raise WeftError(Code.ARGUMENT, f"{kind} of '{self.name}' are given {' and '.join(parts)}\n{names}")

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise WeftError(Code.ARGUMENT, f"the program '{self.name}' is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._leave()

    def _leave(self) -> None:
        if self._closed and self._users == 0 and self._handle:
            self._library.close(self._handle)
            self._handle = ctypes.c_void_p()
            self._archive = None

    def close(self) -> None:
        """Gives back the program's memory, when runs in other threads have ended. May be called again."""
        with self._lock:
            self._closed = True
            self._leave()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        return f"<weft_native.Program '{self.name}' for {self.target}>"


def load(
    library: str | os.PathLike[str],
    archive: str | os.PathLike[str] | bytes | bytearray | memoryview | None = None,
    *,
    prefix: str | None = None,
    threads: int = 0,
    sha256: str | None = None,
) -> Program:
    """Loads a model.

    Args:
        library: a library that `weft export` wrote; or libweft, which loads archives; or the file of an archive, which
            the libweft of the package weft-libweft loads.
        archive: a file of `weft compile`, or its content; None where `library` says all.
        prefix: that of `weft export --prefix`.
        threads: of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as the process may use.
        sha256: the expected hash of the archive, 64 hexadecimal digits; another file is refused.

    Raises:
        WeftError: the library or the archive cannot be loaded.
    """
    if archive is None and _is_archive(library):
        library, archive = _libweft(), library
    functions = load_library(library, prefix)
    options, error, handle = sized(Options), sized(Error), ctypes.c_void_p()
    options.threads = threads
    options.sha256 = None if sha256 is None else sha256.encode()
    content: Array | None = None
    if isinstance(archive, (bytes, bytearray, memoryview)):
        content = np.frombuffer(archive, np.uint8)  # used where it lies, so the program holds it
        place = content.ctypes.data if content.size else None
        result = functions.open_memory(place, content.size, options, handle, error)
    else:
        path = None if archive is None else os.fsencode(archive)
        result = functions.open(path, options, handle, error)
    error.check(result)
    return Program(functions, handle, content)


def _is_archive(path: str | os.PathLike[str]) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False  # the system may find a library by this name


def _libweft() -> str:
    hint = "hint: pip install weft-libweft, or give the path of libweft.so before that of the archive"
    try:
        import weft_libweft

        return str(weft_libweft.prebuilt("libweft.so"))
    except (ImportError, FileNotFoundError) as error:
        raise WeftError(Code.FILE, f"there is no libweft to load an archive with\nwhy: {error}\n{hint}") from None


def _given(value: Value, array: Any) -> Array:
    """An input as an array of numpy that is row-major."""
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        try:
            array = np.from_dlpack(array)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            raise WeftError(
                Code.INPUT,
                f"input '{value.name}' cannot be read through DLPack\nwhy: {error}\nhint: give an array in host memory",
            ) from None
    array = np.asarray(array)
    _check_dtype(value, array, "input", Code.INPUT)
    return np.require(array, requirements=("C", "A"))


def _storage(value: Value, array: Any) -> Array:
    if not isinstance(array, np.ndarray):
        raise WeftError(Code.OUTPUT, f"storage for output '{value.name}' is no array of numpy")
    _check_dtype(value, array, "storage for output", Code.OUTPUT)
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        raise WeftError(Code.OUTPUT, f"storage for output '{value.name}' is not row-major, aligned and writable")
    return array


def _check_dtype(value: Value, array: Array, what: str, code: Code) -> None:
    wanted = value.numpy_dtype
    if array.dtype != wanted:
        raise WeftError(code, f"{what} '{value.name}' is {array.dtype}, expected {wanted}")


def _tensor(value: Value, array: Array | None) -> tuple[Tensor, Any]:
    """A tensor, and the sizes that it points to: of an array, or without storage."""
    sizes = (0,) * len(value.shape) if array is None else array.shape
    shape = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    tensor = Tensor(
        data=None if array is None else array.ctypes.data,
        device_type=1,
        ndim=len(sizes),
        code=value._code,
        bits=value._bits,
        lanes=1,
        shape=shape,
    )
    return tensor, shape


def _pointers(tensors: list[tuple[Tensor, Any]]) -> Any:
    kind = ctypes.POINTER(Tensor)
    return (kind * max(1, len(tensors)))(*(ctypes.pointer(t) for t, _ in tensors))
