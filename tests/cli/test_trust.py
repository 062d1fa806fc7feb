"""Who runs an archive is told that it is code, and can say which one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.models import affine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "run",
            [
                "An archive holds machine code, which runs with your rights: run only archives that you trust.",
                "detect damage, not malice",
            ],
        ),
        ("compile", ["An archive holds machine code: run only archives that you trust.", "weft run --expect"]),
    ],
)
def test_help_says_that_an_archive_is_code(weft: Callable[..., Any], command: str, says: list[str]) -> None:
    text = " ".join(weft(command, "--help").out.split())
    assert all(s in text for s in says), text


def test_documents_say_it() -> None:
    documents = {name: " ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/reliability.md")}
    assert "load only archives from a source that you would run a program from" in documents["README.md"]
    assert "(docs/reliability.md#threat-model)" in documents["README.md"]
    assert documents["docs/reliability.md"].startswith("# Reliability ## Threat model")
    assert "load only archives from a source that you would run a program from" in documents["docs/reliability.md"]


def test_an_archive_that_is_another_one(weft: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "affine.weft"
    affine().save(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert "affine: loaded in" in weft("run", path, "--expect", f"sha256:{digest}", "--input-shape", "x=2,4").out
    done = weft("run", path, "--expect", "sha256:" + "0" * 64)
    assert done.code == 1 and "is not the expected file" in done.err and f"its hash is sha256:{digest}" in done.err


def test_a_model_is_no_archive_to_expect(weft: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    done = weft("run", tmp_path / "m.onnx", "--expect", "sha256:" + "0" * 64)
    assert (
        done.code == 1
        and "m.onnx is no archive, --expect does not apply" in done.err
        and "hint: `weft compile` writes archives" in done.err
    )
