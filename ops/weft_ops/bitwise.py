"""Bits of integers, elementwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.expr import nodes as e
from weft.expr.nodes import Expr, const
from weft.graph.operator import Array, Sample
from weft_ops.elementwise import Binary, Unary
from weft_ops.examples import booleans, integers


class Bits(Binary):
    """Two integers or two bools."""

    no_gradient = "it computes with integers"
    kinds: ClassVar[tuple[str, ...]] = ("int", "uint", "bool")

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        yield integers((4, 3), "int32", -99, 99), integers((3,), "int32", -99, 99, 1), "int32"
        yield integers((5,), "uint8", 0, 255), integers((5,), "uint8", 0, 255, 1), "uint8"
        yield integers((2, 1), "uint64", 0, 999), integers((3,), "uint64", 0, 999, 1), "uint64"
        if "bool" in cls.kinds:
            yield booleans((4,)), booleans((4,), 1), "bool"


@dataclass(frozen=True)
class BitwiseAnd(Bits):
    """Bits set in both."""

    def formula(self, *args: Expr) -> Expr:
        return e.bitand(*args)

    def value(self, *arrays: Any) -> Any:
        return np.bitwise_and(*arrays)


@dataclass(frozen=True)
class BitwiseOr(Bits):
    """Bits set in either."""

    def formula(self, *args: Expr) -> Expr:
        return e.bitor(*args)

    def value(self, *arrays: Any) -> Any:
        return np.bitwise_or(*arrays)


@dataclass(frozen=True)
class BitwiseXor(Bits):
    """Bits set in one of the two."""

    def formula(self, *args: Expr) -> Expr:
        return e.bitxor(*args)

    def value(self, *arrays: Any) -> Any:
        return np.bitwise_xor(*arrays)


@dataclass(frozen=True)
class LeftShift(Bits):
    """a · 2^b modulo the width; by the width or more, or by a negative number, 0."""

    kinds = ("int", "uint")

    def formula(self, *args: Expr) -> Expr:
        return e.shl(*args)

    def value(self, *arrays: Any) -> Any:
        a, b = arrays
        bits = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < bits)
        return np.where(inside, np.left_shift(a, np.where(inside, b, 0).astype(a.dtype)), 0)

    @classmethod
    def pairs(cls, lo: float = -3.0, hi: float = 3.0) -> Iterable[tuple[Array, Array, str]]:
        yield integers((6,), "uint8", 0, 255), np.array([0, 1, 7, 8, 3, 200], np.uint8), "uint8"
        yield integers((6, 1), "int32", -99, 99), np.array([0, 1, 31, 32], np.int32), "int32"
        yield integers((3,), "uint16", 0, 999), np.array([1, 2, 3], np.uint16), "uint16"


@dataclass(frozen=True)
class RightShift(LeftShift):
    """a / 2^b rounded down; by the width or more 0, or -1 for negatives."""

    def formula(self, *args: Expr) -> Expr:
        return e.shr(*args)

    def value(self, *arrays: Any) -> Any:
        a, b = arrays
        bits = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < bits)
        beyond = np.where(a < 0, -1, 0).astype(a.dtype)
        return np.where(inside, np.right_shift(a, np.where(inside, b, 0).astype(a.dtype)), beyond)


@dataclass(frozen=True)
class BitwiseNot(Unary):
    """Every bit flipped; of a bool, not."""

    no_gradient = "it computes with integers"
    kinds = ("int", "uint", "bool")

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        if x.dtype.is_bool:
            return e.not_(x)
        return e.bitxor(x, const(-1 if x.dtype.kind == "int" else (1 << x.dtype.bits) - 1, x.dtype))

    def value(self, *arrays: Any) -> Any:
        return np.bitwise_not(arrays[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample(cls(), (booleans((4,)),), "bool")


__all__ = ["BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"]
