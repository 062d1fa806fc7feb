"""Graph pass of the profiles for microcontrollers: convolutions and products of 8-bit integers as the operators of
`weft_c.byte_sums`, with packed weights and channels last.

A quantised product is Σ (a - z)·B, with a of 8 bits, z a constant and B constant, too: the operators take a itself, so
that values between kernels have 8 bits. Transpositions around them cancel with those that frontends write. Scales of
sums that stay small are `Rescale`, which takes fewer instructions than `FixedPointScale`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities
from weft_c.byte_sums import QUAD, ChannelSum, Rescale, WindowSum
from weft_ops import Add, Cast, Conv, FixedPointScale, MatMul, Maximum, Minimum, Multiply, Reshape, Subtract, Transpose
from weft_ops.composing import Composer

DEPTH = 16
"""How many operators are looked through for the range of a number."""
Array = np.ndarray[Any, Any]


def narrow_sums(graph: Graph, capabilities: Capabilities) -> Graph:
    """Afterwards no two-dimensional convolution or product of an 8-bit operand with constant 8-bit weights is left, but
    for convolutions in several groups of several channels."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        assert isinstance(node.op, (Conv, MatMul))
        x, w = inputs
        if x is None or w is None or w.constant is None or node.output.dtype != dt.int32 or x.constant is not None:
            return None
        core, zero = split_zero(r, x)
        if core.dtype not in (dt.int8, dt.uint8) or not isinstance(core.type, TensorType):
            return None
        if zero is not None and (zero.constant is None or zero.constant.size != 1):
            return None
        z = 0 if zero is None or zero.constant is None else int(zero.constant.reshape(()))
        weights = w.constant
        if not weights.size or weights.min() < -128 or weights.max() > 127 or not -(1 << 15) < z < 1 << 15:
            return None
        if isinstance(node.op, MatMul):
            return _product(r, core, weights, z, w.name)
        return _convolution(r, node.op, core, weights, z, w.name)

    return rewrite(rewrite(graph, rule, rounds=1, on=(Conv, MatMul)), _rescaled, rounds=1, on=(FixedPointScale,))


def split_zero(r: Rewriter, x: Value) -> tuple[Value, Value | None]:
    """`x`, of integers, as what it was widened from and the constant that was subtracted since (None: nothing)."""
    node = r.producer(x, Cast, Subtract)
    if node is None or x.dtype != dt.int32:
        return x, None
    a, b = (*node.inputs, None)[:2]
    zero = None
    if isinstance(node.op, Subtract):
        widened = r.producer(a, Cast)
        if a is None or a.shape != x.shape or widened is None:
            return x, None
        zero, a = b, widened.inputs[0]
    return (a, zero) if a is not None and a.dtype.is_integer and a.dtype.bits < 32 else (x, None)


def _rescaled(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    x, multiplier, shift = inputs
    if x is None or multiplier is None or shift is None or multiplier.constant is None or shift.constant is None:
        return None
    most = reach(r, x)
    if (shift.constant > 0).any() or (multiplier.constant < 0).any() or most is None or most >= 1 << 30:
        return None
    right = r.constant(-shift.constant, shift.name)
    return r.add(Rescale(bool((shift.constant < 0).all())), x, multiplier, right)


def reach(r: Rewriter, x: Value, depth: int = DEPTH) -> int | None:
    """The greatest magnitude that an integer may have, as far as dtypes and constants tell."""
    if x.constant is not None:
        return int(np.abs(x.constant.astype(np.int64)).max(initial=0)) if x.dtype.is_integer else None
    if x.dtype.is_integer and x.dtype.bits <= 16:
        return 1 << (x.dtype.bits - (x.dtype.kind == "int"))
    node = r.producer(x)
    if node is None or not depth or not x.dtype.is_integer:
        return None
    operands = [None if v is None else reach(r, v, depth - 1) for v in node.inputs]
    first = operands[0]
    if isinstance(node.op, (WindowSum, ChannelSum)) and node.inputs[1] is not None:
        weights = node.inputs[1].constant
        if weights is None or first is None:
            return None
        axes = tuple(range(1, weights.ndim)) if isinstance(node.op, ChannelSum) else (1, 3, 4)
        total = np.abs(weights.astype(np.int64)).sum(axes).max(initial=0)
        return int(total) * (first + abs(node.op.zero))
    if isinstance(node.op, (Cast, FixedPointScale, Reshape, Rescale, Transpose)):
        right = node.inputs[-1]
        grows = isinstance(node.op, FixedPointScale) and (
            right is None or right.constant is None or (right.constant > 0).any()
        )
        return None if grows else first
    if None in operands:
        return None
    known = [n for n in operands if n is not None]
    if isinstance(node.op, (Add, Subtract)):
        return sum(known)
    if isinstance(node.op, Multiply):
        return math.prod(known)
    return max(known) if isinstance(node.op, (Maximum, Minimum)) else None


def _product(r: Rewriter, x: Value, weights: Array, zero: int, name: str) -> Replacement:
    if x.tensor.rank != 2 or weights.ndim != 2 or not isinstance(x.shape[1], int):
        return None
    return r.add(WindowSum(zero=zero, results=weights.shape[1]), x, r.constant(packed(weights.T), name))


def _convolution(r: Rewriter, op: Conv, x: Value, weights: Array, zero: int, name: str) -> Replacement:
    channels = x.shape[1]
    if weights.ndim != 4 or not isinstance(channels, int):
        return None
    strides, pads, dilations = op.spatial(2)
    settings = weights.shape[2:], strides, pads, dilations, zero
    last = weights.transpose(0, 2, 3, 1)
    made: WindowSum | ChannelSum
    if op.groups == 1:
        made, data = WindowSum(*settings, len(last)), packed(last.reshape(len(last), -1))
    elif op.groups == channels == len(weights):
        made, data = ChannelSum(*settings), last[..., 0].astype(np.int8)
    else:
        return None
    c = Composer(r.builder_for_rule())
    y = c(made, c.transpose(x, (0, 2, 3, 1)), c.builder.constant(np.ascontiguousarray(data), name))
    return c.transpose(y, (0, 3, 1, 2))


def packed(rows: Array) -> Array:
    """Weights [results, length] as `WindowSum` has them: [groups, quads, beside, 2, 2]."""
    beside = 2 - len(rows) % 2
    filled = np.pad(rows, [(0, 0), (0, -rows.shape[1] % QUAD)]).astype(np.int8)
    return np.ascontiguousarray(filled.reshape(len(rows) // beside, beside, -1, 2, 2).transpose(0, 2, 1, 4, 3))


__all__ = ["narrow_sums", "packed"]
