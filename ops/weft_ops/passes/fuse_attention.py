"""Finds attention in the operators that exporters write: two products with a softmax between them become one operator.

The match starts at the second product and walks back: weights (perhaps with NaN rows put to zero), softmax over the
last axis, then masks added or chosen and scalings, in any order that keeps the meaning, to the first product. Its right
operand is read as keys, whichever way it was transposed; scalings on either side of it join; heads that were repeated
for grouped queries are read once; views of leading axes are looked through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities, is_claimed
from weft.tensor.language import Dim
from weft_ops.arithmetic import Add, Divide, Multiply, Where
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.comparison import IsNan, LogicalNot
from weft_ops.contraction import MatMul
from weft_ops.movement import BroadcastTo, Reshape, Slice, Transpose
from weft_ops.normalization import Softmax
from weft_ops.passes.simplify_algebra import all_equal, scalar_of
from weft_ops.shapes import same

Shape = tuple[Dim, ...]
DEPTH = 16
"""The most nodes that are looked through between the products of an attention, and in front of one."""


def fuse_attention(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards no attention whose scores nothing else uses is spelled out, if the target claims
    ScaledDotProductAttention; else nothing changes.

    Results change by rounding only, but where a softmax of NaNs was put to zero and v is not finite.
    """
    if not is_claimed(ScaledDotProductAttention, (capabilities or Capabilities()).claims):
        return graph
    return rewrite(graph, _attention, on=(MatMul,))


@dataclass(frozen=True)
class Term:
    """What changes the scores: added, or (of bool) chosen by, with `fill` elsewhere; `inverted`: scores where it is
    false."""

    value: Value
    shape: Shape  # in which it is read
    inverted: bool = False


@dataclass(frozen=True)
class Scores:
    """The first product, and what is done to it: times `scale`, then the terms in order."""

    q: Value
    keys: Value  # transposed: [..., d, t]
    shape: Shape
    scale: float = 1.0
    terms: tuple[Term, ...] = ()
    fill: float | None = None


def _attention(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    assert isinstance(node.op, MatMul)
    if node.op.dtype is not None:
        return None
    weights, v = inputs
    if weights is None or v is None or not weights.dtype.is_float or weights.dtype.bits < 32 or len(weights.shape) < 3:
        return None
    if not _equal(weights.shape[:-2], v.shape[:-2]) or r.uses(weights) > 1:
        return None
    found = r.producer(weights, Reshape)
    if found is not None and found.inputs[0] is not None and _equal(found.inputs[0].shape[-2:], weights.shape[-2:]):
        weights = found.inputs[0]
    softmax, blank = _softmax(r, weights)
    if softmax is None or softmax.inputs[0] is None or len(weights.shape) < 3:
        return None
    scores = find_scores(r, softmax.inputs[0])
    if scores is None:
        return None
    lead = scores.shape[:-2]
    q, factor = _unscaled(r, scores.q)
    scale = scores.scale * factor
    keys, factor = _unscaled(r, _swapped(r, scores.keys))
    scale *= factor
    k, v = _with_lead(r, keys, lead), _with_lead(r, v, lead)
    k_once, v_once = _unrepeated(r, k), _unrepeated(r, v)
    if k_once is not None and v_once is not None and _equal(k_once.shape[:-2], v_once.shape[:-2]):
        k, v = k_once, v_once
    q, k, v = (_slice_last(r, x) for x in (_with_lead(r, q, lead), k, v))
    terms = []
    for t in scores.terms:
        value = t.value if _equal(t.value.shape, t.shape) else r.add(Reshape(t.shape), t.value)
        terms.append(r.add(LogicalNot(), value) if t.inverted else value)
    op = ScaledDotProductAttention(scale, -np.inf if scores.fill is None else scores.fill, blank)
    y: Value = r.add(op, q, k, v, *terms)
    return y if _equal(y.shape, node.output.shape) else r.add(Reshape(node.output.shape), y)


def _softmax(r: Rewriter, weights: Value) -> tuple[Node | None, str]:
    """The softmax over the last axis that makes the weights, and what becomes of its NaNs."""
    blank, uses = "nan", 1
    chosen = r.producer(weights, Where)
    if chosen is not None:
        condition, zero, weights_or_none = chosen.inputs
        asked = r.producer(condition, IsNan)
        if (
            asked is None
            or weights_or_none is None
            or asked.inputs[0] is not weights_or_none
            or not all_equal(zero, 0.0)
        ):
            return None, blank
        weights, blank, uses = weights_or_none, "zero", 2
    softmax = r.producer(weights, Softmax)
    if (
        softmax is None
        or type(softmax.op) is not Softmax
        or softmax.op.axis not in (-1, len(weights.shape) - 1)
        or r.uses(weights) > uses
    ):
        return None, blank
    return softmax, blank


def find_scores(r: Rewriter, value: Value, depth: int = DEPTH) -> Scores | None:
    """The first product of an attention behind masks and scalings, if nothing else uses what lies between; builds
    nothing.

    Args:
        depth: how many nodes may lie between.
    """
    node = r.producer(value)
    if node is None or depth < 0 or r.uses(value) > 1 or len(node.outputs) != 1:
        return None
    a, b, *_ = (*node.inputs, None, None)
    if isinstance(node.op, MatMul):
        if (
            a is None
            or b is None
            or node.op.dtype is not None
            or min(len(a.shape), len(b.shape)) < 3
            or not _equal(a.shape[:-2], b.shape[:-2])
        ):
            return None
        return Scores(a, b, value.shape)
    if isinstance(node.op, (Multiply, Divide)):
        pairs = [(a, b), (b, a)] if isinstance(node.op, Multiply) else [(a, b)]
        for x, c in pairs:
            factor = scalar_of(c)
            inner = find_scores(r, x, depth - 1) if factor and x is not None and _equal(x.shape, value.shape) else None
            if inner is not None and not inner.terms and factor is not None:
                return replace(
                    inner, scale=inner.scale * factor if isinstance(node.op, Multiply) else inner.scale / factor
                )
        return None
    if isinstance(node.op, Add):
        return _changed(r, a, b, value, depth) or _changed(r, b, a, value, depth)
    if isinstance(node.op, Where):
        _, _, c = node.inputs
        if a is None or b is None or c is None:
            return None
        for x, other, inverted in ((b, c, False), (c, b, True)):
            fill = scalar_of(other)
            inner = _changed(r, x, a, value, depth, inverted) if fill is not None else None
            if inner is not None and inner.fill in (None, fill):
                return replace(inner, fill=fill)
        return None
    if (
        isinstance(node.op, Reshape)
        and a is not None
        and _equal(a.shape[-2:], value.shape[-2:])
        and len(value.shape) > 2
    ):
        inner = find_scores(r, a, depth - 1)
        if inner is None:
            return None
        shapes = [_regrouped(t.shape, inner.shape, value.shape) for t in inner.terms]
        terms = tuple(replace(t, shape=s) for t, s in zip(inner.terms, shapes) if s is not None)
        return replace(inner, shape=value.shape, terms=terms) if len(terms) == len(shapes) else None
    return None


def _changed(
    r: Rewriter, x: Value | None, term: Value | None, value: Value, depth: int, inverted: bool = False
) -> Scores | None:
    """The scores `x` with one more term, if the term leaves their shape."""
    if x is None or term is None or not _equal(x.shape, value.shape):
        return None
    inner = find_scores(r, x, depth - 1)
    return None if inner is None else replace(inner, terms=(*inner.terms, Term(term, term.shape, inverted)))


def _equal(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def _regrouped(term: Shape, before: Shape, after: Shape) -> Shape | None:
    """The shape in which a term that broadcasts to scores `before` broadcasts to the same scores reshaped to `after`;
    None if it would need a copy."""
    lead, rows = term[:-2], term[-2:]
    old, new = [d for d in before[:-2] if d != 1], [d for d in after[:-2] if d != 1]
    if all(d == 1 for d in lead):
        return rows
    if not _equal(tuple(old), tuple(new)):
        return None
    padded = (1,) * (len(before) - 2 - len(lead)) + lead
    kept = iter([t for t, d in zip(padded, before[:-2]) if d != 1])
    return (*(1 if d == 1 else next(kept) for d in after[:-2]), *rows)


# -- operands ---------------------------------------------------------------------------------------------------------


def _unscaled(r: Rewriter, value: Value) -> tuple[Value, float]:
    """A value without a scaling that was made for it alone, and the scaling."""
    node = r.producer(value, Multiply, Divide)
    if node is None:
        return value, 1.0
    a, b = node.inputs
    for x, c in ((a, b), (b, a)) if isinstance(node.op, Multiply) else ((a, b),):
        factor = scalar_of(c)
        if x is not None and factor and _equal(x.shape, value.shape):
            return x, factor if isinstance(node.op, Multiply) else 1 / factor
    return value, 1.0


def _swapped(r: Rewriter, value: Value, depth: int = DEPTH) -> Value:
    """A value with its last two axes exchanged, without computing what an earlier exchange undoes, at most `depth`
    nodes before."""
    rank = len(value.shape)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    node = r.producer(value) if depth else None
    before = node.inputs[0] if node is not None and node.inputs else None
    if node is not None and before is not None:
        if isinstance(node.op, Transpose):
            axes = tuple(node.op.axes[a] for a in swap)
            return before if axes == tuple(range(rank)) else r.add(Transpose(axes), before)
        if isinstance(node.op, Reshape) and len(before.shape) > 2 and _equal(before.shape[-2:], value.shape[-2:]):
            return _with_lead(r, _swapped(r, before, depth - 1), value.shape[:-2])
        if isinstance(node.op, (Multiply, Divide)):
            inner, factor = _unscaled(r, value)
            if inner is not value:
                turned = _swapped(r, inner, depth - 1)
                return r.add(Multiply(), turned, r.constant(factor, "scale", like=turned))
    return r.add(Transpose(swap), value)


def _with_lead(r: Rewriter, value: Value, lead: Shape) -> Value:
    """A value with its axes before the last two in another shape."""
    shape = (*lead, *value.shape[-2:])
    if _equal(value.shape, shape):
        return value
    node = r.producer(value, Reshape)
    if node is not None and node.inputs[0] is not None:
        if _equal(node.inputs[0].shape, shape):
            return node.inputs[0]
        value = node.inputs[0]
    return r.add(Reshape(shape), value)


def _unrepeated(r: Rewriter, value: Value) -> Value | None:
    """Keys or values [..., g, t, d] of which `value` [..., h, t, d] is a repetition head by head; None if it is
    none."""
    merged = r.producer(value, Reshape)
    spread = r.producer(merged.inputs[0], BroadcastTo) if merged is not None else None
    source = spread.inputs[0] if spread is not None else None
    if spread is None or source is None or len(source.shape) != len(value.shape) + 1:
        return None
    wide, narrow = spread.output.shape, source.shape
    expected = (*narrow[:-3], wide[-3], *narrow[-2:])
    if (
        narrow[-3] != 1
        or not _equal(wide, expected)
        or not _equal(value.shape[:-3], narrow[:-4])
        or not _equal(value.shape[-2:], narrow[-2:])
    ):
        return None
    return _with_lead(r, source, narrow[:-3])


def _slice_last(r: Rewriter, value: Value) -> Value:
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
    if cut.op.steps[-1] != 1 or not _equal(parts[:-1], rows) or not _equal(view.output.shape[:-2], rows):
        return value
    heads = view.output.shape[-2]
    every = r.add(Reshape((*rows, last // size, size)), whole)
    starts = (*(0 for _ in rows), start // size, 0)
    part = r.add(Slice(starts, (*rows, heads, size), (1,) * (len(rows) + 2)), every)
    return r.add(turned.op, part) if turned is not None else part
