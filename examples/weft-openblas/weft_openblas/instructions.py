"""What the library's functions mean, as instructions in loops: so that programs which call them can be interpreted, and
are proved."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.expr.nodes import const
from weft.loop.nodes import Evaluate, IntrinsicCall, Stmt
from weft.scheduling import Intrinsic, Operand, OperandView
from weft.tensor import language as tl

PREFIX = "openblas."
SIZE = 8
"""Of the product that each function is declared, and checked, as."""


def gemm(
    a: Any, a_turned: int, a_row: int, b: Any, b_turned: int, b_row: int, c: Any, c_row: int, m: int, n: int, k: int
) -> None:
    """C = A · B on addresses in buffers, as `cblas_sgemm` of row-major matrices; `turned`: it lies transposed; `row`:
    its distance of rows as it lies."""

    def places(at: Any, turned: int, row: int, rows: int, columns: int) -> Any:
        i, j = np.arange(rows)[:, None], np.arange(columns)
        return at.offset + (i + j * row if turned else i * row + j)

    left, right = a.array[places(a, a_turned, a_row, m, k)], b.array[places(b, b_turned, b_row, k, n)]
    c.array[places(c, 0, c_row, m, n)] = left @ right


gemm.addresses = True  # type: ignore[attr-defined]


def _declared(letter: str, dtype: str) -> Intrinsic:
    k = tl.reduce_axis(SIZE, "k")
    left, right = (tl.placeholder((SIZE, SIZE), dtype, name) for name in "AB")
    call = f"{PREFIX}{letter}gemm"

    def compute(a: OperandView, b: OperandView, c: OperandView) -> Stmt:
        size = const(SIZE)
        args = (
            a.address,
            const(0),
            a.strides[0],
            b.address,
            const(0),
            b.strides[0],
            c.address,
            c.strides[0],
            size,
            size,
            size,
        )
        return Evaluate(IntrinsicCall(call, args))

    return Intrinsic(
        f"{letter}gemm{SIZE}x{SIZE}",
        meaning=tl.compute((SIZE, SIZE), lambda i, j: tl.sum(left[i, k] * right[k, j], axis=k), name="C"),
        operands=tuple(Operand(name, strides=(None, 1)) for name in "ABC"),
        compute=compute,
        instructions={call: gemm},
    )


INTRINSICS = (_declared("s", "float32"), _declared("d", "float64"))
