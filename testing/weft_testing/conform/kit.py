"""What the levels ask: the target, its samples, compilations of them, and comparisons with what is expected."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import types
import typing
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.compilation import Compilation, Kernel
from weft.dtypes import DType
from weft.errors import CodegenError, LoweringError, ScheduleError, UnsupportedError, WeftError
from weft.forks import cached_property, temporary_folder
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, TensorType
from weft.graph.operator import Operator, Sample
from weft.mixed import MixedCompilation
from weft.passes.place import Placement
from weft.plugins import Plugin
from weft.resolve import ResolvedTarget, resolve_target, target_kinds
from weft.scheduling.rule import Rule
from weft.target import CPU, Target
from weft_ops import ALL_OPERATORS
from weft_ops.precision import float_info, widen
from weft_runtime.device import Device, close_devices, open_device
from weft_runtime.executable import Executable
from weft_runtime.plan import DeviceCall
from weft_testing.conform import made
from weft_testing.conform.report import Share
from weft_testing.conform.usage import Counted, Ledger, Usage, launched, sizes_of
from weft_testing.conform.watched import Watched

Array: TypeAlias = np.ndarray[Any, Any]
Cases: TypeAlias = Mapping[str, Any]


class Disagreement(AssertionError):
    """A target does not do what it must; the text says what."""


@dataclass(frozen=True)
class Case:
    """A sample and what its names are: operator, dtype of the first input, the sample's own."""

    op: type[Operator]
    sample: Sample
    dtype: str
    label: str

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.op.operator_name, self.dtype, self.label)))

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return tuple(None if x is None else TensorType(dt.dtype(x.dtype), x.shape) for x in self.sample.inputs)

    def graph(self) -> Graph:
        builder = GraphBuilder("sample")
        inputs = [None if t is None else builder.input(f"x{k}", t) for k, t in enumerate(self.types)]
        for k, value in enumerate(builder.add_all(self.sample.op, *inputs)):
            builder.output(value, f"y{k}")
        return builder.build()

    def inputs(self) -> dict[str, Array]:
        return {f"x{k}": x for k, x in enumerate(self.sample.inputs) if x is not None}

    def expected(self) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            result = self.sample.op.reference(*self.sample.inputs)
        return result if isinstance(result, tuple) else (result,)

    def tolerance(self) -> float:
        """In units in the last place, relative to the greatest element."""
        return self.sample.op.tolerance(*(t for t in self.types if t is not None))


@dataclass
class Compiled:
    """An executable, and the record of what made it; `by_cost`: where its nodes would have gone if time had
    mattered."""

    executable: Executable
    kernels: Mapping[str, Kernel]
    placement: Placement | None = None
    by_cost: Placement | None = None


class Declined(Exception):
    """A target does not take a graph, and says why."""


@dataclass
class Kit:
    """One target under test.

    Attributes:
        native: its kernels run on the host's CPU, in the host's memory.
        owner: the plugin's distribution with its version.
        tables: name of an argument of a level's tests → level's name → cases by name.
        filtered: only some checks run, chosen by their names: what did not run says nothing.
        budget: multiply-adds of a case that is made for the target.
        ledger: what rules and intrinsics did in what was launched.
        ran: samples that were run.
        tried: intrinsic → the cases that were made for it and in which it did not stand, and why.
    """

    text: str
    target: ResolvedTarget
    plugin: Plugin
    quick: bool = False
    filtered: bool = False
    budget: int = made.BUDGET
    claims: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    shares: list[Share] = field(default_factory=list)
    tables: dict[str, Callable[[str], Cases]] = field(default_factory=dict)
    tried: dict[str, list[str]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    _alone: dict[str, Compiled | str] = field(default_factory=dict)
    _taken: Case | None = None

    @classmethod
    def open(cls, text: str, quick: bool, filtered: bool = False, budget: int = made.BUDGET) -> Kit:
        """Raises TargetError or PluginError if the target cannot be resolved."""
        target = resolve_target(text)
        plugin = next(p for p in target.plugins.plugins if p.name == target.owner)
        kit = cls(text, target, plugin, quick, filtered, budget)
        from weft_testing.conform import cases

        kit.tables = {
            "case": lambda level: kit.cases(),
            "variant": lambda level: {c.name + " " + a: (c, a) for c in kit.cases().values() for a in kit.variants(c)},
            "intrinsic": lambda level: kit.target.intrinsics,
            "graph": lambda level: cases.GRAPHS,
            "model": lambda level: cases.MODELS,
            "option": lambda level: {f"-{n}": n for n in kit.options},
            "product": lambda level: made.products(kit.target.intrinsics.values(), budget, quick),
            "meaning": lambda level: made.meanings_of(kit.target.intrinsics.values(), budget, quick),
            "capacity": lambda level: made.capacities(kit.target.machine.scopes, kit.dtypes_in_scopes(), quick),
            "rule": lambda level: {r.name: r for r in kit.rules},
        }
        return kit

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the target that compilations use without a record."""
        return tuple(r for r in self.target.rules if r.by_default)

    @property
    def owner(self) -> str:
        return f"{self.plugin.distribution} {self.plugin.version}".strip()

    @cached_property
    def native(self) -> bool:
        return self.target.kind.device(self.target.target) == CPU

    @cached_property
    def ledger(self) -> Ledger:
        rules, intrinsics = self.rules, self.target.intrinsics
        return Ledger(rules, intrinsics, Usage.of(rules, intrinsics.values()))

    def dtypes_in_scopes(self) -> dict[str, DType]:
        """Memory → the dtype of an operand that an intrinsic wants there."""
        found: dict[str, DType] = {}
        for i in self.target.intrinsics.values():
            for operand, tensor in zip(i.operands, i.tensors):
                for scope in operand.scopes:
                    found.setdefault(scope, tensor.dtype)
        return found

    @property
    def options(self) -> list[str]:
        """Names of the fields of the target's options."""
        return [f.name for f in dataclasses.fields(self.target.kind.options)]

    # -- verdicts
    def fail(self, what: str, *more: str) -> NoReturn:
        raise Disagreement("\n".join((what, *more)))

    def skip(self, why: str) -> NoReturn:
        import pytest

        pytest.skip(why)

    def decline(self, why: str) -> NoReturn:
        import pytest

        pytest.skip("declined: " + why)

    # -- samples
    def cases(self) -> dict[str, Case]:
        """Every sample of every operator by name; of each operator and dtype the same one, where the run is quick."""
        found: dict[str, Case] = {}
        for op in ALL_OPERATORS:
            for k, sample in enumerate(op.samples()):
                dtype = next((dt.dtype(x.dtype).name for x in sample.inputs if x is not None), "")
                case = Case(op, sample, dtype, (sample.name if sample.name != dtype else "") or f"#{k}")
                found[case.name if case.name not in found else f"{case.name} #{k}"] = case
        if not self.quick:
            return found
        chosen: dict[tuple[str, str], str] = {}
        for name in sorted(found, key=lambda n: zlib.crc32(n.encode())):
            chosen.setdefault((found[name].op.operator_name, found[name].dtype), name)
        return {name: found[name] for name in found if name in chosen.values()}

    def variants(self, case: Case) -> list[str]:
        """Algorithms of a sample's operator beside the one that is taken by default, that can be a kernel by
        themselves."""
        possible = [a for a in case.op.algorithms().values() if case.sample.op.applies(a.name, *case.types) is None]
        return [a.name for a in possible[1:] if a.form != "decompose"]

    def claim(self, case: Case, taken: bool) -> None:
        self.claims.setdefault(case.op.operator_name, {}).setdefault(case.dtype or "none", [0, 0])[
            0 if taken else 1
        ] += 1

    def first_taken(self) -> Case | None:
        """A sample that this target computes, of some floats; None if there is none."""
        if self._taken is None:
            plain = [
                c
                for c in self.cases().values()
                if c.inputs() and all(x.ndim and x.nbytes > 16 and x.dtype.kind == "f" for x in c.inputs().values())
            ]
            known = [c for c in plain if isinstance(self._alone.get(c.name), Compiled)]
            self._taken = next((c for c in (*known, *plain) if self._takes(c)), None)
        return self._taken

    def _takes(self, case: Case) -> bool:
        try:
            return any(isinstance(s, DeviceCall) for s in self.alone(case).executable.manifest.steps)
        except (Declined, WeftError):
            return False

    # -- compilations
    def alone(self, case: Case) -> Compiled:
        """A sample compiled for this target and nothing else.

        Raises:
            Declined: the target does not take it; the reason is not empty.
            Disagreement: it declines without a reason.
        """
        if case.name not in self._alone:
            try:
                self._alone[case.name] = self.compile_alone(case.graph())
            except Declined as error:
                self._alone[case.name] = str(error)
        found = self._alone[case.name]
        if isinstance(found, str):
            raise Declined(found)
        return found

    def compile_alone(self, graph: Graph) -> Compiled:
        """As `alone`, of any graph."""
        if self.native:
            one = Compilation(self.target, cache=False)
            try:
                return Compiled(one.run(graph), one.kernels)
            except (UnsupportedError, CodegenError, ScheduleError, LoweringError) as error:
                raise Declined(str(error)) from error
        mixed = MixedCompilation([self.target], cache=False, strict=True)
        try:
            return Compiled(mixed.run(graph), self._kernels(mixed), mixed.placement)
        except UnsupportedError as error:
            raise Declined(self._reasons(mixed, error)) from error

    def _reasons(self, mixed: MixedCompilation, error: WeftError) -> str:
        if mixed.placement is None:
            return str(error)
        reasons = []
        for p in mixed.placement.nodes:
            if p.target != self.target.target.kind:
                code, reason = p.refused.get(self.target.target.kind, ("", ""))
                if not code.strip() or not reason.strip():
                    self.fail(
                        f"{p.node.op.operator_name} is declined without a {'code' if reason.strip() else 'reason'}",
                        str(p.node),
                    )
                reasons.append(f"{p.node.op.operator_name}: {reason} [{code}]")
        return "; ".join(dict.fromkeys(reasons))

    @staticmethod
    def _kernels(mixed: MixedCompilation) -> dict[str, Kernel]:
        """Those of the target itself."""
        mine = [one for one in mixed.regions if one.target.target.kind == mixed.targets[0].target.kind]
        return {
            f"{k}.{name}" if k else name: kernel for k, one in enumerate(mine) for name, kernel in one.kernels.items()
        }

    def compile(self, graph: Graph) -> Compiled:
        """A graph compiled for this target, and for llvm where this one declines and llvm is installed: whatever it
        takes is on it, small as these graphs are.

        Raises:
            Declined: the target does not take all, and nothing is there for the rest.
        """
        targets = self.targets()
        if self.native:
            one = Compilation(self.target, cache=False)
            try:
                return Compiled(one.run(graph), one.kernels)
            except (UnsupportedError, CodegenError) as error:
                raise Declined(str(error)) from error
        mixed = MixedCompilation(targets, cache=False, by_cost=False)
        try:
            return Compiled(mixed.run(graph), self._kernels(mixed), mixed.placement, mixed.placed_by_cost())
        except UnsupportedError as error:
            if len(targets) > 1:
                raise
            raise Declined(self._reasons(mixed, error)) from error

    def targets(self) -> list[ResolvedTarget]:
        """This target, and what computes the rest."""
        if self.native or "llvm" not in target_kinds():
            return [self.target]
        return [self.target, resolve_target("llvm")]

    # -- what did the work
    def count(self, compiled: Compiled, inputs: Mapping[str, Array]) -> Counted:
        """Adds one run to the ledger; what the target's kernels did in it, all together."""
        dims = sizes_of(compiled.executable, inputs)
        times = launched(compiled.executable)
        own = [k for k in compiled.kernels.values() if times[k.name] and k.scheduled is not None]
        return Counted.sum((self.ledger.add(k, times[k.name], {} if k.renamed else dims), times[k.name]) for k in own)

    def note(self, intrinsics: Sequence[str], kind: str, used: Collection[str], why: str) -> None:
        """Records a case that was made for intrinsics: in which of them it was used, and why not where it was not."""
        for name in intrinsics:
            counts = self.ledger.usage.intrinsics[name].cases.setdefault(kind, [0, 0])
            counts[0] += name in used
            counts[1] += 1
            if name not in used:
                self.tried.setdefault(name, []).append(why)

    # -- devices
    def device(self) -> Device:
        """The target's device, if it is not the host's processor."""
        if self.native:
            self.skip("its kernels run on the host's processor, in the host's memory")
        return open_device(self.target.kind.device(self.target.target))

    @property
    def patience(self) -> float:
        """How much longer than others its device may take: one that is simulated does more than compute."""
        return 10.0 if not self.native and self.device().simulated else 1.0

    @contextmanager
    def watched(self) -> Iterator[Watched | None]:
        """Plans that run meanwhile find the target's device wrapped: guarded buffers, faults on demand. None for native
        targets."""
        if self.native:
            yield None
            return
        name = self.target.kind.device(self.target.target)
        device = open_device(name)
        watched = Watched(device)
        before = close_devices()
        close_devices({**before, name: watched})
        try:
            yield watched
        finally:
            close_devices(before)

    def reloaded(self, executable: Executable) -> Executable:
        """The same, from an archive."""
        with temporary_folder("weft-") as folder:
            path = folder / "model.weft"
            executable.save(path)
            return Executable.load(path)

    def section_bytes(self, executable: Executable, name: str) -> bytes:
        """A code section as it was saved."""
        with temporary_folder("weft-") as folder:
            path = folder / "model.weft"
            executable.save(path)
            with zipfile.ZipFile(path) as archive:
                return archive.read(f"code/{name}")

    # -- comparisons
    def compare(self, what: str, got: Sequence[Any], want: Sequence[Any], tolerance: float) -> None:
        """Results within `tolerance` units in the last place of the greatest element; integers exactly.

        Raises:
            Disagreement: names the output, the element and both values.
        """
        if len(got) != len(want):
            self.fail(f"{what} gives {len(got)} result(s) instead of {len(want)}")
        for k, (g, w) in enumerate(zip(got, want)):
            g, w = np.asarray(g), np.asarray(w)
            if g.shape != w.shape or g.dtype != w.dtype:
                self.fail(f"{what}: result {k} is {g.dtype}{list(g.shape)} instead of {w.dtype}{list(w.shape)}")
            wrong, allowed = _differences(g, w, tolerance)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0]) if w.ndim else ()
                self.fail(
                    f"{what}: {int(wrong.sum())} of {w.size} elements of result {k} are wrong",
                    f"the first is {list(at)}: {g[at]} instead of {w[at]}" + (f" (± {allowed:.3g})" if allowed else ""),
                )

    def check_graph(
        self, graph: Graph, compiled: Compiled, runs: Sequence[Mapping[str, Array]], ulps: float
    ) -> Counted:
        """An executable's results against the meaning of the graph, run after run on one device; then what does not
        depend on what ran before: the first once more, and by a saved copy on a device that nobody watches or waits
        for. Returns what the kernels did in the last run.
        """
        *_, counted = [self.count(compiled, inputs) for inputs in runs]
        with self.watched():
            results = [self._run(compiled.executable, inputs) for inputs in runs]
            for k, (inputs, got) in enumerate(zip(runs, results)):
                self.compare(graph.name + (f", run {k + 1}" if k else ""), got, evaluate(graph, inputs), ulps)
            self.same(f"{graph.name}, run again", self._run(compiled.executable, runs[0]), results[0])
        self.same(f"{graph.name}, saved and loaded", self._run(self.reloaded(compiled.executable), runs[0]), results[0])
        return counted

    @staticmethod
    def _run(executable: Executable, inputs: Mapping[str, Array]) -> list[Array]:
        return [np.array(a) for a in executable.run(inputs).values()]

    def same(self, what: str, got: Sequence[Array], want: Sequence[Array]) -> None:
        """Raises Disagreement unless both are the same bytes."""
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            if a.tobytes() != b.tobytes():
                self.fail(
                    f"{what}: result {k} is not what it was before",
                    f"{int(np.sum(a != b))} of {a.size} elements differ",
                )

    # -- other processes
    @cached_property
    def importable(self) -> str | None:
        """The plugin's module, where another process can import it."""
        name = getattr(self.plugin.object, "__name__", None)
        try:
            return name if name and importlib.util.find_spec(name) is not None else None
        except (ImportError, ValueError):
            return None

    def variants_of(self, option: str) -> Iterator[Target]:
        """The target with other values of one option, as far as there are machines of them."""
        hint = typing.get_type_hints(self.target.kind.options)[option]
        current = getattr(self.target.target.options, option)
        for value in _values(hint, current):
            try:
                given = Target(
                    self.target.target.kind, dataclasses.replace(self.target.target.options, **{option: value})
                )
                found = self.target.kind.resolve(given)
                self.target.kind.machine(found)
            except (WeftError, ValueError):
                continue
            yield found


def _values(hint: Any, current: Any) -> list[Any]:
    """Some other values of an option's type."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
        return [v for v in (*_values(hint, current), None) if v != current]
    if hint is bool:
        return [not current]
    if hint is int:
        return [v for v in ((current * 2, current + 1, current // 2) if current else (1, 2, 4)) if v != current]
    if typing.get_origin(hint) is typing.Literal:
        return [v for v in typing.get_args(hint) if v != current]
    return []


def _differences(got: Array, want: Array, tolerance: float) -> tuple[Array, float]:
    """Where elements differ by more than is allowed, and how much that is."""
    dtype = dt.dtype(want.dtype)
    if not dtype.is_float:
        return np.asarray(got != want), 0.0
    wide_got, wide_want = widen(got), widen(want)
    finite = np.isfinite(wide_want)
    eps = float(float_info(want.dtype).eps)
    allowed = tolerance * eps * float(np.max(np.abs(wide_want[finite]), initial=0.0))
    with np.errstate(all="ignore"):
        close = finite & (np.abs(wide_got - wide_want) <= allowed)
    same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
    return np.asarray(~(close | same)), allowed


def reasons_elsewhere(placement: Placement, target: str, most: int = 5) -> dict[str, int]:
    """Why nodes are not on a target, the most frequent first."""
    found: Counter[str] = Counter()
    for p in placement.nodes:
        if p.target != target:
            code, reason = p.refused.get(target, ("no_offer", "it made no offer"))
            found[f"{p.node.op.operator_name}: {reason} [{code}]"] += 1
    kept = dict(found.most_common(most))
    rest = sum(found.values()) - sum(kept.values())
    return {**kept, **({"other reasons": rest} if rest else {})}


def collect() -> None:
    """Gives back what nobody holds."""
    gc.collect()
