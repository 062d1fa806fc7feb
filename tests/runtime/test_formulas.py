"""Formulas of manifests: what they mean, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.errors import ArchiveError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var, const, floordiv, floormod, maximum, minimum
from weft.expr.printer import print_expr
from weft_runtime.formulas import LONGEST, formula, symbol_of

N, ODD, DATA = Var("n", dt.int64), Var("a.b-c", dt.int64), Var("s.0", dt.int64)


def exprs() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.integers(-9, 9).map(const), st.sampled_from([N, ODD, DATA]))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pairs = st.tuples(inner, inner)
        positive = st.tuples(inner, st.integers(1, 9).map(const))
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]), pairs.map(lambda p: p[0] - p[1]), pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: minimum(*p)), pairs.map(lambda p: maximum(*p)),
            positive.map(lambda p: floordiv(*p)), positive.map(lambda p: floormod(*p)),
        )  # fmt: skip

    return st.recursive(leaves, grow, max_leaves=12)


@given(exprs(), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_printed_formula_means_the_same(e: Expr, n: int, odd: int, data: int) -> None:
    env = {"n": n, "a.b-c": odd, "s.0": data}
    assert formula(print_expr(e))(env) == int(evaluate(e, env))


def test_conditions_and_selects() -> None:
    assert formula("select(n < 4 and not n == 2, n, -1)")({"n": 3}) == 3
    assert formula("select(n < 4 and not n == 2, n, -1)")({"n": 2}) == -1
    assert formula("n >= 1 or n != 0")({"n": 0}) == 0
    assert formula(7)({}) == 7


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__import__('os')", "Call is no part of a formula"),
        ("n.real()", "Call is no part of a formula"),
        ("[1][0]", "Subscript is no part of a formula"),
        ("1.5", "Constant is no part of a formula"),
        ("2**n", "BinOp is no part of a formula"),
        ("lambda: 0", "invalid syntax"),
        ("n if m else k", "invalid syntax"),
        ("12`n`", "invalid syntax"),
        ("`n``m`", "invalid syntax"),
        ("n +", "invalid syntax"),
        ("(" * 300 + "n" + ")" * 300, ""),
        ("-" * 3000 + "n", ""),
        ("", "invalid syntax"),
    ],
)
def test_anything_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(ArchiveError, match=rf"is no formula over sizes\n  why: .*{why}"):
        formula(text)


def test_long_formulas_are_refused() -> None:
    with pytest.raises(ArchiveError, match=rf"a formula has {LONGEST + 1} characters\n  why: the longest that is read has {LONGEST}"):
        formula("n" * (LONGEST + 1))


@pytest.mark.parametrize("name", ["class", "True", "None", "v0", "min", "select", "ﬁ", "é", "_quoted_0", "true", "not", "a b", " v0 ", "x.0"])
def test_a_symbol_may_have_any_name(name: str) -> None:
    # Python takes "ﬁ" for "fi".
    e = Var(name, dt.int64) * 2 + minimum(Var(name, dt.int64), const(3))
    assert formula(print_expr(e))({name: 4, "fi": 9}) == 11
    assert symbol_of(print_expr(Var(name, dt.int64))) == name
    assert symbol_of(print_expr(e)) is None


def test_truth_is_a_number() -> None:
    assert (formula("true")({}), formula("select(false, 1, 2)")({})) == (1, 2)
    assert symbol_of("true") is None
