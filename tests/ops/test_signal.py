"""Fourier transforms: of turns, what should cancel does; by factors and as a convolution they are as exact as by the
definition."""

from __future__ import annotations

import numpy as np
import pytest

from weft import dtypes as dt
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate as evaluate_graph
from weft.graph.nodes import GraphBuilder, TensorType
from weft.passes.decompose import decompose
from weft_ops import DFT
from weft_ops.examples import floats
from weft_ops.signal import MOST_POINTS, factors, turn


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 10, 12, 100, 4096])
def test_turns_are_exact_and_symmetric(n: int) -> None:
    k = np.arange(n)
    cos, sin = (
        evaluate(e, {"i": k, "n": np.int64(n)}) for e in turn(Var("i", dt.int64), Var("n", dt.int64), dt.float32)
    )
    angle = 2 * np.pi * k / n
    np.testing.assert_allclose(cos, np.cos(angle), rtol=2e-7, atol=1e-15)
    np.testing.assert_allclose(sin, np.sin(angle), rtol=2e-7, atol=1e-15)
    if n % 2 == 0:
        np.testing.assert_array_equal(cos[n // 2 :], -cos[: n // 2])
        np.testing.assert_array_equal(sin[n // 2 :], -sin[: n // 2])


@pytest.mark.parametrize(
    ("n", "convolved"), [(1, 0), (2, 0), (13, 0), (48, 0), (331, 1), (400, 0), (512, 0), (1018, 1), (4096, 0)]
)
@pytest.mark.parametrize(
    "op",
    [DFT(), DFT(inverse=True), DFT(onesided=True), DFT(inverse=True, onesided=True)],
    ids=["all", "inverse", "onesided", "half"],
)
@pytest.mark.parametrize("given", [1, 2])
def test_products_transform(n: int, convolved: bool, op: DFT, given: int) -> None:
    points = n
    while points > 1 and (first := factors(points, 2)[1]) > 1:
        points //= first
    assert (points > 1 and factors(points, 2)[1] == 0) == convolved
    if op.inverse and op.onesided:
        op = DFT(inverse=True, onesided=True, length=n)
    x = floats((2, n // 2 + 1 if op.length else n, given))
    b = GraphBuilder("g")
    b.output(b.add(op, b.input("x", TensorType(dt.float32, x.shape))))
    graph = decompose(b.build())
    assert not any(isinstance(node.op, DFT) for node in graph.nodes)
    (got,) = evaluate_graph(graph, [x])
    want = op.reference(x.astype(np.float64))
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("n", [2**31 - 1, MOST_POINTS + 1, MOST_POINTS - 3, 2 * MOST_POINTS])
def test_factors_that_would_fill_the_memory_are_not_made(n: int) -> None:
    """A file of a hundred bytes may ask for any length."""
    b = GraphBuilder("g")
    b.output(b.add(DFT(), b.input("x", TensorType(dt.float32, (1, n, 1)))))
    (node,) = decompose(b.build()).nodes
    assert isinstance(node.op, DFT)
    assert "more constants than a model should hold" in (
        DFT().applies("factors", TensorType(dt.float32, (1, n, 1))) or ""
    )
    assert DFT().applies("factors", TensorType(dt.float32, (1, MOST_POINTS, 1))) is None
