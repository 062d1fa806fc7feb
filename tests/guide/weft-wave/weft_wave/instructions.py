"""The chip's instructions on strips, by their meaning: schedules match it, tests check the code against it.

The vector length is a register, so each exists in every length that it can have.
"""

from __future__ import annotations

from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor import language as tl

from weft_wave.isa import LANES

REGISTERS = "wave.v"
"""Vector registers: a buffer's rows, of a strip each."""


def axpy(n: int) -> Intrinsic:
    """c[j] += a · b[j], for n values of j: c in a register, b in memory with any stride, a a scalar."""
    k = tl.reduce_axis(1, "k")
    a, b = tl.placeholder((1,), name="A"), tl.placeholder((1, n), name="B")
    return Intrinsic(
        f"axpy{n}",
        meaning=tl.compute((n,), lambda j: tl.sum(a[k] * b[k, j], axis=k), name="C"),
        operands=(Operand("A"), Operand("B", strides=(1, None)), Operand("C", scope=REGISTERS)),
        compute=Call(f"wave_axpy{n}"),
        reset=Call(f"wave_axpy{n}_start"),
        update=Call(f"wave_axpy{n}_update"),
    )


def reduction(kind: str, n: int) -> Intrinsic:
    """The sum, or the greatest, of n elements that lie with any stride."""
    k = tl.reduce_axis(n, "k")
    a = tl.placeholder((n,), name="A")
    return Intrinsic(
        f"{kind}{n}",
        meaning=tl.compute((1,), lambda j: tl.reduce(kind, a[k], axis=k), name="C"),
        operands=(Operand("A", strides=(None,)), Operand("C")),
        compute=Call(f"wave_{kind}{n}"),
        reset=Call(f"wave_{kind}{n}_start"),
        update=Call(f"wave_{kind}{n}_update"),
    )


INTRINSICS: tuple[Intrinsic, ...] = (
    *(axpy(n) for n in range(2, LANES + 1)),
    *(reduction(kind, n) for kind in ("sum", "max") for n in (8, 16, 32, LANES)),
)
