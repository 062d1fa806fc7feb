"""LiteRT as a peer, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def _version() -> str | None:
    try:
        return version("ai-edge-litert")
    except PackageNotFoundError:
        return None


def reference(path: str, preserve: bool = False) -> Any:
    """An interpreter with LiteRT's reference kernels; `preserve`: it keeps all values."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    return Interpreter(
        path,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=preserve,
    )


def call(interpreter: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of an interpreter, whose inputs go by the names of the only signature or of tensors; it is resized to
    what it is given."""
    signatures = interpreter.get_signature_list()
    if len(signatures) == 1:
        (key,) = signatures
        runner = interpreter.get_signature_runner(key)
        found = runner(**{name: np.asarray(inputs[name]) for name in signatures[key]["inputs"]})
        return [found[name] for name in signatures[key]["outputs"]]
    details = interpreter.get_input_details()
    for d in details:
        if tuple(d["shape"]) != np.shape(inputs[d["name"]]):
            interpreter.resize_tensor_input(d["index"], np.shape(inputs[d["name"]]))
    interpreter.allocate_tensors()
    for d in details:
        interpreter.set_tensor(d["index"], np.asarray(inputs[d["name"]]))
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def open_litert(path: str, threads: int) -> Run:
    """LiteRT with XNNPACK, as it comes."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    return lambda inputs: call(interpreter, inputs)


def litert_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between a model's operators, by LiteRT's reference kernels, all of which it keeps."""
    interpreter = reference(path, True)

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        call(interpreter, inputs)
        known = {d["name"]: d["index"] for d in interpreter.get_tensor_details()}
        found = {}
        for name in names:
            if name in known:
                try:
                    found[name] = interpreter.get_tensor(known[name])
                except ValueError:  # it was never computed
                    continue
        return found

    return ask


ENGINES = [EngineKind("litert", _version, open_litert, litert_values, ("tflite",))]
