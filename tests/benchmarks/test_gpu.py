"""The benchmark on a GPU: what it says where none is, and, with the host in the GPU's place, what it measures, prints
and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import gpu
from benchmarks.gpu import Place

HOST = Place("cpu", "llvm -threads=1", lambda: None, {"gpu": "the host"})


def test_without_a_gpu_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft_cuda import driver

    monkeypatch.setattr(driver, "missing", lambda ordinal: "no CUDA driver is here")
    with pytest.raises(SystemExit) as stopped:
        gpu.main([])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "cannot run here; missing:" in said and "an NVIDIA GPU with its driver: no CUDA driver is here" in said


def test_it_is_one_command() -> None:
    """Where a GPU is, this would run; --help must not need one."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--help"], capture_output=True, text=True, check=True
    )
    assert "--products" in done.stdout


def test_everything_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from weft_cuda import driver

    monkeypatch.setattr(driver, "missing", lambda ordinal: "none")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    lines = gpu.lacking()
    assert len(lines) == 3
    assert "torch, transformers, onnxscript: install the extra `bench`" in lines[1] and "triton" in lines[2]


@pytest.mark.needs("torch")
def test_products(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = gpu.main(
        [
            "--models",
            "",
            "--products",
            "16,24",
            "--engines",
            "weft,torch",
            "--seconds",
            "0.01",
            "--json",
            str(tmp_path / "g.json"),
        ],
        lambda: HOST,
    )
    assert code == 0
    said = capsys.readouterr().out
    assert "TFLOP/s" in said and "weft/torch" in said and "bf16" in said
    report = json.loads((tmp_path / "g.json").read_text())
    assert [(r["name"], r["precision"]) for r in report["results"]] == [
        ("16", "fp16"),
        ("16", "bf16"),
        ("24", "fp16"),
        ("24", "bf16"),
    ]
    for r in report["results"]:
        assert r["operations"] == 2 * int(r["name"]) ** 3
        assert r["difference"] < 2e-2 and r["within"] is None and r["seconds"]["weft"]["calls"] >= 1
    assert report["machine"]["gpu"] == "the host"


@pytest.mark.needs("torch", "transformers", "onnxscript")
def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--models",
        "mlp:1",
        "--precisions",
        "fp32",
        "--products",
        "",
        "--engines",
        "weft,torch",
        "--seconds",
        "0.01",
    ]
    assert gpu.main(words, lambda: HOST) == 0
    said = capsys.readouterr().out
    assert "mlp:1" in said and " ms" in said


def test_an_engine_that_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu, "product", fails)
    assert gpu.main(["--models", "", "--products", "16"], lambda: HOST) == 1
    assert "RuntimeError: out of memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind, name, seconds, within",
    [
        ("model", "resnet18:1", {"weft": 1.0, "torch.compile": 1.1}, True),
        ("model", "resnet18:1", {"weft": 1.2, "torch.compile": 1.1}, False),
        ("product", "2048", {"weft": 1.1, "torch": 1.0}, True),
        ("product", "2048", {"weft": 1.2, "torch": 1.0}, False),
        ("product", "512", {"weft": 9.0, "torch": 1.0}, None),
        ("product", "2048", {"torch": 1.0}, None),
    ],
)
def test_limits(kind: str, name: str, seconds: dict[str, float], within: bool | None) -> None:
    result = gpu.judged(
        {"kind": kind, "name": name, "precision": "fp16", "seconds": {n: {"median": s} for n, s in seconds.items()}}
    )
    assert result["within"] is within


def test_turns_rotate_and_the_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(gpu, "MOST_CALLS", 5)
    times = gpu.in_turns({"a": lambda: log.append("a"), "b": lambda: log.append("b")}, lambda: log.append("wait"), 10.0)
    assert {n: len(t) for n, t in times.items()} == {"a": 2, "b": 2}
    calls = [x for x in log if x != "wait"]
    assert calls[:4] == ["a", "b", "b", "a"]
    assert all(log[k - 1] == log[k + 1] == "wait" for k, x in enumerate(log) if x != "wait")


def test_models_are_written_with_their_batch() -> None:
    assert gpu.parse_model("resnet18:64") == ("resnet18", 64)
    assert gpu.parse_model("mlp") == ("mlp", 1)
    with pytest.raises(SystemExit, match="'mlp:x' is no model"):
        gpu.parse_model("mlp:x")
