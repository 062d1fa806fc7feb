"""Results without an element: no kernel runs for them, whatever their other sizes say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest

import weft

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
empty (float[1, 1, 1] x, int64[3] shape) => (float[a, b, c] y) {
  e = Expand(x, shape)
  y = Transpose<perm = [2, 1, 0]>(e)
}"""
RUN = """
import sys, numpy as np, weft
exe = weft.Executable.load(sys.argv[1])
print(exe.run({"x": np.ones((1, 1, 1), np.float32), "shape": np.array(eval(sys.argv[2]), np.int64)})["y"].shape)
"""


@pytest.mark.parametrize("target", ["llvm -threads=1", "llvm -threads=2", "c"])
def test_an_empty_result_with_a_huge_size_takes_no_time(target: str, tmp_path: Path) -> None:
    """One size is 0, another 2⁴⁰: whoever runs every step of the other loop does not come back."""
    weft.compile(onnx.parser.parse_model(MODEL).SerializeToString(), target).save(tmp_path / "empty.weft")
    for sizes in ((0, 1 << 40, 3), (1 << 40, 0, 3), (3, 1 << 40, 0), (1 << 40, 3, 0), (2, 3, 4)):
        command = [sys.executable, "-c", RUN, str(tmp_path / "empty.weft"), str(sizes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{sizes[::-1]}\n", done.stderr
