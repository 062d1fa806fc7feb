"""The benchmark of loops measures a Scan and a Loop natively and iteration by iteration, and all give one result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import loops


def test_trips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loops.main(["--trips", "70", "--width", "8", "--repeat", "1", "--json", str(tmp_path / "out.json")]) == 0
    assert "iteration by iteration" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert {r["model"] for r in results} == {"scan", "loop"} and {"weft", "weft, iteration by iteration"} <= {
        r["engine"] for r in results
    }
    assert all(r["difference"] < 1e-5 for r in results)
