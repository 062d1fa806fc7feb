"""The segment around one kernel: its dims from its inputs, or as constants."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.base import THREADS, KernelCode
from weft.codegen.kernel_segment import kernel_segment
from weft.codegen.segment import AllocateOutput, Arena, Input, InputDim, KernelCall, Output, Symbol
from weft.expr import nodes as ex
from weft.loop.parser import parse_program

PROGRAM = parse_program("""program k(x: float32[n, 4]) -> (y: float32[n*2]) dims(n) {
  for i in n*2 { y[i] = 0.0f32 }
}""")
N = ex.Var("n")
CODE = KernelCode("k", b"", (N * 5, THREADS * 8))


def test_dims_are_those_of_inputs() -> None:
    spec = kernel_segment(PROGRAM, CODE)
    assert spec.symbols == (Symbol("n", InputDim(0, 0)),) and spec.outputs[0].dims == (N * 2,)
    first = (N * 5 + 63) // 64 * 64
    assert spec.buffers == (Input(0), Output(0), Arena(ex.const(0), first), Arena(first, (THREADS * 8 + 63) // 64 * 64))
    assert spec.items == (AllocateOutput(0, (N * 2,)), KernelCall("k", (0, 1, 2, 3), (N,)))


def test_dims_may_be_constants() -> None:
    spec = kernel_segment(PROGRAM, CODE, {"n": 30})
    assert (
        spec.symbols == () and spec.inputs[0].dims == (ex.const(30), ex.const(4)) and spec.inputs[0].dtype == dt.float32
    )
    assert spec.buffers[2] == Arena(ex.const(0), ex.const(192))
    assert spec.items == (AllocateOutput(0, (ex.const(60),)), KernelCall("k", (0, 1, 2, 3), (ex.const(30),)))
