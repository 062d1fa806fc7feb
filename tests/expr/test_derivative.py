"""Derivatives of formulas against differences, and where formulas have corners and jumps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.errors import ExprError
from weft.expr.derivative import derivative
from weft.expr.evaluate import evaluate
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, lt, maximum, minimum, select
from weft.loop.nodes import Load, buffer

X, Y = Var("x", dt.float64), Var("y", dt.float64)
INSIDE = {
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.1, 4), "log": (0.1, 4),
    "log2": (0.1, 4), "log1p": (-0.8, 4), "sqrt": (0.1, 4), "tan": (-1.2, 1.2),
}  # fmt: skip
SMOOTH = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "sqrt", "abs",
)  # fmt: skip


def difference(e: Expr, at: dict[str, float], by: str = "x", step: float = 1e-6) -> float:
    up, down = (evaluate(e, {**at, by: at[by] + s}) for s in (step, -step))
    return float(up - down) / (2 * step)


@pytest.mark.parametrize("name", SMOOTH)
def test_functions_of_one_argument(name: str) -> None:
    lo, hi = INSIDE.get(name, (-2.0, 2.0))
    for x in np.linspace(lo, hi, 8):
        e = call(name, X * 0.9 + 0.05)
        assert evaluate(derivative(e, X), {"x": x}) == pytest.approx(difference(e, {"x": x}), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("by", [X, Y])
def test_functions_of_several_arguments(by: Var) -> None:
    at = {"x": 1.7, "y": -0.6}
    for e in (call("pow", X, Y), call("copysign", X, Y), call("fma", X, Y, X * Y), X / Y, X % 0.7 + Y % 0.4):
        assert evaluate(derivative(e, by), at) == pytest.approx(difference(e, at, by.name), rel=1e-6, abs=1e-9)


def test_powers_at_zero() -> None:
    by_base, by_exponent = derivative(call("pow", X, Y), X), derivative(call("pow", X, Y), Y)
    assert evaluate(by_base, {"x": 0.0, "y": 0.0}) == 0  # x⁰ is 1 everywhere
    assert evaluate(by_base, {"x": 0.0, "y": 1.0}) == 1
    assert evaluate(by_exponent, {"x": 0.0, "y": 2.0}) == 0


def test_at_a_corner_it_is_the_mean_of_both_sides() -> None:
    assert evaluate(derivative(call("abs", X), X), {"x": 0.0}) == 0
    assert evaluate(derivative(maximum(X, 0.0), X), {"x": 0.0}) == 0.5
    assert evaluate(derivative(minimum(X, Y), X), {"x": 1.0, "y": 1.0}) == 0.5
    softplus = maximum(X, 0.0) + call("log1p", call("exp", -call("abs", X)))
    assert evaluate(derivative(softplus, X), {"x": 0.0}) == 0.5  # that of the smooth function


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_what_jumps_has_none(name: str) -> None:
    assert derivative(call(name, X * 2.0), X) == const(0.0, dt.float64)


def test_casts_and_selections() -> None:
    e = select(lt(X, Y), cast_to(cast_to(X, dt.float32) * 3.0, dt.float64), X * X)
    assert evaluate(derivative(e, X), {"x": 1.0, "y": 2.0}) == 3
    assert evaluate(derivative(e, X), {"x": 3.0, "y": 2.0}) == 6
    assert derivative(cast_to(cast_to(X, dt.int32), dt.float64), X) == const(0.0, dt.float64)


def test_what_has_no_derivative_says_so() -> None:
    table = buffer("table", (4,), dt.float64)
    with pytest.raises(ExprError, match="no derivative is known of Load"):
        derivative(Load(table, (cast_to(X, dt.int64),)), X)


def formulas() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([X, Y, const(0.5, dt.float64), const(-1.25, dt.float64)])

    def grown(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        two = st.tuples(parts, parts)
        return st.one_of(
            two.map(lambda p: p[0] + p[1]),
            two.map(lambda p: p[0] - p[1]),
            two.map(lambda p: p[0] * p[1]),
            two.map(lambda p: p[0] / (p[1] * p[1] + 1.0)),
            st.tuples(st.sampled_from(["sin", "tanh", "atan", "erf"]), parts).map(lambda p: call(*p)),
        )

    return st.recursive(leaves, grown, max_leaves=12)


@settings(max_examples=60, deadline=None)
@given(formulas(), st.floats(-1.5, 1.5), st.floats(-1.5, 1.5))
def test_formulas_that_are_composed(e: Expr, x: float, y: float) -> None:
    at = {"x": x, "y": y}
    assert evaluate(derivative(e, X), at) == pytest.approx(difference(e, at), rel=1e-4, abs=1e-5)
