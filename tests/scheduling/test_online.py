"""Sums of exponentials in one pass with their maximum: the same numbers, whatever the steps, -∞ and NaN among them; and
what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import ScheduleError
from weft.loop.nodes import For, walk_stmts
from weft.loop.parser import parse_program
from weft.scheduling import Schedule, replay
from weft_interpreter.interpret import interpret

SOFTMAX = """
program p(x: float32[n, 12], v: float32[12, 3]) -> (s: float32[n], y: float32[n, 3]) dims(n) {
  allocate m: float32[n]
  allocate e: float32[n, 12]
  for i in n { for j in 12 { block M(bi: n = i, rj: reduce 12 = j) { init { m[bi] = -inff32 } m[bi] = max(m[bi], x[bi, rj]) } } }
  for i1 in n { for j1 in 12 { block E(ei: n = i1, ej: 12 = j1) { e[ei, ej] = exp(x[ei, ej] - m[ei]) } } }
  for i2 in n { for j2 in 12 { block S(si: n = i2, sj: reduce 12 = j2) { init { s[si] = 0.0f32 } s[si] = s[si] + e[si, sj] } } }
  for i3 in n { for c in 3 { for j3 in 12 { block Y(yi: n = i3, yc: 3 = c, yj: reduce 12 = j3) {
    init { y[yi, yc] = 0.0f32 } y[yi, yc] = y[yi, yc] + e[yi, yj]*v[yj, yc] } } } }
}
"""  # noqa: E501
NESTS = (("M", "j", ["i"]), ("E", "j1", ["i1"]), ("S", "j2", ["i2"]), ("Y", "j3", ["i3", "c"]))


def in_steps(text: str, size: int, decomposed: bool = True) -> tuple[Schedule, list[str]]:
    """The program with steps of so many elements outermost everywhere, and the loops over them."""
    s = Schedule(parse_program(text), checked=True)
    steps = []
    for _, j, rows in NESTS:
        step, _ = s.split(j, [None, size])
        s.reorder(step, *rows)
        steps.append(step)
    for name, step in ((n, x) for (n, _, _), x in zip(NESTS, steps) if n != "E" and decomposed):
        s.decompose_reduction(name, step)
    return s, steps


def values(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    x, v = rng.standard_normal((7, 12)).astype(np.float32), rng.standard_normal((12, 3)).astype(np.float32)
    x[0], x[1, :9], x[2, 3], x[3, 4], x[4, 6:], x[5] = -np.inf, -np.inf, np.nan, np.inf, -np.inf, np.arange(12) * 30
    return [x, v]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 12), st.integers(0, 99))
def test_one_pass_gives_what_several_do(size: int, seed: int) -> None:
    s, steps = in_steps(SOFTMAX, size)
    assert s.make_online("M", steps) == ["M_before", "M_factor", "S_scale", "Y_scale"]
    loops = [x.var.name for x in walk_stmts(s.program.body) if isinstance(x, For)]
    assert [x for x in loops if x in steps] == steps[:1]
    inputs = values(seed)
    with np.errstate(all="ignore"):
        want, got = interpret(parse_program(SOFTMAX), inputs, {"n": 7}), interpret(s.program, inputs, {"n": 7})
    assert np.isnan(want["y"][[0, 2, 3]]).all() and np.isfinite(want["y"][[1, 4, 5, 6]]).all()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
    assert str(replay(parse_program(SOFTMAX), s.trace)) == str(s.program)


CUT = "exp(select(x[ei, ej] - m[ei] < {}f32, -inff32, x[ei, ej] - m[ei]))"


def test_exponentials_that_are_no_normal_numbers_may_be_cut_off() -> None:
    text = SOFTMAX.replace("exp(x[ei, ej] - m[ei])", CUT.format("-86.5"))
    s, steps = in_steps(text, 5)
    s.make_online("M", steps)
    inputs = values(1)
    with np.errstate(all="ignore"):
        want, got = interpret(parse_program(text), inputs, {"n": 7}), interpret(s.program, inputs, {"n": 7})
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)


def test_what_stands_between_moves() -> None:
    """A result of the first sum, wanted behind the loop, and the start of the second, wanted before."""
    text = SOFTMAX.replace("(s: float32[n], ", "(s: float32[n], r: float32[n], ").replace(
        "  for i3 in", "  for i4 in n { block R(ri: n = i4) { r[ri] = 1.0f32/s[ri] } }\n  for i3 in"
    )
    s, steps = in_steps(text, 5)
    s.make_online("M", steps)
    order = s.blocks()
    assert order.index("Y_init") < order.index("M") < order.index("Y") < order.index("R")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("exp(x[ei, ej] - m[ei])", "exp(m[ei] - x[ei, ej])", "'E' uses the maximum otherwise than as exp(x - maximum)"),
        ("exp(x[ei, ej] - m[ei])", CUT.format("-9.0"), "'E' uses the maximum otherwise than as exp(x - maximum)"),
        ("exp(x[ei, ej] - m[ei])", "x[ei, ej] - m[ei]", "'E' uses the maximum otherwise than as exp(x - maximum)"),
        ("m[bi] = max(m[bi], x[bi, rj])", "m[bi] = min(m[bi], x[bi, rj])", "'M' is no maximum over 'j_0'"),
        ("m[bi] = -inff32", "m[bi] = 0.0f32", "'M' is no maximum over 'j_0' that starts at the least number"),
        ("s[si] = 0.0f32", "s[si] = 1.0f32", "'S' is no sum, from zero, of exponentials"),
        ("s[si] + e[si, sj]", "s[si] + e[si, sj]*e[si, sj]", "'S' is no sum, from zero, of exponentials"),
        ("s[si] + e[si, sj]", "max(s[si], e[si, sj])", "'S' is no sum, from zero, of exponentials"),
        (
            "s[si] + e[si, sj]",
            "s[si] + e[sj%7, sj]",
            "'S' is no sum, from zero, of exponentials of one maximum for each result",
        ),
        (
            "y[yi, yc] + e[yi, yj]*v[yj, yc]",
            "y[yi, yc] + e[yi, yj]*s[yi]",
            "'Y' reads 's', which another of the loops writes",
        ),
        (
            "y[yi, yc] + e[yi, yj]*v[yj, yc]",
            "y[yi, yc] + e[yi, 11 - yj]*v[yj, yc]",
            "may read exponentials of another step in 'e'",
        ),
        ("block S(si: n = i2", "block S(si: n = i2*0", "'S' may have its results scaled twice"),
    ],
)
def test_what_is_no_softmax_is_refused(old: str, new: str, why: str) -> None:
    assert old in SOFTMAX
    s, steps = in_steps(SOFTMAX.replace(old, new), 5)
    before = str(s)
    with pytest.raises(ScheduleError) as error:
        s.make_online("M", steps)
    assert why in str(error.value) and str(s) == before


def test_where_it_may_not_act() -> None:
    s, steps = in_steps(SOFTMAX, 5, decomposed=False)
    for loops, why in (
        (steps, "'M' starts by itself"),
        (steps[:1], "the loop of the maximum is wanted, and at least one other"),
        ([steps[0], "i1"], "do not stand side by side"),
        ([steps[1], steps[2]], "does not hold 'M' alone"),
    ):
        with pytest.raises(ScheduleError, match=why):
            s.make_online("M", loops)
    s.decompose_reduction("M", steps[0])
    with pytest.raises(ScheduleError, match="'S' starts by itself"):
        s.make_online("M", steps)
    s, steps = in_steps(SOFTMAX, 5)
    with pytest.raises(ScheduleError, match="do not follow one another in this order"):
        s.make_online("M", [*steps[:2], steps[3], steps[2]])
    s.unroll(steps[1])
    with pytest.raises(ScheduleError, match="is unrolled, of 3 steps"):
        s.make_online("M", steps)
    text = SOFTMAX.replace("(s: float32[n], ", "(e: float32[n, 12], s: float32[n], ").replace(
        "  allocate e: float32[n, 12]\n", ""
    )
    s, steps = in_steps(text, 5)
    with pytest.raises(ScheduleError, match="'e' is used outside the loops"):
        s.make_online("M", steps)
