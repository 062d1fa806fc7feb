"""Engines that run one model in one process, in turns, so that changes of the machine's speed affect all of them."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PAUSE = 0.1
"""Before each turn: the threads of the engine before may still be spinning for work, some of them for 60 ms."""
TURN_SECONDS, TURN_CALLS = 0.05, 10
"""A turn is one call that is not counted, then as many as fit."""
WARM_SECONDS, WARM_CALLS = 0.3, 3


@dataclass
class Contestant:
    """One engine with the model loaded. `times` are seconds per call."""

    name: str
    version: str
    run: Callable[[], Sequence[Array]]
    prepare_seconds: float
    prepared: str = "opened"
    """How it came to be: compiled, taken from the cache, loaded from an archive, or opened by a peer."""
    times: list[float] = field(default_factory=list)
    difference: float | None = None
    timed: Callable[[], Sequence[float]] | None = None
    """One turn, timed where it runs; None: here."""

    @property
    def median(self) -> float:
        return statistics.median(self.times)


CACHED = "from the cache"


def prepared_by(stages: Mapping[str, float]) -> str:
    """How an executable came to be, from the stages of `open_executable`."""
    return "loaded" if not stages else "compiled" if "fuse" in stages else CACHED


def common_threads(asked: int | None, targets: Sequence[str]) -> int:
    """Threads of every engine: as asked, else the most that a target's -threads says, else as many CPUs as this process
    may use.

    Raises:
        InputError: a target says another number than was asked for.
    """
    from weft.resolve import resolve_targets
    from weft_runtime.threads import available_threads

    said = {text: r.threads for text in targets for r in resolve_targets(text) if r.threads}
    for text, threads in said.items():
        if asked is not None and threads != asked:
            raise InputError(
                f"--threads {asked} is for every engine, and the target '{text}' says {threads}",
                hint="give one of them",
            )
    return asked or max(said.values(), default=available_threads())


def with_threads(target: str, threads: int) -> str:
    """The target with -threads, where its kind has that option and the text does not give it."""
    import dataclasses

    from weft.resolve import target_kinds

    kind = target_kinds().get(target.split()[0])
    takes = kind is not None and any(f.name == "threads" for f in dataclasses.fields(kind.options))
    return f"{target} -threads={threads}" if takes and "-threads" not in target else target


def warm_up(contestants: Sequence[Contestant], show: Callable[[str], None]) -> None:
    """Calls everyone until caches are warm, and compares results with the first contestant's."""

    expected: Sequence[Array] = ()
    for c in contestants:
        show(f"warming up {c.name}")
        results = list(c.run())
        if c is contestants[0]:
            expected = results
        else:
            c.difference = largest_difference(expected, results)
        ends, calls = time.perf_counter() + WARM_SECONDS, 1
        while calls < WARM_CALLS or time.perf_counter() < ends:
            c.run()
            calls += 1


def largest_difference(expected: Sequence[Array], results: Sequence[Array]) -> float:
    """The largest difference of any element as a share of the largest element; infinite for results of other shapes,
    and of strings that differ."""
    import numpy as np

    if len(expected) != len(results):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, results):
        if isinstance(one, list) and isinstance(other, list):
            worst = max(worst, largest_difference(one, other))
            continue
        if one is None or other is None:
            worst = worst if one is other else float("inf")
            continue
        e, r = np.asarray(one), np.asarray(other)
        if e.shape != r.shape:
            return float("inf")
        if e.dtype.kind in "OSTU":
            worst = worst if np.array_equal(e.astype(np.str_), r.astype(np.str_)) else float("inf")
        elif e.size:
            wide = np.complex128 if e.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore"):
                gap = np.abs(e.astype(wide) - r.astype(wide))
            scale = float(np.nanmax(np.abs(e.astype(wide)), initial=0.0))
            worst = max(worst, float(np.nanmax(gap, initial=0.0)) / (scale or 1.0))
    return worst


def take_turns(
    contestants: Sequence[Contestant], limit: float, rounds: int | None, show: Callable[[str], None]
) -> None:
    """Round-robin, the first of each round another one, until the time is over (at least three rounds) or the rounds
    are done."""
    ends, done = time.perf_counter() + limit, 0
    while done < rounds if rounds is not None else done < 3 or time.perf_counter() < ends:
        at = done % len(contestants)
        for c in (*contestants[at:], *contestants[:at]):
            show(f"round {done + 1}: {c.name}")
            turn(c)
        done += 1


def turn(c: Contestant) -> None:
    time.sleep(PAUSE)
    if c.timed is not None:
        c.times += c.timed()
        return
    c.run()
    ends = time.perf_counter() + TURN_SECONDS
    for _ in range(TURN_CALLS):
        started = time.perf_counter()
        c.run()
        now = time.perf_counter()
        c.times.append(now - started)
        if now > ends:
            break


def as_data(model: str, contestants: Sequence[Contestant], inputs: Mapping[str, Array], threads: int) -> dict[str, Any]:
    """Everything measured, for JSON."""
    first = contestants[0].median
    return {
        "model": Path(model).name,
        "machine": machine(),
        "threads": threads,
        "inputs": {name: _described(a) for name, a in inputs.items()},
        "engines": [
            {
                "name": c.name,
                "version": c.version,
                "median": c.median,
                "fastest": min(c.times),
                "p90": sorted(c.times)[int(len(c.times) * 0.9)],
                "ratio": c.median / first,
                "difference": c.difference,
                "prepare_seconds": c.prepare_seconds,
                "prepared": c.prepared,
                "times": c.times,
            }
            for c in contestants
        ],
    }


def _described(value: Any) -> Any:
    """The type of an input; of a sequence those of its elements."""
    return (
        [_described(v) for v in value]
        if isinstance(value, list)
        else {"dtype": str(value.dtype), "shape": list(value.shape)}
    )


def machine() -> dict[str, str]:
    return {"processor": processor_name(), "system": platform.platform(), "python": platform.python_version()}


def processor_name() -> str:
    """The processor as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
