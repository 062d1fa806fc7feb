"""The pipeline: model → graph → groups → programs → code → executable. Reads as the list of its steps.

    load                 a frontend reads the model                       Graph, verified
    specialize           `input_shapes` replace symbols                   Graph
    run_passes           optimise, lay out, fuse                          every node is a Group
    plan_memory          offsets in one arena                             MemoryPlan
    lower_group          per distinct group: a naive Program              verified Program
    schedule             the target's best rule rewrites it               same meaning
    lower_program        loop passes                                      what codegen takes
    codegen              compiled in worker processes, cached on disk     KernelCode
    assemble, link       one native segment                               Executable
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.assemble import Assembly, KernelUse, assemble
from weft.codegen.base import Codegen, KernelCode, require
from weft.errors import FrontendError, InputError, LoweringError, ScheduleError, TargetError, nearest
from weft.expr.nodes import Expr, Var
from weft.graph.group import Group, kernel_text
from weft.graph.nodes import Graph, Node
from weft.graph.rewrite import substitute_symbols
from weft.graph.verify import verify
from weft.hooks import Frontend, StageReport
from weft.kernel_cache import KernelCache
from weft.loop.nodes import Program
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.passes.capabilities import Capabilities
from weft.passes.own_outputs import own_outputs
from weft.passes.pipeline import GraphPass, run_passes
from weft.passes.plan_memory import MemoryPlan, plan_memory
from weft.plugins import KNOWN_FRONTENDS, KNOWN_TARGETS, Contribution, PluginHost, host
from weft.runtime.cache import Cache
from weft.runtime.executable import Executable, NativeCode
from weft.runtime.plan import Native, TensorInfo
from weft.scheduling.rule import Rule, select_rule
from weft.scheduling.schedule import Schedule
from weft.target import Target, TargetKind, parse_targets

OnStage = Callable[[StageReport], None]


# -- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with everything that the pipeline asks of its plugin."""

    target: Target
    kind: TargetKind
    machine: Machine
    capabilities: Capabilities
    rules: tuple[Rule, ...]
    fingerprint: str
    threads: int | None  # that the target string asked for; None: as many as the process may use, wherever it runs


def target_kinds(plugins: PluginHost | None = None) -> dict[str, TargetKind]:
    """Every kind of target that installed plugins offer, by name."""
    return {name: offer.value for name, offer in _offered_kinds(plugins or host()).items()}


def _offered_kinds(plugins: PluginHost, wanted: str | None = None) -> dict[str, Contribution]:
    found: dict[str, Contribution] = {}
    for item in plugins.items("targets", required=wanted):
        twin = found.setdefault(item.value.name, item)
        if twin is not item:
            raise TargetError(
                f"two plugins offer the target '{item.value.name}': {twin.plugin.distribution} and {item.plugin.distribution}", hint="uninstall one"
            )
    return found


def resolve_target(text: str | Target, plugins: PluginHost | None = None) -> ResolvedTarget:
    """The target of a string such as "llvm -mcpu=znver4 -threads=2".

    Raises:
        TargetError: unknown target or option, or one whose plugin is not installed (names the package).
    """
    plugins = plugins or host()
    name = (text.split() or [""])[0].rstrip(",") if isinstance(text, str) else text.kind
    offered = _offered_kinds(plugins, wanted=name)
    kinds: dict[str, TargetKind] = {n: offer.value for n, offer in offered.items()}
    if isinstance(text, str):
        if name not in kinds and (name in KNOWN_TARGETS or any(p.name == name for p in plugins.quarantined())):
            raise TargetError(f"the plugin of target '{name}' is not in use", where=text, hint=plugins.missing(name, KNOWN_TARGETS.get(name)))
        targets = parse_targets(text, kinds)
    else:
        targets = (text,)
    if len(targets) > 1:
        raise TargetError("several targets in one executable are not supported yet", where=str(text), hint="name one")
    kind, owner = kinds[targets[0].kind], offered[targets[0].kind].plugin.name
    target = kind.resolve(targets[0])
    threads = getattr(targets[0].options, "threads", None)
    found = plugins.call("capabilities", required=owner, target=target)
    rules = tuple(item.value for item in plugins.items("schedules", required=owner, target=target))
    return ResolvedTarget(target, kind, kind.machine(target), found[0].value if found else Capabilities(), rules, kind.fingerprint(target), threads)


# -- models -----------------------------------------------------------------------------------------------------------


def load(model: Any, *, frontend: str | None = None, **options: Any) -> Graph:
    """Reads a model into a graph.

    Args:
        model: a path, bytes, a framework's own object, or a Graph (returned as it is).
        frontend: name of the frontend; by default the one that recognises the model.
        options: for the frontend.

    Raises:
        FrontendError: no frontend or several take the model, or it cannot be read.
    """
    if isinstance(model, Graph):
        return model
    chosen = find_frontend(model, frontend)
    graph = chosen.load(Path(model) if isinstance(model, (str, os.PathLike)) else model, options)
    verify(graph)
    return graph


def find_frontend(model: Any, name: str | None = None) -> Frontend:
    """The one frontend that takes a model."""
    frontends: list[Frontend] = [item.value for item in host().items("frontends")]
    if name is not None:
        for f in frontends:
            if f.name == name:
                return f
        raise FrontendError(f"no frontend '{name}'", hint="installed: " + (", ".join(f.name for f in frontends) or "none"))
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FrontendError(f"no file '{path}'", hint="give the path of a model file")
        by_suffix = [f for f in frontends if path.suffix.lower() in f.suffixes]
        if len(by_suffix) == 1:
            return by_suffix[0]
        with path.open("rb") as file:
            head = file.read(4096)
        takers = by_suffix or [f for f in frontends if f.sniff(head)]
        what = f"'{path}'"
        package = KNOWN_FRONTENDS.get(path.suffix.lower())
    elif isinstance(model, (bytes, bytearray, memoryview)):
        takers = [f for f in frontends if f.sniff(bytes(model[:4096]))]
        what, package = "these bytes", None
    else:
        takers = [f for f in frontends if f.accepts(model)]
        what, package = f"an object of type {type(model).__module__}.{type(model).__name__}", None
    if len(takers) == 1:
        return takers[0]
    if takers:
        raise FrontendError(f"several frontends take {what}: {', '.join(f.name for f in takers)}", hint="name one: frontend=…")
    hint = host().missing(package or "", package) if package else "installed frontends: " + (", ".join(f.name for f in frontends) or "none")
    raise FrontendError(f"no frontend takes {what}", hint=hint)


# -- compilation ------------------------------------------------------------------------------------------------------


@dataclass
class Kernel:
    """One distinct kernel of a compilation, with every stage it went through."""

    name: str
    naive: Program
    rule: str = ""
    declines: tuple[tuple[str, str], ...] = ()
    trace: Any = None
    scheduled: Program | None = None
    lowered: Program | None = None
    code: KernelCode | None = None
    cached: bool = False


@dataclass
class Compilation:
    """A compilation in progress and, after `run`, its record for `weft inspect`."""

    target: ResolvedTarget
    extra: Sequence[GraphPass] = ()
    on_stage: OnStage | None = None
    cache: bool = True
    graphs: dict[str, Graph] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    plan: MemoryPlan | None = None
    assembly: Assembly | None = None
    keep_graphs: bool = False
    check: bool = False

    @contextmanager
    def stage(self, name: str, subject: str = "", result: Callable[[], Any] | None = None) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.report(name, subject, time.perf_counter() - started, result() if result else None)

    def report(self, name: str, subject: str, seconds: float, result: Any = None) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        report = StageReport(name, subject, seconds, result)
        if self.on_stage is not None:
            self.on_stage(report)
        host().call("stage_done", stage=report)

    def run(self, graph: Graph) -> Executable:
        """A verified graph through every stage."""
        grouped = self.optimize(graph)
        with self.stage("plan_memory", graph.name):
            self.plan = plan_memory(grouped)
        uses = self.compile_kernels(grouped)
        with self.stage("assemble", graph.name):
            self.assembly = assemble(grouped, self.plan, uses)
        with self.stage("link", graph.name):
            return self.link(grouped, self.assembly)

    def optimize(self, graph: Graph) -> Graph:
        """The graph after all graph passes: groups only."""

        def on_pass(name: str, result: Graph, seconds: float) -> None:
            if self.keep_graphs:
                self.graphs[name] = result
            self.report(name, graph.name, seconds, result)

        plugin_passes = [item.value for item in host().items("graph_passes", target=self.target.target)]
        grouped = run_passes(graph, self.target.capabilities, [*plugin_passes, *self.extra], on_pass, check=self.check)
        grouped = own_outputs(grouped)
        self.graphs["fuse"] = grouped
        return grouped

    # -- kernels
    def compile_kernels(self, graph: Graph) -> dict[int, KernelUse]:
        """Compiles every distinct group once; id(node) → its kernel."""
        codegen = self.target.kind.codegen(self.target.target)
        store = KernelCache(self.target.fingerprint, enabled=self.cache)
        by_text: dict[str, str] = {}
        by_key: dict[str, Kernel] = {}
        names: dict[int, str] = {}
        pending: list[tuple[Kernel, str, Future[KernelCode]]] = []
        for node in graph.nodes:
            if not isinstance(node.op, Group):
                raise LoweringError(f"{type(node.op).__name__} is not compiled for '{self.target.target.kind}'", where=_place(node))
            if node.op.view:
                continue
            # Layers repeat: a body's text is far cheaper to make than its program, and equal texts give equal programs.
            text = kernel_text(node.op.body)
            key = by_text.get(text, "")
            if not key:
                with self.stage("lower_group", node.op.body.name):
                    naive = lower_group(node.op.body, "kernel")
                    key = by_text[text] = store.key(naive)
            if key not in by_key:
                kernel = Kernel(kernel_name(node, key), naive)
                by_key[key] = kernel
                self.kernels[kernel.name] = kernel
                code = store.get(key, kernel.name)
                if code is not None:
                    kernel.code, kernel.cached = code, True
                else:
                    pending.append((kernel, key, self._start(codegen, kernel)))
            names[id(node)] = by_key[key].name
        with self.stage("codegen", graph.name):
            for kernel, key, future in pending:
                kernel.code = future.result()
                store.put(key, kernel.code)
        uses = {}
        for node in graph.nodes:
            if id(node) in names:
                kernel = self.kernels[names[id(node)]]
                assert kernel.code is not None
                uses[id(node)] = KernelUse(kernel.name, kernel.naive.dims, kernel.code.scratch)
        return uses

    def _start(self, codegen: Codegen, kernel: Kernel) -> Future[KernelCode]:
        self.schedule(kernel)
        assert kernel.scheduled is not None
        with self.stage("lower_program", kernel.name):
            kernel.lowered = lowered = lower_program(kernel.scheduled, codegen.functions)
        require(codegen, lowered, str(self.target.target))
        return codegen.submit(lowered)

    def schedule(self, kernel: Kernel) -> None:
        """Schedules a kernel's naive program by the target's best rule; the kernel keeps the rule, what others declined with, and the result."""
        named = Program(kernel.name, kernel.naive.inputs, kernel.naive.outputs, kernel.naive.dims, kernel.naive.body, kernel.naive.aliases)
        rules = list(self.target.rules)
        declines: list[tuple[str, str]] = []
        with self.stage("schedule", kernel.name):
            while True:
                rule, declined = select_rule(rules, named, self.target.machine)
                schedule = Schedule(named, self.target.machine)
                declines += [(name, f"{d.code}: {d.reason}") for name, d in declined if (name, f"{d.code}: {d.reason}") not in declines]
                try:
                    rule.apply(schedule)
                    break
                except ScheduleError as error:
                    # A rule that offered and then met a step that may not act leaves the program to the next; the record says so.
                    declines.append((rule.name, f"failed: {error.what}" + (f" ({error.why})" if error.why else "")))
                    rules.remove(rule)
        kernel.rule, kernel.trace, kernel.scheduled = rule.name, schedule.trace, schedule.program
        kernel.declines = tuple(declines)

    # -- the executable
    def link(self, graph: Graph, assembly: Assembly) -> Executable:
        spec = assembly.spec
        objects = {name: self.kernels[name].code for name in spec.kernels()}
        sections: Mapping[str, NativeCode] = self.target.kind.link(self.target.target, spec, objects)  # type: ignore[arg-type]
        items = tuple(str(getattr(i, "kernel", type(i).__name__)) for i in spec.items)
        return Executable.build(
            name=graph.name,
            target=self.target.kind.describe(self.target.target),
            inputs=[TensorInfo(t.name, t.dtype.name, tuple(_dim(d) for d in t.dims)) for t in spec.inputs],
            outputs=[TensorInfo(t.name, t.dtype.name, tuple(_dim(d) for d in t.dims)) for t in spec.outputs],
            code=sections,
            step=Native("main", "run", items, tuple(t.name for t in spec.inputs), tuple(t.name for t in spec.outputs)),
            constants=dict(zip(assembly.constant_names, assembly.constants)),
            pool="pool" if "pool" in sections else None,
            arena=str(spec.arena_bytes),
            threads=self.target.threads,
            weft=host().api_version,
        )


def _dim(d: Expr) -> int | str:
    value = getattr(d, "value", None)
    return int(value) if isinstance(value, int) else str(d)


def _place(node: Node) -> str:
    return f"{node}" + (f"  # {', '.join(sorted(node.names))}" if node.names else "")


def kernel_name(node: Node, key: str) -> str:
    """A readable name, distinct by content: operators of the group, then the start of its key."""
    assert isinstance(node.op, Group)
    words = [type(n.op).__name__.lower() for n in node.op.body.nodes]
    return "_".join(dict.fromkeys(words[:4])) + "_" + key[:10]


def compile(
    model: Any,
    target: str = "llvm",
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[GraphPass | Callable[[Graph], Graph]] = (),
    frontend: str | None = None,
    cache: bool = True,
    on_stage: OnStage | None = None,
) -> Executable:
    """Compiles a model for a target.

    Args:
        model: a path, bytes, a framework's object, or a Graph.
        target: kind and options, e.g. "llvm -mcpu=znver4 -threads=2"; "llvm" alone is this machine.
        input_shapes: sizes for inputs with symbolic dimensions; only makes the result faster.
        passes: graph passes of your own, run after the core's simplifications (a plain function is one too).
        frontend: name of the frontend, where the model does not tell.
        cache: use the on-disk caches.
        on_stage: called after every stage.

    Raises:
        WeftError: of the kind that fits; says what, where, why and what to do.
    """
    resolved = resolve_target(target)
    own = [p if isinstance(p, GraphPass) else GraphPass(getattr(p, "__name__", "pass"), p, after="fold_scale") for p in passes]
    key = None if own or not cache else model_key(model, resolved, input_shapes, frontend)
    store = Cache("models")
    compilation = Compilation(resolved, own, on_stage, cache)
    if key is not None:
        path = store.get_path(key)
        if path is not None:
            with compilation.stage("cache", key[:12]):
                found = load_cached(path)
            if found is not None:
                return found
    with compilation.stage("load", str(model) if isinstance(model, (str, Path)) else type(model).__name__):
        graph = load(model, frontend=frontend)
    if input_shapes:
        graph = specialize(graph, input_shapes)
    executable = compilation.run(graph)
    if key is not None:
        with compilation.stage("save", key[:12]):
            store.put(key, executable.save)
    return executable


def specialize(graph: Graph, input_shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with the symbols of input dimensions replaced by sizes.

    Raises:
        InputError: an input that does not exist, of another rank, or whose constant dimension differs.
    """
    by_name = {v.name: v for v in graph.inputs}
    env: dict[str, int] = {}
    for name, shape in input_shapes.items():
        if name not in by_name:
            close = nearest(name, by_name)
            raise InputError(f"input_shapes names '{name}', which is no input", hint=f"did you mean '{close}'?" if close else "inputs: " + ", ".join(by_name))
        value = by_name[name]
        if len(shape) != len(value.shape):
            raise InputError(f"input_shapes gives '{name}' {len(shape)} dimensions, the model has {len(value.shape)}", where=repr(value))
        for axis, (d, size) in enumerate(zip(value.shape, shape)):
            expected = env.setdefault(d.name, int(size)) if isinstance(d, Var) else d
            if isinstance(expected, int) and expected != int(size):
                raise InputError(f"input_shapes gives dimension {axis} of '{name}' as {size}, expected {expected}", where=repr(value))
    return substitute_symbols(graph, env)


def load_cached(path: Path) -> Executable | None:
    """A model from the cache; None if the entry is unusable, so that it is rebuilt."""
    from weft.errors import ArchiveError

    try:
        return Executable.load(path)
    except ArchiveError:
        return None


def model_key(model: Any, target: ResolvedTarget, input_shapes: Mapping[str, Sequence[int]] | None, frontend: str | None) -> str | None:
    """What identifies a compilation: the model's bytes, the target, options and the versions of everything. None: not cached."""
    digest = hashlib.sha256()
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            return None
        digest.update(_file_digest(path))
    elif isinstance(model, (bytes, bytearray)):
        digest.update(model)
    else:
        return None
    shapes = sorted((k, tuple(v)) for k, v in (input_shapes or {}).items())
    digest.update(repr((str(target.target), target.fingerprint, shapes, frontend, fingerprints())).encode())
    return digest.hexdigest()


LARGE = 64 << 20
SETTLED = 2.0
"""Seconds after which a file's time tells it from what it was: a write within the clock's tick would not."""


def _file_digest(path: Path) -> bytes:
    """The hash of a model file; that of a large one is remembered by its place, size and time, as reading it takes longer than all the rest."""
    from weft.fingerprint import hash_files

    stat = path.stat()
    store = Cache("digests") if stat.st_size >= LARGE and time.time() - stat.st_mtime > SETTLED else None
    key = f"{path.resolve()}:{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    known = store.get(key) if store is not None else None
    if known is not None:
        return known
    digest = hashlib.sha256()
    hash_files(path, digest)
    if store is not None:
        store.put(key, digest.digest())
    return digest.digest()


def fingerprints() -> str:
    """Versions of the core and every plugin; for editable installs a hash of the sources."""
    from weft.fingerprint import source_fingerprint

    return ";".join(source_fingerprint(p) for p in host().plugins if p.healthy)
