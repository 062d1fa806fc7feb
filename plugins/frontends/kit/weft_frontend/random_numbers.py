"""Random numbers of distributions, from `weft_ops.RandomBits`. The same key gives the same numbers at every run; one of
`weft_ops.Entropy` gives others each time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.composing import Composer
from weft_ops.shapes import product


def wide(dtype: DType) -> DType:
    """The dtype in which numbers are drawn: float64 for 64 bits, else float32."""
    return dt.float64 if dtype.bits == 64 else dt.float32


def uniform(c: Composer, shape: Sequence[Dim], dtype: DType, key: Value) -> Value:
    """Numbers of [0, 1): multiples of 2⁻²⁴ in float32, of 2⁻⁵³ in float64.

    Args:
        dtype: float32 or float64.
        key: uint64, one element.
    """
    count = product(shape)
    words = c(ops.RandomBits(count if dtype.bits == 32 else product((2, count))), key)
    if dtype.bits == 32:
        y = c.mul(c.cast(c(ops.RightShift(), words, 8), dtype), 2.0**-24)
    else:
        pairs = c.reshape(words, (count, 2))
        high, low = (c.cast(c(ops.RightShift(), c.pick(pairs, 1, k), by), dtype) for k, by in ((0, 5), (1, 6)))
        y = c.mul(c.add(c.mul(high, 2.0**26), low), 2.0**-53)
    return c.reshape(y, tuple(shape))


def normal(c: Composer, shape: Sequence[Dim], dtype: DType, key: Value) -> Value:
    """Numbers of mean 0 and standard deviation 1. Box and Muller, "A note on the generation of random normal deviates"
    (1958)."""
    both = uniform(c, (2, product(shape)), dtype, key)
    # 1 - u is never zero, whose logarithm there is none of.
    radius = c(ops.Sqrt(), c.mul(c(ops.Log(), c.sub(1.0, c.pick(both, 0, 0))), -2.0))
    y = c.mul(radius, c(ops.Cos(), c.mul(c.pick(both, 0, 1), 2.0 * math.pi)))
    return c.reshape(y, tuple(shape))


def categories(c: Composer, probabilities: Value, samples: Dim, key: Value) -> Value:
    """int64 [rows, samples] of probabilities [rows, classes], float32 or float64, whose sums are 1: per row and sample
    the class up to which the probabilities first exceed a uniform number."""
    rows, classes = probabilities.shape
    sums = c(ops.CumSum(1), probabilities)
    drawn = uniform(c, (rows, samples), sums.dtype, key)
    # What rounding leaves of the last sum below 1 belongs to the last class.
    inner = c.slice(sums, 1, 0, classes - 1)
    passed = c(ops.GreaterEqual(), c.reshape(drawn, (rows, samples, 1)), c.reshape(inner, (rows, 1, classes - 1)))
    return c.sum(c.cast(passed, dt.int64), (2,), False)


__all__ = ["categories", "normal", "uniform", "wide"]
