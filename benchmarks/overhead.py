"""What a call costs from Python when there is nothing to compute: one Add of 16 floats. Weft's limit is 10 µs.

    python -m benchmarks.overhead [--repeat N] [--threads N] [--json FILE]

All engines in one process, in turns; a time is the mean of a hundred calls in a row.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import judge, machine, write_report
from benchmarks.engine_process import WEFT, peers

LIMIT = 10e-6
CALLS = 100


def add_model(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16]) for n in ("x", "y", "out")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["out"])], "add", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def callers(path: Path, threads: int) -> dict[str, Callable[[], Any]]:
    """name → a call with its inputs bound, as each engine's users write it."""
    import weft

    x, y = (np.arange(16, dtype=np.float32) * k for k in (1, 2))
    executable = weft.compile(path, f"llvm -threads={threads}")
    inputs = {"x": x, "y": y}
    found: dict[str, Callable[[], Any]] = {
        f"{WEFT}: exe(x, y)": lambda: executable(x, y),
        f"{WEFT}: exe.run({{…}})": lambda: executable.run(inputs),
    }
    for name, kind in peers().items():
        run = kind.open(str(path), threads)
        found[name] = partial(run, inputs)
    return found


def measure(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, repeat):
        for name, call in calls.items():
            call()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            if number >= 0:
                times[name].append((time.perf_counter() - began) / CALLS)
    return times


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=200, help="turns of every engine [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="of every engine [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        times = measure(callers(add_model(Path(folder) / "add.onnx"), options.threads), options.repeat)
    rows, results, kept = [], [], True
    for name, own in times.items():
        median, best = statistics.median(own), min(own)
        verdict = judge(median, LIMIT) if name.startswith(WEFT) else ""
        kept &= verdict != "over"
        rows.append(
            [name, f"{median * 1e6:.2f}", f"{best * 1e6:.2f}", f"{LIMIT * 1e6:.0f}" if verdict else "", verdict]
        )
        results.append({"engine": name, "median": median, "best": best, "limit": LIMIT if verdict else None})
    print_table(
        f"One Add of 16 floats, {options.threads} thread(s), {machine()['cpu']}",
        ["call", "median µs", "best µs", "limit µs", ""],
        rows,
        right=(1, 2, 3),
    )
    write_report(options, results=results)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
