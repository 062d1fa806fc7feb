"""Blocks in parts: loops cut where conditions change, blocks as they are under their loops, formulas an operation at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import ScheduleError
from weft.expr.nodes import Select, walk
from weft.loop.interpret import interpret
from weft.loop.nodes import Program, Store
from weft.loop.parser import parse_program
from weft.scheduling import Schedule, replay

PADDED = """
program p(x: float32[6, 5]) -> (y: float32[8, 7]) {
  for i in 8 { for j in 7 {
    block C(bi: 8 = i, bj: 7 = j) { y[bi, bj] = select(1 <= bi and bi < 7 and 1 <= bj and bj < 6, x[bi - 1, bj - 1], 0.0f32) }
  } }
}
"""
SUM = """
program p(x: float32[4, 9], w: float32[9]) -> (y: float32[4]) {
  for k in 9 { for i in 4 {
    block C(bi: 4 = i, rk: reduce 9 = k) { if 2 <= rk { y[bi] = y[bi] + exp(x[bi, rk]*w[rk]) } }
  } }
}
"""


def sched(text: str) -> Schedule:
    return Schedule(parse_program(text), checked=True)


def same(a: Program, b: Program) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(str(d)) for d in x.shape]).astype(np.float32) for x in a.inputs]
    for u, v in zip(interpret(a, inputs).values(), interpret(b, inputs).values()):
        np.testing.assert_array_equal(u, v)


def test_borders_apart_from_the_middle() -> None:
    s = sched(PADDED)
    rows = s.partition("i", [1, 7])
    assert rows == ["i_1", "i_2", "i_3"] and s.blocks() == ["C", "C_1", "C_2"]
    s.partition(s.loops("C_1")[-1], [1, 6])
    for name in s.blocks():
        s.specialize(name)
        (body,) = [b for b in [s.block(name).body] if isinstance(b, Store)]
        assert not any(isinstance(e, Select) for e in walk(body.value)), name
    assert "= x[" in str(s) and str(s).count("= 0.0f32") == 4
    same(parse_program(PADDED), s.program)
    assert str(replay(parse_program(PADDED), s.trace)) == str(s.program)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 7), unique=True, min_size=1).map(sorted), st.lists(st.integers(1, 6), unique=True, min_size=1).map(sorted))
def test_parts_mean_the_whole(rows: list[int], columns: list[int]) -> None:
    s = sched(PADDED)
    s.partition("i", rows)
    for name in s.blocks():
        s.partition(s.loops(name)[-1], columns)
    for name in s.blocks():
        s.specialize(name)
    same(parse_program(PADDED), s.program)


def test_what_does_nothing_is_gone() -> None:
    text = "program p(x: float32[5]) -> (y: float32[5]) { for i in 8 { block C(b: 5 = i) where i < 5 { y[b] = x[b] } } }"
    s = sched(text)
    assert s.partition("i", [5]) == ["i_1"]
    assert s.blocks() == ["C"] and "where" not in str(s)
    same(parse_program(text), s.program)


def test_a_condition_around_the_body_becomes_the_predicate_or_goes() -> None:
    s = sched(SUM)
    s.specialize("C")
    assert "where 2 <= k" in str(s)
    assert s.partition("k", [2]) == ["k_1"]  # below, nothing is left
    s.specialize("C")
    assert "where" not in str(s) and "if" not in str(s)


def test_a_formula_one_operation_at_a_time() -> None:
    s = sched(SUM)
    s.partition("k", [2])
    s.specialize("C")
    value = s.block("C").body.value  # type: ignore[union-attr]
    first = s.stage("C", "i", str(value.b.args[0]), "local")
    second = s.stage("C", "i", str(s.block("C").body.value.b), "local")  # type: ignore[union-attr]
    assert s.blocks() == [first, second, "C"] == ["C_part", "C_part_1", "C"]
    assert "C_local: float32[4] in local" in str(s) and "exp(C_local[" in str(s)
    assert str(s.block("C").body.value).endswith("+ C_local_1[bi]")  # type: ignore[union-attr]
    assert str(replay(parse_program(SUM), s.trace)) == str(s.program)
    x, w = np.ones((4, 9), np.float32), np.linspace(0, 1, 9, dtype=np.float32)
    start = "for q in 4 { block S(bq: 4 = q) { y[bq] = 0.0f32 } }"
    whole = parse_program(str(s.program).replace("{\n", "{\n" + start + "\n", 1))
    (got,) = interpret(whole, [x, w]).values()
    np.testing.assert_allclose(got, np.exp(x * w)[:, 2:].sum(1), rtol=1e-6)


def test_one_element_at_a_time() -> None:
    text = "program p(x: float32[5]) -> (y: float32[5]) { for i in 5 { block C(b: 5 = i) { y[b] = exp(x[b])*2.0f32 } } }"
    s = sched(text)
    assert s.stage("C", "C", "exp(x[b])", "local") == "C_part"
    assert s.loops("C_part") == s.loops("C") == ["i"] and "C_local: float32[] in local" in str(s)
    same(parse_program(text), s.program)


@pytest.mark.parametrize(
    ("step", "args", "words"),
    [
        ("partition", ("i", []), "the points [] do not cut 8 iterations into parts"),
        ("partition", ("i", [3, 3]), "the points [3, 3] do not cut 8 iterations"),
        ("partition", ("i", [8]), "give rising points inside"),
        ("partition", ("z", [1]), "there is no loop 'z'"),
        ("stage", ("C", "j", "x[bi, bj]", "local"), "'x[bi, bj]' is no part of the value"),
        ("stage", ("C", "q", "x[bi - 1, bj - 1]", "local"), "there is no loop 'q'"),
        ("specialize", ("D",), "there is no block 'D'"),
    ],
)
def test_refusals(step: str, args: tuple[object, ...], words: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        sched(PADDED).apply(step, *args)
    assert words in str(caught.value)


def test_refusals_of_blocks_that_are_not_ready() -> None:
    split = sched(PADDED)
    split.split("i", [None, 4])
    with pytest.raises(ScheduleError, match=r"an iterator of 'C' is not one loop of its own(.|\n)*hint: specialize\('C'\) first"):
        split.stage("C", "j", "x[bi - 1, bj - 1]", "local")
    text = "program p(x: float32[4]) -> (y: float32[]) { for k in 4 { block C(r: reduce 4 = k) { init { y[] = 0.0f32 } y[] = y[] + x[r]*2.0f32 } } }"
    with pytest.raises(ScheduleError, match=r"starts a reduction where its iterators are 0(.|\n)*decompose_reduction first"):
        sched(text).specialize("C")
    with pytest.raises(ScheduleError, match=r"the body of 'C' is not one store(.|\n)*decompose_reduction"):
        sched(text).stage("C", "k", "x[r]*2.0f32", "local")
    own = "program p(x: float32[4]) -> (y: float32[4]) { for i in 4 { block C(b: 4 = i) { y[b] = exp(y[b] + x[b])*2.0f32 } } }"
    with pytest.raises(ScheduleError, match="reads 'y', which 'C' changes meanwhile"):
        sched(own).stage("C", "i", "y[b] + x[b]", "local")
