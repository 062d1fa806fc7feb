"""Winograd's algorithm against the definition of a convolution."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import GraphError
from weft.graph.inferred import Inferred
from weft.graph.nodes import tensor_type
from weft.tensor.evaluate import evaluate
from weft.tensor.language import placeholder
from weft_ops.contraction import Conv
from weft_ops.winograd import POINTS, WinogradConv, matrices, transform_weights

SMALL = st.integers(-9, 9)


@given(st.data(), st.sampled_from(sorted(POINTS)))
def test_the_matrices_filter_exactly(data: st.DataObject, m: int) -> None:
    a, g, b = matrices(m)
    taps, d = (data.draw(st.lists(SMALL, min_size=n, max_size=n)) for n in (3, m + 2))
    times = lambda rows, x: [sum((c * Fraction(e) for c, e in zip(row, x)), Fraction(0)) for row in rows]
    got = times(a, [u * v for u, v in zip(times(g, taps), times(b, d))])
    assert got == [sum(taps[t] * d[r + t] for t in range(3)) for r in range(m)]


@settings(deadline=None, max_examples=30)
@given(
    m=st.sampled_from(sorted(POINTS)), n=st.integers(1, 2), block=st.integers(1, 3), c=st.integers(1, 2),
    oc=st.integers(1, 2), height=st.integers(3, 9),
    width=st.integers(3, 9), pads=st.lists(st.integers(0, 2), min_size=4, max_size=4), seed=st.integers(0, 99),
    skip=st.booleans(),
)  # fmt: skip
def test_formulas_and_reference_are_those_of_the_convolution(
    m: int, n: int, block: int, c: int, oc: int, height: int, width: int, pads: list[int], seed: int, skip: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((n, c * block, height, width)), rng.standard_normal((oc * block, c * block, 3, 3))
    want = Conv(pads=tuple(pads)).reference(x, w)
    op, u = WinogradConv(m, tuple(pads), block, skip), transform_weights(w, m)
    inferred = op.infer(tensor_type("float64", x.shape), tensor_type("float64", u.shape))
    assert inferred == Inferred(tensor_type("float64", want.shape))
    np.testing.assert_allclose(op.reference(x, u), want, rtol=0, atol=1e-12 * np.abs(want).max())
    tx, tu = placeholder(x.shape, "float64"), placeholder(u.shape, "float64")
    np.testing.assert_allclose(
        evaluate(op.winograd(tx, tu), {tx: x, tu: u}), want, rtol=0, atol=1e-12 * np.abs(want).max()
    )


@pytest.mark.parametrize(
    ("op", "x", "u", "message"),
    [
        (WinogradConv(3), (1, 4, 6, 6), (25, 4, 4), "m: expected one of 2, 4, got 3"),
        (WinogradConv(2), (1, 4, 6, 6), (36, 4, 4), r"expected x \[n, c, h, w\] and u \[16, c, oc\], got"),
        (WinogradConv(2), (1, 4, 6, 6), (16, 5, 4), "channels"),
        (
            WinogradConv(2, block=4),
            (1, 4, 6, 6),
            (16, 4, 6),
            r"channels: expected multiples of block = 4, got \[4, 6\]",
        ),
    ],
)
def test_errors(op: WinogradConv, x: tuple[int, ...], u: tuple[int, ...], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        op.infer(tensor_type("float32", x), tensor_type("float32", u))
