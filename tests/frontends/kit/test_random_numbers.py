"""Random numbers of the kit: their distributions, and what a key makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.nodes import GraphBuilder
from weft_frontend.random_numbers import categories, normal, uniform, wide
from weft_ops.composing import Composer

CHANCES = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])


def made(make: Any, key: int | None = 5) -> Any:
    c = Composer(GraphBuilder("drawn"))
    given = c.builder.add(ops.Entropy()) if key is None else c.builder.constant(np.array([key], np.uint64))
    c.builder.output(make(c, given), "y")
    graph = c.builder.build()
    return evaluate(graph, {})[0], evaluate(graph, {})[0]


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64])
def test_distributions(dtype: Any) -> None:
    for of, mean, deviation in ((uniform, 0.5, 12**-0.5), (normal, 0.0, 1.0)):
        first, second = made(lambda c, key, of=of: of(c, (30, 40), dtype, key))
        assert first.shape == (30, 40) and first.dtype == dtype.numpy and np.array_equal(first, second)
        assert abs(first.mean() - mean) < 5 * deviation / 1200**0.5 and abs(first.std() / deviation - 1) < 0.1
    assert made(lambda c, key: uniform(c, (1200,), dtype, key))[0].min() >= 0


def test_categories() -> None:
    drawn, _ = made(lambda c, key: categories(c, c.builder.constant(CHANCES), 3000, key))
    assert drawn.dtype == np.int64 and drawn.shape == (2, 3000)
    assert np.allclose(np.stack([(drawn == k).mean(1) for k in range(3)], 1), CHANCES, atol=0.05)


def test_keys() -> None:
    draw: Any = lambda c, key: uniform(c, (9,), dt.float32, key)
    assert not np.array_equal(made(draw, 1)[0], made(draw, 2)[0])
    assert not np.array_equal(*made(draw, None))
    assert (wide(dt.float16), wide(dt.int64)) == (dt.float32, dt.float64)
