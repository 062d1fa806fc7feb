"""Weft as a backend of ONNX: `onnx.backend.base.Backend`, by which ONNX's own test suite runs on it.

    rep = weft_onnx.backend.prepare(model, device="CPU")
    (y,) = rep.run([x])

"CPU" is the target "llvm"; "CUDA" is "cuda, llvm", where a GPU is here. `target=…` names any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

import weft
from weft.errors import InputError, TargetError, WeftError
from weft_onnx.tensors import DTYPES
from weft_runtime.device import open_device


class WeftRep(BackendRep):  # type: ignore[misc]  # onnx has no types
    """A compiled model."""

    def __init__(self, executable: weft.Executable) -> None:
        self.executable = executable
        self._result: Callable[..., tuple[Any, ...]] = namedtupledict("Outputs", [o.name for o in executable.outputs])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, a tuple that has them by name as well.

        Args:
            inputs: arrays in the model's order, or by name; an array alone is that of the one input.

        Raises:
            InputError: another number of them, or one that does not fit.
        """
        names = [i.name for i in self.executable.inputs]
        if isinstance(inputs, Mapping):
            return self._result(*self.executable.run(inputs).values())
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(given) != len(names):
            raise InputError(
                f"'{self.executable.manifest.name}' takes {len(names)} inputs, got {len(given)}",
                where=", ".join(names) or None,
            )
        return self._result(*self.executable.run(dict(zip(names, given))).values())


class WeftBackend(Backend):  # type: ignore[misc]  # onnx has no types
    """See the module."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether a model can be read and its device is here."""
        try:
            weft.load(model)
        except WeftError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", target: str | None = None, **kwargs: Any) -> WeftRep:
        """A model, checked by ONNX's checker, and compiled.

        Args:
            device: "CPU", "CUDA" or "CUDA:1".
            target: Weft's, in the place of the device's.

        Raises:
            TargetError: no such device.
            WeftError: the model cannot be read, or compiled.
        """
        onnx.checker.check_model(model)
        return WeftRep(weft.compile(model, target or cls.target(device)))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """One node's outputs.

        Args:
            inputs: arrays, one for each input that has a name.
            outputs_info: dtype and shape of each output; they need not be said.
            kwargs: `opset_version`, by default the newest; `target` as for `prepare`.
        """
        Backend.run_node(
            node, inputs, device, outputs_info, **{k: v for k, v in kwargs.items() if k == "opset_version"}
        )
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        arrays = [np.asarray(a) for a in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        names = list(dict.fromkeys(n for n in node.input if n))
        if len(arrays) != len(names):
            raise InputError(
                f"node {node.op_type} has {len(names)} inputs, got {len(arrays)}", where=", ".join(names) or None
            )
        types = {dtype.numpy: number for number, dtype in DTYPES.items()}
        given = [onnx.helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a in zip(names, arrays)]
        results = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        graph = onnx.helper.make_graph([node], node.op_type, given, results)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])
        return WeftRep(weft.compile(model, kwargs.get("target") or cls.target(device))).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `prepare` takes this device here."""
        try:
            cls.target(device)
        except TargetError:
            return False
        return True

    @classmethod
    def target(cls, device: str) -> str:
        """The target for a device.

        Raises:
            TargetError: ONNX knows no such device, or it is not here.
        """
        try:
            kind = Device(device)
        except (AttributeError, ValueError):
            raise TargetError(f"ONNX has no device '{device}'", hint="CPU, CUDA or CUDA:1") from None
        if kind.type == DeviceType.CPU:
            return "llvm"
        number = kind.device_id
        try:
            open_device(f"cuda:{number}" if number else "cuda")
        except WeftError as error:
            raise TargetError(f"the device '{device}' is not here", why=error.what) from None
        return f"cuda -device={number}, llvm" if number else "cuda, llvm"


is_compatible = WeftBackend.is_compatible
prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
run_node = WeftBackend.run_node
supports_device = WeftBackend.supports_device

__all__: Sequence[str] = [
    "WeftBackend",
    "WeftRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
