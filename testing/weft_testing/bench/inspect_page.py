"""What `weft inspect --html` shows, collected as data: graphs of every pass, steps, placement, memory, kernels, and
their times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.graph.nodes import Node
    from weft_testing.cli.inspect import Inspected, Inspection
    from weft_testing.cli.placement import Placed

MOST_TEXT = 200_000
"""Characters of one text in the page; of longer ones the beginning is there, and the command that prints all."""
PAGE = Path(__file__).with_suffix(".html")


def page(report: Mapping[str, Any]) -> str:
    """One file of HTML that needs nothing else."""
    data = (
        json.dumps(report, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    return PAGE.read_text(encoding="utf-8").replace("{{data}}", data)


def make_page(shown: Inspected) -> tuple[str, str | None]:
    """The page, with times of kernels; and why there are none, or None."""
    from weft.cli.terminal import Progress
    from weft.pipeline import has_steps
    from weft_testing.bench.kernel_times import measure

    measured: dict[str, Any] = (
        {"unmeasured": "a training step is not run here", "sizes": {}, "kernels": []}
        if shown.training
        else measure(shown.model, shown.resolved, shown.frontend, shown.sizes, has_steps(shown.graph))
    )
    with Progress("inspecting") as progress:
        progress.show("drawing")
        return page(collect(shown, measured)), measured.get("unmeasured")


def collect(shown: Inspected, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The report.

    Args:
        measured: what `kernel_times.measure` gives.
    """
    from weft.plugins import host
    from weft_testing.cli.placement import plan_data

    graph, placed = shown.graph, shown.placed
    return {
        "model": Path(shown.model).name,
        "graph": graph.name,
        "target": shown.target,
        "version": host().api_version,
        "inputs": [str(v) for v in graph.inputs],
        "outputs": [str(v) for v in graph.outputs],
        "nodes": len(graph.nodes),
        "regions": [_region(name, found, shown.model, measured) for name, found in shown.regions.items()],
        "plans": plan_data(placed) if placed is not None and placed.several else [],
        "placement": [] if placed is None else _placement(placed),
        "measured": {k: v for k, v in measured.items() if k != "calls"},
    }


def _region(name: str, found: Inspection, model: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    compilation = found.compilation
    target = compilation.target
    return {
        "name": name,
        "target": str(target.target),
        "passes": _passes(found),
        "steps": _steps(found, measured),
        "memory": _memory(found, measured.get("sizes", {})),
        "kernels": _kernels(found, f"weft inspect {model} -t '{target.target}'"),
    }


def _passes(found: Inspection) -> list[dict[str, Any]]:
    """Every graph pass with the text after it; null where the pass changed nothing."""
    from weft.passes.pipeline import ordered

    after = {p.name: p.invariant for p in ordered(found.compilation.target.graph_passes())}
    rows: list[dict[str, Any]] = []
    before: str | None = None
    for name, graph in found.compilation.graphs.items():
        text = str(graph)
        said = "the result of the frontend" if name == "load" else after.get(name, "")
        seconds = found.compilation.seconds.get(name)
        rows.append(
            {
                "name": name,
                "after": said,
                "nodes": len(graph.nodes),
                "seconds": seconds,
                "text": None if text == before else text,
            }
        )
        before = text
    return rows


def _steps(found: Inspection, measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups in the order in which they run."""
    from weft.graph.group import Group
    from weft.training import phases_of
    from weft_testing.cli.memory import moments

    grouped = found.grouped
    assert grouped is not None
    steps = moments(found, measured.get("sizes", {}))
    calls = list(measured.get("calls", ()))
    kernels = [found.kernel_of.get(k) for k in range(len(grouped.nodes))]
    # Calls are in the order of the groups that have kernels; a graph that a profile measured otherwise has none of its
    # times here.
    fits = [c["kernel"] for c in calls] == [k for k in kernels if k is not None]
    timed = iter(calls if fits else [])
    rows = []
    for number, (node, kernel) in enumerate(zip(grouped.nodes, kernels)):
        call = next(timed, None) if kernel is not None else None
        body = node.op.body.nodes if isinstance(node.op, Group) else [node]
        rows.append(
            {
                "outputs": [{"name": v.name, "type": str(v.type)} for v in node.outputs],
                "inputs": [v.name for v in node.inputs if v is not None and v.constant is None],
                "operators": [_operator(n) for n in body],
                "names": sorted(node.names),
                "kernel": kernel,
                "view": isinstance(node.op, Group) and node.op.view,
                "seconds": None if call is None else call["seconds"],
                "live": None if steps is None else steps[number].live,
                "phases": list(phases_of(node.names)),
            }
        )
    return rows


def _operator(node: Node) -> str:
    return node.op.operator_name


def _memory(found: Inspection, sizes: Mapping[str, int]) -> dict[str, Any]:
    from weft.graph.evaluate import dim_value

    plan = found.plan
    assert plan is not None
    values = []
    for name, offset in plan.offsets.items():
        place, size = dim_value(offset, sizes), dim_value(plan.sizes[name], sizes)
        if place is None or size is None or name not in plan.lifetimes:
            continue
        values.append(
            {
                "name": name,
                "offset": place,
                "bytes": size,
                "first": plan.lifetimes[name][0],
                "last": plan.lifetimes[name][1],
            }
        )
    return {
        "arena": dim_value(plan.arena_bytes, sizes),
        "formula": str(plan.arena_bytes),
        "lower": dim_value(plan.lower_bound, sizes),
        "values": values,
        "unknown": len(plan.offsets) - len(values),
        "aliases": [{"name": n, "of": of, "over": n in plan.in_place} for n, of in plan.aliases.items()],
    }


def _kernels(found: Inspection, command: str) -> list[dict[str, Any]]:
    """Rule, declines, steps and the texts of every kernel's stages."""
    from weft.codegen.base import SourceCodegen
    from weft.loop.pipeline import ordered

    target = found.compilation.target
    codegen, loop_stages = target.codegen(), ordered(target.loop_passes())
    rows = []
    for k in found.compilation.kernels.values():
        assert k.scheduled is not None
        program = k.scheduled
        for step in loop_stages:
            program = step.run(program, codegen.functions)
        texts = {"lower_group": str(k.naive), "schedule": str(k.scheduled), loop_stages[-1].name: str(program)}
        if isinstance(codegen, SourceCodegen):
            texts["source"] = codegen.source(target.taken(program))
        rows.append(
            {
                "name": k.name,
                "groups": found.uses[k.name],
                "rule": k.rule,
                "declines": [list(d) for d in k.declines],
                "trace": [" ".join(str(step).split()) for step in k.trace],
                "texts": {s: _bounded(t, f"{command} --stage {s} --kernel {k.name}") for s, t in texts.items()},
            }
        )
    return rows


def _bounded(text: str, command: str) -> str:
    return (
        text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… {len(text) - MOST_TEXT} more characters: {command}"
    )


def _placement(placed: Placed) -> list[dict[str, Any]]:
    from weft_testing.cli.placement import went

    return [
        {
            "plan": p.plan,
            "value": p.node.outputs[0].name,
            "operator": _operator(p.node),
            "names": sorted(p.node.names),
            "target": p.target,
            "refused": [list(why) for why in p.refused],
        }
        for p in went(placed)
    ]
