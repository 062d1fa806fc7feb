"""Tensor intrinsics of the profile for microcontrollers: functions of C (folder `mcu`), by intrinsics of Arm's DSP
extension where the compiler has them.

`dot_rows` computes sums of products of up to two rows of int16 with rows of weights, and holds the sums in registers:
two rows by two results take four of a Cortex-M's thirteen. `dot_row` is for an odd number of results. `dot_planes`
computes sums over the taps of windows of some channels. `rescale_rows` and `rescale_planes` make bytes of such sums.
"""

from __future__ import annotations

from weft import dtypes as dt
from weft.expr.nodes import Expr, cast_to, le, maximum, minimum
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor.language import compute, placeholder, reduce_axis, var
from weft.tensor.language import sum as sum_over
from weft_c.byte_sums import Rescale

ROWS = 2
"""Rows that `dot_rows` takes at once."""


def _dot_rows() -> Intrinsic:
    m, p, q = var("m"), var("p"), var("q")
    quad, pair, half = reduce_axis(q, "quad"), reduce_axis(2, "pair"), reduce_axis(2, "half")
    a, b = placeholder((m, q, 2, 2), dt.int16, "a"), placeholder((p, q, 2, 2, 2), dt.int8, "b")

    def total(i: Expr, j: Expr, r: Expr) -> Expr:
        left = cast_to(a[i, quad, pair, half], dt.int32)
        return sum_over(left * cast_to(b[j, quad, r, half, pair], dt.int32), [quad, pair, half])

    operands = (Operand("a", align=4, strides=(None, 4, 2, 1)), Operand("b", align=4), Operand("c"))
    c = compute((m, p, 2), total, "c")
    return Intrinsic("dot_rows", c, operands, Call("dot_rows"), limits=(le(m, ROWS),), dynamic=("m", "p", "q"))


def _dot_row() -> Intrinsic:
    m, n, q = var("m"), var("n"), var("q")
    quad, pair, half = reduce_axis(q, "quad"), reduce_axis(2, "pair"), reduce_axis(2, "half")
    a, b = placeholder((m, q, 2, 2), dt.int16, "a"), placeholder((n, q, 2, 2), dt.int8, "b")

    def total(i: Expr, j: Expr) -> Expr:
        left = cast_to(a[i, quad, pair, half], dt.int32)
        return sum_over(left * cast_to(b[j, quad, half, pair], dt.int32), [quad, pair, half])

    operands = (Operand("a", align=4, strides=(None, 4, 2, 1)), Operand("b", align=4), Operand("c"))
    return Intrinsic("dot_row", compute((m, n), total, "c"), operands, Call("dot_row"), dynamic=("m", "n", "q"))


def _dot_planes() -> Intrinsic:
    p, m, n, h, w = (var(name) for name in "pmnhw")
    row, column = reduce_axis(h, "row"), reduce_axis(w, "column")
    a, b = placeholder((p, m, n, h, w), dt.int16, "a"), placeholder((p, h, w), dt.int8, "b")

    def total(k: Expr, i: Expr, j: Expr) -> Expr:
        left = cast_to(a[k, i, j, row, column], dt.int32)
        return sum_over(left * cast_to(b[k, row, column], dt.int32), [row, column])

    operands = (Operand("a", strides=(None,) * 5), Operand("b"), Operand("c", strides=(None,) * 3))
    c = compute((p, m, n), total, "c")
    return Intrinsic("dot_planes", c, operands, Call("dot_planes"), dynamic=("p", "m", "n", "h", "w"))


def _rescale_rows() -> Intrinsic:
    m, n = var("m"), var("n")
    x = placeholder((m, n), dt.int32, "x")
    term, multiplier, right = (placeholder((n,), dt.int32, name) for name in ("term", "multiplier", "right"))
    zero, low, high = (placeholder((), dt.int32, name) for name in ("zero", "low", "high"))

    def result(i: Expr, j: Expr) -> Expr:
        scaled = Rescale(True).formula(x[i, j] + term[j], multiplier[j], right[j])
        return cast_to(minimum(maximum(scaled + zero[()], low[()]), high[()]), dt.int8)

    numbers = (Operand(name, number=True) for name in ("zero", "low", "high"))
    operands = (Operand("x"), Operand("term"), Operand("multiplier"), Operand("right"), *numbers, Operand("y"))
    y = compute((m, n), result, "y")
    return Intrinsic("rescale_rows", y, operands, Call("rescale_rows"), dynamic=("m", "n"))


def _rescale_planes() -> Intrinsic:
    p, m, n = var("p"), var("m"), var("n")
    x = placeholder((p, m, n), dt.int32, "x")
    term, multiplier, right = (placeholder((p,), dt.int32, name) for name in ("term", "multiplier", "right"))
    zero, low, high = (placeholder((), dt.int32, name) for name in ("zero", "low", "high"))

    def result(k: Expr, i: Expr, j: Expr) -> Expr:
        scaled = Rescale(True).formula(x[k, i, j] + term[k], multiplier[k], right[k])
        return cast_to(minimum(maximum(scaled + zero[()], low[()]), high[()]), dt.int8)

    numbers = (Operand(name, number=True) for name in ("zero", "low", "high"))
    scales = (Operand(name) for name in ("term", "multiplier", "right"))
    operands = (Operand("x", strides=(None,) * 3), *scales, *numbers, Operand("y", strides=(None,) * 3))
    y = compute((p, m, n), result, "y")
    return Intrinsic("rescale_planes", y, operands, Call("rescale_planes"), dynamic=("p", "m", "n"))


INTRINSICS = (_rescale_rows(), _rescale_planes(), _dot_row(), _dot_rows(), _dot_planes())

__all__ = ["INTRINSICS", "ROWS"]
