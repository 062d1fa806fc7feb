"""Files of zeros, large and sparse, are refused after a look at them: within 0.2 s of a process's time, 50 MB of
memory, and with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, resource, sys, time
import weft
from weft.plugins import host
host().plugins  # a process's own start is no part of reading a file
read = weft.Executable.load if sys.argv[1].endswith(".weft") else weft.compile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began, clock, message = time.process_time(), time.perf_counter(), None
try:
    read(sys.argv[1], **json.loads(sys.argv[2]))
except weft.WeftError as error:
    message = str(error)
seconds = min(time.process_time() - began, time.perf_counter() - clock)
print(json.dumps([message, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""
SIZES = {"zeros": 20 << 20, "sparse": 3 << 30}
NETWORK = (
    b"[net]\nwidth=8\nheight=8\nchannels=3\n[convolutional]\nfilters=4\nsize=3\nstride=1\npad=1\nactivation=linear\n"
)


def refused(path: Path, folder: Path, **options: object) -> str:
    """The message, after time and memory were within bounds."""
    command, environment = (
        [sys.executable, "-c", CODE, str(path), json.dumps(options)],
        {"WEFT_CACHE_DIR": str(folder), "PATH": "/bin"},
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    message, seconds, kilobytes = json.loads(done.stdout)
    assert message is not None and seconds <= 0.2 and kilobytes <= 50_000, (message, seconds, kilobytes)
    return str(message)


def zeros(path: Path, size: str) -> Path:
    with path.open("wb") as file:
        if size == "zeros":
            file.write(bytes(SIZES[size]))
        else:
            file.truncate(SIZES[size])
    return path


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("suffix", "what"),
    [
        (".onnx", "is not an ONNX model"),
        (".cfg", "is not a Darknet network"),
        (".weft", "is no Weft archive"),
        (".bin", "no frontend takes"),
    ],
)
def test_a_file_of_zeros_is_refused_after_a_look(
    suffix: str, what: str, size: str, cache: bool, tmp_path: Path
) -> None:
    if suffix == ".weft" and not cache:
        pytest.skip("an archive is not cached")
    options = {} if suffix == ".weft" else {"cache": cache}
    assert what in refused(zeros(tmp_path / f"model{suffix}", size), tmp_path / "cache", **options)


@pytest.mark.parametrize("size", SIZES)
def test_weights_of_zeros_are_refused_after_a_look(size: str, tmp_path: Path) -> None:
    (tmp_path / "model.cfg").write_bytes(NETWORK)
    zeros(tmp_path / "model.weights", size)
    assert "it begins with zeros" in refused(tmp_path / "model.cfg", tmp_path / "cache")


def test_a_model_with_zeros_behind_it_is_refused_after_a_look(tmp_path: Path) -> None:
    """Its first bytes are those of a model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a\x12\x04weft")
    with path.open("r+b") as file:
        file.truncate(SIZES["sparse"])
    assert "a field of number 0" in refused(path, tmp_path / "cache")


def test_a_model_of_nothing_but_small_fields_is_refused_after_a_look(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a" * (10 << 20))
    assert "more than 100,000 fields" in refused(path, tmp_path / "cache")
