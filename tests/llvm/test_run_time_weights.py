"""Convolutions whose weights a run gives, as in training: packed, and transformed for Winograd, by the run."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder, tensor_type
from weft_ops import Conv, Relu

CASES = {
    "winograd": ((2, 64, 28, 28), (64, 64, 3, 3), Conv(pads=(1, 1, 1, 1))),
    "stride": ((2, 32, 17, 19), (48, 32, 3, 3), Conv((2, 2), (1, 1, 1, 1))),
    "pointwise": ((2, 48, 9, 9), (64, 48, 1, 1), Conv()),
    "picture": ((1, 3, 33, 35), (32, 3, 7, 7), Conv((2, 2), (3, 3, 3, 3))),
    "groups": ((1, 64, 12, 12), (64, 16, 3, 3), Conv(pads=(1, 1, 1, 1), groups=4)),
    "depthwise": ((2, 32, 12, 12), (32, 1, 3, 3), Conv(pads=(1, 1, 1, 1), groups=32)),
    "odd": ((1, 18, 11, 10), (20, 18, 3, 3), Conv(pads=(1, 0, 1, 2), dilations=(2, 1))),
    "one_axis": ((2, 32, 40), (32, 32, 5), Conv((1,), (2, 2))),
    "open": ((2, 32, "h", "w"), (32, 32, 3, 3), Conv(pads=(1, 1, 1, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_they_give_what_constant_weights_give(name: str) -> None:
    shape, weights, op = CASES[name]
    b = GraphBuilder()
    x, w = b.input("x", tensor_type("float32", shape)), b.input("w", tensor_type("float32", weights))
    b.output(b.add(Relu(), b.add(op, x, w)), "y")
    graph = b.build()
    rng = np.random.default_rng(5)
    sizes = [d if isinstance(d, int) else 13 for d in shape]
    given = {"x": rng.normal(size=sizes).astype(np.float32), "w": rng.normal(size=weights).astype(np.float32)}
    got = weft.compile(graph, "llvm -threads=1", cache=False).run(given)["y"]
    (want,) = evaluate(graph, given)
    assert got.shape == want.shape
    # Winograd's transforms lose some bits (Lavin and Gray 2016): the same bound as for constant weights.
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))
