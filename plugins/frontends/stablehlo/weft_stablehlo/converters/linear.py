"""Linear algebra, row by row: triangular systems, also by the routines of LAPACK that JAX calls on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft_ops as ops
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
