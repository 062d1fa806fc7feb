"""Replaces composites that the target does not claim by simpler operators, recursively."""

from __future__ import annotations

from weft.errors import GraphError
from weft.graph.nodes import Graph, Node, Value
from weft.graph.operator import Algorithm
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities, is_claimed

DEPTH = 16


def decompose(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards every composite of the graph is claimed, or has no decomposition (the lowering takes it whole).

    Raises:
        GraphError: a decomposition does not come to an end, or gives another type than its operator.
    """
    claims = (capabilities or Capabilities()).claims

    def splits(node: Node) -> bool:
        return node.op.kind == "composite" and not is_claimed(type(node.op), claims) and decomposition(node) is not None

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        name = node.op.operator_name
        found = decomposition(node) if splits(node) else None
        if found is None:
            return None
        result = found.function(node.op, r.builder_for_rule(), *inputs)
        results = result if isinstance(result, tuple) else (result,)
        for old, new in zip(node.outputs, results):
            if new.type != old.type and (new.tensor.dtype != old.tensor.dtype or new.tensor.rank != old.tensor.rank):
                raise GraphError(
                    f"the decomposition '{found.name}' of {name} gives {new.type}, {name} gives {old.type}",
                    where=repr(node),
                )
        return results

    for _ in range(DEPTH):
        graph = rewrite(graph, rule, rounds=1)
        if not any(map(splits, graph.nodes)):
            return graph
    left = next(filter(splits, graph.nodes))
    raise GraphError(
        f"decomposing does not come to an end after {DEPTH} rounds",
        where=repr(left),
        hint="a decomposition must give simpler operators",
    )


def decomposition(node: Node) -> Algorithm | None:
    """The first decomposition of the node's operator that applies."""
    types = [None if v is None else v.type for v in node.inputs]
    for found in node.op.algorithms().values():
        if found.form == "decompose" and node.op.applies(found.name, *types) is None:
            return found
    return None
