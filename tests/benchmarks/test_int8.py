"""The benchmark of 8-bit products prints rates beside the limit and fails only where the processor has the instructions
and falls short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import int8
from tests.needs import require

WORDS = ["--products", "3x8x32", "--convolutions", "4x5x5x8x3", "--seconds", "0.01"]


def test_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        int8,
        "fastest",
        lambda calls, seconds: {n: (call(), 1.0 if n == "fp32" else 0.5)[1] for n, call in calls.items()},
    )
    monkeypatch.setattr(int8, "instructions", lambda target: (["vpmaddwd256"], False))
    assert int8.main([*WORDS, "--json", str(tmp_path / "out.json")]) == 0
    values = json.loads((tmp_path / "out.json").read_text())
    product, convolution = values["results"]
    assert (product["operations"], convolution["operations"]) == (2 * 3 * 8 * 32, 2 * 25 * 8 * 4 * 9)
    assert product["times"] == values["mean"] == 2.0 and values["limit"] is None
    assert "vpmaddwd256" in (said := capsys.readouterr().out) and "which this one does not" in said
    monkeypatch.setattr(int8, "instructions", lambda target: (["vpdpbusd512", "vpmaddwd512"], True))
    assert int8.main(WORDS) == 1 and "limit 2.5: under" in capsys.readouterr().out
    monkeypatch.setattr(int8, "LIMIT", 2.0)
    assert int8.main(WORDS) == 0


def test_whole_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    require("onnxruntime")
    monkeypatch.setattr(int8, "fastest", lambda calls, seconds: {n: (call(), 1.0)[1] for n, call in calls.items()})
    assert (
        int8.main(["--products", "", "--convolutions", "", "--models", "mlp", "--json", str(tmp_path / "out.json")])
        == 0
    )
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert set(result["seconds"]) == {"fp32", "int8", "onnxruntime", "onnxruntime fp32"} and result["apart"] < 0.02
    assert "mlp" in capsys.readouterr().out


def test_instructions() -> None:
    x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu="
    assert int8.instructions(x86 + "sapphirerapids") == (["vpdpbusd512", "vpmaddwd512"], True)
    assert int8.instructions(x86 + "haswell") == (["vpmaddwd256"], False)
    assert int8.instructions("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72") == ([], False)
