"""Where indices may lie while loops run."""

from __future__ import annotations

from functools import reduce

from weft.expr import nodes as ex
from weft.loop.nodes import int64
from weft.scheduling.region import MOST_TERMS, interval

I = ex.Var("i", int64(0).dtype)


def sizes(count: int, of: int) -> ex.Expr:
    """A product of `count` sums of `of` sizes each."""
    sums = [reduce(ex.add, [ex.Var(f"n{k}_{j}", I.dtype) for j in range(of)]) for k in range(count)]
    return reduce(ex.mul, sums)


def test_a_loop_runs_from_zero_to_its_extent() -> None:
    found = interval(ex.add(ex.mul(I, int64(4)), int64(3)), {"i": ex.Var("n", I.dtype)})
    assert found is not None
    assert [str(end.expr()) for end in found] == ["3", "n*4 - 1"]


def test_nothing_is_said_of_products_that_multiply_out_to_hundreds_of_terms() -> None:
    small, large = sizes(2, 4), sizes(5, 4)
    assert interval(ex.floordiv(I, int64(7)), {"i": small}) is not None
    assert MOST_TERMS < 4**5 and interval(ex.floordiv(I, int64(7)), {"i": large}) is None
