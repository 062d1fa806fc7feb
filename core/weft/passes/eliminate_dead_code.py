"""Drops what no output needs."""

from __future__ import annotations

from weft.graph.nodes import Graph
from weft.graph.rewrite import Rewriter


def eliminate_dead_code(graph: Graph) -> Graph:
    """Afterwards every node and data symbol contributes to an output. Inputs stay: they are the graph's interface."""
    return Rewriter(graph).run(lambda r, node, inputs: None)
