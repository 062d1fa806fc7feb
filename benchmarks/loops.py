"""What an iteration of a loop costs: a Scan and a Loop whose body is a small recurrence, beside ONNX Runtime.

    python -m benchmarks.loops [--trips N] [--width N] [--threads N] [--repeat N] [--json FILE]

h = tanh(x W + h U), one row of `--width` floats, `--trips` times: `scan` takes its rows from a tensor; `loop` takes row
i by Gather and asks after every iteration whether h is still small. Each is measured as it runs and with every
iteration started by the runtime, as an archive without native loops does; all in one process, in turns, on the same
inputs. Results are compared.
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

from benchmarks.arguments import write_report
from benchmarks.engine_process import WEFT, peers

MODELS = ("scan", "loop")


def model(name: str, trips: int, width: int, path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((width, width)) / width).astype(np.float32), n) for n in "WU"
    ]
    info, node = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT), helper.make_node
    step = [
        node("MatMul", ["row", "W"], ["a"]),
        node("MatMul", ["h", "U"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Tanh", ["c"], ["g"]),
        node("Identity", ["g"], ["y"]),
    ]
    row = [1, width]
    if name == "scan":
        inputs, outputs = [info("h", shape=row), info("row", shape=row)], [info("g", shape=row), info("y", shape=row)]
        body = helper.make_graph(step, "body", inputs, outputs)
        nodes = [node("Scan", ["h0", "x"], ["last", "all"], body=body, num_scan_inputs=1)]
    else:
        step = [
            node("Gather", ["x", "i"], ["row"], axis=0),
            *step,
            node("ReduceMax", ["g"], ["most"], keepdims=0),
            node("Less", ["most", "limit"], ["small"]),
        ]
        inputs = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            info("h", shape=row),
        ]
        outputs = [
            helper.make_tensor_value_info("small", TensorProto.BOOL, []),
            info("g", shape=row),
            info("y", shape=row),
        ]
        body = helper.make_graph(step, "body", inputs, outputs)
        weights += [
            numpy_helper.from_array(np.array(trips), "n"),
            numpy_helper.from_array(np.array(2, np.float32), "limit"),
        ]
        nodes = [node("Loop", ["n", "", "h0"], ["last", "all"], body=body)]
    ends = (
        [info("h0", shape=row), info("x", shape=[trips, *row])],
        [info("last", shape=row), info("all", shape=[trips, *row])],
    )
    graph = helper.make_graph(nodes, name, *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def callers(path: Path, inputs: dict[str, Any], threads: int) -> dict[str, Callable[[], Any]]:
    """name → a call with its inputs bound; what it gives by name."""
    import weft

    executable = weft.compile(path, f"llvm -threads={threads}", cache=False)
    slow = weft.Executable(executable.manifest.with_(loops=None), executable._code, executable._constants)
    found: dict[str, Callable[[], Any]] = {
        WEFT: partial(executable.run, inputs),
        f"{WEFT}, iteration by iteration": partial(slow.run, inputs),
    }
    for name, kind in peers().items():
        found[name] = partial(kind.open(str(path), threads), inputs)
    return found


def measure(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-2, repeat):
        for name, call in calls.items():
            call()  # nobody starts with the other's caches
            began = time.perf_counter()
            call()
            if number >= 0:
                times[name].append(time.perf_counter() - began)
    return times


def difference(results: Any, wanted: Any) -> float:
    pairs = zip(*([*r.values()] if isinstance(r, dict) else [*r] for r in (results, wanted)))
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.loops", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trips", type=int, default=1000, help="of a run [%(default)s]")
    parser.add_argument("--width", type=int, default=64, help="of the recurrence [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="of every engine [%(default)s]")
    parser.add_argument("--repeat", type=int, default=50, help="turns of every engine [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(1)
    row = (1, options.width)
    inputs = {
        "h0": rng.standard_normal(row).astype(np.float32),
        "x": rng.standard_normal((options.trips, *row)).astype(np.float32),
    }
    rows, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            calls = callers(
                model(name, options.trips, options.width, Path(folder) / f"{name}.onnx"), inputs, options.threads
            )
            wanted = calls[WEFT]()
            off = {engine: difference(call(), wanted) for engine, call in calls.items()}
            for engine, own in measure(calls, options.repeat).items():
                each, least = statistics.median(own) / options.trips, min(own) / options.trips
                rows.append((name, engine, f"{each * 1e6:.2f} µs", f"{least * 1e6:.2f} µs", f"{off[engine]:.1e}"))
                results.append(
                    {"model": name, "engine": engine, "median": each, "best": least, "difference": off[engine]}
                )
    print_table(
        f"an iteration of {options.trips}, {options.width} wide, {options.threads} thread(s)",
        ("model", "engine", "median", "least", "difference"),
        rows,
    )
    write_report(options, results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
