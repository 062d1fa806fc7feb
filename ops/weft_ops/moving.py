"""What operators that move elements share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weft import dtypes as dt
from weft.expr.nodes import Const
from weft.graph.nodes import GraphBuilder, Node, TensorType, Value
from weft.graph.operator import Gradients, Operator, OpKind
from weft.tensor.language import Dim, as_dim
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_ops.composing import Composer

ZERO = Const(0, dt.int64)
INDEX = ("int", "uint")
"""Kinds of dtypes of indices."""


def composer(builder: GraphBuilder) -> Composer:
    """A `Composer`, for gradients of what is defined below it."""
    from weft_ops.composing import Composer  # which imports the modules that use this

    return Composer(builder)


class Movement(Operator):
    """Exact: the elements are copied."""

    kind: ClassVar[OpKind] = "injective"

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """By places: the operator applied to the numbers of its operands' elements, from 1 on, says whose copy each
        element of the result is, and there the gradients are added up. What comes from no operand has number 0, where
        the gradient of the operand that says what it is (`fill_operand`) adds up."""
        from weft_ops.filling import Fill, Iota  # these import this module
        from weft_ops.scattering import ScatterElements

        (g,) = gradients
        assert g is not None
        c, sources = composer(builder), self.elements_of(len(node.inputs))
        places: list[Value | None] = list(node.inputs)
        first: dict[int, Dim] = {}
        end: Dim = 1
        for k in sources:
            x = node.inputs[k]
            if x is not None:
                count, first[k] = product(x.shape), end
                places[k] = c.reshape(c.add(c(Iota(dt.int64, (count,))), c.dim(end)), x.shape)
                end = as_dim(end + count)
        filled, fill = self.fill_operand, None
        if filled is not None and filled < len(node.inputs):
            fill = node.inputs[filled]
        if fill is not None:
            places[filled or 0] = c.reshape(c.number(0, dt.int64), fill.shape)
        count = product(g.shape)
        wide = c.reshape(c.wide(g), (count,))
        where = c.reshape(builder.add(self, *places), (count,))
        total = c(ScatterElements(0, "add"), c(Fill(wide.dtype, (end,), 0)), where, wide)
        result: list[Value | None] = [None] * len(node.inputs)
        for k, start in first.items():
            x = node.inputs[k]
            assert x is not None
            result[k] = c.cast(c.reshape(c.slice(total, 0, start, product(x.shape)), x.shape), g.dtype)
        if fill is not None:
            result[filled or 0] = c.cast(c.reshape(c.slice(total, 0, 0, 1), fill.shape), g.dtype)
        return result
