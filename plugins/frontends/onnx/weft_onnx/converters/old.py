"""Operators as they were before operator set 7: operands broadcast by attributes, and modes that have gone."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_onnx.converters.contraction import gemm
from weft_onnx.converters.network import average_pool
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of

OLD = (1, 6)
_BINARY: dict[str, type[Operator]] = {
    "Add": ops.Add, "Sub": ops.Subtract, "Mul": ops.Multiply, "Div": ops.Divide, "Pow": ops.Power,
    "And": ops.LogicalAnd, "Or": ops.LogicalOr,
    "Xor": ops.LogicalXor, "Equal": ops.Equal, "Less": ops.Less, "Greater": ops.Greater,
}  # fmt: skip


@onnx_op(*_BINARY, versions=OLD)
def binary(c: Context) -> Value:
    """With `broadcast`, the second operand's axes are those of the first from `axis` on, or the last ones; without,
    shapes are equal."""
    a, b = c.value(0), c.value(1)
    if c.flag("broadcast") and c.has("axis"):
        axis = axis_of(c.integer("axis"), len(a.shape))
        if axis + len(b.shape) > len(a.shape):
            raise c.error(f"{len(b.shape)} axes from {axis} on are not in a tensor of {len(a.shape)}")
        b = c.reshape(b, (*b.shape, *(1 for _ in range(len(a.shape) - axis - len(b.shape)))))
    elif not c.flag("broadcast") and len(a.shape) != len(b.shape):
        raise c.error(
            f"takes operands of one shape without broadcast, got {list(map(str, a.shape))} and"
            f" {list(map(str, b.shape))}"
        )
    if c.op_type == "Div" and b.dtype.is_integer:
        b = c.nonzero(b, "the divisor")
    return c(_BINARY[c.op_type](), a, b)


@onnx_op("PRelu", versions=OLD)
def prelu(c: Context) -> Value:
    """One slope for all, or one per channel, the second axis."""
    x, slope = c.value(0), c.value(1)
    if len(slope.shape) == 1 and slope.shape[0] != 1:
        slope = c.reshape(slope, (slope.shape[0], *(1 for _ in x.shape[2:])))
    return c(ops.PRelu(), x, slope)


@onnx_op("BatchNormalization", versions=OLD)
def batch_normalization(c: Context) -> Any:
    if not c.flag("is_test"):
        raise c.unsupported("training mode before version 14")
    if not c.flag("spatial", True):
        raise c.unsupported("moments of each place, not of each channel")
    return c(ops.BatchNorm(c.real("epsilon", 1e-5)), *(c.value(k) for k in range(5)))


onnx_op("AveragePool", versions=OLD)(average_pool)
onnx_op("Gemm", versions=OLD)(gemm)
