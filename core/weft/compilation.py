"""One compilation: a graph through every stage, with a record of each for `weft inspect`."""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.assemble import Assembly, KernelUse, assemble
from weft.choices import Choice, Choices, require_made
from weft.codegen.base import Codegen, KernelCode, require
from weft.codegen.profile import profiled
from weft.dtypes import DType
from weft.errors import (
    ChoiceError,
    CodegenError,
    LoopError,
    LoweringError,
    ScheduleError,
    ScheduleWarning,
    SettingError,
    UnsupportedError,
    WeftError,
    nearest,
    shown,
)
from weft.expr.nodes import Expr, substitute
from weft.graph.assumptions import assumptions, limits
from weft.graph.group import Group, kernel_text
from weft.graph.inferred import Assumption
from weft.graph.nodes import Graph, Node, OptionalType, SequenceType, TensorType, Type
from weft.graph.rewrite import copy_graph, mentioned_symbols
from weft.graph.whole_sizes import whole_sizes
from weft.hooks import StageReport
from weft.kernel_cache import KernelCache
from weft.log import logger
from weft.loop.nodes import Program
from weft.loop.pipeline import lower_program, ordered
from weft.lower.algorithms import choose_group_algorithms
from weft.lower.lower import lower_group
from weft.passes.fold_constants import Budget
from weft.passes.own_outputs import own_outputs
from weft.passes.pipeline import GraphPass, pass_names, run_passes
from weft.passes.plan_memory import MemoryPlan, plan_memory
from weft.plugins import host
from weft.records import Record, said
from weft.scheduling.run_rules import Scheduled, run_recorded, run_rules
from weft.weights import Weights, release_pages
from weft_runtime.executable import Executable, NativeCode
from weft_runtime.files import obstacle_of_folder
from weft_runtime.plan import Native, ObjectInfo, TensorInfo

if TYPE_CHECKING:
    from weft.hooks import OnStage
    from weft.resolve import ResolvedTarget


OF_KERNELS = ("lower_group", "schedule", "lower_program")
"""Stages that every kernel goes through."""


def check_dump(targets: Sequence[ResolvedTarget], extra: Sequence[GraphPass]) -> None:
    """That WEFT_DUMP names stages that a compilation for these targets has.

    Raises:
        SettingError: it does not; lists them.
    """
    wanted = set(settings.DUMP.get()) - {"all"}
    if not wanted:
        return
    known = list(OF_KERNELS)
    for target in targets:
        known += [*pass_names([*target.graph_passes(), *extra]), *(s.name for s in ordered(target.loop_passes()))]
    for name in sorted(wanted.difference(known)):
        close = nearest(name, known)
        hint = f"did you mean '{close}'? " if close else ""
        stages = ", ".join(dict.fromkeys(known))
        raise SettingError(
            f"{settings.DUMP.name} names '{name}', which is no stage with a text",
            hint=f"{hint}stages: {stages}, or all",
        )


@dataclass
class Kernel:
    """One distinct kernel of a compilation, with every stage it went through."""

    name: str
    naive: Program
    rule: str = ""
    declines: tuple[tuple[str, str], ...] = ()
    choices: tuple[Choice, ...] = ()
    """Of its schedule; `algorithms` are those of its operators, which precede it."""
    algorithms: tuple[Choice, ...] = ()
    body: Graph | None = None
    """What it was lowered from."""
    record: Record | None = None
    refused: str = ""
    """Why `record` is not followed; empty if it is."""
    trace: Any = None
    scheduled: Program | None = None
    lowered: Program | None = None
    code: KernelCode | None = None
    cached: bool = False
    renamed: bool = False
    """It serves groups whose symbols have other names than its own, too: its launches may be of different sizes."""

    def compiled(self) -> KernelCode:
        """Its code, once it is there."""
        assert self.code is not None, self.name
        return self.code


@dataclass
class Prepared:
    """A graph after all graph passes, with what it assumes of its inputs' sizes, the ids of constants that passes have
    made, and its constants once they are packed."""

    graph: Graph
    assumed: Sequence[Assumption]
    made: frozenset[int]
    weights: Weights | None = None


@dataclass
class Compilation:
    """A compilation in progress and, after `run`, its record for `weft inspect`.

    `budget`: what constant folding may, where the graph is a part of what is compiled; None: what its own constants
    allow. `profile`: the executable has one more output, `weft.codegen.profile.PROFILE`.
    """

    target: ResolvedTarget
    extra: Sequence[GraphPass] = ()
    on_stage: OnStage | None = None
    cache: bool = True
    budget: Budget | None = None
    graphs: dict[str, Graph] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    plan: MemoryPlan | None = None
    assembly: Assembly | None = None
    made: frozenset[int] = frozenset()
    choices: tuple[Choice, ...] = ()
    """Of the graph's passes; of kernels see `kernels`."""
    refused: str = ""
    """Why the graph's record is not followed; empty if it is, or there is none."""
    keep_graphs: bool = False
    check: bool = False
    profile: bool = False
    dumped: int = 0
    _keys: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict, repr=False)
    """Text of a group's body → key of its kernel, and the symbols of the first such body, by whose names the kernel has
    them."""
    _by_key: dict[str, Kernel] = field(default_factory=dict, repr=False)

    @contextmanager
    def stage(self, name: str, subject: str = "", result: Callable[[], Any] | None = None) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.report(name, subject, time.perf_counter() - started, result() if result else None)

    def report(self, name: str, subject: str, seconds: float, result: Any = None) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.dump(name, subject, result)
        logger.log(
            logging.DEBUG if name in OF_KERNELS else logging.INFO,
            "%s %s: %.2f ms",
            name,
            shown(subject, 100),
            seconds * 1e3,
        )
        report = StageReport(name, subject, seconds, result)
        if self.on_stage is not None:
            self.on_stage(report)
        host().call("stage_done", stage=report)

    def dump(self, stage: str, subject: str, result: Any) -> None:
        """Writes the text of a stage's result to WEFT_DUMP_DIR, if WEFT_DUMP names the stage (or is "all")."""
        wanted = settings.DUMP.get()
        if result is None or not wanted or (stage not in wanted and "all" not in wanted):
            return
        folder = settings.DUMP_DIR.get()
        self.dumped += 1
        words = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{self.dumped:04}-{stage}-{subject}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{words[:120]}.txt").write_text(f"{result}\n", encoding="utf-8")
        except OSError as error:
            why = obstacle_of_folder(folder) or error.strerror or str(error)
            raise SettingError(
                f"{settings.DUMP_DIR.name} is '{folder}', where stages cannot be written",
                why=why,
                hint="name another folder",
            ) from None

    def run(self, graph: Graph) -> Executable:
        """A verified graph through every stage."""
        with without_collector():
            return self._run(graph)

    def run_prepared(self, prepared: Prepared) -> Executable:
        """A graph that `prepare` has taken through its passes, through the other stages. It is as it was afterwards: it
        may be compiled again, with other records of kernels."""
        with without_collector():
            return self._built(prepared.graph.name, self._segment(prepared))

    def _run(self, graph: Graph) -> Executable:
        return self._built(graph.name, self.segment(graph))

    def _built(self, name: str, segment: Segment) -> Executable:
        spec = segment.assembly.spec
        return Executable.build(
            name=name,
            target=self.target.description,
            inputs=[tensor_info(t.name, t.dtype, t.dims) for t in spec.inputs],
            outputs=[tensor_info(t.name, t.dtype, t.dims) for t in spec.outputs],
            code=segment.sections,
            steps=[
                segment.step(
                    "main", [t.name for t in spec.inputs], [t.name for t in spec.outputs], list(segment.constants)
                )
            ],
            constants=segment.constants,
            arena=str(spec.arena_bytes),
            threads=self.target.threads,
            weft=host().api_version,
        )

    def segment(self, graph: Graph) -> Segment:
        """A verified graph through every stage but the last, as one native segment."""
        return self._segment(self.prepare(graph))

    def prepare(self, graph: Graph) -> Prepared:
        """A verified graph through all graph passes."""
        assumed = assumptions(graph)
        grouped = self.optimize(graph)
        return Prepared(grouped, (*assumed, *limits(grouped)), self.made)

    def _segment(self, prepared: Prepared) -> Segment:
        grouped = prepared.graph
        if prepared.weights is None:
            prepared.weights = Weights(grouped.constants(), prepared.made)
        with prepared.weights as weights:
            uses = self.compile_kernels(grouped)
            with self.stage("assemble", grouped.name):
                self.assembly = assemble(grouped, self.memory(grouped, uses), uses, assumptions=prepared.assumed)
                if self.profile:
                    self.assembly.spec = profiled(self.assembly.spec)
            with self.stage("link", grouped.name):
                objects = {name: self.kernels[name].compiled() for name in self.assembly.spec.kernels()}
                with self.target.blame("to link its kernels"):
                    sections = self.target.kind.link(self.target.target, self.assembly.spec, objects)
            return Segment(self.assembly, sections, {v.name: weights[v] for v in self.assembly.constants})

    @contextmanager
    def kernels_and_weights(self, grouped: Graph) -> Iterator[tuple[dict[int, KernelUse], Weights]]:
        """The kernel of every group, while weights are being packed."""
        with Weights(grouped.constants(), self.made) as weights:
            yield self.compile_kernels(grouped), weights

    def memory(self, grouped: Graph, uses: Mapping[int, KernelUse]) -> MemoryPlan:
        with self.stage("plan_memory", grouped.name):
            scratch = {n.outputs[0].name: uses[id(n)].scratch for n in grouped.nodes if id(n) in uses}
            machine = self.target.machine
            self.plan = plan_memory(
                grouped, scratch=scratch, threads=self.target.threads or machine.cores, alignment=machine.alignment()
            )
        return self.plan

    def optimize(self, graph: Graph) -> Graph:
        """The graph after all graph passes: groups only."""

        def on_pass(name: str, result: Graph, seconds: float) -> None:
            if self.keep_graphs:
                self.graphs[name] = result
            self.report(name, graph.name, seconds, result)

        grouped = own_outputs(self._passed(graph, on_pass))
        self.graphs["fuse"] = grouped
        constants = [v.constant for v in graph.constants()]
        for data in constants:
            if data is not None:
                release_pages(data)  # what passes read of it; what they made of it is another constant
        known = {id(data) for data in constants}
        self.made = frozenset(id(v) for v in grouped.constants() if id(v.constant) not in known)
        # The graphs between: values and nodes refer to each other, and hold weights of every pass. What was there
        # before stays unvisited, however much it is.
        gc.collect(0)
        return grouped

    def _passed(self, graph: Graph, on_pass: Callable[[str, Graph, float], None]) -> Graph:
        """The graph after all passes, which follow its record if there is one that they can follow."""
        passes = [*self.target.graph_passes(), *self.extra]
        record = self._applied(self.target.records.of_graph(graph, self.target.machine_key))
        if record is not None:
            choices = Choices(record.choices, f"graph '{graph.name}'")
            # What a refused attempt changes, and what it folds, is not counted.
            given, budget = copy_graph(graph), copy(self.budget)
            try:
                grouped = run_passes(
                    given, self.target.capabilities, passes, on_pass, self.check, budget=budget, choices=choices
                )
                require_made(record.choices, choices.made, "the graph")
            except ChoiceError as error:
                self.refused = said(error)
                self._refused(f"graph '{graph.name}'", record, self.refused)
            else:
                self.choices = tuple(choices.made.values())
                if self.budget is not None and budget is not None:  # other regions have the same one
                    self.budget.made, self.budget.work = budget.made, budget.work
                return grouped
        choices = Choices()
        grouped = run_passes(
            graph, self.target.capabilities, passes, on_pass, self.check, budget=self.budget, choices=choices
        )
        self.choices = tuple(choices.made.values())
        return grouped

    # -- kernels
    def compile_kernels(self, graph: Graph) -> dict[int, KernelUse]:
        """Compiles every distinct group once; id(node) → its kernel."""
        codegen = self.target.codegen()
        store = KernelCache(self.target.fingerprint, enabled=self.cache)
        names: dict[int, str] = {}
        pending: dict[str, Future[KernelCode]] = {}
        for node in graph.nodes:
            if not isinstance(node.op, Group):
                raise LoweringError(
                    f"{node.op.operator_name} is not compiled for '{self.target.target.kind}'", where=_place(node)
                )
            if node.op.view:
                continue
            key, kernel = self._kernel(node, store)
            if kernel.code is None and key not in pending:
                pending[key] = self._start(codegen, kernel)
            names[id(node)] = kernel.name
        with self.stage("codegen", graph.name):
            for key, future in pending.items():
                kernel = self._by_key[key]
                with self.target.blame(f"to compile kernel '{kernel.name}'"):
                    kernel.code = future.result()
                if (
                    not kernel.refused
                ):  # its key says that it follows the record, and whoever found it there would not be warned
                    store.put(key, kernel.code)
        uses = {}
        for node in graph.nodes:
            if id(node) in names:
                kernel = self.kernels[names[id(node)]]
                symbols = self.symbols_of(node)
                dims = tuple(symbols[d.name] for d in kernel.naive.dims)
                uses[id(node)] = KernelUse(
                    kernel.name, dims, tuple(substitute(size, symbols) for size in kernel.compiled().scratch)
                )
        return uses

    def lower(self, body: Graph) -> tuple[Program, tuple[Choice, ...]]:
        """The naive program of a group, called "kernel", and the choices of its operators' algorithms."""
        started = time.perf_counter()
        record = self._applied(self.target.records.of_group(body, self.target.machine_key))
        choices = Choices({} if record is None else record.choices)
        try:
            algorithms = choose_group_algorithms(body, choices)
            require_made(choices.recorded, choices.made, "the group")
        except ChoiceError as error:
            assert record is not None  # without one there is nothing to refuse
            self._refused(f"group '{body.name}'", record, said(error))
            choices = Choices()
            algorithms = choose_group_algorithms(body, choices)
        naive = lower_group(body, "kernel", algorithms)
        self.report("lower_group", body.name, time.perf_counter() - started, naive)
        return naive, tuple(choices.made.values())

    def _kernel(self, node: Node, store: KernelCache) -> tuple[str, Kernel]:
        """The kernel of a group, with its code where the cache has it, and its key."""
        assert isinstance(node.op, Group)
        # Layers repeat: a body's text is far cheaper to make than its program, and equal texts give equal programs.
        body, _ = whole_sizes(node.op.body)
        text = kernel_text(body)
        key, _ = self._keys.get(text, ("", ()))
        if not key:
            naive, algorithms = self.lower(body)
            key = store.key(naive, self.record_of(naive))
            self._keys[text] = key, tuple(mentioned_symbols(body))
            if key not in self._by_key:
                kernel = Kernel(kernel_name(node, key), naive, algorithms=algorithms, body=body)
                self._by_key[key] = self.kernels[kernel.name] = kernel
                kernel.code = store.get(key, kernel.name)
                kernel.cached = kernel.code is not None
        kernel = self._by_key[key]
        kernel.renamed |= self._keys[text][1] != tuple(mentioned_symbols(body))
        return key, kernel

    def symbols_of(self, node: Node) -> dict[str, Expr]:
        """The symbols of a compiled group by the names that its kernel has for them: groups that differ in names of
        symbols only are one kernel."""
        assert isinstance(node.op, Group)
        body, formulas = whole_sizes(node.op.body)
        _, own = self._keys[kernel_text(body)]
        return dict(zip(own, formulas.values(), strict=True))

    def uncompilable(self, graph: Graph) -> dict[int, WeftError]:
        """Of a graph of groups, those whose kernels cannot be scheduled, or whose schedules the code generator cannot
        compile: number of the node → why.

        What is found out is kept: `compile_kernels` does not do it again.
        """
        codegen, store = self.target.codegen(), KernelCache(self.target.fingerprint, enabled=self.cache)
        found: dict[int, WeftError] = {}
        known: dict[str, WeftError] = {}
        for number, node in enumerate(graph.nodes):
            if not isinstance(node.op, Group) or node.op.view:
                continue
            key = ""
            try:
                key, kernel = self._kernel(node, store)
                if key not in known and kernel.code is None:
                    self._ready(codegen, kernel)
            except (ScheduleError, LoopError, LoweringError, CodegenError, UnsupportedError) as error:
                known[key] = error
            if key in known:
                found[number] = known[key]
        return found

    def _start(self, codegen: Codegen, kernel: Kernel) -> Future[KernelCode]:
        lowered = self._ready(codegen, kernel)
        with self.target.blame(f"to compile kernel '{kernel.name}'"):
            return codegen.submit(self.target.taken(lowered))

    def _ready(self, codegen: Codegen, kernel: Kernel) -> Program:
        """A kernel's program as the code generator takes it, made once."""
        if kernel.lowered is not None:
            return kernel.lowered
        self.schedule(kernel)
        assert kernel.scheduled is not None
        with self.stage("lower_program", kernel.name, lambda: kernel.lowered):
            extra = self.target.loop_passes()
            kernel.lowered = lowered = lower_program(
                kernel.scheduled, codegen.functions, lambda name, p: self.dump(name, kernel.name, p), extra
            )
        with self.target.blame(f"to compile kernel '{kernel.name}'"):
            try:
                require(codegen, lowered, str(self.target.target))
            except CodegenError:
                kernel.lowered = None
                raise
        return lowered

    def schedule(self, kernel: Kernel) -> None:
        """Schedules a kernel's naive program by the target's best rule; the kernel keeps the rule, what others declined
        with, and the result."""
        named = Program(
            kernel.name,
            kernel.naive.inputs,
            kernel.naive.outputs,
            kernel.naive.dims,
            kernel.naive.body,
            kernel.naive.aliases,
        )
        rules, machine, intrinsics, exceeds = (
            self.target.rules,
            self.target.machine,
            self.target.intrinsics,
            self.target.exceeds,
        )
        done: Scheduled | None = None
        schedule = self.stage("schedule", kernel.name, lambda: None if done is None else done.schedule.program)
        with schedule, self.target.blame(f"to schedule kernel '{kernel.name}'"):
            kernel.record = self.record_of(kernel.naive)
            if kernel.record is not None:
                try:
                    done = run_recorded(rules, named, machine, intrinsics, exceeds, kernel.record.choices)
                except ChoiceError as error:
                    kernel.refused = said(error)
            try:
                done = done or run_rules(rules, named, machine, intrinsics, exceeds)
            except ScheduleError as error:
                error.hint = error.hint or f"the rules are those of {self.target.plugin}"
                raise
        if kernel.record is not None and kernel.refused:
            self._refused(f"kernel '{kernel.name}'", kernel.record, kernel.refused)
        if done.failed:
            text = (
                f"kernel '{kernel.name}' was left to rule '{done.rule.name}', which may be slow:"
                f" {'; '.join(done.failed)}"
            )
            warnings.warn(text, ScheduleWarning, stacklevel=2)
        kernel.rule, kernel.trace, kernel.scheduled = done.rule.name, done.schedule.trace, done.schedule.program
        kernel.declines, kernel.choices = done.declines, done.choices

    def _refused(self, what: str, record: Record, reason: str) -> None:
        self.target.refused.append(record)
        warnings.warn(f"{what} does not follow {record}: {reason}", ScheduleWarning, stacklevel=3)

    def record_of(self, naive: Program) -> Record | None:
        """The record of a kernel, by its naive program."""
        return self._applied(self.target.records.of_program(naive, self.target.machine_key))

    def _applied(self, record: Record | None) -> Record | None:
        if record is not None:
            self.target.applied.add(record)
        return record


@dataclass(frozen=True)
class Segment:
    """A native segment: what it does, its code, and its constants in the order of its table."""

    assembly: Assembly
    sections: Mapping[str, NativeCode]
    constants: Mapping[str, Any]

    def step(self, section: str, inputs: Sequence[str], outputs: Sequence[str], constants: Sequence[str]) -> Native:
        """The step that calls it, of a plan where its values and constants have these names."""
        items = tuple(str(getattr(i, "kernel", type(i).__name__)) for i in self.assembly.spec.items)
        return Native(
            section,
            "run",
            items,
            tuple(inputs),
            tuple(outputs),
            tuple(constants),
            self.assembly.checks,
            self.assembly.overwrites,
        )


def tensor_info(name: str, dtype: DType, dims: Sequence[Expr | int]) -> TensorInfo:
    """A value as a manifest has it."""
    return TensorInfo(name, dtype.name, tuple(_dim(d) for d in dims))


def value_info(name: str, type: Type) -> TensorInfo:
    """A value of any type as a manifest has it."""
    if isinstance(type, TensorType):
        return tensor_info(name, type.dtype, type.shape)
    within: list[str] = []
    while isinstance(type, (SequenceType, OptionalType)):
        within.append("sequence" if isinstance(type, SequenceType) else "optional")
        type = type.element
    return ObjectInfo(name, type.dtype.name, (), tuple(within), type.rank)


@contextmanager
def without_collector() -> Iterator[None]:
    """No search for cyclic garbage meanwhile: immutable trees have no cycles, and going through millions of their nodes
    takes a fifth of a compilation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _dim(d: Expr | int) -> int | str:
    if isinstance(d, int):
        return d
    value = getattr(d, "value", None)
    return int(value) if isinstance(value, int) else str(d)


def _place(node: Node) -> str:
    return f"{node}" + (f"  # {', '.join(sorted(node.names))}" if node.names else "")


def kernel_name(node: Node, key: str) -> str:
    """A readable name, distinct by content: operators of the group, then the start of its key."""
    assert isinstance(node.op, Group)
    words = [n.op.operator_name.lower() for n in node.op.body.nodes]
    return "_".join(dict.fromkeys(words[:4])) + "_" + key[:10]
