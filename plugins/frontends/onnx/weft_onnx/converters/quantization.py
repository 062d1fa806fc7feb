"""Quantised numbers."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_onnx.converters.network import window_pads
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("QuantizeLinear")
def quantize(c: Context) -> Value:
    zero = c.optional(2)
    to = (
        c.dtype("output_dtype", dt.uint8) if c.integer("output_dtype") else zero.dtype if zero is not None else dt.uint8
    )
    op = ops.Quantize(to, c.integer("axis", 1), c.integer("block_size"), c.flag("saturate", True))
    return c(op, c.value(0), c.value(1), zero)


@onnx_op("DequantizeLinear")
def dequantize(c: Context) -> Value:
    to = c.dtype("output_dtype", dt.float32) if c.integer("output_dtype") else None
    return c(ops.Dequantize(c.integer("axis", 1), c.integer("block_size"), to), c.value(0), c.value(1), c.optional(2))


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize(c: Context) -> Any:
    return c.all(ops.DynamicQuantize(), c.value(0))


@onnx_op("MatMulInteger")
def matmul_integer(c: Context) -> Value:
    return c(ops.MatMulInteger(), c.value(0), c.value(1), c.optional(2), c.optional(3))


@onnx_op("QLinearMatMul")
def qlinear_matmul(c: Context) -> Value:
    return c(ops.QLinearMatMul(), *(c.value(k) for k in range(8)))


def _window(c: Context, x: Value, w: Value) -> tuple[Any, ...]:
    n = len(x.shape) - 2
    strides, dilations = c.integers("strides") or (1,) * n, c.integers("dilations") or (1,) * n
    return strides, window_pads(c, x.shape[2:], w.shape[2:], strides, dilations), dilations, c.integer("group", 1)


@onnx_op("ConvInteger")
def conv_integer(c: Context) -> Value:
    x, w = c.value(0), c.value(1)
    return c(ops.ConvInteger(*_window(c, x, w)), x, w, c.optional(2), c.optional(3))


@onnx_op("QLinearConv")
def qlinear_conv(c: Context) -> Value:
    x, w = c.value(0), c.value(3)
    return c(ops.QLinearConv(*_window(c, x, w)), *(c.value(k) for k in range(8)), c.optional(8))
