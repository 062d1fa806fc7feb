"""How often blocks are executed: loops, conditions, both sides of a branch, sizes that are not known."""

from __future__ import annotations

import pytest

from weft import dtypes as dt
from weft.expr.nodes import Var, const
from weft.loop.parser import parse_program
from weft.loop.work import executions


def times(body: str, dims: str = "", **sizes: int) -> dict[str, float] | None:
    found = executions(parse_program(f"program p(x: float32[64]) -> (y: float32[64]){dims} {{ {body} }}"), sizes)
    return None if found is None else {e.block.name: e.times for e in found}


def test_loops_multiply() -> None:
    assert times("for i in 4 { for j in 8 { block b(v: 32 = i*8 + j) { y[v] = x[v] } } }") == {"b": 32}


def test_a_block_under_its_predicate() -> None:
    assert times("for i in 4 { for j in 8 { block b(v: 30 = i*8 + j) where i*8 + j < 30 { y[v] = x[v] } } }") == {
        "b": 30
    }


def test_both_sides_of_a_branch_share_its_steps() -> None:
    one, other = (f"block {name}(v: 10 = i) {{ y[v] = x[v] }}" for name in ("near", "far"))
    assert times(f"for i in 10 {{ if i < 7 {{ {one} }} else {{ {other} }} }}") == {
        "near": pytest.approx(7),
        "far": pytest.approx(3),
    }


def test_a_triangle() -> None:
    assert times("for i in 8 { for j in i + 1 { block b(v: 8 = i) { y[v] = x[j] } } }") == {"b": pytest.approx(36)}


def test_sizes_of_the_program() -> None:
    body = "for i in n { block b(v: n = i) { y[v] = x[v] } }"
    assert (
        times(body, " dims(n)", n=5) == {"b": 5}
        and times(body, " dims(n)", n=0) == {"b": 0}
        and times(body, " dims(n)") is None
    )


def test_stores_of_a_body_that_has_loops_of_its_own() -> None:
    program = parse_program("""program p(x: float32[64]) -> (y: float32[64]) {
      for i in 4 { block b(v: 4 = i) { for k in 16 { if k < 4 { y[v*16 + k] = x[v*16 + k] } } } }
    }""")
    (found,) = executions(program, {}) or []
    assert found.times == 4 and [n for _, n in found.stores] == [pytest.approx(16)]


def test_conditions_on_data_count_as_if_they_held() -> None:
    assert times("for i in 4 { block b(v: 4 = i) { if x[v] < 0.0f32 { y[v] = x[v] } } }") == {"b": 4}


def test_the_mean_of_a_formula_over_the_steps_that_there_are() -> None:
    program = parse_program("""program p(x: float32[64]) -> (y: float32[64]) {
      for i in 10 { if i < 4 { block b(v: 10 = i) { y[v] = x[v] } } }
    }""")
    (found,) = executions(program, {}) or []
    assert (
        found.mean(Var("v", dt.int64) * 2) == 3 and found.mean(const(7)) == 7 and found.mean(Var("w", dt.int64)) is None
    )
