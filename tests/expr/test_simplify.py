"""The simplifier: goldens, its rules brute-forced, fuzzed for equality and idempotence."""

from __future__ import annotations

import itertools
import time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.errors import ExprError
from weft.expr import nodes as n
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Const, Expr, Var
from weft.expr.parser import parse_expr
from weft.expr.printer import print_expr
from weft.expr.ranges import Range, range_of
from weft.expr.rules import RULES, RewriteRule, build
from weft.expr.simplify import prove, simplify

RANGES = {
    "i": Range(0, 63),
    "j": Range(0, 15),
    "k": Range(0, 7),
    "n": Range(0, None),
    "m": Range(0, None),
    "p": Range(0, None),
}
A_ROW = ("p < n", "0 <= q", "q < m")

CASES = [
    ("(i*16 + j)//16", "i", ()),
    ("(i*16 + j)%16", "j", ()),
    ("a*b*c//b", "a*c", ()),
    ("x//4*4 + x%4", "x", ()),
    ("x//3//5", "x//15", ()),
    ("x%24%8", "x%8", ()),
    ("x%24//8", "x//8%3", ()),
    ("(i*24 + j)//8", "i*3 + j//8", ()),
    ("(i*17 + k)//17", "i", ()),
    ("(n*i + p)//n", "i", ("p < n",)),
    ("(n*i + p)%n", "p", ("p < n",)),
    ("(i*n*m + p*m + q)//(n*m)", "i", A_ROW),
    ("(i*n*m + p*m + q)//m%n", "p", A_ROW),
    ("(i*n*m + p*m + q)%m", "q", A_ROW),
    ("(i*(n + 1) + p)//(n + 1)", "i", ("p <= n",)),
    ("p//(m*16)%8*16*m + p%(m*16)", "p%(m*128)", ()),
    ("x//32%4*32 + x%32", "x%128", ()),
    ("(x + 17)//16*16 + (x + 17)%16", "x + 17", ()),
    ("(n - 1)//16 + 1", "(n + 15)//16", ()),
    ("min(i, 64) + max(i, -1)", "i*2", ()),
    ("min(i*4 + 3, i*4 + j)", "i*4 + min(j, 3)", ()),
    ("truncdiv(i*16 + j, 16)", "i", ()),
    ("x >> 3", "x//8", ()),
    ("0 - x", "0 - x", ()),
    ("n - i - 1", "n - i - 1", ()),
    ("i*16 + j < 1024", "true", ()),
    ("i*16 + j < 1023", "i*16 + j < 1023", ()),
    ("x*2 < 7", "x < 4", ()),
    ("x*8 + k < 128", "x < 16", ()),
    ("x*8 + k < 127", "x*8 + k < 127", ()),
    ("x//36*8 + k < 32", "x < 144", ()),
    ("128 <= x*16 + k*8 + j", "128 <= x*16 + k*8 + j", ()),
    ("5 <= x*24 + k", "5 <= x*24 + k", ()),
    ("9 <= x*24 + k", "1 <= x", ()),
    ("2*x == 7", "false", ()),
    ("i < 5 and i < 7", "i < 5", ()),
    ("i < 5 or i < 7", "i < 7", ()),
    ("x < 5 or 3 < x", "true", ()),
    ("x < 5 and 7 < x", "false", ()),
    ("n != 4 and 1 <= k or k <= n%2", "n != 4 and 1 <= k or k <= n%2", ()),
    ("i//4 < n", "i < n*4", ()),
    ("not (i < 3 or j == 2)", "3 <= i and j != 2", ()),
    ("select(i < 3, min(i, 3), i + 1)", "select(i < 3, i, i + 1)", ()),
    ("select(n == 1, 1, n)", "n", ()),
    ("select(n != 3, n, 3)", "n", ()),
    ("select(n == m, n + x, m + x)", "m + x", ()),
    ("select(n != m + 1, m - x, n - 1 - x)", "m - x", ()),
    ("select(select(n == 1, 1, n) == 1, min(n, 512), n)*12//n*64", "768", ("0 <= n",)),
    ("select(p < n, p%n, 0)", "select(p < n, p, 0)", ()),
    ("j + p*16 < n", "true", ("j < min(16, n - p*16)",)),
    ("n <= (n + 15)//16*16", "true", ()),
    ("(n + 15)//16*16 - n < 16", "true", ()),
    ("p*16 + j < (n + 15)//16*16", "true", ("p < (n + 15)//16",)),
    ("x%n < n", "true", ()),
]


@pytest.mark.parametrize(("text", "expected", "facts"), CASES)
def test_normal_form(text: str, expected: str, facts: tuple[str, ...]) -> None:
    known = [parse_expr(f) for f in facts]
    result = simplify(parse_expr(text), RANGES, known)
    assert print_expr(result) == expected
    assert simplify(result, RANGES, known) is result


def test_unchanged_formula_is_the_same_object() -> None:
    e = parse_expr("i*16 + j")
    assert simplify(e, RANGES) is e


def test_vectors_by_lane() -> None:
    v = lambda t: simplify(parse_expr(t), RANGES)
    assert print_expr(v("ramp(i*8, 1, 8)//broadcast(16, 8)")) == "broadcast(i//2, 8)"
    assert print_expr(v("ramp(i*8, 1, 8)%broadcast(8, 8)")) == "ramp(0, 1, 8)"
    assert print_expr(v("ramp(i*32, 16, 4)//broadcast(16, 4)")) == "ramp(i*2, 1, 4)"


def test_prove_is_false_when_unknown() -> None:
    assert prove(parse_expr("i < 64"), RANGES)
    assert not prove(parse_expr("i < 63"), RANGES)
    assert not prove(parse_expr("n < m"), RANGES)
    assert prove(parse_expr("n < m + 1"), RANGES, [parse_expr("n <= m")])


def test_division_by_constant_zero_is_kept_until_it_runs() -> None:
    e = n.FloorDiv(Var("x"), Const(0, dt.int64))
    assert simplify(e, {}) is e
    with pytest.raises(ExprError, match="integer division by zero"):
        evaluate(e, {"x": 1})


FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.pattern)
def test_rule_holds_bit_for_bit(rule: RewriteRule) -> None:
    pattern, result = rule.parse()
    names = list(n.free_vars(pattern))
    values = {
        "float": FLOATS,
        "int": np.array([-(2**31), -3, -1, 0, 1, 2, 7, 2**31 - 1], np.int32),
        "bool": np.array([False, True]),
        "any": FLOATS[:4],
    }
    grids = np.meshgrid(*(values["bool"] if x in "cd" else values[rule.domain] for x in names), indexing="ij")
    env = dict(zip(names, grids))
    a, b = np.broadcast_arrays(evaluate(pattern, env), evaluate(result, env))
    assert a.dtype == b.dtype
    assert ((a == b) & (np.signbit(a.astype(float)) == np.signbit(b.astype(float))) | ((a != a) & (b != b))).all()


@pytest.mark.parametrize("dtype", [dt.float16, dt.float64], ids=str)
@pytest.mark.parametrize("rule", [r for r in RULES if r.domain == "float"], ids=lambda r: r.pattern)
def test_rules_keep_the_dtype(rule: RewriteRule, dtype: dt.DType) -> None:
    pattern, _ = rule.parse()
    e = build(pattern, {x: Var(x, dtype) for x in "xyz"}, Var("x", dtype))
    assert {part.dtype for part in n.walk(simplify(e))} == {dtype}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x*1.0f32 - 0.0f32", "x"),
        ("x + 0.0f32", "x + 0.0f32"),
        ("x/4.0f32", "x*0.25f32"),
        ("x/3.0f32", "x/3.0f32"),
        ("x*0.0f32", "x*0.0f32"),
    ],
)
def test_float_rules(text: str, expected: str) -> None:
    assert print_expr(simplify(parse_expr(text, {"x": Var("x", dt.float32)}))) == expected


def test_casts_that_lose_nothing() -> None:
    variables = {"h": Var("h", dt.float16), "f": Var("f", dt.float32), "a": Var("a", dt.int32), "i": Var("i")}
    for text, expected in [
        ("float16(float32(h))", "h"),
        ("float32(float16(f))", "float32(float16(f))"),
        ("int32(int64(a))", "a"),
        ("int64(int32(i))", "i"),
    ]:
        assert print_expr(simplify(parse_expr(text, variables), {"i": Range(0, 9)})) == expected
    assert print_expr(simplify(parse_expr("int64(int32(i))", variables))) == "int64(int32(i))"


def test_wrapping_integers_are_not_index_formulas() -> None:
    a = {"a": Var("a", dt.int8)}
    assert print_expr(simplify(parse_expr("a + 1i8 <= a", a))) == "a + 1i8 <= a"
    assert print_expr(simplify(parse_expr("a*4i8//4i8", a))) == "a*4i8//4i8"


# -- fuzz -------------------------------------------------------------------------------------------------------------

FUZZ = {"x": Range(-5, 6), "y": Range(0, 3), "z": Range(0, 7), "n": Range(1, 4)}
POINTS = {
    v: g.ravel() for v, g in zip(FUZZ, np.meshgrid(*(np.arange(r.lo, r.hi + 1) for r in FUZZ.values()), indexing="ij"))
}  # type: ignore[operator]
FACTS = (parse_expr("y < n"),)


DIVISORS = [
    parse_expr(t) for t in ("-4", "-1", "1", "2", "3", "4", "6", "8", "16", "n", "n*4", "n*n", "n + 1", "z + 1")
]


def _formula(random: Random, leaves: int) -> Expr:
    """A formula of a seeded generator: hypothesis' own strategies take a hundred times longer to draw one."""
    if leaves <= 1:
        return Var(random.choice(list(FUZZ))) if random.random() < 0.65 else Const(random.randint(-9, 16), dt.int64)
    left, kind = random.randint(1, leaves - 1), random.random()
    if kind < 0.45:
        return random.choice([n.Add, n.Add, n.Sub, n.Mul, n.Min, n.Max])(
            _formula(random, left), _formula(random, leaves - left)
        )
    if kind < 0.9 or leaves < 3:
        divide = random.choice([n.FloorDiv, n.FloorMod, n.FloorDiv, n.FloorMod, n.TruncDiv, n.TruncMod])
        return divide(_formula(random, leaves - 1), random.choice(DIVISORS))
    return n.select(
        _condition(random, max(2, left)), _formula(random, leaves - left), _formula(random, max(1, leaves - left - 1))
    )


def _condition(random: Random, leaves: int) -> Expr:
    if leaves > 4 and random.random() < 0.5:
        return random.choice([n.And, n.Or])(_condition(random, leaves // 2), _condition(random, leaves - leaves // 2))
    if random.random() < 0.15:
        return n.not_(_condition(random, leaves))
    left = random.randint(1, max(1, leaves - 1))
    return random.choice([n.Lt, n.Le, n.Eq, n.Ne])(_formula(random, left), _formula(random, max(1, leaves - left)))


def _check(e: Expr, with_facts: bool) -> None:
    env = POINTS
    facts: tuple[Expr, ...] = ()
    if with_facts:
        facts, keep = FACTS, POINTS["y"] < POINTS["n"]
        env = {k: v[keep] for k, v in POINTS.items()}
    expected = evaluate(e, env)
    result = simplify(e, FUZZ, facts)
    got = evaluate(result, env)
    assert (np.broadcast_to(got, env["x"].shape) == expected).all(), f"{e}  →  {result}"
    again = simplify(result, FUZZ, facts)
    assert again is result, f"{e}  →  {result}  →  {again}"
    inside = range_of(e, FUZZ)
    low, high = int(np.min(expected)), int(np.max(expected))
    assert inside.within(None, None) and low in inside and high in inside, f"{e} in {inside}, but {low} … {high}"


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 14), st.booleans())
def test_fuzz_integers(seed: int, leaves: int, with_facts: bool) -> None:
    _check(_formula(Random(seed), leaves), with_facts)


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 12), st.booleans())
def test_fuzz_conditions(seed: int, leaves: int, with_facts: bool) -> None:
    _check(_condition(Random(seed), leaves), with_facts)


def test_products_of_many_sums_do_not_explode() -> None:
    e: Expr = Const(1, dt.int64)
    for name in itertools.islice("abcdefghijklmnop", 16):
        e = n.mul(e, n.add(Var(name), 1))
    result = simplify(e, {})
    assert simplify(result, {}) is result


def test_a_product_of_many_sums_stays_one() -> None:
    """A shape of a hundred open sizes: each factor that is multiplied out would stand beside each part of what comes
    before, and double it."""
    whole: Expr = n.const(1, dt.int64)
    values = {}
    for k in range(120):
        a, b = Var(f"a{k}", dt.int64), Var(f"b{k}", dt.int64)
        whole = n.mul(whole, n.add(n.sub(a, b), 1))
        values |= {a.name: 3 if k < 20 else 1, b.name: 1}
    made = simplify(whole)
    assert len(str(made)) < 20_000
    assert evaluate(made, {name: np.int64(v) for name, v in values.items()}) == 3**20


def test_selects_whose_conditions_hold_selects_take_time_of_their_nodes() -> None:
    """What a size is after many broadcasts: that of the step before, or where it is 1 another."""
    size: Expr = Var("n")
    for k in range(8):
        size = n.select(n.eq(size, 1), Var(f"s{k}"), size)
    began = time.process_time()
    assert simplify(size, {"n": Range(0, None)}) is size
    assert str(simplify(size, {"n": Range(2, None)})) == "n"
    assert time.process_time() - began < 1
