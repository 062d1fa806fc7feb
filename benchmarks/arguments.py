"""What the benchmarks share: which models, where they lie, on which machine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.models import EVERY, NAMES, TINY, TORCH_HINT, save_arrays, save_twin
from benchmarks.own_models import OWN
from weft_runtime.files import replacing

MODEL_SETS = {"zoo": NAMES, "own": OWN, "all": EVERY, "tiny": TINY}


def chosen_models(text: str) -> list[str]:
    """Of names and sets of models, separated by commas."""
    return list(
        dict.fromkeys(
            n
            for word in text.split(",")
            for n in MODEL_SETS.get(word.strip()) or chosen(word, (*EVERY, *TINY), "model")
        )
    )


def chosen(text: str | None, known: Sequence[str], what: str) -> list[str]:
    names = list(known) if text is None else [n.strip() for n in text.split(",") if n.strip()]
    unknown = [n for n in names if n not in known]
    if unknown:
        raise SystemExit(f"no {what} '{unknown[0]}': there are {', '.join(known)}")
    return names


def add_model_arguments(parser: argparse.ArgumentParser, default: str = "zoo") -> None:
    parser.add_argument(
        "--models",
        default=default,
        help=f"names separated by commas, zoo ({','.join(NAMES)}), own ({','.join(OWN)}), tiny"
        f" ({','.join(TINY)}) or all, which is zoo and own [%(default)s]",
    )
    parser.add_argument(
        "--source",
        choices=("torch", "twins"),
        help="exported by PyTorch, or torch-free twins [torch if it is installed]",
    )
    parser.add_argument("--layers", type=int, help="shallow twins, for trying out")
    parser.add_argument("--folder", type=Path, help="where models are kept, and found again [a temporary folder]")


def model_source(asked: str | None) -> str:
    """`torch` or `twins`.

    Raises:
        SystemExit: torch is asked for and not installed.
    """
    torch = all(importlib.util.find_spec(m) for m in ("torch", "transformers", "onnxscript"))
    if asked == "torch" and not torch:
        raise SystemExit(f"--source torch: {TORCH_HINT}")
    return asked or ("torch" if torch else "twins")


@contextmanager
def prepared_models(options: argparse.Namespace) -> Iterator[Iterator[tuple[str, Path]]]:
    """Name and file of every model that is asked for, each made when its turn comes."""
    names, source = chosen_models(options.models), model_source(options.source)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield ((name, prepare(name, folder, source, options.layers)) for name in names)


def prepare(name: str, folder: Path, source: str, layers: int | None) -> Path:
    """The model file and, beside it, its inputs; made unless they are there."""
    path = folder / f"{name}.onnx"
    if path.is_file() and path.with_suffix(".npz").is_file():
        return path
    if source == "torch" and name not in TINY:
        # In a process of its own: the exporter leaves gigabytes behind.
        code = "import sys; from benchmarks.models import export; export(sys.argv[1], sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, name, str(folder)], check=True, stdout=subprocess.DEVNULL)
    else:
        _, inputs = save_twin(name, folder, layers=layers)
        save_arrays(path.with_suffix(".npz"), inputs)
    return path


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": name, "cpus": cpus, "system": platform.platform(), "python": platform.python_version()}


def write_report(options: argparse.Namespace, **measured: Any) -> None:
    """Into the file that `--json` names, if it does: what was measured, on which machine, with which settings."""
    if options.json:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        with replacing(options.json) as file:
            file.write((json.dumps({"machine": machine(), "settings": settings, **measured}, indent=1) + "\n").encode())


def judge(value: float, limit: float) -> str:
    """How a figure stands to its limit."""
    return "within" if value <= limit else "over"
