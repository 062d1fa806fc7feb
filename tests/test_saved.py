"""A saved model needs no compiler: it runs in a process that imports none, gives the same bits, and serves many
threads."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models import twin

import weft
from weft.errors import ArchiveError
from weft_runtime.executable import Executable

# What only a compiler needs. The script leaves before it imports anything that it checks for.
RUN = """
import hashlib, json, sys
import numpy as np
import weft

executable = weft.Executable.load(sys.argv[1])
(x,) = np.load(sys.argv[2]).values()
(info,) = executable.inputs
(y,) = executable.run({info.name: x}).values()
print(json.dumps({"y": hashlib.sha256(y.tobytes()).hexdigest(), "modules": sorted(sys.modules)}))
"""
COMPILER = (
    "llvmlite", "onnx", "weft_llvm", "weft_onnx", "pluggy", "weft.pipeline", "weft.compilation", "weft.plugins",
    "weft.graph", "weft_ops", "weft.passes",
    "weft.lower",    "weft.scheduling", "weft.codegen", "weft.loop", "weft.tensor", "weft.expr", "weft.target",
    "weft.cli",
)  # fmt: skip


@pytest.fixture(scope="module")
def resnet() -> tuple[Executable, dict[str, Any], Any]:
    model, inputs = twin("resnet18")
    executable = weft.compile(model, "llvm")
    (y,) = executable.run(inputs).values()
    return executable, inputs, y


@pytest.fixture(scope="module")
def saved(resnet: tuple[Executable, dict[str, Any], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "resnet18.weft"
    resnet[0].save(path)
    return path


def test_runs_without_the_compiler(resnet: tuple[Executable, dict[str, Any], Any], saved: Path, tmp_path: Path) -> None:
    _, inputs, y = resnet
    np.savez(tmp_path / "x.npz", **inputs)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(saved), str(tmp_path / "x.npz")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["y"] == hashlib.sha256(y.tobytes()).hexdigest(), "not the bits of the process that compiled it"
    loaded = [m for m in result["modules"] if any(m == c or m.startswith(c + ".") for c in COMPILER)]
    assert not loaded


def test_loaded_twice_gives_the_same_bits(resnet: tuple[Executable, dict[str, Any], Any], saved: Path) -> None:
    _, inputs, y = resnet
    for _ in range(2):
        (again,) = Executable.load(saved).run(inputs).values()
        np.testing.assert_array_equal(again, y)


def test_many_threads_at_once(resnet: tuple[Executable, dict[str, Any], Any]) -> None:
    executable, inputs, y = resnet
    (name,) = inputs
    wrong: list[str] = []
    ready = threading.Barrier(8)

    def work(k: int) -> None:
        # Every thread has a picture of its own: a shared arena would mix them.
        x = np.ascontiguousarray(np.roll(inputs[name], k, axis=-1))
        try:
            ready.wait()
            (first,) = executable.run({name: x}).values()
            for _ in range(4):
                (again,) = executable.run({name: x}).values()
                if not np.array_equal(first, again):
                    wrong.append(f"thread {k}: two answers to one question")
            results[k] = first
        except Exception as error:  # noqa: BLE001 - told to the test
            wrong.append(f"thread {k}: {error!r}")

    results: dict[int, Any] = {}
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert not wrong
    np.testing.assert_array_equal(results[0], y)
    for k in range(8):
        (alone,) = executable.run({name: np.ascontiguousarray(np.roll(inputs[name], k, axis=-1))}).values()
        np.testing.assert_array_equal(results[k], alone)


def test_truncated_archives_are_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    broken = tmp_path / "broken.weft"
    for size in (0, 10, len(data) // 2, len(data) - 1):
        broken.write_bytes(data[:size])
        with pytest.raises(ArchiveError):
            Executable.load(broken)


def test_corrupt_code_is_refused(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        code = next(i for i in archive.infolist() if "main" in i.filename)
        at = code.header_offset + 200 + code.file_size // 2
    data = bytearray(saved.read_bytes())
    data[at] ^= 0xFF
    broken = tmp_path / "broken.weft"
    broken.write_bytes(data)
    with pytest.raises(ArchiveError):
        Executable.load(broken)


def test_foreign_archives_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.weft"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("readme.txt", "a zip file, but no model")
    with pytest.raises(ArchiveError):
        Executable.load(foreign)
    foreign.write_text("no zip file at all")
    with pytest.raises(ArchiveError):
        Executable.load(foreign)
