"""`weft inspect`: what a compilation did, stage by stage, and why; or what an archive holds. Makes no machine code,
runs none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, ShapeOption, TargetOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable, write
from weft.errors import InputError, nearest
from weft_testing.cli.archive import inspect_archive
from weft_testing.cli.memory import memory_text, moments, peak_of, phase_rows

if TYPE_CHECKING:
    from weft.choices import Choice
    from weft.compilation import Compilation, Kernel
    from weft.graph.nodes import Graph
    from weft.hooks import OnStage
    from weft.passes.plan_memory import MemoryPlan
    from weft.records import Record
    from weft.resolve import ResolvedTarget
    from weft_testing.cli.placement import Placed

SOURCE = "source"
"""The stage behind all loop passes, of targets whose code is made from text."""
MEMORY = "memory"
"""Live bytes over the steps of the plan."""
RECORDS = "records"
"""The choices of all kernels as a file of records, for `--records`."""


def inspect(
    model: Model,
    stage: Annotated[
        str | None,
        typer.Option(
            "--stage", "-s", help="Print the text of this stage. Without it, list the stages and the kernels."
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", "-k", help="Print this kernel only; a part of its name suffices.")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", help="With several targets: only this region, or the regions of this target."),
    ] = None,
    target: TargetOption = None,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    html_file: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="File for a page with all stages and the kernels' times."),
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            "--training", metavar="LOSS", help="Inspect the step that trains the model: cross_entropy, squared_error."
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="With --training: sgd, adamw or adagrad [default: sgd].")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help='With --training: cut, sqrt, min-time, or as "8GB" [default: cut].'),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="With --training: bfloat16 or float16 for products.")
    ] = None,
) -> None:
    """Shows the stages of a compilation, or the contents of an archive.

    Without --stage, lists the stages, the schedule rule of each kernel with its choices, and why other rules declined
    it. With several targets, also shows where each node is placed, and why. With --html, also runs the model for about
    a second and times its kernels. With --training, all of this is shown of a training step, but for times; --stage
    memory shows the bytes that are live at each of its kernels, and what is computed again.
    """
    from weft.cli.opening import is_archive, not_of_archives

    if html_file is not None and (stage, kernel, region) != (None, None, None):
        raise InputError("--html shows every stage, kernel and region", hint="leave out --stage, --kernel and --region")
    require_writable([("--html", html_file)], files_of(model, frontend))
    if is_archive(model):
        if html_file is not None:
            raise InputError(
                f"{model} is compiled already, without what led there", hint="give the model that it was compiled from"
            )
        given = {"--target": target, "--frontend": frontend, "--input-shape": input_shape, "--kernel": kernel}
        not_of_archives(model, **given, **{"--region": region, "--records": records, "--training": training})
        inspect_archive(model, stage)
        return
    from weft.cli.terminal import Progress
    from weft.loading import load
    from weft.pipeline import has_steps, mixed, specialize
    from weft.resolve import resolve_targets, warn_if_unused

    for option, value in (("--optimizer", optimizer), ("--memory", memory), ("--precision", precision)):
        if training is None and value is not None:
            raise InputError(f"{option} is for training steps", hint="--training names the loss")
    # The target first: a misspelt one should not wait for a large model.
    resolved = resolve_targets(target or "llvm", records=records)
    with Progress("inspecting") as progress:
        progress.show(f"loading {model}")
        graph = load(model, frontend=frontend)
        sizes = shapes(input_shape)
        graph = specialize(graph, sizes) if sizes else graph
        if training is not None:
            graph = training_step(graph, training, optimizer, memory, precision)
        several = mixed(resolved) or has_steps(graph)
        if several:
            from weft_testing.cli.placement import inspect_placed, print_placed

            placed = inspect_placed(graph, resolved, stage, kernel, region, progress.on_stage)
        elif region is not None:
            raise InputError(
                f"there is no region '{region}'",
                why=f"'{resolved[0].target.kind}' computes the whole model on the host's processor",
            )
        else:
            inspection = inspect_graph(graph, resolved[0], stage, kernel, progress.on_stage)
            require_kernel([inspection], kernel)
    if stage in (None, "schedule", RECORDS):  # all kernels are known by then
        warn_if_unused(resolved)
    if html_file is not None:
        from weft_testing.bench.inspect_page import make_page

        regions = placed.regions if several else {"": inspection}
        shown = Inspected(
            model,
            target or "llvm",
            resolved,
            frontend,
            sizes,
            graph,
            regions,
            placed if several else None,
            training is not None,
        )
        text, unmeasured = make_page(shown)
        write(html_file, text)
        say(f"{html_file}: {graph.name}" + (f"; no times: {unmeasured}" if unmeasured is not None else ""))
    elif several:
        print_placed(placed, stage, region)
    elif stage is None:
        print_summary(inspection)
    else:
        say(inspection.text)


@dataclass
class Inspection:
    """What was found: everything where no stage was asked for, else the text of that stage, empty if it has none for
    the kernel that was asked for."""

    compilation: Compilation
    graph: Graph
    grouped: Graph | None = None
    plan: MemoryPlan | None = None
    kernel_of: dict[int, str] = field(default_factory=dict)  # by the group's number in `grouped`
    text: str = ""
    records: list[Record] = field(default_factory=list)

    @property
    def uses(self) -> Counter[str]:
        """How many groups a kernel computes."""
        return Counter(self.kernel_of.values())


@dataclass(frozen=True)
class Inspected:
    """What a page shows: the command's arguments and what was found.

    `graph` is the result of the frontend; `regions` what each target does with its part, by name: one, called "", where
    one target computes everything.
    """

    model: str
    target: str
    resolved: Sequence[ResolvedTarget]
    frontend: str | None
    sizes: Mapping[str, Sequence[int]]
    graph: Graph
    regions: Mapping[str, Inspection]
    placed: Placed | None
    training: bool = False


def training_step(graph: Graph, loss: str, optimizer: str | None, memory: str | None, precision: str | None) -> Graph:
    """The graph of the step that trains a model, whose nodes have the names of their parts.

    Raises:
        InputError: there is no loss, optimiser, budget or precision of that name.
        PluginError: weft-training is not installed.
    """
    from weft import training

    optimizers = {"sgd": training.SGD, "adamw": training.AdamW, "adagrad": training.Adagrad}
    if (optimizer or "sgd") not in optimizers:
        raise unknown("optimizer", str(optimizer), list(optimizers))
    chosen = optimizers[optimizer or "sgd"]()
    planned = training.plan_training(graph, loss, chosen, memory=memory or "cut", precision=precision)
    labelled: Graph = planned.labelled()
    return labelled


def inspect_graph(
    graph: Graph, resolved: ResolvedTarget, stage: str | None, kernel: str | None, on_stage: OnStage | None = None
) -> Inspection:
    """Runs a compilation up to `stage`; up to the schedules if it is None.

    Raises:
        InputError: no such stage.
    """
    from weft.compilation import Compilation
    from weft.passes.plan_memory import plan_memory
    from weft.records import Record, graph_key

    compilation = Compilation(resolved, cache=False, keep_graphs=True, on_stage=on_stage)
    compilation.graphs["load"] = graph
    found = Inspection(compilation, graph)
    known = stages(resolved)
    if stage is not None and stage not in known:
        raise unknown("stage", stage, known)
    if stage == "load":
        found.text = str(graph)
        return found
    before = graph_key(graph) if stage == RECORDS else ""
    grouped = found.grouped = compilation.optimize(graph)
    if stage in compilation.graphs:
        found.text = str(compilation.graphs[stage])
        return found
    found.plan = plan_memory(grouped, alignment=resolved.machine.alignment())
    if stage in ("plan", MEMORY):
        found.text = plan_text(found.plan) if stage == "plan" else memory_text(found)
        return found
    if compilation.choices and stage == RECORDS and kernel is None:
        values = {c.name: c.value for c in compilation.choices}
        found.records.append(Record("graph", before, resolved.machine_key, values))
    kernels = _kernels(compilation, grouped, found.kernel_of)
    _inspect_kernels(found, resolved, stage, kernels if stage is None else select_kernels(kernels, kernel))
    return found


def _inspect_kernels(found: Inspection, resolved: ResolvedTarget, stage: str | None, kernels: Sequence[Kernel]) -> None:
    """Takes kernels up to `stage`, or to their schedules if it is None; adds their texts or records to `found`."""
    from weft.codegen.base import SourceCodegen
    from weft.loop.pipeline import ordered
    from weft.records import Records

    texts = []
    loop_stages = ordered(resolved.loop_passes())
    codegen = resolved.codegen() if stage in (SOURCE, *(s.name for s in loop_stages)) else None
    if stage == SOURCE and not isinstance(codegen, SourceCodegen):
        raise InputError(
            f"target '{resolved.target.kind}' shows no source",
            why="it makes code from no text",
            hint=f"the stage before is '{loop_stages[-1].name}'",
        )
    for k in kernels:
        if stage == "lower_group":
            texts.append(str(k.naive))
            continue
        found.compilation.schedule(k)
        assert k.scheduled is not None
        if stage == RECORDS:
            found.records += _records_of(k, resolved.machine_key)
            continue
        if codegen is None:
            texts.append(schedule_text(k))
            continue
        program = k.scheduled
        for step in loop_stages:
            program = step.run(program, codegen.functions)
            if step.name == stage:
                break
        texts.append(
            codegen.source(resolved.taken(program))
            if stage == SOURCE and isinstance(codegen, SourceCodegen)
            else str(program)
        )
    found.text = "\n\n".join(t.rstrip() for t in texts) if stage != RECORDS else Records(tuple(found.records)).to_json()


def _records_of(kernel: Kernel, machine: str) -> list[Record]:
    """The choices of a scheduled kernel, and those of what it was lowered from."""
    from weft.records import Record, group_key, program_key

    found = [Record("program", program_key(kernel.naive), machine, {c.name: c.value for c in kernel.choices})]
    if kernel.algorithms and kernel.body is not None:
        values = {c.name: c.value for c in kernel.algorithms}
        found.append(Record("graph", group_key(kernel.body), machine, values))
    return found


def stages(resolved: ResolvedTarget) -> list[str]:
    """Of a compilation for one target, in order, those of plugins among them."""
    from weft.loop.pipeline import ordered
    from weft.passes.pipeline import pass_names

    loop_stages = [s.name for s in ordered(resolved.loop_passes())]
    return [
        "load",
        *pass_names(resolved.graph_passes()),
        "lower_group",
        "schedule",
        RECORDS,
        *loop_stages,
        SOURCE,
        "plan",
        MEMORY,
    ]


def _kernels(compilation: Compilation, grouped: Graph, kernel_of: dict[int, str]) -> list[Kernel]:
    """Every distinct kernel, lowered to its naive program; `kernel_of` gets the name of each group's."""
    from weft.compilation import Kernel, kernel_name
    from weft.graph.group import Group, kernel_text
    from weft.graph.whole_sizes import whole_sizes
    from weft.kernel_cache import KernelCache

    store = KernelCache(compilation.target.fingerprint, enabled=False)
    by_text: dict[str, str] = {}
    for number, node in enumerate(grouped.nodes):
        if not isinstance(node.op, Group) or node.op.view:
            continue
        body, _ = whole_sizes(node.op.body)
        text = kernel_text(body)
        if text not in by_text:
            naive, algorithms = compilation.lower(body)
            by_text[text] = name = kernel_name(node, store.key(naive, compilation.record_of(naive)))
            compilation.kernels.setdefault(
                name, Kernel(name, replace(naive, name=name), algorithms=algorithms, body=body)
            )
        kernel_of[number] = by_text[text]
    return list(compilation.kernels.values())


def select_kernels(kernels: Sequence[Kernel], wanted: str | None) -> list[Kernel]:
    """Those whose name is, or else holds, `wanted`."""
    if wanted is None:
        return list(kernels)
    return [k for k in kernels if k.name == wanted] or [k for k in kernels if wanted in k.name]


def require_kernel(inspections: Sequence[Inspection], wanted: str | None) -> None:
    """Raises InputError if none of them has a kernel of that name; nothing if kernels were not looked at."""
    kernels = [k for i in inspections for k in i.compilation.kernels.values()]
    if kernels and not select_kernels(kernels, wanted):
        raise unknown("kernel", str(wanted), [k.name for k in kernels])


def unknown(what: str, name: str, known: Sequence[str]) -> InputError:
    close = nearest(name, known)
    return InputError(
        f"there is no {what} '{name}'",
        where=f"{what}s: {', '.join(known)}",
        hint=f"did you mean '{close}'?" if close else None,
    )


def schedule_text(kernel: Kernel) -> str:
    """The rule, what others declined with, the steps and the scheduled program, as text that parses back."""
    lines = [f"# rule: {kernel.rule}"]
    lines += [f"# declined: {name}: {reason}" for name, reason in kernel.declines]
    lines += [f"# choice: {c}" for c in (*kernel.algorithms, *kernel.choices)]
    lines += [f"# not followed: {kernel.record}: {kernel.refused}"] if kernel.refused else []
    lines += [f"# step: {' '.join(str(step).split())}" for step in kernel.trace]
    return "\n".join([*lines, str(kernel.scheduled)])


def plan_text(plan: MemoryPlan) -> str:
    """The memory plan, for people."""
    lines = [f"arena {plan.arena_bytes} bytes, at least {plan.lower_bound} are live at once"]
    for name, offset in plan.offsets.items():
        first, last = plan.lifetimes.get(name, ("?", "?"))
        lines.append(f"%{name}: {plan.sizes[name]} bytes at {offset}, nodes {first} to {last}")
    for name, of in plan.aliases.items():
        lines.append(f"%{name}: {'written over' if name in plan.in_place else 'a view of'} %{of}")
    return "\n".join(lines)


def print_summary(found: Inspection) -> None:
    """Tables of stages and kernels."""
    from weft.cli.terminal import brief, print_table
    from weft.cli.terminal import seconds as shown
    from weft.codegen.base import SourceCodegen
    from weft.loop.pipeline import ordered
    from weft.passes.pipeline import ordered as ordered_passes

    compilation, plan = found.compilation, found.plan
    assert plan is not None
    invariants = {p.name: p.invariant for p in ordered_passes(compilation.target.graph_passes())}
    spent = {name: shown(value) for name, value in compilation.seconds.items()}
    invariants["load"] = "the result of the frontend"
    rows = [
        (name, f"{len(g.nodes)} nodes", spent.get(name, ""), invariants.get(name, ""))
        for name, g in compilation.graphs.items()
    ]
    per_kernel = f"{len(compilation.kernels)} kernels"
    rows.append(("lower_group", per_kernel, spent.get("lower_group", ""), "naive programs"))
    rows.append(("schedule", per_kernel, spent.get("schedule", ""), "same meaning, by the target's best rule"))
    rows += [(s.name, "", "", s.after) for s in ordered(compilation.target.loop_passes())]
    if isinstance(compilation.target.codegen(), SourceCodegen):
        rows.append((SOURCE, "", "", "the text that is compiled to code"))
    rows.append(("plan", f"{len(plan.offsets)} values", "", f"an arena of {plan.arena_bytes} bytes"))
    steps = moments(found, {})
    peak = None if steps is None else peak_of(steps)
    if steps is not None and peak is not None:
        said = f"at most {peak.live} bytes are live at once, at step {peak.number}"
        rows.append((MEMORY, f"{len(steps)} steps", "", said))
    print_table(
        f"{found.graph.name} for {brief(str(compilation.target.target))}",
        ["stage", "size", "time", "after it"],
        rows,
        right=(2,),
    )
    if steps is not None and (parts := phase_rows(steps)):
        print_table(
            "memory over the training step", ["part", "steps", "live at most", "results"], parts, right=(1, 2, 3)
        )
    print_table("kernels", ["kernel", "groups", "rule", "declined"], kernel_rows(found), right=(1,))
    print_choices(choice_rows(found))
    say("print a stage with --stage NAME, of one kernel with --kernel NAME")


def kernel_rows(found: Inspection) -> list[tuple[str, str, str, str]]:
    """Name, number of groups, rule and declines of every kernel."""
    return [
        (
            k.name,
            str(found.uses[k.name]),
            k.rule,
            "\n".join(f"{name}: {reason}" for name, reason in k.declines) or "none",
        )
        for k in found.compilation.kernels.values()
    ]


def choice_rows(found: Inspection) -> list[tuple[str, str, str, str, str]]:
    """Kernel, choice, value, default and where the value is from, of every choice that has options; the reason, of a
    record that is not followed."""

    def row(of: str, c: Choice) -> tuple[str, str, str, str, str]:
        return of, c.name, str(c.value), str(c.default), "record" if c.recorded else "default"

    one = found.compilation
    rows = [row("the graph", c) for c in one.choices if c.recorded]
    others = len(one.choices) - len(rows)
    rows += [("the graph", f"{others} more: --stage {RECORDS}", "", "", "default")] if others else []
    rows += [("the graph", "", "", "", f"record not followed: {one.refused}")] if one.refused else []
    for k in one.kernels.values():
        rows += [row(k.name, c) for c in (*k.algorithms, *k.choices) if len(c.options) > 1]
        rows += [(k.name, "", "", "", f"record not followed: {k.refused}")] if k.refused else []
    return rows


def print_choices(rows: Sequence[tuple[str, ...]], heads: Sequence[str] = ()) -> None:
    """A table of `choice_rows`; nothing without choices."""
    from weft.cli.terminal import print_table

    if rows:
        print_table("choices", [*heads, "kernel", "choice", "value", "default", "from"], rows)
