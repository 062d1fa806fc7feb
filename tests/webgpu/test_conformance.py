"""The conformance kit on an adapter, in tests mostly Mesa's lavapipe: in CI some samples of some operators, with --full
all of it, and on SwiftShader where a browser brings that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import SWIFTSHADER

from weft_testing.conform import run

ALONE = "(float32 and (MatMul or Relu or Softmax or Transpose or GRU)) or (Add and not Pad) or (Gather and int64)"
"""Products, elementwise groups, rows, copies, recurrences, numbers of 64 and of 8 bits."""
CHECKS = [
    ((1, 2, 8), ""),
    ((3, 4), ALONE),
    ((5, 6), "dense or odd or mlp"),
    ((7,), "seeds or results"),
    ((9,), "Relu and float32"),
    ((10,), "whole"),
]


@pytest.mark.parametrize(("levels", "keyword"), CHECKS)
def test_quick(levels: tuple[int, ...], keyword: str) -> None:
    report = run("webgpu", levels=levels, quick=True, keyword=keyword)
    assert report.passed, report.summary()
    assert all(report.counts(level) for level in levels)


@pytest.mark.full
def test_in_full() -> None:
    report = run("webgpu")
    assert report.passed, report.summary()
    shares = {share.model: share.share for share in report.shares}
    assert shares["resnet18"] == shares["mobilenet_v2"] == 1
    assert {"MatMul", "Conv", "Softmax", "MaxPool", "LayerNorm", "GRU"} <= set(report.claimed())


@pytest.mark.full
@pytest.mark.needs("swiftshader")
def test_on_swiftshader(tmp_path: Path) -> None:
    """A driver is chosen once a process, by its environment."""
    found = subprocess.run(
        [sys.executable, "-m", "weft", "conform", "--target", "webgpu", "--quick"],
        env={"VK_ICD_FILENAMES": str(SWIFTSHADER), "WEFT_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-4000:]
    assert "conforms" in found.stdout
