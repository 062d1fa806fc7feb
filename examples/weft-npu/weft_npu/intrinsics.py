"""The machine's instructions as tensor intrinsics: what each means, where its operands lie, its name in code.

Copies and vectors take their lengths as operands, up to what the machine has; a number may stand for an operand of a
vector. The vector unit has no reductions: one step of a sum, `C += A`, is the update of a reduction over one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft import dtypes as dt
from weft.expr.functions import call
from weft.expr.nodes import Cast, Expr, Select, and_, eq, le, lt, maximum, minimum, not_, or_
from weft.scheduling import Call, Intrinsic, Operand
from weft.tensor import language as tl
from weft_npu.isa import MAX_RANK, MEMORIES, ROWS, TILE, VECTOR

A_SCOPE, B_SCOPE, C_SCOPE, V_SCOPE = CHIP = tuple(f"npu.{name}" for name in MEMORIES)


# -- the matrix unit


def _gemm(rows: int) -> Intrinsic:
    a, b = tl.placeholder((rows, TILE), name="A"), tl.placeholder((TILE, TILE), name="B")
    k = tl.reduce_axis(TILE, "k")
    c = tl.compute((rows, TILE), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), name="C", axes=["i", "j"])
    # Rows lie any number of elements apart: a stride of a convolution is a distance of rows.
    operands = tuple(Operand(n, scope=s, strides=(None, 1)) for n, s in zip("ABC", (A_SCOPE, B_SCOPE, C_SCOPE)))
    name = f"gemm{rows}x8"
    return Intrinsic(
        name, c, operands, Call(name), Call("fill_zero") if rows == TILE else None, Call(f"fuse_{name}_add")
    )


GEMM, GEMV = _gemm(TILE), _gemm(1)


# -- copies


def _copy(name: str, source: Sequence[str], target: Sequence[str]) -> Intrinsic:
    sizes = [tl.var(f"n{k}") for k in range(MAX_RANK)]
    a = tl.placeholder(sizes, name="A")
    c = tl.compute(sizes, lambda *i: a[i], name="C", axes=[f"i{k}" for k in range(MAX_RANK)])
    operands = (
        Operand("A", tuple(source), strides=(None,) * MAX_RANK),
        Operand("C", tuple(target), strides=(None,) * MAX_RANK),
    )
    return Intrinsic(name, c, operands, Call(name))


LOAD, STORE = _copy("dma.load", ["global"], CHIP), _copy("dma.store", CHIP, ["global"])


# -- the vector unit

_M, _N = tl.var("m"), tl.var("n")
_LIMITS = (le(_M, ROWS), le(_M * _N, VECTOR))
F32, BOOL = dt.float32, dt.bool_


def _operands(sources: int) -> tuple[Operand, ...]:
    return (
        *(Operand("ABD"[k], CHIP, strides=(None, None), number=True) for k in range(sources)),
        Operand("C", CHIP, strides=(None, None)),
    )


def _vector(name: str, value: Callable[..., Any], *dtypes: dt.DType) -> Intrinsic:
    """C[i, j] = value(A[i, j], B[i, j], …); rows and elements any number of elements apart, or none."""
    sources = [tl.placeholder((_M, _N), dtype, "ABD"[k]) for k, dtype in enumerate(dtypes)]
    c = tl.compute((_M, _N), lambda i, j: value(*(s[i, j] for s in sources)), name="C", axes=["i", "j"])
    return Intrinsic(name, c, _operands(len(dtypes)), Call(name), limits=_LIMITS)


def _step(name: str, reducer: str, value: Callable[..., Any], sources: int, start: str) -> Intrinsic:
    """One step of a reduction: C[i, j] becomes reducer(C[i, j], value(…)); the first makes it value(…)."""
    given = [tl.placeholder((_M, _N), F32, "ABD"[k]) for k in range(sources)]
    k = tl.reduce_axis(1, "k")
    c = tl.compute(
        (_M, _N), lambda i, j: tl.reduce(reducer, value(*(s[i, j] for s in given)), k), name="C", axes=["i", "j"]
    )
    return Intrinsic(name, c, _operands(sources), Call(f"{name}.first"), Call(start), Call(name), limits=_LIMITS)


def _of(function: str) -> Callable[[Expr], Expr]:
    return lambda a: call(function, a)


FUNCTIONS = ("abs", "exp", "log", "sqrt", "tanh", "erf", "floor", "ceil")
VECTORS = (
    _vector("vec.copy", lambda a: a, F32),
    *(_vector(f"vec.{f}", _of(f), F32) for f in FUNCTIONS),
    _vector("vec.add", lambda a, b: a + b, F32, F32),
    _vector("vec.sub", lambda a, b: a - b, F32, F32),
    _vector("vec.mul", lambda a, b: a * b, F32, F32),
    _vector("vec.div", lambda a, b: a / b, F32, F32),
    _vector("vec.max", maximum, F32, F32),
    _vector("vec.min", minimum, F32, F32),
    # As formulas of models spell them; they agree with max and min wherever the bound is a number.
    _vector("vec.atleast", lambda a, b: Select(lt(a, b), b, a), F32, F32),
    _vector("vec.atmost", lambda a, b: Select(lt(b, a), b, a), F32, F32),
    _vector("vec.fma", lambda a, b, c: a * b + c, F32, F32, F32),
    _vector("vec.lt", lt, F32, F32),
    _vector("vec.le", le, F32, F32),
    _vector("vec.eq", eq, F32, F32),
    _vector("vec.and", and_, BOOL, BOOL),
    _vector("vec.or", or_, BOOL, BOOL),
    _vector("vec.not", not_, BOOL),
    _vector("vec.number", lambda a: Cast(a, F32), BOOL),
    _vector("vec.select", Select, BOOL, F32, F32),
    _step("vec.sum", "sum", lambda a: a, 1, "vec.zero"),
    _step("vec.mac", "sum", lambda a, b: a * b, 2, "vec.zero"),
    _step("vec.product", "prod", lambda a: a, 1, "vec.one"),
    _step("vec.greatest", "max", lambda a: a, 1, "vec.lowest"),
    _step("vec.least", "min", lambda a: a, 1, "vec.highest"),
)

INTRINSICS = (GEMM, GEMV, LOAD, STORE, *VECTORS)
