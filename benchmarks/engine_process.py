"""One engine with one model in a process of its own, which runs when it is told to and otherwise sleeps.

Separate processes keep the engines' thread pools apart and give each a peak memory of its own; taking turns, told by
the parent over a pipe, exposes all of them to the same moods of the machine. One line of JSON per request and answer:

    python -m benchmarks.engine_process ENGINE MODEL.onnx THREADS OUT.npz        → {"version": …, "open": s, "first": s}
    {"do": "turn", "calls": n, "seconds": s}                                     → {"times": [s, …]}
    {"do": "memory"}                                                             → {"peak": bytes, "base": bytes before
        opening, "children": bytes}
    {"do": "end"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], list[Any]]

WEFT, TORCH = "weft", "torch.compile"


def find_engine(name: str) -> Callable[[Path, int], tuple[str, Run]]:
    """(model, threads) → the engine's version and a function of inputs by name, with everything done that can be done
    before the first call.

    What opening takes includes the import of the engine, and nothing of the others.
    """
    if name == WEFT:
        return open_weft
    if name == TORCH:
        return open_torch
    kind = peers()[name]
    return lambda path, threads: (kind.available() or "?", kind.open(str(path), threads))


def open_weft(path: Path, threads: int) -> tuple[str, Run]:
    import weft
    from weft.plugins import host

    # No cache: compile time is that of a model never seen before.
    executable = weft.compile(path, f"llvm -threads={threads}", cache=False)
    return host().api_version, lambda inputs: list(executable.run(inputs).values())


def open_torch(path: Path, threads: int) -> tuple[str, Run]:
    from benchmarks.models import torch_model

    made = torch_model(path.stem)
    import torch

    torch.set_num_threads(threads)
    compiled = torch.compile(made.module)

    def run(inputs: Mapping[str, Array]) -> list[Any]:
        with torch.inference_mode():
            return [compiled(*(torch.from_numpy(inputs[n]) for n in made.names)).numpy()]

    return torch.__version__, run


def peers() -> dict[str, Any]:
    """Engines of installed plugins that are themselves installed and read ONNX, by name."""
    from weft.plugins import host

    kinds = [item.value for item in host().items("engines")]
    return {k.name: k for k in kinds if k.available() and (not k.frontends or "onnx" in k.frontends)}


def peak_bytes() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def children_bytes() -> int:
    """Peaks of the processes that this one has started (compile workers, say), together; 0 where the system does not
    tell."""
    total = 0
    for file in Path("/proc/self/task").glob("*/children"):
        for child in file.read_text().split():
            try:
                lines = Path(f"/proc/{child}/status").read_text().splitlines()
            except OSError:
                continue  # it ended meanwhile
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return total


def turn(run: Run, inputs: Mapping[str, Array], calls: int, seconds: float) -> list[float]:
    """Seconds of up to `calls` calls, after one that is not counted: it wakes threads and fills caches that the others'
    turns emptied."""
    run(inputs)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < calls and (not times or time.perf_counter() < until):
        began = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - began)
    return times


def main(arguments: list[str], source: IO[str], sink: IO[str]) -> None:
    engine, path, threads, out = arguments[0], Path(arguments[1]), int(arguments[2]), arguments[3]
    with np.load(path.with_suffix(".npz")) as archive:
        inputs = {name: archive[name] for name in archive.files if name != "out"}
    open_engine, base = find_engine(engine), peak_bytes()
    began = time.perf_counter()
    version, run = open_engine(path, threads)
    opened = time.perf_counter()
    results = run(inputs)
    first = time.perf_counter()
    np.savez(out, *[np.asarray(r) for r in results])

    def answer(**fields: Any) -> None:
        sink.write(json.dumps(fields) + "\n")
        sink.flush()

    answer(version=version, open=opened - began, first=first - opened)
    for line in source:
        request = json.loads(line)
        if request["do"] == "turn":
            answer(times=turn(run, inputs, request["calls"], request["seconds"]))
        elif request["do"] == "memory":
            answer(peak=peak_bytes(), base=base, children=children_bytes())
        else:
            return


if __name__ == "__main__":
    # Libraries print what they like to standard output; the answers keep a pipe of their own.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        main(sys.argv[1:], sys.stdin, answers)
    sys.stdout.flush()
    os._exit(0)  # no engine's orderly end is of interest, and some take seconds
