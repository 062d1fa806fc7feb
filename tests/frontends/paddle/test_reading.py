"""Programs of PaddlePaddle, against its own answer, which fixtures.zip holds (make_fixtures.py); and what is refused.

paddle2onnx is not needed: a module of its name takes its place, and gives what it made of the program."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import FrontendError
from weft.loading import model_files
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
