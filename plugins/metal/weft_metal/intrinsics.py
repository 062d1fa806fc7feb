"""Matrices of SIMD groups as tensor intrinsics: products of 8 × 8 that 32 threads hold together, and copies that bring
them from and to threadgroup memory.

    C[i, j] += Σ_k A[i, k]·B[k, j]        i, j and k in 8; A and B of float32, float16 or bfloat16, C of float32

Source: "Metal Shading Language Specification", Apple, "SIMD-group matrix functions". Products of float32 are float32's
own.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import Expr, cast_to
from weft.scheduling.intrinsic import Call, Intrinsic, Operand
from weft.tensor.language import compute, placeholder, reduce_axis, sum

FACTOR, RESULT, SHARED = "fragment.factor", "fragment.result", "shared"
SIDE = 8
WORDS = {dt.float32: "f32", dt.float16: "f16", dt.bfloat16: "bf16"}
"""dtypes of factors → what names call them."""


def product(d: DType) -> Intrinsic:
    """A sum of products in fragments."""
    a, b, k = placeholder((SIDE, SIDE), d, "a"), placeholder((SIDE, SIDE), d, "b"), reduce_axis(SIDE, "k")

    def element(i: Expr, j: Expr) -> Expr:
        x, y = a[i, k], b[k, j]
        return sum(x * y if d == dt.float32 else cast_to(x, dt.float32) * cast_to(y, dt.float32), axis=k)

    meaning = compute((SIDE, SIDE), element, "c")
    operands = (Operand("a", FACTOR), Operand("b", FACTOR), Operand("c", RESULT))
    name = f"simdgroup_{WORDS[d]}"
    return Intrinsic(name, meaning, operands, Call(f"{name}_first"), Call("simdgroup_fill"), Call(name), _requires(d))


def _requires(d: DType) -> tuple[str, ...]:
    return ("simdgroup_matrix", *(("bfloat",) if d == dt.bfloat16 else ()))


def _copy(name: str, d: DType, source: str, to: str) -> Intrinsic:
    """A matrix between a fragment and rows in threadgroup memory."""
    x = placeholder((SIDE, SIDE), d, "x")
    y = compute((SIDE, SIDE), lambda i, j: x[i, j], "y")
    operands = tuple(Operand(n, s, 1, (None, 1) if s == SHARED else None) for n, s in (("x", source), ("y", to)))
    return Intrinsic(name, y, operands, Call(name), requires=_requires(d))


def intrinsics() -> Iterator[Intrinsic]:
    """All of them; what a family lacks, `requires` leaves out."""
    for d, word in WORDS.items():
        yield product(d)
        yield _copy(f"simdgroup_load_{word}", d, SHARED, FACTOR)
    yield _copy("simdgroup_store", dt.float32, RESULT, SHARED)


HEADER = (
    "template <typename T> struct weft_element { typedef T type; };",
    "template <> struct weft_element<ushort> { typedef bfloat type; };  // which is carried as a word",
    "// SIZE elements in matrices of 64: the address of a matrix's first element is the matrix's.",
    "template <typename T, int SIZE> struct weft_fragment {",
    "  typedef simdgroup_matrix<typename weft_element<T>::type, 8, 8> matrix;",
    "  matrix each[SIZE / 64];",
    "  thread matrix &operator[](long e) { return each[e / 64]; }",
    "};",
)
SCOPES = dict.fromkeys((FACTOR, RESULT), "weft_fragment<{type}, {size}> {name};")
_FILL = "*({result}) = make_filled_simdgroup_matrix<float, 8, 8>(0.0f)"
_MULTIPLY = "simdgroup_multiply_accumulate(*({2:address}), *({0:address}), *({1:address}), *({2:address}))"
TEMPLATES: dict[str, str] = {
    **{f"simdgroup_{w}": _MULTIPLY for w in WORDS.values()},
    **{f"simdgroup_{w}_first": f"{_FILL.format(result='{2:address}')}; {_MULTIPLY}" for w in WORDS.values()},
    "simdgroup_fill": _FILL.format(result="{0:address}"),
    "simdgroup_load_f32": "simdgroup_load(*({2:address}), {0:address}, ulong({1}))",
    "simdgroup_load_f16": "simdgroup_load(*({2:address}), {0:address}, ulong({1}))",
    "simdgroup_load_bf16": "simdgroup_load(*({2:address}), (threadgroup const bfloat *)({0:address}), ulong({1}))",
    "simdgroup_store": "simdgroup_store(*({0:address}), {1:address}, ulong({2}))",
}
"""Instruction → its text."""
