"""What data has to be, beyond its type, for an operator to be defined: bounds of elements, found before a run where
they can be, else by the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft import dtypes as dt
from weft.expr.nodes import Expr, free_vars, le, wrap
from weft.expr.ranges import Range, range_of_dtype
from weft.expr.simplify import prove
from weft.graph.identity import Identity, Require
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft.tensor.language import Dim, as_dim
from weft_ops import arithmetic as a
from weft_ops import movement as m
from weft_ops.reduction import Argmax
from weft_ops.shapes import dim_max, dim_min
from weft_ops.sorting import Argsort, TopK


def at_most(x: Dim, y: Dim) -> bool:
    """Whether x ≤ y is certain, for formulas over sizes."""
    if isinstance(x, int) and isinstance(y, int):
        return x <= y
    holds = le(wrap(x, dt.int64), wrap(y, dt.int64))
    return prove(holds, {name: Range(0, None) for name in free_vars(holds)})


Bounds: TypeAlias = "tuple[Dim | None, Dim | None]"

# Operators whose elements are all among those of their first operand.
_SOME_OF_FIRST = (Identity, Require, m.Reshape, m.Transpose, m.BroadcastTo, m.Slice, m.Gather, m.GatherElements)


def bounds(value: Value, depth: int = 16) -> Bounds:
    """The least and the greatest that elements of an integer value may be, as far as its producers tell; None is not
    known. Of no elements: anything."""
    if not (value.dtype.is_integer or value.dtype.is_bool):
        return None, None
    own = range_of_dtype(value.dtype)
    known: Bounds = (own.lo, own.hi)
    if value.constant is not None:
        return (int(value.constant.min()), int(value.constant.max())) if value.constant.size else (0, 0)
    node = value.producer
    if node is None or depth == 0:
        return known

    def of(k: int) -> Bounds:
        v = node.inputs[k]
        return (None, None) if v is None else bounds(v, depth - 1)

    found: Bounds = (None, None)
    op: Operator = node.op
    if isinstance(op, _SOME_OF_FIRST):
        found = of(0)
    elif isinstance(op, a.Cast):
        found = of(0)
        if not _fits(found, known):
            found = (None, None)  # it wraps
    elif isinstance(op, m.Concat):
        found = _either([of(k) for k in range(len(node.inputs))])
    elif isinstance(op, a.Where):
        found = _either([of(1), of(2)])
    elif isinstance(op, a.Maximum):
        found = (_one(dim_max, of(0)[0], of(1)[0]), _both(dim_max, of(0)[1], of(1)[1]))
    elif isinstance(op, a.Minimum):
        found = (_both(dim_min, of(0)[0], of(1)[0]), _one(dim_min, of(0)[1], of(1)[1]))
    elif isinstance(op, a.Mod) and type(op) is a.Mod and _positive(of(1)[0]):
        high = of(1)[1]
        found = (0, None if high is None else as_dim(high - 1))
    elif isinstance(op, m.Iota):
        found = (0, as_dim(op.shape[op.axis] - 1))
    elif isinstance(op, m.Dims):
        found = (0, None) if all(isinstance(d, Expr) or d >= 0 for d in op.values) else (None, None)
    elif isinstance(op, (Argmax, Argsort)) or (isinstance(op, TopK) and value is node.outputs[1]):
        x = node.inputs[0]
        assert x is not None
        found = (0, as_dim(x.shape[op.axis % len(x.shape)] - 1)) if x.shape else (0, 0)
    low, high = found
    return known[0] if low is None else low, known[1] if high is None else high


def _positive(low: Dim | None) -> bool:
    return low is not None and at_most(1, low)


def _fits(inner: Bounds, outer: Bounds) -> bool:
    (low, high), (least, most) = inner, outer
    return (least is None or (low is not None and at_most(least, low))) and (
        most is None or (high is not None and at_most(high, most))
    )


def _both(choose: Callable[[Dim, Dim], Dim], x: Dim | None, y: Dim | None) -> Dim | None:
    return None if x is None or y is None else choose(x, y)


def _one(choose: Callable[[Dim, Dim], Dim], x: Dim | None, y: Dim | None) -> Dim | None:
    return y if x is None else x if y is None else choose(x, y)


def _either(found: list[Bounds]) -> Bounds:
    low, high = found[0]
    for other in found[1:]:
        low, high = _both(dim_min, low, other[0]), _both(dim_max, high, other[1])
    return low, high
