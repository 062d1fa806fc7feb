"""Random numbers. A node with a seed gives the same numbers at every run, one without others; the specification leaves
the generator open."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_frontend.random_numbers import categories, normal, uniform, wide
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


def _key(c: Context) -> Value:
    """The key of a node's numbers: its seed, or what the system gives at every run."""
    a = c.attribute("seed")
    if a is None:
        return c.builder.add(ops.Entropy())
    # A seed is a float, but for Dropout's; the same number is the same key, and different ones are different.
    bits = np.uint64(np.float64(a.f).view(np.uint64)) if a.type == a.FLOAT else np.uint64(a.i & 0xFFFFFFFFFFFFFFFF)
    return c.builder.constant(np.array([bits], np.uint64))


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
    y = uniform(c, shape, wide(dtype), _key(c))
    return c.cast(c.add(c.mul(y, high - low), low), dtype)


@onnx_op("RandomNormal", "RandomNormalLike")
def random_normal(c: Context) -> Value:
    shape, dtype = _place(c)
    if not dtype.is_float:
        raise c.error(f"the numbers are {dtype}, expected floats")
    y = normal(c, shape, wide(dtype), _key(c))
    return c.cast(c.add(c.mul(y, c.real("scale", 1.0)), c.real("mean", 0.0)), dtype)


@onnx_op("Bernoulli")
def bernoulli(c: Context) -> Value:
    x = c.value(0)
    drawn = c(ops.Less(), uniform(c, x.shape, wide(x.dtype), _key(c)), c.cast(x, wide(x.dtype)))
    return c.cast(drawn, c.dtype("dtype", x.dtype))


@onnx_op("Multinomial")
def multinomial(c: Context) -> Value:
    """The logarithms of the probabilities are given up to a constant."""
    x = c.value(0)
    shares = c(ops.Softmax(1), c.cast(x, wide(x.dtype)))
    return c.cast(categories(c, shares, c.integer("sample_size", 1), _key(c)), c.dtype("dtype", dt.int32))


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
    real = wide(x.dtype)
    p = c.cast(c.reshape(c.value(1), ()), real) if c.given(1) else c.number(0.5, real)
    kept = c(ops.GreaterEqual(), uniform(c, x.shape, real, _key(c)), p)
    y = c.cast(c(ops.Where(), kept, c.div(c.cast(x, real), c.sub(1.0, p)), c.number(0.0, real)), x.dtype)
    if training is None:
        on = c.reshape(c.value(2), ())
        kept, y = c(ops.LogicalOr(), kept, c(ops.LogicalNot(), on)), c(ops.Where(), on, y, x)
    return y, kept
