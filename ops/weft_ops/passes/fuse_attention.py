"""Finds attention in the operators that exporters write: two products with a softmax between them become one operator.

The match starts at the second product and walks back: weights (perhaps transposed, or with NaN rows put to zero),
softmax over the keys, then masks added or chosen, factors and casts, in any order that keeps the meaning, to the first
product. Scores may be viewed in several shapes on the way: operands and masks are read in the finest of them. Keys are
read whichever way they were transposed; factors on either side of the product join; heads that were repeated for
grouped queries are read once; operands cut out of a transposed tensor are cut before it is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities, is_claimed
from weft.tensor.language import Dim
from weft_ops.arithmetic import Add, Cast, Divide, Multiply, Subtract, Where
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.comparison import IsNan, LogicalNot
from weft_ops.contraction import MatMul
from weft_ops.gathering import Gather
from weft_ops.movement import BroadcastTo, Reshape, Slice, Transpose, common_runs
from weft_ops.normalization import Softmax
from weft_ops.passes.simplify_algebra import all_equal, scalar_of
from weft_ops.precision import compute_dtype
from weft_ops.reduction import ReduceMax, ReduceSum
from weft_ops.shapes import same
from weft_ops.transcendental import Exp

Shape = tuple[Dim, ...]
DEPTH = 16
"""The most nodes that are looked through between the products of an attention, and in front of one."""


def fuse_attention(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards no attention whose scores nothing else uses is spelled out, if the target claims
    ScaledDotProductAttention; else nothing changes.

    Results change by rounding only (scores of 16-bit floats are not rounded to them), but where a softmax of NaNs was
    put to zero and v is not finite. Products with constants stay, whose kernels pack them at compile time.
    """
    if not is_claimed(ScaledDotProductAttention, (capabilities or Capabilities()).claims):
        return graph
    return rewrite(graph, _attention, _transposed, on=(MatMul, Transpose))


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


def _attention(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    if not isinstance(node.op, MatMul):
        return None
    left, right = inputs
    if node.op.dtype is not None or left is None or right is None or min(len(left.shape), len(right.shape)) < 2:
        return None
    for weights, v, turned in ((left, right, False), (right, left, True)):
        if not weights.dtype.is_float or v.constant is not None:
            continue
        found = _weights(r, weights, turned)
        joined = None if found is None else _joined(found[0], _rows_first(weights.shape, turned))
        if found is None or joined is None:
            continue
        y = _built(r, *joined, v, turned, found[1])
        if y is None:
            continue
        shape = _rows_first(node.output.shape, turned)
        y = y if _equal(y.shape, shape) else r.add(Reshape(shape), y)
        return r.add(Transpose(_swap(len(shape))), y) if turned else y
    return None


def _transposed(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    """A result whose axes are joined and then transposed: they are joined afterwards, so that the kernel of the
    attention stores it transposed."""
    view = r.producer(inputs[0], Reshape) if isinstance(node.op, Transpose) else None
    made = r.producer(view.inputs[0], ScaledDotProductAttention) if view is not None else None
    if view is None or made is None or r.uses(view.output) > 1 or r.uses(made.output) > 1:
        return None
    assert isinstance(node.op, Transpose)
    found = _refined(made.output.shape, view.output.shape)
    if found is None or any(len(axes) > 1 for _, axes in found[0]):
        return None
    # Axes of one element that the view drops go to the front.
    kept = [k for k, (_, axes) in enumerate(found[0]) if axes]
    order = [k for k in range(len(found[0])) if k not in kept]
    places = iter(kept)
    joined = [[next(places) for _ in axes] for _, axes in found[1]]
    order += [k for axis in node.op.axes for k in joined[axis]]
    return r.add(Reshape(node.output.shape), r.add(Transpose(tuple(order)), made.output))


# -- from the second product to the first -----------------------------------------------------------------------------


def _weights(r: Rewriter, value: Value, turned: bool) -> tuple[Scores, str] | None:
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
        elif isinstance(node.op, Transpose) and node.op.axes == _swap(len(value.shape)):
            value, turned = x, not turned
        elif (isinstance(node.op, Cast) and x.dtype.is_float) or (
            isinstance(node.op, Reshape) and _keeps(x.shape, value.shape, turned)
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
            _rows_first(shape, turned),
        )
    if isinstance(node.op, (Multiply, Divide)):
        pairs = [(a, b), (b, a)] if isinstance(node.op, Multiply) else [(a, b)]
        for x, c in pairs:
            if x is None or c is None or not _equal(x.shape, shape):
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
    if isinstance(node.op, Reshape) and _keeps(a.shape, shape, turned):
        return find_scores(r, a, turned, depth - 1)
    if isinstance(node.op, Transpose) and node.op.axes == _swap(len(shape)):
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
    joined = _joined(inner, _rows_first(view, turned))
    shape = _rows_first(c.shape, turned)
    if factor is not None or inner.terms or joined is None or shape[-1] != 1:
        return None
    scores, groups = joined
    lead = _view(shape[:-1], groups)
    if lead is None:
        return None
    return replace(scores, factors=(*scores.factors, Part(c, (*lead, 1), inverted=divided, turned=turned)))


def _changed(
    r: Rewriter, x: Value | None, term: Value | None, value: Value, turned: bool, depth: int, inverted: bool = False,
    factor: float = 1.0,
) -> Scores | None:  # fmt: skip
    """The scores `x` with one more term, if the term leaves their shape."""
    if x is None or term is None or not _equal(x.shape, value.shape):
        return None
    inner = find_scores(r, x, turned, depth - 1)
    joined = None if inner is None else _joined(inner, _rows_first(value.shape, turned))
    if joined is None:
        return None
    scores, groups = joined
    shape = _rows_first(term.shape, turned)
    lead = _view(shape[:-1], groups)
    if lead is None:
        return None
    part = Part(term, (*lead, shape[-1]), inverted, factor, turned)
    return replace(scores, terms=(*scores.terms, part))


# -- views of the scores ----------------------------------------------------------------------------------------------

Groups = list[tuple[Dim, Shape]]
"""For each axis of a view its size, and the axes of a finer shape that it joins."""


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _rows_first(shape: Shape, turned: bool) -> Shape:
    """A shape of the scores, or one that broadcasts to them, as [..., s, t] where it is [..., t, s]; of two dimensions
    at least."""
    shape = (1,) * (2 - len(shape)) + shape
    return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


def _equal(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def _keeps(before: Shape, after: Shape, turned: bool) -> bool:
    """Whether a reshape of the scores leaves the axis of the keys as it is (turned: that of the queries, too)."""
    kept = 2 if turned else 1
    return min(len(before), len(after)) >= 2 and _equal(before[-kept:], after[-kept:])


def _joined(scores: Scores, view: Shape) -> tuple[Scores, Groups] | None:
    """The scores in a shape that is as fine as this view of them, and the axes of it that the view joins; None if there
    is none."""
    if _equal(scores.shape[:-1], view[:-1]):
        return scores, [(d, (d,)) for d in view[:-1]]
    found = _refined(scores.shape[:-1], view[:-1])
    if found is None:
        return None
    old, new = found
    parts: list[Part] = []
    for p in (scores.q, scores.keys, *scores.factors, *scores.terms):
        lead = _view(p.shape[:-1], old)
        if lead is None:
            return None
        parts.append(replace(p, shape=(*lead, p.shape[-1])))
    count = 2 + len(scores.factors)
    shape = (*(d for _, axes in old for d in axes), scores.shape[-1])
    finer = replace(
        scores, q=parts[0], keys=parts[1], factors=tuple(parts[2:count]), terms=tuple(parts[count:]), shape=shape
    )
    return finer, new


def _refined(a: Shape, b: Shape) -> tuple[Groups, Groups] | None:
    """The axes that each axis of two shapes of as many elements joins, of one shape of which both are views."""
    tail = 0
    while tail < min(len(a), len(b)) and same(a[-1 - tail], b[-1 - tail]):
        tail += 1
    groups: tuple[Groups, Groups] = ([], [])
    for runs in common_runs(a[: len(a) - tail], b[: len(b) - tail]):
        sizes = [shape[run.start : run.stop] for shape, run in zip((a, b), runs)]
        x, y = (tuple(d for d in s if d != 1) for s in sizes)
        if not (min(len(x), len(y)) == 1 or _equal(x, y)):
            return None
        for own, other, dims, result in ((x, y, sizes[0], groups[0]), (y, x, sizes[1], groups[1])):
            for d in dims:
                result.append((d, () if d == 1 else other if len(own) == 1 else (d,)))
    kept: Groups = [(d, (d,)) for d in a[len(a) - tail :]]
    return groups[0] + kept, groups[1] + kept


def _view(shape: Shape, groups: Groups) -> Shape | None:
    """In the finer shape what broadcasts to a view; None if an axis would need a copy."""
    extra = len(shape) - len(groups)
    if any(d != 1 for d in shape[: max(extra, 0)]):
        return None
    result: list[Dim] = []
    for d, (size, axes) in zip((1,) * -extra + shape[max(extra, 0) :], groups):
        if d == 1:
            result += [1] * len(axes)
        elif len(axes) == 1:
            result.append(d)
        elif same(d, size) is not False:  # sizes that must agree when run
            result += axes
        else:
            return None
    return tuple(result)


# -- operands ---------------------------------------------------------------------------------------------------------


def _built(r: Rewriter, scores: Scores, groups: Groups, v: Value, turned: bool, blank: str) -> Value | None:
    """The operator, [lead…, s, e]; None if dtypes or shapes do not allow it.

    Args:
        groups: the axes that those of v's product join.
        turned: v is [..., e, t].
    """
    dtype, wide = v.dtype, compute_dtype(v.dtype)
    lead, parts = scores.shape[:-2], (*scores.factors, *scores.terms)
    v_lead = _view((*v.shape[:-2], 1), groups)
    if v_lead is None or scores.q.value.dtype.bits > dtype.bits:
        return None
    if any(p.value.dtype.is_float and p.value.dtype.bits > wide.bits for p in parts):
        return None
    if any(p.value.dtype != dtype for p in scores.factors):
        return None
    q, scale = _unscaled(r, scores.q.value)
    q = _swapped(r, q) if scores.q.turned else q
    keys, factor = _unscaled(r, _swapped(r, scores.keys.value) if scores.keys.turned else scores.keys.value)
    scale *= scores.scale * factor
    v = _swapped(r, v) if turned else v
    k_lead, v_lead = scores.keys.shape[:-2], v_lead[:-1]
    k_once, v_once = _unrepeated(r, keys), _unrepeated(r, v)
    if k_once is not None and v_once is not None and lead and _same_heads(k_once, v_once):
        # Heads of keys that share an axis with nothing else.
        if same(k_lead[-1], keys.shape[-3]) and same(v_lead[-1], v.shape[-3]):
            k_lead, v_lead = (*k_lead[:-1], k_once.shape[-3]), (*v_lead[:-1], v_once.shape[-3])
            keys, v = k_once, v_once
    lead, k_lead, v_lead, q_lead = (x or (1,) for x in (lead, k_lead, v_lead, scores.q.shape[:-2]))
    heads = [lead[-1] if (k_lead[-1] == 1) != (v_lead[-1] == 1) else x[-1] for x in (k_lead, v_lead)]
    q = _placed(r, q, (*q_lead, *scores.q.shape[-2:]), lead)
    keys = _placed(r, keys, (*k_lead, *keys.shape[-2:]), (*lead[:-1], heads[0]))
    v = _placed(r, v, (*v_lead, *v.shape[-2:]), (*lead[:-1], heads[1]))
    q, keys = (x if x.dtype == dtype else r.add(Cast(dtype), x) for x in (q, keys))
    for p in scores.factors:
        q = r.add(Divide() if p.inverted else Multiply(), q, _read(r, p))
    terms = [_read(r, p) for p in scores.terms]
    terms = [r.add(LogicalNot(), t) if p.inverted else t for t, p in zip(terms, scores.terms)]
    terms = [
        t if p.factor == 1.0 or t.dtype.is_bool else r.add(Multiply(), t, r.constant(p.factor, "factor", like=t))
        for t, p in zip(terms, scores.terms)
    ]
    op = ScaledDotProductAttention(scale, -np.inf if scores.fill is None else scores.fill, blank)
    return r.add(op, q, keys, v, *terms)


def _same_heads(a: Value, b: Value) -> bool:
    return len(a.shape) == len(b.shape) and _equal(a.shape[:-2], b.shape[:-2])


def _read(r: Rewriter, part: Part) -> Value:
    """The value of a part in the shape in which it is read."""
    value, shape = part.value, part.shape
    if part.turned and len(value.shape) > 1:
        value = r.add(Transpose(_swap(len(value.shape))), value)
    while len(shape) > len(value.shape) and shape[0] == 1:
        shape = shape[1:]
    return value if _equal(value.shape, shape) else r.add(Reshape(shape), value)


def _placed(r: Rewriter, value: Value, shape: Shape, lead: Shape) -> Value:
    """An operand in this shape, repeated where its axes in front of the last two have one element and those of `lead`
    more."""
    value = _viewed(r, _cut(r, _cut_last(r, value)), shape)
    wide = (*(b if a == 1 else a for a, b in zip(shape[:-2], lead)), *shape[-2:])
    return value if _equal(wide, shape) else r.add(BroadcastTo(wide), value)


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
            return _viewed(r, _swapped(r, before, depth - 1), (*value.shape[:-2], *before.shape[:-3:-1]))
        if isinstance(node.op, (Multiply, Divide)):
            inner, factor = _unscaled(r, value)
            if inner is not value:
                turned = _swapped(r, inner, depth - 1)
                return r.add(Multiply(), turned, r.constant(factor, "scale", like=turned))
    return r.add(Transpose(swap), value)


def _viewed(r: Rewriter, value: Value, shape: Shape) -> Value:
    """A value in another shape, without a view that was made before."""
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
    spread = r.producer(value, BroadcastTo)
    source = spread.inputs[0] if spread is not None else None
    if spread is not None and source is not None and source.shape[-3:-2] == (1,):
        others = [(*x.shape[:-3], *x.shape[-2:]) for x in (source, value)]
        return source if _equal(*others) else None
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
    return _viewed(r, source, (*narrow[:-3], *narrow[-2:]))


def _cut(r: Rewriter, value: Value) -> Value:
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
    left = [k for k in range(rank) if len(value.shape) == rank or sizes[k] != 1 or k != _gone(sizes, value.shape)]
    if not _equal(tuple(sizes[k] for k in left), value.shape):
        return value
    order = [axes.index(k) for k in range(rank)]
    part = r.add(Slice(*(tuple(x[k] for k in order) for x in (starts, sizes, steps))), whole)
    kept = [k for k in order if k in left]
    if len(kept) < rank:
        part = r.add(Reshape(tuple(sizes[k] for k in kept)), part)
    return r.add(Transpose(tuple(kept.index(k) for k in left)), part)


def _gone(sizes: Sequence[Dim], shape: Shape) -> int | None:
    """Which axis of one element `shape` lacks."""
    return next(
        (k for k, d in enumerate(sizes) if d == 1 and _equal((*sizes[:k], *sizes[k + 1 :]), shape)),
        None,
    )


def _cut_last(r: Rewriter, value: Value) -> Value:
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
    if cut.op.all_steps[-1] != 1 or not _equal(parts[:-1], rows) or not _equal(view.output.shape[:-2], rows):
        return value
    heads = view.output.shape[-2]
    every = r.add(Reshape((*rows, last // size, size)), whole)
    starts = (*(0 for _ in rows), start // size, 0)
    part = r.add(Slice(starts, (*rows, heads, size), (1,) * (len(rows) + 2)), every)
    return r.add(turned.op, part) if turned is not None else part
