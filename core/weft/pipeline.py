"""The pipeline: model → graph → groups → programs → code → executable. Reads as the list of its steps.

    load                 a frontend reads the model                       Graph, verified
    specialize           `input_shapes` replace symbols                   Graph
    run_passes           optimise, lay out, fuse                          every node is a Group
    lower_group          per distinct group: a naive Program              verified Program
    schedule             the target's best rule rewrites it               same meaning
    lower_program        loop passes                                      what codegen takes
    codegen              compiled in worker processes, cached on disk     KernelCode
    plan_memory          values and scratch in one arena                  MemoryPlan
    assemble, link       one native segment                               Executable
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import shlex
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft import settings
from weft.errors import (
    ArchiveError,
    FrontendError,
    GraphError,
    InputError,
    PluginError,
    ScheduleWarning,
    TargetError,
    WeftError,
    enough_memory,
    expect,
    from_signal,
    nearest,
)
from weft.forks import cached_property
from weft.hooks import Frontend, StageReport
from weft.options import make_options, parse_options, print_options
from weft.plugins import FOREIGN_FORMATS, KNOWN_FRONTENDS, KNOWN_TARGETS, Contribution, PluginHost, claimed, host
from weft.records import Record, Records, machine_key
from weft.target import CPU, Target, TargetKind, parse_targets
from weft_runtime.cache import Cache
from weft_runtime.executable import Executable
from weft_runtime.plan import HOST

# What a compilation needs beyond this is imported when there is one: a model from the cache starts without the compiler.
if TYPE_CHECKING:
    from weft.codegen.base import Codegen
    from weft.graph.nodes import Graph
    from weft.loop.nodes import Program
    from weft.loop.pipeline import LoopPass
    from weft.machine import Machine, Transfer
    from weft.passes.capabilities import Capabilities
    from weft.passes.pipeline import GraphPass
    from weft.scheduling.intrinsic import Intrinsic
    from weft.scheduling.rule import Rule

OnStage = Callable[[StageReport], None]
T = TypeVar("T")


# -- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with everything that the pipeline asks of its plugin."""

    target: Target
    kind: TargetKind
    fingerprint: str
    threads: int | None  # that the target string asked for; None: as many as the process may use, wherever it runs
    plugins: PluginHost
    owner: str  # the plugin of the kind: its failures are fatal
    given: Records = field(default_factory=Records)  # of the caller; those of installed packages are found beside them

    @cached_property
    def machine(self) -> Machine:
        from weft.machine import GLOBAL_ALIGN, Machine

        found = self._asked(self.kind.machine, "to describe its machine", Machine)
        if self.native and found.alignment() > GLOBAL_ALIGN:
            what = f"the target '{self.target.kind}' declares that global memory is aligned to {found.alignment()} bytes"
            why = "its kernels run on the host's processor, where callers' arrays begin at any element"
            raise PluginError(what, where=str(self.target), why=why, hint="bring what has to be aligned to a scope of the target's own: cache_read")
        return found

    @property
    def plugin(self) -> str:
        """The plugin of the kind and its distribution, for people."""
        return next((str(p) for p in self.plugins.plugins if p.name == self.owner), self.owner)

    @cached_property
    def device(self) -> str:
        """The name of the device that runs its code."""
        name = self._asked(self.kind.device, "to name its device", str)
        if name == HOST:
            raise PluginError(f"the target '{self.target.kind}' names '{HOST}' as its device, which is the host's memory in plans", hint="name it otherwise")
        return name

    @property
    def native(self) -> bool:
        """Whether the host's own processor runs its code."""
        return self.device == CPU

    @property
    def transfer(self) -> Transfer:
        """What copies to its device and back take."""
        from weft.machine import Transfer

        return self._asked(self.kind.transfer, "to say what copies take", Transfer)

    @property
    def description(self) -> str:
        """For people: what tells it from others."""
        return self._asked(self.kind.describe, "to describe itself", str)

    def exceeds(self, program: Program) -> str | None:
        """What a scheduled Program wants and the target lacks, as the end of a sentence; None if there is nothing."""
        from weft.scheduling.scopes import exceeds

        with self.blame("to say what a schedule wants beyond it"):
            wrong = self.kind.exceeds(program, self.machine)
        return "; ".join(filter(None, (exceeds(program, self.machine), wrong))) or None

    def codegen(self) -> Codegen:
        """A code generator of its own."""
        with self.blame("to make its code generator"):
            return self.kind.codegen(self.target)

    def taken(self, lowered: Program) -> Program:
        """A lowered program as the code generator gets it: where the target string asks for one thread, its parallel loops are serial."""
        from weft.codegen.base import in_one_thread

        return in_one_thread(lowered) if self.threads == 1 else lowered

    @cached_property
    def capabilities(self) -> Capabilities:
        from weft.passes.capabilities import Capabilities

        found = self.plugins.call("capabilities", required=self.owner, target=self.target)
        # The plugin of the target knows it best; of others none is before another.
        found = [c for c in found if c.plugin.name == self.owner] or found
        if len(found) > 1:
            raise self._claimed(f"what graph passes may assume of target '{self.target.kind}'", found)
        return found[0].value if found else Capabilities()

    @cached_property
    def intrinsics(self) -> dict[str, Intrinsic]:
        """The tensor intrinsics that the machine has, by name.

        Raises:
            PluginError: two plugins claim one name.
        """
        items = self.plugins.items("intrinsics", required=self.owner, target=self.target)
        return {c.value.name: c.value for c in self._apart("intrinsics", "intrinsic", [c for c in items if self.machine.features.issuperset(c.value.requires)])}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(item.value for item in self.plugins.items("schedules", required=self.owner, target=self.target))

    @cached_property
    def records(self) -> Records:
        """Recorded choices: the caller's, then those of plugins. What two plugins record differently is nobody's; the caller's own stands over all."""
        found: dict[tuple[str, str, str], list[tuple[Contribution, Record]]] = {}
        for item in self.plugins.items("records", required=self.owner, target=self.target):
            with self.plugins.blame(item.plugin.name, "to read its records"):
                read = item.value if isinstance(item.value, Records) else Records.load(item.value)
            for record in read.records:
                found.setdefault((record.subject, record.key, record.machine), []).append((item, record))
        kept = []
        for offers in found.values():
            if all(r == offers[0][1] for _, r in offers):
                kept.append(offers[0][1])
                continue
            owners = " and ".join(dict.fromkeys(f"{i.plugin.distribution} ({i.plugin.name})" for i, _ in offers))
            text = f"{offers[0][1]} is not followed: {owners} record different choices; give one of them as `records`, which stands over both"
            warnings.warn(text, ScheduleWarning, stacklevel=2)
        return self.given.over(Records(tuple(kept)))

    @cached_property
    def machine_key(self) -> str:
        """What records of its machine are known by."""
        return machine_key(self.target.kind, self.machine)

    def graph_passes(self) -> list[GraphPass]:
        """Of all plugins. An exception in one is an error that names its plugin.

        Raises:
            PluginError: two plugins claim one name, or one claims the name of a pass of the core.
        """
        from weft.passes.pipeline import CORE

        return self._passes("graph_passes", "graph", [p.name for p in CORE])

    def loop_passes(self) -> list[LoopPass]:
        """Of all plugins, as `graph_passes`, behind the core's for instructions of queues, if the target has such."""
        from weft.loop.passes.await_queues import await_queues
        from weft.loop.pipeline import STAGES, LoopPass
        from weft.scheduling.intrinsic import queued

        queues = queued(self.intrinsics.values())
        holds = "instructions of queues have ended where somebody needs what they do"
        own = [LoopPass("await_queues", lambda program: await_queues(program, queues), "partition_loops", holds)] if queues else []
        return [*own, *self._passes("loop_passes", "loop", [*(s.name for s in STAGES), *(p.name for p in own)])]

    def _passes(self, hook: str, what: str, taken: Sequence[str]) -> list[Any]:
        found = self._apart(hook, f"{what} pass", self.plugins.items(hook, required=self.owner, target=self.target), taken)
        return [replace(c.value, function=self.plugins.blamed(c, c.value.function, f"in its {what} pass '{c.value.name}'")) for c in found]

    def _apart(self, hook: str, what: str, items: Sequence[Contribution], taken: Sequence[str] = ()) -> Sequence[Contribution]:
        """`items`, which the target uses all.

        Args:
            taken: names of the core's own.

        Raises:
            PluginError: one name is claimed more than once.
        """
        for item in items:
            same = [i for i in items if i.value.name == item.value.name]
            core = [Contribution(self.plugins.core, None)] if item.value.name in taken else []
            if len(same) + len(core) > 1:
                raise self._claimed(f"the {what} '{item.value.name}' of target '{self.target.kind}'", [*core, *same], hook)
        return items

    def _claimed(self, what: str, items: Sequence[Contribution], hook: str = "capabilities") -> PluginError:
        error = claimed(what, [i.plugin for i in items])
        for item in items:
            if not item.plugin.kept:
                self.plugins.failed(item.plugin, hook, error)
        return error

    def _asked(self, method: Callable[[Target], Any], doing: str, kind: type[T]) -> T:
        """What a method of the target's kind says of the target: an error of its plugin if it fails, or gives something else."""
        with self.blame(doing):
            found = method(self.target)
            if not isinstance(found, kind):
                raise TypeError(f"{method.__name__} gave {found!r}, which is no {kind.__name__}")
            return found

    def blame(self, doing: str) -> AbstractContextManager[None]:
        """What the target's plugin contributed is at work: `PluginHost.blame`."""
        return self.plugins.blame(self.owner, doing)


def target_kinds(plugins: PluginHost | None = None) -> dict[str, TargetKind]:
    """Every kind of target that installed plugins offer, by name, but those that two claim."""
    return {name: offer.value for name, offer in (plugins or host()).named("targets", "target")[0].items()}


def resolve_target(text: str | Target, plugins: PluginHost | None = None) -> ResolvedTarget:
    """The one target of a string such as "llvm -mcpu=znver4 -threads=2".

    Raises:
        TargetError: unknown target or option, one whose plugin is not installed (names the package), or several targets.
    """
    found = resolve_targets(text, plugins)
    if len(found) > 1:
        raise TargetError("one target is wanted here", where=str(text), hint=f'name one, for example "{found[0].target.kind}"')
    return found[0]


def resolve_targets(
    text: str | Target, plugins: PluginHost | None = None, records: Records | str | os.PathLike[str] | None = None
) -> tuple[ResolvedTarget, ...]:
    """The targets of a string such as "npu, llvm -threads=2", in order of preference.

    Args:
        records: choices to follow, or a file of them.

    Raises:
        TargetError: unknown target or option, or one whose plugin is not installed (names the package).
        InputError: the file is not there, or is no file of records.
    """
    expect(records, (Records, str, os.PathLike, type(None)), "records", "the path of a file", InputError, "`weft inspect --stage records` prints such a file")
    given = records if isinstance(records, Records) else Records() if records is None else Records.load(records)
    plugins = plugins or host()
    if not isinstance(text, (str, Target)):
        raise TargetError(f"a target is a text, got {type(text).__name__}", hint='for example "llvm", which is this machine')
    name = (text.split() or [""])[0].rstrip(",") if isinstance(text, str) else text.kind
    offered, clashes = plugins.named("targets", "target", required=name)
    for word in re.findall(r"(?:^|,)\s*([^\s,]+)", str(text) if isinstance(text, str) else text.kind):
        if word in clashes:
            raise clashes[word]
    kinds: dict[str, TargetKind] = {n: offer.value for n, offer in offered.items()}
    if name not in kinds and (name in KNOWN_TARGETS or any(p.name == name for p in plugins.quarantined())):
        raise TargetError(f"the plugin of target '{name}' is not in use", where=str(text), hint=plugins.missing(name, KNOWN_TARGETS.get(name)))
    try:
        targets = (text,) if isinstance(text, Target) and name in kinds else parse_targets(str(text), kinds)
    except TargetError as error:
        if name and name not in kinds:
            error.why = plugins.trouble("targets")  # the kind may be one of a plugin that is out of use, whatever that plugin is called
        raise
    return tuple(replace(_resolved(t, offered[t.kind], plugins), given=given) for t in targets)


def _resolved(given: Target, offer: Contribution, plugins: PluginHost) -> ResolvedTarget:
    kind: TargetKind = offer.value
    with plugins.blame(offer.plugin.name, f"to resolve the target '{given}'"):
        target = kind.resolve(given)
        fingerprint = kind.fingerprint(target)
        if not isinstance(target, Target) or not isinstance(fingerprint, str):
            raise TypeError(f"it gave {target!r} and the fingerprint {fingerprint!r}")
    threads = getattr(given.options, "threads", None)
    if threads == 1:  # other code than for one core whose runs may have several threads, see `ResolvedTarget.taken`
        fingerprint += "/one thread"
    return ResolvedTarget(target, kind, fingerprint, threads, plugins, offer.plugin.name)


# -- models -----------------------------------------------------------------------------------------------------------


@enough_memory("to read the model")
def load(model: Any, *, frontend: str | None = None, **options: Any) -> Graph:
    """Reads a model into a graph.

    Args:
        model: a path, bytes, a framework's own object, or a Graph (returned as it is).
        frontend: its name and options, e.g. "onnx -dims=batch=4"; by default the frontend that recognises the model. Options alone are for that one.
        options: for the frontend as well, e.g. dims={"batch": 4}.

    Raises:
        FrontendError: no frontend or several take the model, it has no such option, or the model cannot be read.
    """
    from weft.graph.nodes import Graph
    from weft.graph.verify import verify

    if isinstance(model, Graph):
        if frontend is not None or options:
            raise FrontendError("a graph has been read already: neither frontend nor options apply", where=frontend)
        return model
    chosen, given = _reader(model, frontend)
    reader: Frontend = chosen.value
    if options:
        if print_options(given):
            raise FrontendError("options are given by name and with the frontend's", where=frontend, hint="give all of them by name")
        given = make_options(reader.options, options, f"frontend '{reader.name}'", FrontendError)
    try:
        with host().blame(chosen.plugin.name, f"to read the model as '{reader.name}'"), reading(model):
            graph = reader.load(Path(model) if isinstance(model, (str, os.PathLike)) else model, given)
        if not isinstance(graph, Graph):
            raise PluginError(f"{chosen.plugin} read the model as {type(graph).__name__}, which is no Graph")
        verify(graph)
        graph.sources = _sources(model, frontend)
    except (RecursionError, PluginError) as error:
        if not isinstance(error, RecursionError) and not isinstance(error.__cause__, RecursionError):
            raise
        raise FrontendError("the model nests graphs, or formulas of its sizes, deeper than can be followed") from error
    return graph


def require_readable(path: Path) -> None:
    """That a model file is one.

    Raises:
        FrontendError: it is not there, is a folder, a pipe or a device, or may not be read.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, ValueError):  # ValueError: a null character in the name
        raise FrontendError(f"no file '{path}'", hint="give the path of a model file") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe, and a model is read more than once"), (stat.S_ISSOCK, "a socket"))
        why = next((what for test, what in kinds if test(mode)), "a device")
        raise FrontendError(f"no file '{path}'", why=f"it is {why}", hint="give the path of a model file")
    with reading(path), path.open("rb"):
        pass


@contextmanager
def reading(model: Any) -> Iterator[None]:
    """A model and its files are read: what the system refuses is an error that names the file.

    Raises:
        FrontendError: an OSError was raised.
    """
    try:
        yield
    except OSError as error:
        raise _unreadable(model, error) from error


def _unreadable(model: Any, error: OSError) -> FrontendError:
    file = error.filename if error.filename is not None else model if isinstance(model, (str, os.PathLike)) else "the model"
    return FrontendError(f"cannot read '{file}'", why=error.strerror or str(error), hint="is it all there, and may this user read it?")


def find_frontend(model: Any, name: str | None = None) -> Frontend:
    """The one frontend that takes a model."""
    found: Frontend = _reader(model, name)[0].value
    return found


def _reader(model: Any, text: str | None) -> tuple[Contribution, Any]:
    """The frontend that takes a model, and its options: `text` names either, both or, if it is None, nothing."""
    expect(text, (str, type(None)), "frontend", "a text", FrontendError, 'for example "onnx -dims=batch=4"')
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise FrontendError("the frontend and its options do not parse", where=text, why=str(error)) from None
    name = words.pop(0) if words and not words[0].startswith("-") else None
    found = _frontend(model, name)
    kind: Frontend = found.value
    return found, parse_options(kind.options, words, f"frontend '{kind.name}'", text or kind.name, FrontendError)


def _frontend(model: Any, name: str | None) -> Contribution:
    plugins = host()
    everything = plugins.items("frontends")
    by_name, clashes = plugins.apart("frontends", "frontend", everything)
    installed = "installed frontends: " + (", ".join(by_name) or "none")
    if name is not None:
        if name in clashes:
            raise clashes[name]
        if name in by_name:
            return by_name[name]
        close = nearest(name, by_name)
        hint = f"did you mean '{close}'?" if close else installed.replace(" frontends", "", 1)
        raise FrontendError(f"no frontend '{name}'", why=plugins.trouble("frontends"), hint=hint)

    def takers(function: str, argument: Any, among: Sequence[Contribution] = everything) -> list[Contribution]:
        found = []
        for c in among:
            try:
                if getattr(c.value, function)(argument):
                    found.append(c)
            except Exception as error:  # foreign code: a frontend that fails to say takes nothing
                if from_signal(error):
                    raise
                plugins.failed(c.plugin, "frontends", error)
        return found

    package = foreign = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        require_readable(path)
        suffix = path.suffix.lower()
        found = [c for c in everything if suffix in c.value.suffixes]
        how = f"files '{suffix}'"
        if len(found) != 1:
            with reading(path), path.open("rb") as file:
                head = file.read(4096)
            taking = takers("sniff", head, found or everything)
            # Several that claim a suffix are told apart by what is in the file.
            found, how = (taking, "content of this kind") if taking or not found else (found, f"{how}, and none knows its content")
        what = f"'{path}'"
        package, foreign = KNOWN_FRONTENDS.get(suffix), FOREIGN_FORMATS.get(suffix)
    elif isinstance(model, (bytes, bytearray, memoryview)):
        found, what, how = takers("sniff", bytes(model[:4096])), "these bytes", "content of this kind"
    else:
        found, what, how = takers("accepts", model), f"an object of type {type(model).__module__}.{type(model).__name__}", "objects of this type"
    if len(found) == 1:
        return found[0]
    if found:
        raise _several(found, clashes, what, how)
    hint = plugins.missing(package, package) if package else f"it is a file of {foreign}: export the model to ONNX; {installed}" if foreign else installed
    raise FrontendError(f"no frontend takes {what}", why=None if package else plugins.trouble("frontends"), hint=hint)


def _several(found: Sequence[Contribution], clashes: Mapping[str, PluginError], what: str, how: str) -> WeftError:
    """The error about a model that several frontends take; `how`: what each of them claims."""
    names = dict.fromkeys(c.value.name for c in found)
    if len(names) == 1:
        return clashes[found[0].value.name]  # naming it would not tell them apart
    owners = " and ".join(f"'{c.value.name}' of {c.plugin}" for c in found)
    hint = f"name one: frontend='{next(iter(names))}' or {' or '.join(map(repr, list(names)[1:]))}; or uninstall one"
    return FrontendError(f"several frontends take {what}: {owners}", why=f"each claims {how}, and the order of plugins decides nothing", hint=hint)


# -- compilation ------------------------------------------------------------------------------------------------------


@enough_memory("to compile the model")
def compile(
    model: Any,
    target: str = "llvm",
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[GraphPass | Callable[[Graph], Graph]] = (),
    frontend: str | None = None,
    cache: bool = True,
    strict: bool = False,
    on_stage: OnStage | None = None,
    records: Records | str | os.PathLike[str] | None = None,
) -> Executable:
    """Compiles a model for a target, or for several.

    Args:
        model: a path, bytes, a framework's object, or a Graph.
        target: kind and options, e.g. "llvm -mcpu=znver4 -threads=2"; "llvm" alone is this machine. Several in order of preference, e.g. "npu, llvm":
            each node goes where it and the copies around it take the least time.
        input_shapes: sizes for inputs with symbolic dimensions; only makes the result faster.
        passes: graph passes of your own, run after the core's simplifications (a plain function is one too).
        frontend: name of the frontend, where the model does not tell, and its options, e.g. "onnx -dims=batch=4" or "-dims=batch=4".
        cache: use the on-disk caches.
        strict: whatever the first target does not take is an error.
        on_stage: called after every stage.
        records: choices of kernels and graphs to follow, or a file of them (`weft.records`); they stand over those of installed packages. One that cannot be
            followed is a ScheduleWarning that says why, and the default stands.

    Raises:
        WeftError: of the kind that fits; says what, where, why and what to do.
    """
    expect(frontend, (str, type(None)), "frontend", "a text", FrontendError, 'for example "onnx -dims=batch=4"')
    expect(passes, Sequence, "passes", "a list of graph passes")
    for name, flag in (("cache", cache), ("strict", strict)):
        expect(flag, bool, name, "True or False")
    if on_stage is not None and not callable(on_stage):
        raise InputError(f"on_stage is called after every stage, got {type(on_stage).__name__}", hint="give a function of a StageReport")
    resolved = resolve_targets(target, records=records)
    input_shapes = None if input_shapes is None else _checked_shapes(input_shapes) or None
    own = [_as_pass(p) for p in passes]
    # Who asks for the stages to be written wants them to run.
    files = _sources(model, frontend)
    key = None if passes or not cache or settings.DUMP.get() else model_key(model, resolved, input_shapes, frontend, strict, files)
    store = Cache("models")
    if key is not None:
        started = time.perf_counter()
        path = store.get_path(key)
        found = None if path is None else load_cached(path)
        if found is not None:
            if on_stage is not None:
                on_stage(StageReport("cache", key[:12], time.perf_counter() - started, found))
            found.sources = files
            return found
    from weft.compilation import Compilation, check_dump

    check_dump(resolved, own)
    compilation = Compilation(resolved[-1], own, on_stage, cache)
    with compilation.stage("load", str(model) if isinstance(model, (str, Path)) else type(model).__name__):
        graph = load(model, frontend=frontend)
    if input_shapes:
        graph = specialize(graph, input_shapes)
    if mixed(resolved) or has_steps(graph):
        from weft.mixed import MixedCompilation

        executable = MixedCompilation(resolved, own, on_stage, cache, strict).run(graph)
    else:
        executable = compilation.run(graph)
    # What changed since it was hashed may be what was read, and would be found under the hash of what was there before.
    if key is not None and key == model_key(model, resolved, input_shapes, frontend, strict, files):
        with compilation.stage("save", key[:12]):
            # An entry that a crash of the system damages is rebuilt, if its weights are looked at.
            store.put(key, lambda path: executable.save(path, durable=not settings.VERIFY_WEIGHTS.get()))
    executable.sources = files
    return executable


def _as_pass(given: GraphPass | Callable[[Graph], Graph]) -> GraphPass:
    from weft.passes.pipeline import GraphPass

    if isinstance(given, GraphPass):
        return given
    if not callable(given):
        raise GraphError(f"`passes` holds {given!r}, which is no graph pass", hint="give functions from Graph to Graph, or GraphPass(name, function, after)")
    return GraphPass(getattr(given, "__name__", "pass"), given, after="fold_scale")


def _checked_shapes(input_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    if not isinstance(input_shapes, Mapping):
        raise InputError(f"input_shapes takes sizes by input name, got {type(input_shapes).__name__}", hint="for example {'x': (1, 3, 224, 224)}")
    found = {}
    for name, shape in input_shapes.items():
        try:
            found[name] = tuple(operator.index(size) for size in shape)
        except TypeError:
            found[name] = (-1,)
        if any(size < 0 for size in found[name]):
            raise InputError(f"input_shapes gives '{name}' {shape!r}, which is no list of sizes", hint="for example {'x': (1, 3, 224, 224)}")
    return found


def specialize(graph: Graph, input_shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with the symbols of input dimensions replaced by sizes.

    Raises:
        InputError: an input that does not exist, of another rank, or whose constant dimension differs.
    """
    from weft.expr.nodes import Var
    from weft.graph.rewrite import substitute_symbols

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
    try:
        return Executable.load(path)
    except ArchiveError:
        return None


def mixed(targets: Sequence[ResolvedTarget]) -> bool:
    """Whether a compilation for these targets makes more than one native segment."""
    return len(targets) > 1 or not targets[0].native


def has_steps(graph: Graph) -> bool:
    """Whether a graph holds what is no kernel: control flow, strings, sequences, optionals."""
    from weft.passes.place import is_numeric, is_step

    return any(map(is_step, graph.nodes)) or not all(map(is_numeric, graph.inputs))


def model_key(
    model: Any,
    target: Sequence[ResolvedTarget],
    input_shapes: Mapping[str, Sequence[int]] | None,
    frontend: str | None,
    strict: bool = False,
    files: Sequence[Path] | None = None,
) -> str | None:
    """What identifies a compilation: the bytes of the model and of `files`, the target, its records, options and the versions of everything. None: not cached.

    Args:
        files: those that `model_files` gives for the model, where the caller has them.
    """
    digest = hashlib.sha256()
    if isinstance(model, (str, os.PathLike)):
        from weft.fingerprint import hash_file

        files = model_files(model, frontend) if files is None else files
        try:
            content = [hash_file(file) if file.is_file() else None for file in files]
        except OSError:  # loading it says why
            return None
        if not content:
            return None
        digest.update(repr(content).encode())
    elif isinstance(model, (bytes, bytearray)):
        if _may_name_files(_reader(model, frontend)[1]):
            return None
        digest.update(model)
    else:
        return None
    shapes = sorted((k, tuple(v)) for k, v in (input_shapes or {}).items())
    targets = [(str(t.target), t.fingerprint, t.records.digest) for t in target]
    digest.update(repr((targets, shapes, frontend, strict, fingerprints())).encode())
    return digest.hexdigest()


def model_files(model: str | os.PathLike[str], frontend: str | None = None) -> tuple[Path, ...]:
    """The file of a model, then those that it refers to, as its frontend says; absolute, whether they are there or not. Empty if there is no such model.

    Raises:
        FrontendError: as `load`, if no frontend reads it.
    """
    path = Path(model)
    with reading(path):
        if not path.is_file():
            return ()
    reader, options = _reader(model, frontend)
    kind: Frontend = reader.value
    with host().blame(reader.plugin.name, f"to find the files of '{path.name}'"), reading(path):
        others = () if kind.files is None else kind.files(path, options)
        return tuple(file.absolute() for file in (path, *others))


def _sources(model: Any, frontend: str | None) -> tuple[Path, ...]:
    """The files that a model comes from."""
    if isinstance(model, (str, os.PathLike)):
        return model_files(model, frontend)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return ()
    from weft.graph.nodes import Graph

    return model.sources if isinstance(model, Graph) else ()


def _may_name_files(options: Any) -> bool:
    """Whether options of a frontend hold what may be a path, so that a model of bytes depends on more than its bytes."""
    return any(isinstance(getattr(options, f.name), (str, os.PathLike)) for f in fields(options))


def fingerprints() -> str:
    """Versions of the core and every plugin; for editable installs a hash of the sources."""
    from weft.fingerprint import source_fingerprint

    return ";".join(source_fingerprint(p) for p in host().plugins if p.healthy)
