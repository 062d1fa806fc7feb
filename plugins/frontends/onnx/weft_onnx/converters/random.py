"""Random numbers. A node with a seed gives the same numbers at every run, one without others; the specification leaves
the generator open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import product


def _key(c: Context) -> Value:
    """The key of a node's numbers: its seed, or what the system gives at every run."""
    a = c.attribute("seed")
    if a is None:
        return c.builder.add(ops.Entropy())
    # A seed is a float, but for Dropout's; the same number is the same key, and different ones are different.
    bits = np.uint64(np.float64(a.f).view(np.uint64)) if a.type == a.FLOAT else np.uint64(a.i & 0xFFFFFFFFFFFFFFFF)
    return c.builder.constant(np.array([bits], np.uint64))


def _uniform(c: Context, shape: Sequence[Dim], wide: DType, key: Value) -> Value:
    """Numbers of [0, 1): multiples of 2⁻²⁴ in float32, of 2⁻⁵³ in float64."""
    count = product(shape)
    words = c(ops.RandomBits(count if wide.bits == 32 else product((2, count))), key)
    if wide.bits == 32:
        y = c.mul(c.cast(c(ops.RightShift(), words, 8), wide), 2.0**-24)
    else:
        pairs = c.reshape(words, (count, 2))
        high, low = (c.cast(c(ops.RightShift(), c.pick(pairs, 1, k), by), wide) for k, by in ((0, 5), (1, 6)))
        y = c.mul(c.add(c.mul(high, 2.0**26), low), 2.0**-53)
    return c.reshape(y, tuple(shape))


def _wide(dtype: DType) -> DType:
    return dt.float64 if dtype.bits == 64 else dt.float32


def _place(c: Context) -> tuple[tuple[Dim, ...], DType]:
    """The shape and dtype of the numbers: attributes, or those of the operand."""
    if c.op_type.endswith("Like"):
        return c.shape(0), c.dtype("dtype", c.operand_dtype(0))
    return c.integers("shape") or (), c.dtype("dtype", dt.float32)


@onnx_op("RandomUniform", "RandomUniformLike")
def random_uniform(c: Context) -> Value:
    shape, dtype = _place(c)
    if not dtype.is_float:
        raise c.error(f"the numbers are {dtype}, expected floats")
    low, high = c.real("low", 0.0), c.real("high", 1.0)
    y = _uniform(c, shape, _wide(dtype), _key(c))
    return c.cast(c.add(c.mul(y, high - low), low), dtype)


@onnx_op("RandomNormal", "RandomNormalLike")
def random_normal(c: Context) -> Value:
    """Box and Muller, "A note on the generation of random normal deviates" (1958)."""
    shape, dtype = _place(c)
    if not dtype.is_float:
        raise c.error(f"the numbers are {dtype}, expected floats")
    wide = _wide(dtype)
    both = _uniform(c, (2, product(shape)), wide, _key(c))
    # 1 - u is never zero, whose logarithm there is none of.
    radius = c(ops.Sqrt(), c.mul(c(ops.Log(), c.sub(1.0, c.pick(both, 0, 0))), -2.0))
    y = c.mul(radius, c(ops.Cos(), c.mul(c.pick(both, 0, 1), 2.0 * math.pi)))
    return c.cast(c.reshape(c.add(c.mul(y, c.real("scale", 1.0)), c.real("mean", 0.0)), shape), dtype)


@onnx_op("Bernoulli")
def bernoulli(c: Context) -> Value:
    x = c.value(0)
    wide = _wide(x.dtype)
    drawn = c(ops.Less(), _uniform(c, x.shape, wide, _key(c)), c.cast(x, wide))
    return c.cast(drawn, c.dtype("dtype", x.dtype))


@onnx_op("Multinomial")
def multinomial(c: Context) -> Value:
    """Per row the class up to which the probabilities, whose logarithms are given up to a constant, first exceed a
    uniform number."""
    x = c.value(0)
    rows, classes, samples = x.shape[0], x.shape[1], c.integer("sample_size", 1)
    sums = c(ops.CumSum(1), c(ops.Softmax(1), c.cast(x, _wide(x.dtype))))
    drawn = _uniform(c, (rows, samples), sums.dtype, _key(c))
    # What rounding leaves of the last sum below 1 belongs to the last class.
    inner = c.slice(sums, 1, 0, classes - 1)
    passed = c(ops.GreaterEqual(), c.reshape(drawn, (rows, samples, 1)), c.reshape(inner, (rows, 1, classes - 1)))
    return c.cast(c.sum(c.cast(passed, dt.int64), (2,), False), c.dtype("dtype", dt.int32))


@onnx_op("Dropout")
def dropout(c: Context) -> Any:
    x = c.value(0)
    training, ratio = (c.constant(k) for k in (2, 1))
    never = (
        not c.given(2)
        or (training is not None and not bool(training.reshape(-1)[0]))
        or (ratio is not None and float(ratio.reshape(-1)[0]) == 0.0)
    )
    if c.version < 12 or never:
        mask = c(ops.Fill(dt.bool_, x.shape, 1)) if len(c.node.output) > 1 else None
        return x, mask
    wide = _wide(x.dtype)
    p = c.cast(c.reshape(c.value(1), ()), wide) if c.given(1) else c.number(0.5, wide)
    kept = c(ops.GreaterEqual(), _uniform(c, x.shape, wide, _key(c)), p)
    y = c.cast(c(ops.Where(), kept, c.div(c.cast(x, wide), c.sub(1.0, p)), c.number(0.0, wide)), x.dtype)
    if training is None:
        on = c.reshape(c.value(2), ())
        kept, y = c(ops.LogicalOr(), kept, c(ops.LogicalNot(), on)), c(ops.Where(), on, y, x)
    return y, kept
