"""Sub-graphs of ONNX as graphs of their own: bodies of the operators that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from onnx import GraphProto

from weft.errors import FrontendError
from weft.graph.nodes import Type, Value
from weft_frontend.bodies import Body, Level, build_body
from weft_frontend.contents import Content
from weft_frontend.operands import Poisoned, Scope, poisoned

if TYPE_CHECKING:
    from weft_onnx.importer import Context, Importer


def reopened(c: Context, scope: Scope) -> Context:
    """The same node where names stand for what `scope` says, and nodes are built where they now are."""
    other = copy(c)
    other.scope, other.builder = scope, c.importer.builder
    return other


def import_body(
    importer: Importer, graph: GraphProto, c: Context, given: Sequence[Type | Content], counted: bool = False
) -> Body:
    """A sub-graph of a node; its inputs are of the given types, or what they hold is known. `counted`: it gets a number
    (int64) before all else.

    Raises:
        FrontendError: it takes another number of inputs, or an output is computed by no node.
    """
    if len(given) != len(graph.input):
        raise FrontendError(f"the sub-graph '{graph.name}' takes {len(graph.input)} input(s), gets {len(given)}")

    def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
        scope = importer.scope(c, level)
        scope.values.update((info.name, operand) for info, operand in zip(graph.input, operands))
        importer.initialize(graph, scope, {})
        importer.nodes(graph.node, scope, c.versions, c.name, c.outer_attributes, c.depth + 1)
        outputs = []
        for info in graph.output:
            operand = scope.find(info.name)
            if operand is None:
                raise FrontendError(f"output '{info.name}' of sub-graph '{graph.name}' is computed by no node")
            if poisoned(operand):
                raise Poisoned
            outputs.append((info.name, importer.run_time(operand, info.type, info.name)))
        return outputs

    names = [info.name for info in graph.input]
    return build_body(importer, graph.name, list(zip(names, given)), make, counted)
