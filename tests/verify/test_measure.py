"""How errors are measured, and how large they may be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import Add, Cast, Exp, Floor, Log, MatMul, Multiply, ReduceMin, ReduceSum, Sqrt, Subtract
from weft_testing.verify.measure import Bound, compare, eps, scale_of, spacing, type_text
from weft_testing.verify.rounding import allowed_errors


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_unit_in_the_last_place_is_numpys(dtype: Any) -> None:
    x = np.array([1, 1.5, 2, 3.99, -7, 1e-3, 0, np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal], dtype)
    np.testing.assert_array_equal(spacing(x).astype(np.float64), np.abs(np.spacing(np.abs(x))).astype(np.float64))


def test_units_of_other_types() -> None:
    assert spacing(np.array([1, 3], ml_dtypes.bfloat16)).tolist() == [2**-7, 2**-6]
    assert spacing(np.array([7, 0], np.int32)).tolist() == [1, 1] and eps(np.zeros(1, np.int32)) == 0
    assert eps(np.zeros(1, np.complex64)) == eps(np.zeros(1, np.float32)) == 2**-23


def test_the_worst_element_is_named() -> None:
    want = np.array([[1, 2], [3, 4]], np.float32)
    got = want.copy()
    got[1, 0] = np.nextafter(np.float32(3), np.float32(4))
    found = compare(got, want)
    assert (found.elements, found.wrong, found.ulp, found.at) == (4, 1, 1.0, (1, 0))
    assert (
        found.relative == 2**-22 / 4
        and found.text == "1 of 4 elements are wrong, worst is [1, 0]: 3.0000002 instead of 3.0 (1 ulp)"
    )
    assert compare(got, want, 1e-6).text == "right: 1 ulp at most"
    limits = np.array([[1, 1], [0, 1]])
    assert compare(got + np.float32(0.5), want, limits).at == (1, 0)  # of all that are off, the one that may not be


def test_what_should_be_zero_is_measured_by_the_greatest_element() -> None:
    want = np.array([0, 1, 0], np.float32)
    assert compare(np.array([2.0**-22, 1, 0], np.float32), want).ulp == 2
    assert compare(np.array([2.0**-149], np.float32), np.zeros(1, np.float32)).ulp == 1


def test_what_is_no_number() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert not compare(want.copy(), want).wrong and scale_of(want) == 1
    for k, other in enumerate((0, -np.inf, np.nan, np.inf)):
        got = want.copy()
        got[k] = other
        found = compare(got, want, 1e9)
        assert (found.wrong, found.ulp, found.at) == (1, np.inf, (k,))


def test_integers_booleans_and_complex_numbers() -> None:
    assert (
        compare(np.array([2**63 - 1, 5]), np.array([2**63 - 2, 5])).wrong == 1
    )  # to the last bit, that float64 does not hold
    assert compare(np.array([True, False]), np.array([True, True])).at == (1,)
    found = compare(np.array([[1 + 2j, 1j]], np.complex64), np.array([[1 + 2j, 2j]], np.complex64))
    assert (found.elements, found.wrong, found.at, found.got) == (2, 1, (0, 1), "1j")


def test_results_of_another_type() -> None:
    found = compare(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), 1e9)
    assert found.wrong and found.text == "float32[2, 3] instead of float32[3, 2]"
    assert compare(np.zeros(1, np.float64), np.zeros(1, np.float32), 1e9).wrong


def test_text_sequences_and_nothing() -> None:
    assert compare(np.array(["a", "b"], object), np.array(["a", "c"], object)).at == (1,)
    pair = [np.zeros(2, np.float32), np.ones(3, np.float32)]
    assert not compare(list(pair), pair).wrong and not compare(None, None).wrong
    assert compare(pair[:1], pair).text == "a sequence of 1 instead of a sequence of 2"
    assert compare([pair[0], pair[1] + 1], pair).wrong == 3
    assert compare(None, pair).text == "nothing instead of a sequence of 2" and type_text(None) == "nothing"
    assert Bound(atol=0.5).of(pair) == 0.5 and Bound(rtol=1.0).of(np.array(["a"], object)) == 0


def test_a_bound_is_as_numpy_has_it() -> None:
    want = np.array([10, 0, np.inf], np.float32)
    assert Bound(rtol=0.1, atol=0.25).of(want).tolist() == pytest.approx([1.25, 0.25, 0.25])
    assert Bound(0.0).given and not Bound().given


# -- what rounding may do


def graph(*ops: Any, **weights: Any) -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (64, 16)))
    for op in ops:
        operands = (
            [b.constant(np.asarray(w), name) for name, w in weights.items()]
            if isinstance(op, (MatMul, Add, Subtract))
            else []
        )
        x = b.add(op, x, *operands)
    b.output(x, "y")
    return b.build()


def allowed(g: Graph, x: Any) -> tuple[Any, Any]:
    want = evaluate(g, {"x": x})
    return allowed_errors(g, {"x": x}, want)[0], want[0]


def test_one_operator_may_be_off_by_its_tolerance() -> None:
    x = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    limit, want = allowed(graph(Exp()), x)
    assert limit == Exp().tolerance() * 2.0**-23 * want.max()


def test_what_comes_before_is_amplified() -> None:
    """exp(exp(x)): an error of the inner one grows with the outer one's value."""
    x = np.full((64, 16), 1.5, np.float32)
    limit, want = allowed(graph(Exp(), Exp()), x)
    own = Exp().tolerance() * 2.0**-23
    inner = np.exp(1.5)
    assert np.all(limit > own * want * (1 + inner)) and np.all(limit < own * want * (1 + 8 * inner))


def test_an_error_takes_no_small_element_out_of_a_logarithm() -> None:
    """log(sqrt(sum x²)²) of rows of 1e-5 beside one of 1e3: an error in proportion to 1e6 made the others' negative."""
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (64, 16)))
    root = b.add(Sqrt(), b.add(ReduceSum((1,)), b.add(Multiply(), x, x)))
    y = b.add(Log(), b.add(Multiply(), root, root))
    above = b.add(Subtract(), y, b.add(ReduceMin((0,)), y))  # a single NaN is everybody's
    b.output(b.add(Identity(), above), "y")  # without an error of its own
    data = np.full((64, 16), 1e-5, np.float32)
    data[0] = 1e3
    limit, want = allowed(b.build(), data)
    assert np.isfinite(want).all()
    assert np.all(limit > 0) and np.all(limit <= 1e-4 * want.max())


def test_a_jump_is_allowed_where_it_may_happen() -> None:
    """floor: an element next to an integer may become another one, the others may not."""
    x = np.full((64, 16), 0.5, np.float32)
    x[3, 4] = 0.0
    limit, want = allowed(graph(Subtract(), Floor(), c=np.float32(1e-9)), x)
    assert want[0, 0] == 0 and np.broadcast_to(limit, want.shape)[0, 0] < 1e-3
    limit, want = allowed(graph(Subtract(), Floor(), Cast(dt.int32), c=np.float32(1e-9)), x)
    assert not np.broadcast_to(limit, want.shape)[0, 0] > 1
