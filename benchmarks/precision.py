"""What -precision=fp16 (or bf16) costs in accuracy and gains in time: products of few rows, and whole models.

    python -m benchmarks.precision [--precision fp16|bf16] [--products 1x4096x4096,…] [--models …] [--threads N]
        [--seconds S] [--json FILE]

A product is x [M, K] · w [K, N] with w constant. Both versions run in turns, S seconds each product or model; times are
medians. The error is the largest difference over the largest magnitude of the framework's answer (ONNX Runtime's for
twins; the exact one for products).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import expected
from benchmarks.arguments import add_model_arguments, machine, prepared_models, write_report

PRODUCTS = "1x4096x4096,1x768x3072,1x3072x768,1x768x50257,4x4096x4096,8x4096x4096,32x1024x1024,128x768x3072"


def in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not all(times.values()):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(t) for name, t in times.items()}


def compared(model: Any, inputs: Mapping[str, Any], want: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Times, errors and megabytes of constants of a model in float32 and in the precision."""
    import weft
    from weft.dtypes import dtype

    executables = {
        p: weft.compile(model, f"llvm -threads={options.threads} -precision={p}") for p in ("fp32", options.precision)
    }
    scale = np.abs(want).max()
    result: dict[str, Any] = {
        "seconds": in_turns({p: partial(e.run, inputs) for p, e in executables.items()}, options.seconds)
    }
    result["error"] = {
        p: float(np.abs(next(iter(e.run(inputs).values())) - want).max() / scale) for p, e in executables.items()
    }
    result["bytes"] = {
        p: sum(int(np.prod(c.shape)) * dtype(c.dtype).bytes for c in e.manifest.constants)
        for p, e in executables.items()
    }
    return result


def product(words: str, options: argparse.Namespace) -> dict[str, Any]:
    from weft.graph.nodes import GraphBuilder, tensor_type
    from weft_ops import MatMul

    m, k, n = map(int, words.split("x"))
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    builder = GraphBuilder("product")
    builder.output(builder.add(MatMul(), builder.input("x", tensor_type("float32", x.shape)), builder.constant(w, "w")))
    return {"name": words, **compared(builder.build(), {"x": x}, x.astype(np.float64) @ w, options)}


def model(name: str, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as archive:
        inputs = {n: archive[n] for n in archive.files}
    want, beside = expected(path, inputs, inputs.pop("out", None))
    return {"name": name, "beside": beside, **compared(path, inputs, want, options)}


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser, "all")
    parser.add_argument("--precision", choices=("fp16", "bf16"), default="fp16", help="[%(default)s]")
    parser.add_argument("--products", default=PRODUCTS, help="MxKxN, by commas; empty for none [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each product and model [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results = [product(words, options) for words in options.products.split(",") if words]
    with prepared_models(options) as models:
        for name, path in models:
            print(f"{name} …", file=sys.stderr, flush=True)
            results.append(model(name, path, options))
    p = options.precision
    rows = []
    for r in results:
        seconds, error, size = r["seconds"], r["error"], r["bytes"]
        times = [f"{seconds['fp32'] * 1e3:.3f}", f"{seconds[p] * 1e3:.3f}", f"{seconds['fp32'] / seconds[p]:.2f}"]
        rows.append(
            [
                r["name"],
                *times,
                f"{size['fp32'] / 1e6:.1f}",
                f"{size[p] / 1e6:.1f}",
                f"{error['fp32']:.1e}",
                f"{error[p]:.1e}",
            ]
        )
    heads = ["", "fp32 ms", f"{p} ms", "times as fast", "fp32 MB", f"{p} MB", "fp32 error", f"{p} error"]
    print_table(
        f"-precision={p}, {machine()['cpu']}, {options.threads} thread(s)",
        heads,
        rows,
        right=tuple(range(1, len(heads))),
    )
    write_report(options, precision=p, results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
