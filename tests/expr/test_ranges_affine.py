"""Intervals hold every value; affine forms are the formula."""

from __future__ import annotations

import itertools
import operator

import pytest

from weft.expr.affine import affine
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Add, Const, Expr, Mul, Var
from weft.expr.parser import parse_expr
from weft.expr.printer import print_expr
from weft.expr.ranges import Range, floordiv_ranges, floormod_ranges, max_ranges, min_ranges, multiply_ranges, range_of

RANGES = {"i": Range(0, 63), "j": Range(-3, 15), "n": Range(0, None)}


@pytest.mark.parametrize(
    ("text", "lo", "hi"),
    [
        ("i*16 + 15", 15, 1023), ("i//16", 0, 3), ("j//4", -1, 3), ("i%16", 0, 15), ("(i%8 + 16)%32", 16, 23),
        ("min(i, n)", 0, 63), ("max(i, j)", 0, 63),
        ("n + 1", 1, None), ("i - n", None, 63), ("n*n", 0, None), ("n%16", 0, 15), ("i%n", 0, 63),
        ("select(i < 70, j, n)", -3, 15),
        ("select(i < 7, j, n)", -3, None),
        ("j*j", -45, 225), ("truncdiv(j, 2)", -1, 7), ("i & 7", 0, 7), ("i | 64", 0, 127), ("i >> 2", 0, 15), ("i << 1",
            0, 126), ("not i < 70", 0, 0),
        ("x", None, None), ("uint8(x)", 0, 255), ("int32(i)", 0, 63), ("abs(j)", 0, 15), ("ramp(i, 2, 4)", 0, 69),
        ("i == 64", 0, 0),
        ("i != 64", 1, 1),
    ],
)  # fmt: skip
def test_range_of(text: str, lo: int | None, hi: int | None) -> None:
    assert range_of(parse_expr(text), RANGES) == Range(lo, hi)


@pytest.mark.parametrize(
    ("combine", "compute"),
    [
        (multiply_ranges, operator.mul),
        (min_ranges, min),
        (max_ranges, max),
        (floordiv_ranges, operator.floordiv),
        (floormod_ranges, operator.mod),
    ],
)
def test_intervals_hold_every_value(combine: object, compute: object) -> None:
    ends = (-3, -1, 0, 2, None)
    intervals = [
        Range(a, b) for a, b in itertools.product((None, -3, -1, 0, 2), ends) if a is None or b is None or a <= b
    ]
    divides = combine in (floordiv_ranges, floormod_ranges)
    for a, b in itertools.product(intervals, intervals):
        result = combine(a, b)  # type: ignore[operator]
        ys = [v for v in range(-5, 6) if v in b and (v or not divides)]
        for x, y in itertools.product((v for v in range(-7, 8) if v in a), ys):
            assert compute(x, y) in result, (a, b, x, y, result)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "coefficients", "rest"),
    [
        ("i*16 + j + 3", {"i": "16", "j": "1"}, "3"),
        ("(i - j)*n + m", {"i": "n", "j": "(0 - 1)*n"}, "m"),
        ("4 - i", {"i": "-1"}, "4"),
        ("n//2", {}, "n//2"),
        ("i - i", {}, "0"),
        ("n*(i + 2)", {"i": "n"}, "2*n"),
    ],
)
def test_affine(text: str, coefficients: dict[str, str], rest: str) -> None:
    e = parse_expr(text)
    form = affine(e, ["i", Var("j")])
    assert form is not None and set(form.coefficients) == set(coefficients)
    whole: Expr = form.rest
    for name, c in form.coefficients.items():
        whole = Add(whole, Mul(c, Var(name)))
    for env in ({"i": 2, "j": 3, "n": 5, "m": 7}, {"i": -1, "j": 4, "n": 2, "m": 1}):
        assert evaluate(whole, env) == evaluate(e, env)
        assert all(evaluate(c, env) == evaluate(parse_expr(coefficients[k]), env) for k, c in form.coefficients.items())
    if isinstance(form.rest, Const):
        assert print_expr(form.rest) == rest
    assert form.coefficient("absent") == 0


@pytest.mark.parametrize("text", ["i*j", "i//2", "i%4", "min(i, 3)", "select(i < 2, 1, 2)", "n*(i//2)"])
def test_not_affine(text: str) -> None:
    assert affine(parse_expr(text), ["i", "j"]) is None


def test_constant_coefficient() -> None:
    form = affine(parse_expr("i*16 + j*n"), ["i", "j"])
    assert form is not None and form.coefficient("i") == 16 and form.coefficient("j") is None
