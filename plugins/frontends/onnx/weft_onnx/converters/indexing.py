"""Elements taken and put by indices."""

from __future__ import annotations

from collections.abc import Sequence

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of
from weft_ops.words import REDUCTIONS


@onnx_op("Gather")
def gather(c: Context) -> Value:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    return c(ops.Gather(axis), x, c.indices(c.value(1), x.shape[axis]))


@onnx_op("GatherElements")
def gather_elements(c: Context) -> Value:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    return c(ops.GatherElements(axis), x, c.indices(c.value(1), x.shape[axis]))


def _places(c: Context, indices: Value, shape: Sequence[Dim]) -> Value:
    """Index vectors along the last axis of `indices`, into the first axes of `shape`."""
    count = indices.shape[-1] if indices.shape else 0
    if not isinstance(count, int) or count > len(shape):
        return indices  # which the operator refuses
    if len(set(shape[:count])) == 1:
        return c.indices(indices, shape[0])
    for k in range(count):
        indices = c.indices(indices, shape[k], c.slice(indices, -1, k, 1))
    return indices


@onnx_op("GatherND")
def gather_nd(c: Context) -> Value:
    x, first = c.value(0), c.integer("batch_dims")
    return c(ops.GatherND(first), x, _places(c, c.value(1), x.shape[first:]))


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(c: Context) -> Value:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    reduction = c.choice("reduction", "none", REDUCTIONS)
    return c(ops.ScatterElements(axis, reduction), x, c.indices(c.value(1), x.shape[axis]), c.value(2))


@onnx_op("ScatterND")
def scatter_nd(c: Context) -> Value:
    x = c.value(0)
    return c(ops.ScatterND(c.choice("reduction", "none", REDUCTIONS)), x, _places(c, c.value(1), x.shape), c.value(2))


@onnx_op("OneHot")
def one_hot(c: Context) -> Value:
    indices = c.value(0)
    depth = c.importer.demanded(c.operands[1])
    if depth is None:
        # A float depth is read as an integer.
        depths = c.sizes(c.whole(c.value(1)), "the depth")
    else:
        depths = depth.dims()
    if len(depths) != 1:
        raise c.error(f"the depth has {len(depths)} elements, expected one")
    return c(ops.OneHot(depths[0], c.integer("axis", -1)), indices, c.value(2))


@onnx_op("Trilu")
def trilu(c: Context) -> Value:
    k = c.signed(1, "k", clamped=True)
    return c(ops.Trilu(c.flag("upper", True), k[0] if k else 0), c.value(0))


@onnx_op("ReverseSequence")
def reverse_sequence(c: Context) -> Value:
    x, time = c.value(0), c.integer("time_axis", 0)
    lengths = c.within(c.value(1), 0, x.shape[axis_of(time, len(x.shape))], "length")
    return c(ops.ReverseSequence(time, c.integer("batch_axis", 1)), x, lengths)


@onnx_op("NonZero")
def non_zero(c: Context) -> Value:
    x = c.value(0)
    count = c.importer.demanded(c(ops.CountNonZero(), x))
    assert count is not None
    return c(ops.NonZero(count.dims()[0]), x)
