"""Times of a model's kernels, for the page of `weft inspect --html`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.resolve import ResolvedTarget


def measure(
    model: str,
    resolved: Sequence[ResolvedTarget],
    frontend: str | None,
    shapes: Mapping[str, Sequence[int]] | None,
    steps: bool,
    seconds: float = 1.0,
) -> dict[str, Any]:
    """Kernels' times and shares of what the processor can do, from runs on random inputs; `unmeasured` says why there
    are none.

    Args:
        steps: the model is more than one native segment on the host, of which only whole runs are timed.
    """
    from weft.cli.inputs import make_inputs
    from weft.errors import WeftError
    from weft.pipeline import mixed
    from weft_testing.bench.limits import measure_limits
    from weft_testing.bench.profile import compile_profiled, input_sizes, measure
    from weft_testing.bench.profile_devices import compile_on_devices, measure_on_devices
    from weft_testing.bench.roofline import as_data, roofline
    from weft_testing.bench.turns import common_threads, machine

    threads = common_threads(None, [str(r.target) for r in resolved])
    try:
        if steps and not mixed(resolved):
            return _whole_runs(model, resolved[0], threads, frontend, shapes or {}, seconds)
        if mixed(resolved):
            on_devices = compile_on_devices(model, resolved, threads, frontend=frontend, input_shapes=shapes)
            inputs, _ = make_inputs(on_devices.executable.inputs, {}, shapes or {}, 0)
            profile = measure_on_devices(on_devices, inputs, seconds)
            return {"machine": machine(), "sizes": input_sizes(on_devices.executable, inputs), **profile.as_data()}
        profiled = compile_profiled(model, resolved[0], threads, frontend=frontend, input_shapes=shapes)
        inputs, _ = make_inputs(profiled.executable.inputs, {}, shapes or {}, 0)
        profile = measure(profiled, inputs, seconds)
        limits = measure_limits(resolved[0], threads)
        calls = [{"kernel": c.kernel, "seconds": c.median, "nodes": sorted(c.nodes)} for c in profile.calls]
        return {
            "sizes": input_sizes(profiled.executable, inputs),
            "calls": calls,
            **as_data(profile, limits, roofline(profile, limits)),
        }
    except WeftError as error:
        return {"unmeasured": str(error), "sizes": {}, "kernels": []}


def _whole_runs(
    model: str,
    target: ResolvedTarget,
    threads: int,
    frontend: str | None,
    shapes: Mapping[str, Sequence[int]],
    seconds: float,
) -> dict[str, Any]:
    """What a run takes, of a plan of several steps."""
    from weft.cli.inputs import make_inputs
    from weft.cli.opening import open_executable
    from weft_testing.bench.profile import WARM_RUNS, input_sizes
    from weft_testing.bench.turns import machine, with_threads

    executable, _ = open_executable(
        model, with_threads(str(target.target), threads), frontend=frontend, input_shapes=shapes or None
    )
    inputs, _ = make_inputs(executable.inputs, {}, shapes, 0)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < WARM_RUNS + 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        executable.run(inputs)
        times.append(time.perf_counter() - started)
    why = "only whole runs are timed of a plan with steps of the host, branches or loops"
    facts = {"median": statistics.median(times[WARM_RUNS:]), "runs": len(times) - WARM_RUNS}
    return {"machine": machine(), "sizes": input_sizes(executable, inputs), "unmeasured": why, "kernels": [], **facts}
