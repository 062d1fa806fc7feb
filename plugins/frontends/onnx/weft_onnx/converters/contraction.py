"""Sums of products."""

from __future__ import annotations

from weft import dtypes as dt
from weft import ops
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("MatMul")
def matmul(c: Context) -> Value:
    return c(ops.MatMul(), c.value(0), c.value(1))  # type: ignore[no-any-return]


@onnx_op("Gemm")
def gemm(c: Context) -> Value:
    a, b, bias = c.value(0), c.value(1), c.optional(2)
    a = c.transpose(a, (1, 0)) if c.flag("transA") else a
    b = c.transpose(b, (1, 0)) if c.flag("transB") else b
    alpha, beta = c.real("alpha", 1.0), c.real("beta", 1.0)
    y = c(ops.MatMul(), a, b)
    y = y if alpha == 1 else c.mul(y, _scalar(alpha, y.dtype))
    if bias is None or beta == 0:
        return y  # type: ignore[no-any-return]
    return c.add(y, bias if beta == 1 else c.mul(bias, _scalar(beta, y.dtype)))


def _scalar(value: float, dtype: dt.DType) -> float | int:
    return int(value) if dtype.is_integer else value


@onnx_op("MatMulInteger")
def matmul_integer(c: Context) -> Value:
    a, b = (c.cast(c.value(k), dt.int32) for k in (0, 1))
    za, zb = (None if (z := c.optional(k)) is None else c.cast(z, dt.int32) for k in (2, 3))
    if za is not None and len(za.shape) == 1:  # per row of a
        za = c.reshape(za, (za.shape[0], 1)) if za.shape[0] != 1 else za
    if za is None and zb is None:
        return c(ops.MatMul(dt.int32), c.value(0), c.value(1))  # type: ignore[no-any-return]
    return c(ops.MatMul(), a if za is None else c.sub(a, za), b if zb is None else c.sub(b, zb))  # type: ignore[no-any-return]
