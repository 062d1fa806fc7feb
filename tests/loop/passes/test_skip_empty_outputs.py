"""skip_empty_outputs: a program without an element to compute runs no loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from passcheck import same

import weft
from weft.loop.interpret import interpret
from weft.loop.nodes import If, walk_stmts
from weft.loop.parser import parse_program
from weft.loop.passes.skip_empty_outputs import skip_empty_outputs

TWO = """
program two(x: float32[n, m]) -> (y: float32[m, n], z: float32[n, k]) dims(n, m, k) {
  allocate t: float32[n]
  let s: int64 = n + 1
  for i in n {
    t[i] = float32(s)
    for j in m {
      y[j, i] = x[i, j] + t[i]
    }
    for l in k {
      z[i, l] = t[i]
    }
  }
}
"""


@pytest.mark.parametrize(("n", "m", "k"), [(3, 2, 4), (0, 2, 4), (3, 0, 4), (3, 2, 0), (3, 0, 0)])
def test_it_means_the_same(n: int, m: int, k: int) -> None:
    program = parse_program(TWO)
    after = skip_empty_outputs(program)
    assert sum(isinstance(s, If) for s in walk_stmts(after.body)) == 1
    same(program, after, {"n": n, "m": m, "k": k})


def test_a_loop_of_two_to_the_forty_is_not_run() -> None:
    program = parse_program("program p(x: float32[1]) -> (y: float32[n, m]) dims(n, m) { for i in n { for j in m { y[i, j] = x[0] } } }")
    (y,) = interpret(skip_empty_outputs(program), {"x": np.zeros(1, np.float32)}, {"n": 1 << 40, "m": 0}).values()
    assert y.shape == (1 << 40, 0)


@pytest.mark.parametrize(
    "text",
    [
        "program p(x: float32[n]) -> (y: float32[n, 4]) dims(n) { for i in n { for j in 4 { y[i, j] = x[i] } } }",
        "program p(x: float32[n, m]) -> (y: float32[]) dims(n, m) { y[] = 0.0f32 }",
        "program p(x: float32[1]) -> (y: float32[n, m]) dims(n, m) { for i in n blockIdx.x { for j in m { y[i, j] = x[0] } } }",
    ],
    ids=["one_size", "a_number", "a_grid"],
)
def test_what_memory_bounds_or_a_grid_counts_stays(text: str) -> None:
    program = parse_program(text)
    assert skip_empty_outputs(program) is program


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
