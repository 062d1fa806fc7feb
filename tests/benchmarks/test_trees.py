"""The benchmark of trees trains, exports, compares, and answers 1 where a forest falls short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import trees


@pytest.mark.needs("skl2onnx", "onnxruntime")
def test_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def times(speed: float) -> None:
        def fastest(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
            return {name: (call(), speed if name == trees.PEER else 1.0)[1] for name, call in calls.items()}

        monkeypatch.setattr(trees, "fastest", fastest)

    times(4.0)
    words = ["--models", "boosted", "--rows", "3,1000", "--json", str(tmp_path / "out.json")]
    assert trees.main(words) == 0 and "within" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(r["rows"], r["times"][trees.FILE], r["times"][trees.OBJECT]) for r in results] == [(3, 4, 4), (1000, 4, 4)]
    assert all(r["apart"] < 1e-4 for r in results)
    times(2.0)
    assert trees.main(words) == 1 and "not boosted" in capsys.readouterr().out
