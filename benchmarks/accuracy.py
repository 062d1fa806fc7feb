"""Every model's answer beside the framework's own, with Winograd's algorithm and without.

    python -m benchmarks.accuracy [--models …] [--threads N] [--json FILE]

The error is the largest difference over the largest magnitude of the framework's answer: at most 1e-4 with
-winograd=auto, 1e-5 with -winograd=off. A twin has no answer of a framework; ONNX Runtime's stands in for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import add_model_arguments, judge, machine, prepared_models, write_report
from weft.errors import WeftError

LIMITS = {"-winograd=auto": 1e-4, "-winograd=off": 1e-5}


def expected(path: Path, inputs: Mapping[str, Any], saved: Any) -> tuple[Any, str]:
    if saved is not None:
        return saved, "framework"
    from weft_onnx.engines import open_onnxruntime

    return open_onnxruntime(str(path), 1)(inputs)[0], "onnxruntime"


def measure(name: str, path: Path, threads: int) -> list[dict[str, Any]]:
    import weft

    with np.load(path.with_suffix(".npz")) as archive:
        saved = {n: archive[n] for n in archive.files}
    out = saved.pop("out", None)
    want, origin = expected(path, saved, out)
    results: list[dict[str, Any]] = []
    for option, limit in LIMITS.items():
        result: dict[str, Any] = {"model": name, "option": option, "limit": limit, "beside": origin}
        try:
            got, *_ = weft.compile(path, f"llvm -threads={threads} {option}").run(saved).values()
            result["error"] = float(np.abs(got - want).max() / np.abs(want).max())
        except WeftError as error:
            result["failed"] = str(error).splitlines()[0]
        results.append(result)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser, "all")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    with prepared_models(options) as models:
        for name, path in models:
            print(f"{name} …", file=sys.stderr, flush=True)
            results += measure(name, path, options.threads)
    rows = []
    for r in results:
        shown = (
            [r["failed"][:80], f"{r['limit']:.0e}", "failed"]
            if "failed" in r
            else [f"{r['error']:.1e}", f"{r['limit']:.0e}", judge(r["error"], r["limit"])]
        )
        rows.append([r["model"], r["option"], *shown[:2], r["beside"], shown[2]])
    print_table(
        f"Largest error over largest answer, {machine()['cpu']}",
        ["model", "target llvm …", "error", "limit", "beside", ""],
        rows,
        right=(2, 3),
    )
    write_report(options, results=results)
    return 0 if all(r.get("error", float("inf")) <= r["limit"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
