"""A model → Graph, by tracing: operations of keras.ops are recorded on symbolic tensors, and converted one by one.

A functional model has its operations already. A layer that has no converter is called on symbolic tensors of the shapes
of its operands, and what it records is converted in its place; so are models inside of models, and functions that
activations are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError, WeftError, from_signal
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim
from weft_frontend.context import Context
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Poison, Poisoned, Unsupported, poisoned
from weft_keras.call import Call
from weft_keras.registry import REGISTRY
from weft_keras.tracing import symbolic_backend, symbolic_operators

MOST_DEPTH = 64
"""Layers inside of layers."""


class Importer(GraphImporter):
    """The state of reading one model."""

    title = "Keras"
    hint = "a plugin can convert it (hook `converters`)"

    def __init__(self, model: Any, batch: int | None) -> None:
        import keras

        name = re.sub(r"\W+", "_", str(model.name)).strip("_") or "model"
        super().__init__(f"n{name}" if name[0].isdigit() else name, "keras", REGISTRY, 1000)
        self.keras, self.model, self.batch = keras, model, batch
        self.path: list[str] = []
        self.recorded = True
        """Whether the calls are those of a functional model, which Keras calls again with the model's own `training`:
        what they were recorded with does not count."""
        self._constants: dict[tuple[int, int, str], tuple[Any, Value]] = {}
        self._kept: list[Any] = []
        self.names: set[str] = set()
        """Names that are kept for the results of calls of the model."""
        self._named: dict[int, Value] = {}

    def run(self) -> Graph:
        """The graph; the model is as it was before, without the calls that were recorded."""
        layers = self.model._flatten_layers()
        before = [(one, len(one._inbound_nodes), len(one._outbound_nodes)) for one in layers]
        try:
            return self.read()
        finally:
            for one, inbound, outbound in before:
                del one._inbound_nodes[inbound:]
                del one._outbound_nodes[outbound:]

    def read(self) -> Graph:
        inputs, outputs = self.ends()
        known: dict[int, Any] = {}
        for name, tensor in inputs:
            known[id(tensor)] = self.builder.input(name, self.input_type(name, tensor))
        if outputs is None:
            structure = self.keras.tree.map_structure(lambda x: known[id(x)], self.structure)
            result = self.traced(self.call_of(self.model), (structure,), {}, "")
        else:
            for node in self.history(self.keras.tree.flatten(outputs), known):
                if self.builder.unique(node.operation.name) == node.operation.name:
                    self.names.add(node.operation.name)
            self.convert_all(outputs, known)
            result = self.keras.tree.map_structure(lambda x: known[id(x)], outputs)
        if self.unsupported:
            raise self.everything_unsupported()
        found = self.keras.tree.flatten(result)
        for value, name in zip(found, self.output_names(result)):
            self.builder.output(self.as_value(value, name), name)
        return self.built()

    # -- the ends of a model
    def ends(self) -> tuple[list[tuple[str, Any]], Any]:
        """The inputs by name, and the symbolic outputs; None: the model is called for them."""
        functional = getattr(self.model, "_functional", None) or self.model
        if getattr(functional, "inputs", None) and hasattr(functional, "_outputs_struct"):
            self.structure = functional._inputs_struct
            tensors = list(functional.inputs)
            names = ["" if re.fullmatch(r"keras_tensor(_\d+)?", t.name) else t.name for t in tensors]
            return list(zip(unique(names, "input"), tensors)), functional._outputs_struct
        shapes = dict(getattr(self.model, "_build_shapes_dict", None) or {})
        if not self.model.built or not shapes:
            raise FrontendError(
                f"the shapes of the inputs of '{self.model.name}' are not known",
                why="it is a model that was never called",
                hint="call it once, or model.build(…), before it is given",
            )
        if len(shapes) > 1:
            raise FrontendError(f"'{self.model.name}' takes {len(shapes)} arguments", hint="make one model of it whose"
                                " call takes a list or a dict of tensors")  # fmt: skip
        (shape,) = shapes.values()
        self.structure = self.keras.tree.map_shape_structure(
            lambda s: self.keras.KerasTensor((None, *s[1:]), self.model.input_dtype), shape
        )
        paths = self.keras.tree.flatten_with_path(self.structure)
        names = ["_".join(map(str, path)) for path, _ in paths] if len(paths) > 1 else ["input"]
        return list(zip(unique(names, "input"), [t for _, t in paths])), None

    def input_type(self, name: str, tensor: Any) -> TensorType:
        if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
            raise FrontendError(f"the input '{name}' is sparse or ragged", hint="make it dense")
        dims: list[Dim] = [
            d if d is not None else Var("batch" if k == 0 else f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{k}", dt.int64)
            for k, d in enumerate(tensor.shape)
        ]
        if dims and self.batch is not None:
            dims[0] = self.batch
        return TensorType(dt.dtype(tensor.dtype), tuple(dims))

    def output_names(self, result: Any) -> list[str]:
        paths = self.keras.tree.flatten_with_path(result)
        given = getattr(self.model, "output_names", None)
        if isinstance(result, dict):
            given = ["_".join(map(str, path)) for path, _ in paths]
        if not given or len(given) != len(paths):
            given = ["output"] * len(paths)
        return unique(list(given), "output")

    # -- tracing
    def symbolic(self, x: Any) -> bool:
        return isinstance(x, self.keras.KerasTensor)

    def symbol_of(self, value: Value) -> Any:
        """A symbolic tensor for a value; sizes that are formulas are open."""
        shape = tuple(d if isinstance(d, int) else None for d in value.shape)
        return self.keras.KerasTensor(shape, value.dtype.name)

    def traced(self, function: Callable[..., Any], args: Any, kwargs: Any, name: str, masks: Any = ()) -> Any:
        """What a function of keras.ops gives for values: the operations that it records are converted.

        Args:
            masks: pairs of a value, and of the mask that Keras attaches to it.

        Raises:
            Unsupported: it cannot be called on symbolic tensors.
        """
        if len(self.path) > MOST_DEPTH:
            raise FrontendError(f"layers nest more than {MOST_DEPTH} deep")
        known: dict[int, Any] = {}
        made: dict[int, Any] = {}

        def symbol(x: Any) -> Any:
            if not isinstance(x, Value):
                return x
            if id(x) not in made:
                made[id(x)] = self.symbol_of(x)
                known[id(made[id(x)])] = x
                mask = next((m for v, m in masks if v is x), None)
                if mask is not None:
                    made[id(x)]._keras_mask = symbol(mask)
            return made[id(x)]

        given, named = self.keras.tree.map_structure(symbol, (tuple(args), dict(kwargs)))
        self.path += [name] if name else []
        recorded, self.recorded = self.recorded, False
        try:
            outputs = self.called(function, given, named, name)
            self._kept.append((outputs, made))
            self.convert_all(outputs, known)
        finally:
            self.recorded = recorded
            del self.path[len(self.path) - bool(name) :]

        def found(x: Any) -> Any:
            return known[id(x)] if self.symbolic(x) else x if x is None else self.constant(x)

        return self.keras.tree.map_structure(found, outputs)

    def called(self, function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
        try:
            with symbolic_operators(self.keras):
                return function(*args, **kwargs)
        except (WeftError, Unsupported):
            raise
        except Exception as error:  # of layers that anyone may have written
            if from_signal(error):
                raise
            text = " ".join(str(error).split())
            what = f"layer {name}" if name else getattr(function, "__name__", "a function")
            raise Unsupported(
                f"{what} cannot be called on symbolic tensors ({type(error).__name__}: {text[:200]})"
            ) from error

    def convert_all(self, outputs: Any, known: dict[int, Any]) -> None:
        """Converts all that symbolic tensors were recorded to depend on, up to what is known."""
        for node in self.history(self.keras.tree.flatten(outputs), known):
            if all(id(t) in known for t in node.outputs):
                continue
            results = list(self.node(Call(self, node, known)))
            results += [Poison()] * (len(node.outputs) - len(results))
            for tensor, result in zip(node.outputs, results):
                known[id(tensor)] = result
        for x in self.keras.tree.flatten(outputs):
            if self.symbolic(x) and poisoned(known[id(x)]) and not self.unsupported:
                raise FrontendError("an output was not converted", hint=self.defect)

    def history(self, tensors: Iterable[Any], known: Mapping[int, Any]) -> list[Any]:
        """The recorded nodes that tensors depend on, each behind those whose outputs it takes; masks that Keras
        attaches to tensors count as taken by layers."""
        order: list[Any] = []
        seen: set[int] = set()
        stack = [(t, False) for t in tensors if self.symbolic(t)]
        while stack:
            tensor, done = stack.pop()
            if id(tensor) in known:
                continue
            found = getattr(tensor, "_keras_history", None)
            if found is None or found.operation is None:
                raise Unsupported("a symbolic tensor of another model")
            node = found.operation._inbound_nodes[found.node_index]
            if done:
                order.append(node)
            elif id(node) not in seen:
                seen.add(id(node))
                if node.is_input:
                    raise Unsupported(f"an input '{tensor.name}' that is not among those of the model")
                stack.append((tensor, True))
                for t in node.arguments.keras_tensors:
                    stack.append((t, False))
                    mask = getattr(t, "_keras_mask", None)
                    if self.symbolic(mask):
                        stack.append((mask, False))
        return order

    # -- nodes
    def own(self, c: Any) -> Any:
        if getattr(c.operation, "quantization_mode", None):
            return self.inside
        found = super().own(c)
        if found is None and isinstance(c.operation, self.keras.Layer):
            if isinstance(c.operation, self.keras.layers.RNN) and type(c.operation).call is self.keras.layers.RNN.call:
                return self.registry.find("layers", "RNN")
            return self.inside
        return found

    def unknown(self, c: Context) -> str:
        return f"operation keras.ops {c.op_type}" if c.domain == "ops" else f"{c.domain} {c.op_type}"

    def convert(self, c: Any) -> Sequence[Any]:
        if c.trains and not self.recorded and c.op_type != "Resizing":
            raise c.unsupported("it is called with training=True")
        if getattr(c.operation, "quantization_mode", None) not in (None, "int8", "int4"):
            raise c.unsupported(f"quantized weights ({c.operation.quantization_mode})")
        results = super().convert(c)
        for tensor, result in zip(c.node.outputs, results, strict=True):
            if isinstance(result, Value) and c.checked:
                self.check(c, tensor, result)
        self.name(c, results)
        return results

    def name(self, c: Call, results: Sequence[Any]) -> None:
        """Gives what a recorded call of the model came to its name, by which engines ask for values. What several calls
        come to has the first one's."""
        result = results[0] if results else None
        if not isinstance(result, Value) or result.producer is None or self.path or id(result) in self._named:
            return
        if c.name in self.names:
            self.names.remove(c.name)
            self._named[id(result)] = result
            result.name = c.name

    def check(self, c: Call, tensor: Any, value: Value) -> None:
        """That a result has the dtype and the sizes which Keras says."""
        same = value.dtype == dt.dtype(tensor.dtype) and len(value.shape) == len(tensor.shape)
        if not same or any(
            isinstance(d, int) and w is not None and d != w for d, w in zip(value.shape, tensor.shape, strict=True)
        ):
            raise c.error(f"it came to {value.type}, Keras says {tensor.dtype}{list(tensor.shape)}", self.defect)

    def inside(self, c: Call) -> Sequence[Any]:
        """A layer by what its `call` does."""
        layer = c.operation
        masks = []
        for t in c.node.arguments.keras_tensors:
            mask = getattr(t, "_keras_mask", None)
            if self.symbolic(mask):
                masks.append((c.known_tensors[id(t)], c.known_tensors[id(mask)]))
        if any(poisoned(m) for _, m in masks):
            raise Poisoned
        functional = getattr(layer, "_functional", None) or layer
        if hasattr(functional, "_outputs_struct") and getattr(functional, "inputs", None):
            return self.submodel(c, functional, masks)
        given = {k: v for k, v in c.arguments.items() if k not in ("self", "training")}
        args, kwargs = self.split(type(layer).call, given)
        return self.keras.tree.flatten(self.traced(self.call_of(layer), args, kwargs, layer.name, masks))  # type: ignore[no-any-return]

    def submodel(self, c: Call, functional: Any, masks: Sequence[Any]) -> Sequence[Any]:
        """A functional model inside of another, by its own operations."""
        if masks or c.arguments.get("mask") is not None:
            raise c.unsupported("a model that takes a mask")
        tensors = list(functional.inputs)
        if len(tensors) != len(c.operands):
            raise c.error(f"{len(c.operands)} operands for {len(tensors)} inputs")
        known = {id(t): v for t, v in zip(tensors, c.operands)}
        for t, v in zip(tensors, c.operands):
            if v.dtype != dt.dtype(t.dtype) or len(v.shape) != len(t.shape):
                raise c.unsupported(f"an operand {v.type} for an input {t.dtype}{list(t.shape)}")
        self.path.append(c.operation.name)
        recorded, self.recorded = self.recorded, True
        try:
            if len(self.path) > MOST_DEPTH:
                raise FrontendError(f"layers nest more than {MOST_DEPTH} deep")
            self.convert_all(functional._outputs_struct, known)
        finally:
            self.recorded = recorded
            self.path.pop()
        return [known[id(t)] for t in self.keras.tree.flatten(functional._outputs_struct)]

    def split(self, function: Callable[..., Any], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by name as positional ones and named ones."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        parameters = inspect.signature(function).parameters.values()
        several = any(p.kind == p.VAR_POSITIONAL for p in parameters)
        for p in parameters:
            if p.name not in given:
                continue
            if p.kind == p.VAR_POSITIONAL:
                args += given[p.name]
            elif p.kind == p.VAR_KEYWORD:
                kwargs.update(given[p.name])
            elif p.kind == p.POSITIONAL_ONLY or (several and p.kind == p.POSITIONAL_OR_KEYWORD):
                args.append(given[p.name])
            else:
                kwargs[p.name] = given[p.name]
        return args, kwargs

    def call_of(self, layer: Any) -> Callable[..., Any]:
        """A layer's `call`, as the layer's own dtypes have it, at inference."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if layer._call_has_training_arg:
                kwargs["training"] = False
            with symbolic_backend(self.keras, layer):
                function = layer.quantized_call if getattr(layer, "quantization_mode", None) else layer.call
                if not layer.autocast or layer.compute_dtype == layer.variable_dtype:
                    return function(*args, **kwargs)
                with self.keras.src.backend.AutocastScope(layer.compute_dtype):
                    return function(*args, **kwargs)

        return call

    # -- constants
    def constant(self, x: Any, dtype: DType | None = None) -> Value:
        """A variable, a tensor of the backend, an array or a number as a constant; one of each variable and dtype."""
        wanted = None if dtype is None else dtype.name
        key = id(self.builder), id(x), str(wanted)
        if key not in self._constants:
            array = self.array(x, dtype)
            name = re.sub(r"\W+", "_", str(getattr(x, "path", getattr(x, "name", "c"))))
            self._constants[key] = (x, self.builder), self.builder.constant(array, name)
        return self._constants[key][1]

    def array(self, x: Any, dtype: DType | None = None) -> Any:
        """The data of a variable, tensor, array or number."""
        if isinstance(x, (bool, int, float)):
            given = np.asarray(x, bool if isinstance(x, bool) else np.int32 if isinstance(x, int) else np.float32)
            return np.asarray(x).astype(dtype.numpy) if dtype is not None else given
        array = np.asarray(self.keras.ops.convert_to_numpy(x))
        if array.dtype.kind not in "biufV":
            raise Unsupported(f"a constant of {array.dtype}")
        return array if dtype is None else array.astype(dtype.numpy)


def unique(names: Sequence[str], default: str) -> list[str]:
    """Names that are different; those that are given again get numbers."""
    result: list[str] = []
    for k, name in enumerate(names):
        plain = name or default
        result.append(plain if names.count(name) == 1 and plain not in result else f"{plain}_{k}")
    return result
