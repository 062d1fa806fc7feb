"""The scores of an attention, and what is done to them between its two products."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.graph.nodes import Node, Value
from weft.graph.rewrite import Rewriter
from weft_ops.arithmetic import Add, Cast, Divide, Multiply, Subtract, Where
from weft_ops.comparison import IsNan
from weft_ops.contraction import MatMul
from weft_ops.movement import Reshape, Transpose
from weft_ops.normalization import Softmax
from weft_ops.passes.attention_views import Groups, Shape, equal, keeps, refined, rows_first, swap, view_of
from weft_ops.passes.simplify_algebra import all_equal, scalar_of
from weft_ops.reduction import ReduceMax, ReduceSum
from weft_ops.transcendental import Exp

DEPTH = 16
"""The most nodes that are looked through between the products of an attention."""


@dataclass(frozen=True)
class Part:
    """A value, the shape in which it is read, and how the scores depend on it.

    Shapes of parts broadcast to that of the scores, but for the last axis of q and the last two of keys. Of a term that
    is added, `factor` multiplies it. Of one that is chosen by (of bool), `inverted`: scores where it is false.
    """

    value: Value
    shape: Shape
    inverted: bool = False
    factor: float = 1.0
    turned: bool = False  # its last two axes are exchanged in the graph


@dataclass(frozen=True)
class Scores:
    """The first product, and what is done to it: times `scale` and the `factors` (a number for each row), then the
    terms in order.

    `shape` is the finest in which the graph views the scores: [lead…, s, t].
    """

    q: Part
    keys: Part  # of shape [lead…, 1, d]; its value is transposed: [lead…, d, t]
    shape: Shape
    scale: float = 1.0
    factors: tuple[Part, ...] = ()
    terms: tuple[Part, ...] = ()
    fill: float | None = None


def find_weights(r: Rewriter, value: Value, turned: bool) -> tuple[Scores, str] | None:
    """The scores behind the weights of a second product, and what becomes of NaNs of their softmax.

    Args:
        turned: the weights are [..., t, s].
    """
    blank, uses = "nan", 1
    for _ in range(DEPTH):
        node = r.producer(value, Reshape, Transpose, Cast, Where, Softmax, Divide)
        x = node.inputs[0] if node is not None else None
        if node is None or x is None or r.uses(value) > uses:
            return None
        axis = len(value.shape) - (2 if turned else 1)
        uses = 1
        if type(node.op) is Softmax:
            scores = find_scores(r, x, turned) if node.op.axis % len(value.shape) == axis else None
            return None if scores is None else (scores, blank)
        if isinstance(node.op, Divide):
            shifted = _softmax_by_parts(r, node, axis)
            scores = None if shifted is None else find_scores(r, shifted, turned, uses=2)
            return None if scores is None else (scores, blank)
        if isinstance(node.op, Where):
            _, zero, weights = node.inputs
            asked = r.producer(x, IsNan)
            if asked is None or weights is None or asked.inputs[0] is not weights or not all_equal(zero, 0.0):
                return None
            value, blank, uses = weights, "zero", 2
        elif isinstance(node.op, Transpose) and node.op.axes == swap(len(value.shape)):
            value, turned = x, not turned
        elif (isinstance(node.op, Cast) and x.dtype.is_float) or (
            isinstance(node.op, Reshape) and keeps(x.shape, value.shape, turned)
        ):
            value = x
        else:
            return None
    return None


def _softmax_by_parts(r: Rewriter, node: Node, axis: int) -> Value | None:
    """Of e^(x - max) / Σ e^(x - max) along an axis the x, if nothing else uses what lies between."""
    exps, total = node.inputs
    power = r.producer(exps, Exp)
    shifted = r.producer(power.inputs[0], Subtract) if power is not None else None
    if exps is None or power is None or shifted is None or r.uses(exps) > 2 or r.uses(shifted.output) > 1:
        return None
    x, greatest = shifted.inputs
    for value, kind, of in ((total, ReduceSum, exps), (greatest, ReduceMax, x)):
        found = r.producer(value, kind)
        if found is None or not isinstance(found.op, kind) or found.inputs[0] is not of or not found.op.keepdims:
            return None
        if tuple(a % len(exps.shape) for a in found.op.axes or ()) != (axis,):
            return None
    return x


def find_scores(r: Rewriter, value: Value, turned: bool = False, depth: int = DEPTH, uses: int = 1) -> Scores | None:
    """The first product of an attention behind masks and factors, if nothing else uses what lies between; builds
    nothing.

    Args:
        turned: the scores are [..., t, s].
        depth: how many nodes may lie between.
        uses: how often the value is used.
    """
    node = r.producer(value)
    if node is None or depth < 0 or r.uses(value) > uses or len(node.outputs) != 1 or not value.dtype.is_float:
        return None
    a, b, *_ = (*node.inputs, None, None)
    shape = value.shape
    if isinstance(node.op, MatMul):
        if a is None or b is None or node.op.dtype is not None or min(len(a.shape), len(b.shape)) < 2:
            return None
        q, keys = (b, a) if turned else (a, b)
        if keys.constant is not None:
            return None
        d = a.shape[-1]
        return Scores(
            Part(q, (*q.shape[:-2], shape[-1 if turned else -2], d), turned=turned),
            Part(keys, (*keys.shape[:-2], 1, d), turned=not turned),
            rows_first(shape, turned),
        )
    if isinstance(node.op, (Multiply, Divide)):
        pairs = [(a, b), (b, a)] if isinstance(node.op, Multiply) else [(a, b)]
        for x, c in pairs:
            if x is None or c is None or not equal(x.shape, shape):
                continue
            inner = find_scores(r, x, turned, depth - 1)
            if inner is not None:
                return _multiplied(inner, c, shape, turned, isinstance(node.op, Divide))
        return None
    if isinstance(node.op, Add):
        return _changed(r, a, b, value, turned, depth) or _changed(r, b, a, value, turned, depth)
    if isinstance(node.op, Subtract):
        return _changed(r, a, b, value, turned, depth, factor=-1.0)
    if isinstance(node.op, Where):
        _, _, c = node.inputs
        if a is None or b is None or c is None:
            return None
        for x, other, inverted in ((b, c, False), (c, b, True)):
            fill = scalar_of(other)
            inner = _changed(r, x, a, value, turned, depth, inverted) if fill is not None else None
            if inner is not None and inner.fill in (None, fill):
                return replace(inner, fill=fill)
        return None
    if a is None:
        return None
    if isinstance(node.op, Reshape) and keeps(a.shape, shape, turned):
        return find_scores(r, a, turned, depth - 1)
    if isinstance(node.op, Transpose) and node.op.axes == swap(len(shape)):
        return find_scores(r, a, not turned, depth - 1)
    if isinstance(node.op, Cast) and a.dtype.is_float and a.dtype.bits <= value.dtype.bits:
        return find_scores(r, a, turned, depth - 1)
    return None


def _multiplied(inner: Scores, c: Value, view: Shape, turned: bool, divided: bool) -> Scores | None:
    """The scores times `c` (or divided by it): a number, or numbers of rows before there are terms."""
    factor = scalar_of(c)
    if factor:
        factor = 1 / factor if divided else factor
        terms = tuple(t if t.value.dtype.is_bool else replace(t, factor=t.factor * factor) for t in inner.terms)
        fill = None if inner.fill is None else inner.fill * factor
        return replace(inner, scale=inner.scale * factor, terms=terms, fill=fill)
    joined = in_view(inner, rows_first(view, turned))
    shape = rows_first(c.shape, turned)
    if factor is not None or inner.terms or joined is None or shape[-1] != 1:
        return None
    scores, groups = joined
    lead = view_of(shape[:-1], groups)
    if lead is None:
        return None
    return replace(scores, factors=(*scores.factors, Part(c, (*lead, 1), inverted=divided, turned=turned)))


def _changed(
    r: Rewriter, x: Value | None, term: Value | None, value: Value, turned: bool, depth: int, inverted: bool = False,
    factor: float = 1.0,
) -> Scores | None:  # fmt: skip
    """The scores `x` with one more term, if the term leaves their shape."""
    if x is None or term is None or not equal(x.shape, value.shape):
        return None
    inner = find_scores(r, x, turned, depth - 1)
    joined = None if inner is None else in_view(inner, rows_first(value.shape, turned))
    if joined is None:
        return None
    scores, groups = joined
    shape = rows_first(term.shape, turned)
    lead = view_of(shape[:-1], groups)
    if lead is None:
        return None
    part = Part(term, (*lead, shape[-1]), inverted, factor, turned)
    return replace(scores, terms=(*scores.terms, part))


def in_view(scores: Scores, view: Shape) -> tuple[Scores, Groups] | None:
    """The scores in a shape that is as fine as this view of them, and the axes of it that the view joins; None if there
    is none."""
    if equal(scores.shape[:-1], view[:-1]):
        return scores, [(d, (d,)) for d in view[:-1]]
    found = refined(scores.shape[:-1], view[:-1])
    if found is None:
        return None
    old, new = found
    parts: list[Part] = []
    for p in (scores.q, scores.keys, *scores.factors, *scores.terms):
        lead = view_of(p.shape[:-1], old)
        if lead is None:
            return None
        parts.append(replace(p, shape=(*lead, p.shape[-1])))
    count = 2 + len(scores.factors)
    shape = (*(d for _, axes in old for d in axes), scores.shape[-1])
    finer = replace(
        scores, q=parts[0], keys=parts[1], factors=tuple(parts[2:count]), terms=tuple(parts[count:]), shape=shape
    )
    return finer, new
