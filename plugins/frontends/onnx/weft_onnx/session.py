"""A session as ONNX Runtime's, for programs written for that.

    session = weft_onnx.InferenceSession("model.onnx")                  target="llvm" is this machine
    (y,) = session.run(["y"], {"x": x})

What a program does with a model's names, shapes and types, and with wrong arguments, works as there. Results are
Weft's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

import weft
from weft.errors import InputError
from weft_onnx.model_file import Model, read_model
from weft_onnx.tensors import DTYPES

PROVIDER = "WeftExecutionProvider"

# ONNX Runtime's names of element types: C++'s, where those differ from ONNX's.
_NAMES = {"float32": "float", "float64": "double"}


class InvalidArgument(InputError, ValueError):
    """What `run` is given does not fit the model. A ValueError too, which ONNX Runtime raises where an input is
    missing."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    Attributes:
        type: "tensor(float)", "seq(tensor(int64))", "optional(…)"; empty if the model does not say.
        shape: a number, a name, or None if the model says neither, for each dimension; of sequences and what has no
            shape an empty list.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: Mapping[str, str]


class InferenceSession:
    """A model, compiled and ready to run. Calls may come from any number of threads."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        target: str = "llvm",
        **options: Any,
    ) -> None:
        """Reads and compiles a model.

        Args:
            path_or_bytes: an .onnx file, or what is in one.
            sess_options, providers, provider_options: ONNX Runtime's; they do nothing here, which a warning says.
            target: what it is compiled for, e.g. "llvm -threads=2" or "cuda, llvm".
            options: further ones of ONNX Runtime's sessions; they do nothing here either.

        Raises:
            TypeError: something else than a path or bytes.
            FrontendError: the model cannot be read.
            WeftError: it cannot be compiled for the target.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        given = {"sess_options": sess_options, "providers": providers, "provider_options": provider_options, **options}
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            text = (
                f"{', '.join(ignored)}: what ONNX Runtime does with this has no meaning here, where the target"
                f" '{target}' runs the whole model"
            )
            warnings.warn(
                f"{text}; say what it should run on, and with how many threads, by target=…", UserWarning, stacklevel=2
            )
        self.target = target
        self._executable = weft.compile(path_or_bytes, target, frontend="onnx")
        model = read_model(path_or_bytes)
        graph = model.proto.graph
        fed = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        self._inputs = [node_arg(i) for i in graph.input if i.name not in fed]
        self._outputs = [self._completed(node_arg(o)) for o in graph.output]
        self._meta = _metadata(model)

    def _completed(self, output: NodeArg) -> NodeArg:
        """With the sizes that the model leaves open and compilation knows: numbers, and names of the inputs'
        dimensions."""
        named = {d for i in self._inputs for d in i.shape if isinstance(d, str)}
        found = next((o.shape for o in self._executable.outputs if o.name == output.name), ())
        if len(found) != len(output.shape):
            return output
        shape = [
            d if d is not None else f if isinstance(f, int) or f in named else None for d, f in zip(output.shape, found)
        ]
        return replace(output, shape=shape)

    def get_inputs(self) -> list[NodeArg]:
        """What must be fed, as the model declares it: no initialisers."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """One, which stands for the target."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {"target": self.target}}

    def get_modelmeta(self) -> ModelMetadata:
        return self._meta

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs of these names, in this order.

        Args:
            output_names: None or none: all of them.
            input_feed: arrays by name, of exactly the dtypes that the model declares.
            run_options: ONNX Runtime's; it does nothing here, which a warning says.

        Raises:
            InvalidArgument: an input that is missing, unknown or does not fit, or no output of that name.
            ExecutionError: the run itself failed.
        """
        if run_options is not None:
            warnings.warn("run_options does nothing here", UserWarning, stacklevel=2)
        missing = [i.name for i in self._inputs if i.name not in input_feed and not i.type.startswith("optional")]
        if missing:
            raise InvalidArgument(f"Required inputs ({missing}) are missing from input feed ({list(input_feed)}).")
        names = [i.name for i in self._inputs]
        for name in input_feed:
            if name not in names:
                raise InvalidArgument(f"Invalid input name: {name}", hint="the inputs are " + ", ".join(names))
        known = [o.name for o in self._outputs]
        wanted = list(output_names) if output_names else known
        for name in wanted:
            if name not in known:
                raise InvalidArgument(f"Invalid output name: {name}", hint="the outputs are " + ", ".join(known))
        try:
            results = self._executable.run({name: _fed(input_feed.get(name)) for name in names})
        except InputError as error:
            raise InvalidArgument(error.what, where=error.where, why=error.why, hint=error.hint) from None
        return [results[name] for name in wanted]


def _fed(value: Any) -> Any:
    """Numbers may come as such."""
    return np.asarray(value) if isinstance(value, (int, float, complex, np.generic)) else value


def node_arg(info: onnx.ValueInfoProto) -> NodeArg:
    """An input or output as the model declares it."""
    tensor = info.type.tensor_type if info.type.WhichOneof("value") == "tensor_type" else None
    dims = tensor.shape.dim if tensor is not None else ()
    return NodeArg(info.name, type_name(info.type), [_dim(d) for d in dims])


def type_name(type: onnx.TypeProto) -> str:
    """A type as ONNX Runtime writes it."""
    kind = type.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        of = DTYPES.get(getattr(type, kind).elem_type)
        name = "" if of is None else _NAMES.get(of.name, of.name)
        return f"{kind.removesuffix('_type')}({name})" if name else ""
    if kind == "sequence_type":
        return f"seq({type_name(type.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_name(type.optional_type.elem_type)})"
    return ""


def _dim(d: Any) -> int | str | None:
    return int(d.dim_value) if d.WhichOneof("value") == "dim_value" else d.dim_param or None


def _metadata(model: Model) -> ModelMetadata:
    proto = model.proto
    entries = {p.key: p.value for p in proto.metadata_props}
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.model_version, entries
    )
