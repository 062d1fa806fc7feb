"""Diagonals of matrices: several at once, and those that only the run knows."""

from __future__ import annotations

from dataclasses import dataclass

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.identity import Require
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_ops.shapes import dim_expr, dim_max, dim_min, dim_select, equals, product, simplified
from weft_tensorflow.context import Context

ALIGNMENTS = ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT")
"""Where the diagonals above, and those below, begin in their rows."""


@dataclass(frozen=True)
class Band:
    """Diagonals from `low` to `high`, 0 being the main one; `lone`: one, which has no axis of its own."""

    low: Dim
    high: Dim
    lone: bool


def band(c: Context, k: int) -> Band:
    """The diagonals that operand k names: one number, or the lowest and the highest.

    Raises:
        FrontendError: they are no numbers in order.
    """
    found = c.signed(k, "the diagonal") or (0,)
    if len(found) == 1:
        return Band(found[0], found[0], True)
    if len(found) != 2:
        raise c.error(f"{len(found)} numbers as a band of diagonals")
    low, high = found
    if isinstance(low, int) and isinstance(high, int):
        if low > high:
            raise c.error(f"diagonals {low} … {high}")
        return Band(low, high, low == high)
    return Band(low, high, False)


def difference(a: Dim, b: Dim) -> Dim:
    return simplified(as_dim(dim_expr(a) - dim_expr(b)))


def several(c: Context, x: Value, of: Band) -> Value:
    """`x`, provided that a band that only the run knows has several diagonals, as its results have an axis for them."""
    if of.lone or (isinstance(of.low, int) and isinstance(of.high, int)):
        return x
    span = difference(of.high, of.low)
    what = "a band of diagonals that only the run knows has {0} more than one, expected several"
    return c.required(x, Require(span, 1, None, what, (span,), c.op_type))


def longest(of: Band, rows: Dim, columns: Dim) -> Dim:
    """How many elements the longest diagonal of a band has."""
    below = dim_min(difference(rows, dim_max(as_dim(wrap(0, dt.int64) - dim_expr(of.high)), 0)), rows)
    right = dim_min(difference(columns, dim_max(of.low, 0)), columns)
    return simplified(dim_min(below, right))


def first_places(c: Context, k: Value, rows: Dim, columns: Dim, longest: Dim) -> tuple[Value, Value]:
    """Of diagonals k how many elements each has, and the place of its first one in a row of `longest`."""
    above, below = c(ops.Maximum(), k, 0), c(ops.Maximum(), c(ops.Negative(), k), 0)
    length = c(ops.Minimum(), c.sub(c.dim(rows), below), c.sub(c.dim(columns), above))
    align = c.choice("align", "RIGHT_LEFT", ALIGNMENTS) if c.op_type.endswith("V3") else "LEFT_LEFT"
    left = [c(op, k, 0) for op, side in zip((ops.GreaterEqual(), ops.LessEqual()), align.split("_")) if side == "LEFT"]
    gap = c.sub(c.dim(longest), length)
    for at_left in left:
        gap = c(ops.Where(), at_left, c.number(0, dt.int64), gap)
    return length, gap


def taken(c: Context, x: Value, of: Band, filling: Value) -> Value:
    """The diagonals of matrices, the highest first, each in a row of the longest one's length."""
    rows, columns = x.shape[-2:]
    most, count = longest(of, rows, columns), simplified(as_dim(dim_expr(difference(of.high, of.low)) + 1))
    if isinstance(most, int) and most < 1:
        raise c.error(f"diagonals {of.low} … {of.high} of {rows}×{columns}")
    k = c.sub(c.dim(of.high), c(ops.Iota(dt.int64, (count, 1))))
    length, gap = first_places(c, k, rows, columns, most)
    place = c.sub(c(ops.Iota(dt.int64, (count, most), 1)), gap)
    valid = c(ops.LogicalAnd(), c(ops.GreaterEqual(), place, 0), c(ops.Less(), place, length))
    row = c.add(place, c(ops.Maximum(), c(ops.Negative(), k), 0))
    column = c.add(place, c(ops.Maximum(), k, 0))
    flat = c(ops.Where(), valid, c.add(c.mul(row, c.dim(columns)), column), c.number(0, dt.int64))
    found = c.gather(c.reshape(x, (*x.shape[:-2], product((rows, columns)))), flat, len(x.shape) - 2)
    found = c(ops.Where(), valid, found, filling)
    return c.reshape(found, (*x.shape[:-2], most)) if of.lone else several(c, found, of)


def put(c: Context, diagonal: Value, of: Band, rows: Dim, columns: Dim, ground: Value) -> Value:
    """Matrices with diagonals over a ground."""
    behind = diagonal.shape[:-1] if of.lone else diagonal.shape[:-2]
    most = diagonal.shape[-1]
    count = 1 if of.lone else diagonal.shape[-2]
    across = c(ops.Iota(dt.int64, (rows, columns), 1))
    down = c(ops.Iota(dt.int64, (rows, columns), 0))
    k = c.sub(across, down)
    inside = c(ops.LogicalAnd(), c(ops.GreaterEqual(), k, c.dim(of.low)), c(ops.LessEqual(), k, c.dim(of.high)))
    _, gap = first_places(c, k, rows, columns, most)
    place = c.add(c(ops.Minimum(), across, down), gap)
    which = c.sub(c.dim(of.high), k)
    flat = c(ops.Where(), inside, c.add(c.mul(which, c.dim(most)), place), c.number(0, dt.int64))
    flat = c.within(flat, 0, as_dim(dim_expr(product((count, most))) - 1), "place in the diagonals")
    found = c.gather(several(c, c.reshape(diagonal, (*behind, product((count, most)))), of), flat, len(behind))
    return c(ops.Where(), inside, found, ground)


def size(c: Context, k: int) -> Dim:
    """Operand k, a size; -1: the operator chooses."""
    found = c.signed(k, "the size") or (-1,)
    return found[0]


def sizes(c: Context, diagonal: Value, of: Band) -> tuple[Dim, Dim]:
    """The rows and columns of the matrices that MatrixDiag makes, by its operands 2 and 3."""
    most = diagonal.shape[-1]
    least = (
        simplified(as_dim(dim_expr(most) + dim_max(as_dim(wrap(0, dt.int64) - dim_expr(of.high)), 0))),
        simplified(as_dim(dim_expr(most) + dim_max(of.low, 0))),
    )
    given = size(c, 2), size(c, 3)
    open_ = [equals(g, -1) for g in given]
    square = dim_max(*least)
    found = []
    for k in (0, 1):
        own = dim_select(open_[1 - k], square, least[k])
        found.append(simplified(dim_select(open_[k], own, given[k])))
    return found[0], found[1]


__all__ = ["Band", "band", "longest", "put", "sizes", "taken"]
