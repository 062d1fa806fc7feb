"""Operators whose result is their operand, unconditionally or under a condition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError, fill
from weft.expr.nodes import Const, Expr, all_of, le, wrap
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import Type
from weft.graph.operator import Array, Elementwise, Sample
from weft.tensor.language import Dim

_SAMPLE = np.linspace(-2.0, 2.0, 6, dtype=np.float32).reshape(2, 3)


def same_type(*types: Type | None) -> Type:
    """The type of the one operand, whatever it is.

    Raises:
        GraphError: there is none, or there are several.
    """
    if len(types) != 1:
        raise GraphError(f"expected 1 operand(s), got {len(types)}")
    if types[0] is None:
        raise GraphError("operand 0: expected a tensor, got nothing")
    return types[0]


@dataclass(frozen=True)
class Identity(Elementwise):
    """The operand, of any dtype."""

    def infer(self, *types: Type | None) -> Type:
        return same_type(*types)

    def formula(self, *args: Expr) -> Expr:
        return args[0]

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (_SAMPLE,), "float32")
        yield Sample(cls(), (np.array([True, False]),), "bool")


@dataclass(frozen=True)
class Require(Elementwise):
    """The operand, of any dtype, provided that low ≤ value ≤ high (None: unbounded); else the run ends with an error
    before anything uses it.

    `what` is the error's text, with `args` for {0}, {1}, …; `of` the operator that requires it. All but those are
    numbers, or formulas over sizes and data symbols: what bounds elements reads their least and greatest as such
    (`Composer.within`).
    """

    value: Dim
    low: Dim | None = None
    high: Dim | None = None
    what: str = ""
    args: tuple[Dim, ...] = ()
    of: str = "Require"

    states: ClassVar[bool] = True
    is_view = True

    @property
    def holds(self) -> Expr:
        """The condition."""
        pairs = [
            (x, y) for x, y in ((self.low, self.value), (self.value, self.high)) if x is not None and y is not None
        ]
        return all_of(le(wrap(x, dt.int64), wrap(y, dt.int64)) for x, y in pairs)

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError if it certainly does not hold."""
        holds = self.holds
        if isinstance(holds, Const):
            if not holds.value:
                raise GraphError(fill(self.what, self.args))
            return Inferred(same_type(*types))
        args = tuple(wrap(x, dt.int64) for x in self.args)
        return Inferred(same_type(*types), [Assumption(holds, args, self.what, "", self.of)])

    def formula(self, *args: Expr) -> Expr:
        return args[0]

    def reference(self, *arrays: Array | None) -> Any:
        holds = self.holds
        if not isinstance(holds, Const) or not holds.value:
            raise GraphError(f"{self.of}: {fill(self.what, self.args)}")
        return arrays[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(2, 0, 3, "index {0} is out of range", (2,)), (_SAMPLE,), "float32")
        yield Sample(cls(2, None, 3), (np.arange(4),), "int64")
        yield Sample(cls(0), (np.array([True, False]),), "bool")
