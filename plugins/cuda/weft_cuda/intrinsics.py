"""Tensor cores as tensor intrinsics: products of small matrices that a warp holds together, and copies that bring these
to and from shared memory.

    C[i, j] += Σ_k A[i, k]·B[k, j]        i and j in 16, k in 8, 16 or 32

A, B and C are fragments: 32 threads hold them by the layouts of mma.sync, which only the functions of `weft_tiles.h`
know. Factors come by ldmatrix, where it has elements of their size. Source: NVIDIA, "Parallel Thread Execution ISA",
"Matrix multiply-accumulate operation using mma instruction". Products of float16 and bfloat16 are exact in float32; the
hardware adds them in an order of its own and may cut bits below the greatest's last, so that sums are about as near as
float32's. TF32 keeps 10 bits after the point of the factors of a float32 product, rounded to nearest by mma.sync's
loads, cut by wgmma, which reads memory itself: a target has it only where it is asked for (-tf32).

On sm_90a four warps take 64 rows and 64 or 128 columns together (wgmma), whose factors stay in shared memory, in core
matrices of 8 rows of 16 bytes:

    C[i, i', j, j'] += Σ A·B        i', j', k' in 8 (k' in 4 or 16 where elements have 4 bytes or one)

with A as A[k, i, i', k'], where lines go along the sum, or of 16 bits as A[i, k, k', i'], where they go along rows; B
alike, with j for i. Source: the same, "Asynchronous warpgroup level matrix instructions", "Shared memory matrix layout"
without swizzling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import Expr, cast_to
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor.language import Tensor, compute, placeholder, reduce_axis, sum

A, B, C, SHARED = "fragment.a", "fragment.b", "fragment.c", "shared"
SIDE = 16
"""Rows and columns of a result."""


@dataclass(frozen=True)
class Mma:
    """One instruction: `word` is its name here, `requires` the features that it needs, `bits` the significant ones that
    it takes of its factors; None: all."""

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
    a, b, k = (
        placeholder((SIDE, m.depth), m.factor, "a"),
        placeholder((m.depth, SIDE), m.factor, "b"),
        reduce_axis(m.depth, "k"),
    )

    def element(i: Expr, j: Expr) -> Expr:
        x, y = a[i, k], b[k, j]
        return sum(x * y if m.factor == m.result else cast_to(x, m.result) * cast_to(y, m.result), axis=k)

    meaning = compute((SIDE, SIDE), element, "c")
    operands = (Operand("a", A, bits=m.bits), Operand("b", B, bits=m.bits), Operand("c", C))
    return Intrinsic(
        f"mma_{m.word}",
        meaning,
        operands,
        Call(f"mma_{m.word}_first"),
        Call(f"fill_{m.word}"),
        Call(f"mma_{m.word}"),
        m.requires,
    )


def copy(
    name: str,
    shape: tuple[int, int],
    d: DType,
    source: str,
    to: str,
    requires: tuple[str, ...],
    bits: int | None = None,
) -> Intrinsic:
    """A matrix between a fragment and rows of shared memory that begin at multiples of 16 bytes."""
    x = placeholder(shape, d, "x")
    y = compute(shape, lambda i, j: x[i, j], "y")
    rows = {SHARED: (None, 1)}
    operands = tuple(
        Operand(n, s, 16 if s == SHARED else 1, rows.get(s), bits=bits) for n, s in (("x", source), ("y", to))
    )
    return Intrinsic(name, y, operands, Call(name), requires=requires)


def intrinsics() -> Iterator[Intrinsic]:
    """All of them; what a machine lacks, `requires` leaves out."""
    for m in MMAS:
        yield product(m)
        yield copy(f"load_a_{m.word}", (SIDE, m.depth), m.factor, SHARED, A, m.requires, m.bits)
        yield copy(f"load_b_{m.word}", (m.depth, SIDE), m.factor, SHARED, B, m.requires, m.bits)
    for d in (dt.float32, dt.int32):
        yield copy(f"store_{d}", (SIDE, SIDE), d, C, SHARED, ("mma",))
    yield from wide_intrinsics()


# -- warp groups ------------------------------------------------------------------------------------------------------

WIDE, GROUP_WARPS = "fragment.wide", 4
GROUP_ROWS, GROUP_COLUMNS, CORE_MATRIX = 64, (64, 128), 8
CHAIN = 128
"""Bytes of terms of one chain of instructions, of which each takes 32."""
_WAYS = ("along", "across")
"""How rows of a factor's core matrices go: along the sum, or across it."""


def ways(m: Mma) -> list[tuple[str, str]]:
    """Of the left factor and the right one; only elements of 16 bits go across the sum."""
    return [(a, b) for a in _WAYS for b in _WAYS] if m.factor.bytes == 2 else [("along", "along")]


def wide_product(m: Mma, columns: int, left: str, right: str) -> Intrinsic:
    """A sum of products of a warp group, whose factors lie in shared memory."""
    line = 16 // m.factor.bytes
    terms = reduce_axis(CHAIN // 16, "k"), reduce_axis(line, "l")

    def factor(name: str, side: int, way: str) -> tuple[Tensor, Callable[[Expr, Expr], Expr]]:
        if way == "along":
            x = placeholder((CHAIN // 16, side // CORE_MATRIX, CORE_MATRIX, line), m.factor, name)
            return x, lambda i, j: x[terms[0], i, j, terms[1]]
        y = placeholder((side // CORE_MATRIX, CHAIN // 16, line, CORE_MATRIX), m.factor, name)
        return y, lambda i, j: y[i, terms[0], terms[1], j]

    (_, a), (_, b) = factor("a", GROUP_ROWS, left), factor("b", columns, right)

    def element(i: Expr, i1: Expr, j: Expr, j1: Expr) -> Expr:
        x, y = a(i, i1), b(j, j1)
        return sum(x * y if m.factor == m.result else cast_to(x, m.result) * cast_to(y, m.result), axis=list(terms))

    meaning = compute((GROUP_ROWS // CORE_MATRIX, CORE_MATRIX, columns // CORE_MATRIX, CORE_MATRIX), element, "c")
    strides = (None, CORE_MATRIX * line, line, 1)
    operands = (
        Operand("a", SHARED, 16, strides, bits=m.bits),
        Operand("b", SHARED, 16, strides, bits=m.bits),
        Operand("c", WIDE),
    )
    name = f"wgmma_{m.word}_{columns}_{left}_{right}"
    requires = ("wgmma", "arch-specific", *(r for r in m.requires if r != "mma"))
    return Intrinsic(
        name,
        meaning,
        operands,
        Call(f"{name}_first"),
        Call(f"wide_fill_{m.result}_{columns}"),
        Call(name),
        requires,
        warps=GROUP_WARPS,
    )


def wide_store(d: DType, columns: int) -> Intrinsic:
    """A warp group's result to shared memory."""
    x = placeholder((GROUP_ROWS // CORE_MATRIX, CORE_MATRIX, columns // CORE_MATRIX, CORE_MATRIX), d, "x")
    y = compute(tuple(x.shape), lambda i, i1, j, j1: x[i, i1, j, j1], "y")
    operands = (Operand("x", WIDE), Operand("y", SHARED, 16, (None, None, CORE_MATRIX, 1)))
    name = f"wide_store_{d}_{columns}"
    return Intrinsic(name, y, operands, Call(name), requires=("wgmma", "arch-specific"), warps=GROUP_WARPS)


def wide_intrinsics() -> Iterator[Intrinsic]:
    """Those of warp groups."""
    for columns in GROUP_COLUMNS:
        for m in MMAS:
            for left, right in ways(m):
                yield wide_product(m, columns, left, right)
        for d in (dt.float32, dt.int32):
            yield wide_store(d, columns)


def _wide_templates() -> Iterator[tuple[str, str]]:
    for n in GROUP_COLUMNS:
        for d in ("float32", "int32"):
            yield f"wide_fill_{d}_{n}", f"weft_wide_fill<{n}>({{0:address}})"
            yield f"wide_store_{d}_{n}", f"weft_wide_store<{n}>({{0:address}}, {{1:address}}, {{2}}, {{3}})"
        for m in MMAS:
            for left, right in ways(m):
                name = f"wgmma_{m.word}_{n}_{left}_{right}"
                turns = ", ".join(str(_WAYS.index(w)) for w in (left, right))
                call = f"weft_wgmma_{m.word}<{n}, {turns}>({{0:address}}, {{1}}, {{2:address}}, {{3}}, {{4:address}})"
                yield name, call
                yield f"{name}_first", f"weft_wide_fill<{n}>({{4:address}}), {call}"


OF_WARPS = 0.62
"""What the instructions of single warps reach of the rate of those of warp groups, on GPUs that have these. Source: Luo
et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024."""


def rates(dense: int, features: frozenset[str]) -> dict[str, int]:
    """Operations that a multiprocessor starts in a cycle by each product that its features allow, from those on
    float16."""
    found = {}
    for i in intrinsics():
        if i.reduction is not None and features.issuperset(i.requires):
            rate = 2 * dense // i.tensors[0].dtype.bytes
            found[i.name] = int(rate * OF_WARPS) if "wgmma" in features and i.warps == 1 else rate
    return found


TEMPLATES: dict[str, str] = {
    **dict(_wide_templates()),
    **{f"mma_{m.word}": f"weft_mma_{m.word}({{0:address}}, {{1:address}}, {{2:address}})" for m in MMAS},
    **{
        f"mma_{m.word}_first": (
            f"weft_fill({{2:address}}), weft_mma_{m.word}({{0:address}}, {{1:address}}, {{2:address}})"
        )
        for m in MMAS
    },
    **{f"fill_{m.word}": "weft_fill({0:address})" for m in MMAS},
    **{
        f"load_{side}_{m.word}": f"weft_load_{side}({{0:address}}, {{1}}, {{2:address}})" for m in MMAS for side in "ab"
    },
    **{f"store_{d}": "weft_store({0:address}, {1:address}, {2})" for d in ("float32", "int32")},
}
"""Instruction → the call of a function of `weft_tiles.h`."""
