"""The commands of benchmarks/ print every figure beside its limit; what they count is counted right. No test asserts a
time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import accuracy, compare, compile_time, memory, overhead, threads
from benchmarks.arguments import judge
from benchmarks.models import save_twin
from tests.needs import require


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path, inputs = save_twin("mlp", tmp_path, layers=1)
    np.savez(path.with_suffix(".npz"), **inputs)  # type: ignore[arg-type]
    return tmp_path


def words(folder: Path) -> list[str]:
    return ["--models", "mlp", "--folder", str(folder), "--source", "twins", "--json", str(folder / "out.json")]


def test_verdicts() -> None:
    assert [judge(1.0, 2.0), judge(2.0, 2.0), judge(2.1, 2.0)] == ["within", "within", "over"]


def test_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overhead.main(["--repeat", "3", "--json", str(tmp_path / "o.json")])
    results = json.loads((tmp_path / "o.json").read_text())["results"]
    assert [r["engine"] for r in results[:2]] == ["weft: exe(x, y)", "weft: exe.run({…})"]
    assert all(0 < r["best"] <= r["median"] for r in results) and results[0]["limit"] == 10e-6
    assert "limit µs" in capsys.readouterr().out


def test_what_overhead_calls_is_right(tmp_path: Path) -> None:
    for call in overhead.callers(overhead.add_model(tmp_path / "add.onnx"), 1).values():
        answer = call()
        value = (
            next(iter(answer.values()))
            if isinstance(answer, dict)
            else answer[0]
            if isinstance(answer, list)
            else answer
        )
        np.testing.assert_array_equal(np.asarray(value), np.arange(16) * np.float32(3))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_counts_children_and_shared_pages_once() -> None:
    hold = "x = bytearray(64 << 20)\n"
    alone = memory.peak_of(hold)
    child = "subprocess.run([sys.executable, '-c', 'import time; x = bytearray(64 << 20); time.sleep(0.5)'])\n"
    both = memory.peak_of("import subprocess, sys\n" + hold + child)
    forked = memory.peak_of(
        "import os, time\n"
        + hold
        + "pid = os.fork()\nif pid == 0:\n time.sleep(0.5); os._exit(0)\nos.waitpid(pid, 0)\n"
    )
    assert 64e6 < alone < 100e6
    assert both > alone + 60e6
    assert forked < alone + 30e6
    with pytest.raises(RuntimeError, match="ValueError: no"):
        memory.peak_of("raise ValueError('no')")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main([*words(folder), "--only", "arena,compile", "--threads", "1"]) == 0
    arena, compiling = json.loads((folder / "out.json").read_text())["results"]
    assert arena["lower_bound"] <= arena["bytes"] <= arena["limit"]
    assert (
        compiling["weights"] == (784 * 1024 + 1024 + 1024 * 10 + 10) * 4
        and compiling["limit"] == 300e6 + 2.5 * compiling["weights"]
    )
    assert compiling["bytes"] > compiling["weights"]
    assert "limit MB" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no measure 'all': there are compile, run, arena"):
        memory.main(["--only", "all"])


def test_compile_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_time.main([*words(folder), "--repeat", "1", "--threads", "1"])
    cold, warm = json.loads((folder / "out.json").read_text())["results"]
    assert cold["limit"] is None  # the limit is that of two models
    assert warm["limit"] == 0.5 + warm["reading"] and warm["seconds"] > 0
    assert cold["cpu"] > warm["cpu"] > 0 and "limit s" in capsys.readouterr().out
    given = ["--files", str(folder / "mlp.onnx"), "--models", "resnet50", "--json", str(folder / "given.json")]
    compile_time.main([*given, "--repeat", "1", "--threads", "1"])
    assert [r["model"] for r in json.loads((folder / "given.json").read_text())["results"]] == ["mlp", "mlp"]


def test_threads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words_of_threads = [*words(folder), "--threads", "2", "--callers", "3", "--seconds", "0.05"]
    assert threads.main(words_of_threads) == 0
    join, kernels, *callers = json.loads((folder / "out.json").read_text())["results"]
    assert join["awake"] > 0 and join["asleep"] > 0
    assert kernels["efficiency"] == pytest.approx(kernels["alone"] / kernels["together"] / 2)
    assert kernels["alone"] == pytest.approx(sum(k["alone"] for k in kernels["kernels"])) and kernels["alone"] > 0
    assert callers[0]["engine"] == "weft" and all(c["calls"] >= 3 and 0 < c["p50"] <= c["p99"] for c in callers)
    assert "fork-join of 2 threads" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no measure 'x': there are join, kernels, callers"):
        threads.main(["--only", "x"])


def test_accuracy(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    require("onnxruntime")
    assert accuracy.main([*words(folder), "--threads", "1"]) == 0
    results = json.loads((folder / "out.json").read_text())["results"]
    assert [(r["option"], r["limit"]) for r in results] == [("-winograd=auto", 1e-4), ("-winograd=off", 1e-5)]
    assert all(r["beside"] == "onnxruntime" and r["error"] <= r["limit"] for r in results)
    # An option that the target lacks is told, not passed over.
    monkeypatch.setattr(accuracy, "LIMITS", {"-wingrad=off": 1e-5})
    assert accuracy.main(words(folder)) == 1
    assert "wingrad" in capsys.readouterr().out


def test_accuracy_sees_a_wrong_answer(folder: Path) -> None:
    with np.load(folder / "mlp.npz") as archive:
        np.savez(folder / "mlp.npz", x=archive["x"], out=np.ones((32, 10), np.float32))
    assert accuracy.main(words(folder)) == 1


def test_the_table_of_a_comparison() -> None:
    results = [
        compare.Result("mlp", 1, "weft", "0.1", median=1e-3),
        compare.Result("mlp", 1, "onnxruntime", "1.3", median=2e-3),
        compare.Result("mlp", 1, "openvino", error="cannot"),
        compare.Result("lstm", 1, "weft", "0.1", median=4e-3),
        compare.Result("lstm", 1, "onnxruntime", "1.3", median=2e-3),
        compare.Result("lstm", 1, "openvino", "20", median=8e-3),
    ]
    rows = compare.ratios(results)
    text = compare.markdown(results, rows, compare.means(rows), {"cpu": "EPYC", "cpus": 2}, "2026-11-21")
    assert text.splitlines() == [
        "2026-11-21, EPYC (2 CPUs), weft 0.1, onnxruntime 1.3, openvino 20; medians in ms.",
        "",
        "| model | threads | weft | onnxruntime | openvino | weft/best |",
        "|---|---|---|---|---|---|",
        "| mlp | 1 | 1.00 | 2.00 | – | 0.50 |",
        "| lstm | 1 | 4.00 | 2.00 | 8.00 | 2.00 |",
        "| geometric mean of 2 | 1 |  |  |  | 1.00 |",
    ]


def test_engines_take_turns(folder: Path) -> None:
    results = compare.measure("mlp", folder / "mlp.onnx", 1, ["weft"], 2, 3, 0.1)
    assert [(r.engine, r.error) for r in results] == [("weft", None)]
    assert 2 <= results[0].calls <= 6 and len(results[0].times) == results[0].calls


def test_another_weft_takes_turns_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the environment whose interpreter is given: here a script that says that it was asked, and is this one."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    report = tmp_path / "report.json"
    words = ["--models", "mlp", "--source", "twins", "--layers", "1", "--threads", "1", "--engines", "weft"]
    words += ["--repeat", "1", "--calls", "2", "--beside", str(python), "--json", str(report)]
    assert compare.main(words) == 0
    results = json.loads(report.read_text())["results"]
    assert [r["engine"] for r in results] == ["weft", compare.BESIDE]
    assert asked.read_text().startswith("-m benchmarks.engine_process weft ")
    assert results[1]["difference"] == 0
    assert f"weft/{compare.BESIDE}" in capsys.readouterr().out
