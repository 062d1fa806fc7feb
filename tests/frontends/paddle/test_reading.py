"""Programs of PaddlePaddle, against its own answer, which fixtures.zip holds (make_fixtures.py); and what is refused.

paddle2onnx is not needed: a module of its name takes its place, and gives what it made of the program."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.cli.main import main
from weft.errors import FrontendError
from weft.loading import model_files
from weft.plugins import engine_kinds
from weft_paddle.plugin import sniff
from weft_testing.frontend import FrontendCase, check_frontend

FIXTURES = Path(__file__).with_name("fixtures.zip")
EXPORT = """
from pathlib import Path
def export(model, params, result, optimize_tool, verbose):
    assert optimize_tool == "None" and Path(model).is_file()
    if Path(params).read_bytes() != Path(__file__).with_name("known").read_bytes():
        raise RuntimeError("the parameters are others")
    Path(result).write_bytes(Path(__file__).with_name("model.onnx").read_bytes())
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with its parameters, and a stand-in for paddle2onnx."""
    stand_in = tmp_path / "modules"
    stand_in.mkdir()
    with zipfile.ZipFile(FIXTURES) as archive:
        for name in ("model.json", "model.pdiparams", "arrays.npz"):
            archive.extract(name, tmp_path)
        archive.extract("model.onnx", stand_in)
        (stand_in / "known").write_bytes(archive.read("model.pdiparams"))
    (stand_in / "paddle2onnx.py").write_text(EXPORT)
    (stand_in / "paddle.py").write_text("")
    monkeypatch.syspath_prepend(str(stand_in))
    monkeypatch.setenv("PYTHONPATH", str(stand_in))
    return tmp_path / "model.json"


@pytest.mark.needs("weft_llvm")
def test_a_program_agrees_with_paddle(model: Path) -> None:
    arrays: Any = np.load(model.with_name("arrays.npz"))
    graph, _ = check_frontend(FrontendCase(model, {"x": arrays["x"]}, lambda _: [arrays["y"]], rtol=1e-5, atol=1e-6))
    assert len(graph.inputs) == 1 and not isinstance(graph.inputs[0].shape[0], int), "the batch is open"
    old = model.rename(model.with_suffix(".pdmodel"))
    assert len(weft.load(old).nodes) == len(graph.nodes)


def test_files_and_first_bytes(model: Path) -> None:
    params = model.with_suffix(".pdiparams")
    assert model_files(model, "paddle") == (model, params)
    assert sniff(model.read_bytes()[:200]) and not sniff(b'{"nodes": []}') and not sniff(b"")


def test_what_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = model.with_suffix(".pdiparams")
    with pytest.raises(FrontendError, match=r"paddle2onnx reads files\n  hint: give the path"):
        weft.load(model.read_bytes(), frontend="paddle")
    with pytest.raises(FrontendError, match=r"no file '.*none'"):
        weft.load(model, params=params.with_name("none"))
    params.write_bytes(params.read_bytes()[:-9])
    with pytest.raises(
        FrontendError, match=r"does not convert '.*json'\n  why: RuntimeError: the parameters are others"
    ):
        weft.load(model)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FrontendError) as caught:
        weft.load(model)
    assert "why: there is no package 'paddle2onnx'\n  hint: pip install \"weft-paddle[paddle2onnx]\"" in str(
        caught.value
    )


INFERENCE = """
from pathlib import Path
import numpy as np
class Config:
    def __init__(self, program, params):
        assert Path(program).is_file() and Path(params).is_file()
        self.said = set()
    def disable_gpu(self): self.said.add("no gpu")
    def disable_glog_info(self): pass
    def set_cpu_math_library_num_threads(self, threads): self.said.add(threads)
class Handle:
    def __init__(self): self.array = None
    def copy_from_cpu(self, array): self.array = array
    def copy_to_cpu(self): return self.array
class Predictor:
    def __init__(self): self.x, self.y = Handle(), Handle()
    def get_input_names(self): return ["x"]
    def get_input_handle(self, name): return {"x": self.x}[name]
    def get_output_names(self): return ["fetch_name_0"]
    def get_output_handle(self, name): return {"fetch_name_0": self.y}[name]
    def run(self):
        from weft import load
        from weft.graph.evaluate import evaluate
        x = self.x.array
        assert x.flags.c_contiguous
        (self.y.array,) = evaluate(load(Path(__file__).parents[1] / "model.onnx"), {"x": x})
def create_predictor(config):
    assert config.said >= {"no gpu"} and config.said & {1, 2}
    return Predictor()
"""


@pytest.fixture
def inference(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model, and a stand-in for PaddlePaddle's inference."""
    modules = model.parent / "modules"
    (modules / "paddle.py").unlink()
    (modules / "paddle").mkdir()
    (modules / "paddle/__init__.py").write_text("")
    (modules / "paddle/inference.py").write_text(INFERENCE)
    (modules / "paddlepaddle-3.3.1.dist-info").mkdir()
    (modules / "paddlepaddle-3.3.1.dist-info/METADATA").write_text("Name: paddlepaddle\nVersion: 3.3.1\n")
    for name in ("paddle", "paddle.inference"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield model
    for name in ("paddle", "paddle.inference"):
        sys.modules.pop(name, None)


def test_the_engine(inference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine,) = [e for e in engine_kinds() if e.name == "paddle"]
    assert engine.available() == "3.3.1" and engine.frontends == ("paddle",) and engine.values is None
    arrays: Any = np.load(inference.with_name("arrays.npz"))
    run = engine.open(str(inference), 2)
    (found,) = run({"x": np.asfortranarray(arrays["x"])})
    np.testing.assert_allclose(found, arrays["y"], rtol=1e-5, atol=1e-6)
    inference.with_suffix(".pdiparams").unlink()
    with pytest.raises(FrontendError, match=r"no parameters beside it\n  hint: paddle.jit.save writes a .pdiparams"):
        engine.open(str(inference), 1)


@pytest.mark.needs("weft_llvm")
def test_verify_against_paddle(inference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(inference), "--against", "paddle", "--input-shape", "x=2,3,8,8"])
    said = capsys.readouterr()
    assert ended.value.code in (None, 0), said.out + said.err
    assert "against 'paddle'" in said.out and "all outputs are within" in said.out


@pytest.mark.needs("paddle2onnx")
def test_paddle_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(FIXTURES) as archive:
        for name in ("model.json", "model.pdiparams", "arrays.npz"):
            archive.extract(name, tmp_path)
    (engine,) = [e for e in engine_kinds() if e.name == "paddle"]
    arrays: Any = np.load(tmp_path / "arrays.npz")
    (found,) = engine.open(str(tmp_path / "model.json"), 1)({"x": arrays["x"]})
    np.testing.assert_allclose(found, arrays["y"], rtol=1e-5, atol=1e-6)
