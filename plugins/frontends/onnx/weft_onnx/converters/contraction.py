"""Sums of products."""

from __future__ import annotations

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("MatMul")
def matmul(c: Context) -> Value:
    return c(ops.MatMul(), c.value(0), c.value(1))


@onnx_op("Gemm")
def gemm(c: Context) -> Value:
    a, b, bias = c.value(0), c.value(1), c.optional(2)
    a = c.transpose(a, (1, 0)) if c.flag("transA") else a
    b = c.transpose(b, (1, 0)) if c.flag("transB") else b
    alpha, beta = c.real("alpha", 1.0), c.real("beta", 1.0)
    y = c(ops.MatMul(), a, b)
    y = y if alpha == 1 else c.mul(y, _scalar(alpha, y.dtype))
    if bias is None or beta == 0:
        return y
    return c.add(y, bias if beta == 1 else c.mul(bias, _scalar(beta, y.dtype)))


def _scalar(value: float, dtype: dt.DType) -> float | int:
    return int(value) if dtype.is_integer else value


@onnx_op("Einsum")
def einsum(c: Context) -> Value:
    return c(ops.Einsum(c.string("equation")), *c.values())


@onnx_op("Det")
def det(c: Context) -> Value:
    return c(ops.Det(), c.value(0))
