"""A segment in C computes sizes as one in LLVM IR does: exactly, or the run ends."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
from tests.c.running import build
from tests.llvm.test_segment import BEYOND, FORMULAS, LEAST, A, B, computing

from weft.codegen.segment import BindSymbol, Check, SegmentSpec
from weft.expr import nodes as ex
from weft_c.segment import emit_segment
from weft_c_family import Emitted
from weft_runtime.abi import Context, DLTensor

KEPT = ("-Wno-unused-function", "-Wno-unused-variable", "-Wno-pointer-arith", "-Wno-unused-parameter")
TRAPS = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


def run(spec: SegmentSpec, dims: list[int]) -> tuple[int, Context]:
    """As that of the test in LLVM IR, with what is undefined in C made a trap."""
    library = build([Emitted("segment", "run", emit_segment(spec))], *KEPT, *TRAPS)
    shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
    tensor = DLTensor(ndim=len(dims), code=2, bits=32, lanes=1, shape=ctypes.addressof(shape))
    pointer = ctypes.c_void_p(ctypes.addressof(tensor))
    context = Context()
    return library.run(ctypes.byref(context), ctypes.byref(pointer), None), context


def test_formulas_are_those_of_the_reference() -> None:
    for start in range(0, len(FORMULAS), 8):
        part = FORMULAS[start : start + 8]
        code, context = run(computing([f for f, _ in part]), [-37, 5])
        assert code == 100 and list(context.error_args)[: len(part)] == [meaning(-37, 5) for _, meaning in part]


@pytest.mark.parametrize(("formula", "a", "b"), BEYOND)
def test_what_leaves_int64_ends_the_run(formula: ex.Expr, a: int, b: int) -> None:
    spec = replace(computing([]), items=(BindSymbol("c", formula), Check(ex.const(False), 100)))
    code, context = run(spec, [a, b])
    assert (code, context.error_code, context.error_args[0]) == (8, 8, 0)
    assert run(spec, [3, 4])[0] == 100, "small numbers go on"


def test_a_side_that_is_not_chosen_may_leave_int64() -> None:
    spec = computing([ex.select(A < B, A, A * B), A % B])
    assert list(run(spec, [1 << 40, 1 << 41])[1].error_args)[:2] == [1 << 40, 1 << 40]
    assert list(run(computing([A % B]), [LEAST, -1])[1].error_args)[:1] == [0]


def test_a_check_fails_where_its_condition_leaves_int64() -> None:
    spec = replace(computing([]), items=(Check(A * B <= 100, 107, (A,)), Check(ex.const(False), 100)))
    code, context = run(spec, [1 << 33, 1 << 33])
    assert (code, context.error_args[0]) == (107, 1 << 33)
    assert run(spec, [10, 10])[0] == 100
    assert run(spec, [10, 11])[0] == 107
