"""Level 6: whole models, and what part of them the target computes."""

from __future__ import annotations

from weft.graph.nodes import Graph
from weft.mixed import multiply_adds
from weft_testing.conform.cases import GraphCase
from weft_testing.conform.kit import Compiled, Declined, Kit, reasons_elsewhere
from weft_testing.conform.report import Share
from weft_testing.conform.usage import is_product


def test_model(kit: Kit, model: GraphCase) -> None:
    """Its results are the meaning of its graph; what fell back does not count."""
    built = model.build()
    try:
        compiled = kit.compile(model.build())
    except Declined as error:
        kit.decline(str(error))
    share = share_of(kit, model.name, built, compiled)
    kit.shares.append(share)
    counted = kit.check_graph(built, compiled, model.inputs(), model.ulps)
    if any(is_product(i) for i in kit.target.intrinsics.values()):
        share.by_intrinsics = counted.share


def share_of(kit: Kit, name: str, graph: Graph, compiled: Compiled) -> Share:
    """How much of a model is on the target: all of it, for a native one."""
    kind = kit.target.target.kind
    if compiled.placement is None:
        return Share(name, len(graph.nodes), len(graph.nodes), sum(multiply_adds(n) for n in graph.nodes), 1.0)
    nodes = [(p.target == kind, multiply_adds(p.node)) for p in compiled.placement.nodes]
    total, taken = sum(w for _, w in nodes), sum(w for here, w in nodes if here)
    by_cost = None
    if compiled.by_cost is not None:
        by_cost = (
            sum(multiply_adds(p.node) for p in compiled.by_cost.nodes if p.target == kind) / total if total else 0.0
        )
    reasons = reasons_elsewhere(compiled.placement, kind)
    return Share(
        name, len(nodes), sum(here for here, _ in nodes), total, taken / total if total else 0.0, reasons, by_cost
    )
