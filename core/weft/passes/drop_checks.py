"""Removes checks of data between a device's kernels, for compilations without a host target."""

from __future__ import annotations

from weft.graph.identity import Require
from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, attribute_symbols, rewrite


def drop_checks(graph: Graph) -> Graph:
    """Afterwards no Require reads what a node computes; those of sizes and of inputs' elements stay."""
    computed = {name for name, source in graph.symbols.items() if source.value.producer is not None}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        return inputs[0] if isinstance(node.op, Require) and computed & attribute_symbols(node.op).keys() else None

    return rewrite(graph, rule)
