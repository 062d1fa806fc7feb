"""The benchmark of -precision prints what was computed in either precision."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import precision
from benchmarks.models import save_twin

from weft_runtime.cpu_features import host_features


@pytest.mark.needs("onnxruntime")
@pytest.mark.skipif(not host_features() & {"f16c", "neon"}, reason="this machine has no fp16 conversions")
def test_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, inputs = save_twin("mlp", tmp_path, layers=1)
    np.savez(path.with_suffix(".npz"), **inputs)  # type: ignore[arg-type]
    words = [
        "--models",
        "mlp",
        "--folder",
        str(tmp_path),
        "--source",
        "twins",
        "--products",
        "2x64x64",
        "--seconds",
        "0.01",
    ]
    assert precision.main([*words, "--json", str(tmp_path / "out.json")]) == 0
    product, model = json.loads((tmp_path / "out.json").read_text())["results"]
    assert product["bytes"] == {"fp32": 64 * 64 * 4, "fp16": 64 * 64 * 2}  # whole panels on any machine
    for result in (product, model):
        assert result["error"]["fp32"] < 1e-5 < result["error"]["fp16"] < 1e-2
        assert all(t > 0 for t in result["seconds"].values())
    assert "fp16 error" in capsys.readouterr().out
