"""What threads cost and gain: a fork-join, every kernel on several threads beside one, latencies when callers share the
processor.

    python -m benchmarks.threads [--models …] [--only join,kernels,callers] [--threads N] [--callers N] [--seconds S]
        [--json FILE]

join     a parallel loop of N empty tasks: microseconds of the caller, its workers awake, and asleep before
kernels  seconds on one thread ÷ (seconds on N × N), of every kernel at its fastest, runs of both taking turns; the
kernels that lose most callers  so many threads call one executable at once: median and 99th percentile of a call,
beside ONNX Runtime where it is installed
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import add_model_arguments, machine, prepared_models, write_report

SHOWN = 8
ASLEEP_SECONDS = 2e-3
FORKS = """
define internal void @empty(ptr %ctx, ptr %closure, i64 %index, i64 %thread) {
  ret void
}
define void @forks(ptr %ctx, i64 %times, i64 %tasks) {
  %at = getelementptr i8, ptr %ctx, i64 PARALLEL_FOR
  %fork = load ptr, ptr %at
  br label %next
next:
  %k = phi i64 [ 0, %0 ], [ %more, %next ]
  %status = call i32 %fork(ptr %ctx, ptr @empty, ptr null, i64 %tasks)
  %more = add i64 %k, 1
  %again = icmp ult i64 %more, %times
  br i1 %again, label %next, label %done
done:
  ret void
}
"""


def measure_join(threads: int) -> list[dict[str, Any]]:
    """Seconds of a fork-join of one empty task for each thread: the least of many with workers awake, the median with
    workers asleep."""
    from weft.resolve import resolve_target
    from weft_llvm.codegen import LlvmCodegen
    from weft_llvm.link import link
    from weft_llvm.toolchain import compile_object
    from weft_runtime.abi import OFFSETS, Context
    from weft_runtime.loader import Code, imports_table
    from weft_runtime.threads import process_pool

    target = resolve_target("llvm")
    codegen = target.kind.codegen(target.target)
    assert isinstance(codegen, LlvmCodegen)
    cpu = codegen.cpu
    pool = process_pool()
    image = link({"forks": compile_object(FORKS.replace("PARALLEL_FOR", str(OFFSETS["parallel_for"])), cpu)})
    code = Code(image.bytes, image.entries)
    forks = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address("forks"))
    context = Context(
        imports=ctypes.addressof(imports_table()), pool=pool.state, parallel_for=pool.parallel_for, threads=threads
    )
    address = ctypes.addressof(context)

    def once(times: int) -> float:
        began = time.perf_counter()
        forks(address, times, threads)
        return (time.perf_counter() - began) / times

    awake = min(once(2000) for _ in range(40))
    asleep = []
    for _ in range(100):
        time.sleep(ASLEEP_SECONDS)
        asleep.append(once(1))
    return [{"what": "join", "threads": threads, "awake": awake, "asleep": float(np.median(asleep))}]


def measure_kernels(name: str, path: Path, threads: int, seconds: float) -> list[dict[str, Any]]:
    """Per kernel call the least seconds on one thread and on `threads`; the clocks are those of `weft bench
    --roofline`."""
    from weft.resolve import resolve_target
    from weft_testing.bench.profile import compile_profiled, measure

    inputs = load_inputs(path)
    profiled = {n: compile_profiled(str(path), resolve_target(f"llvm -threads={n}"), n) for n in (1, threads)}
    least: dict[int, dict[int, float]] = {n: {} for n in profiled}
    names: dict[int, str] = {}
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or not names:
        for n, one in profiled.items():
            for k, call in enumerate(measure(one, inputs, runs=3).calls):
                fastest = min(e - s for s, e in zip(call.start, call.end))
                least[n][k] = min(least[n].get(k, fastest), fastest)
                names[k] = call.kernel
    rows: list[dict[str, Any]] = [
        {"kernel": names[k], "alone": least[1][k], "together": least[threads].get(k, least[1][k])} for k in least[1]
    ]
    rows.sort(key=lambda r: r["alone"] / threads - r["together"])
    alone, together = sum(least[1].values()), sum(least[threads].values())
    totals = {"efficiency": alone / together / threads, "alone": alone, "together": together}
    return [{"what": "kernels", "model": name, "threads": threads, **totals, "kernels": rows}]


def load_inputs(path: Path) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as archive:
        return {n: archive[n] for n in archive.files if n != "out"}


def latencies(call: Callable[[], object], callers: int, seconds: float) -> list[float]:
    """Seconds of every call of `callers` threads that call one after another for so long, sorted."""
    found: list[list[float]] = [[] for _ in range(callers)]
    call()
    ends = time.perf_counter() + seconds

    def work(mine: list[float]) -> None:
        while not mine or time.perf_counter() < ends:
            began = time.perf_counter()
            call()
            mine.append(time.perf_counter() - began)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(t for mine in found for t in mine)


def measure_callers(name: str, path: Path, threads: int, callers: int, seconds: float) -> list[dict[str, Any]]:
    import weft

    inputs = load_inputs(path)
    executable = weft.compile(path, f"llvm -threads={threads}")
    engines: dict[str, Callable[[Mapping[str, Any]], object]] = {"weft": executable.run}
    if importlib.util.find_spec("onnxruntime"):
        from weft_onnx.engines import open_onnxruntime

        engines["onnxruntime"] = open_onnxruntime(str(path), threads)
    results = []
    for engine, run in engines.items():
        times = latencies(partial(run, inputs), callers, seconds)
        percentile = {p: times[min(len(times) - 1, len(times) * p // 100)] for p in (50, 99)}
        facts = {"model": name, "engine": engine, "callers": callers, "calls": len(times)}
        results.append({"what": "callers", **facts, "p50": percentile[50], "p99": percentile[99]})
    return results


MEASURES = ("join", "kernels", "callers")


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser, "mobilenet_v2")
    parser.add_argument("--only", default=",".join(MEASURES), help="measures separated by commas [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--callers", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measure [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    asked = [word.strip() for word in options.only.split(",")]
    unknown = [word for word in asked if word not in MEASURES]
    if unknown:
        raise SystemExit(f"no measure '{unknown[0]}': there are {', '.join(MEASURES)}")
    results: list[dict[str, Any]] = measure_join(options.threads) if "join" in asked else []
    if set(asked) - {"join"}:
        with prepared_models(options) as models:
            for name, path in models:
                if "kernels" in asked:
                    results += measure_kernels(name, path, options.threads, options.seconds)
                if "callers" in asked:
                    results += measure_callers(name, path, options.threads, options.callers, options.seconds)
    for r in results:
        if r["what"] == "join":
            print(
                f"fork-join of {r['threads']} threads: {r['awake'] * 1e6:.2f} µs with workers awake,"
                f" {r['asleep'] * 1e6:.1f} µs asleep"
            )
        elif r["what"] == "kernels":
            rows: list[list[object]] = [
                [
                    k["kernel"],
                    f"{k['alone'] * 1e6:.0f}",
                    f"{k['together'] * 1e6:.0f}",
                    f"{k['alone'] / k['together'] / r['threads']:.0%}",
                ]
                for k in r["kernels"][:SHOWN]
            ]
            title = f"{r['model']}: {r['efficiency']:.0%} of {r['threads']} threads used; kernels that lose most"
            print_table(title, ["kernel", "µs on 1", f"µs on {r['threads']}", "used"], rows, right=(1, 2, 3))
    calls: list[list[object]] = [
        [r["model"], r["engine"], r["callers"], r["calls"], f"{r['p50'] * 1e3:.2f}", f"{r['p99'] * 1e3:.2f}"]
        for r in results
        if r["what"] == "callers"
    ]
    if calls:
        print_table(
            f"Latency of a call, {machine()['cpu']}",
            ["model", "engine", "callers", "calls", "median ms", "99 % ms"],
            calls,
            right=(2, 3, 4, 5),
        )
    write_report(options, results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
