"""The same model gives the same bytes; what was compiled once is found again; damage and crowds do no harm."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models import save_twin

import weft
from weft_runtime.cache import FOLDER

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import json, sys
from tests.test_determinism_and_caches import compile_here
print(json.dumps(compile_here(sys.argv[1])))
"""


def compile_here(model: str | Path) -> dict[str, Any]:
    """What a compilation did and gave."""
    stages: list[Any] = []
    executable = weft.compile(model, "llvm", on_stage=stages.append)
    (info,) = executable.inputs
    x = np.random.default_rng(0).standard_normal(info.shape).astype(info.dtype)  # type: ignore[arg-type]
    (y,) = executable.run({info.name: x}).values()
    return {
        "code": {name: s.sha256 for name, s in executable.manifest.sections.items()},
        "constants": [[c.name, c.dtype, list(c.shape)] for c in executable.manifest.constants],
        "plan": executable.plan,
        "stages": sorted({s.stage for s in stages}),
        "compiled": sum(s.stage == "schedule" for s in stages),
        "y": hashlib.sha256(y.tobytes()).hexdigest(),
    }


def start(model: Path, cache: Path, *, seed: str = "0") -> subprocess.Popen[str]:
    """The same in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "WEFT_CACHE_DIR": str(cache), "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(model)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_twin("mlp", tmp_path_factory.mktemp("model"))[0]


def entries(cache: Path, kind: str) -> list[Path]:
    return sorted(p for p in (cache / FOLDER / kind).rglob("*") if p.is_file())


@pytest.mark.parametrize(("name", "layers"), [("mlp", None), ("mobilenet_v2", 3), ("lstm", 1)])
def test_code_does_not_depend_on_hash_seeds(name: str, layers: int | None, tmp_path: Path) -> None:
    path, _ = save_twin(name, tmp_path, layers=layers)
    runs = [start(path, tmp_path / f"cache{seed}", seed=seed) for seed in ("1", "4242")]
    one, other = (finish(r) for r in runs)
    assert one["compiled"] and other["compiled"], "neither may come from a cache"
    assert one["code"] == other["code"]
    assert one == other


def test_second_compile_loads_the_model(model: Path, cache: Path) -> None:
    first, second = compile_here(model), finish(start(model, cache))
    assert "codegen" in first["stages"] and "save" in first["stages"]
    assert second["stages"] == ["cache"]
    assert (second["code"], second["y"], second["plan"]) == (first["code"], first["y"], first["plan"])


def test_kernels_are_found_without_the_model(model: Path, cache: Path) -> None:
    """Another model with the same layers compiles nothing."""
    first = compile_here(model)
    for entry in entries(cache, "models"):
        entry.unlink()
    second = compile_here(model)
    assert first["compiled"] > 0
    assert second["compiled"] == 0 and "load" in second["stages"]
    assert (second["code"], second["y"]) == (first["code"], first["y"])


@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "replaced"])
def test_damaged_entries_are_rebuilt(damage: str, model: Path, cache: Path) -> None:
    first = compile_here(model)
    damaged = entries(cache, "models") + entries(cache, "kernels")
    assert damaged
    for entry in damaged:
        data = bytearray(entry.read_bytes())
        if damage == "truncated":
            data = data[: len(data) // 2]
        elif damage == "emptied":
            data.clear()
        elif damage == "flipped":
            for at in range(len(data) // 3, len(data), max(1, len(data) // 50)):
                data[at] ^= 0x55
        else:
            data = bytearray(b"this is no entry")
        entry.write_bytes(data)
    second = compile_here(model)
    assert second["compiled"] == first["compiled"]
    assert (second["code"], second["y"]) == (first["code"], first["y"])
    assert compile_here(model)["stages"] == ["cache"], "the entry was written anew"


def test_two_processes_compile_at_once(model: Path, tmp_path: Path) -> None:
    runs = [start(model, tmp_path) for _ in range(2)]
    one, other = (finish(r) for r in runs)
    assert (one["code"], one["y"]) == (other["code"], other["y"])
    assert finish(start(model, tmp_path))["stages"] == ["cache"]
