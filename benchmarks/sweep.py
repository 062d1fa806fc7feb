"""Random convolutions and matrix products, one operator to a model: Weft beside the better peer, shape by shape.

    python -m benchmarks.sweep [--count 200] [--seed N] [--threads 1,2] [--kinds matmul,conv] [--only TEXT] [--json
        FILE]

A table of shapes would do well on the shapes of the table. These are drawn at random, the same ones for the same seed:
seeds below 1000 are for development, from 1000 on for acceptance, drawn after the cost model was last changed. Every
engine has a process for all shapes and takes turns with the others on each. Prints every shape, the worst first, and
percentiles of Weft's time over that of the better peer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
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

from benchmarks.arguments import write_report
from benchmarks.engine_process import WEFT, Run, find_engine, peers, turn
from benchmarks.models import save_arrays

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
KINDS = ("matmul", "conv")
OPSET, IR_VERSION = 20, 10
FLOP_PER_SECOND, BYTES_PER_SECOND = 1e11, 2e10
SHORTEST, LONGEST = 5e-5, 1e-2
"""Seconds that a shape may take on a core that does the above."""
PAUSE = 0.003
"""Before each turn: the threads of the engine before may still be spinning for work."""
LARGEST_ERROR = 1e-3
"""Over the largest answer; Winograd convolutions of every engine stay well below it, wrong answers do not."""


# -- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A shape. `form`: constant, runtime, batched, transposed (matmul); dense, grouped, depthwise (conv). `shape` in
    words that `--only` finds."""

    kind: str
    form: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def shape(self) -> str:
        return " ".join(f"{name}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in self.settings)

    @property
    def of(self) -> dict[str, Any]:
        return dict(self.settings)


def log_uniform(r: random.Random, low: int, high: int) -> int:
    """Half of them multiples of 8 where there are such."""
    n = round(math.exp(r.uniform(math.log(low), math.log(high))))
    return max(8, n // 8 * 8) if n >= 8 and r.random() < 0.5 else n


def draw_matmul(r: random.Random) -> Case:
    form = r.choice(("constant", "constant", "constant", "runtime", "runtime", "batched", "transposed", "transposed"))
    m, k, n = log_uniform(r, 1, 512), log_uniform(r, 16, 4096), log_uniform(r, 16, 4096)
    batch = log_uniform(r, 2, 16) if form == "batched" else 1
    constant = form == "constant" or (form == "transposed" and r.random() < 0.5)
    flipped = form != "constant" and r.random() < 0.5
    transposed = flipped or form == "transposed"
    return Case(
        "matmul",
        form,
        (("batch", batch), ("m", m), ("k", k), ("n", n), ("constant", constant), ("transposed", transposed)),
    )


def draw_conv(r: random.Random) -> Case:
    form = r.choice(("dense", "dense", "dense", "dense", "grouped", "depthwise"))
    kernel = r.choice((1, 1, 3, 3, 3, 5, 7))
    groups = 1
    if form == "depthwise":
        kernel = r.choice((3, 3, 5, 7))
        groups = channels = outputs = log_uniform(r, 8, 1024)
    elif form == "grouped":
        groups = r.choice((2, 3, 4, 8, 16, 32))
        channels, outputs = (
            groups * log_uniform(r, 1, max(2, 1024 // groups)),
            groups * log_uniform(r, 1, max(2, 1024 // groups)),
        )
    else:
        channels, outputs = log_uniform(r, 1, 1024), log_uniform(r, 1, 1024)
    dilation = r.choice((1, 1, 1, 1, 1, 2)) if kernel > 1 else 1
    pad = r.choice((dilation * (kernel // 2), dilation * (kernel // 2), 0))
    size = (log_uniform(r, 7, 112), 0)
    size = (size[0], size[0] if r.random() < 0.7 else log_uniform(r, 7, 112))
    settings = (
        ("channels", channels),
        ("outputs", outputs),
        ("size", size),
        ("kernel", kernel),
        ("stride", r.choice((1, 1, 2))),
        ("pad", pad),
    )
    return Case("conv", form, (*settings, ("dilation", dilation), ("groups", groups)))


def work(case: Case) -> tuple[float, float]:
    """FLOP and bytes of a case; 0 FLOP if it has no output."""
    o = case.of
    if case.kind == "matmul":
        b, m, k, n = o["batch"], o["m"], o["k"], o["n"]
        return 2.0 * b * m * k * n, 4.0 * b * (m * k + k * n + m * n)
    out = [max(0, (s + 2 * o["pad"] - o["dilation"] * (o["kernel"] - 1) - 1) // o["stride"] + 1) for s in o["size"]]
    taps = o["channels"] // o["groups"] * o["kernel"] ** 2
    positions = math.prod(out)
    return 2.0 * positions * o["outputs"] * taps, 4.0 * (
        o["channels"] * math.prod(o["size"]) + positions * o["outputs"] + o["outputs"] * taps
    )


def draw(count: int, seed: int, kinds: Sequence[str]) -> list[Case]:
    """`count` different cases of sensible length, the kinds in turn."""
    r = random.Random(seed)
    cases: dict[Case, None] = {}
    makers: dict[str, Callable[[random.Random], Case]] = {"matmul": draw_matmul, "conv": draw_conv}
    while len(cases) < count:
        case = makers[kinds[len(cases) % len(kinds)]](r)
        flop, size = work(case)
        if flop and SHORTEST <= max(flop / FLOP_PER_SECOND, size / BYTES_PER_SECOND) <= LONGEST:
            cases[case] = None
    return list(cases)


def model_of(case: Case, seed: int = 0) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One operator (and a Transpose before it where a run-time right operand is transposed), with inputs."""
    import onnx
    from onnx import helper, numpy_helper

    o, values = case.of, np.random.default_rng(seed)

    def array(*shape: int) -> Array:
        return cast(Array, (values.standard_normal(shape, np.float32) / np.float32(8)))

    nodes: list[Any] = []
    constants: dict[str, Array] = {}
    inputs: dict[str, Array] = {}
    if case.kind == "matmul":
        lead = (o["batch"],) if o["batch"] > 1 else ()
        inputs["x"] = array(*lead, o["m"], o["k"])
        (constants if o["constant"] else inputs)["w"] = array(
            *lead, *((o["n"], o["k"]) if o["transposed"] else (o["k"], o["n"]))
        )
        if o["transposed"] and not lead:
            nodes.append(helper.make_node("Gemm", ["x", "w"], ["y"], transB=1))
        else:
            if o["transposed"]:
                nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[0, 2, 1]))
            nodes.append(helper.make_node("MatMul", ["x", "wt" if o["transposed"] else "w"], ["y"]))
        rank = 2 + len(lead)
    else:
        inputs["x"] = array(1, o["channels"], *o["size"])
        constants["w"] = array(o["outputs"], o["channels"] // o["groups"], o["kernel"], o["kernel"])
        attributes = {
            "strides": [o["stride"]] * 2,
            "pads": [o["pad"]] * 4,
            "dilations": [o["dilation"]] * 2,
            "group": o["groups"],
        }
        nodes.append(helper.make_node("Conv", ["x", "w"], ["y"], **attributes))
        rank = 4
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name, x in inputs.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION), inputs


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
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, **request: Any) -> dict[str, Any]:
        pipe = cast(IO[str], self.process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Timed:
    """A model on every engine, in seconds. `difference`: of Weft's answer from the first peer's, over the largest
    answer."""

    threads: int
    times: dict[str, list[float]] = field(default_factory=dict)
    opened: dict[str, float] = field(default_factory=dict)
    difference: float | None = None
    error: str | None = None

    def seconds(self, engine: str, by: str) -> float:
        return min(self.times[engine]) if by == "min" else statistics.median(self.times[engine])

    def ratio(self, by: str) -> float:
        """Weft over the better peer."""
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
    """Fills `result`: every engine opens the model, then they take turns."""
    import onnx

    path = folder / "case.onnx"
    onnx.save(model, path)
    save_arrays(path.with_suffix(".npz"), inputs)
    try:
        for name, engine in engines.items():
            result.opened[name] = engine.ask(open=str(path), threads=result.threads, out=str(folder / f"{name}.npy"))[
                "open"
            ]
            result.times[name] = []
        order = list(engines)
        for number in range(repeat):
            shift = number % len(order)
            for name in order[shift:] + order[:shift]:
                time.sleep(PAUSE)
                result.times[name] += engines[name].ask(calls=calls, seconds=seconds)["times"]
    except RuntimeError as error:
        result.error = str(error)
        return
    own, peer = (np.load(folder / f"{n}.npy").astype(np.float64) for n in (WEFT, next(n for n in engines if n != WEFT)))
    result.difference = float(np.abs(own - peer).max(initial=0) / max(np.abs(peer).max(initial=0), 1e-30))
    if not result.difference <= LARGEST_ERROR:
        result.error = f"Weft's answer is off by {result.difference:.1e}"


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
    good = sorted((r for r in results if r.error is None), key=lambda r: -r.ratio(by))
    names = list(good[0].times) if good else []
    print(
        f"{'ratio':>6} {'min':>6} thr {'GFLOP/s':>8} "
        + " ".join(f"{n[:11] + ' us':>14}" for n in names)
        + f" {'open s':>6}  shape"
    )
    for r in good:
        own = r.seconds(WEFT, by)
        times = " ".join(f"{r.seconds(n, by) * 1e6:14.1f}" for n in names)
        speed = work(r.case)[0] / own / 1e9
        print(
            f"{r.ratio(by):6.2f} {r.ratio('min'):6.2f} {r.threads:3d} {speed:8.1f} {times} {r.opened[WEFT]:6.2f} "
            f" {r.case.kind} {r.case.form} {r.case.shape}"
        )
    for r in results:
        if r.error is not None:
            print(f"FAILED {r.threads} {r.case.kind} {r.case.form} {r.case.shape}: {r.error}")
    print(f"\nWeft over the better peer, {by} of each:")
    groups: dict[str, list[Measured]] = {}
    for r in good:
        for key in ("all", r.case.kind, f"{r.case.kind} {r.case.form}"):
            groups.setdefault(f"{key}, {r.threads} thr", []).append(r)
    print(f"{'':28} {'count':>5} {'p10':>6} {'p50':>6} {'p75':>6} {'p90':>6} {'p95':>6} {'max':>6} {'geomean':>8}")
    for key in sorted(groups):
        values = [r.ratio(by) for r in groups[key]]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        shares = " ".join(f"{percentile(values, s):6.2f}" for s in (0.1, 0.5, 0.75, 0.9, 0.95, 1.0))
        print(f"{key:28} {len(values):5d} {shares} {mean:8.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="shapes [%(default)s]")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the same shapes for the same seed; from 1000 on for acceptance [%(default)s]",
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads separated by commas [%(default)s]")
    parser.add_argument("--kinds", default=",".join(KINDS), help="[%(default)s]")
    parser.add_argument("--engines", help="peers separated by commas [every one that is installed]")
    parser.add_argument("--only", help="of the shapes drawn those whose line holds this text")
    parser.add_argument(
        "--by",
        choices=("median", "min"),
        default="median",
        help="which of the times counts; min on a machine with other work [%(default)s]",
    )
    parser.add_argument("--repeat", type=int, default=6, help="turns of every engine on a shape [%(default)s]")
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
        cases = [c for c in cases if options.only in f"{c.kind} {c.form} {c.shape}"]
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
    write_report(options, results=[{**asdict(r), "ratio": None if r.error else r.ratio(options.by)} for r in results])
    return 1 if any(r.error for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
