"""Shapes of which others are views that join neighbouring axes."""

from __future__ import annotations

from weft.tensor.language import Dim
from weft_ops.movement import common_runs
from weft_ops.shapes import same

Shape = tuple[Dim, ...]
Groups = list[tuple[Dim, Shape]]
"""For each axis of a view its size, and the axes of a finer shape that it joins."""


def swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def rows_first(shape: Shape, turned: bool) -> Shape:
    """A shape of the scores, or one that broadcasts to them, as [..., s, t] where it is [..., t, s]; of two dimensions
    at least."""
    shape = (1,) * (2 - len(shape)) + shape
    return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


def equal(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def keeps(before: Shape, after: Shape, turned: bool) -> bool:
    """Whether a reshape of the scores leaves the axis of the keys as it is (turned: that of the queries, too)."""
    kept = 2 if turned else 1
    return min(len(before), len(after)) >= 2 and equal(before[-kept:], after[-kept:])


def refined(a: Shape, b: Shape) -> tuple[Groups, Groups] | None:
    """The axes that each axis of two shapes of as many elements joins, of one shape of which both are views."""
    tail = 0
    while tail < min(len(a), len(b)) and same(a[-1 - tail], b[-1 - tail]):
        tail += 1
    groups: tuple[Groups, Groups] = ([], [])
    for runs in common_runs(a[: len(a) - tail], b[: len(b) - tail]):
        sizes = [shape[run.start : run.stop] for shape, run in zip((a, b), runs)]
        x, y = (tuple(d for d in s if d != 1) for s in sizes)
        if not (min(len(x), len(y)) == 1 or equal(x, y)):
            return None
        for own, other, dims, result in ((x, y, sizes[0], groups[0]), (y, x, sizes[1], groups[1])):
            for d in dims:
                result.append((d, () if d == 1 else other if len(own) == 1 else (d,)))
    kept: Groups = [(d, (d,)) for d in a[len(a) - tail :]]
    return groups[0] + kept, groups[1] + kept


def view_of(shape: Shape, groups: Groups) -> Shape | None:
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
