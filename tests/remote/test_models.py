"""Models on boards, by weft-run itself: the same results as here, and the commands with --on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.remote import agents

import weft
import weft_runtime
from weft.remote import connect, run_on
from weft_remote import BusyError, JobError, Limits, RemoteError
from weft_runtime.errors import InputError
from weft_testing.models import mlp

pytestmark = [pytest.mark.needs("c", "weft_llvm")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return agents.board(tmp_path / "store", agents.real())


def test_a_board_gives_the_results_of_this_machine(url: str, tmp_path: Path) -> None:
    with connect(url) as board:
        exe = weft.compile(mlp(), target=board.target)
        for rows in (1, 8, 33):
            x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
            result = board.run(exe, {"x": x}, warmups=1, repeats=3)
            assert np.array_equal(result.outputs["y"], exe.run({"x": x})["y"]) and len(result.seconds) == 3
        exe.save(tmp_path / "model.weft")
        assert board.run(tmp_path / "model.weft", {"x": x}).outputs["y"].tobytes() == result.outputs["y"].tobytes()
        with pytest.raises(InputError, match=r"the program takes the inputs x, got z"):
            board.run(exe, {"z": x})
        with pytest.raises(InputError, match=r"input float64\[33, 64\] does not fit"):
            board.run(exe, {"x": x.astype(np.float64)})


def test_executables_that_are_made_meanwhile_run_on_the_board(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weft.compile(mlp(), target="llvm")
    x = np.ones((4, 64), np.float32)
    with run_on(url) as board:
        calls: list[object] = []
        run = board.run
        monkeypatch.setattr(board, "run", lambda *given, **more: (calls.append(given), run(*given, **more))[1])
        exe = weft.compile(mlp(), target=board.target)
        there = exe.run({"x": x})["y"]
        out = np.empty_like(there)
        assert exe.run({"x": x}, out={"y": out})["y"] is out and len(calls) == 2
        with pytest.raises(InputError, match="there is no output 'z'"):
            exe.run({"x": x}, out={"z": out})
        before.run({"x": x})
        assert len(calls) == 2  # it was made before, for this process
    assert np.array_equal(there, weft.compile(mlp(), target=board.target).run({"x": x})["y"]) and np.array_equal(
        out, there
    )
    assert len(calls) == 2
    with pytest.raises(RemoteError, match="the connection is closed"):
        exe.run({"x": x})


def test_what_a_board_cannot_run_is_an_error(url: str) -> None:
    exe = weft.compile(mlp(), target="llvm -mtriple=aarch64-linux-gnu")
    with connect(url) as board:
        if board.facts.architecture == "aarch64":
            pytest.skip("this machine runs it")
        with pytest.raises(RemoteError) as caught:
            board.run(exe, {"x": np.ones((1, 64), np.float32)})
        assert "aarch64" in str(caught.value) and "on pipe:" in str(caught.value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import TensorProto, helper, numpy_helper, save

    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", [4, 16]), ("y", [4, 8]))]
    graph = helper.make_graph(nodes, "m", *ends, [w])
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "weft", *map(str, words)], capture_output=True, text=True, timeout=300)


def test_weft_bench_on_a_board(url: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "times.json"
    code, _, err = agents.weft_command(capsys, "bench", model, "--on", url, "--rounds", "2", "--json", out)
    assert code == 0, err
    report = json.loads(out.read_text())
    assert report["machine"]["board"] == f"pipe:{agents.real()}" and len(report["engines"]) == 1
    assert "-mtriple=" in report["engines"][0]["name"] and len(report["engines"][0]["times"]) >= 2
    assert agents.running(tmp_path) == []
    for words, says in (
        (["--on", url, "--profile"], "measure this machine"),
        (["--on", url, "--against", "onnxruntime"], "the engine 'onnxruntime' runs on this machine"),
        (["--on", "somewhere"], "is no board"),
    ):
        code, _, err = agents.weft_command(capsys, "bench", model, *words)
        assert code == 1 and says in err


def test_weft_verify_on_a_board(url: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = agents.weft_command(capsys, "verify", model, "--on", url, "--every-node")
    assert code == 0, err
    assert "all outputs are within their tolerances, and so is every part by itself" in out


@pytest.mark.full
def test_weft_conform_on_a_board(url: str) -> None:
    done = command("conform", "--on", url, "--quick", "--level", "3,5,6")
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"passes what was asked.*\d{3} checks", done.stdout)


@pytest.mark.full
@pytest.mark.needs("qemu", "ziglang")
@pytest.mark.parametrize("architecture", ["aarch64", "arm", "riscv64"])
def test_verify_on_a_board_of_another_architecture(model: Path, tmp_path: Path, architecture: str) -> None:
    from libweft.build import program

    program(tmp_path / "agents", architecture)
    there = f"qemu:{architecture}?agent={tmp_path}/agents&store={tmp_path}/store&lock={tmp_path}/lock"
    done = command("verify", model, "--on", there, "--every-node")
    assert done.returncode == 0, done.stderr
    assert f"-mtriple={architecture.replace('arm', 'armv7')}-linux-gnu" in done.stdout


def test_the_names_of_the_package() -> None:
    assert weft.remote.connect is connect and {BusyError, JobError} <= set(RemoteError.__subclasses__())
    assert weft_runtime.WeftError in RemoteError.__mro__ and Limits().time == 60
