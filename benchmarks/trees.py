"""Ensembles of decision trees beside ONNX Runtime in one run: random forests and boosted trees of scikit-learn,
exported by skl2onnx.

    python -m benchmarks.trees [--models forest,classes,…] [--rows 1,1000,…] [--threads N] [--seconds S] [--json FILE]

`forest` and `classes` are random forests of 500 trees of depth 8 over 30 features, a regression and two classes; `deep`
has 100 trees of four classes, as deep as they grow; `boosted` 200 boosted trees of depth 3. Both run the same file on
the same rows in turns; times are of the fastest run, and results are compared.

Limit: the forests of depth 8 run at least three times as fast as ONNX Runtime at 1,000 rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import machine, write_report
from benchmarks.int8 import fastest

MODELS, FEATURES = ("forest", "classes", "deep", "boosted"), 30
LIMIT, LIMITED, AT = 3.0, ("forest", "classes"), 1000
HINT = "install the extra `bench`: pip install scikit-learn skl2onnx onnxruntime"


def trained(name: str) -> bytes:
    """The model as ONNX."""
    try:
        from skl2onnx import to_onnx
        from sklearn import ensemble
    except ImportError as error:
        raise SystemExit(f"{error}\n  hint: {HINT}") from error
    random = np.random.default_rng(0)
    x = random.standard_normal((2000, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * random.standard_normal(len(x))
    made: dict[str, Callable[[], Any]] = {
        "forest": lambda: ensemble.RandomForestRegressor(500, max_depth=8, max_features=6, random_state=0).fit(x, y),
        "classes": lambda: ensemble.RandomForestClassifier(500, max_depth=8, random_state=0).fit(x, y > 0),
        "deep": lambda: ensemble.RandomForestClassifier(100, random_state=0).fit(x, np.digitize(y, [-1, 0, 1])),
        "boosted": lambda: ensemble.GradientBoostingRegressor(n_estimators=200, max_depth=3, random_state=0).fit(x, y),
    }
    model = made[name]()
    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    exported: bytes = to_onnx(model, x[:1], options=options).SerializeToString()
    return exported


def calls(model: bytes, rows: int, threads: int) -> tuple[dict[str, Callable[[], Any]], float]:
    """One call each, and how far the results are from each other at most."""
    import onnx
    import onnxruntime as ort

    import weft

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((rows, FEATURES)).astype(np.float32)
    feed = {session.get_inputs()[0].name: x}
    exe = weft.compile(onnx.load_from_string(model), f"llvm -threads={threads}")
    wanted, got = session.run(None, feed), exe.run(feed).values()
    apart = max(float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()) for a, b in zip(wanted, got))
    return {"onnxruntime": lambda: session.run(None, feed), "weft": lambda: exe.run(feed)}, apart


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help="by commas [%(default)s]")
    parser.add_argument("--rows", default="1,100,1000,10000", help="by commas [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="of both [%(default)s]")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row of the table [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for name in options.models.split(","):
        print(f"{name} …", file=sys.stderr, flush=True)
        model = trained(name)
        for rows in map(int, options.rows.split(",")):
            timed, apart = calls(model, rows, options.threads)
            seconds = fastest(timed, options.seconds)
            results.append(
                {
                    "model": name,
                    "rows": rows,
                    "seconds": seconds,
                    "times": seconds["onnxruntime"] / seconds["weft"],
                    "apart": apart,
                }
            )
    table = [
        [
            r["model"],
            str(r["rows"]),
            f"{r['seconds']['weft'] * 1e3:.3f}",
            f"{r['seconds']['onnxruntime'] * 1e3:.3f}",
            f"{r['times']:.2f}",
            f"{r['apart']:.1e}",
        ]
        for r in results
    ]
    heads = ["", "rows", "Weft ms", "ONNX Runtime ms", "times as fast", "apart"]
    print_table(f"trees, {machine()['cpu']}, {options.threads} thread(s)", heads, table, right=(1, 2, 3, 4, 5))
    short = [r["model"] for r in results if r["model"] in LIMITED and r["rows"] == AT and r["times"] < LIMIT]
    write_report(options, limit=LIMIT, results=results)
    print(f"at {AT} rows {LIMIT} times: " + (f"not {', '.join(short)}" if short else "within"))
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
