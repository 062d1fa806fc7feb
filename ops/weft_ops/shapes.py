"""What the type rules of operators share: axes, broadcasting, and dimensions that are ints or formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError, literal
from weft.expr.nodes import Const, Expr, ceildiv, eq, floordiv, free_vars, le, lt, maximum, minimum, or_, select, wrap
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.graph.inferred import Assumption
from weft.graph.nodes import TensorType, Type
from weft.tensor.language import Dim, as_dim, factors

Shape = tuple[Dim, ...]
"""Sizes of dimensions, each an int or an int64 formula over symbols."""


# -- dimensions -------------------------------------------------------------------------------------------------------


def dim_expr(d: Dim) -> Expr:
    """A dimension as an int64 formula."""
    return wrap(d, dt.int64)


def dim_min(a: Dim, b: Dim) -> Dim:
    """The lesser of two dimensions."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else as_dim(minimum(a, b))


def dim_max(a: Dim, b: Dim) -> Dim:
    """The greater of two dimensions."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else as_dim(maximum(a, b))


def dim_ceildiv(a: Dim, b: Dim) -> Dim:
    """a / b rounded up; b positive."""
    return -(-a // b) if isinstance(a, int) and isinstance(b, int) else as_dim(ceildiv(dim_expr(a), b))


def dim_floordiv(a: Dim, b: Dim) -> Dim:
    """a / b rounded down; b positive."""
    return a // b if isinstance(a, int) and isinstance(b, int) else as_dim(floordiv(dim_expr(a), b))


def dim_select(cond: bool | Expr, a: Dim, b: Dim) -> Dim:
    """`a` where `cond` (a bool or a formula) holds, else `b`."""
    if isinstance(cond, bool):
        return a if cond else b
    return as_dim(select(cond, dim_expr(a), dim_expr(b)))


def simplified(d: Dim) -> Dim:
    """`d` simplified, given that its symbols are not negative."""
    if isinstance(d, int):
        return d
    return as_dim(simplify(d, {name: Range(0, None) for name in free_vars(d)}))


def same(a: Dim, b: Dim) -> bool | None:
    """Whether two dimensions are equal: True or False if that is certain, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, Expr) and isinstance(b, Expr) and a == b:
        return True
    difference = simplified(as_dim(dim_expr(a) - dim_expr(b)))
    return None if isinstance(difference, Expr) else difference == 0


def unify(a: Dim, b: Dim, what: str, assumed: list[Assumption]) -> Dim:
    """The one value of two dimensions that must agree: the number if one is. Where that is known only at run time,
    that goes to `assumed`.

    Raises:
        GraphError: they differ.
    """
    equal = same(a, b)
    if equal is False:
        raise GraphError(f"{what}: expected {a}, got {b}")
    if equal is None:
        assumed.append(Assumption.equal(a, b, what))
    return b if isinstance(b, int) else a


def expect_some(n: Dim, wanted: Dim, what: str, assumed: list[Assumption]) -> None:
    """Refuses an axis of no elements where `wanted` results, some, are made of its elements wherever they lie. Where
    that is known only at run time, it goes to `assumed`.

    Raises:
        GraphError: there are none.
    """
    if (isinstance(n, int) and n > 0) or (isinstance(wanted, int) and wanted <= 0):
        return
    if isinstance(n, int) and isinstance(wanted, int):
        raise GraphError(f"{what}: expected 1 element or more, got {n}")
    size = dim_expr(n)
    holds = or_(lt(0, size), le(dim_expr(wanted), 0))
    text = f"{literal(what)}: expected 1 element or more, got {{0}}"
    assumed.append(Assumption(holds, (size,), text, f"{literal(n)} must be at least 1"))


def expect_positive(n: Dim, what: str, assumed: list[Assumption]) -> None:
    """Refuses a step or a length below 1. Where that is known only at run time, it goes to `assumed`.

    Raises:
        GraphError: it is certainly below 1.
    """
    if isinstance(n, int):
        if n < 1:
            raise GraphError(f"{what}: expected 1 or more, got {n}")
        return
    text = f"{literal(what)}: expected 1 or more, got {{0}}"
    assumed.append(Assumption(le(dim_expr(1), n), (n,), text, f"{literal(n)} must be at least 1"))


def unify_shapes(a: Sequence[Dim], b: Sequence[Dim], what: str, assumed: list[Assumption]) -> Shape:
    """Two shapes that must agree, dimension by dimension, as `unify` has it."""
    if len(a) != len(b):
        raise GraphError(f"{what}: expected shape {show(a)}, got {show(b)}")
    return tuple(unify(x, y, f"{what}, dimension {k}", assumed) for k, (x, y) in enumerate(zip(a, b)))


def broadcast(*shapes: Sequence[Dim], assumed: list[Assumption]) -> Shape:
    """numpy's broadcast of shapes; 1 gives way to anything. What is known only at run time goes to `assumed`.

    Raises:
        GraphError: the shapes do not broadcast.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for k, d in enumerate(shape, start=rank - len(shape)):
            if isinstance(d, int) and d == 1:
                continue
            if isinstance(result[k], int) and result[k] == 1:
                result[k] = d
            else:
                try:
                    result[k] = unify(result[k], d, f"broadcast, dimension {k}", assumed)
                except GraphError as error:
                    raise GraphError(
                        f"shapes {' and '.join(show(s) for s in shapes)} do not broadcast: {error.what}", why=error.why
                    ) from error
    return tuple(result)


def broadcast_indices(shape: Sequence[Dim], indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices into a tensor of `shape` that broadcasts over `indices`: the trailing ones, 0 where the tensor has
    one element."""
    tail = indices[len(indices) - len(shape) :]
    return tuple(Const(0, dt.int64) if isinstance(d, int) and d == 1 else i for d, i in zip(shape, tail))


def show(shape: Sequence[Dim]) -> str:
    """Dimensions as text, `[n, 3]`."""
    return f"[{', '.join(str(d) for d in shape)}]"


def static(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Dimensions as numbers, for a reference.

    Raises:
        GraphError: one is a formula whose symbols have no value.
    """
    result = []
    for d in dims:
        d = as_dim(d)
        if not isinstance(d, int):
            raise GraphError(f"dimension '{d}' has no value here", hint="substitute the symbols first")
        result.append(d)
    return tuple(result)


# -- products ---------------------------------------------------------------------------------------------------------


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions, constants first; 1 if there is none."""
    number, symbolic = factors(dims)
    result: Dim = number
    if number:
        for e in symbolic.elements():
            result = as_dim(
                e if isinstance(result, int) and result == 1 else e * result if isinstance(result, int) else result * e
            )
    return result


def quotient(dims: Sequence[Dim], by: Sequence[Dim]) -> Dim:
    """Π dims // Π by; common factors cancel first."""
    (n, a), (m, b) = factors(dims), factors(by)
    common = a & b
    shared = math.gcd(n, m) if n and m else 1
    top, bottom = product([n // shared, *(a - common).elements()]), product([m // shared, *(b - common).elements()])
    if isinstance(bottom, int) and bottom in (0, 1):
        return top
    return dim_floordiv(top, bottom)


# -- operands ---------------------------------------------------------------------------------------------------------


def tensor(type: Type | None, what: str = "operand") -> TensorType:
    """The operand's type, which must be a tensor.

    Raises:
        GraphError: the operand is absent, a sequence or an optional.
    """
    if not isinstance(type, TensorType):
        raise GraphError(f"{what}: expected a tensor, got {'nothing' if type is None else type}")
    return type


def operands(types: Sequence[Type | None], count: int | None = None) -> list[TensorType]:
    """The operands' types, which must all be tensors, `count` of them."""
    if count is not None and len(types) != count:
        raise GraphError(f"expected {count} operand(s), got {len(types)}")
    return [tensor(t, f"operand {k}") for k, t in enumerate(types)]


def one_dtype(types: Sequence[TensorType]) -> DType:
    """The common dtype of operands.

    Raises:
        GraphError: they differ.
    """
    for k, t in enumerate(types):
        if t.dtype != types[0].dtype:
            raise GraphError(f"operand {k}: expected dtype {types[0].dtype}, got {t.dtype}", hint="cast first")
    return types[0].dtype


def widened(weights: TensorType, x: TensorType) -> TensorType:
    """The type that weights have once they are read: those of a narrower float than x are widened to it."""
    narrower = x.dtype.is_float and weights.dtype.is_float and weights.dtype.bits < x.dtype.bits
    return replace(weights, dtype=x.dtype) if narrower else weights


def expect_kind(dtype: DType, kinds: Sequence[str], what: str = "operand") -> None:
    """Raises GraphError unless the dtype's kind is one of `kinds`."""
    if dtype.kind not in kinds:
        raise GraphError(f"{what}: expected {' or '.join(kinds)}, got {dtype}")


def expect_rank(type: TensorType, rank: int, what: str = "operand") -> None:
    """Checks the number of dimensions of an operand, which the error calls `what`.

    Raises:
        GraphError: it is not `rank`.
    """
    if type.rank != rank:
        raise GraphError(f"{what}: expected {rank} dimension(s), got {type.rank}: {show(type.shape)}")


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        GraphError: out of range.
    """
    if not -rank <= axis < rank:
        raise GraphError(f"axis: expected {-rank} … {rank - 1}, got {axis}")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, which must differ."""
    result = tuple(axis_of(a, rank) for a in axes)
    if len(set(result)) != len(result):
        raise GraphError(f"axes: expected different ones, got {tuple(axes)}")
    return result


def is_one(d: Dim) -> bool:
    """Whether a dimension is the int 1 (a formula never is)."""
    return isinstance(d, int) and d == 1


def equals(a: Dim, b: Dim) -> Expr:
    """The condition that two dimensions are equal."""
    return eq(dim_expr(a), dim_expr(b))
