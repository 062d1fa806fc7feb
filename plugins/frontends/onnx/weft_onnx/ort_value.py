"""Values and their binding to a session, under ONNX Runtime's names. They lie in the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.errors import InputError, UnsupportedError
from weft_onnx.tensors import DTYPES

if TYPE_CHECKING:
    from weft_onnx.session import InferenceSession

Array = np.ndarray[Any, Any]
NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types: C++'s, where those differ from ONNX's."""


def _numpy_type(element_type: Any) -> Any:
    """numpy's dtype of one, or of ONNX's number of an element type."""
    return DTYPES[element_type].numpy if isinstance(element_type, int) else np.dtype(element_type)


def _on_host(device_type: str) -> None:
    if device_type.lower() not in ("cpu", "cpu_pinned"):
        raise UnsupportedError(
            f"a value on device '{device_type}'", hint="values of a session lie in the host's memory: device 'cpu'"
        )


class OrtValue:
    """A tensor, or what else a session takes and gives; of a tensor the array itself, which runs may write to."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Of an array, which is not copied. Raises UnsupportedError for another device than the CPU."""
        _on_host(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of zeros, of a numpy dtype or ONNX's number of one. Raises UnsupportedError for another device than
        the CPU."""
        _on_host(device_type)
        return OrtValue(np.zeros(tuple(shape), _numpy_type(element_type)))

    def numpy(self) -> Any:
        return self._value

    def shape(self) -> list[int]:
        return list(self._value.shape)

    def data_type(self) -> str:
        """As `NodeArg.type`: "tensor(float)"."""
        name = dt.dtype(self._value.dtype).name
        return f"tensor({NAMES.get(name, name)})"

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        kind = dt.dtype(self._value.dtype)
        return next(code for code, known in DTYPES.items() if known == kind)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._value.nbytes)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and not any(isinstance(v, dict) for v in self._value)

    def is_sparse_tensor(self) -> bool:
        return False

    def update_inplace(self, array: Any) -> None:
        """Writes other elements into the tensor."""
        _written(self._value, np.asarray(array), "update_inplace")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._value, dtype)


def _written(target: Array, value: Array, what: str) -> None:
    """Raises InputError: it has another shape or dtype."""
    if target.shape != value.shape or target.dtype != value.dtype:
        raise InputError(
            f"{what}: a tensor of {value.dtype}{list(value.shape)} does not fit into one of"
            f" {target.dtype}{list(target.shape)}"
        )
    np.copyto(target, value)


class IOBinding:
    """Inputs and outputs of runs of a session: arrays that are read, and those that are written."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = np.asarray(array)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.numpy()

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """An input that lies at an address. Raises UnsupportedError for another device than the CPU."""
        _on_host(device_type)
        self._inputs[name] = _at(buffer_ptr, shape, element_type)

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """An output, which goes to an address if one is given. Raises UnsupportedError for another device than the
        CPU."""
        _on_host(device_type)
        given = buffer_ptr is not None and shape is not None
        self._outputs[name] = _at(buffer_ptr or 0, shape or (), element_type) if given else None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing: what lies in the host's memory is there."""

    def synchronize_outputs(self) -> None:
        """Nothing: a run ends when its outputs are there."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order of their binding."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """As `get_outputs`, as arrays."""
        return [np.copy(v.numpy()) if v.is_tensor() else v.numpy() for v in self._results]

    def run(self, run_options: Any = None) -> None:
        """A run over what is bound. Raises InputError: an output does not fit into what it is bound to."""
        names = list(self._outputs)
        results = self._session.run(names, self._inputs, run_options) if names else []
        self._results = []
        for name, result in zip(names, results):
            target = self._outputs[name]
            if target is not None:
                _written(target, result, f"output '{name}'")
            self._results.append(OrtValue(result if target is None else target))


def _at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    """The array that lies at an address."""
    dtype = np.dtype(_numpy_type(np.float32 if element_type is None else element_type))
    count = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(tuple(shape))


def as_array(value: Any, dtype: Any) -> Any:
    """What a program feeds: arrays as they are, values of a session as arrays, numbers and lists of them in the dtype
    that the model declares."""
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, (list, tuple)) and dtype is not None and not any(isinstance(v, np.ndarray) for v in value):
        return np.array(value, dtype)
    return np.asarray(value) if isinstance(value, (int, float, complex, np.generic)) else value


def maps_of(numbers: Array, keys: Sequence[int | str]) -> list[Mapping[int | str, float]]:
    """A map for each row, its keys in order, as those of ONNX Runtime are."""
    order = sorted(range(len(keys)), key=lambda k: key.encode() if isinstance(key := keys[k], str) else key)
    return [{keys[k]: float(row[k]) for k in order} for row in numbers]
