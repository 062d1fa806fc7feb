"""Operators of com.microsoft that quantizers write: what they compute between 8 bits and 8 bits is spelled out between
dequantisation and quantisation."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_onnx.contrib import DOMAIN, contrib_op, fixed
from weft_onnx.converters.network import pool
from weft_onnx.converters.quantization import dequantize, quantize
from weft_onnx.converters.recurrent import recurrent
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr

onnx_op("QuantizeLinear", domain=DOMAIN)(quantize)
onnx_op("DequantizeLinear", domain=DOMAIN)(dequantize)


def operand(c: Context, k: int, axis: int = 0) -> Value:
    """Operands k, k + 1 and k + 2: integers, their scale and their zero point, as the floats that they stand for."""
    return c(ops.Dequantize(axis), c.value(k), c.value(k + 1), c.optional(k + 2))


def quantised(c: Context, value: Value, k: int, to: dt.DType) -> Value:
    """Floats by the scale and the zero point that are operands k and k + 1."""
    zero = c.optional(k + 1)
    return c(ops.Quantize(to if zero is None else zero.dtype), value, c.value(k), zero)


@contrib_op("QLinearAdd", "QLinearMul")
def binary(c: Context) -> Value:
    op = ops.Add() if c.op_type == "QLinearAdd" else ops.Multiply()
    return quantised(c, c(op, operand(c, 0), operand(c, 3)), 6, c.value(0).dtype)


@contrib_op("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", attributes="alpha axis opset")
def unary(c: Context) -> Value:
    op: Any = {
        "QLinearSigmoid": ops.Sigmoid(),
        "QLinearLeakyRelu": ops.LeakyRelu(c.real("alpha", 0.01)),
        "QLinearSoftmax": ops.Softmax(c.integer("axis", -1)),
    }
    x = operand(c, 0)
    if (
        c.op_type == "QLinearSoftmax"
        and c.integer("opset", 13) < 13
        and c.integer("axis", -1) % len(x.shape) != len(x.shape) - 1
    ):
        raise c.unsupported("an axis that is not the last, before operator set 13")
    return quantised(c, c(op[c.op_type], x), 3, c.value(0).dtype)


@contrib_op(
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    attributes="auto_pad ceil_mode channels_last count_include_pad dilations kernel_shape pads strides",
)
def average(c: Context) -> Value:
    x = operand(c, 0)
    last = c.flag("channels_last")
    n = len(x.shape)
    x = c.transpose(x, (0, n - 1, *range(1, n - 1))) if last else x
    if c.op_type == "QLinearGlobalAveragePool":
        y = c.mean(x, range(2, n))
    else:
        y = c(ops.AveragePool(*pool(c, x), c.flag("count_include_pad")), x)
    y = c.transpose(y, (0, *range(2, n), 1)) if last else y
    return quantised(c, y, 3, c.value(0).dtype)


@contrib_op("QLinearReduceMean", attributes="axes keepdims")
def reduce_mean(c: Context) -> Value:
    axes, x = c.integers("axes"), operand(c, 0)
    return quantised(c, c(ops.ReduceMean(axes, c.flag("keepdims", True)), x), 3, c.value(0).dtype)


@contrib_op("QLinearConcat", attributes="axis")
def concat(c: Context) -> Value:
    parts = [operand(c, k) for k in range(2, c.count, 3)]
    return quantised(c, c.concat(parts, c.integer("axis")), 0, c.value(2).dtype)


@contrib_op("QLinearWhere")
def where(c: Context) -> Value:
    return quantised(c, c(ops.Where(), c.value(0), operand(c, 1), operand(c, 4)), 7, c.value(1).dtype)


@contrib_op("QGemm", attributes="alpha transA transB")
def gemm(c: Context) -> Value:
    """The bias is an integer in units of alpha·a_scale·b_scale. Without a scale of the result it is of floats."""
    a, b, bias = operand(c, 0), operand(c, 3, axis=0 if c.flag("transB") else 1), c.optional(6)
    a = c.transpose(a, (1, 0)) if c.flag("transA") else a
    b = c.transpose(b, (1, 0)) if c.flag("transB") else b
    y, alpha = c(ops.MatMul(), a, b), c.real("alpha", 1.0)
    if bias is not None:
        y = c.add(y, c(ops.Dequantize(len(bias.shape) - 1), bias, c.mul(c.reshape(c.value(1), ()), c.value(4))))
    y = y if alpha == 1 else c.mul(y, alpha)
    return y if c.optional(7) is None else quantised(c, y, 7, c.value(0).dtype)


@contrib_op("MatMulIntegerToFloat")
def matmul_to_float(c: Context) -> Value:
    """Operands A, B, their scales, their zero points, and a bias of floats; the last three are optional."""
    total = c(ops.MatMulInteger(), c.value(0), c.value(1), c.optional(4), c.optional(5))
    return _scaled(c, total, c.mul(c.value(2), c.value(3)), c.optional(6))


@contrib_op("DynamicQuantizeMatMul")
def dynamic_matmul(c: Context) -> Value:
    """Operands A of floats, quantised by their own range, B, its scale and zero point, and a bias of floats; the last
    two are optional."""
    x, scale, zero = c.all(ops.DynamicQuantize(), c.value(0))
    total = c(ops.MatMulInteger(), x, c.value(1), zero, c.optional(3))
    return _scaled(c, total, c.mul(scale, c.value(2)), c.optional(4))


def _scaled(c: Context, total: Value, scale: Value, bias: Value | None) -> Value:
    y = c.mul(c.cast(total, scale.dtype), scale)
    return y if bias is None else c.add(y, bias)


@contrib_op("MatMulNBits", attributes="K N accuracy_level bits block_size weight_prepacked")
def matmul_n_bits(c: Context) -> Value:
    """A · Bᵀ, B [N, K] of 2, 4 or 8 bits in blocks along K, each with a scale and a zero point: packed from the low
    bits on, [N, K/block, bytes]. Zero points may be floats, [N, K/block]. `accuracy_level` lets A be rounded; it is
    not."""
    fixed(c, "weight_prepacked")
    x, packed, scales = c.value(0), c.constant(1), c.value(2)
    k, n, bits, block = c.integer("K"), c.integer("N"), c.integer("bits", 4), c.integer("block_size")
    if bits not in (2, 4, 8) or packed is None:
        raise c.unsupported(f"weights of {bits} bits" if packed is not None else "weights that are not constant")
    if c.count > 4 and c.optional(4) is not None:
        raise c.unsupported("g_idx, columns in another order")
    if min(k, n, block) <= 0 or packed.nbytes != n * -(-k // block) * block * bits // 8:
        raise c.error(f"weights of {packed.nbytes} bytes are not [{n}, {k}] of {bits} bits in blocks of {block}")
    blocks = -(-k // block)
    zeros = c.optional(3)
    if zeros is not None and zeros.dtype.is_float:
        y = c(ops.MatMul(), x, c.transpose(_scaled_blocks(c, packed, scales, zeros, (n, k, block), bits), (1, 0)))
        return _biased(c, y)
    if zeros is None:
        points = c.builder.constant(np.full((n, blocks), 1 << (bits - 1), np.uint8), "zero")
    else:
        data = c.constant(3)
        if data is None:
            raise c.unsupported("zero points that are not constant")
        points = c.builder.constant(_unpacked(data.reshape(n, -1), bits)[:, :blocks], "zero")
    weights = c.builder.constant(_unpacked(packed.reshape(n, -1), bits)[:, :k], "weights")
    real = c(ops.Dequantize(1, block), weights, c.reshape(scales, (n, blocks)), points)
    return _biased(c, c(ops.MatMul(), x, c.transpose(real, (1, 0))))


def _biased(c: Context, y: Value) -> Value:
    bias = c.optional(5) if c.count > 5 else None
    return y if bias is None else c.add(y, bias)


def _scaled_blocks(
    c: Context, packed: Any, scales: Value, zeros: Value, sizes: tuple[int, int, int], bits: int
) -> Value:
    """[N, K] of floats, from numbers whose zero points are floats."""
    n, k, block = sizes
    blocks = -(-k // block)
    numbers = c.builder.constant(_unpacked(packed.reshape(n, -1), bits).reshape(n, blocks, block), "weights")
    factor, zero = (c.reshape(v, (n, blocks, 1)) for v in (scales, zeros))
    real = c.mul(c.sub(c.cast(numbers, scales.dtype), c.cast(zero, scales.dtype)), factor)
    return c.slice(c.reshape(real, (n, blocks * block)), 1, 0, k)


def _unpacked(data: Any, bits: int) -> Any:
    """[N, bytes] as [N, numbers] of uint8."""
    data = np.asarray(data).view(np.uint8)
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.ascontiguousarray(np.stack(parts, -1).reshape(data.shape[0], -1))


# -- weights of few bits, and recurrent layers over weights of 8 bits -------------------------------------------------


@contrib_op("GatherBlockQuantized", attributes="bits block_size gather_axis quantize_axis")
def gather_block_quantized(c: Context) -> Value:
    """Rows of a table in blocks along `quantize_axis`, each with a scale and a zero point, as floats; numbers of 4 bits
    that come as uint8 are packed in pairs along the last axis. Only the rows that are taken become floats."""
    data, indices, scales, zeros = c.value(0), c.value(1), c.value(2), c.optional(3)
    rank, bits = len(data.shape), c.integer("bits", 4)
    axis, along = axis_of(c.integer("gather_axis"), rank), axis_of(c.integer("quantize_axis", 1), rank)
    packed = data.dtype == dt.uint8
    if not data.dtype.is_integer or (packed and bits not in (4, 8)):
        raise c.unsupported(f"a table of {bits} bits in {data.dtype}")
    if axis == along:
        raise c.unsupported("attribute 'gather_axis', which is that of the blocks")
    indices = c.indices(indices, data.shape[axis])

    def taken(x: Value) -> Value:
        x = c.gather(x, indices, axis)
        return _halves(c, x) if packed and bits == 4 and x.dtype == dt.uint8 else x

    rows, factors = taken(data), c.gather(scales, indices, axis)
    points = None if zeros is None else taken(zeros)
    along = along + len(indices.shape) - 1 if along > axis else along
    if points is None and packed:
        points = c(ops.Fill(dt.uint8, factors.shape, 1 << (bits - 1)))
    elif points is not None and points.shape != factors.shape:  # the last pair may be half empty
        points = c.slice(points, -1, 0, factors.shape[-1])
    return c(ops.Dequantize(along, c.integer("block_size", 128)), rows, factors, points)


def _halves(c: Context, x: Value) -> Value:
    """Both numbers of 4 bits of each uint8, the lower first: the last axis doubles."""
    low, high = c(ops.BitwiseAnd(), x, 15), c.div(x, 16)
    pairs = c.concat([c.reshape(v, (*v.shape, 1)) for v in (low, high)], len(x.shape))
    return c.reshape(pairs, (*x.shape[:-1], as_dim(dim_expr(x.shape[-1]) * 2)))


@contrib_op(
    "DynamicQuantizeLSTM",
    attributes="activation_alpha activation_beta activations clip direction hidden_size input_forget",
    outputs=(0, 1, 2),
)
def dynamic_lstm(c: Context) -> Any:
    """Weights W and R, [directions, inputs, 4 · hidden] of 8 bits, by their scales and zero points. The layer itself
    computes in floats: what ONNX Runtime rounds to 8 bits anew in every step is exact here."""
    other = copy(c)
    other.op_type = "LSTM"
    other.operands = list(c.operands[:8])
    for k, scale in ((1, 8), (2, 10)):
        real = c.cast(c.value(k), dt.float32)
        factor, zero = (_per_column(c, c.value(n)) for n in (scale, scale + 1))
        real = c.mul(c.sub(real, c.cast(zero, dt.float32)), factor)
        other.operands[k] = c.transpose(real, (0, 2, 1))
    return recurrent(other)


def _per_column(c: Context, x: Value) -> Value:
    """[directions] or [directions, columns] next to [directions, rows, columns]."""
    return c.reshape(x, (x.shape[0], 1, 1 if len(x.shape) == 1 else x.shape[1]))
