"""Weft beside every peer that is installed, on the architectures of models.py, in one run.

    python -m benchmarks.compare [--models a,b] [--threads 1,2] [--engines weft,onnxruntime,…] [--repeat N]
        [--beside PYTHON] [--tune SECONDS] [--json FILE]

With --beside another Weft, such as that of an earlier commit, is one more engine. With --tune every model is tuned
first, and Weft with the records is one more engine.

Engines take turns in processes of their own (see engine_process.py); the order of the turns rotates. Only ratios within
one run say anything: absolute times differ from machine to machine and from hour to hour.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks.arguments import add_model_arguments, chosen, machine, model_source, prepared_models, write_report
from benchmarks.engine_process import TORCH, WEFT, peers
from weft_runtime.files import replacing

PAUSE = 0.02
"""Before each turn: the system's clocks and caches settle."""


BESIDE = "weft-beside"
"""The engine that --beside adds."""
TUNED = "weft-tuned"
"""The engine that --tune adds."""


class Engine:
    """An engine's process. Everything asked of it waits for the answer, so only one engine runs at a time.

    Between its turns the process is stopped by a signal: worker threads that spin for work after a call, some of them
    for 60 ms, would take the processor from whoever is next.
    """

    def __init__(
        self, name: str, path: Path, threads: int, out: Path, python: str = sys.executable, records: Path | None = None
    ) -> None:
        self.name, self.out = name, out
        engine = WEFT if name in (BESIDE, TUNED) else name
        command = [python, "-m", "benchmarks.engine_process", engine, str(path), str(threads), str(out)]
        # Whatever an engine does beside its own setting (OpenMP, BLAS) obeys the same number of threads.
        env = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
            "WEFT_RECORDS": str(records) if name == TUNED else "none",
        }
        root = str(Path(__file__).resolve().parent.parent)
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env
        )
        self.opened = self._answer()
        self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        if hasattr(signal, name):  # not on every system
            self.process.send_signal(getattr(signal, name))

    def ask(self, **request: Any) -> dict[str, Any]:
        self._signal("SIGCONT")
        pipe = cast(IO[str], self.process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()
        answer = self._answer()
        self._signal("SIGSTOP")
        return answer

    def _answer(self) -> dict[str, Any]:
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            said = self.log.read()[-2000:].decode(errors="replace").strip()
            raise RuntimeError(f"{self.name} ended with {code}: {said}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.log.close()


@dataclass
class Result:
    """One engine on one model. Seconds and bytes; `difference` is the largest error against Weft over the largest
    answer."""

    model: str
    threads: int
    engine: str
    version: str = ""
    median: float | None = None
    best: float | None = None
    calls: int = 0
    open: float | None = None
    first: float | None = None
    peak: int | None = None
    peak_base: int | None = None
    peak_children: int | None = None
    difference: float | None = None
    error: str | None = None
    times: list[float] = field(default_factory=list, repr=False)


def measure(
    model: str,
    path: Path,
    threads: int,
    names: Sequence[str],
    repeat: int,
    calls: int,
    seconds: float,
    beside: str = sys.executable,
    records: Path | None = None,
) -> list[Result]:
    """Every engine on one model: opened one by one, then `repeat` rounds of turns after a round of warming up.

    Args:
        beside: the interpreter of the engine `BESIDE`.
        records: those of the engine `TUNED`.
    """
    results = [Result(model, threads, name) for name in names]
    engines: dict[str, Engine] = {}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for k, result in enumerate(results):
            try:
                python = beside if result.engine == BESIDE else sys.executable
                engine = Engine(result.engine, path, threads, Path(folder) / f"{k}.npz", python, records)
            except RuntimeError as error:
                result.error = str(error)
                continue
            stack.callback(engine.close)
            engines[result.engine] = engine
            result.version, result.open, result.first = (
                engine.opened["version"],
                engine.opened["open"],
                engine.opened["first"],
            )
        for number in range(-1, repeat):
            shift = number % max(1, len(results))
            for result in results[shift:] + results[:shift]:
                if result.error is None:
                    time.sleep(PAUSE)
                    try:
                        times = engines[result.engine].ask(do="turn", calls=calls, seconds=seconds)["times"]
                    except (RuntimeError, BrokenPipeError) as error:
                        result.error = str(error)
                        continue
                    if number >= 0:
                        result.times += times
        for result in results:
            if result.error is None:
                memory = engines[result.engine].ask(do="memory")
                result.peak, result.peak_base, result.peak_children = memory["peak"], memory["base"], memory["children"]
                result.median, result.best, result.calls = (
                    statistics.median(result.times),
                    min(result.times),
                    len(result.times),
                )
        differences(results, engines)
    return results


def differences(results: Sequence[Result], engines: dict[str, Engine]) -> None:
    """A fast wrong answer is worth nothing, so every engine's is held against Weft's."""
    if WEFT not in engines:
        return
    with np.load(engines[WEFT].out) as archive:
        want = [archive[n] for n in archive.files]
    for result in results:
        if result.engine == WEFT or result.engine not in engines:
            continue
        with np.load(engines[result.engine].out) as archive:
            got = [archive[n] for n in archive.files]
        result.difference = max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in zip(got, want))


def tune(path: Path, threads: int, seconds: float, records: Path) -> None:
    """Tunes a model on its own inputs, and records what is faster."""
    with np.load(path.with_suffix(".npz")) as archive:
        shapes = [f"{n}={','.join(map(str, archive[n].shape))}" for n in archive.files if n != "out"]
    command = [sys.executable, "-m", "weft", "tune", str(path), "--threads", str(threads), "--file", str(records)]
    options = [word for shape in shapes for word in ("--input-shape", shape)]
    subprocess.run([*command, *options, "--seconds", str(seconds)], check=True, stdout=sys.stderr)


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def ratios(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Per model and number of threads: Weft's median over that of each peer and over the best peer's; with records over
    the best peer's (`tuned`)."""
    rows = []
    for key in dict.fromkeys((r.model, r.threads) for r in results):
        medians = {r.engine: r.median for r in results if (r.model, r.threads) == key and r.median is not None}
        own = medians.pop(WEFT, None)
        if own is not None and medians:
            over = {name: own / median for name, median in medians.items()}
            best = max((v for name, v in over.items() if name != TUNED), default=None)
            row: dict[str, Any] = {"model": key[0], "threads": key[1], "over": over, "over_best": best}
            if TUNED in over and best is not None:
                row["tuned"] = best / over[TUNED]
            rows.append(row)
    return rows


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over models, per number of threads."""
    answer = []
    for threads in dict.fromkeys(r["threads"] for r in rows):
        own = [r for r in rows if r["threads"] == threads]
        names = dict.fromkeys(n for r in own for n in r["over"])
        over = {n: geometric_mean(r["over"][n] for r in own if n in r["over"]) for n in names}
        answer.append(
            {
                "threads": threads,
                "models": len(own),
                "over": over,
                "over_best": geometric_mean(r["over_best"] for r in own if r["over_best"] is not None),
                "tuned": geometric_mean(r["tuned"] for r in own if "tuned" in r),
            }
        )
    return answer


# -- what people see --------------------------------------------------------------------------------------------------


def show(results: Sequence[Result], rows: Sequence[dict[str, Any]], averages: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file has no edge
    table = Table(
        "model",
        "threads",
        "engine",
        "median ms",
        "weft/it",
        "best ms",
        "open s",
        "first call s",
        "peak MB",
        "difference",
        title="Engines",
    )
    for column in table.columns[3:]:
        column.justify = "right"
    over = {(r["model"], r["threads"]): r["over"] for r in rows}
    last: tuple[str, int] | None = None
    for r in results:
        key = (r.model, r.threads)
        if last not in (None, key):
            table.add_section()
        head = (r.model, str(r.threads)) if key != last else ("", "")
        last = key
        if r.error is not None or r.median is None:
            table.add_row(*head, r.engine, (r.error or "not measured").splitlines()[-1][:60])
            continue
        ratio = over.get(key, {}).get(r.engine)
        table.add_row(
            *head,
            f"{r.engine} {r.version}",
            f"{r.median * 1e3:.3f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{(r.best or 0) * 1e3:.3f}",
            f"{r.open:.2f}",
            f"{r.first:.3f}",
            f"{(r.peak or 0) / 1e6:.0f}",
            "" if r.difference is None else f"{r.difference:.1e}",
        )
    console.print(table)
    if rows:
        names = list(dict.fromkeys(n for r in rows for n in r["over"]))
        table = Table(
            "model",
            "threads",
            *(f"weft/{n}" for n in names),
            "weft/best",
            "tuned/best",
            title="Weft's median over theirs: below 1 Weft is faster",
        )
        for column in table.columns[1:]:
            column.justify = "right"

        def cells(row: dict[str, Any]) -> list[str]:
            values = [*(row["over"].get(n) for n in names), row["over_best"], row.get("tuned")]
            return ["" if v is None else f"{v:.2f}" for v in values]

        for row in rows:
            table.add_row(row["model"], str(row["threads"]), *cells(row))
        table.add_section()
        for row in averages:
            table.add_row(f"geometric mean of {row['models']}", str(row["threads"]), *cells(row))
        console.print(table)


def markdown(
    results: Sequence[Result],
    rows: Sequence[dict[str, Any]],
    averages: Sequence[dict[str, Any]],
    about: dict[str, Any],
    day: str,
) -> str:
    """The medians and ratios as a table for docs/performance.md: a line per model and number of threads."""
    names = list(dict.fromkeys(r.engine for r in results))
    medians = {(r.model, r.threads, r.engine): f"{r.median * 1e3:.2f}" for r in results if r.median is not None}
    versions = ", ".join(dict.fromkeys(f"{r.engine} {r.version}" for r in results if r.version))
    over = {(r["model"], r["threads"]): f"{r['over_best']:.2f}" for r in rows if r["over_best"] is not None}
    lines = [f"{day}, {about['cpu']} ({about['cpus']} CPUs), {versions}; medians in ms.", ""]
    lines.append("| " + " | ".join(["model", "threads", *names, "weft/best"]) + " |")
    lines.append("|" + "---|" * (len(names) + 3))
    for model, threads in dict.fromkeys((r.model, r.threads) for r in results):
        cells = [medians.get((model, threads, name), "–") for name in names]
        lines.append("| " + " | ".join([model, str(threads), *cells, over.get((model, threads), "")]) + " |")
    for r in averages:
        lines.append(
            "| "
            + " | ".join(
                [
                    f"geometric mean of {r['models']}",
                    str(r["threads"]),
                    *[""] * len(names),
                    f"{r['over_best'] or 0:.2f}",
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--threads", default="1,2", help="numbers of threads separated by commas [%(default)s]")
    parser.add_argument("--engines", help="names separated by commas [weft and every peer that is installed]")
    parser.add_argument("--beside", metavar="PYTHON", help="interpreter of an environment that has another Weft")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="tune every model for so long, and compare that")
    parser.add_argument("--records", type=Path, metavar="FILE", help="where --tune keeps records [a temporary file]")
    parser.add_argument("--repeat", type=int, default=20, help="turns of every engine [%(default)s]")
    parser.add_argument("--calls", type=int, default=10, help="calls in a turn at most [%(default)s]")
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="length of a turn, after at least one call [%(default)s]"
    )
    parser.add_argument("--json", type=Path, help="file for every number")
    parser.add_argument("--markdown", type=Path, help="file for the table of docs/performance.md")
    options = parser.parse_args(arguments)

    options.source = source = model_source(options.source)
    known = [WEFT, *peers(), *([TORCH] if source == "torch" else [])]
    names = chosen(options.engines, known, "engine") + ([BESIDE] if options.beside else [])
    names += [TUNED] if options.tune else []
    beside = options.beside or sys.executable
    results: list[Result] = []
    with prepared_models(options) as models, tempfile.TemporaryDirectory() as folder:
        records = options.records or Path(folder) / "records.sqlite"
        for model, path in models:
            for threads in (int(t) for t in options.threads.split(",")):
                print(f"{model}, {threads} threads …", file=sys.stderr, flush=True)
                if options.tune:
                    tune(path, threads, options.tune, records)
                turns = (max(1, options.repeat), options.calls, options.seconds)
                results += measure(model, path, threads, names, *turns, beside, records)
    rows = ratios(results)
    averages = means(rows)
    show(results, rows, averages)
    if options.markdown:
        with replacing(options.markdown) as file:
            file.write(markdown(results, rows, averages, machine(), datetime.date.today().isoformat()).encode())
    write_report(options, results=[asdict(r) for r in results], ratios=rows, geometric_means=averages)
    return 1 if any(r.error for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
