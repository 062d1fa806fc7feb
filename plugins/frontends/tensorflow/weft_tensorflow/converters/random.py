"""Random numbers. Their distributions are TensorFlow's, the numbers are not: those of a node with a seed are the same
at every run, of one without others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import product
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op


def key(c: Context) -> Value:
    seeds = [c.integer(name, 0) if abs(c.attributes[name].i) < 1 << 40 else hash(c.attributes[name].i) & 0xFFFFFFFF
             for name in ("seed", "seed2") if name in c.attributes]  # fmt: skip
    if not any(seeds):
        return c.builder.add(ops.Entropy())
    first, second = (*seeds, 0)[:2]
    bits = (first * 0x9E3779B97F4A7C15 + second) & 0xFFFFFFFFFFFFFFFF
    return c.builder.constant(np.array([bits], np.uint64))


def wide(dtype: DType) -> DType:
    return dt.float64 if dtype.bits == 64 else dt.float32


def uniform(c: Context, shape: Sequence[Dim], kind: DType, of: Value) -> Value:
    """Numbers of [0, 1): multiples of 2⁻²⁴ in float32, of 2⁻⁵³ in float64."""
    count = product(shape)
    words = c(ops.RandomBits(count if kind.bits == 32 else product((2, count))), of)
    if kind.bits == 32:
        y = c.mul(c.cast(c(ops.RightShift(), words, 8), kind), 2.0**-24)
    else:
        pairs = c.reshape(words, (count, 2))
        high, low = (c.cast(c(ops.RightShift(), c.pick(pairs, 1, k), by), kind) for k, by in ((0, 5), (1, 6)))
        y = c.mul(c.add(c.mul(high, 2.0**26), low), 2.0**-53)
    return c.reshape(y, tuple(shape))


@tf_op("RandomUniform")
def random_uniform(c: Context) -> Value:
    dtype = c.dtype("dtype")
    return c.cast(uniform(c, c.shape_at(0, "the shape"), wide(dtype), key(c)), dtype)


@tf_op("RandomUniformInt")
def random_uniform_int(c: Context) -> Value:
    """From the least number on, to the one before the greatest."""
    low, high = c.value(1), c.value(2)
    drawn = uniform(c, c.shape_at(0, "the shape"), dt.float64, key(c))
    span = c.cast(c.sub(c.cast(high, dt.int64), c.cast(low, dt.int64)), dt.float64)
    steps = c.cast(c(ops.Floor(), c.mul(drawn, span)), dt.int64)
    return c.cast(c.add(steps, c.cast(low, dt.int64)), low.dtype)


@tf_op("RandomStandardNormal")
def random_normal(c: Context) -> Value:
    """Box and Muller, "A note on the generation of random normal deviates" (1958)."""
    shape, dtype = c.shape_at(0, "the shape"), c.dtype("dtype")
    both = uniform(c, (2, product(shape)), wide(dtype), key(c))
    # 1 - u is never zero, whose logarithm there is none of.
    radius = c(ops.Sqrt(), c.mul(c(ops.Log(), c.sub(1.0, c.pick(both, 0, 0))), -2.0))
    y = c.mul(radius, c(ops.Cos(), c.mul(c.pick(both, 0, 1), 2.0 * math.pi)))
    return c.cast(c.reshape(y, shape), dtype)


@tf_op("Multinomial")
def multinomial(c: Context) -> Value:
    """Per row the class up to which the probabilities, whose logarithms are given up to a constant, first exceed a
    uniform number."""
    x, samples = c.value(0), c.dim_at(1, "the number of samples")
    rows, classes = x.shape
    (many,) = c.fixed((classes,), "the number of classes")
    sums = c(ops.CumSum(1), c(ops.Softmax(1), c.cast(x, wide(x.dtype))))
    drawn = uniform(c, (rows, samples), sums.dtype, key(c))
    # What rounding leaves of the last sum below 1 belongs to the last class.
    inner = c.slice(sums, 1, 0, many - 1)
    passed = c(ops.GreaterEqual(), c.reshape(drawn, (rows, samples, 1)), c.reshape(inner, (rows, 1, many - 1)))
    return c.cast(c.sum(c.cast(passed, dt.int64), (2,), False), c.dtype("output_dtype", dt.int64))


@tf_op("RandomShuffle")
def random_shuffle(c: Context) -> Value:
    """Along the first axis, in the order of random numbers."""
    x = c.value(0)
    order = c(ops.Argsort(0), uniform(c, (x.shape[0],), dt.float64, key(c)))
    return c.gather(x, order, 0)
