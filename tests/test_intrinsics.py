"""check_intrinsic catches code that disagrees with its meaning; the hook `intrinsics` reaches schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.scheduling.test_tensorize import GEMM, gemm

from weft.errors import PluginError, ScheduleError
from weft.expr.nodes import Broadcast, const
from weft.hooks import hookimpl
from weft.loop.nodes import Evaluate, For, IntrinsicCall, Stmt, Store, seq
from weft.plugins import PluginHost
from weft.resolve import resolve_target
from weft.scheduling import Intrinsic, Operand, Schedule
from weft.tensor import language as tl
from weft_testing.intrinsics import check_intrinsic

OPERANDS = tuple(Operand(n, strides=(None, 1)) for n in "ABC")


def rows(
    update: Callable[..., Stmt] | None = None,
    reset: Callable[..., Stmt] | None = None,
    operands: Any = OPERANDS,
    dtype: str = "float32",
) -> Intrinsic:
    """gemm in vectors of eight."""

    def start(c: Any) -> Stmt:
        return seq(*(c.store(Broadcast(const(0, dtype), 8), i) for i in range(8)))

    def add(a: Any, b: Any, c: Any) -> Stmt:
        k = tl.var("k")
        return For(
            k, const(8), seq(*(c.store(c.load(8, i) + Broadcast(a[i, k], 8) * b.load(8, k), i) for i in range(8)))
        )

    used = update or add
    return Intrinsic(
        "rows", gemm(dtype=dtype).meaning, operands, lambda a, b, c: seq(start(c), used(a, b, c)), reset or start, used
    )


def loops(body: Callable[[Any, Any, Any], Stmt]) -> Stmt:
    i, j, k = (tl.var(n) for n in "ijk")
    return For(i, const(8), For(j, const(8), For(k, const(8), body(i, j, k))))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_code_that_agrees(dtype: str) -> None:
    assert check_intrinsic(rows(dtype=dtype)) == 3 * 2 * 4  # forms, strides, kinds of data
    assert check_intrinsic(rows(dtype=dtype), "llvm") == 2 * 3 * 2 * 4
    assert check_intrinsic(GEMM) == 24


def broken_order(a: Any, b: Any, c: Any) -> Stmt:
    return loops(lambda i, j, k: c.store(c[i, j] + b[i, k] * a[k, j], i, j))


def broken_sum(a: Any, b: Any, c: Any) -> Stmt:
    return loops(lambda i, j, k: c.store(a[i, k] * b[k, j], i, j))


def broken_strides(a: Any, b: Any, c: Any) -> Stmt:
    def at(view: Any, i: Any, j: Any) -> Any:
        return replace(view, steps=((const(8),), (const(1),)))[i, j]

    return loops(lambda i, j, k: Store(c.buffer, at(c, i, j).indices, at(c, i, j) + at(a, i, k) * at(b, k, j)))


def broken_reset(c: Any) -> Stmt:
    return seq(*(c.store(Broadcast(const(1.0), 8), i) for i in range(8)))


def broken_bounds(c: Any) -> Stmt:
    return seq(*(c.store(Broadcast(const(0.0), 8), i) for i in range(8)), c.store(const(0.0), 7, 8))


def broken_row(c: Any) -> Stmt:
    return seq(*(c.store(Broadcast(const(0.0), 8), i) for i in range(7)))


@pytest.mark.parametrize(
    ("intrinsic", "form", "words"),
    [
        (rows(update=broken_order), "compute", "C[0, 0] (interpreted, least strides, random data)"),
        (rows(update=broken_sum), "compute", "C[0, 0] (interpreted"),
        (rows(update=broken_strides), "compute", "wide strides"),
        (rows(reset=broken_reset), "reset", "why: the meaning is 0.0, the code gives 1.0; 64 elements differ"),
        (rows(reset=broken_row), "reset", "C[7, 0] (interpreted, least strides, random data)"),
        (rows(reset=broken_bounds), "reset", "elements beside the start of C, outside of it"),
    ],
)
def test_code_that_disagrees_is_named_with_the_element_and_both_values(
    intrinsic: Intrinsic, form: str, words: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        check_intrinsic(intrinsic)
    text = str(caught.value)
    assert text.startswith(f"the {form} code of intrinsic 'rows' disagrees with its meaning") and words in text, text
    assert "why: the " in text and "the code gives" in text


def test_code_that_is_right_interpreted_and_wrong_where_it_runs() -> None:
    """An instruction whose Python meaning is one thing and whose code on the target another."""
    x = tl.placeholder((8,), name="x")
    meaning = tl.compute((8,), lambda i: tl.e.maximum(x[i], 0.0), "y")

    def code(a: Any, y: Any) -> Stmt:
        wide = a.load(8).dtype
        return y.store(IntrinsicCall("llvm.minnum.v8f32", (a.load(8), Broadcast(const(0.0), 8)), wide))

    wrong = Intrinsic(
        "relu", meaning, (Operand("x"), Operand("y")), code, instructions={"llvm.minnum.v8f32": np.maximum}
    )
    check_intrinsic(wrong)
    with pytest.raises(
        ScheduleError, match="the compute code of intrinsic 'relu' disagrees with its meaning"
    ) as caught:
        check_intrinsic(wrong, "llvm")
    assert "on target 'llvm" in str(caught.value)


def test_code_that_is_no_statement() -> None:
    with pytest.raises(ScheduleError, match="the compute code of intrinsic 'rows' gives None, which is no statement"):
        check_intrinsic(replace(rows(), compute=lambda a, b, c: None))


def test_operands_in_memories_of_their_own_are_copied_there_and_back() -> None:
    scoped = tuple(
        Operand(n, scope=s, strides=(None, 1)) for n, s in zip("ABC", ("activations", "weights", "accumulator"))
    )
    assert check_intrinsic(rows(operands=scoped)) == 24


# -- the hook ---------------------------------------------------------------------------------------------------------


class Offers:
    def __init__(self, *intrinsics: Any) -> None:
        self.given = intrinsics

    @hookimpl
    def intrinsics(self, target: Any) -> Any:
        return self.given if target.kind == "llvm" else []


def plugins(**offers: Offers) -> PluginHost:
    host = PluginHost()
    for name, offer in offers.items():
        host.register(offer, name)
    return host


def test_intrinsics_of_a_target_reach_schedules() -> None:
    lacking = replace(rows(), name="of another machine", requires=("matrix unit",))
    target = resolve_target("llvm", plugins(ours=Offers(GEMM, lacking)))
    assert target.intrinsics["gemm"] is GEMM and "of another machine" not in target.intrinsics
    from tests.scheduling.test_tensorize import product

    s = Schedule(product(8, 8, 8), target.machine, intrinsics=target.intrinsics)
    s.tensorize("C", "gemm")
    assert s.block("C").annotation("tensorize") == "gemm"


def test_an_intrinsic_that_two_plugins_claim() -> None:
    lacking = replace(gemm(), requires=("matrix unit",))
    assert resolve_target("llvm", plugins(ours=Offers(GEMM), theirs=Offers(lacking))).intrinsics["gemm"] is GEMM, (
        "no machine has both"
    )
    host = plugins(ours=Offers(GEMM), theirs=Offers(gemm()))
    with pytest.raises(PluginError) as caught:
        resolve_target("llvm", host).intrinsics  # noqa: B018 - asked for at first use
    assert (
        str(caught.value)
        == "the intrinsic 'gemm' of target 'llvm' is claimed by plugin 'ours' (registered by hand) and plugin 'theirs'"
        " (registered by hand)\n  why: nothing says which of them is meant, and the order of plugins decides"
        " nothing\n  hint: unregister 'ours' or unregister 'theirs'"
    )
    assert [(p.name, h) for p, h, _ in host.failures] == [("ours", "intrinsics"), ("theirs", "intrinsics")]
    assert resolve_target("c", host).intrinsics == {}, "other targets are not harmed"


def test_the_plugin_of_the_target_has_no_better_claim() -> None:
    own = next(iter(resolve_target("llvm").intrinsics.values()))
    with pytest.raises(
        PluginError,
        match=(
            rf"the intrinsic '{own.name}' of target 'llvm' is claimed by plugin 'llvm' \(weft-llvm .*\) and plugin"
            r" 'theirs'"
        ),
    ):
        resolve_target("llvm", plugins(theirs=Offers(replace(GEMM, name=own.name)))).intrinsics  # noqa: B018
    with pytest.raises(
        PluginError, match=r"plugin 'theirs' \(registered by hand\) claims the intrinsic 'gemm' of target 'llvm' twice"
    ):
        resolve_target("llvm", plugins(theirs=Offers(GEMM, GEMM))).intrinsics  # noqa: B018


def test_what_is_no_intrinsic_is_reported_with_its_plugin() -> None:
    host = plugins(ours=Offers("gemm8x8"))
    assert "gemm8x8" not in resolve_target("llvm", host).intrinsics
    assert [(p.name, str(e)) for p, _, e in host.failures] == [
        ("ours", "gave 'gemm8x8', which is no Intrinsic (in a list of 1)")
    ]


def test_a_plugin_that_fails_loses_its_own_only() -> None:
    class Fails:
        @hookimpl
        def intrinsics(self, target: Any) -> Any:
            raise RuntimeError("no device")

    host = plugins(ours=Offers(GEMM))
    host.register(Fails(), "fails")
    assert "gemm" in resolve_target("llvm", host).intrinsics
    assert [(p.name, hook, str(error)) for p, hook, error in host.failures] == [("fails", "intrinsics", "no device")]


def test_instructions_that_the_target_lacks_are_listed_before_code_is_made() -> None:
    from weft.errors import CodegenError
    from weft.kernel import KernelSchedule, build
    from weft.loop.parser import parse_program

    program = parse_program("program p(x: float32[8]) -> (y: float32[8]) { @gemm9(x[0], y[0]) }")
    assert isinstance(program.body, Evaluate)
    with pytest.raises(CodegenError, match="cannot compile kernel 'p'") as caught:
        build(KernelSchedule(program, resolve_target("llvm")))
    assert "intrinsic gemm9" in str(caught.value)
