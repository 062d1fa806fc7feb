"""Integer polynomials agree with what they stand for; comparisons claim only what the sign assumptions give."""

from __future__ import annotations

from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.expr import nodes as n
from weft.expr.affine import affine
from weft.expr.evaluate import evaluate
from weft.expr.linear import (
    Conversion,
    Monomial,
    Polynomial,
    bounded_product,
    join,
    linear,
    number,
    polynomial,
    shared_factor,
)
from weft.expr.nodes import Const, Expr, Var
from weft.expr.parser import parse_expr
from weft.expr.printer import print_expr
from weft.expr.ranges import Range, Ranges
from weft.expr.signs import Signs

NAMES = ("x", "y", "n")
ATOMS = [parse_expr(t) for t in ("x", "y", "n", "x//3", "(y + n)%4", "min(x, n)", "(n + 3)//4")]
NOTHING = Signs()
everything = Conversion("all")

environments = st.fixed_dictionaries({name: st.integers(-9, 9) for name in NAMES})
monomials = st.lists(st.sampled_from(ATOMS), max_size=2).map(lambda atoms: join(tuple(atoms[:1]), tuple(atoms[1:])))
coefficients = st.integers(-12, 12).filter(bool)
polynomials = st.dictionaries(monomials, coefficients, max_size=5).map(Polynomial)
signs = st.builds(
    Signs,
    least=st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 2), max_size=3),
    others=st.sampled_from([None, 0, 1]),
    divisors=st.booleans(),
)


def value(e: Expr, env: dict[str, int]) -> int:
    return int(evaluate(e, env))


def product(m: Monomial, env: dict[str, int]) -> int:
    return prod(value(a, env) for a in m)


def meant(p: Polynomial, env: dict[str, int]) -> int:
    return sum(k * product(m, env) for m, k in p.terms.items())


def formula(random: Random, leaves: int) -> Expr:
    """A formula of a seeded generator: hypothesis' own strategies take a hundred times longer to draw one."""
    if leaves <= 1:
        return Var(random.choice(NAMES)) if random.random() < 0.65 else Const(random.randint(-9, 16), dt.int64)
    left = random.randint(1, leaves - 1)
    kind = random.choice([n.Add, n.Add, n.Sub, n.Sub, n.Mul, n.Mul, n.FloorDiv, n.FloorMod, n.Min, n.Max])
    return kind(formula(random, left), formula(random, leaves - left))


formulas = st.builds(lambda seed, leaves: formula(Random(seed), leaves), st.integers(0, 2**32), st.integers(1, 9))


def divisors_of(e: Expr, env: dict[str, int]) -> list[int]:
    """The values of all divisors in a formula; one of them is 0 if nothing else can be said."""
    found = []
    for x in n.walk(e):
        if isinstance(x, (n.FloorDiv, n.FloorMod)):
            inner = divisors_of(x.a, env) + divisors_of(x.b, env)
            if 0 in inner:
                return [0]
            found.append(value(x.b, env))
    return found


def allowed(known: Signs, env: dict[str, int]) -> bool:
    """Whether variables are as assumed."""
    least = {v: known.least.get(v, known.others) for v in env}
    return all(low is None or env[v] >= low for v, low in least.items())


# -- arithmetic --------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(polynomials, polynomials, st.integers(-5, 5), monomials, environments)
def test_operations_agree_with_evaluation(
    a: Polynomial, b: Polynomial, k: int, m: Monomial, env: dict[str, int]
) -> None:
    x, y = meant(a, env), meant(b, env)
    results = [
        (a + b, x + y), (a - b, x - y), (-a, -x), (a + k, x + k), (a - k, x - k), (a.plus(b, k), x + k * y),
        (a * b, x * y), (bounded_product(a, b), x * y), (a.scale(k), x * k), (a.times(m, k), x * k * product(m, env)),
    ]  # fmt: skip
    for result, expected in results:
        assert meant(result, env) == expected
        assert 0 not in result.terms.values()
    assert a + b == b + a and hash(a + b) == hash(b + a) and a * b == b * a
    assert not a - a and (a - a).value == 0 and (a - a + k).value == k
    more, less = a.sides()
    assert a == more - less + a.constant and all(v > 0 for p in (more, less) for v in p.terms.values())


@settings(max_examples=200, deadline=None)
@given(polynomials, environments)
def test_a_polynomial_is_that_of_its_formula(a: Polynomial, env: dict[str, int]) -> None:
    e = a.expr()
    assert value(e, env) == meant(a, env)
    assert everything(e) == a and everything(e).expr() == e


@settings(max_examples=500, deadline=None)
@given(formulas, signs, environments)
def test_conversions_agree_with_evaluation(e: Expr, known: Signs, env: dict[str, int]) -> None:
    divisors = divisors_of(e, env)
    if 0 in divisors:
        return
    forms = [polynomial(e), linear(e), everything(e)]
    if allowed(known, env) and not (known.divisors and min(divisors, default=1) < 1):
        forms.append(Conversion("all", signs=known)(e))
    for form in forms:
        assert meant(form, env) == value(e, env), (e, form, env)
    assert linear(linear(e).expr()) == linear(e)


def test_what_conversions_take_apart() -> None:
    e = parse_expr("(n + 1)*y + 2*(x - y) - 3")
    assert str(polynomial(e).expr()) == "n*y + x*2 - y - 3"
    assert linear(e).atoms == {parse_expr("(n + 1)*y"): 1, Var("x"): 2, Var("y"): -2} and linear(e).constant == -3
    with pytest.raises(ValueError, match=r"Polynomial\(n\*y \+ x\*2 - y - 3\) is not linear in its atoms"):
        _ = polynomial(e).atoms
    narrow = Var("a", dt.int32)
    cast = n.Cast(narrow, dt.int64)
    assert Conversion("all", casts=True)(cast).terms == {(narrow,): 1} and polynomial(cast).terms == {(cast,): 1}
    assert Conversion("all", casts=True)(cast).expr() == cast  # of the dtype that is asked for
    wide = n.Cast(Var("x"), dt.int32)
    assert Conversion("all", casts=True)(wide).terms == {(wide,): 1}


def test_terms_stand_in_one_order() -> None:
    p = polynomial(parse_expr("7 - y + x*n*2 - x//3 + n*4"))
    assert print_expr(p.expr()) == "n*x*2 + n*4 - y - x//3 + 7"
    assert print_expr((-p.without((Var("n"), Var("x")))).expr()) == "y + x//3 - n*4 - 7"
    assert print_expr((number(3) - polynomial(Var("n"))).expr()) == "3 - n"


def test_long_products_of_sums_stay_products() -> None:
    total = n.const(0)
    for name in "abcdef":
        total = n.add(total, Var(name))
    assert len(polynomial(n.mul(total, total))) == 1 and len(everything(n.mul(total, total))) == 21


# -- parts and division ------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(polynomials, st.sampled_from(ATOMS), st.sets(st.sampled_from(NAMES), max_size=2), environments)
def test_parts_make_the_whole(a: Polynomial, atom: Expr, names: set[str], env: dict[str, int]) -> None:
    parts = a.collect(atom)
    if parts is not None:
        factor, rest = parts
        assert a == factor * polynomial(atom) + rest or not isinstance(atom, Var)
        assert meant(a, env) == meant(factor, env) * value(atom, env) + meant(rest, env)
        assert all(atom not in m for p in parts for m in p.terms)
    split = a.split_variables(names)
    if split is not None:
        rest, factors = split
        assert meant(a, env) == meant(rest, env) + sum(meant(f, env) * env[v] for v, f in factors.items())
        assert not names & {v for p in (rest, *factors.values()) for v in p.names()} and set(factors) <= names


@settings(max_examples=150, deadline=None)
@given(polynomials, polynomials, st.integers(1, 8), environments)
def test_quotient_and_remainder_make_the_whole(a: Polynomial, b: Polynomial, c: int, env: dict[str, int]) -> None:
    q, r = a.split(c)
    assert a == q.scale(c) + r and 0 <= r.constant < c
    assert meant(a, env) // c == meant(q, env) + meant(r, env) // c and meant(a, env) % c == meant(r, env) % c
    assert a.scale(c).divided(c) == a and a.scale(-c).divided(-c) == a
    if any(m for m in b.terms):
        q, r = a.divide_terms(b)
        assert meant(a, env) == meant(q, env) * meant(b, env) + meant(r, env)
    if a or b:
        m, k = shared_factor(a, b)
        for p in (a, b):
            found = p.divided(k, m)
            assert found is not None and found.times(m, k) == p


@settings(max_examples=400, deadline=None)
@given(polynomials, polynomials, coefficients, st.integers(-9, 9), signs, environments)
def test_floor_division_is_exact(
    q: Polynomial, by: Polynomial, k: int, rest: int, known: Signs, env: dict[str, int]
) -> None:
    by = Polynomial(dict.fromkeys(list(by.terms)[:1], k)) or number(k)
    a = q * by + rest
    divisor = meant(by, env)
    if divisor == 0 or not allowed(known, env) or (known.divisors and divisor < 1):
        return
    quotient, remainder = a.floordiv(by, known), a.floormod(by, known)
    assert (quotient is None) == (remainder is None)
    if quotient is not None and remainder is not None:
        assert meant(quotient, env) == meant(a, env) // divisor and meant(remainder, env) == meant(a, env) % divisor


@pytest.mark.parametrize(
    ("text", "by", "known", "expected"),
    [
        ("6*x + 7", "3", NOTHING, "x*2 + 2"),
        ("6*x - 7", "3", NOTHING, "x*2 - 3"),
        ("8*n*x", "4*n", NOTHING, "x*2"),
        ("8*n*x + 3", "4*n", NOTHING, None),
        ("8*n*x + 3", "4*n", Signs(others=0), "x*2"),
        ("8*n*x + 3", "4*n", Signs({"n": 1}), "x*2"),
        ("8*n*x + 3", "4*n", Signs({"x": 0}), None),
        ("8*n*x - 4", "4*n", Signs(divisors=True), "x*2 - 1"),
        ("8*n*x + 4", "4*n", Signs(others=1), None),
        ("6*x + y", "3", Signs(others=0), None),
        ("6*x", "0 - 3", Signs(others=0), None),
    ],
)
def test_floor_division_needs_its_assumption(text: str, by: str, known: Signs, expected: str | None) -> None:
    found = polynomial(parse_expr(text)).floordiv(polynomial(parse_expr(by)), known)
    assert (None if found is None else print_expr(found.expr())) == expected


@settings(max_examples=200, deadline=None)
@given(polynomials, environments, environments, st.sets(st.sampled_from(NAMES)))
def test_bounds_hold_every_value(a: Polynomial, env: dict[str, int], ends: dict[str, int], above: set[str]) -> None:
    ranges = {v: Range(min(env[v], e), None if v in above else max(env[v], e)) for v, e in ends.items()}
    assert meant(a, env) in a.bounds(Ranges(ranges).of)


# -- signs -------------------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(st.one_of(polynomials, formulas.map(polynomial)), signs, st.lists(environments, min_size=4, max_size=12))
def test_claims_have_no_counterexample(p: Polynomial, known: Signs, envs: list[dict[str, int]]) -> None:
    claims, e = known.at_least_zero(p), p.expr()
    for env in envs:
        divisors = divisors_of(e, env)
        if not allowed(known, env) or 0 in divisors or (known.divisors and min(divisors, default=1) < 1):
            continue
        assert not claims or meant(p, env) >= 0, (p, known, env)
        for m in p.terms:
            for a in m:
                least = known.least_of(a)
                assert least is None or value(a, env) >= least >= 0


@pytest.mark.parametrize(
    ("text", "known", "claimed"),
    [
        ("n", NOTHING, False),
        ("n", Signs(others=0), True),
        ("n", Signs({"n": 0}), True),
        ("n", Signs({"x": 0}), False),
        ("n", Signs({"n": -1}), False),
        ("n - 1", Signs(others=0), False),
        ("n - 1", Signs({"n": 1}), True),
        ("n*x - 1", Signs({"n": 1, "x": 1}), True),
        ("n*x - 2", Signs(others=1), False),
        ("n*x", NOTHING, False),
        ("n*x - x", Signs(others=1), False),
        ("n*n", NOTHING, False),
        ("3", NOTHING, True),
        ("0 - 3", Signs(others=1), False),
        ("x%n", NOTHING, False),
        ("x%n", Signs({"n": 0}), True),
        ("x%n", Signs(divisors=True), True),
        ("x%4", NOTHING, True),
        ("x%(0 - 4)", NOTHING, False),
        ("x//n", Signs({"x": 0}), False),
        ("x//n", Signs(others=0), True),
        ("x//4", Signs({"x": 0}), True),
        ("x//4", NOTHING, False),
        ("max(x, n)", Signs({"n": 0}), True),
        ("min(x, n)", Signs({"n": 0}), False),
        ("max(n, 1) - 1", Signs(others=0), True),
        ("(n + 15)//16*16 - n", Signs(others=0), True),
        ("(n + 14)//16*16 - n", Signs(others=0), False),
        ("(n + 15)//16*32 - n*2", Signs(others=0), True),
    ],
)
def test_signs_are_never_taken_for_granted(text: str, known: Signs, claimed: bool) -> None:
    assert known.at_least_zero(polynomial(parse_expr(text))) == claimed


# -- affine forms ------------------------------------------------------------------------------------------------------


def test_affine_forms_of_narrow_integers_are_of_their_dtype() -> None:
    variables = {v: Var(v, dt.int8) for v in NAMES}
    form = affine(parse_expr("(x + 1i8)*64i8*4i8 + x*n - y", variables), ["x", "y"])
    assert form is not None and {e.dtype for e in (*form.coefficients.values(), form.rest)} == {dt.int8}
    env = {"x": 3, "y": 5, "n": 7}
    assert form.coefficient("y") == -1 and (value(form.coefficients["x"], env) - 7) % 256 == 0
    assert value(form.rest, env) % 256 == 0


def test_what_cancels_is_no_obstacle_to_an_affine_form() -> None:
    form = affine(parse_expr("x*y + n*x - x*y"), ["x", "y"])
    assert form is not None and {v: print_expr(c) for v, c in form.coefficients.items()} == {"x": "n"}
