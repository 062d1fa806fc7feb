"""Times of every kernel inside real runs of a model, on the buffers that it really has, beside what each has to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from weft.compilation import Compilation
    from weft.graph.nodes import Node
    from weft.resolve import ResolvedTarget
    from weft_runtime.executable import Executable

    Array = np.ndarray[Any, Any]

WARM_RUNS = 3


@dataclass(frozen=True)
class Call:
    """One kernel call of a run.

    Attributes:
        kernel: its name; equal kernels are one.
        rule: the schedule rule that made it.
        nodes: the framework's names of what it computes.
        flop: floating-point operations, None where a size depends on data.
        constants, others: bytes of constants, and of other values, that it reads or writes; see `count_work`.
        start, end: seconds since the first kernel began, in every run.
    """

    kernel: str
    rule: str
    nodes: tuple[str, ...]
    flop: float | None
    constants: float
    others: float
    start: tuple[float, ...]
    end: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(e - s for s, e in zip(self.start, self.end))


@dataclass(frozen=True)
class Profile:
    """Of a model on a target: its calls in order of execution, `runs` times each; `all_constants` bytes of constants a
    run reads.

    On devices with clocks of their own (`devices`, by name) the calls are theirs, and what the host computes and copies
    is not among them; `whole` are the seconds of every run as its caller sees them.
    """

    model: str
    target: str
    threads: int
    runs: int
    calls: tuple[Call, ...]
    all_constants: float
    devices: tuple[str, ...] = ()
    whole: tuple[float, ...] = ()

    def totals(self) -> list[float]:
        """Seconds from the first kernel's beginning to the last one's end, for every run."""
        return [max(c.end[k] for c in self.calls) for k in range(self.runs)] if self.calls else [0.0] * self.runs

    @property
    def median(self) -> float:
        return statistics.median(self.totals())

    def as_data(self) -> dict[str, Any]:
        """Kernels by the time that they take, all calls of one together, for JSON."""
        kernels: dict[str, list[Call]] = {}
        for call in self.calls:
            kernels.setdefault(call.kernel, []).append(call)
        rows = []
        for name, calls in kernels.items():
            seconds = sum(c.median for c in calls)
            flop = None if any(c.flop is None for c in calls) else sum(c.flop or 0.0 for c in calls)
            moved = None if flop is None else sum(c.constants + c.others for c in calls)
            nodes = list(dict.fromkeys(n for c in calls for n in c.nodes))
            rows.append(
                {
                    "kernel": name,
                    "rule": calls[0].rule,
                    "calls": len(calls),
                    "seconds": seconds,
                    "flop": flop,
                    "bytes": moved,
                    "nodes": nodes,
                }
            )
        return {
            "model": self.model,
            "target": self.target,
            "threads": self.threads,
            "runs": self.runs,
            "devices": list(self.devices),
            "median": self.median,
            "whole": statistics.median(self.whole) if self.whole else None,
            "in_kernels": sum(c.median for c in self.calls),
            "kernels": sorted(rows, key=lambda r: r["seconds"], reverse=True),
        }


@dataclass(frozen=True)
class Profiled:
    """A model compiled with clocks around its kernels."""

    model: str
    compilation: Compilation
    executable: Executable
    threads: int


def compile_profiled(
    model: str,
    target: ResolvedTarget,
    threads: int,
    *,
    frontend: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Profiled:
    """Compiles a model; its kernels come from the cache if they are there, and are those of an ordinary compilation."""
    from weft.cli.terminal import Progress
    from weft.compilation import Compilation
    from weft.loading import load
    from weft.pipeline import has_steps, specialize

    name = Path(model).name
    with Progress(f"compiling {name}") as progress:
        compilation = Compilation(target, on_stage=progress.on_stage, profile=True)
        graph = load(model, frontend=frontend)
        if has_steps(graph):
            why = "its plan has steps of the host, branches or loops, and no clocks around the kernels between them"
            raise InputError(
                f"the kernels of '{name}' are not timed",
                why=why,
                hint="`weft bench` times whole runs, `weft inspect` shows its steps",
            )
        executable = compilation.run(specialize(graph, input_shapes) if input_shapes else graph)
    return Profiled(name, compilation, executable, threads)


def measure(profiled: Profiled, inputs: Mapping[str, Array], seconds: float = 2.0, runs: int | None = None) -> Profile:
    """Runs the model for so many seconds (at least three times), or exactly so often."""
    import numpy as np

    from weft.codegen.profile import PROFILE

    executable = profiled.executable
    for _ in range(WARM_RUNS):
        executable.run(inputs)
    stamps: list[Array] = []
    returned: list[float] = []
    ends = time.perf_counter() + seconds
    while len(stamps) < runs if runs is not None else len(stamps) < 3 or time.perf_counter() < ends:
        stamps.append(executable.run(inputs)[PROFILE])
        returned.append(time.perf_counter())
    ticks = np.stack(stamps)  # run, call, begin or end
    if ticks.shape[1]:
        tick = seconds_per_tick(executable, inputs, int(ticks[0, -1, 1]), returned[0])
        times = (ticks - ticks[:, :1, :1]) * tick
    else:
        times = ticks.astype(np.float64)
    return Profile(
        profiled.model, executable.manifest.target, profiled.threads, len(stamps), *_calls(profiled, inputs, times)
    )


def seconds_per_tick(executable: Executable, inputs: Mapping[str, Array], stamp: int, returned: float) -> float:
    """What a tick of the kernels' clock lasts: between two ends of runs that lie a quarter of a second apart or
    more."""
    from weft.codegen.profile import PROFILE

    while True:
        last = int(executable.run(inputs)[PROFILE][-1, 1])
        now = time.perf_counter()
        if now - returned >= 0.25:
            return (now - returned) / max(1, last - stamp)


def _calls(profiled: Profiled, inputs: Mapping[str, Array], times: Array) -> tuple[tuple[Call, ...], float]:
    from weft.codegen.segment import KernelCall

    assembly = profiled.compilation.assembly
    assert assembly is not None
    names = [item.kernel for item in assembly.spec.items if isinstance(item, KernelCall)]
    return described(
        profiled.compilation, list(zip(names, assembly.calls)), input_sizes(profiled.executable, inputs), times
    )


def described(
    compilation: Compilation, launched: Sequence[tuple[str, Node]], sizes: Mapping[str, int], times: Array
) -> tuple[tuple[Call, ...], float]:
    """Calls, and bytes of the constants that they read: a kernel's name and its node each, `times` their begins and
    ends (run, call, begin or end)."""
    from weft.expr.evaluate import evaluate
    from weft.expr.nodes import free_vars
    from weft.loop.work import Work, count_work
    from weft.scheduling.rule import select_rule

    target = compilation.target
    functions = target.codegen().functions
    works: dict[tuple[str, tuple[tuple[str, int], ...]], Work | None] = {}
    rules: dict[str, str] = {}
    calls = []
    held: dict[str, float] = {}
    for k, (name, node) in enumerate(launched):
        kernel = compilation.kernels[name]
        formulas = compilation.symbols_of(node)
        known = {own: int(evaluate(f, sizes)) for own, f in formulas.items() if free_vars(f).keys() <= sizes.keys()}
        key = kernel.name, tuple(known.items())
        if key not in works:
            works[key] = count_work(kernel.naive, functions, known)
        work = works[key]
        constants, others = (0.0, 0.0) if work is None else split_bytes(node, work.bytes)
        for value in node.inputs:
            if value is not None and value.constant is not None:
                held[value.name] = value.constant.nbytes
        # A kernel from the cache was not scheduled now; the same rule would take it again.
        rule = rules[kernel.name] = (
            rules.get(kernel.name)
            or kernel.rule
            or select_rule(target.rules, kernel.naive, target.machine, target.intrinsics)[0].name
        )
        start, end = (tuple(times[:, k, side].tolist()) for side in (0, 1))
        calls.append(
            Call(
                kernel.name,
                rule,
                tuple(sorted(node.names)),
                None if work is None else work.flop,
                constants,
                others,
                start,
                end,
            )
        )
    return tuple(calls), sum(held.values())


def split_bytes(node: Node, moved: Sequence[float]) -> tuple[float, float]:
    """(constants, others) of the bytes of a node's inputs and outputs, in that order."""
    values = [v for v in node.inputs if v is not None] + list(node.outputs)
    constants = sum(b for v, b in zip(values, moved) if v.constant is not None)
    return constants, sum(moved) - constants


def input_sizes(executable: Executable, inputs: Mapping[str, Array]) -> dict[str, int]:
    """What the symbols of input dimensions are for these inputs."""
    return {
        d: size
        for info in executable.inputs
        for d, size in zip(info.shape, inputs[info.name].shape)
        if isinstance(d, str)
    }
