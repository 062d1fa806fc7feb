"""The benchmark of trees trains, exports, compares, and answers 1 where a forest falls short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import trees


@pytest.mark.needs("skl2onnx", "onnxruntime")
def test_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trees,
        "fastest",
        lambda calls, seconds: {n: (call(), 1.0 if n == "weft" else 2.0)[1] for n, call in calls.items()},
    )
    words = ["--models", "boosted", "--rows", "3,1000", "--json", str(tmp_path / "out.json")]
    assert trees.main(words) == 0 and "within" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(r["rows"], r["times"]) for r in results] == [(3, 2.0), (1000, 2.0)] and all(
        r["apart"] < 1e-4 for r in results
    )
    monkeypatch.setattr(trees, "LIMITED", ("boosted",))
    assert trees.main(words) == 1 and "not boosted" in capsys.readouterr().out
