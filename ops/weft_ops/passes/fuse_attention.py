"""Finds attention in the operators that exporters write: two products with a softmax between them become one operator.

The match starts at the second product and walks back: weights (perhaps transposed, or with NaN rows put to zero),
softmax over the keys, then masks added or chosen, factors and casts, in any order that keeps the meaning, to the first
product. Scores may be viewed in several shapes on the way: operands and masks are read in the finest of them. Keys are
read whichever way they were transposed; factors on either side of the product join; heads that were repeated for
grouped queries are read once; operands cut out of a transposed tensor are cut before it is transposed.
"""

from __future__ import annotations

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities, is_claimed
from weft_ops.arithmetic import Cast, Divide, Multiply
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.comparison import LogicalNot
from weft_ops.contraction import MatMul
from weft_ops.movement import BroadcastTo, Reshape, Transpose
from weft_ops.passes.attention_operands import cut, cut_last, swapped, unrepeated, unscaled, viewed
from weft_ops.passes.attention_scores import Part, Scores, find_weights, in_view
from weft_ops.passes.attention_views import Groups, Shape, equal, refined, rows_first, swap, view_of
from weft_ops.precision import compute_dtype
from weft_ops.shapes import same


def fuse_attention(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards no attention whose scores nothing else uses is spelled out, if the target claims
    ScaledDotProductAttention; else nothing changes.

    Results change by rounding only (scores of 16-bit floats are not rounded to them), but where a softmax of NaNs was
    put to zero and v is not finite. Products with constants stay, whose kernels pack them at compile time.
    """
    if not is_claimed(ScaledDotProductAttention, (capabilities or Capabilities()).claims):
        return graph
    return rewrite(graph, _attention, _transposed, on=(MatMul, Transpose))


def _attention(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    if not isinstance(node.op, MatMul):
        return None
    left, right = inputs
    if node.op.dtype is not None or left is None or right is None or min(len(left.shape), len(right.shape)) < 2:
        return None
    for weights, v, turned in ((left, right, False), (right, left, True)):
        if not weights.dtype.is_float or v.constant is not None:
            continue
        found = find_weights(r, weights, turned)
        joined = None if found is None else in_view(found[0], rows_first(weights.shape, turned))
        if found is None or joined is None:
            continue
        y = _built(r, *joined, v, turned, found[1])
        if y is None:
            continue
        shape = rows_first(node.output.shape, turned)
        y = y if equal(y.shape, shape) else r.add(Reshape(shape), y)
        return r.add(Transpose(swap(len(shape))), y) if turned else y
    return None


def _transposed(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    """A result whose axes are joined and then transposed: they are joined afterwards, so that the kernel of the
    attention stores it transposed."""
    view = r.producer(inputs[0], Reshape) if isinstance(node.op, Transpose) else None
    made = r.producer(view.inputs[0], ScaledDotProductAttention) if view is not None else None
    if view is None or made is None or r.uses(view.output) > 1 or r.uses(made.output) > 1:
        return None
    assert isinstance(node.op, Transpose)
    found = refined(made.output.shape, view.output.shape)
    if found is None or any(len(axes) > 1 for _, axes in found[0]):
        return None
    # Axes of one element that the view drops go to the front.
    kept = [k for k, (_, axes) in enumerate(found[0]) if axes]
    order = [k for k in range(len(found[0])) if k not in kept]
    places = iter(kept)
    joined = [[next(places) for _ in axes] for _, axes in found[1]]
    order += [k for axis in node.op.axes for k in joined[axis]]
    return r.add(Reshape(node.output.shape), r.add(Transpose(tuple(order)), made.output))


def _built(r: Rewriter, scores: Scores, groups: Groups, v: Value, turned: bool, blank: str) -> Value | None:
    """The operator, [lead…, s, e]; None if dtypes or shapes do not allow it.

    Args:
        groups: the axes that those of v's product join.
        turned: v is [..., e, t].
    """
    dtype, wide = v.dtype, compute_dtype(v.dtype)
    lead, parts = scores.shape[:-2], (*scores.factors, *scores.terms)
    v_lead = view_of((*v.shape[:-2], 1), groups)
    if v_lead is None or scores.q.value.dtype.bits > dtype.bits:
        return None
    if any(p.value.dtype.is_float and p.value.dtype.bits > wide.bits for p in parts):
        return None
    if any(p.value.dtype != dtype for p in scores.factors):
        return None
    q, scale = unscaled(r, scores.q.value)
    q = swapped(r, q) if scores.q.turned else q
    keys, factor = unscaled(r, swapped(r, scores.keys.value) if scores.keys.turned else scores.keys.value)
    scale *= scores.scale * factor
    v = swapped(r, v) if turned else v
    k_lead, v_lead = scores.keys.shape[:-2], v_lead[:-1]
    k_once, v_once = unrepeated(r, keys), unrepeated(r, v)
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
    return len(a.shape) == len(b.shape) and equal(a.shape[:-2], b.shape[:-2])


def _read(r: Rewriter, part: Part) -> Value:
    """The value of a part in the shape in which it is read."""
    value, shape = part.value, part.shape
    if part.turned and len(value.shape) > 1:
        value = r.add(Transpose(swap(len(value.shape))), value)
    while len(shape) > len(value.shape) and shape[0] == 1:
        shape = shape[1:]
    return value if equal(value.shape, shape) else r.add(Reshape(shape), value)


def _placed(r: Rewriter, value: Value, shape: Shape, lead: Shape) -> Value:
    """An operand in this shape, repeated where its axes in front of the last two have one element and those of `lead`
    more."""
    value = viewed(r, cut(r, cut_last(r, value)), shape)
    wide = (*(b if a == 1 else a for a, b in zip(shape[:-2], lead)), *shape[-2:])
    return value if equal(wide, shape) else r.add(BroadcastTo(wide), value)
