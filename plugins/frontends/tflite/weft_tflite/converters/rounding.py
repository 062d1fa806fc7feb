"""Constants and roundings that converters of quantised operators share."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft_tflite.context import Context


def number(c: Context, value: object, dtype: DType = dt.int32) -> Value:
    """A constant."""
    return c.builder.constant(np.asarray(value).astype(dtype.numpy), "c")


def rounded_value(c: Context, x: Value) -> Value:
    """Floats to the nearest whole number, halves away from zero."""
    size = c(ops.Absolute(), x)
    whole = c(ops.Floor(), size)
    up = c(ops.Where(), c(ops.GreaterEqual(), c.sub(size, whole), 0.5), c.add(whole, 1.0), whole)
    return c(ops.Where(), c(ops.Less(), x, 0.0), c(ops.Negative(), up), up)


__all__ = ["number", "rounded_value"]
