"""Operands of an attention as its operator reads them: without what exporters put between them and it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.nodes import Value
from weft.graph.rewrite import Rewriter
from weft.tensor.language import Dim
from weft_ops.arithmetic import Divide, Multiply
from weft_ops.gathering import Gather
from weft_ops.movement import BroadcastTo, Reshape, Slice, Transpose
from weft_ops.passes.attention_views import Shape, equal, swap
from weft_ops.passes.simplify_algebra import scalar_of

DEPTH = 16
"""The most nodes that are looked through in front of an attention."""


def unscaled(r: Rewriter, value: Value) -> tuple[Value, float]:
    """A value without a scaling that was made for it alone, and the scaling."""
    node = r.producer(value, Multiply, Divide)
    if node is None:
        return value, 1.0
    a, b = node.inputs
    for x, c in ((a, b), (b, a)) if isinstance(node.op, Multiply) else ((a, b),):
        factor = scalar_of(c)
        if x is not None and factor and equal(x.shape, value.shape):
            return x, factor if isinstance(node.op, Multiply) else 1 / factor
    return value, 1.0


def swapped(r: Rewriter, value: Value, depth: int = DEPTH) -> Value:
    """A value with its last two axes exchanged, without computing what an earlier exchange undoes, at most `depth`
    nodes before."""
    rank = len(value.shape)
    exchanged = swap(rank)
    node = r.producer(value) if depth else None
    before = node.inputs[0] if node is not None and node.inputs else None
    if node is not None and before is not None:
        if isinstance(node.op, Transpose):
            axes = tuple(node.op.axes[a] for a in exchanged)
            return before if axes == tuple(range(rank)) else r.add(Transpose(axes), before)
        if isinstance(node.op, Reshape) and len(before.shape) > 2 and equal(before.shape[-2:], value.shape[-2:]):
            return viewed(r, swapped(r, before, depth - 1), (*value.shape[:-2], *before.shape[:-3:-1]))
        if isinstance(node.op, (Multiply, Divide)):
            inner, factor = unscaled(r, value)
            if inner is not value:
                turned = swapped(r, inner, depth - 1)
                return r.add(Multiply(), turned, r.constant(factor, "scale", like=turned))
    return r.add(Transpose(exchanged), value)


def viewed(r: Rewriter, value: Value, shape: Shape) -> Value:
    """A value in another shape, without a view that was made before."""
    if equal(value.shape, shape):
        return value
    node = r.producer(value, Reshape)
    if node is not None and node.inputs[0] is not None:
        if equal(node.inputs[0].shape, shape):
            return node.inputs[0]
        value = node.inputs[0]
    return r.add(Reshape(shape), value)


def unrepeated(r: Rewriter, value: Value) -> Value | None:
    """Keys or values [..., g, t, d] of which `value` [..., h, t, d] is a repetition head by head; None if it is
    none."""
    spread = r.producer(value, BroadcastTo)
    source = spread.inputs[0] if spread is not None else None
    if spread is not None and source is not None and source.shape[-3:-2] == (1,):
        others = [(*x.shape[:-3], *x.shape[-2:]) for x in (source, value)]
        return source if equal(*others) else None
    merged = r.producer(value, Reshape)
    spread = r.producer(merged.inputs[0], BroadcastTo) if merged is not None else None
    source = spread.inputs[0] if spread is not None else None
    if spread is None or source is None or len(source.shape) != len(value.shape) + 1:
        return None
    wide, narrow = spread.output.shape, source.shape
    expected = (*narrow[:-3], wide[-3], *narrow[-2:])
    if (
        narrow[-3] != 1
        or not equal(wide, expected)
        or not equal(value.shape[:-3], narrow[:-4])
        or not equal(value.shape[-2:], narrow[-2:])
    ):
        return None
    return viewed(r, source, (*narrow[:-3], *narrow[-2:]))


def cut(r: Rewriter, value: Value) -> Value:
    """A part of a transposed tensor, cut before it is transposed, so that parts of one tensor need no copy of it; an
    axis of one element may go with the cut."""
    view = r.producer(value, Reshape)
    cut = r.producer(view.inputs[0] if view is not None else value, Slice, Gather)
    turned = r.producer(cut.inputs[0], Transpose) if cut is not None else None
    whole = turned.inputs[0] if turned is not None else None
    if cut is None or turned is None or whole is None:
        return value
    assert isinstance(turned.op, Transpose)
    shape, axes = turned.output.shape, turned.op.axes
    rank = len(shape)
    if isinstance(cut.op, Gather):
        index = scalar_of(cut.inputs[1])
        axis = cut.op.axis % rank
        if index is None or cut.inputs[1] is None or cut.inputs[1].constant is None or cut.inputs[1].constant.size != 1:
            return value
        if not isinstance(shape[axis], int) or not -shape[axis] <= index < shape[axis]:
            return value
        starts: list[Dim] = [0] * rank
        starts[axis] = int(index) % shape[axis]
        sizes: list[Dim] = [*shape[:axis], 1, *shape[axis + 1 :]]
        steps: list[Dim] = [1] * rank
    else:
        assert isinstance(cut.op, Slice)
        starts, sizes, steps = list(cut.op.starts), list(cut.op.sizes), list(cut.op.all_steps)
    left = [k for k in range(rank) if len(value.shape) == rank or sizes[k] != 1 or k != gone(sizes, value.shape)]
    if not equal(tuple(sizes[k] for k in left), value.shape):
        return value
    order = [axes.index(k) for k in range(rank)]
    part = r.add(Slice(*(tuple(x[k] for k in order) for x in (starts, sizes, steps))), whole)
    kept = [k for k in order if k in left]
    if len(kept) < rank:
        part = r.add(Reshape(tuple(sizes[k] for k in kept)), part)
    return r.add(Transpose(tuple(kept.index(k) for k in left)), part)


def gone(sizes: Sequence[Dim], shape: Shape) -> int | None:
    """Which axis of one element `shape` lacks."""
    return next(
        (k for k, d in enumerate(sizes) if d == 1 and equal((*sizes[:k], *sizes[k + 1 :]), shape)),
        None,
    )


def cut_last(r: Rewriter, value: Value) -> Value:
    """Heads cut out of one product of queries, keys and values: cut after the view as heads instead of before, so that
    the view needs no copy."""
    turned = r.producer(value, Transpose)
    view = r.producer(turned.inputs[0] if turned is not None else value, Reshape)
    cut = r.producer(view.inputs[0], Slice) if view is not None else None
    whole = cut.inputs[0] if cut is not None else None
    if view is None or cut is None or whole is None or not isinstance(cut.op, Slice):
        return value
    parts, size = cut.output.shape, view.output.shape[-1]
    rows, last, start = whole.shape[:-1], whole.shape[-1], cut.op.starts[-1]
    if (
        not isinstance(size, int)
        or not isinstance(last, int)
        or not isinstance(start, int)
        or size == 0
        or last % size
        or start % size
    ):
        return value
    if cut.op.all_steps[-1] != 1 or not equal(parts[:-1], rows) or not equal(view.output.shape[:-2], rows):
        return value
    heads = view.output.shape[-2]
    every = r.add(Reshape((*rows, last // size, size)), whole)
    starts = (*(0 for _ in rows), start // size, 0)
    part = r.add(Slice(starts, (*rows, heads, size), (1,) * (len(rows) + 2)), every)
    return r.add(turned.op, part) if turned is not None else part
