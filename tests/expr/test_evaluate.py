"""evaluate is exact in dtype, on scalars, arrays and vectors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft import dtypes as dt
from weft.errors import ExprError
from weft.expr import nodes as n
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Const, Var
from weft.expr.parser import parse_expr
from weft.loop.nodes import buffer

B = {"A": buffer("A", (8,), dt.float32)}


def run(text: str, dtype: Any = dt.int64, **env: Any) -> Any:
    return evaluate(parse_expr(text, {k: Var(k, dt.dtype(dtype)) for k in "xyz"}), env)


@pytest.mark.parametrize(
    ("text", "dtype", "x", "y", "expected"),
    [
        ("x + y", "int8", 127, 1, -128),
        ("x*y", "uint8", 200, 2, 144),
        ("x - y", "uint32", 0, 1, 2**32 - 1),
        ("x + y", "int4", 7, 1, -8),
        ("x//y", "int4", -7, 2, -4),
        ("x//y", "int64", -7, 2, -4),
        ("x%y", "int64", -7, 2, 1),
        ("truncdiv(x, y)", "int64", -7, 2, -3),
        ("truncmod(x, y)", "int64", -7, 2, -1),
        ("truncdiv(x, y)", "int32", 7, -2, -3),
        ("x << y", "int32", 1, 32, 0),
        ("x << y", "int32", 1, 31, -(2**31)),
        ("x >> y", "int32", -5, 40, -1),
        ("x >> y", "uint32", 5, 40, 0),
        ("x >> y", "int64", -5, 1, -3),
        ("x + y", "float16", 2048.0, 1.0, 2048.0),
        ("x + y", "bfloat16", 256.0, 1.0, 256.0),
        ("x/y", "float32", 1.0, 0.0, np.inf),
        ("min(x, y)", "float32", np.nan, 1.0, np.nan),
        ("max(x, y)", "bfloat16", 1.0, np.nan, np.nan),
        ("x%y", "float32", -7.0, 2.0, 1.0),
        ("truncmod(x, y)", "float32", -7.0, 2.0, -1.0),
        ("truncdiv(x, y)", "float32", -7.0, 2.0, -3.0),
        ("popcount(x)", "int32", -1, 0, 32),
        ("isnan(x)", "float32", np.nan, 0, True),
        ("exp(x)", "bfloat16", 1.0, 0, float(ml_dtypes.bfloat16(np.e))),
        ("bitcast(int32, x)", "float32", 1.0, 0, 0x3F800000),
        ("int8(x)", "int64", 300, 0, 44),
        ("int4(x)", "int64", 9, 0, -7),
        ("int32(x)", "float32", -1.7, 0, -1),
        ("bool(x)", "float32", 0.5, 0, True),
        ("float16(x)", "float32", 1 / 3, 0, float(np.float16(1 / 3))),
    ],
)
def test_exact(text: str, dtype: str, x: Any, y: Any, expected: Any) -> None:
    scalar = run(text, dtype, x=x, y=y)
    np.testing.assert_array_equal(np.asarray(scalar).astype(float), float(expected))
    array = run(text, dtype, x=np.full(3, x), y=np.full(3, y))
    assert array.shape == (3,) and array.dtype == np.asarray(scalar).dtype
    np.testing.assert_array_equal(np.asarray(array).astype(float), float(expected))


def test_constants_fold_as_they_evaluate() -> None:
    for text in ["-7//2", "-7%2", "truncdiv(-7, 2)", "truncmod(-7, 2)", "1 << 70", "-1 >> 70", "min(1.0f32, nanf32)"]:
        e = parse_expr(text)
        assert isinstance(e, (n.Binary, n.Call))
        folded = e.with_children(e.children())
        assert isinstance(folded, Const)
        np.testing.assert_array_equal(evaluate(e, {}), folded.value)


def test_vectors_have_lanes_last() -> None:
    e = parse_expr("ramp(i, 2, 4) + broadcast(j, 4)")
    np.testing.assert_array_equal(evaluate(e, {"i": 1, "j": 10}), [11, 13, 15, 17])
    assert evaluate(e, {"i": np.arange(3), "j": np.arange(3)}).shape == (3, 4)


def test_loads_see_index_0_where_the_value_is_not_wanted() -> None:
    data = np.arange(8, dtype=np.float32)
    load = lambda node, indices: data[indices]
    e = parse_expr("select(0 <= i and i < 8, A[i], 0.0f32)", None, B)
    np.testing.assert_array_equal(evaluate(e, {"i": np.array([-1, 3, 8])}, load), [0, 3, 0])
    masked = parse_expr("A[ramp(i, 1, 4); ramp(i, 1, 4) < broadcast(8, 4)]", None, B)
    np.testing.assert_array_equal(evaluate(masked, {"i": 6}, load), [6, 7, 0, 0])
    np.testing.assert_array_equal(evaluate(masked, {"i": 60}, load), [0, 0, 0, 0])


def test_division_by_zero_counts_only_where_it_is_chosen() -> None:
    e = parse_expr("select(n == 0, 0, x//n)")
    np.testing.assert_array_equal(evaluate(e, {"n": np.array([0, 2]), "x": 7}), [0, 3])
    for text in ("x//n", "x%n", "truncdiv(x, n)", "truncmod(x, n)"):
        with pytest.raises(ExprError, match="integer division by zero"):
            evaluate(parse_expr(text), {"n": np.array([0, 2]), "x": 7})


def test_errors() -> None:
    with pytest.raises(ExprError) as error:
        evaluate(parse_expr("index + 1"), {"indices": 1})
    assert str(error.value) == "the variable 'index' has no value\n  hint: did you mean 'indices'?"
    with pytest.raises(ExprError, match="cannot be evaluated without a way to load it"):
        evaluate(parse_expr("A[0]", None, B), {})
