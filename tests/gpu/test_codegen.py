"""Programs cut into launches: each is a Program of its own, and one after another they do what the whole does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.c.dialects import CUDA

from weft.codegen.base import Codegen, SourceCodegen
from weft.errors import CodegenError, LoopError
from weft.expr.evaluate import evaluate
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.loop.verify import verify
from weft_gpu.codegen import GpuCodegen
from weft_gpu.image import Kernel
from weft_gpu.launches import cut
from weft_gpu.passes import grid_passes
from weft_interpreter.calls import sentinel
from weft_interpreter.interpret import interpret

TWO = """program two(x: float32[n, 8], s: float32[8]) -> (y: float32[n, 8], m: float32[1]) dims(n) {
  allocate t: float32[n, 8]
  if 0 < n {
    for b in (n + 3)//4 blockIdx.x {
      for c in 2 blockIdx.y {
        for i in 4 threadIdx.x { for j in 4 threadIdx.y { if b*4 + i < n { t[b*4 + i, c*4 + j] = x[b*4 + i, c*4 + j]*s[c*4 + j] } } }
      }
    }
  }
  m[0] = 0.0f32
  for k in n { m[0] = m[0] + t[k, 0] }
  for b2 in n blockIdx.x { for j2 in 8 threadIdx.x { y[b2, j2] = t[b2, j2] + m[0] } }
}"""  # noqa: E501


def lowered(text: str) -> Program:
    return lower_program(parse_program(text), GpuCodegen(CUDA).functions, extra=grid_passes())


def run_parts(program: Program, arrays: list[Any], dims: dict[str, int]) -> list[Any]:
    """The launches one after another, each interpreted on its own; the outputs."""
    parts = cut(program)
    buffers = [a.reshape(-1) for a in arrays]
    buffers += [
        np.full([int(evaluate(d, dims)) for d in b.shape], sentinel(b.dtype), b.dtype.numpy) for b in program.outputs
    ]
    by_name: dict[int, Any] = dict(enumerate([*buffers, *(np.empty(0, np.float32) for _ in parts.scratch)]))
    for part in parts.parts:
        verify(part.program)
        if any(int(evaluate(n, dims)) == 0 for n in part.grid):
            continue
        own = {program.dims[k].name: dims[program.dims[k].name] for k in part.dims}
        inputs = [by_name[k] for k in part.buffers[: len(part.program.inputs)]]
        results = interpret(part.program, inputs, own, shuffle_seed=3)
        for k, b in zip(part.buffers[len(inputs) :], part.program.outputs):
            by_name[k] = results[b.name]
    return [by_name[len(arrays) + k] for k in range(len(program.outputs))]


@pytest.mark.parametrize("n", [0, 1, 6])
def test_launches_do_what_the_whole_does(n: int) -> None:
    program = lowered(TWO)
    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)]
    want = interpret(parse_program(TWO), arrays, {"n": n})
    for got, name in zip(run_parts(program, arrays, {"n": n}), want):
        np.testing.assert_array_equal(got, want[name].reshape(-1))


def test_grids_groups_and_what_each_launch_takes() -> None:
    parts = cut(lowered(TWO))
    assert [int(evaluate(s, {"n": 3})) for s in parts.scratch] == [128]
    found = [(p.program.name, [str(n) for n in p.grid], p.group, p.buffers, p.dims) for p in parts.parts]
    assert found == [
        ("two_0", ["select(1 <= n, (n + 3)//4, 0)", "2", "1"], (4, 4, 1), (0, 1, 4), (0,)),
        ("two_1", ["1", "1", "1"], (1, 1, 1), (4, 3), (0,)),
        ("two_2", ["n", "1", "1"], (8, 1, 1), (3, 4, 2), (0,)),
    ]


def test_a_program_without_bound_loops_is_one_thread() -> None:
    program = lowered("program p(x: float32[n]) -> (y: float32[n]) dims(n) { for i in n { y[i] = x[i] + 1.0f32 } }")
    (part,) = cut(program).parts
    assert (part.program.name, part.group, [str(n) for n in part.grid]) == ("p", (1, 1, 1), ["1", "1", "1"])


def test_kernels_of_launches() -> None:
    codegen = GpuCodegen(CUDA)
    assert isinstance(codegen, Codegen) and isinstance(codegen, SourceCodegen)
    program = lowered(TWO)
    assert codegen.check(program) == []
    code = codegen.compile(program)
    kernel = Kernel.from_bytes(code.object, code.name)
    assert [x.symbol for x in kernel.launches] == ["two_0", "two_1", "two_2"]
    assert [x.grid for x in kernel.launches] == [
        ("select(1 <= d0, (d0 + 3)//4, 0)", "2", "1"),
        ("1", "1", "1"),
        ("d0", "1", "1"),
    ]
    assert "\n".join(x.code.decode() for x in kernel.launches) == codegen.source(program)
    assert "two_1(const float *__restrict__ t, float *__restrict__ m, long long n)" in kernel.launches[1].code.decode()
    built = GpuCodegen(CUDA, build=lambda text: text[:4].encode()).compile(program)
    assert [x.code for x in Kernel.from_bytes(built.object, built.name).launches] == [b"// t"] * 3


@pytest.mark.parametrize(
    ("body", "error", "what"),
    [
        ("for i in 2 { for b in n blockIdx.x { y[b] = x[b] } }", LoopError, "has loops over groups in another loop"),
        (
            "for b in n blockIdx.x { for t in n threadIdx.x { y[t] = x[b] } }",
            CodegenError,
            "the extent of loop 't' over threads is no constant",
        ),
        (
            "for b in n blockIdx.x { allocate g: float32[4] y[b] = x[b] }",
            CodegenError,
            "buffer 'g' of scope global is allocated in loop 'b', blockIdx.x",
        ),
        (
            "for i in n { allocate g: float32[i] y[i] = x[i] }",
            CodegenError,
            "the size of buffer 'g' is not known before kernel 'p' starts",
        ),
    ],
)
def test_what_cannot_be_launched_is_said(body: str, error: type[Exception], what: str) -> None:
    program = parse_program(f"program p(x: float32[n]) -> (y: float32[n]) dims(n) {{ {body} }}")
    with pytest.raises(error, match=what):
        cut(program)
    (line,) = GpuCodegen(CUDA).check(program)
    assert what in line
