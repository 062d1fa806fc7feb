"""One emitter, tables of other languages: GPU texts of scheduled Programs, which a few lines of C++ make run on a
CPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.c.dialects import CUDA, METAL, OPENCL, SHIMS
from tests.c.running import command

from weft.expr.evaluate import evaluate
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_c_family import Dialect, Emitted, Emitter
from weft_gpu.passes import grid_passes
from weft_interpreter.interpret import interpret

DIALECTS = {d.name: d for d in (CUDA, OPENCL, METAL)}
STAGED = """program scale(x: float32[n, 128], s: float32[128]) -> (y: float32[n, 128]) dims(n) {
  for b in n blockIdx.x {
    allocate tile: float32[128] in shared
    for t in 32 threadIdx.x {
      tile[ramp(t*4, 1, 4)] = x[b, ramp(t*4, 1, 4)]*s[ramp(t*4, 1, 4)]
      @barrier()
      for k in 4 { y[b, t*4 + k] = tile[127 - t*4 - k] + float32(t) }
    }
  }
}"""
RAGGED = """program ragged(x: float32[n], k: int32[n]) -> (y: float32[n], h: int32[4]) dims(n) {
  for b in (n + 7)//8 blockIdx.x {
    for t in 8 threadIdx.x {
      allocate acc: float32[2] in register
      if b*8 + t < n {
        acc[0] = max(x[b*8 + t], 0.5f32)
        acc[1] = select(b*8 + t < 1, 0.0f32, x[b*8 + t - 1])
        y[b*8 + t] = floor(acc[0]*3.0f32) + sqrt(abs(acc[1]))
        atomic h[k[b*8 + t] % 4i32] += k[b*8 + t]*k[b*8 + t]
      }
    }
    for u in 3 threadIdx.x { if b*8 + u < n { y[b*8 + u] = y[b*8 + u] + 1.0f32 } }
  }
}"""


def emit(dialect: Dialect, text: str) -> tuple[Program, Emitted]:
    emitter = Emitter(dialect)
    program = lower_program(parse_program(text), emitter.functions, extra=grid_passes())
    assert emitter.check(program) == []
    return program, emitter.emit(program)


@pytest.mark.parametrize("name", DIALECTS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"scale_{name}", emit(DIALECTS[name], STAGED)[1].source)


def launched(
    dialect: Dialect, program: Program, emitted: Emitted, arrays: list[Any], dims: dict[str, int], folder: Path
) -> None:
    """Runs the text: one group after another, one thread after another."""
    sizes = {kind: int(evaluate(n, dims)) for kind, n in emitted.grid}
    kinds = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
    types = [
        f"({'const ' if i < len(program.inputs) else ''}{dialect.types[b.dtype.name]} *)buffers[{i}]"
        for i, b in enumerate(program.params)
    ]
    call = ", ".join(
        [
            *types,
            *(f"dims[{i}]" for i in range(len(program.dims))),
            *(("grid_group", "grid_thread") if dialect.more_parameters else ()),
        ]
    )
    loops = "".join(f"for (grid_{'group' if k < 3 else 'thread'}.{'xyz'[k % 3]} = 0; grid_{'group' if k < 3 else 'thread'}.{'xyz'[k % 3]} < counts[{k}];"  # noqa: E501
                    f" ++grid_{'group' if k < 3 else 'thread'}.{'xyz'[k % 3]})\n" for k in range(6))  # fmt: skip
    text = emitted.source.replace("#include <metal_stdlib>", "").replace("using namespace metal;", "")
    if dialect is not CUDA:  # C++ knows long long by another name than int64_t
        text = text.replace('extern "C" ', "")
    main = (
        'extern "C" void launch(void *const *buffers, const long long *dims, const unsigned *counts)'
        f" {{\n{loops}{emitted.symbol}({call});\n}}\n"
    )
    (folder / "k.cpp").write_text(SHIMS[dialect.name] + text + main)
    compile_ = [
        *(w.replace("gcc", "g++") if w != "cc" else "c++" for w in command()),
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wno-attributes",
        "-Wno-unknown-pragmas",
    ]
    done = subprocess.run(
        [*compile_, "-shared", "-fPIC", "k.cpp", "-o", "k.so"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    buffers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    sized = (ctypes.c_longlong * max(1, len(dims)))(*(dims[d.name] for d in program.dims))
    ctypes.CDLL(str(folder / "k.so")).launch(buffers, sized, (ctypes.c_uint * 6)(*(sizes.get(k, 1) for k in kinds)))


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("n", [1, 8, 21])
def test_a_grid_with_a_ragged_edge(name: str, n: int, tmp_path: Path) -> None:
    """Groups, threads, two loops on one index, a guarded load, atomic additions: as interpreted."""
    source = RAGGED if name != "metal" else RAGGED.replace("atomic h[k[b*8 + t] % 4i32] += k[b*8 + t]*k[b*8 + t]", "")
    program, emitted = emit(DIALECTS[name], source)
    assert [(k, str(e)) for k, e in emitted.grid] == [("blockIdx.x", "(n + 7)//8"), ("threadIdx.x", "8")]
    rng = np.random.default_rng(n)
    inputs = [rng.standard_normal(n).astype(np.float32), rng.integers(0, 60000, n).astype(np.int32)]
    outputs = [np.zeros(n, np.float32), np.zeros(4, np.int32)]
    launched(DIALECTS[name], program, emitted, [*inputs, *outputs], {"n": n}, tmp_path)
    naive = parse_program(source.replace("atomic", "h[0] = 0i32 h[1] = 0i32 h[2] = 0i32 h[3] = 0i32 atomic", 0))
    want = interpret(naive, inputs, {"n": n})
    np.testing.assert_allclose(outputs[0], want["y"], rtol=1e-6)
    if name != "metal":
        expected = np.zeros(4, np.int32)
        with np.errstate(over="ignore"):
            np.add.at(expected, inputs[1] % 4, inputs[1] * inputs[1])
        np.testing.assert_array_equal(outputs[1], expected)


@pytest.mark.parametrize("name", DIALECTS)
def test_whole_vectors_move_at_once(name: str, tmp_path: Path) -> None:
    """Where a language has vectors; what may not be loaded stays behind its condition."""
    source = """program v(x: float32[n, 8], s: float32[8]) -> (y: float32[n, 8]) dims(n) {
      for b in n blockIdx.x { for t in 2 threadIdx.x { y[b, ramp(t*4, 1, 4)] = select(b < 1, s[ramp(t*4, 1, 4)], x[b, ramp(t*4, 1, 4)]*s[ramp(t*4, 1, 4)]) } }
    }"""  # noqa: E501
    program, emitted = emit(DIALECTS[name], source)
    x, s, y = (
        np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32),
        np.arange(8, dtype=np.float32),
        np.zeros((3, 8), np.float32),
    )
    launched(DIALECTS[name], program, emitted, [x, s, y], {"n": 3}, tmp_path)
    np.testing.assert_array_equal(y, np.where(np.arange(3)[:, None] < 1, s, x * s))
    assert emitted.source.count("float4") == {"cuda": 2, "opencl": 2, "metal": 0}[name]  # the one store


@pytest.mark.parametrize("name", DIALECTS)
def test_vectors_under_a_condition_and_at_hidden_multiples_move_at_once(name: str, tmp_path: Path) -> None:
    """As copies into a tile's memory are: all lanes or none, the place computed before, and perhaps turned round as
    they are stored."""
    source = """program v(x: float32[n, 8]) -> (y: float32[32], z: float32[32]) dims(n) {
      for b in 4 blockIdx.x { for t in 2 threadIdx.x {
        let from: int64 = b*8 + t % 2*4
        let to: int64 = b%4 + t*16
        y[ramp(from, 1, 4)] = x[b, ramp(t*4, 1, 4); broadcast(b < n, 4)]
        z[ramp(to, 4, 4)] = x[b, ramp(t*4, 1, 4); broadcast(b < n, 4)]
      } }
    }"""
    program, emitted = emit(DIALECTS[name], source)
    x, y, z = (
        np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32),
        np.ones(32, np.float32),
        np.ones(32, np.float32),
    )
    launched(DIALECTS[name], program, emitted, [x, y, z], {"n": 3}, tmp_path)
    want = np.concatenate([x, np.zeros((1, 8), np.float32)])
    np.testing.assert_array_equal(y.reshape(4, 8), want)
    np.testing.assert_array_equal(z.reshape(8, 4), want.T)
    assert emitted.source.count("float4") == {"cuda": 6, "opencl": 6, "metal": 0}[name]  # two loads and a store
