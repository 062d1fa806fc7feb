"""Memory against its limits: of compiling, of running from an archive, of the arena.

    python -m benchmarks.memory [--models …] [--only compile,run,arena] [--threads N] [--json FILE]

compile  peak of the compiling process and its workers together, without caches: at most 300 MB + 2.5 × the weights
run      peak of a process that opens the archive and runs it: at most that of one that opens and runs the model in ONNX
         Runtime + 20 MB
arena    bytes planned for intermediate results and the kernels' scratch: at most 5 % over the most that are alive at
         once

Processes are sampled every 20 ms from outside: proportional shares (PSS), so that what several processes map counts
once. A peak between two samples is missed; the peaks of single processes that the system keeps are exact, and the
larger of both counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_model_arguments, judge, machine, prepared_models, write_report

BASE, FACTOR = 300e6, 2.5
OVER_PEER = 20e6
ARENA_FACTOR = 1.05
SAMPLE_SECONDS = 0.02

COMPILE = """
import sys, weft
weft.compile(sys.argv[1], f"llvm -threads={sys.argv[2]}", cache=False)
"""
SAVE = """
import sys, weft
weft.compile(sys.argv[1], f"llvm -threads={sys.argv[2]}", cache=False).save(sys.argv[3])
"""
RUN_START = """
import sys
import numpy as np
with np.load(sys.argv[2]) as archive:
    inputs = {n: archive[n] for n in archive.files if n != "out"}
"""
RUN_WEFT = """
from weft import Executable
executable = Executable.load(sys.argv[1])
for _ in range(5):
    executable.run(inputs)
"""
RUN_PEER = """
from weft_onnx.engines import open_onnxruntime
run = open_onnxruntime(sys.argv[1], int(sys.argv[3]))
for _ in range(5):
    run(inputs)
"""
TELL = """
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_of(code: str, *arguments: object) -> int:
    """Bytes at most, of a fresh process running `code` and of all that it starts.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-c", code + TELL, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(proportional(pid) for pid in family(process.pid)))
        time.sleep(SAMPLE_SECONDS)
    out, said = process.communicate()
    if process.returncode:
        raise RuntimeError(said.strip().splitlines()[-1] if said.strip() else f"ended with {process.returncode}")
    return max(peak, int(out.split()[-1]))


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for one in found:
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in file.read_text().split()]
            except OSError:
                continue  # it ended meanwhile
    return found


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def weight_bytes(path: Path) -> int:
    """Of the model's constants, as the file has them."""
    import onnx

    model = onnx.load(path)
    return sum(len(t.raw_data) or t.ByteSize() for t in model.graph.initializer)


def measure_compile(name: str, path: Path, threads: int) -> dict[str, Any]:
    weights = weight_bytes(path)
    return {
        "model": name,
        "what": "compile",
        "bytes": peak_of(COMPILE, path, threads),
        "limit": BASE + FACTOR * weights,
        "weights": weights,
    }


def measure_run(name: str, path: Path, threads: int) -> dict[str, Any]:
    archive = path.with_suffix(".weft")
    subprocess.run([sys.executable, "-c", SAVE, str(path), str(threads), str(archive)], check=True)
    try:
        own = peak_of(RUN_START + RUN_WEFT, archive, path.with_suffix(".npz"))
    finally:
        archive.unlink(missing_ok=True)
    peer = peak_of(RUN_START + RUN_PEER, path, path.with_suffix(".npz"), threads)
    return {"model": name, "what": "run", "bytes": own, "limit": peer + OVER_PEER, "peer": peer}


def measure_arena(name: str, path: Path, threads: int) -> dict[str, Any]:
    """Of a compilation, whose kernels may come from the cache: only code tells what scratch it wants. Sizes that are
    symbols have no number to compare."""
    from weft.codegen.base import THREADS
    from weft.compilation import Compilation
    from weft.expr.nodes import Expr, free_vars
    from weft.loading import load
    from weft.passes.plan_memory import bytes_at
    from weft.resolve import resolve_target

    compilation = Compilation(resolve_target(f"llvm -threads={threads}"))
    compilation.run(load(path))
    plan = compilation.plan
    assert plan is not None
    for size in (plan.arena_bytes, plan.lower_bound):
        if isinstance(size, Expr) and free_vars(size).keys() - {THREADS.name}:
            raise RuntimeError(f"the arena's size is a formula: {size}")
    arena, bound = (bytes_at(size, {THREADS.name: threads}) for size in (plan.arena_bytes, plan.lower_bound))
    return {"model": name, "what": "arena", "bytes": arena, "limit": ARENA_FACTOR * bound, "lower_bound": bound}


MEASURES = {"compile": measure_compile, "run": measure_run, "arena": measure_arena}


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--only", default=",".join(MEASURES), help="measures separated by commas [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    asked = [word.strip() for word in options.only.split(",")]
    unknown = [word for word in asked if word not in MEASURES]
    if unknown:
        raise SystemExit(f"no measure '{unknown[0]}': there are {', '.join(MEASURES)}")
    results: list[dict[str, Any]] = []
    with prepared_models(options) as models:
        for name, path in models:
            for what in asked:
                print(f"{name}, {what} …", file=sys.stderr, flush=True)
                try:
                    results.append(MEASURES[what](name, path, options.threads))
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    results.append({"model": name, "what": what, "error": str(error)})
    rows = []
    for r in sorted(results, key=lambda r: asked.index(r["what"])):
        if "error" in r:
            rows.append([r["what"], r["model"], r["error"][:80], "", "", "failed"])
        else:
            facts = next(
                (
                    f"{key.replace('_', ' ')} {r[key] / 1e6:.1f}"
                    for key in ("weights", "peer", "lower_bound")
                    if key in r
                ),
                "",
            )
            rows.append(
                [
                    r["what"],
                    r["model"],
                    f"{r['bytes'] / 1e6:.1f}",
                    f"{r['limit'] / 1e6:.1f}",
                    facts,
                    judge(r["bytes"], r["limit"]),
                ]
            )
    print_table(
        f"Memory in MB, {options.threads} thread(s), {machine()['cpu']}",
        ["", "model", "MB", "limit MB", "from", ""],
        rows,
        right=(2, 3),
    )
    write_report(options, results=results)
    return 0 if all(r.get("bytes", float("inf")) <= r.get("limit", 0) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
