"""Models that CNTK 2.7 exported to ONNX agree with CNTK's own answers, which cntk.zip holds (make_cntk.py made it)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from weft_testing.frontend import FrontendCase, check_frontend

FIXTURES = Path(__file__).with_name("cntk.zip")
RECURRENT = ("lstm", "gru")


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", ["convolutional", "dense", "movement", *RECURRENT])
def test_cntk(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(FIXTURES) as archive:
        path = Path(archive.extract(f"{name}.onnx", tmp_path))
        arrays = np.load(io.BytesIO(archive.read(f"{name}.npz")))
    x, y = arrays["x"], arrays["y"]
    if name in RECURRENT:  # CNTK puts the batch first, its export the steps
        x, y = x.swapaxes(0, 1), y.swapaxes(0, 1)
        assert str(weft.load(path).inputs[0].type) == "float32[Sequence, 1, 5]"
    # CNTK's layer normalisation divides by the deviation + 1e-5, the operator of its export by the deviation + 1e-9.
    tolerance = 1e-4 if name == "dense" else 1e-5
    check_frontend(FrontendCase(path, {"x": x}, lambda _: [y], rtol=tolerance, atol=tolerance))
