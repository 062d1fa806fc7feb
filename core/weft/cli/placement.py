"""`weft inspect` for several targets: where every node goes, why not elsewhere, and each target's share of the multiply-adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.passes.place import Placement
    from weft.pipeline import OnStage, ResolvedTarget

STAGES = ("load", "place")


@dataclass
class Placed:
    """A graph and where its nodes went."""

    graph: Graph
    placement: Placement


def place_graph(graph: Graph, targets: Sequence[ResolvedTarget], stage: str | None, on_stage: OnStage | None = None) -> Placed:
    """Places a graph, compiles nothing.

    Raises:
        InputError: no such stage.
        UnsupportedError: nodes that no target takes.
    """
    from weft.cli.inspect import unknown
    from weft.mixed import MixedCompilation

    if stage is not None and stage not in STAGES:
        error = unknown("stage", stage, STAGES)
        error.hint = error.hint or "name one target alone to see the stages of its compilation"
        raise error
    compilation = MixedCompilation(targets, on_stage=on_stage)
    text = graph if stage == "load" else None
    compilation.place(graph)
    assert compilation.placement is not None
    return Placed(text or compilation.placement.graph, compilation.placement)


def print_placement(placed: Placed, stage: str | None) -> None:
    """The text of a stage, or tables of regions and nodes."""
    if stage is not None:
        typer.echo(str(placed.graph))
        return
    from weft.cli.terminal import print_table
    from weft.graph.region import Region
    from weft.mixed import multiply_adds

    work: dict[str, float] = {}
    for p in placed.placement.nodes:
        work[p.target] = work.get(p.target, 0.0) + multiply_adds(p.node)
    total = sum(work.values()) or 1
    counts = Counter(p.target for p in placed.placement.nodes)
    regions = Counter(n.op.target for n in placed.graph.nodes if isinstance(n.op, Region))
    rows = [(t, f"{counts[t]}", f"{regions[t]}", f"{work[t] / 1e6:,.1f} M", f"{work[t] / total:.1%}") for t in counts]
    print_table(placed.graph.name, ["target", "nodes", "regions", "multiply-adds", "share"], rows, right=(1, 2, 3, 4))
    nodes = []
    for p in placed.placement.nodes:
        why = "\n".join(f"{target}: {reason} [{code}]" for target, (code, reason) in p.refused.items())
        nodes.append((f"%{p.node.outputs[0].name}", type(p.node.op).__name__, ", ".join(sorted(p.node.names)), p.target, why))
    print_table("nodes", ["value", "operator", "from", "target", "why not elsewhere"], nodes)
