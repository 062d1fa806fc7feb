"""The rule `searched`: whatever its choices are, the scheduled program means what the formula means; a record of them
gives the same program; and it is used only where it is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import weft
from weft.errors import ScheduleError
from weft.expr.functions import call
from weft.expr.nodes import eq, maximum, select
from weft.kernel import KernelSchedule, build
from weft.loop.nodes import Program, int_const
from weft.loop.parser import parse_program
from weft.loop.verify import verify
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling.rule import offers_of, select_rule
from weft.scheduling.run_rules import Scheduled, run_recorded, run_rules
from weft.tensor.language import Tensor
from weft_interpreter.interpret import interpret
from weft_tuning.searched import NAME, SearchedRule
from weft_tuning.spaces import Space

EXAMPLES = int(os.environ.get("WEFT_EXAMPLES", "25"))
PHASES = tuple(p for p in Phase if p is not Phase.explain)
CLOSE = 1e-4
"""Reductions are made of partial results: sums are rounded in another order."""
TARGET = "llvm -threads=2"
MACHINE: ResolvedTarget = resolve_target(TARGET)
ONE_CORE: ResolvedTarget = resolve_target("llvm -threads=1")


def naive(outputs: Any) -> Program:
    return weft.schedule(outputs, target=TARGET).program


# -- formulas
def pointwise(draw: Any, x: Tensor) -> Tensor:
    scale = draw(st.sampled_from([0.5, -1.0, 2.0]))
    how = draw(st.integers(0, 2))

    def at(*i: Any) -> Any:
        e = x[i] * scale
        return e if how == 0 else maximum(e, 0.25) if how == 1 else call("exp", e * 0.125)

    return weft.compute(x.shape, at)


def stencil(draw: Any, x: Tensor) -> Tensor:
    axis = draw(st.integers(0, x.rank - 1))
    n = int_const(x.shape[axis])
    if n is None or n < 4:
        return pointwise(draw, x)
    shape = [d if k != axis else n - 2 for k, d in enumerate(x.shape)]

    def at(*i: Any) -> Any:
        there = [[v + (o if k == axis else 0) for k, v in enumerate(i)] for o in range(3)]
        return x[tuple(there[0])] * 0.25 + x[tuple(there[1])] * 0.5 + x[tuple(there[2])] * 0.25

    return weft.compute(tuple(shape), at)


def transposed(draw: Any, x: Tensor) -> Tensor:
    return weft.compute(x.shape[::-1], lambda *i: x[tuple(reversed(i))] + 1.0)


def product(draw: Any, x: Tensor) -> Tensor:
    n = draw(st.sampled_from([3, 16, 20]))
    w = weft.placeholder((n, x.shape[-1]) if draw(st.booleans()) else (x.shape[-1], n))
    k = weft.reduce_axis(x.shape[-1])
    turned = w.shape[-1] is x.shape[-1] or str(w.shape[0]) == str(n)

    def at(*i: Any) -> Any:
        return weft.sum(x[(*i[:-1], k)] * (w[i[-1], k] if turned else w[k, i[-1]]), axis=k)

    return weft.compute((*x.shape[:-1], n), at)


def reduced(draw: Any, x: Tensor) -> Tensor:
    """Each row, or column, less its sum or its greatest element."""
    axis, how = draw(st.integers(0, x.rank - 1)), draw(st.sampled_from(["sum", "max"]))
    k = weft.reduce_axis(x.shape[axis])

    def at(*i: Any) -> Any:
        where = list(i)
        where.insert(axis, k)
        return weft.reduce(how, x[tuple(where)], axis=k)

    total = weft.compute(tuple(d for n, d in enumerate(x.shape) if n != axis), at)
    if draw(st.booleans()):
        return weft.compute(total.shape, lambda *i: total[i] * 0.5)
    return weft.compute(x.shape, lambda *i: x[i] - total[tuple(v for n, v in enumerate(i) if n != axis)] * 0.125)


STEPS: tuple[Callable[[Any, Tensor], Tensor], ...] = (pointwise, pointwise, stencil, transposed, product, reduced)


def formula(draw: Any) -> tuple[Program, dict[str, int]]:
    """A chain of one to four computes, and the sizes of its symbols."""
    open_size = draw(st.booleans())
    rows: Any = weft.var("n") if open_size else draw(st.sampled_from([1, 4, 7, 24]))
    x = weft.placeholder((rows, draw(st.sampled_from([1, 5, 17, 40]))), name="x")
    for _ in range(draw(st.integers(1, 4))):
        x = draw(st.sampled_from(STEPS))(draw, x)
        if x.rank == 0:
            break
    return naive(x), {"n": draw(st.integers(1, 30))} if open_size else {}


def recurrence(draw: Any) -> tuple[Program, dict[str, int]]:
    rows, n, steps = draw(st.sampled_from([1, 5, 20])), draw(st.sampled_from([3, 20])), draw(st.integers(1, 4))
    x, h = weft.placeholder((steps, rows, n), name="x"), weft.placeholder((rows, n), name="h")
    w = weft.placeholder((n, n), name="w")
    multiplies = draw(st.booleans())

    def step(t: Any, state: Tensor) -> Tensor:
        k = weft.reduce_axis(n)
        g = weft.compute((rows, n), lambda b, j: weft.sum(state[b, k] * w[k, j], axis=k)) if multiplies else state
        return weft.compute((rows, n), lambda b, j: g[b, j] * 0.125 + x[t, b, j])

    return naive(weft.scan(steps, [h], step, last=draw(st.booleans()))[0]), {}


# -- laws
def arrays(program: Program, dims: dict[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {b.name: tuple(dims.get(str(d), int_const(d) or 0) for d in b.shape) for b in program.inputs}
    return {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def followed(program: Program, choices: Any) -> Scheduled:
    return run_recorded(MACHINE.rules, program, MACHINE.machine, MACHINE.intrinsics, MACHINE.exceeds, choices)


def drawn(program: Program, draw: Any) -> Scheduled:
    """The program with random choices, made once by drawing them and once by following what was drawn."""
    space = Space(program, MACHINE)

    def pick(name: str, options: Any, default: Any) -> Any:
        assert default in options or name == "rule", f"the default of {name} is refused"
        return NAME if name == "rule" else draw(st.sampled_from(list(options)), label=name)

    candidate = space.pick(pick)
    made = followed(program, candidate.choices)
    assert {c.name: c.value for c in made.choices} == dict(candidate.choices)
    assert space.follow(candidate.choices) == candidate
    return made


def same(program: Program, scheduled: Program, dims: dict[str, int]) -> None:
    verify(scheduled)
    given_arrays = arrays(program, dims)
    wanted, found = interpret(program, given_arrays, dims), interpret(scheduled, given_arrays, dims, shuffle_seed=1)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=CLOSE, atol=CLOSE, err_msg=str(scheduled))


LAW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)


@LAW
@given(data=st.data())
def test_random_choices_of_random_formulas_keep_the_meaning(data: Any) -> None:
    program, dims = formula(data.draw)
    same(program, drawn(program, data.draw).schedule.program, dims)


@LAW
@given(data=st.data())
def test_random_choices_of_recurrences_keep_the_meaning(data: Any) -> None:
    program, dims = recurrence(data.draw)
    same(program, drawn(program, data.draw).schedule.program, dims)


@settings(max_examples=max(3, EXAMPLES // 8), deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_random_choices_compile(data: Any) -> None:
    program, dims = data.draw(st.sampled_from([formula, recurrence]))(data.draw)
    made = drawn(program, data.draw)
    given_arrays = arrays(program, dims)
    wanted = interpret(program, given_arrays, dims)
    found = build(KernelSchedule(made.schedule.program, MACHINE)).executable.run(given_arrays)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=CLOSE, atol=CLOSE, err_msg=str(made.schedule.program))


# -- what the defaults are
def scheduled(program: Program) -> Scheduled:
    return followed(program, {"rule": NAME})


def test_a_product_is_a_tile_of_registers() -> None:
    a, b, k = weft.placeholder((96, 64)), weft.placeholder((64, 96)), weft.reduce_axis(64)
    program = naive(weft.compute((96, 96), lambda i, j: weft.sum(a[i, k] * b[k, j], axis=k), name="C"))
    made = scheduled(program)
    text = str(made.schedule.program)
    assert "in register" in text and "vectorized" in text and "unrolled" in text
    same(program, made.schedule.program, {})


def test_rows_of_a_softmax_stay_together() -> None:
    x, k, r = weft.placeholder((8, 80)), weft.reduce_axis(80), weft.reduce_axis(80)
    most = weft.compute((8,), lambda i: weft.reduce("max", x[i, k], axis=k), name="most")
    e = weft.compute((8, 80), lambda i, j: call("exp", x[i, j] - most[i]), name="e")
    total = weft.compute((8,), lambda i: weft.sum(e[i, r], axis=r), name="total")
    program = naive(weft.compute((8, 80), lambda i, j: e[i, j] / total[i], name="y"))
    made = scheduled(program)
    outermost = {made.schedule.loops(b)[0] for b in made.schedule.blocks()}
    assert len(outermost) == 1, made.schedule.program
    same(program, made.schedule.program, {})


def test_chained_steps_are_computed_for_each_tile() -> None:
    m = weft.placeholder((32, 3, 3))
    for p in range(3):

        def at(b: Any, i: Any, j: Any, m: Tensor = m, p: int = p) -> Any:
            return select(eq(i, p), m[b, p, j] * 0.5, m[b, i, j] - m[b, i, p] * m[b, p, j])

        m = weft.compute((32, 3, 3), at, name=f"m{p}")
    program = naive(m)
    same(program, scheduled(program).schedule.program, {})


def test_one_core_has_no_tasks() -> None:
    x = weft.placeholder((64, 64))
    program = naive(weft.compute((64, 64), lambda i, j: x[i, j] + 1.0, name="C"))
    one, two = Space(program, ONE_CORE), Space(program, MACHINE)

    def searched(name: str, options: Any, default: Any) -> Any:
        return NAME if name == "rule" else default

    assert "C.tasks" not in one.pick(searched).choices and "C.tasks" in two.pick(searched).choices


# -- when it is used
def test_it_is_used_only_where_it_is_chosen() -> None:
    x = weft.placeholder((4, 4))
    program = naive(weft.compute((4, 4), lambda i, j: x[i, j] + 1.0))
    offers, _ = offers_of(MACHINE.rules, program, MACHINE.machine, MACHINE.intrinsics)
    assert offers[-1][0].name == NAME and len(offers) > 1
    run = run_rules(MACHINE.rules, program, MACHINE.machine, MACHINE.intrinsics, MACHINE.exceeds)
    assert run.rule.name != NAME and NAME in run.choices[0].options
    assert scheduled(program).rule.name == NAME


def test_alone_it_is_no_rule_for_a_program_without_a_record() -> None:
    x = weft.placeholder((4, 4))
    program = naive(weft.compute((4, 4), lambda i, j: x[i, j] + 1.0))
    with pytest.raises(ScheduleError, match="no schedule rule takes program 'kernel'"):
        run_rules([SearchedRule()], program, MACHINE.machine, MACHINE.intrinsics, MACHINE.exceeds)
    with pytest.raises(ScheduleError, match="searched: only a record chooses it"):
        select_rule([SearchedRule()], program, MACHINE.machine, MACHINE.intrinsics)


def test_what_it_does_not_take() -> None:
    from weft.machine import Grid

    x = weft.placeholder((4, 4))
    program = naive(weft.compute((4, 4), lambda i, j: x[i, j] + 1.0))
    rule = SearchedRule()
    assert getattr(rule.offer(program, replace(MACHINE.machine, grid=Grid())), "code", "") == "grid"
    loops = parse_program("program p(x: float32[4]) -> (y: float32[4]) { for i in 4 { y[i] = x[i] } }")
    assert getattr(rule.offer(loops, MACHINE.machine), "code", "") == "loop_program"
