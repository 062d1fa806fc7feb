"""Linear algebra: triangular systems, and the factorisations of LAPACK that JAX calls on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters import complex_numbers as z
from weft_stablehlo.registry import CUSTOM, Converter, op

MOST_ROWS = 128
"""Rows of a triangular matrix, each of which becomes some nodes."""


@op("triangular_solve")
def triangular_solve(c: Context) -> Any:
    """Row by row, each from those before it."""
    sides = c.attribute("left_side"), c.attribute("lower"), c.attribute("unit_diagonal")
    return triangular(c, *sides, c.keyword("transpose_a"))


def triangular(c: Context, left: bool, lower: bool, unit: bool, how: str) -> Any:
    """x of a·x = b, or of x·a = b."""
    a, b = list(c.parts(0)), list(c.parts(1))
    if c.empty(b[0].shape):
        return c.operands[1]
    rank = len(b[0].shape)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    if how in ("TRANSPOSE", "ADJOINT"):
        a = [c.transpose(p, swapped) for p in a]
        lower = not lower
        if how == "ADJOINT" and len(a) == 2:
            a[1] = c(ops.Negative(), a[1])
    if not left:  # x·a = b is aᵀ·xᵀ = bᵀ
        a, b, lower = [c.transpose(p, swapped) for p in a], [c.transpose(p, swapped) for p in b], not lower
    n = a[0].shape[-1]
    if not isinstance(n, int) or n > MOST_ROWS:
        raise c.unsupported(f"a matrix of more than {MOST_ROWS} rows")
    x = solved(c, a, b, n, lower, unit)
    if not left:
        x = [c.transpose(p, swapped) for p in x]
    return Complex(x) if c.results[0].complex else x[0]


def solved(c: Context, a: list[Value], b: list[Value], n: int, lower: bool, unit: bool) -> list[Value]:
    rows: dict[int, list[Value]] = {}
    order = list(range(n)) if lower else list(range(n - 1, -1, -1))
    for done, k in enumerate(order):
        row = [c.slice(p, -2, k, 1) for p in b]
        if done:
            known = sorted(order[:done])
            before = [c.concat([rows[j][q] for j in known], len(b[0].shape) - 2) for q in range(len(b))]
            factors = [c.slice(c.slice(p, -2, k, 1), -1, known[0], done) for p in a]
            row = difference(c, row, product(c, factors, before))
        if not unit:
            pivot = [c.slice(c.slice(p, -2, k, 1), -1, k, 1) for p in a]
            row = (
                [c.div(row[0], pivot[0])]
                if len(a) == 1
                else list(
                    z.over(c, (row[0], row[1]), tuple(c.broadcast(p, row[0].shape) for p in pivot))  # type: ignore[arg-type]
                )
            )
        rows[k] = row
    return [c.concat([rows[k][q] for k in range(n)], len(b[0].shape) - 2) for q in range(len(b))]


def product(c: Context, x: list[Value], y: list[Value]) -> list[Value]:
    if len(x) == 1:
        return [c(ops.MatMul(), x[0], y[0])]
    return [
        c.sub(c(ops.MatMul(), x[0], y[0]), c(ops.MatMul(), x[1], y[1])),
        c.add(c(ops.MatMul(), x[0], y[1]), c(ops.MatMul(), x[1], y[0])),
    ]


def difference(c: Context, x: list[Value], y: list[Value]) -> list[Value]:
    return [c.sub(a, b) for a, b in zip(x, y)]


LAPACK = "sdcz"
"""The letters of its routines: float32, float64, and complex numbers of them."""


def lapack(name: str) -> Callable[[Converter], Converter]:
    return op(*(f"{CUSTOM}.lapack_{letter}{name}_ffi" for letter in LAPACK))


def letter(c: Context, name: str) -> str:
    """An option of a routine, which is a letter."""
    return chr(c.attribute("mhlo.backend_config")[name])


@lapack("trsm")
def trsm(c: Context) -> Any:
    how = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[letter(c, "trans_x")]
    return triangular(c, letter(c, "side") == "L", letter(c, "uplo") == "L", letter(c, "diag") == "U", how)


# -- factorisations: real numbers, column by column -------------------------------------------------------------------


def matrix(c: Context) -> tuple[Value, int, int]:
    """Operand 0, matrices along its last axes, and their rows and columns."""
    a = c.value(0)
    m, n = a.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int) or max(m, n) > MOST_ROWS:
        raise c.unsupported(f"a matrix of more than {MOST_ROWS} rows")
    return a, m, n


def info(c: Context, bad: Value | None, k: int) -> Value:
    """Result k, which is not 0 where the factorisation fails."""
    lead = c.value(0).shape[:-2]
    return c.broadcast(c.number(0, dt.int32), lead) if bad is None else c.cast(bad, c.results[k].dtype)


def column(c: Context, a: Value, k: int) -> Value:
    return c.slice(a, -1, k, 1)


def row(c: Context, a: Value, k: int) -> Value:
    return c.slice(a, -2, k, 1)


def swapped(c: Context, a: Value) -> Value:
    rank = len(a.shape)
    return c.transpose(a, (*range(rank - 2), rank - 1, rank - 2))


def numbered(c: Context, count: int, axis: int) -> Value:
    """0, 1, … as a column (axis -2) or a row (-1)."""
    return c.reshape(c(ops.Iota(dt.int64, (count,), 0)), (count, 1) if axis == -2 else (1, count))


@lapack("potrf")
def potrf(c: Context) -> list[Value]:
    """The factor of Cholesky."""
    a, _, n = matrix(c)
    lower = letter(c, "uplo") == "L"
    if c.empty(a.shape):
        return [a, info(c, None, 1)]
    a = a if lower else swapped(c, a)
    columns: list[Value] = []
    here = numbered(c, n, -2)
    for k in range(n):
        x = column(c, a, k)
        if columns:
            done = c.concat(columns, len(a.shape) - 1)
            x = c.sub(x, c(ops.MatMul(), done, swapped(c, row(c, done, k))))
        x = c.div(x, c(ops.Sqrt(), row(c, x, k)))
        columns.append(c(ops.Where(), c(ops.GreaterEqual(), here, k), x, 0.0))
    found = c.concat(columns, len(a.shape) - 1)
    rank = len(a.shape)
    nan = c.cast(c(ops.IsNan(), found), dt.uint8)
    bad = c(ops.ReduceMax((rank - 2, rank - 1)), nan)
    found = c(ops.Where(), c(ops.GreaterEqual(), here, numbered(c, n, -1)), found, a)  # the rest stays as it is
    return [found if lower else swapped(c, found), info(c, bad, 1)]


@lapack("getrf")
def getrf(c: Context) -> list[Value]:
    """The factors of L·U with the rows that were swapped, as LAPACK counts them: from 1 on."""
    a, m, n = matrix(c)
    rank = len(a.shape)
    count = min(m, n)
    if c.empty(a.shape):
        return [a, c(ops.Fill(dt.int32, (*a.shape[:-2], count))), info(c, None, 2)]
    here, across = numbered(c, m, -2), numbered(c, n, -1)
    pivots = []
    for k in range(count):
        x = column(c, a, k)
        size = c(ops.Where(), c(ops.GreaterEqual(), here, k), c(ops.Absolute(), x), -1.0)
        at = c(ops.Argmax(rank - 2, True), size)
        chosen = c(ops.Equal(), here, at)
        best = c.sum(c(ops.Where(), chosen, a, 0.0), (rank - 2,))
        a = c(ops.Where(), c(ops.Equal(), here, k), best, c(ops.Where(), chosen, row(c, a, k), a))
        pivot = column(c, best, k)
        none = c(ops.Equal(), pivot, 0.0)
        below = c(ops.Greater(), here, k)
        factor = c.div(column(c, a, k), c(ops.Where(), none, 1.0, pivot))
        factor = c(ops.Where(), below, factor, 0.0)
        rest = c.sub(a, c.mul(factor, c(ops.Where(), c(ops.Greater(), across, k), best, 0.0)))
        a = c(ops.Where(), c(ops.LogicalAnd(), below, c(ops.Equal(), across, k)), factor, rest)
        pivots.append(c.reshape(c.add(at, 1), (*a.shape[:-2], 1)))
    return [a, c.cast(c.concat(pivots, rank - 2), dt.int32), info(c, None, 2)]


@lapack("geqrf")
def geqrf(c: Context) -> list[Value]:
    """R, below it the vectors of Householder's reflections, and their factors."""
    a, m, n = matrix(c)
    rank, count = len(a.shape), min(m, n)
    if c.empty(a.shape):
        return [a, c(ops.Fill(a.dtype, (*a.shape[:-2], count)))]
    here, across = numbered(c, m, -2), numbered(c, n, -1)
    factors = []
    for k in range(count):
        x, below = column(c, a, k), c(ops.Greater(), here, k)
        tail = c(ops.Where(), below, x, 0.0)
        first = row(c, x, k)
        square = c.sum(c.mul(tail, tail), (rank - 2,))
        none = c(ops.Equal(), square, 0.0)
        length = c(ops.Sqrt(), c.add(c.mul(first, first), square))
        last = c(ops.Where(), c(ops.Less(), first, 0.0), length, c(ops.Negative(), length))
        last = c(ops.Where(), none, first, last)
        factor = c(ops.Where(), none, 0.0, c.div(c.sub(last, first), c(ops.Where(), none, 1.0, last)))
        tail = c.div(tail, c(ops.Where(), none, 1.0, c.sub(first, last)))
        vector = c(ops.Where(), c(ops.Equal(), here, k), 1.0, tail)
        moved = c.sub(a, c.mul(c.mul(factor, vector), c(ops.MatMul(), swapped(c, vector), a)))
        own = c(ops.Where(), c(ops.Equal(), here, k), last, c(ops.Where(), below, tail, x))
        a = c(ops.Where(), c(ops.Equal(), across, k), own, c(ops.Where(), c(ops.Greater(), across, k), moved, a))
        factors.append(c.reshape(factor, (*a.shape[:-2], 1)))
    return [a, c.concat(factors, rank - 2)]


@lapack("orgqr")
def orgqr(c: Context) -> Value:
    """The matrix that reflections are: the first columns of their product."""
    a, m, n = matrix(c)
    factors = c.value(1)
    if c.empty(a.shape):
        return a
    here = numbered(c, m, -2)
    q = c.broadcast(c(ops.Eye(a.dtype, m, n)), a.shape)
    for k in reversed(range(int(factors.shape[-1]))):  # type: ignore[arg-type]
        below = c(ops.Where(), c(ops.Greater(), here, k), column(c, a, k), 0.0)
        vector = c(ops.Where(), c(ops.Equal(), here, k), 1.0, below)
        factor = c.reshape(c.slice(factors, -1, k, 1), (*a.shape[:-2], 1, 1))
        q = c.sub(q, c.mul(c.mul(factor, vector), c(ops.MatMul(), swapped(c, vector), q)))
    return q
