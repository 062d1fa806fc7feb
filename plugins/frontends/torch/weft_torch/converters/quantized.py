"""Quantised programs, as pt2e and torchao write them."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.registry import op
from weft_torch.tensors import dtype_of

Q = "quantized_decomposed"


def _bounded(c: Context, x: Value, low: int, high: int) -> Value:
    """Cut to bounds that are narrower than the dtype."""
    least, most = (-(1 << (x.dtype.bits - 1)), (1 << (x.dtype.bits - 1)) - 1)
    if x.dtype.kind == "uint":
        least, most = 0, (1 << x.dtype.bits) - 1
    x = x if low <= least else c(ops.Maximum(), x, c.number(low, x.dtype))
    return x if high >= most else c(ops.Minimum(), x, c.number(high, x.dtype))


def _scale(c: Context, scale: Any) -> Value:
    return c.cast(scale, dt.float32) if isinstance(scale, Value) else c.number(float(scale), dt.float32)


def _zero(c: Context, zero: Any, dtype: Any) -> Value | None:
    return None if zero is None else c.to(zero, dtype)


@op(f"{Q}.quantize_per_tensor", f"{Q}.quantize_per_tensor.tensor", f"{Q}.quantize_per_tensor.tensor2")
def quantize(c: Context, x: Value, scale: Any, zero: Any, low: Any, high: Any, to: Any) -> Value:
    dtype = dtype_of(to)
    scale, zero = (c.reshape(v, ()) if isinstance(v, Value) else v for v in (scale, zero))
    found = c(ops.Quantize(dtype), c.cast(x, dt.float32), _scale(c, scale), _zero(c, zero, dtype))
    return _bounded(c, found, c.static(low, "a bound"), c.static(high, "a bound"))


@op(f"{Q}.quantize_per_channel")
def quantize_channels(c: Context, x: Value, scale: Any, zero: Any, axis: int, low: Any, high: Any, to: Any) -> Value:
    dtype = dtype_of(to)
    found = c(ops.Quantize(dtype, axis), c.cast(x, dt.float32), _scale(c, scale), _zero(c, zero, dtype))
    return _bounded(c, found, c.static(low, "a bound"), c.static(high, "a bound"))


@op(f"{Q}.dequantize_per_tensor", f"{Q}.dequantize_per_tensor.tensor", f"{Q}.dequantize_per_tensor.tensor2")
def dequantize(c: Context, x: Value, scale: Any, zero: Any, *_: Any) -> Value:
    scale, zero = (c.reshape(v, ()) if isinstance(v, Value) else v for v in (scale, zero))
    return c.cast(c(ops.Dequantize(), x, _scale(c, scale), _zero(c, zero, x.dtype)), c.result_dtype())


@op(f"{Q}.dequantize_per_channel")
def dequantize_channels(c: Context, x: Value, scale: Any, zero: Any, axis: int, *_: Any) -> Value:
    return c.cast(c(ops.Dequantize(axis), x, _scale(c, scale), _zero(c, zero, x.dtype)), c.result_dtype())


@op("aten._int_mm")
def int_mm(c: Context, x: Value, y: Value) -> Value:
    return c(ops.MatMulInteger(), x, y)


__all__ = ["dequantize", "quantize"]
