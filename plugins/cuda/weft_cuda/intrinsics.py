"""Tensor cores as tensor intrinsics: products of small matrices that a warp holds together, and copies that bring these to and from shared memory.

    C[i, j] += Σ_k A[i, k]·B[k, j]        i and j in 16, k in 8, 16 or 32

A, B and C are fragments: 32 threads hold them by the layouts of mma.sync, which only the functions of `weft_tiles.h` know. Factors come by ldmatrix, where it
has elements of their size. Source: NVIDIA, "Parallel Thread Execution ISA", "Matrix multiply-accumulate operation using mma instruction". Products of float16
and bfloat16 are exact in float32; the hardware adds them in an order of its own and may cut bits below the greatest's last, so that sums are about as near as
float32's. TF32 keeps 10 bits of the factors of a float32 product: a target has it only where it is asked for (-tf32).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import cast_to
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor.language import compute, placeholder, reduce_axis, sum

A, B, C, SHARED = "fragment.a", "fragment.b", "fragment.c", "shared"
SIDE = 16
"""Rows and columns of a result."""


@dataclass(frozen=True)
class Mma:
    """One instruction: `word` is its name here, `requires` the features that it needs, `bits` the significant ones that it takes of its factors; None: all."""

    word: str
    factor: DType
    result: DType
    requires: tuple[str, ...]
    bits: int | None = None

    @property
    def depth(self) -> int:
        """Terms: of the left factor 32 bytes in a row."""
        return 32 // self.factor.bytes


MMAS: tuple[Mma, ...] = (
    Mma("f16", dt.float16, dt.float32, ("mma",)),
    Mma("bf16", dt.bfloat16, dt.float32, ("mma",)),
    Mma("tf32", dt.float32, dt.float32, ("mma", "tf32"), 11),
    Mma("s8", dt.int8, dt.int32, ("mma",)),
    Mma("u8", dt.uint8, dt.int32, ("mma",)),
)


def product(m: Mma) -> Intrinsic:
    """A sum of products in fragments."""
    a, b, k = placeholder((SIDE, m.depth), m.factor, "a"), placeholder((m.depth, SIDE), m.factor, "b"), reduce_axis(m.depth, "k")

    def element(i: object, j: object) -> object:
        x, y = a[i, k], b[k, j]
        return sum(x * y if m.factor == m.result else cast_to(x, m.result) * cast_to(y, m.result), axis=k)

    meaning = compute((SIDE, SIDE), element, "c")
    operands = (Operand("a", A, bits=m.bits), Operand("b", B, bits=m.bits), Operand("c", C))
    return Intrinsic(f"mma_{m.word}", meaning, operands, Call(f"mma_{m.word}_first"), Call(f"fill_{m.word}"), Call(f"mma_{m.word}"), m.requires)


def copy(name: str, shape: tuple[int, int], d: DType, source: str, to: str, requires: tuple[str, ...], bits: int | None = None) -> Intrinsic:
    """A matrix between a fragment and rows of shared memory that begin at multiples of 16 bytes."""
    x = placeholder(shape, d, "x")
    y = compute(shape, lambda i, j: x[i, j], "y")
    rows = {SHARED: (None, 1)}
    operands = tuple(Operand(n, s, 16 if s == SHARED else 1, rows.get(s), bits=bits) for n, s in (("x", source), ("y", to)))
    return Intrinsic(name, y, operands, Call(name), requires=requires)


def intrinsics() -> Iterator[Intrinsic]:
    """All of them; what a machine lacks, `requires` leaves out."""
    for m in MMAS:
        yield product(m)
        yield copy(f"load_a_{m.word}", (SIDE, m.depth), m.factor, SHARED, A, m.requires, m.bits)
        yield copy(f"load_b_{m.word}", (m.depth, SIDE), m.factor, SHARED, B, m.requires, m.bits)
    for d in (dt.float32, dt.int32):
        yield copy(f"store_{d}", (SIDE, SIDE), d, C, SHARED, ("mma",))


TEMPLATES: dict[str, str] = {
    **{f"mma_{m.word}": f"weft_mma_{m.word}({{0:address}}, {{1:address}}, {{2:address}})" for m in MMAS},
    **{f"mma_{m.word}_first": f"weft_fill({{2:address}}), weft_mma_{m.word}({{0:address}}, {{1:address}}, {{2:address}})" for m in MMAS},
    **{f"fill_{m.word}": "weft_fill({0:address})" for m in MMAS},
    **{f"load_{side}_{m.word}": f"weft_load_{side}({{0:address}}, {{1}}, {{2:address}})" for m in MMAS for side in "ab"},
    **{f"store_{d}": "weft_store({0:address}, {1:address}, {2})" for d in ("float32", "int32")},
}
"""Instruction → the call of a function of `weft_tiles.h`."""
