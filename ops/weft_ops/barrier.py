"""An operand that graph passes do not see through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.expr.nodes import Expr
from weft.graph.identity import same_type
from weft.graph.nodes import GraphBuilder, Node, Type
from weft.graph.operator import Array, Elementwise, Gradients, Sample
from weft_ops.examples import floats, integers


@dataclass(frozen=True)
class Barrier(Elementwise):
    """The operand, of any dtype, in its memory.

    What is computed of it is not merged with what is computed of the operand itself: a value that is computed again,
    instead of being kept, is computed of barriers.
    """

    is_view = True

    def infer(self, *types: Type | None) -> Type:
        return same_type(*types)

    def formula(self, *args: Expr) -> Expr:
        return args[0]

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return arrays[0]

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        return gradients

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3)),), "float32")
        yield Sample(cls(), (integers((4,)),), "int64")


__all__ = ["Barrier"]
