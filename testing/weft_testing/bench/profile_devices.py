"""Times of every kernel that a model runs on devices, by the devices' own clocks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft_testing.bench.profile import WARM_RUNS, Call, Profile, described, input_sizes

if TYPE_CHECKING:
    import numpy as np

    from weft.compilation import Compilation
    from weft.graph.nodes import Node
    from weft.mixed import MixedCompilation
    from weft.resolve import ResolvedTarget
    from weft_runtime.executable import Executable

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OnDevices:
    """A model compiled for targets of which at least one is a device."""

    model: str
    compilation: MixedCompilation
    executable: Executable
    threads: int


def compile_on_devices(
    model: str,
    targets: Sequence[ResolvedTarget],
    threads: int,
    *,
    frontend: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> OnDevices:
    """Compiles a model as `weft.compile` does."""
    from weft.cli.terminal import Progress
    from weft.loading import load
    from weft.mixed import MixedCompilation
    from weft.pipeline import specialize

    name = Path(model).name
    with Progress(f"compiling {name}") as progress:
        compilation = MixedCompilation(targets, on_stage=progress.on_stage)
        graph = load(model, frontend=frontend)
        executable = compilation.run(specialize(graph, input_shapes) if input_shapes else graph)
    return OnDevices(name, compilation, executable, threads)


def measure_on_devices(
    profiled: OnDevices, inputs: Mapping[str, Array], seconds: float = 2.0, runs: int | None = None
) -> Profile:
    """Runs the model for so many seconds (at least three times), or exactly so often.

    Raises:
        InputError: no kernel runs on a device, or one of the devices has no clock.
    """
    import numpy as np

    from weft_runtime.device import open_device

    executable = profiled.executable
    steps = launches(profiled)
    if not steps:
        raise InputError(
            f"nothing of '{profiled.model}' runs on a device",
            hint="`weft inspect` shows why; name the host's target alone to profile that",
        )
    devices = {name: open_device(name) for name in executable.manifest.devices}
    whole: list[float] = []
    times: list[Array] = []
    for device in devices.values():
        device.record(True)
    try:
        executable.run(inputs)
        ends = time.perf_counter() + seconds
        while (
            len(times) < WARM_RUNS + runs
            if runs is not None
            else len(times) < WARM_RUNS + 3 or time.perf_counter() < ends
        ):
            for device in devices.values():
                device.recorded()
            started = time.perf_counter()
            executable.run(inputs)
            whole.append(time.perf_counter() - started)
            times.append(_of_run({name: device.recorded() for name, device in devices.items()}, steps))
    finally:
        for device in devices.values():
            device.record(False)
    stacked = np.stack(times[WARM_RUNS:])
    calls: list[Call] = []
    constants = 0.0
    for step in steps:
        part = stacked[:, len(calls) : len(calls) + len(step.launched)]
        found, held = described(step.compilation, step.launched, input_sizes(executable, inputs), part)
        calls += found
        constants += held
    manifest = executable.manifest
    return Profile(
        profiled.model,
        manifest.target,
        profiled.threads,
        len(stacked),
        tuple(calls),
        constants,
        manifest.devices,
        tuple(whole[WARM_RUNS:]),
    )


@dataclass(frozen=True)
class Launched:
    """What one step of a plan launches: kernels' names with their nodes."""

    device: str
    compilation: Compilation
    launched: tuple[tuple[str, Node], ...]


def launches(profiled: OnDevices) -> list[Launched]:
    """Of every step on a device, in order."""
    from weft.graph.group import Group
    from weft_runtime.plan import Copy, DeviceCall

    found = []
    computing = [s for s in profiled.executable.manifest.steps if not isinstance(s, Copy)]
    for step, one in zip(computing, profiled.compilation.regions, strict=True):
        if isinstance(step, DeviceCall):
            nodes = [n for n in one.graphs["fuse"].nodes if isinstance(n.op, Group) and not n.op.view]
            found.append(Launched(step.device, one, tuple(zip([x.kernel for x in step.launches], nodes, strict=True))))
    return found


def _of_run(recorded: Mapping[str, Sequence[tuple[str, float, float]]], steps: Sequence[Launched]) -> Array:
    """Begins and ends of a run's launches in the order of the steps. A device's first launch begins at 0: clocks of
    several have nothing in common."""
    import numpy as np

    left = {name: iter(those) for name, those in recorded.items()}
    first = {name: those[0][1] if those else 0.0 for name, those in recorded.items()}
    times = []
    for step in steps:
        for name, _ in step.launched:
            kernel, start, end = next(left[step.device], ("", 0.0, 0.0))
            if kernel != name:
                hint = None if kernel else "its plugin has no `record`"
                raise InputError(
                    f"device '{step.device}' does not report when kernel '{name}' ran",
                    why=f"it reports '{kernel}'" if kernel else None,
                    hint=hint,
                )
            times.append((start - first[step.device], end - first[step.device]))
    return np.asarray(times, np.float64).reshape(-1, 2)
