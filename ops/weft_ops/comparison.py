"""Comparisons and logic, elementwise; the results are bool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr
from weft.graph.operator import Array, Sample
from weft_ops.elementwise import Binary, Unary
from weft_ops.examples import booleans, floats, special


class Comparison(Binary):
    """Two operands, compared; NaN is unequal to everything and unordered."""

    result_bool = True

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        yield from super().pairs(lo, hi)
        yield np.array([1, 2, 3, 4], np.int32), np.array([2, 2, 2, 4], np.int32), "ties"
        if "bool" in cls.kinds:
            yield booleans((2, 3)), booleans((3,), 1), "bool"


@dataclass(frozen=True)
class Equal(Comparison):
    """a = b."""

    kinds = ("int", "uint", "float", "bool", "complex")

    def formula(self, *args: Expr) -> Expr:
        return e.eq(*args)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] == arrays[1]


@dataclass(frozen=True)
class NotEqual(Comparison):
    """a ≠ b."""

    kinds = ("int", "uint", "float", "bool", "complex")

    def formula(self, *args: Expr) -> Expr:
        return e.ne(*args)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] != arrays[1]


@dataclass(frozen=True)
class Less(Comparison):
    """a < b."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] < args[1]

    def value(self, *arrays: Any) -> Any:
        return arrays[0] < arrays[1]


@dataclass(frozen=True)
class LessEqual(Comparison):
    """a ≤ b."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] <= args[1]

    def value(self, *arrays: Any) -> Any:
        return arrays[0] <= arrays[1]


@dataclass(frozen=True)
class Greater(Comparison):
    """a > b."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] > args[1]

    def value(self, *arrays: Any) -> Any:
        return arrays[0] > arrays[1]


@dataclass(frozen=True)
class GreaterEqual(Comparison):
    """a ≥ b."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] >= args[1]

    def value(self, *arrays: Any) -> Any:
        return arrays[0] >= arrays[1]


class Logical(Binary):
    """Two bools."""

    kinds = ("bool",)

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        yield booleans((3, 4)), booleans((3, 4), 1), "same"
        yield booleans((2, 1, 4)), booleans((3, 1), 1), "broadcast"


@dataclass(frozen=True)
class LogicalAnd(Logical):
    """a and b."""

    def formula(self, *args: Expr) -> Expr:
        return e.and_(*args)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] & arrays[1]


@dataclass(frozen=True)
class LogicalOr(Logical):
    """a or b."""

    def formula(self, *args: Expr) -> Expr:
        return e.or_(*args)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] | arrays[1]


@dataclass(frozen=True)
class LogicalXor(Logical):
    """a or b, not both."""

    def formula(self, *args: Expr) -> Expr:
        return e.ne(*args)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] ^ arrays[1]


@dataclass(frozen=True)
class LogicalNot(Unary):
    """not x."""

    kinds = ("bool",)

    def formula(self, *args: Expr) -> Expr:
        return e.not_(args[0])

    def value(self, *arrays: Any) -> Any:
        return ~arrays[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (booleans((3, 4)),), "bool")


@dataclass(frozen=True)
class IsNan(Unary):
    """Whether x is NaN."""

    kinds = ("float",)
    result_bool = True

    def formula(self, *args: Expr) -> Expr:
        return e.ne(args[0], args[0])

    def value(self, *arrays: Any) -> Any:
        return np.isnan(arrays[0])


@dataclass(frozen=True)
class IsInf(Unary):
    """Whether x is an infinity: -∞ if `negative`, +∞ if `positive`."""

    negative: bool = True
    positive: bool = True

    kinds = ("float",)
    result_bool = True

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        found = call("isinf", x)
        if self.negative and self.positive:
            return found
        if not self.negative and not self.positive:
            return e.const(False)
        return e.and_(found, x > 0 if self.positive else x < 0)

    def value(self, *arrays: Any) -> Any:
        (x,) = arrays
        return (np.isposinf(x) & self.positive) | (np.isneginf(x) & self.negative)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for negative in (False, True):
            for positive in (False, True):
                yield Sample(cls(negative, positive), (special(),), f"{negative}_{positive}")
        yield Sample(cls(), (floats((3,), "float16"),), "float16")


__all__ = [
    "Equal",
    "Greater",
    "GreaterEqual",
    "IsInf",
    "IsNan",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "NotEqual",
]
