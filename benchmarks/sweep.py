"""Random operators, one to a model: Weft beside the best peer, case by case.

    python -m benchmarks.sweep [--count 200] [--seed N] [--threads 1,2] [--kinds matmul,conv,…] [--only TEXT] [--json
        FILE]

A table of shapes would do well on the shapes of the table. These are drawn at random (`benchmarks.sweep_cases`), the
same ones for the same seed: seeds below 1000 are for development, from 1000 on for acceptance, drawn after the code was
last changed. Every engine has a process for all cases and takes turns with the others on each. A peer that cannot run a
case is left out of it; one whose answer differs from Weft's is a failure. Prints every case, the worst first,
percentiles of Weft's time over that of the best peer, and the command that repeats each of the worst alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.arguments import judge, write_report
from benchmarks.engine_process import WEFT, Run, find_engine, peers, turn
from benchmarks.models import save_arrays
from benchmarks.sweep_cases import KINDS, Case, draw, model_of, work

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
LONGEST_RATIO = 3.0
"""Weft's time over that of the best peer, of any case."""
WORST = 5
"""Cases of each kind whose commands are printed."""
PAUSE = 0.003
"""Before each turn: the threads of the engine before may still be spinning for work."""
LARGEST_ERROR = 1e-3
"""Over the largest answer; Winograd convolutions of every engine stay well below it, wrong answers do not."""


# -- engines ----------------------------------------------------------------------------------------------------------


def serve(name: str, source: IO[str], sink: IO[str]) -> None:
    """One engine: {"open": path, "threads": n, "out": path} → {"open": s}, {"calls": n, "seconds": s} → {"times": [s,
    …]}."""
    open_engine = find_engine(name)
    run: Run | None = None
    inputs: Mapping[str, Array] = {}
    for line in source:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if "open" in request:
                run = None
                path = Path(request["open"])
                with np.load(path.with_suffix(".npz")) as archive:
                    inputs = {n: archive[n] for n in archive.files}
                began = time.perf_counter()
                _, run = open_engine(path, request["threads"])
                answer["open"] = time.perf_counter() - began
                np.save(request["out"], np.asarray(run(inputs)[0]))
            else:
                assert run is not None
                answer["times"] = turn(run, inputs, request["calls"], request["seconds"])
        except Exception as error:  # noqa: BLE001 - an engine that fails on a shape is a result, too
            answer = {"error": f"{type(error).__name__}: {error}"}
        sink.write(json.dumps(answer) + "\n")
        sink.flush()


class Engine:
    """An engine's process; everything asked of it waits for the answer."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        env = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        }
        root = str(Path(__file__).resolve().parent.parent)
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "benchmarks.sweep", "--serve", name]
        # What engines warn about goes to a file, which is read only where one ends.
        self.warnings = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - `close` closes it
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.warnings, text=True, env=env
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        pipe = cast(IO[str], self.process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            code = self.process.wait()
            self.warnings.seek(0)
            raise RuntimeError(f"{self.name} ended with {code}: {self.warnings.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.warnings):
            if pipe is not None:
                pipe.close()


@dataclass
class Timed:
    """A model on every engine, in seconds. `lacking`: peers that cannot run it, with their reasons. `difference`: the
    largest of Weft's answer from a peer's, over the largest answer."""

    threads: int
    times: dict[str, list[float]] = field(default_factory=dict)
    opened: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    difference: float | None = None
    error: str | None = None

    @property
    def compared(self) -> bool:
        """Whether there is a ratio: no error, and a peer that ran it."""
        return self.error is None and len(self.times) > 1

    def seconds(self, engine: str, by: str) -> float:
        return min(self.times[engine]) if by == "min" else statistics.median(self.times[engine])

    def ratio(self, by: str) -> float:
        """Weft over the best peer."""
        return self.seconds(WEFT, by) / min(self.seconds(n, by) for n in self.times if n != WEFT)


@dataclass
class Measured(Timed):
    case: Case = field(kw_only=True)


def measure(
    case: Case, threads: int, engines: Mapping[str, Engine], folder: Path, repeat: int, calls: int, seconds: float
) -> Measured:
    result = Measured(threads, case=case)
    time_model(result, *model_of(case), engines, folder, repeat, calls, seconds)
    return result


def time_model(
    result: Timed,
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    engines: Mapping[str, Engine],
    folder: Path,
    repeat: int,
    calls: int,
    seconds: float,
) -> None:
    """Fills `result`: every engine opens the model, then those that can run it take turns."""
    import onnx

    path = folder / "case.onnx"
    onnx.save(model, path)
    save_arrays(path.with_suffix(".npz"), inputs)
    answers: dict[str, Array] = {}
    for name, engine in engines.items():
        out = folder / f"{name}.npy"
        try:
            answer = engine.ask(open=str(path), threads=result.threads, out=str(out))
        except RuntimeError as error:
            if name == WEFT:
                result.error = str(error)
                return
            result.lacking[name] = str(error)
            continue
        result.opened[name], result.times[name] = answer["open"], []
        answers[name] = np.load(out)
    order = list(result.times)
    try:
        for number in range(repeat):
            shift = number % len(order)
            for name in order[shift:] + order[:shift]:
                time.sleep(PAUSE)
                result.times[name] += engines[name].ask(calls=calls, seconds=seconds)["times"]
    except RuntimeError as error:
        result.error = str(error)
        return
    compare_answers(result, answers)


def compare_answers(result: Timed, answers: Mapping[str, Array]) -> None:
    """Sets `difference`, and `error` if Weft's answer is not that of every peer."""
    own = answers[WEFT].astype(np.float64)
    for name, answer in answers.items():
        if name == WEFT:
            continue
        peer = answer.astype(np.float64)
        if own.shape != peer.shape:
            result.error = f"Weft's answer has the shape {own.shape}, that of {name} {peer.shape}"
            return
        difference = float(np.abs(own - peer).max(initial=0) / max(np.abs(peer).max(initial=0), 1e-30))
        if not difference <= LARGEST_ERROR:
            result.error = f"Weft's answer is off by {difference:.1e} from that of {name}"
        result.difference = max(result.difference or 0.0, difference)


@contextmanager
def opened(names: Sequence[str], threads: int) -> Iterator[Callable[[], Mapping[str, Engine]]]:
    """A process for each engine; what is given makes those anew that died of the shape before."""
    engines: dict[str, Engine] = {}

    def alive() -> Mapping[str, Engine]:
        for name in names:
            if name not in engines or engines[name].process.poll() is not None:
                if name in engines:
                    engines[name].close()
                engines[name] = Engine(name, threads)
        return engines

    try:
        yield alive
    finally:
        for engine in engines.values():
            engine.close()


# -- what people see --------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def show(results: Sequence[Measured], by: str) -> None:
    good = sorted((r for r in results if r.compared), key=lambda r: -r.ratio(by))
    names = list(dict.fromkeys(n for r in good for n in r.times))
    print(
        f"{'ratio':>6} {'min':>6} thr {'GFLOP/s':>8} {'GB/s':>6} "
        + " ".join(f"{n[:11] + ' us':>14}" for n in names)
        + f" {'open s':>6}  case"
    )
    for r in good:
        own = r.seconds(WEFT, by)
        times = " ".join(f"{r.seconds(n, by) * 1e6:14.1f}" if n in r.times else f"{'—':>14}" for n in names)
        flop, size = work(r.case)
        print(
            f"{r.ratio(by):6.2f} {r.ratio('min'):6.2f} {r.threads:3d} {flop / own / 1e9:8.1f} {size / own / 1e9:6.1f}"
            f" {times} {r.opened[WEFT]:6.2f}  {r.case.text}"
        )
    for r in results:
        if r.error is not None:
            print(f"FAILED {r.threads} {r.case.text}: {r.error}")
        elif not r.compared:
            print(f"no peer {r.threads} {r.case.text}: {'; '.join(r.lacking.values())[:160]}")


def percentiles(results: Sequence[Measured], by: str) -> bool:
    """Prints them, by kind and form, and the limits of each kind; whether all are kept."""
    print(f"\nWeft over the best peer, {by} of each:")
    groups: dict[tuple[str, int], list[Measured]] = {}
    for r in (r for r in results if r.compared):
        for key in ("all", r.case.kind, f"{r.case.kind} {r.case.form}"):
            groups.setdefault((key, r.threads), []).append(r)
    print(
        f"{'':36} {'count':>5} {'p10':>6} {'p50':>6} {'p75':>6} {'p90':>6} {'p95':>6} {'max':>6} {'geomean':>8}  limits"
    )
    kept = True
    for key, threads in sorted(groups):
        values = [r.ratio(by) for r in groups[key, threads]]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        p95 = percentile(values, 0.95)
        shares = " ".join(f"{percentile(values, s):6.2f}" for s in (0.1, 0.5, 0.75, 0.9))
        verdict = ""
        if key in KINDS:
            limit = KINDS[key].limit
            verdicts = judge(p95, limit), judge(max(values), LONGEST_RATIO)
            verdict = f"  p95 {limit}: {verdicts[0]}; largest {LONGEST_RATIO}: {verdicts[1]}"
            kept = kept and verdicts == ("within", "within")
        print(
            f"{f'{key}, {threads} thr':36} {len(values):5d} {shares} {p95:6.2f} {max(values):6.2f} {mean:8.2f}{verdict}"
        )
    return kept


def commands(results: Sequence[Measured], options: argparse.Namespace) -> None:
    """Prints what repeats failures, and the worst cases of each kind, alone."""
    shown = [r for r in results if r.error is not None]
    for kind in KINDS:
        of_kind = [r for r in results if r.compared and r.case.kind == kind]
        limit = KINDS[kind].limit
        worst = sorted(of_kind, key=lambda r: -r.ratio(options.by))[:WORST]
        shown += [r for r in worst if r.ratio(options.by) > limit]
    if shown:
        print("\nTo repeat failures and the worst cases above the limits:")
    for r in shown:
        words = f"--count {options.count} --seed {options.seed} --kinds {options.kinds} --threads {r.threads}"
        ratio = "failed" if r.error is not None else f"{r.ratio(options.by):6.2f}"
        print(f"{ratio}  python -m benchmarks.sweep {words} --only {shlex.quote(r.case.text)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="cases [%(default)s]")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the same cases for the same seed; from 1000 on for acceptance [%(default)s]",
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads separated by commas [%(default)s]")
    parser.add_argument("--kinds", default=",".join(KINDS), help="separated by commas [%(default)s]")
    parser.add_argument("--engines", help="peers separated by commas [every one that is installed]")
    parser.add_argument("--only", help="of the cases drawn those whose line holds this text")
    parser.add_argument(
        "--by",
        choices=("median", "min"),
        default="median",
        help="which of the times counts; min on a machine with other work [%(default)s]",
    )
    parser.add_argument("--repeat", type=int, default=6, help="turns of every engine on a case [%(default)s]")
    parser.add_argument("--calls", type=int, default=30, help="calls in a turn at most [%(default)s]")
    parser.add_argument(
        "--seconds", type=float, default=0.02, help="length of a turn, after at least one call [%(default)s]"
    )
    parser.add_argument("--json", type=Path, help="file for every number")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        with os.fdopen(os.dup(1), "w") as answers:
            os.dup2(2, 1)
            serve(options.serve, sys.stdin, answers)
        return 0
    names = options.engines.split(",") if options.engines else list(peers())
    kinds = options.kinds.split(",")
    for unknown in [k for k in kinds if k not in KINDS] + [n for n in names if n not in peers()]:
        raise SystemExit(f"no '{unknown}': there are {', '.join([*KINDS, *peers()])}")
    cases = draw(options.count, options.seed, kinds)
    if options.only:
        cases = [c for c in cases if options.only in c.text]
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in (int(t) for t in options.threads.split(",")):
            with opened((WEFT, *names), threads) as engines:
                for k, case in enumerate(cases):
                    if sys.stderr.isatty():
                        print(f"\r{threads} threads, {k + 1}/{len(cases)}", end="", file=sys.stderr, flush=True)
                    results.append(
                        measure(case, threads, engines(), Path(folder), options.repeat, options.calls, options.seconds)
                    )
    show(results, options.by)
    kept = percentiles(results, options.by)
    commands(results, options)
    write_report(
        options, results=[{**asdict(r), "ratio": r.ratio(options.by) if r.compared else None} for r in results]
    )
    return 0 if kept and not any(r.error for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
