"""One executable for any batch and length, beside those compiled for one size.

    python -m benchmarks.symbolic [--models bert_base_s128,gpt2_s128] [--lengths 1,…,512] [--at 1x128,4x64] [--repeat N]
        [--json FILE]

PyTorch exports each model with batch and length open. It is compiled once as it is, and once for every size of --at;
the two take turns in one process, and their median times are compared: at most 10 % more. At every length, with a batch
of one, and for a batch of three, the open executable's answer is held against PyTorch's: the largest error over the
largest answer, at most 1e-5.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import judge, machine, write_report
from benchmarks.models import OPSET, torch_model

MODELS = ("bert_base_s128", "gpt2_s128")
LENGTHS = (1, 2, 3, 7, 16, 31, 32, 63, 100, 127, 128, 129, 200, 255, 256, 384, 511, 512)
RATIO_LIMIT, ERROR_LIMIT = 1.10, 1e-5


def export_open(name: str, folder: Path, longest: int) -> tuple[Path, Any]:
    """Writes the model with batch and length open; the path and the framework's module."""
    import torch

    model = torch_model(name)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=longest)
    path = folder / f"{name}_open.onnx"
    tokens = torch.randint(0, 30000, (2, 64))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module, (tokens,), str(path), input_names=list(model.names), output_names=["out"],
            dynamic_shapes=[{0: batch, 1: length}],
            dynamo=True, opset_version=OPSET, external_data=False, verbose=False,
        )  # fmt: skip
    return path, model.module


def errors(executable: Any, module: Any, sizes: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], float]]:
    """Of every size: the largest error over the largest answer."""
    import torch

    found = []
    for batch, length in sizes:
        tokens = torch.randint(0, 30000, (batch, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            want = module(tokens).numpy()
        got = executable(tokens.numpy())
        found.append(
            (
                (batch, length),
                float(np.abs(got - want).max() / np.abs(want).max()) if got.shape == want.shape else float("inf"),
            )
        )
    return found


def turns(executables: Sequence[Any], tokens: np.ndarray[Any, Any], repeat: int) -> list[float]:
    """Median seconds of a call of each, taken in turns."""
    times: list[list[float]] = [[] for _ in executables]
    for k in range(repeat + 1):
        for t, executable in zip(times, executables):
            executable(tokens)
            began = time.perf_counter()
            executable(tokens)
            if k:
                t.append(time.perf_counter() - began)
    return [statistics.median(t) for t in times]


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    import weft

    with tempfile.TemporaryDirectory() as folder:
        print(f"{name}: exporting …", file=sys.stderr, flush=True)
        path, module = export_open(name, Path(folder), max(options.lengths))
        target = f"llvm -threads={options.threads}"
        began = time.perf_counter()
        anywhere = weft.compile(path, target, cache=False)
        seconds = time.perf_counter() - began
        rows = []
        x = anywhere.inputs[0].name
        for batch, length in options.at:
            print(f"{name}: {batch} × {length} …", file=sys.stderr, flush=True)
            fixed = weft.compile(path, target, input_shapes={x: (batch, length)}, cache=False)
            tokens = np.random.default_rng(0).integers(0, 30000, (batch, length))
            a, b = turns((anywhere, fixed), tokens, options.repeat)
            rows.append({"batch": batch, "length": length, "open": a, "fixed": b, "ratio": a / b})
        print(f"{name}: {len(options.lengths)} lengths …", file=sys.stderr, flush=True)
        found = errors(anywhere, module, [*((1, n) for n in options.lengths), (3, 77)])
    worst = max(found, key=lambda f: f[1])
    return {"model": name, "compile": seconds, "sizes": rows, "errors": found, "worst": worst[1], "worst_at": worst[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    def numbers(text: str) -> list[int]:
        return [int(x) for x in text.split(",")]

    def pairs(text: str) -> list[tuple[int, int]]:
        return [(int(a), int(b)) for a, b in (x.split("x") for x in text.split(","))]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.symbolic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help="[%(default)s]")
    parser.add_argument("--lengths", type=numbers, default=list(LENGTHS), help="of the answers that are checked")
    parser.add_argument(
        "--at", type=pairs, default=[(1, 128), (4, 64)], help="sizes that are measured, BATCHxLENGTH [1x128,4x64]"
    )
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--repeat", type=int, default=15, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results = [measure(name, options) for name in options.models.split(",")]
    rows, kept = [], True
    for r in results:
        for s in r["sizes"]:
            kept &= s["ratio"] <= RATIO_LIMIT
            size = f"{s['batch']} × {s['length']}"
            rows.append(
                [
                    r["model"],
                    size,
                    f"{s['open'] * 1e3:.1f}",
                    f"{s['fixed'] * 1e3:.1f}",
                    f"{s['ratio']:.3f}",
                    judge(s["ratio"], RATIO_LIMIT),
                ]
            )
        kept &= r["worst"] <= ERROR_LIMIT
        rows.append(
            [r["model"], f"{len(r['errors'])} sizes", "", "", f"{r['worst']:.1e}", judge(r["worst"], ERROR_LIMIT)]
        )
    title = f"Sizes open beside fixed, {options.threads} thread(s), {machine()['cpu']}"
    print_table(title, ["model", "size", "open ms", "fixed ms", "ratio, error", ""], rows, right=(2, 3, 4))
    write_report(options, results=results)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
