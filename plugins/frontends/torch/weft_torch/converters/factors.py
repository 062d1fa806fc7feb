"""What is made of matrices that are taken apart: solutions, reflections, exponentials."""

from __future__ import annotations

import math

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.converters.linalg import sizes, substituted
from weft_torch.converters.repeating import times
from weft_torch.registry import op


def _swapped(c: Context, x: Value) -> Value:
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def row_order(c: Context, pivots: Value, rows: int, count: int) -> Value:
    """The order of rows [..., rows, 1] that exchanges, from 1 on, make."""
    front = pivots.shape[:-1]
    at = c.builder.constant(np.arange(rows).reshape(rows, 1))
    order = c.broadcast(at, (*front, rows, 1))
    for k in range(count):
        place = c.reshape(c.sub(c.cast(c.slice(pivots, -1, k, 1), dt.int64), 1), (*front, 1, 1))
        here = c.builder.constant(np.arange(rows).reshape(rows, 1) == k)
        there = c(ops.Equal(), at, place)
        moved = c(ops.Where(), here, place, c(ops.Where(), there, c.number(k, dt.int64), at))
        order = c(ops.GatherElements(len(order.shape) - 2), order, c.broadcast(moved, order.shape))
    return order


@op("aten.lu_unpack")
def lu_unpack(c: Context, lu: Value, pivots: Value, data: bool, exchanges: bool) -> list[Value]:
    m, n = sizes(c, lu)
    k = min(m, n)
    nothing = c(ops.Fill(lu.dtype, (0,), 0))
    lower = upper = order = nothing
    if data:
        eye = c.builder.constant(np.eye(m, k, dtype=lu.dtype.numpy))
        lower = c.add(c(ops.Trilu(False, -1), c.slice(lu, -1, 0, k)), eye)
        upper = c(ops.Trilu(True, 0), c.slice(lu, -2, 0, k))
    if exchanges:
        places = c.builder.constant(np.arange(m).reshape(m, 1))
        found = row_order(c, pivots, m, k)
        order = c.cast(c(ops.Equal(), _swapped(c, found), places), lu.dtype)
    return [order, lower, upper]


@op("aten.linalg_lu_solve")
def linalg_lu_solve(c: Context, lu: Value, pivots: Value, b: Value, left: bool, adjoint: bool) -> Value:
    """X · A = B is Aᵀ · Xᵀ = Bᵀ."""
    shape = c.result_shape()
    shape = shape if left else (*shape[:-2], shape[-1], shape[-2])
    b = b if left else _swapped(c, b)
    found = (solved if left is not adjoint else solved_transposed)(c, c.broadcast(b, shape), lu, pivots)
    return found if left else _swapped(c, found)


@op("aten.lu_solve")
def lu_solve(c: Context, b: Value, lu: Value, pivots: Value) -> Value:
    return solved(c, c.broadcast(b, c.result_shape()), lu, pivots)


def solved_transposed(c: Context, b: Value, lu: Value, pivots: Value) -> Value:
    n, _ = sizes(c, lu)
    turned, axis = _swapped(c, lu), len(b.shape) - 2
    x = substituted(c, turned, substituted(c, turned, b, upper=False, unit=False), upper=True, unit=True)
    back = c(ops.Argsort(len(pivots.shape) - 1, False), row_order(c, pivots, n, n))
    return c(ops.GatherElements(axis), x, c.broadcast(back, x.shape))


def solved(c: Context, b: Value, lu: Value, pivots: Value) -> Value:
    n, _ = sizes(c, lu)
    order = c.broadcast(row_order(c, pivots, n, n), b.shape)
    moved = c(ops.GatherElements(len(b.shape) - 2), b, order)
    return substituted(c, lu, substituted(c, lu, moved, upper=False, unit=True), upper=True, unit=False)


def _reflections(c: Context, a: Value, tau: Value, x: Value, first_first: bool) -> Value:
    """x behind the reflections that columns of `a` hold, from the left."""
    m, _ = sizes(c, a)
    count = c.static(tau.shape[-1], "a number of reflections")
    rows = np.arange(m).reshape(m, 1)
    for k in range(count) if first_first else reversed(range(count)):
        held = c.slice(a, -1, k, 1)
        below = c(ops.Where(), c.builder.constant(rows > k), held, 0.0)
        v = c(ops.Where(), c.builder.constant(rows == k), c.number(1.0, a.dtype), below)
        factor = c.reshape(c.slice(tau, -1, k, 1), (*tau.shape[:-1], 1, 1))
        x = c.sub(x, c.mul(c.mul(v, factor), c(ops.MatMul(), _swapped(c, v), x)))
    return x


@op("aten.linalg_householder_product")
def householder_product(c: Context, a: Value, tau: Value) -> Value:
    m, n = sizes(c, a)
    eye = c.broadcast(c.builder.constant(np.eye(m, n, dtype=a.dtype.numpy)), a.shape)
    return _reflections(c, a, tau, eye, False)


@op("aten.ormqr")
def ormqr(c: Context, a: Value, tau: Value, x: Value, left: bool, transposed: bool) -> Value:
    if left:
        return _reflections(c, a, tau, x, transposed)
    return _swapped(c, _reflections(c, a, tau, _swapped(c, x), not transposed))


DEGREE = 18
"""Of the Taylor polynomial of an exponential, of matrices with a norm up to 1/2."""
MOST_HALVINGS = 1074
"""More than any finite norm takes; the least float64 is 2⁻¹⁰⁷⁴."""


@op("aten.linalg_matrix_exp")
def matrix_exp(c: Context, a: Value) -> Value:
    n, _ = sizes(c, a)
    x = c.cast(a, dt.float64)

    def norm(c: Context, x: Value) -> Value:
        rows = c(ops.ReduceSum((-1,), False), c(ops.Absolute(), x))
        return c(ops.ReduceMax(None, False), c.reshape(rows, (-1,)) if not rows.shape else rows)

    size = norm(c, x)
    halvings = c(ops.Minimum(), c(ops.Ceil(), c.mul(c(ops.Log(), c.mul(size, 2.0)), 1 / math.log(2))), MOST_HALVINGS)
    halvings = c(ops.Where(), c(ops.Greater(), size, 0.5), halvings, 0.0)
    x = c.mul(x, c(ops.Power(), c.number(0.5, dt.float64), halvings))
    eye = c.broadcast(c.builder.constant(np.eye(n)), a.shape)
    found = eye
    for k in range(DEGREE, 0, -1):
        found = c.add(eye, c.div(c(ops.MatMul(), x, found), float(k)))

    def squared(c: Context, values: list[Value]) -> list[Value]:
        return [c(ops.MatMul(), values[0], values[0])]

    (result,) = times(c, c.cast(halvings, dt.int64), [found], squared)
    return c.cast(result, a.dtype)


__all__ = ["row_order"]
