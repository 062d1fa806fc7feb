"""Operators that are a step on the host, a function of `weft_runtime.host`, and checks of their type rules.

Elements of a sequence, and results whose sizes are known only at run time, have an `OpenType`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from weft.dtypes import DType
from weft.errors import GraphError
from weft.graph.identity import same_type
from weft.graph.nodes import OpenType, OptionalType, SequenceType, TensorType, Type
from weft.graph.operator import Array, Operator, Sample
from weft_runtime import host


@dataclass(frozen=True)
class HostOperator(Operator):
    """Base of operators that call a function of the runtime's table, by `operator_name`, with the class's
    attributes."""

    kind = "host"
    no_gradient = "it is a step on the host, whose values are not only tensors of numbers and known sizes"

    def plain(self) -> dict[str, Any]:
        """The attributes as a plan has them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def reference(self, *arrays: Array | None) -> Any:
        results = host.call(self.operator_name, self.plain(), arrays)
        return results[0] if len(results) == 1 else results

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """None: samples are tensors of numbers."""
        return ()


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, DType) else value


@dataclass(frozen=True)
class HostIdentity(HostOperator):
    """The operand, of any type."""

    def infer(self, *types: Type | None) -> Type:
        return same_type(*types)


def opened(type: Type | None) -> OpenType:
    """The type of any tensor of this dtype and rank.

    Raises:
        GraphError: it is no tensor's.
    """
    if isinstance(type, TensorType):
        return OpenType(type.dtype, type.rank)
    if not isinstance(type, OpenType):
        raise GraphError(f"expected a tensor, got {type or 'nothing'}")
    return type


def joined(a: Type, b: Type) -> Type:
    """The narrowest type that values of both have.

    Raises:
        GraphError: there is none.
    """
    if a == b:
        return a
    if isinstance(a, (TensorType, OpenType)) and isinstance(b, (TensorType, OpenType)):
        x, y = opened(a), opened(b)
        if x.dtype != y.dtype:
            raise GraphError(f"expected one dtype, got {x.dtype} and {y.dtype}")
        return x if x.rank == y.rank else OpenType(x.dtype, None)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(joined(a.element, b.element))
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):  # what is there is an optional that holds it
        return OptionalType(
            joined(
                *(
                    t.element if isinstance(t, OptionalType) else opened(t) if isinstance(t, TensorType) else t
                    for t in (a, b)
                )
            )
        )
    raise GraphError(f"expected one type, got {a} and {b}")
