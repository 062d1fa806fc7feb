"""What is tuned: a model's kernels, or one formula; and executables of it with other choices."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.choices import Choice, Value
from weft.codegen.segment import KernelCall
from weft.errors import InputError, ScheduleError
from weft.graph.group import Group
from weft.graph.rewrite import copy_graph
from weft.loop.nodes import Program
from weft.records import Record, Records, graph_key, program_key
from weft.resolve import ResolvedTarget
from weft_tuning.spaces import Space

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

Array = np.ndarray[Any, Any]
Chosen = Mapping[str, Mapping[str, Value]]
"""Key of a kernel → its choices by name; kernels that are not there have their defaults."""


@dataclass
class Work(ABC):
    """Kernels that are tuned together.

    Attributes:
        name: for people.
        target: without records of the user's own.
        base: an executable with the defaults and clocks around its kernels.
        inputs: of every run, by name.
        calls: keys of the kernels (`weft.records.program_key`), in the order of their calls in a run.
        names: key → what people know the kernel by.
    """

    name: str
    target: ResolvedTarget
    base: Executable = field(init=False)
    inputs: dict[str, Array] = field(init=False)
    calls: list[str] = field(init=False)
    names: dict[str, str] = field(init=False)

    @abstractmethod
    def space(self, key: str) -> Space:
        """The choices of a kernel."""

    @abstractmethod
    def build(self, chosen: Chosen) -> Executable:
        """An executable as `base`, with these choices."""

    def trial_key(self, key: str) -> str:
        """What trials of a kernel, or of the graph, are kept under: its key, and the sizes of dimensions that are open,
        since a candidate's times at other sizes say nothing."""
        return key

    def limits(self) -> dict[str, float]:
        """Key of a kernel → the share of its time that it takes at least, by the roofline of this machine; of those
        for which it is known."""
        return {}


def require_clocks(target: ResolvedTarget) -> None:
    """That the kernels of a target can be timed.

    Raises:
        InputError: they run on a device of their own, where there are no clocks around them.
    """
    if not target.native:
        raise InputError(
            f"kernels of the target '{target.target.kind}' are not timed",
            why="there are clocks around kernels that run on the host's processor only",
            hint="tune for a target such as llvm or c",
        )


class ModelWork(Work):
    """A model.

    Attributes:
        graph_key: of its graph, as records have it.
        graph_choices: those that graph passes have made.

    Args:
        shapes: sizes of inputs by name; open dimensions that are not there are 1.
        fixed: compile for exactly these sizes; otherwise sizes stay open, and are tuned at these.

    Raises:
        InputError: its plan has steps of the host, branches or loops, between whose kernels there are no clocks; see
            `require_clocks`.
    """

    graph_key: str
    graph_choices: tuple[Choice, ...]

    def __init__(
        self,
        model: Any,
        target: ResolvedTarget,
        *,
        frontend: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        fixed: bool = False,
        files: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        from weft.cli.inputs import make_inputs
        from weft.loading import load
        from weft.pipeline import has_steps, specialize

        require_clocks(target)
        name = Path(model).name if isinstance(model, (str, Path)) else type(model).__name__
        super().__init__(name, replace(target, tuned=False))
        graph = load(model, frontend=frontend)
        if has_steps(graph):
            raise InputError(
                f"the kernels of '{name}' are not timed",
                why="its plan has steps of the host, branches or loops, and no clocks around the kernels between them",
                hint="tune the part between them as a model of its own",
            )
        if fixed and shapes:
            graph = specialize(graph, shapes)
        self.graph_key = graph_key(graph)
        self._graph = graph
        self._compile({})
        self.inputs, _ = make_inputs(self.base.inputs, dict(files or {}), dict(shapes or {}), seed)

    def _compile(self, chosen: Mapping[str, Value]) -> None:
        """Makes `base`, and all that goes with it, with these choices of graph passes."""
        from weft.compilation import Compilation

        graph = copy_graph(self._graph)  # passes change what they are given
        records = (Record("graph", graph_key(graph), self.target.machine_key, chosen),) if chosen else ()
        first = Compilation(replace(self.target, given=Records(records), applied=set(), refused=[]), profile=True)
        self._first = first
        self._prepared = first.prepare(graph)
        self.base = first.run_prepared(self._prepared)
        self.graph_choices = first.choices
        assert first.assembly is not None
        kernels = [first.kernels[i.kernel] for i in first.assembly.spec.items if isinstance(i, KernelCall)]
        self._naive: dict[str, Program] = {}
        keys: dict[str, str] = {}
        for kernel in kernels:
            if kernel.name not in keys:
                key = keys[kernel.name] = program_key(kernel.naive)
                self._naive[key] = kernel.naive
        self.calls = [keys[kernel.name] for kernel in kernels]
        self.names = {key: name.rpartition("_")[0] for name, key in keys.items()}
        self._kernel_of = {
            value.name: key
            for key, node in zip(self.calls, first.assembly.calls, strict=True)
            for inner in (node, *(node.op.body.nodes if isinstance(node.op, Group) else ()))
            for value in inner.outputs
        }

    def kernel_of(self, value: str) -> str | None:
        """The key of the kernel that computes a value, by its name; None if none does."""
        return self._kernel_of.get(value)

    def with_graph(self, chosen: Mapping[str, Value]) -> ModelWork:
        """The same model with these choices of graph passes.

        Raises:
            WeftError: the passes cannot follow them, or what they make cannot be compiled.
        """
        made = copy(self)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")  # of a record that is not followed, which is an error here
            made._compile(chosen)
        if made._first.refused:
            raise ScheduleError("the graph's choices cannot be followed", why=made._first.refused)
        return made

    def space(self, key: str) -> Space:
        return Space(self._naive[key], self.target)

    def trial_key(self, key: str) -> str:
        of = self._naive.get(key)
        return key if of is not None and not of.dims else _at_sizes(key, self.base, self.inputs)

    def build(self, chosen: Chosen) -> Executable:
        from weft.compilation import Compilation

        return Compilation(_with(self.target, chosen), profile=True).run_prepared(self._prepared)

    def limits(self) -> dict[str, float]:
        from weft_testing.bench.limits import measure_limits
        from weft_testing.bench.profile import Profiled, measure
        from weft_testing.bench.roofline import roofline

        if self.base.foreign:
            return {}
        threads = self.target.threads or self.target.machine.cores
        profile = measure(Profiled(self.name, self._first, self.base, threads), self.inputs, 0.5)
        keys = {kernel.name: program_key(kernel.naive) for kernel in self._first.kernels.values()}
        rows = roofline(profile, measure_limits(self.target, threads))
        return {keys[row.kernel]: min(1.0, row.share) for row in rows if row.share is not None}


class FormulaWork(Work):
    """A formula of the user's own, or a naive program.

    Args:
        sizes: of its symbols, by name; those that are not there are 1.
        inputs: by name, instead of random ones.

    Raises:
        InputError: a size is of no symbol; see `require_clocks`.
    """

    def __init__(
        self,
        program: Program,
        target: ResolvedTarget,
        *,
        sizes: Mapping[str, int] | None = None,
        inputs: Mapping[str, Array] | None = None,
        seed: int = 0,
    ) -> None:
        from weft.cli.inputs import make_inputs, size_of

        require_clocks(target)
        super().__init__(program.name, replace(target, tuned=False))
        self.program = program
        symbols = {d.name: 1 for d in program.dims}
        for name in sizes or {}:
            if name not in symbols:
                raise InputError(
                    f"'{name}' is no symbol of '{program.name}'", hint=f"its symbols are {', '.join(symbols) or 'none'}"
                )
        symbols.update(sizes or {})
        key = program_key(program)
        self.calls, self.names = [key], {key: program.name}
        self._space = Space(program, self.target)
        self.base = self.build({})
        shapes = {info.name: tuple(size_of(info, d, symbols, []) for d in info.shape) for info in self.base.inputs}
        made, _ = make_inputs(self.base.inputs, {}, shapes, seed)
        self.inputs = {**made, **(inputs or {})}

    def space(self, key: str) -> Space:
        return self._space

    def trial_key(self, key: str) -> str:
        return _at_sizes(key, self.base, self.inputs)

    def build(self, chosen: Chosen) -> Executable:
        from weft.kernel import KernelSchedule, executable_of
        from weft.scheduling.run_rules import run_recorded

        target = self.target
        (key,) = self.names
        choices = dict(chosen.get(key, self._space.default.choices))
        made = run_recorded(target.rules, self.program, target.machine, target.intrinsics, target.exceeds, choices)
        scheduled = KernelSchedule(made.schedule.program, target)
        return executable_of(scheduled, profile=True)


def _at_sizes(key: str, base: Executable, inputs: Mapping[str, Array]) -> str:
    """The key, and the sizes of the inputs' open dimensions."""
    sizes = {
        dim: size
        for info in base.inputs
        for dim, size in zip(info.shape, np.shape(inputs[info.name]))
        if isinstance(dim, str)
    }
    return f"{key}@{','.join(f'{d}={n}' for d, n in sorted(sizes.items()))}" if sizes else key


def _with(target: ResolvedTarget, chosen: Chosen) -> ResolvedTarget:
    records = tuple(Record("program", key, target.machine_key, choices) for key, choices in chosen.items())
    return replace(target, given=Records(records), applied=set(), refused=[])
