"""Twiddles of Fourier transforms: what should cancel does."""

from __future__ import annotations

import numpy as np
import pytest

from weft import dtypes as dt
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Var
from weft.ops.signal import turn


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 10, 12, 100, 4096])
def test_turns_are_exact_and_symmetric(n: int) -> None:
    k = np.arange(n)
    cos, sin = (evaluate(e, {"i": k, "n": np.int64(n)}) for e in turn(Var("i", dt.int64), Var("n", dt.int64), dt.float32))
    angle = 2 * np.pi * k / n
    np.testing.assert_allclose(cos, np.cos(angle), rtol=2e-7, atol=1e-15)
    np.testing.assert_allclose(sin, np.sin(angle), rtol=2e-7, atol=1e-15)
    if n % 2 == 0:
        np.testing.assert_array_equal(cos[n // 2 :], -cos[: n // 2])
        np.testing.assert_array_equal(sin[n // 2 :], -sin[: n // 2])
