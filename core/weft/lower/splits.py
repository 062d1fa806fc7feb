"""How layouts in blocks divide the axes of a reduction: its loops are divided alike, so that blocks are read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from weft.expr.nodes import Cast, Const, Expr, FloorDiv, FloorMod, Mul, Select, free_vars, walk
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.graph.layout import Layout, Split
from weft.tensor.language import Dim, Read, Reduce, ReduceAxis

Layouts: TypeAlias = Mapping[int, Layout | None]
"""By id(tensor)."""


class _Division(NamedTuple):
    """Part of an index: `of` divided by a constant, the quotient or the remainder."""

    of: Expr
    by: int
    quotient: bool


def split_factor(layouts: Layouts, axis: ReduceAxis, bodies: Sequence[Expr]) -> int | None:
    """The factor by which a blocked layout divides this reduction's index, if it divides the extent too."""
    if not isinstance(axis.extent, int):
        return None
    for body in bodies:
        for node in walk(body):
            if not isinstance(node, Read):
                continue
            for part in _divisions(layouts, node, axis):
                if axis.extent % part.by == 0 and part.by > 1:
                    return part.by
    return None


def _divisions(layouts: Layouts, read: Read, axis: ReduceAxis) -> list[_Division]:
    """Where the layout of what is read divides the index of a reduction over an axis of known extent by a
    constant."""
    layout = layouts.get(id(read.tensor))
    if layout is None:
        return []
    assert isinstance(axis.extent, int)
    ranges = {axis.var.name: Range(0, axis.extent - 1)}
    parts = (p for i in layout.map(read.indices) for p in walk(simplify(i, ranges)))
    found = [
        _Division(p.a, int(p.b.value), isinstance(p, FloorDiv))
        for p in parts
        if isinstance(p, (FloorDiv, FloorMod)) and isinstance(p.b, Const) and axis.var.name in free_vars(p.a)
    ]
    # Of blocks that are divided again (for dot products) the whole ones count.
    coarsest = max((p.by for p in found if p.of == axis.var), default=None)
    return [p for p in found if coarsest in (None, p.by)]


def padded_factor(layouts: Layouts, axis: ReduceAxis, reduce: Reduce) -> int | None:
    """The factor by which both operands of a sum of products are stored in blocks of this axis, if the last one is
    padded: zeros add nothing."""
    if not isinstance(axis.extent, int) or reduce.reducer.name != "sum" or len(reduce.values) != 1:
        return None
    value = reduce.values[0]
    if isinstance(value, Select) and value.b == reduce.reducer.identity([value.dtype])[0]:
        value = value.a
    if not isinstance(value, Mul):
        return None
    factors = set()
    for operand in (value.a, value.b):
        read = operand.value if isinstance(operand, Cast) else operand
        if not isinstance(read, Read) or layouts.get(id(read.tensor)) is None:
            return None
        if sum(axis.var.name in free_vars(i) for i in read.indices) != 1:
            return None
        quotients = {p.by for p in _divisions(layouts, read, axis) if p.quotient and p.of == axis.var}
        blocks = quotients & _factors(layouts[id(read.tensor)], read.tensor.shape, axis.extent)
        factors.add(blocks.pop() if len(blocks) == 1 else None)
    return factors.pop() if len(factors) == 1 else None


def known_extent(axis: ReduceAxis) -> int:
    """The extent of an axis that a layout splits: a number."""
    assert isinstance(axis.extent, int)
    return axis.extent


def _factors(layout: Layout | None, shape: Sequence[Dim], extent: int) -> set[int]:
    """By what a layout of a value of this shape splits indices of this extent."""
    found = set()
    for step in () if layout is None else layout.steps:
        if isinstance(step, Split) and shape[step.axis] == extent:
            found.add(step.factor)
        shape = Layout((step,)).stored_shape(shape)
    return found
