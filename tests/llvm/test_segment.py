"""Segments: formulas mean what the reference evaluator says; specs that make no sense are refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.models import compiled

import weft
from weft import dtypes as dt
from weft.codegen.base import THREADS
from weft.codegen.segment import (
    AllocateOutput,
    Arena,
    BindData,
    BindSymbol,
    Check,
    Constant,
    Data,
    Input,
    InputDim,
    Item,
    KernelCall,
    Output,
    ReserveArena,
    SegmentSpec,
    Stamp,
    Symbol,
    Tensor,
)
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.graph.nodes import GraphBuilder, TensorType
from weft_llvm import native
from weft_llvm.link import link
from weft_llvm.segment import emit_segment
from weft_llvm.target import Isa
from weft_llvm.toolchain import Cpu
from weft_ops.movement import Transpose
from weft_ops.transcendental import Exp
from weft_runtime.abi import Context, DLTensor, type_word
from weft_runtime.loader import Code

A, B, N = ex.Var("a"), ex.Var("b"), ex.Var("n")


def run(spec: SegmentSpec, dims: list[int], threads: int = 0) -> tuple[int, Context]:
    """Runs a segment without outputs over one float32 input of these sizes."""
    image = link({"s": compiled(emit_segment(spec))})
    code = Code(image.bytes, image.entries)
    shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
    tensor = DLTensor(ndim=len(dims), code=2, bits=32, lanes=1, shape=ctypes.addressof(shape))
    pointer = ctypes.c_void_p(ctypes.addressof(tensor))
    context = Context(threads=threads)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(code.address("run"))
    return function(ctypes.addressof(context), ctypes.addressof(pointer), None), context


def computing(formulas: list[ex.Expr]) -> SegmentSpec:
    """A segment that reports formulas over a and b as arguments of a check that always fails."""
    item = Check(ex.const(False), 100, tuple(formulas))
    return SegmentSpec(
        "f",
        (Tensor("x", dt.float32, (A, B)),),
        (),
        0,
        (Symbol("a", InputDim(0, 0)), Symbol("b", InputDim(0, 1))),
        (),
        (item,),
    )


FORMULAS: list[tuple[ex.Expr, Callable[[int, int], int]]] = [
    (A + B, lambda a, b: a + b),
    (A - B, lambda a, b: a - b),
    (A * B, lambda a, b: a * b),
    (A // B, lambda a, b: a // b if b else a),
    (A % B, lambda a, b: a % b if b else 0),
    (ex.truncdiv(A, B), lambda a, b: int(a / b) if b else a),
    (ex.truncmod(A, B), lambda a, b: a - int(a / b) * b if b else 0),
    (A // 8, lambda a, b: a // 8),
    (A % 8, lambda a, b: a % 8),
    (A // -3, lambda a, b: a // -3),
    (A % 7, lambda a, b: a % 7),
    (ex.truncdiv(A, ex.const(4)), lambda a, b: int(a / 4)),
    (ex.minimum(A, B), min),
    (ex.maximum(A, B), max),
    (A & B, lambda a, b: a & b),
    (A | B, lambda a, b: a | b),
    (A ^ B, lambda a, b: a ^ b),
    (ex.select(A < B, A, B * 2), lambda a, b: a if a < b else b * 2),
    (ex.select(ex.or_(ex.eq(A, B), ex.not_(A <= B)), A, ex.const(5)), lambda a, b: a if a == b or a > b else 5),
    (ex.select(ex.and_(ex.ne(A, B), A <= B), A, B), lambda a, b: a if a != b and a <= b else b),
    ((A < B).astype("int64"), lambda a, b: int(a < b)),
    (A.astype("int8").astype("int64"), lambda a, b: int(np.int64(a).astype(np.int8))),
    (A.astype("uint8").astype("int64"), lambda a, b: int(np.int64(a).astype(np.uint8))),
    (A.astype("bool").astype("int64"), lambda a, b: int(a != 0)),
    (A << (B & 3), lambda a, b: a << (b & 3)),
    (A >> ex.const(70), lambda a, b: -1 if a < 0 else 0),
    (A << ex.const(70), lambda a, b: 0),
    (A.astype("uint64") >> ex.const(1, "uint64"), lambda a, b: (a % 2**64) >> 1),
]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(-40, 40), st.integers(-9, 9))
def test_formulas(a: int, b: int) -> None:
    for start in range(0, len(FORMULAS), 8):
        part = FORMULAS[start : start + 8]
        code, context = run(computing([f for f, _ in part]), [a, b])
        assert code == 100 and context.error_code == 100
        for (formula, meaning), got in zip(part, context.error_args):
            assert got == meaning(a, b), (str(type(formula)), a, b)


LEAST, MOST = -(1 << 63), (1 << 63) - 1
BEYOND: list[tuple[ex.Expr, int, int]] = [
    (A + B, MOST, 1),
    (A - B, LEAST, 1),
    (A * B, 1 << 32, 1 << 31),
    (ex.maximum(A * B, ex.const(0)), 1 << 62, 1 << 62),
    (A // B, LEAST, -1),
    (ex.truncdiv(A, B), LEAST, -1),
    (ex.minimum(A * B, ex.const(5)), 1 << 62, 2),
    (ex.select(A < B, A, A + B), MOST, 1),
    ((A * B < 0).astype("int64"), 1 << 62, 4),
]


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
    spec = replace(computing([]), items=(Check(A * B <= 100, 107, (A * B, A)), Check(ex.const(False), 100)))
    code, context = run(spec, [1 << 33, 1 << 33])
    assert (code, list(context.error_args)[:2]) == (107, [MOST, 1 << 33])
    assert run(spec, [10, 10])[0] == 100
    assert run(spec, [10, 11])[0] == 107


def test_what_checks_make_certain_costs_nothing() -> None:
    def text(*items: Item) -> str:
        return emit_segment(replace(computing([]), items=(*items, BindSymbol("c", A * 4096 + B))))

    called = "call {i64, i1} @llvm"
    assert called in text() and called in text(Check(ex.const(0) <= A, 100))
    near = [Check(ex.and_(ex.const(0) <= v, v <= 1 << 47), 100) for v in (A, B)]
    assert called not in text(*near) and called in text(near[0])


def test_threads_symbol() -> None:
    for threads, counted in ((0, 1), (1, 1), (6, 6)):
        spec = computing([])
        spec = SegmentSpec(
            spec.name,
            spec.inputs,
            (),
            0,
            spec.symbols,
            (),
            (BindSymbol("t", THREADS * A), ReserveArena(THREADS * 0), Check(ex.const(False), 100, (ex.Var("t"),))),
        )
        assert run(spec, [3, 1], threads)[1].error_args[0] == counted * 3


def test_checks_rank_and_dtype() -> None:
    spec = computing([])
    code, context = run(spec, [1, 2, 3])
    assert (code, context.error_code, list(context.error_args)[:3]) == (1, 1, [0, 3, type_word("float32", 0) >> 32])


def test_kernels_are_called_with_buffers_and_dims() -> None:
    text = emit_segment(SegmentSpec("s", (), (), 0, (), (), (KernelCall("conv_1.relu é", ()),)))
    assert 'declare hidden i32 @"conv_1.relu\\20\\C3\\A9"(ptr, ptr, ptr) nounwind' in text


def bad(
    *items: Item,
    symbols: tuple[Symbol, ...] = (),
    buffers: tuple[object, ...] = (),
    constants: int = 0,
    dims: tuple[ex.Expr, ...] = (N,),
) -> SegmentSpec:
    return SegmentSpec(
        "bad",
        (Tensor("x", dt.float32, dims),),
        (Tensor("y", dt.float32, (N,)),),
        constants,
        (Symbol("n", InputDim(0, 0)), *symbols),
        buffers,
        items,
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (bad(Check(ex.Var("m") < N, 100)), "symbol 'm' is used before it is bound\n  bad\n  hint: bound so far: n"),
        (bad(Check(N < 3, 100, (N,) * 9)), "a check has 9 arguments, at most 8 fit\n  bad"),
        (bad(KernelCall("k", (3,))), "segment 'bad' has no buffer 3\n  why: its table has 0"),
        (
            bad(KernelCall("k", (0,)), buffers=(Output(0),)),
            "output 0 of segment 'bad' is used before it is allocated\n  hint: put its AllocateOutput first",
        ),
        (
            bad(KernelCall("k", (0,)), buffers=(Constant(2),), constants=2),
            "segment 'bad' has no constant 2\n  why: it has 2",
        ),
        (
            bad(KernelCall("k", (0,)), buffers=(Arena(N, N),)),
            "buffer 0 of segment 'bad' lies in an arena of no bytes\n  hint: set arena_bytes",
        ),
        (bad(AllocateOutput(1, (N,))), "segment 'bad' has no output 1"),
        (bad(BindData("n")), "'n' is no data symbol of segment 'bad'"),
        (
            bad(symbols=(Symbol("d", Data(0, dt.float32, 0)),), buffers=(Input(0),)),
            "data symbol 'd' has dtype float32\n  bad\n  hint: convert it to int64 in a kernel",
        ),
        (
            bad(symbols=(Symbol("d", Data(0, dt.int64, 0)),), buffers=(Arena(N, N),)),
            "data symbol 'd' of segment 'bad' is never bound\n  hint: put a BindData after",
        ),
        (
            bad(dims=(N, ex.Var("m"))),
            "dimension 1 of input 'x' is never known\n  m\n  why: a symbol in it is never bound",
        ),
        (
            bad(BindSymbol("f", N), BindSymbol("m", ex.Var("f", dt.float32))),
            "a formula of a segment has dtype float32\n  bad\n  hint: shape formulas are integers",
        ),
        (
            bad(BindSymbol("m", ex.Call("abs", (N,), dt.int64))),
            "a segment cannot compute .*\n  bad\n  why: Call has no integer form here\n  hint: compute it in a kernel",
        ),
    ],
)
def test_messages(spec: SegmentSpec, message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        emit_segment(spec)


def test_a_stamp_needs_a_clock() -> None:
    spec = SegmentSpec("s", (), (Tensor("t", dt.int64, ()),), 0, (), (Output(0),), (AllocateOutput(0, ()), Stamp(0, 0)))
    assert "@llvm.readcyclecounter()" in emit_segment(spec)
    assert "@llvm.readsteadycounter()" in emit_segment(spec, architecture="aarch64")
    with pytest.raises(CodegenError) as error:
        emit_segment(spec, architecture="riscv64")
    assert str(error.value) == "there is no clock to read on riscv64\n  s\n  hint: known: x86_64, aarch64"


def test_a_long_entry_is_not_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []

    def seen(ir: str, isa: Isa, cpu: Cpu, name: str) -> bytes:
        levels.append(cpu.opt)
        return made(ir, isa, cpu, name)

    made = native._compiled
    monkeypatch.setattr(native, "_compiled", seen)
    b = GraphBuilder()
    x = b.input("x", TensorType(dt.float32, (ex.Var("n", dt.int64), 3)))
    b.output(b.add(Exp(), b.add(Transpose((1, 0)), x)))
    given = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    results = []
    for most in (native.LARGE, 0):
        monkeypatch.setattr(native, "LARGE", most)
        results += weft.compile(b.build(), "llvm -threads=1", cache=False).run({"x": given}).values()
    assert levels[0] > 0 and levels[-1] == 0
    np.testing.assert_array_equal(results[0], results[1])
