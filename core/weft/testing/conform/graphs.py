"""Level 5: several operators together: what is fused, laid out, folded, copied."""

from __future__ import annotations

from weft.testing.conform.cases import GraphCase
from weft.testing.conform.kit import Declined, Kit


def test_graph(kit: Kit, graph: GraphCase) -> None:
    built = graph.build()
    try:
        with kit.watched():
            compiled = kit.compile(graph.build())
            for inputs in graph.inputs():
                kit.check_graph(built, compiled, inputs, graph.ulps)
    except Declined as error:
        kit.decline(str(error))
