"""Singular values and eigenvalues of small matrices: one-sided rotations by Jacobi's method, in float64."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.converters.linalg import sizes
from weft_torch.converters.repeating import repeated
from weft_torch.registry import op

LARGEST = 16
"""Columns at most: every pair of them is some nodes."""
SWEEPS = 16
"""Over all pairs of columns; each squares what is left."""


def _swapped(c: Context, x: Value) -> Value:
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _rotated(c: Context, columns: list[Value], others: list[Value], p: int, q: int) -> None:
    """Makes columns p and q orthogonal."""
    a, b = columns[p], columns[q]
    alpha, beta, gamma = (c.sum(c.mul(u, v), (-2,)) for u, v in ((a, a), (b, b), (a, b)))
    still = c(ops.Equal(), gamma, 0.0)
    ratio = c.div(c.sub(beta, alpha), c.mul(c(ops.Where(), still, 1.0, gamma), 2.0))
    root = c.add(c(ops.Absolute(), ratio), c(ops.Sqrt(), c.add(c.mul(ratio, ratio), 1.0)))
    tangent = c.div(c(ops.Where(), c(ops.Less(), ratio, 0.0), c.number(-1.0, dt.float64), 1.0), root)
    tangent = c(ops.Where(), still, 0.0, tangent)
    cosine = c.div(1.0, c(ops.Sqrt(), c.add(c.mul(tangent, tangent), 1.0)))
    sine = c.mul(cosine, tangent)
    for held in (columns, others):
        u, v = held[p], held[q]
        held[p] = c.sub(c.mul(u, cosine), c.mul(v, sine))
        held[q] = c.add(c.mul(u, sine), c.mul(v, cosine))


def orthogonal(c: Context, a: Value) -> tuple[Value, Value, Value]:
    """(A · V, the singular values, V) of A [..., m, n] with at least as many rows as columns, in float64, the largest
    value first."""
    m, n = sizes(c, a)
    if n > LARGEST:
        raise c.unsupported(f"a matrix with {n} rows or columns, at most {LARGEST}")
    front, rank = a.shape[:-2], len(a.shape)
    a = c.cast(a, dt.float64)
    v = c.broadcast(c.builder.constant(np.eye(n)), (*front, n, n))
    if n > 1 and m:

        def more(c: Context, values: list[Value]) -> Value:
            return c(ops.Less(), values[0], SWEEPS)

        def step(c: Context, values: list[Value]) -> list[Value]:
            k, a, v = values
            columns, others = ([c.slice(x, -1, j, 1) for j in range(n)] for x in (a, v))
            for p, q in combinations(range(n), 2):
                _rotated(c, columns, others, p, q)
            return [c.add(k, 1), c.concat(columns, -1), c.concat(others, -1)]

        _, a, v = repeated(c, [c.number(0, dt.int64), a, v], more, step)
    values = c(ops.Sqrt(), c.sum(c.mul(a, a), (-2,)))
    order = c(ops.Argsort(rank - 1, True), values)
    return (
        c(ops.GatherElements(rank - 1), a, c.broadcast(order, a.shape)),
        c.reshape(c(ops.GatherElements(rank - 1), values, order), (*front, n)),
        c(ops.GatherElements(rank - 1), v, c.broadcast(order, v.shape)),
    )


def _across(x: Value) -> tuple[Any, ...]:
    return (*x.shape[:-1], 1, x.shape[-1])


@op("aten._linalg_svd")
def svd(c: Context, a: Value, full: bool, vectors: bool, driver: Any) -> list[Value | None]:
    m, n = sizes(c, a)
    wide = m < n
    product, values, v = orthogonal(c, _swapped(c, a) if wide else a)
    found = c.cast(values, a.dtype)
    if not vectors:
        return [c(ops.Fill(a.dtype, c.result_shape(0), 0)), found, c(ops.Fill(a.dtype, c.result_shape(2), 0))]
    if all(user.args[1] == 1 for user in c.node.users):
        return [None, found, None]
    if full and m != n:
        raise c.unsupported("full matrices of matrices that are not square")
    least = c.mul(c(ops.ReduceMax((-1,), True), values), 1e-13)
    c.importer.expect_zeros(
        c.cast(c(ops.LessEqual(), values, least), dt.int32), "svd: the matrix has not full rank, vectors are wanted"
    )
    u = c.div(product, c.reshape(values, _across(values)))
    left, right = (v, u) if wide else (u, v)
    return [c.cast(left, a.dtype), found, c.cast(_swapped(c, right), a.dtype)]


@op("aten._linalg_eigh")
def eigh(c: Context, a: Value, triangle: str, vectors: bool) -> list[Value]:
    """Of a symmetric matrix with so much added to its diagonal that its singular values are its eigenvalues."""
    n, _ = sizes(c, a)
    x = c.cast(a, dt.float64)
    upper = triangle.upper() == "U"
    held = c(ops.Trilu(upper, 0), x)
    x = c.add(held, _swapped(c, c(ops.Trilu(upper, 1 if upper else -1), x)))
    shift = c(ops.Sqrt(), c.sum(c.mul(x, x), (-2, -1)))
    _, values, v = orthogonal(c, c.add(x, c.mul(c.builder.constant(np.eye(n)), shift)))
    back = c.builder.constant(np.arange(n)[::-1].copy())
    found = c.sub(values, c.reshape(shift, (*shift.shape[:-2], 1)))
    return [
        c.cast(c.gather(found, back, len(values.shape) - 1), a.dtype),
        c.cast(c.gather(v, back, len(v.shape) - 1), a.dtype),
    ]


@op("aten.linalg_pinv.atol_rtol_tensor")
def pinv(c: Context, a: Value, least: Value | None, share: Value | None, symmetric: bool) -> Value:
    m, n = sizes(c, a)
    wide = m < n
    if symmetric:
        a = c.add(c(ops.Trilu(False, 0), a), _swapped(c, c(ops.Trilu(False, -1), a)))
    product, values, v = orthogonal(c, _swapped(c, a) if wide else a)
    most = c(ops.ReduceMax((-1,), True), values)
    front = values.shape[:-1]
    bound = c.mul(most, max(m, n) * float(np.finfo(a.dtype.numpy).eps))
    given = None if least is None else c.reshape(c.broadcast(c.cast(least, dt.float64), front), (*front, 1))
    if share is not None:
        bound = c.mul(most, c.reshape(c.broadcast(c.cast(share, dt.float64), front), (*front, 1)))
    elif given is not None:
        bound = c(ops.Where(), c(ops.Greater(), given, 0.0), 0.0, bound)
    bound = bound if given is None else c(ops.Maximum(), bound, given)
    kept = c(ops.Greater(), values, bound)
    square = c.mul(values, values)
    inverse = c(ops.Where(), kept, c.div(1.0, c(ops.Where(), kept, square, 1.0)), 0.0)
    found = c(ops.MatMul(), c.mul(v, c.reshape(inverse, _across(inverse))), _swapped(c, product))
    return c.cast(_swapped(c, found) if wide else found, a.dtype)


__all__ = ["orthogonal"]
