"""An operand that graph passes do not see through, and one that gradients do not pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weft.errors import GraphError
from weft.expr.nodes import Expr
from weft.graph.identity import same_type
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, Type, Value
from weft.graph.operator import Array, Elementwise, Gradients, Operator, Sample, algorithm
from weft_ops.arithmetic import Where
from weft_ops.examples import booleans, floats, integers
from weft_ops.shapes import broadcast, expect_kind, operands, show


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


@dataclass(frozen=True)
class Detach(Operator):
    """The operand, of any dtype, through which no gradient passes.

    Inputs: x, where (bool, broadcast to x; None: everywhere): no gradient passes the elements for which it is true.
    """

    kind = "composite"

    def infer(self, *types: Type | None) -> Type | Inferred:
        """Raises GraphError where the condition is no bool of a shape that broadcasts to that of x."""
        if len(types) != 2 or types[1] is None:
            return same_type(*types[:1])
        assumed: list[Assumption] = []
        x, where = operands(types, 2)
        expect_kind(where.dtype, ("bool",), "where")
        if broadcast(x.shape, where.shape, assumed=assumed) != x.shape:
            raise GraphError(f"where: {show(where.shape)} does not broadcast to {show(x.shape)}")
        return Inferred(x, assumed)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return arrays[0]

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (g,) = gradients
        assert g is not None
        where = node.inputs[1] if len(node.inputs) > 1 else None
        if where is None:
            return (None,) * len(node.inputs)
        zero = builder.constant(np.zeros((), g.dtype.numpy), "zero")
        return builder.add(Where(), where, zero, g), None

    @algorithm("decompose")
    def plain(self, builder: GraphBuilder, x: Value, where: Value | None = None) -> Value:
        """The operand itself."""
        return x

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """Of integers: the gradient of floats is not their derivative."""
        yield Sample(cls(), (integers((4,)), None), "int64")
        yield Sample(cls(), (integers((2, 3)), booleans((2, 1))), "where")


__all__ = ["Barrier", "Detach"]
