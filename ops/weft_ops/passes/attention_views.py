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
        pieces = _pieces(x, y)
        if pieces is None:
            return None
        for dims, own, result in zip(sizes, pieces, groups):
            left = iter(own)
            result += [(d, () if d == 1 else next(left)) for d in dims]
    kept: Groups = [(d, (d,)) for d in a[len(a) - tail :]]
    return groups[0] + kept, groups[1] + kept


def _pieces(x: Shape, y: Shape) -> tuple[list[Shape], list[Shape]] | None:
    """The axes of the coarsest shape of which both are views, for each axis of the two, none of which is 1; None if
    there is no such shape, or open sizes do not tell it."""
    if equal(x, y):
        return [(d,) for d in x], [(d,) for d in y]
    if len(x) == 1 or len(y) == 1:
        return ([y], [(d,) for d in y]) if len(x) == 1 else ([(d,) for d in x], [x])
    numbers = [[d for d in shape if isinstance(d, int)] for shape in (x, y)]
    if len(numbers[0]) < len(x) or len(numbers[1]) < len(y) or 0 in x or 0 in y:
        return None
    own: tuple[list[list[int]], list[list[int]]] = ([[] for _ in x], [[] for _ in y])
    at, rest = [0, 0], [numbers[0][0], numbers[1][0]]
    while at[0] < len(x) and at[1] < len(y):
        piece = min(rest)
        if rest[0] % piece or rest[1] % piece:
            return None
        for side in (0, 1):
            own[side][at[side]].append(piece)
            rest[side] //= piece
            if rest[side] == 1:
                at[side] += 1
                rest[side] = next(iter(numbers[side][at[side] :]), 1)
    return [tuple(pieces) for pieces in own[0]], [tuple(pieces) for pieces in own[1]]


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
