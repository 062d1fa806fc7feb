"""The result of a type rule: the types of the outputs, and assumptions about sizes known only at run time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft import dtypes as dt
from weft.errors import literal, shown
from weft.expr.nodes import Expr, eq, free_vars, le, wrap
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.graph.nodes import TensorType, Type
from weft.tensor.language import Dim, as_dim

BRIEF = 60
"""Characters of a formula in a hint."""


@dataclass(frozen=True)
class Assumption:
    """A condition `holds` over symbols. `what` and `hint` are the texts of the error if it is false, with the values of
    `args` for {0}, {1}; names in them are written by `literal`, since they may contain braces."""

    holds: Expr
    args: tuple[Expr, ...]
    what: str
    hint: str
    of: str = ""
    """The operator that it is of, where that is not the one whose type rule says it."""

    @classmethod
    def equal(cls, a: Dim, b: Dim, what: str) -> Assumption:
        """That `a` and `b`, sizes of `what`, are equal."""
        x, y = wrap(a, dt.int64), wrap(b, dt.int64)
        hint = f"{brief(a)} and {brief(b)} must be equal"
        return cls(eq(x, y), (x, y), f"{literal(what)}: expected {{0}}, got {{1}}", hint)

    @classmethod
    def at_most(cls, a: Dim, most: Dim, what: str) -> Assumption:
        """That `a`, a size of `what`, does not exceed `most`."""
        x, y = wrap(a, dt.int64), wrap(most, dt.int64)
        hint = f"{brief(a)} must not exceed {brief(most)}"
        return cls(le(x, y), (x, y), f"{literal(what)}: expected at most {{1}}, got {{0}}", hint)


@dataclass(frozen=True, init=False)
class Inferred:
    """The result of a type rule that assumes something: the `types` of the outputs if all of `assumes` hold, which a
    run checks before it computes."""

    types: tuple[Type, ...]
    assumes: tuple[Assumption, ...]

    def __init__(self, types: Type | tuple[Type, ...], assumes: Iterable[Assumption] = ()) -> None:
        object.__setattr__(self, "types", types if isinstance(types, tuple) else (types,))
        object.__setattr__(self, "assumes", tuple(assumes))

    @classmethod
    def of(cls, result: Type | tuple[Type, ...] | Inferred) -> Inferred:
        """What a type rule gave, in whatever form."""
        return result if isinstance(result, Inferred) else cls(result)

    @property
    def type(self) -> Type:
        """The type of the one output."""
        (found,) = self.types
        return found


def with_simple_sizes(result: Inferred) -> Inferred:
    """The same types with simplified formulas, so that equal sizes have equal formulas."""
    types = tuple(_with_simple_sizes(t) for t in result.types)
    return result if types == result.types else replace(result, types=types)


def _with_simple_sizes(type: Type) -> Type:
    if not isinstance(type, TensorType) or type.is_static:
        return type
    return replace(type, shape=tuple(map(_simplified, type.shape)))


def _simplified(d: Dim) -> Dim:
    """`d` simplified, given that its symbols are not negative."""
    return d if isinstance(d, int) else as_dim(simplify(d, dict.fromkeys(free_vars(d), Range(0, None))))


def brief(d: Dim) -> str:
    """A formula in an error's template; of a long one its ends."""
    return literal(shown(d, BRIEF))


__all__ = ["Assumption", "Inferred"]
