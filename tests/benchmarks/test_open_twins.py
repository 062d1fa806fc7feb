"""Twins with open sizes: sound models that mean at every size what a twin of that size means."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.models import twin
from benchmarks.open_twins import OPEN, open_twin
from benchmarks.symbolic import main, random_sizes, symbols_of

import weft
from weft.graph.evaluate import evaluate

LIGHT = ("resnet8", "mobilenet_v2", "mlp", "llama_prefill", "lstm")


@pytest.mark.parametrize("name", LIGHT)
def test_open_twins_mean_what_twins_do(name: str) -> None:
    symbols = symbols_of(name, None)
    model, inputs = open_twin(name, symbols, layers=1)
    onnx.checker.check_model(model, full_check=True)
    ((x, array),) = inputs.items()
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert tuple(d.dim_param for d in shape if d.dim_param) == symbols
    length = {"length": array.shape[1]} if "length" in symbols else {}
    fixed, _ = twin(name, layers=1, **length)
    if not length:
        (got,), (want,) = (evaluate(weft.load(m), {x: array}) for m in (model, fixed))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))
    double = np.concatenate([array, array]) if "batch" in symbols else array
    (got,), (twice,) = (evaluate(weft.load(model), {x: a}) for a in (array, double))
    assert twice.shape[1:] == got.shape[1:]
    np.testing.assert_allclose(twice[: len(got)], got, rtol=0, atol=1e-5 * float(np.abs(got).max()))


def test_what_a_model_has_not() -> None:
    with pytest.raises(KeyError, match="no model 'swin_tiny' with open sizes"):
        open_twin("swin_tiny", ("batch",))
    with pytest.raises(ValueError, match="mlp has no width to leave open: it has batch"):
        open_twin("mlp", ("width",))


def test_sizes_that_are_checked() -> None:
    found = random_sizes(("batch", "height"), 20)
    assert len(found) == 20 and all(1 <= s["batch"] <= 5 and 32 <= s["height"] <= 260 for s in found)
    assert set(OPEN["lstm"].values()) == {"length"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    words = ["--models", "resnet8", "--layers", "1", "--open", "batch,width", "--at", "1x32", "--checks", "2"]
    main([*words, "--repeat", "1", "--json", str(report)])
    (result,) = json.loads(report.read_text())["results"]
    assert result["open"] == ["batch", "width"] and result["worst"] <= 1e-5 and len(result["errors"]) == 2
    assert "geometric mean" in capsys.readouterr().out
