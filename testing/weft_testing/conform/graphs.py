"""Level 5: several operators together: what is fused, laid out, folded, copied."""

from __future__ import annotations

from weft_testing.conform.cases import GraphCase
from weft_testing.conform.kit import Declined, Kit


def test_graph(kit: Kit, graph: GraphCase) -> None:
    built = graph.build()
    try:
        compiled = kit.compile(graph.build())
    except Declined as error:
        kit.decline(str(error))
    kit.check_graph(built, compiled, graph.inputs(), graph.ulps)
