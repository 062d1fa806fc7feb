"""`weft inspect` where nodes are placed: where every node goes, why not elsewhere, and each region's compilation by its own target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from weft.cli.inspect import Inspection
    from weft.graph.nodes import Graph
    from weft.passes.place import Placement
    from weft.pipeline import OnStage, ResolvedTarget

STAGES = ("load", "place")
"""Of the whole graph; the others are each region's."""


@dataclass
class Placed:
    """A graph, where its nodes went, and by name of region what its target does with it; `text` of the stage that was asked for."""

    graph: Graph
    placement: Placement | None = None
    regions: dict[str, Inspection] = field(default_factory=dict)
    text: str = ""


def inspect_placed(
    graph: Graph, targets: Sequence[ResolvedTarget], stage: str | None, kernel: str | None, region: str | None, on_stage: OnStage | None = None
) -> Placed:
    """Places a graph and runs the compilations of its regions up to `stage`, up to the schedules if it is None.

    Args:
        region: only this one (its name is that of its section of code), or those of the target of this kind.

    Raises:
        InputError: no such stage, kernel or region.
        UnsupportedError: nodes that no target takes.
    """
    from weft.cli.inspect import SOURCE, inspect_graph, require_kernel, stages, unknown
    from weft.codegen.base import SourceCodegen
    from weft.graph.region import Region
    from weft.mixed import MixedCompilation

    by_kind = {t.target.kind: t for t in targets}
    known = {kind: stages(t) for kind, t in by_kind.items()}
    every = list(dict.fromkeys([*STAGES, *(name for names in known.values() for name in names)]))
    if stage is not None and stage not in every:
        raise unknown("stage", stage, every)
    if stage == "load" and region is None:
        return Placed(graph, text=str(graph))
    compilation = MixedCompilation(targets, on_stage=on_stage)
    placed = Placed(compilation.place(graph), compilation.placement)
    if stage == "place":
        placed.text = str(placed.graph)
        return placed
    bodies = {f"{node.op.target}{k}": node.op for k, node in enumerate(placed.graph.nodes) if isinstance(node.op, Region)}
    wanted = {name: op for name, op in bodies.items() if region in (None, name, op.target)}
    if region is not None and not wanted:
        raise unknown("region", region, list(bodies))
    kinds = [kind for kind, names in known.items() if stage in (None, *names)]
    if stage == SOURCE:
        kinds = [kind for kind in kinds if isinstance(by_kind[kind].codegen(), SourceCodegen)] or kinds  # if nobody shows any, the first says so
    if region is not None and not any(op.target in kinds for op in wanted.values()):
        raise unknown("stage", str(stage), [name for op in wanted.values() for name in known[op.target]])
    wanted = {name: op for name, op in wanted.items() if op.target in kinds}
    placed.regions = {name: inspect_graph(op.body, by_kind[op.target], stage, kernel, on_stage) for name, op in wanted.items()}
    require_kernel(list(placed.regions.values()), kernel)
    shown = {name: found.text for name, found in placed.regions.items() if found.text}
    placed.text = "\n\n".join(f"# region {name}\n{text}" for name, text in shown.items()) if len(bodies) > 1 else "".join(shown.values())
    return placed


def print_placed(placed: Placed, stage: str | None, region: str | None) -> None:
    """The text of a stage, or tables of targets, nodes, stages and kernels."""
    from weft.cli.inspect import kernel_rows, print_summary
    from weft.cli.terminal import print_table

    if stage is not None:
        typer.echo(placed.text)
        return
    if region is None:
        _print_placement(placed)
    if region is not None or len(placed.regions) == 1:
        for found in placed.regions.values():
            print_summary(found)
        return
    kernels = [(name, *row) for name, found in placed.regions.items() for row in kernel_rows(found)]
    print_table("kernels", ["region", "kernel", "groups", "rule", "declined"], kernels, right=(2,))
    typer.echo("print stages of a region with --region NAME, one of them with --stage NAME, of one kernel with --kernel NAME")


def _print_placement(placed: Placed) -> None:
    from weft.cli.terminal import print_table
    from weft.graph.region import Region
    from weft.mixed import multiply_adds

    assert placed.placement is not None
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
