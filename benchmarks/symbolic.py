"""One executable for any size, beside those compiled for one size.

    python -m benchmarks.symbolic [--models resnet18,bert_base_s128] [--open batch,height,width]
        [--at 1x224x224,4x64x96] [--checks 20] [--repeat N] [--layers N] [--json FILE]

Each model is a twin (see benchmarks/README.md) with batch, height and width, or length open, as it permits. It is
compiled once as it is, and once for every size of --at; the two take turns in one process, and their median and minimum
times are compared. The open executable is told of none of these sizes. Its answers at --checks sizes are held against
those of ONNX Runtime on the same file, or of executables for fixed sizes where it is not installed: the largest error
over the largest answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import chosen_models, judge, machine, write_report
from benchmarks.open_twins import LONGEST, OPEN, open_twin

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

MODELS = ("resnet18", "mobilenet_v2", "bert_base_s128", "gpt2_s128")
RATIO_LIMIT, MEAN_LIMIT, ERROR_LIMIT = 1.15, 1.05, 1e-5
AT: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {
    ("batch",): ((1,), (3,)),
    ("batch", "height", "width"): ((1, 224, 224), (2, 160, 224), (1, 127, 190)),
    ("height", "width"): ((224, 224), (160, 256), (127, 190)),
    ("batch", "length"): ((1, 128), (4, 64)),
    ("length",): ((100,), (37,)),
}
"""Sizes that are measured where the symbols are open."""


def random_sizes(symbols: Sequence[str], count: int) -> list[dict[str, int]]:
    """Sizes of the answers that are checked: the least ones, then random ones."""
    random = np.random.default_rng(0)
    most = {"batch": (1, 5), "height": (32, 260), "width": (32, 260), "length": (1, LONGEST)}
    found = [{s: most[s][0] for s in symbols}]
    while len(found) < count:
        found.append({s: int(random.integers(most[s][0], most[s][1], endpoint=True)) for s in symbols})
    return found


def input_of(name: str, usual: Array, sizes: Sizes) -> Array:
    """A random input of those sizes, of the same elements as the usual one."""
    shape = [sizes.get(OPEN[name].get(k, ""), n) for k, n in enumerate(usual.shape)]
    random = np.random.default_rng(sum(shape))
    if usual.dtype.kind == "i":
        return random.integers(0, int(usual.max()), shape)
    return random.standard_normal(shape, np.float32)


def reference(path: Path, fixed: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """What answers are held against."""
    if not importlib.util.find_spec("onnxruntime"):
        return lambda x: np.asarray(fixed(x)(x))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def error_of(got: Array, want: Array) -> float:
    """The largest error over the largest answer."""
    return float(np.abs(got - want).max() / np.abs(want).max()) if got.shape == want.shape else float("inf")


def turns(executables: Sequence[Any], x: Array, repeat: int) -> list[list[float]]:
    """Seconds of calls of each, taken in turns."""
    times: list[list[float]] = [[] for _ in executables]
    for k in range(repeat + 1):
        for t, executable in zip(times, executables):
            executable(x)
            began = time.perf_counter()
            executable(x)
            if k:
                t.append(time.perf_counter() - began)
    return times


def symbols_of(name: str, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Which sizes of the model are open: those asked for that it permits, in its order."""
    return tuple(s for s in OPEN[name].values() if asked is None or s in asked)


def measure(name: str, symbols: tuple[str, ...], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    import onnx

    import weft

    model, inputs = open_twin(name, symbols, layers=options.layers)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    ((x, usual),) = inputs.items()
    target = f"llvm -threads={options.threads}"

    def compiled(**given: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        return weft.compile(path, target, cache=False, **given), time.perf_counter() - began

    def fixed(array: Array) -> Any:
        return compiled(input_shapes={x: array.shape})[0]

    print(f"{name}: compiling …", file=sys.stderr, flush=True)
    anywhere, seconds = compiled()
    rows = []
    wanted = options.at or AT.get(symbols, ())
    if any(len(w) != len(symbols) for w in wanted) or not wanted:
        example = "x".join("8" * len(symbols))
        raise SystemExit(f"--at: {', '.join(symbols)} of {name} are open, in this order: give sizes such as {example}")
    for sizes in (dict(zip(symbols, w)) for w in wanted):
        print(f"{name}: {sizes} …", file=sys.stderr, flush=True)
        array = input_of(name, usual, sizes)
        one, fixed_seconds = compiled(input_shapes={x: array.shape})
        a, b = turns((anywhere, one), array, options.repeat)
        rows.append(
            {
                "sizes": sizes,
                "open": statistics.median(a),
                "fixed": statistics.median(b),
                "ratio": statistics.median(a) / statistics.median(b),
                "least_ratio": min(a) / min(b),
                "compile_fixed": fixed_seconds,
            }
        )
    found = []
    if options.checks:
        print(f"{name}: {options.checks} sizes …", file=sys.stderr, flush=True)
        answer = reference(path, fixed)
        for sizes in random_sizes(symbols, options.checks):
            array = input_of(name, usual, sizes)
            found.append((sizes, error_of(np.asarray(anywhere(array)), answer(array))))
    worst = max((e for _, e in found), default=0.0)
    return {"model": name, "open": symbols, "compile": seconds, "sizes": rows, "errors": found, "worst": worst}


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    def sizes(text: str) -> list[tuple[int, ...]]:
        return [tuple(int(n) for n in x.split("x")) for x in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.symbolic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(OPEN)} [%(default)s]")
    parser.add_argument(
        "--open", type=lambda t: t.split(","), help="of batch, height, width, length [all that a model permits]"
    )
    parser.add_argument(
        "--at", type=sizes, help="sizes that are measured, such as 1x224x224, in that order; several by commas"
    )
    parser.add_argument("--checks", type=int, default=20, help="sizes at which answers are checked [%(default)s]")
    parser.add_argument("--layers", type=int, help="shallow twins, for trying out")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--repeat", type=int, default=15, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    names = [n for n in chosen_models(options.models) if n in OPEN]
    with tempfile.TemporaryDirectory() as folder:
        open_of = {name: symbols_of(name, options.open) for name in names}
        results = [measure(name, symbols, Path(folder), options) for name, symbols in open_of.items() if symbols]
    rows, kept = [], True
    for r in results:
        for s in r["sizes"]:
            kept &= s["ratio"] <= RATIO_LIMIT
            size = " × ".join(f"{n}" for n in s["sizes"].values())
            figures = [f"{s[k] * 1e3:.2f}" for k in ("open", "fixed")]
            figures += [f"{s[k]:.3f}" for k in ("ratio", "least_ratio")]
            rows.append([r["model"], ", ".join(r["open"]), size, *figures, judge(s["ratio"], RATIO_LIMIT)])
        if r["errors"]:
            kept &= r["worst"] <= ERROR_LIMIT
            count = f"{len(r['errors'])} sizes"
            rows.append([r["model"], "error", count, "", "", f"{r['worst']:.1e}", "", judge(r["worst"], ERROR_LIMIT)])
        compiled = [f"{r['compile']:.1f} s", f"{statistics.mean(s['compile_fixed'] for s in r['sizes']):.1f} s"]
        rows.append([r["model"], "compilation", "", *compiled, "", "", ""])
    ratios = [s["ratio"] for r in results for s in r["sizes"]]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        least = statistics.geometric_mean(s["least_ratio"] for r in results for s in r["sizes"])
        kept &= mean <= MEAN_LIMIT
        rows.append(["geometric mean", "", "", "", "", f"{mean:.3f}", f"{least:.3f}", judge(mean, MEAN_LIMIT)])
    title = f"Sizes open beside fixed, {options.threads} thread(s), {machine()['cpu']}"
    header = ["model", "open", "size", "open ms", "fixed ms", "ratio, error", "by least", ""]
    print_table(title, header, rows, right=(3, 4, 5, 6))
    write_report(options, results=results)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
