"""Rules for axes of one element, and for what only moves elements: reshapes that add or remove such axes, and
transpositions.

Formats differ in where these stand. The same net has its convolutions along one axis as such, or as convolutions along
two axes, one of them of one element; its bias and activation before the transposition to another layout, or after it.
These rules leave one form: convolutions without such an axis, and elementwise operators next to what they follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.graph.nodes import Node, TensorType, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Rewriter
from weft.graph.verify import same_dim
from weft.tensor.language import Dim
from weft_ops.activation import Relu, Sigmoid
from weft_ops.arithmetic import Absolute, Add, Multiply, Sqrt
from weft_ops.contraction import Conv
from weft_ops.movement import Pad, Reshape, Transpose
from weft_ops.reduction import ReduceSum, Reduction
from weft_ops.shapes import axis_of
from weft_ops.transcendental import Exp

Inputs = tuple["Value | None", ...]


def wide_axes(shape: Sequence[Dim]) -> list[int]:
    """The axes that may have more than one element."""
    return [k for k, d in enumerate(shape) if not (isinstance(d, int) and d == 1)]


def same_but_ones(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes differ only in axes of one element."""
    wide_a, wide_b = [a[k] for k in wide_axes(a)], [b[k] for k in wide_axes(b)]
    return len(wide_a) == len(wide_b) and all(same_dim(x, y) for x, y in zip(wide_a, wide_b))


def of_ones(node: Node | None) -> bool:
    """Whether a node is a reshape that adds or removes axes of one element only."""
    if node is None or not isinstance(node.op, Reshape) or node.inputs[0] is None:
        return False
    return same_but_ones(node.inputs[0].shape, node.output.shape)


def moved_axes(axes: Sequence[int | None], node: Node) -> list[int | None]:
    """What a transposition or a reshape of ones makes of a list with an entry for each axis of its operand."""
    source = node.inputs[0]
    assert source is not None
    if isinstance(node.op, Transpose):
        return [axes[k] for k in node.op.order(source.tensor.rank)]
    wide = iter([axes[k] for k in wide_axes(source.shape)])
    kept = set(wide_axes(node.output.shape))
    return [next(wide) if k in kept else None for k in range(node.output.tensor.rank)]


# -- transpositions ---------------------------------------------------------------------------------------------------


def transpose_of_moves(r: Rewriter, node: Node, inputs: Inputs) -> Value | None:
    """A transposition of a transposition with a reshape of ones between them is one, and such a reshape after it."""
    x = inputs[0]
    assert x is not None
    reshape = r.producer(x, Reshape)
    before = r.producer(reshape.inputs[0], Transpose) if reshape is not None and of_ones(reshape) else None
    if reshape is None or before is None or before.inputs[0] is None:
        return None
    source = before.inputs[0]
    rank = source.tensor.rank
    axes = moved_axes(moved_axes(list(range(rank)), before), reshape)
    assert isinstance(node.op, Transpose)
    after = iter([a for k in node.op.order(x.tensor.rank) if (a := axes[k]) is not None])
    wide = set(wide_axes(source.shape))
    order = tuple(next(after) if k in wide else k for k in range(rank))
    moved = source if order == tuple(range(rank)) else r.add(Transpose(order), source)
    return r.add(Reshape(node.output.shape), moved)


def reduces_in_any_order(op: Operator, order: Sequence[int], shape: Sequence[Dim]) -> bool:
    """Whether a reduction of what a transposition gives (of this shape) leaves axes in the order that they had before
    it: without the transposition the result is the same."""
    if not isinstance(op, Reduction) or op.axes is None or not all(isinstance(a, int) for a in op.axes):
        return False
    reduced = {axis_of(a, len(shape)) for a in op.axes if isinstance(a, int)}
    left = [order[k] for k in wide_axes(shape) if k not in reduced]
    return left == sorted(left)


def reduction_of_transpose(r: Rewriter, node: Node, inputs: Inputs) -> Any:
    """A reduction that leaves axes in the order that they had before a transposition needs none, if nothing else does:
    the mean of rows is computed with what else is computed of them."""
    op, before = node.op, r.producer(inputs[0], Transpose)
    if before is None or before.inputs[0] is None or len(inputs) != 1 or not r.single_use(before.output):
        return None
    assert isinstance(before.op, Transpose) and isinstance(op, Reduction)
    rank = before.output.tensor.rank
    order = before.op.order(rank)
    if not reduces_in_any_order(op, order, before.output.shape):
        return None
    axes = sorted(order[axis_of(a, rank)] for a in op.axes or () if isinstance(a, int))
    moved = r.add(replace(op, axes=tuple(axes)), before.inputs[0])
    return moved if moved.shape == node.output.shape else r.add(Reshape(node.output.shape), moved)


# -- elementwise operators --------------------------------------------------------------------------------------------


def _moves(r: Rewriter, value: Value) -> tuple[Value, list[Node]] | None:
    """The result of a contraction and what is computed of it element by element, and the transpositions and reshapes
    of ones, in order, that make `value` of it for the node at hand only; None: it is made otherwise."""
    path: list[Node] = []
    while True:
        node = r.producer(value, Reshape, Transpose)
        if node is None or node.inputs[0] is None or not r.single_use(value):
            break
        if isinstance(node.op, Reshape) and not of_ones(node):
            break
        path.append(node)
        value = node.inputs[0]
    if not path or not _of_contraction(value) or not r.single_use(value):
        return None
    return value, path[::-1]


def _of_contraction(value: Value) -> bool:
    """Whether a value is computed by a contraction, and of its result and constants element by element."""
    for _ in range(8):
        node = value.producer
        if node is None or node.op.kind == "contraction":
            return node is not None
        computed = [v for v in node.inputs if v is not None and v.constant is None]
        if node.op.kind != "elementwise" or len(computed) != 1:
            return False
        value = computed[0]
    return False


def _before(r: Rewriter, constant: Value, axes: Sequence[int | None], rank: int) -> Value | None:
    """A constant that broadcasts along `axes` (the anchor's, None for one element), as one along the anchor's."""
    data = constant.constant
    assert data is not None
    if data.size == 1:
        return r.constant(data.reshape(()), constant.name)
    if data.ndim > len(axes):
        return None
    whole = data.reshape((1,) * (len(axes) - data.ndim) + data.shape)
    wide = [k for k, n in enumerate(whole.shape) if n != 1]
    targets = [axes[k] for k in wide]
    if None in targets:
        return None
    order = np.argsort(np.array(targets))
    shape = [1] * rank
    for k, target in zip(wide, targets):
        assert target is not None
        shape[target] = whole.shape[k]
    moved = whole.reshape([whole.shape[k] for k in wide]).transpose([int(k) for k in order])
    return r.constant(np.ascontiguousarray(moved.reshape(shape)), constant.name)


def elementwise_of_moves(r: Rewriter, node: Node, inputs: Inputs) -> Any:
    """What is computed element by element of the moved result of a contraction comes before the moves: it can then be
    part of the contraction."""
    if node.op.kind != "elementwise" or len(node.outputs) != 1:
        return None
    computed = [v for v in inputs if v is not None and v.constant is None]
    if len(computed) != 1 or computed[0].shape != node.output.shape:
        return None
    found = _moves(r, computed[0])
    if found is None:
        return None
    anchor, path = found
    rank = anchor.tensor.rank
    axes: list[int | None] = list(range(rank))
    for move in path:
        axes = moved_axes(axes, move)
    new: list[Value | None] = []
    for v in inputs:
        given = v
        if v is computed[0]:
            given = anchor
        elif v is not None:
            given = _before(r, v, axes, rank)
            if given is None:
                return "a constant varies along an axis that the product does not have"
        new.append(given)
    if not _gives(node.op, new, anchor.shape):
        return "the operands do not give the result its shape"
    result = r.add(node.op, *new)
    for move in path:
        result = r.add(Reshape(move.output.shape) if isinstance(move.op, Reshape) else move.op, result)
    return result


def _gives(op: Operator, inputs: Sequence[Value | None], shape: Sequence[Dim]) -> bool:
    try:
        (found,) = op.infer_checked(inputs)
    except WeftError:
        return False
    return isinstance(found, TensorType) and found.shape == tuple(shape)


def pad_of_reshape(r: Rewriter, node: Node, inputs: Inputs) -> Any:
    """A reshape of ones comes after padding that repeats elements, which then follows what makes them. (Padding with a
    number is left where a convolution may take it in.)"""
    reshape = r.producer(inputs[0], Reshape)
    assert isinstance(node.op, Pad)
    if reshape is None or not of_ones(reshape) or node.op.mode == "constant" or reshape.inputs[0] is None:
        return None
    pairs, source = node.op.pairs(node.output.tensor.rank), reshape.inputs[0]
    wide = wide_axes(reshape.output.shape)
    if any(pairs[k] != (0, 0) for k in range(len(pairs)) if k not in wide):
        return "an axis of one element is padded"
    moved: list[tuple[Dim, Dim]] = [(0, 0)] * source.tensor.rank
    for k, axis in zip(wide, wide_axes(source.shape)):
        moved[axis] = pairs[k]
    pads = (*(before for before, _ in moved), *(after for _, after in moved))
    return r.add(Reshape(node.output.shape), r.add(replace(node.op, pads=pads), source, *inputs[1:]))


# -- convolutions -----------------------------------------------------------------------------------------------------


def _without(r: Rewriter, x: Value, axis: int) -> tuple[Value, tuple[int, ...]] | None:
    """What becomes `x` by a reshape of ones, without `axis`, and the order in which it is then transposed; None: no
    such reshape makes it."""
    order = tuple(range(x.tensor.rank))
    node = r.producer(x, Transpose, Reshape)
    if node is not None and isinstance(node.op, Transpose):
        order = node.op.order(x.tensor.rank)
        node = r.producer(node.inputs[0], Reshape)
    if node is None or not isinstance(node.op, Reshape) or node.inputs[0] is None:
        return None
    source, added = node.inputs[0], order[axis]
    if not of_ones(node):
        return None
    left = tuple(d for k, d in enumerate(node.output.shape) if k != added)
    if source.shape != left:
        source = r.add(Reshape(left), source)
    return source, tuple(k - (k > added) for k in order if k != added)


def conv_of_reshape(r: Rewriter, node: Node, inputs: Inputs) -> Any:
    """A convolution along an axis of one element that a reshape has added is one along the others. Not of one pixel:
    what it gives is the gate of a picture, with whose axes it is read."""
    op, x, weights = node.op, inputs[0], inputs[1]
    assert isinstance(op, Conv) and x is not None
    if not wide_axes(x.shape[2:]):
        return None
    if x.tensor.rank < 4 or weights is None or weights.constant is None or len(inputs) > 2:
        return None
    strides, pads, dilations = op.spatial(x.tensor.rank - 2)
    for k in range(x.tensor.rank - 2):
        if x.shape[k + 2] != 1 or weights.shape[k + 2] != 1 or pads[k] != (0, 0):
            continue
        found = _without(r, x, k + 2)
        if found is None:
            continue
        source, order = found
        if order != tuple(range(len(order))):
            source = r.add(Transpose(order), source)
        kept = [n for n in range(x.tensor.rank - 2) if n != k]
        edges = (*(pads[n][0] for n in kept), *(pads[n][1] for n in kept))
        narrow = replace(
            op, strides=tuple(strides[n] for n in kept), pads=edges, dilations=tuple(dilations[n] for n in kept)
        )
        data = weights.constant
        shape = [n for axis, n in enumerate(data.shape) if axis != k + 2]
        made = r.add(narrow, source, r.constant(data.reshape(shape), weights.name, like=weights))
        return r.add(Reshape(node.output.shape), made)
    return None


# -- terms ------------------------------------------------------------------------------------------------------------


def sums_products(value: Value | None) -> bool:
    """Whether a value is made by a sum of products, moved or not. Such a sum starts at 0.0, and the order of its terms
    is not determined: neither is the sign of a zero that terms give by underflow; all other zeros are 0.0."""
    while value is not None and value.producer is not None:
        op = value.producer.op
        if op.kind == "contraction":
            return value.dtype.is_float
        if not isinstance(op, (Reshape, Transpose)):
            return False
        value = value.producer.inputs[0]
    return False


def at_least_zero(value: Value | None) -> bool:
    """Whether no element is negative, as far as a few operators tell (an element may be NaN)."""
    for _ in range(8):
        node = value.producer if value is not None else None
        if node is None:
            return False
        if isinstance(node.op, (Sqrt, Relu, Sigmoid, Exp, Absolute)):
            return True
        if isinstance(node.op, Multiply) and node.inputs[0] is node.inputs[1]:
            return True
        if not isinstance(node.op, (Reshape, Transpose, ReduceSum)):
            return False
        value = node.inputs[0]
    return False


def negligible_term(r: Rewriter, node: Node, inputs: Inputs) -> Any:
    """x + a + b is x + a, if x is at least 0, and a positive so much greater than b that every sum rounds to it."""
    for value, term in (inputs, inputs[::-1]):
        added = r.producer(value, Add) if value is not None and value.dtype.is_float else None
        if added is None or value is None or term is None or term.constant is None or term.constant.size != 1:
            continue
        for x, first in (added.inputs, added.inputs[::-1]):
            if first is None or first.constant is None or first.constant.size != 1 or not at_least_zero(x):
                continue
            a, b = first.constant.reshape(()), np.abs(term.constant.reshape(()))
            if a.dtype.kind != "f" or b.dtype != a.dtype:
                continue
            # Half the distance to the next number below: every sum is at least a.
            if a > 0 and b.astype(np.float64) < float(a - np.nextafter(a, a.dtype.type(0))) / 2:
                return value if value.type == node.output.type else "the result is broadcast to another shape"
    return None
