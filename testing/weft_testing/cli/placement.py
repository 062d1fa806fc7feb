"""`weft inspect` where nodes are placed, or are steps of the plan: where every node goes, why not elsewhere, the plans,
and each region's compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.cli.terminal import say
from weft.errors import InputError
from weft_runtime.plan import HOST

if TYPE_CHECKING:
    from weft.graph.nodes import Graph, Node
    from weft.graph.region import Region
    from weft.hooks import OnStage
    from weft.mixed import Outline
    from weft.resolve import ResolvedTarget
    from weft_testing.cli.inspect import Inspection

STAGES = ("load", "place")
"""Of the whole graph; the others are each region's."""


@dataclass
class Placed:
    """A graph as regions and steps, and by name of region what its target does with it; `text` of the stage that was
    asked for."""

    graph: Graph
    outline: Outline | None = None
    regions: dict[str, Inspection] = field(default_factory=dict)
    text: str = ""

    @property
    def plans(self) -> list[Outline]:
        """The model's own, then by number those that branches and loops run."""
        assert self.outline is not None
        own, *others = self.outline.all()
        return [own, *sorted(others, key=lambda o: o.number)]

    @property
    def several(self) -> bool:
        """Whether something is a step of its own beside regions of targets."""
        from weft.graph.region import Region
        from weft.passes.place import STEP

        return any(isinstance(n.op, Region) and n.op.target == STEP for n in self.graph.nodes)


@dataclass(frozen=True)
class Went:
    """Where a node went: a kind of target, or the host, which does it itself; and why not elsewhere, as (target, code,
    reason).

    `plan` is the number of the plan that it is in, None the model's own.
    """

    node: Node
    plan: int | None
    target: str
    refused: tuple[tuple[str, str, str], ...] = ()


def went(placed: Placed) -> Iterator[Went]:
    """Of every node, in the order of `plans`."""
    from weft.graph.region import Region
    from weft.passes.place import why_step

    for outline in placed.plans:
        plan = None if outline is placed.outline else outline.number
        placement = outline.compilation.placement
        if placement is None:  # one region
            for region in (n.op for n in outline.graph.nodes if isinstance(n.op, Region)):
                yield from (Went(n, plan, region.target) for n in region.body.nodes)
            continue
        for p in placement.nodes:
            refused = tuple((target, code, reason) for target, (code, reason) in p.refused.items())
            why = why_step(p.node)
            yield (
                Went(p.node, plan, p.target, refused)
                if why is None
                else Went(p.node, plan, HOST, (*refused, (p.target, *why)))
            )


def plan_data(placed: Placed) -> list[dict[str, Any]]:
    """Every plan with its steps, in the order of `plans`, for people and for JSON."""
    found = []
    for outline in placed.plans:
        steps = []
        for number, node in enumerate(outline.graph.nodes):
            runs = [o.number for o in outline.bodies.get(number, ())]
            name = outline.section(number)
            region = placed.regions.get(name)
            steps.append(
                {
                    "region": None if region is None else name,
                    "does": _does(node, runs, name),
                    "runs": runs,
                    "kernels": [] if region is None else list(dict.fromkeys(region.kernel_of.values())),
                    "inputs": [v.name for v in node.inputs if v is not None],
                    "outputs": [{"name": v.name, "type": str(v.type)} for v in node.outputs],
                    "names": sorted(node.names),
                }
            )
        ends = {
            side: [f"%{v.name}: {v.type}" for v in values]
            for side, values in (("inputs", outline.graph.inputs), ("outputs", outline.graph.outputs))
        }
        found.append({"plan": None if outline is placed.outline else outline.number, **ends, "steps": steps})
    return found


def _does(node: Node, runs: Sequence[int], name: str) -> str:
    from weft.graph.host import HostOperator
    from weft.graph.region import Region
    from weft.passes.place import STEP

    assert isinstance(node.op, Region)
    if node.op.target != STEP:
        return f"region {name}"
    op = node.op.body.nodes[0].op
    if len(runs) == 2:
        return f"if plan {runs[0]}, else plan {runs[1]}"
    if runs:
        return f"loop plan {runs[0]}"
    attributes = op.plain() if isinstance(op, HostOperator) else {}
    return f"{HOST} {op.operator_name}({', '.join(f'{k}={v!r}'[:60] for k, v in attributes.items())})"


def _regions(placed: Placed) -> dict[str, Region]:
    """The regions of targets by the names of their sections; steps of the host are none."""
    from weft.graph.region import Region
    from weft.passes.place import STEP

    return {
        o.section(k): node.op
        for o in placed.plans
        for k, node in enumerate(o.graph.nodes)
        if isinstance(node.op, Region) and node.op.target != STEP
    }


def inspect_placed(
    graph: Graph,
    targets: Sequence[ResolvedTarget],
    stage: str | None,
    kernel: str | None,
    region: str | None,
    on_stage: OnStage | None = None,
) -> Placed:
    """Places a graph and runs the compilations of its regions up to `stage`, up to the schedules if it is None.

    Args:
        region: only this one (its name is that of its section of code), or those of the target of this kind.

    Raises:
        InputError: no such stage, kernel or region.
        UnsupportedError: nodes that no target takes.
    """
    from weft.codegen.base import SourceCodegen
    from weft.mixed import MixedCompilation
    from weft_testing.cli.inspect import RECORDS, SOURCE, inspect_graph, require_kernel, stages, unknown

    by_kind = {t.target.kind: t for t in targets}
    known = {kind: stages(t) for kind, t in by_kind.items()}
    every = list(dict.fromkeys([*STAGES, *(name for names in known.values() for name in names)]))
    if stage is not None and stage not in every:
        raise unknown("stage", stage, every)
    if stage == "load" and region is None:
        return Placed(graph, text=str(graph))
    outline = MixedCompilation(targets, on_stage=on_stage).outline(graph)
    placed = Placed(outline.graph, outline)
    if stage == "place":
        placed.text = "\n\n".join([str(placed.graph), *(f"# plan {o.number}\n{o.graph}" for o in placed.plans[1:])])
        return placed
    bodies = _regions(placed)
    if not bodies and stage is not None:
        raise InputError(
            f"there is no stage '{stage}'",
            why="every node is a step that the host does itself",
            hint="print them with --stage place",
        )
    wanted = {name: op for name, op in bodies.items() if region in (None, name, op.target)}
    if region is not None and not wanted:
        raise unknown("region", region, list(bodies))
    kinds = [kind for kind, names in known.items() if stage in (None, *names)]
    if stage == SOURCE:
        kinds = [
            kind for kind in kinds if isinstance(by_kind[kind].codegen(), SourceCodegen)
        ] or kinds  # if nobody shows any, the first says so
    if region is not None and not any(op.target in kinds for op in wanted.values()):
        raise unknown("stage", str(stage), [name for op in wanted.values() for name in known[op.target]])
    wanted = {name: op for name, op in wanted.items() if op.target in kinds}
    placed.regions = {
        name: inspect_graph(op.body, by_kind[op.target], stage, kernel, on_stage) for name, op in wanted.items()
    }
    require_kernel(list(placed.regions.values()), kernel)
    if stage == RECORDS:
        from weft.records import Records

        placed.text = Records(
            tuple(dict.fromkeys(r for found in placed.regions.values() for r in found.records))
        ).to_json()
        return placed
    shown = {name: found.text for name, found in placed.regions.items() if found.text}
    placed.text = (
        "\n\n".join(f"# region {name}\n{text}" for name, text in shown.items())
        if len(bodies) > 1
        else "".join(shown.values())
    )
    return placed


def print_placed(placed: Placed, stage: str | None, region: str | None) -> None:
    """The text of a stage, or tables of targets, nodes, plans, stages and kernels."""
    from weft.cli.terminal import print_table
    from weft_testing.cli.inspect import choice_rows, kernel_rows, print_choices, print_summary

    if stage is not None:
        say(placed.text)
        return
    if region is None:
        _print_placement(placed)
        if placed.several:
            _print_plans(placed)
    if region is not None or (len(placed.regions) == 1 and not placed.several):
        for found in placed.regions.values():
            print_summary(found)
        return
    kernels = [(name, *row) for name, found in placed.regions.items() for row in kernel_rows(found)]
    print_table("kernels", ["region", "kernel", "groups", "rule", "declined"], kernels, right=(2,))
    print_choices([(name, *row) for name, found in placed.regions.items() for row in choice_rows(found)], ["region"])
    say("print stages of a region with --region NAME, one of them with --stage NAME, of one kernel with --kernel NAME")


def _print_placement(placed: Placed) -> None:
    from weft.cli.terminal import print_table
    from weft.mixed import multiply_adds

    nodes = list(went(placed))
    work: dict[str, float] = {}
    for p in nodes:
        work[p.target] = work.get(p.target, 0.0) + (multiply_adds(p.node) if p.target != HOST else 0.0)
    total = sum(work.values()) or 1
    counts = Counter(p.target for p in nodes)
    regions = Counter(str(found.compilation.target.target.kind) for found in placed.regions.values())
    rows = [(t, f"{counts[t]}", f"{regions[t]}", f"{work[t] / 1e6:,.1f} M", f"{work[t] / total:.1%}") for t in counts]
    print_table(placed.graph.name, ["target", "nodes", "regions", "multiply-adds", "share"], rows, right=(1, 2, 3, 4))
    shown = []
    for p in nodes:
        why = "\n".join(f"{target}: {reason} [{code}]" for target, code, reason in p.refused)
        plan = () if len(placed.plans) == 1 else ("" if p.plan is None else str(p.plan),)
        shown.append(
            (
                *plan,
                f"%{p.node.outputs[0].name}",
                p.node.op.operator_name,
                ", ".join(sorted(p.node.names)),
                p.target,
                why,
            )
        )
    plan = () if len(placed.plans) == 1 else ("plan",)
    print_table("nodes", [*plan, "value", "operator", "from", "target", "why not elsewhere"], shown)


def _print_plans(placed: Placed) -> None:
    """The steps of the model's plan, and of those that its branches and loops run."""
    from weft.cli.terminal import print_table

    rows = [
        (
            "" if plan["plan"] is None else plan["plan"], number, step["does"],
            ", ".join(f"%{n}" for n in step["inputs"]),
            "\n".join(f"%{o['name']}: {o['type']}" for o in step["outputs"]), ", ".join(step["names"]),
        )
        for plan in plan_data(placed)
        for number, step in enumerate(plan["steps"])
    ]  # fmt: skip
    print_table(
        "the plan, and those that its branches and loops run",
        ["plan", "step", "does", "of", "gives", "from"],
        rows,
        right=(0, 1),
    )
