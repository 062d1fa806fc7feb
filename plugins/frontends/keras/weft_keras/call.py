"""A recorded call, as converters see it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim
from weft_frontend.context import Context
from weft_frontend.operands import Poison
from weft_ops import HardSwish, Mish

if TYPE_CHECKING:
    from weft_keras.importer import Importer

UNTRACED: Mapping[str, Operator] = {"mish": Mish(), "hard_silu": HardSwish(), "hard_swish": HardSwish()}
"""Activations of Keras that take no symbolic tensors."""


def of_keras(kind: Any) -> bool:
    """Whether a class or function is Keras' own."""
    return str(kind.__module__).split(".", 1)[0] == "keras"


class Call(Context):
    """A recorded call of a layer or an operation, with its arguments by name: operands are values, all else is as it
    was given."""

    importer: Importer
    checked = True
    """Whether results must have the dtypes and sizes that Keras gives them before it runs."""

    def __init__(self, importer: Importer, node: Any, known: Mapping[int, Any]) -> None:
        self.node, self.known_tensors = node, known
        self.operation = node.operation
        args, kwargs = node.arguments.convert(lambda x: known[id(x)] if importer.symbolic(x) else x)
        operands = [x for x in importer.keras.tree.flatten((args, kwargs)) if isinstance(x, (Value, Poison))]
        kind = type(self.operation)
        own = isinstance(self.operation, importer.keras.Layer)
        domain = ("layers" if own else "ops") if of_keras(kind) else "custom"
        name = "/".join([*importer.path, self.operation.name])
        super().__init__(importer, kind.__name__, name, operands, domain=domain, outputs=len(node.outputs))
        if own:
            args, kwargs = importer.keras.tree.map_structure(self.accepted, (args, kwargs))
        bound = inspect.signature(kind.call).bind(self.operation, *args, **kwargs)
        self.trains = bool(bound.arguments.get("training"))
        bound.apply_defaults()
        self.arguments: dict[str, Any] = dict(bound.arguments)

    def accepted(self, x: Any) -> Any:
        """An argument as the layer takes it: floats have its dtype."""
        layer = self.operation
        if not isinstance(x, Value) or not x.dtype.is_float or not layer.autocast or not layer._convert_input_args:
            return x
        return self.cast(x, dt.dtype(layer.input_dtype))

    def here(self) -> Call:
        """This call, whose nodes go to the graph that is being built now: a body."""
        result = copy.copy(self)
        result.builder = self.importer.builder
        return result

    # -- arguments
    def arg(self, name: str) -> Any:
        return self.arguments[name]

    def tensor(self, name: str, dtype: DType | None = None) -> Value:
        """An argument as a graph value."""
        return self.as_tensor(self.arguments[name], dtype)

    def as_tensor(self, x: Any, dtype: DType | None = None) -> Value:
        """Anything that Keras takes as a tensor, as a graph value; of another dtype, if one is given."""
        if x is None:
            raise self.error("an operand is missing")
        value = x if isinstance(x, Value) else self.importer.constant(x, dtype)
        return value if dtype is None else self.cast(value, dtype)

    def dtype_of(self, x: Any) -> Any:
        """What Keras' promotion of dtypes takes for an argument: a name, or the class of a number."""
        if isinstance(x, Value):
            return x.dtype.name
        return type(x) if isinstance(x, (bool, int, float)) else self.importer.keras.backend.standardize_dtype(x.dtype)

    def promoted(self, *names: str) -> list[Value]:
        """Arguments in the dtype to which Keras promotes them."""
        given = [self.arguments[name] for name in names]
        dtype = dt.dtype(self.importer.keras.backend.result_type(*map(self.dtype_of, given)))
        return [self.as_tensor(x, dtype) for x in given]

    @property
    def out(self) -> DType:
        """The dtype that Keras gives the first output."""
        return dt.dtype(self.node.outputs[0].dtype)

    def attribute(self, name: str) -> Any:
        """An attribute of the operation or layer."""
        return getattr(self.operation, name)

    def channels_last(self) -> bool:
        given = getattr(self.operation, "data_format", None) or self.importer.keras.config.image_data_format()
        return bool(given == "channels_last")

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} of {rank} dimension(s)")
        return axis + rank if axis < 0 else int(axis)

    def axes(self, given: Any, rank: int) -> tuple[int, ...]:  # type: ignore[override]
        """Axes counted from the front; None is all."""
        if given is None:
            return tuple(range(rank))
        return tuple(self.axis(int(a), rank) for a in (given if isinstance(given, (list, tuple)) else [given]))

    def fixed(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that must be numbers."""
        found = tuple(d for d in dims if isinstance(d, int))
        if len(found) < len(dims):
            raise self.unsupported(f"{what} where a size is open")
        return found

    def activated(self, y: Value) -> Value:
        """`y` under the activation of the layer, a function of keras.ops or a layer."""
        function = self.attribute("activation")
        name = getattr(function, "__name__", "")
        if name in UNTRACED and of_keras(function):
            return self(UNTRACED[name], y)
        if function is None:
            return y
        (result,) = self.importer.keras.tree.flatten(self.importer.traced(function, (y,), {}, ""))
        return self.as_tensor(result)
