"""Small integer values whose elements are known as formulas: how shapes are computed without a node.

`Shape(x)` of x [batch, 3] has the content [batch, 3]; what Gather, Concat or Mul make of it is computed on the formulas
right here, so that `Reshape(x, Concat(Shape(x)[:1], [-1]))` becomes a Reshape to formulas over `batch`. Elements are
ints, bools, int64 or bool formulas, in numpy object arrays: numpy then gives broadcasting, slicing and concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft.expr import nodes as e
from weft.expr.nodes import Const, Expr

LIMIT = 1024
"""Beyond this many elements a value is data, not a shape."""
KINDS = (dt.int64, dt.int32, dt.bool_)
"""The dtypes of values that may be shapes."""

Element = "int | bool | Expr"
"""One element: a number, a condition, or a formula of one."""


@dataclass(frozen=True, eq=False)
class Content:
    """A value known element by element: dtype (int64, int32 or bool) and an object array."""

    dtype: DType
    elements: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.elements.shape)

    @property
    def is_constant(self) -> bool:
        return all(not isinstance(x, Expr) for x in self.elements.flat)

    @property
    def fits(self) -> bool:
        """Whether every number is within the dtype's range."""
        if self.dtype.is_bool:
            return True
        bits = np.iinfo(self.dtype.numpy)
        return all(isinstance(x, Expr) or bits.min <= x <= bits.max for x in self.elements.flat)

    def array(self) -> np.ndarray[Any, Any]:
        """The numbers of a constant content.

        Raises:
            FrontendError: one of them does not fit its dtype.
        """
        try:
            return np.array(list(self.elements.flat), dtype=self.dtype.numpy).reshape(self.shape)
        except OverflowError:
            bits = np.iinfo(self.dtype.numpy)
            beyond = next(x for x in self.elements.flat if not bits.min <= x <= bits.max)
            raise FrontendError(
                f"{beyond} does not fit into {self.dtype}", hint="sizes multiply to more than memory can hold"
            ) from None

    def dims(self) -> tuple[Any, ...]:
        """The elements in order."""
        return tuple(self.elements.reshape(-1))


def content(dtype: DType, elements: Any, shape: tuple[int, ...] | None = None) -> Content:
    """A content of ints, bools and formulas; constants among them become numbers."""
    flat = (
        list(np.asarray(elements, dtype=object).reshape(-1))
        if not isinstance(elements, (list, tuple))
        else list(elements)
    )
    array = np.empty(len(flat), dtype=object)
    for k, x in enumerate(flat):
        array[k] = plain(x)
    return Content(dtype, array.reshape(np.shape(elements) if shape is None else shape))


def of_array(array: np.ndarray[Any, Any]) -> Content | None:
    """The content of a constant, if it may be a shape."""
    if array.size > LIMIT or not any(array.dtype == d.numpy for d in KINDS):
        return None
    elements = np.empty(array.shape, dtype=object)
    elements[...] = array  # numpy gives Python ints and bools
    return Content(dt.dtype(array.dtype), elements)


def plain(x: Any) -> Any:
    """A constant formula as a number."""
    if isinstance(x, Const):
        return bool(x.value) if x.dtype.is_bool else int(x.value)
    if isinstance(x, (np.bool_, np.integer)):
        return x.item()
    return x


def each(function: Callable[..., Any], dtype: DType, *operands: Content) -> Content:
    """`function` on every element of the broadcast operands."""
    result = np.frompyfunc(lambda *xs: plain(function(*xs)), len(operands), 1)(*(o.elements for o in operands))
    array = np.empty(np.shape(result), dtype=object)
    array[...] = result
    return Content(dtype, array)


# -- on elements: Python numbers or formulas --------------------------------------------------------------------------


def known(*xs: Any) -> bool:
    """Whether all elements are numbers, not formulas."""
    return not any(isinstance(x, Expr) for x in xs)


def as_int(x: Any) -> Any:
    """An element as an integer one."""
    if isinstance(x, Expr):
        return e.cast_to(x, dt.int64)
    return int(x)


def as_bool(x: Any) -> Any:
    """An element as a condition."""
    if isinstance(x, Expr):
        return x if x.dtype.is_bool else e.ne(x, 0)
    return bool(x)


def smaller(a: Any, b: Any) -> Any:
    """The lesser of two elements."""
    return min(a, b) if known(a, b) else plain(e.minimum(a, b))


def larger(a: Any, b: Any) -> Any:
    """The greater of two elements."""
    return max(a, b) if known(a, b) else plain(e.maximum(a, b))


def choose(cond: Any, a: Any, b: Any) -> Any:
    """a if cond else b."""
    if isinstance(cond, Expr):
        if known(a, b) and a == b and type(a) is type(b):
            return a
        like = dt.bool_ if isinstance(a, bool) or (isinstance(a, Expr) and a.dtype.is_bool) else dt.int64
        return plain(e.select(cond, e.wrap(a, like), e.wrap(b, like)))
    return a if cond else b


def divide(a: Any, b: Any) -> Any:
    """The quotient towards zero. Raises ZeroDivisionError if it is certain."""
    if known(a, b):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return plain(e.truncdiv(e.wrap(a, dt.int64), e.wrap(b, dt.int64)))


def compare(name: str, a: Any, b: Any) -> Any:
    """a `name` b: eq, ne, lt, le."""
    if known(a, b):
        return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b}[name]
    like = (
        dt.bool_ if any(isinstance(x, bool) or (isinstance(x, Expr) and x.dtype.is_bool) for x in (a, b)) else dt.int64
    )
    return plain(getattr(e, name)(e.wrap(a, like), e.wrap(b, like)))


def both(a: Any, b: Any) -> Any:
    """a and b."""
    return (a and b) if known(a, b) else plain(e.and_(e.wrap(a), e.wrap(b)))


def either(a: Any, b: Any) -> Any:
    """a or b."""
    return (a or b) if known(a, b) else plain(e.or_(e.wrap(a), e.wrap(b)))


def negation(a: Any) -> Any:
    """not a."""
    return (not a) if known(a) else plain(e.not_(a))
