"""How long compiling takes, cold and warm, each in a process of its own.

    python -m benchmarks.compile_time [--models …] [--files FILE …] [--repeat N] [--threads N] [--json FILE]

cold  `weft.compile` without its caches, the import of Weft not counted: at most 8 s (the limit is one of resnet50 and
      bert_base_s128)
warm  the same call when the model's cache holds it: at most 0.5 s and what reading the model file takes, import of Weft
      included
CPU   seconds of processors that the process and its compile workers use, import of Weft included: what other load on
      the machine changes least

The median of the repeats counts. The first call after it is no part of either: `benchmarks.compare` has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_model_arguments, judge, machine, prepared_models, write_report

COLD_LIMIT, WARM_LIMIT = 8.0, 0.5
LIMITED = ("resnet50", "bert_base_s128")

CODE = """
import json, sys, time
began = time.perf_counter()
import weft
imported = time.perf_counter()
weft.compile(sys.argv[1], f"llvm -threads={sys.argv[2]}", cache=sys.argv[3] == "warm")
done = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    while file.read(1 << 20):
        pass
print(json.dumps({"import": imported - began, "compile": done - imported, "reading": time.perf_counter() - done}))
"""


def fresh(path: Path, threads: int, kind: str, cache: str) -> dict[str, float]:
    """Seconds of a fresh process: import, compile, of reading the model file, and of processors.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-c", CODE, str(path), str(threads), kind]
    # An installed package's bytecode is written when it is installed; a checkout's must be kept between processes to be
    # as fast.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"WEFT_CACHE_DIR": cache}
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"ended with {done.returncode}"
        )
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    answer: dict[str, float] = json.loads(done.stdout)
    return answer | {"cpu": cpu}


def measure(name: str, path: Path, threads: int, repeat: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as cache:
        cold = [fresh(path, threads, "cold", cache) for _ in range(repeat)]
        fresh(path, threads, "warm", cache)  # fills the cache
        warm = [fresh(path, threads, "warm", cache) for _ in range(max(3, repeat))]
    reading = statistics.median(w["reading"] for w in warm)
    return [
        {
            "model": name,
            "what": "cold",
            "seconds": statistics.median(c["compile"] for c in cold),
            "cpu": statistics.median(c["cpu"] for c in cold),
            "limit": COLD_LIMIT if name in LIMITED else None,
            "runs": cold,
        },
        {
            "model": name,
            "what": "warm",
            "seconds": statistics.median(w["import"] + w["compile"] for w in warm),
            "cpu": statistics.median(w["cpu"] for w in warm),
            "limit": WARM_LIMIT + reading,
            "reading": reading,
            "runs": warm,
        },
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_time", description=(__doc__ or "").split("\n")[0]
    )
    add_model_arguments(parser)
    parser.add_argument("--files", nargs="+", help="files of models, instead of --models")
    parser.add_argument("--repeat", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    with prepared_models(options) as prepared:
        models = ((Path(f).stem, Path(f)) for f in options.files) if options.files else prepared
        for name, path in models:
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                results += measure(name, path, options.threads, max(1, options.repeat))
            except RuntimeError as error:
                results.append({"model": name, "what": "failed", "error": str(error)})
    rows = []
    for r in results:
        if "error" in r:
            rows.append([r["model"], r["what"], r["error"][:80], "", "", "", ""])
            continue
        limit = "" if r["limit"] is None else f"{r['limit']:.2f}"
        verdict = "" if r["limit"] is None else judge(r["seconds"], r["limit"])
        rows.append(
            [
                r["model"],
                r["what"],
                f"{r['seconds']:.2f}",
                f"{r['cpu']:.2f}",
                limit,
                f"{r['reading']:.2f}" if "reading" in r else "",
                verdict,
            ]
        )
    print_table(
        f"Seconds to compile, {machine()['cpu']}",
        ["model", "", "s", "CPU s", "limit s", "reading s", ""],
        rows,
        right=(2, 3, 4, 5),
    )
    write_report(options, results=results)
    return 0 if all("error" not in r and (r["limit"] is None or r["seconds"] <= r["limit"]) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
