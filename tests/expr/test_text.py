"""print_expr and parse_expr are inverse; parse errors show the place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.errors import ExprError, ParseError
from weft.expr import nodes as n
from weft.expr.nodes import Const, Expr, Var
from weft.expr.parser import ExprParser, parse_expr, tokenize
from weft.expr.printer import print_expr
from weft.loop.nodes import IntrinsicCall, Load, buffer
from weft.tensor.language import placeholder, reduce_axis
from weft.tensor.language import sum as tensor_sum

F = {
    "x": Var("x", dt.float32),
    "h": Var("h", dt.float16),
    "c": Var("c", dt.bool_),
    "d": Var("d", dt.bool_),
    "a": Var("a", dt.int32),
}

TEXTS = [
    "(i*16 + j)//4", "i - (j - k)", "i - j - k", "i*(j*k)", "i%4*2", "i//(4*k)", "-3", "i*-3 + -1", "3i32", "7u8",
    "-1i4", "a + 1i32",
    "select(i < 3, j, k)", "min(i, max(j, 2))", "truncdiv(i, 3) + truncmod(i, 3)", "i < 3 and (j < 2 or not k == 1)",
    "not (c and d)", "not not c",
    "(i < j) == (k <= 2)", "i & 3 | j ^ 1 << 2", "(i | j) & 3", "i >> 2 << 1", "1.5f32", "0.0f16", "-0.0f32", "1.0bf16",
    "0.1f32", "0.1f64",
    "1e-05f32", "3e+38f32",
    "inff32", "-inff16", "nanf64", "1.0f8_e4m3fn", "x*0.1f32/x", "float32(h)*x", "float32x8(broadcast(h, 8))",
    "bitcast(int32, x)", "exp(x)",
    "fma(x, x, x)", "isnan(x) or c",
    "ramp(i, 1, 8)", "broadcast(i + 1, 4)", "true", "false", "complex64(1.0, -2.5)", "complex64(x)",
    "`batch size` + `min`*0 + n.0", "pow(x, 2.0f32)",
]  # fmt: skip


class _Names(dict):  # type: ignore[type-arg]
    """The variables above, and every other name as int64."""

    def get(self, key: str, default: object = None) -> Var:
        return F.get(key, Var(key))


@pytest.mark.parametrize("text", TEXTS)
def test_parse_then_print(text: str) -> None:
    e = parse_expr(text, _Names())
    assert print_expr(e) == text.replace("`min`", "min")
    assert parse_expr(print_expr(e), _Names()) == e


def test_elements_and_intrinsics() -> None:
    b = buffer("A", (4, 8), dt.float32)
    e = parse_expr("A[i, j + 1]*@dot(A[0, 0], i) -> float32", None, {"A": b}, IntrinsicCall)
    assert print_expr(e) == "A[i, j + 1]*@dot(A[0, 0], i) -> float32"
    masked = parse_expr(
        "A[i, ramp(0, 1, 4); ramp(0, 1, 4) < broadcast(n, 4)]", None, lambda name: b if name == "A" else None
    )
    assert isinstance(masked, Load) and masked.predicate is not None and masked.dtype.lanes == 4
    assert print_expr(masked) == "A[i, ramp(0, 1, 4); ramp(0, 1, 4) < broadcast(n, 4)]"
    t, k = placeholder((4, 8), name="T"), reduce_axis(8, "k")
    assert print_expr(tensor_sum(t[0, k], k)) == "sum(T[0, k]; axis=k: 8)"
    assert print_expr(parse_expr("T[i, 2]", None, {"T": t})) == "T[i, 2]"


def test_the_parser_stops_where_the_formula_does() -> None:
    tokens = tokenize('i*16 + j < n @ op="Conv" {  # a comment\n}')
    assert print_expr(ExprParser(tokens).expr()) == "i*16 + j < n"
    assert [t.text for t in (tokens.next(), tokens.next(), tokens.next(), tokens.next())] == ["@", "op", "=", '"Conv"']
    tokens.expect("{")
    assert tokens.peek.line == 2


def test_greater_and_minus_are_read_as_their_meaning() -> None:
    assert print_expr(parse_expr("i > 3")) == "3 < i"
    assert print_expr(parse_expr("-i")) == "0 - i"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i +", "expected a formula, got the end of the text"),
        ("i + )", "expected a formula, got ')'"),
        ("(i", "expected ')', got the end of the text"),
        ("i j", "unexpected 'j' after the formula"),
        ("i $ 2", "unexpected character '$'"),
        ("i < j < k", "comparisons do not chain"),
        ("i + 1i32", "operands of '+' differ in dtype: int64 and int32"),
        ("not i", "'not' takes a bool, got int64"),
        ("select(i, j, k)", "select takes a bool condition, got int64"),
        ("min(i)", "min takes 2 argument(s), got 1"),
        ("sqr(i)", "did you mean 'sqrt'?"),
        ("fma(1.0f32, 1.0f32, 2.0f16)", "the arguments of fma differ in dtype: float32, float32, float16"),
        ("bitcast(int33, i)", "unknown dtype 'int33'"),
        ("bitcast(3, i)", "expected a dtype, got '3'"),
        ("bitcast(int32, i)", "bitcast from int64 to int32 changes the width"),
        ("A[i]", "unknown buffer 'A'"),
        ("@dot(i)", "an intrinsic call, @dot, is no formula here"),
        ("@3", "expected the name of an intrinsic, got '3'"),
        ("ramp(i, 1, k)", "expected the number of lanes, got 'k'"),
        ("1.5i32", "'1.5i32' is no integer"),
    ],
)
def test_parse_errors(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_expr(text)
    assert message in str(error.value)


def test_parse_error_shows_the_place() -> None:
    with pytest.raises(ParseError) as error:
        parse_expr("i +\n  indx*2", {"i": Var("i"), "index": Var("index")})
    assert (
        str(error.value)
        == "unknown variable 'indx'\n  line 2, column 3\n    indx*2\n    ^\n  hint: did you mean 'index'?"
    )


def test_what_has_no_text() -> None:
    class Odd(Expr):
        __slots__ = ()

    with pytest.raises(ExprError, match="a node of type Odd has no text"):
        print_expr(Odd())
    with pytest.raises(ExprError, match="a constant of dtype handle has no text"):
        print_expr(Const(0, dt.handle))


@settings(max_examples=100, deadline=None)
@given(st.floats(width=32), st.sampled_from(["float16", "bfloat16", "float32", "float64", "float8_e5m2"]))
def test_float_literals(value: float, dtype: str) -> None:
    e = Const(value, dt.dtype(dtype))
    back = parse_expr(print_expr(e))
    assert back == e or (math.isnan(e.value) and math.isnan(back.value))  # type: ignore[attr-defined]


_LEAF = st.one_of(st.sampled_from([Var("i"), Var("j")]), st.integers(-5, 5).map(lambda v: Const(v, dt.int64)))
_INT = [
    n.Add,
    n.Sub,
    n.Mul,
    n.FloorDiv,
    n.FloorMod,
    n.BitAnd,
    n.BitOr,
    n.BitXor,
    n.ShiftLeft,
    n.ShiftRight,
    n.Min,
    n.TruncDiv,
]
_TREES = st.recursive(
    _LEAF, lambda x: st.tuples(st.sampled_from(_INT), x, x).map(lambda t: t[0](t[1], t[2])), max_leaves=8
)


@settings(max_examples=150, deadline=None)
@given(_TREES)
def test_any_tree_comes_back(e: Expr) -> None:
    assert parse_expr(print_expr(e)) == e
