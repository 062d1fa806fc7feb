"""Fixed-point arithmetic: integers scaled by a multiplier and a power of two, with the roundings of integer kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Elementwise, Sample
from weft_ops.examples import integers
from weft_ops.shapes import broadcast, operands


@dataclass(frozen=True)
class FixedPointScale(Elementwise):
    """x · multiplier · 2^(shift - 31), rounded as gemmlowp and TensorFlow Lite do; all int32, broadcast.

    x · 2^shift wraps where shift is positive. The upper half of the doubled product is rounded to nearest, halves up;
    where shift is negative the result is divided by 2^-shift and rounded to nearest, halves away from zero. -31 ≤ shift
    ≤ 30, and multiplier ≥ 0: it is a number between 1/2 and 1 with 31 bits, or 0.
    """

    no_gradient = "it computes with integers"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for operands that are not int32."""
        given = operands(types, 3)
        for t in given:
            if t.dtype != dt.int32:
                raise GraphError(f"expected operands of int32, got {t.dtype}")
        assumed: list[Assumption] = []
        return Inferred(TensorType(dt.int32, broadcast(*(t.shape for t in given), assumed=assumed)), assumed)

    def formula(self, *args: Expr) -> Expr:
        x, multiplier, shift = args
        zero = const(0, dt.int32)
        right = e.maximum(zero - shift, zero)
        product = cast_to(e.shl(x, e.maximum(shift, zero)), dt.int64) * cast_to(multiplier, dt.int64)
        high = cast_to(e.shr(product + const(1 << 30, dt.int64), const(31, dt.int64)), dt.int32)
        mask = e.shl(const(1, dt.int32), right) - 1
        threshold = e.shr(mask, const(1, dt.int32)) + select(high < 0, const(1, dt.int32), zero)
        rest = e.bitand(high, mask)
        return e.shr(high, right) + select(rest > threshold, const(1, dt.int32), zero)

    def reference(self, *arrays: Array | None) -> Array:
        x, multiplier, shift = (np.asarray(a, np.int64) for a in arrays)
        right = np.maximum(-shift, 0)
        product = (x << np.maximum(shift, 0)).astype(np.int32).astype(np.int64) * multiplier
        high = ((product + (1 << 30)) >> 31).astype(np.int32).astype(np.int64)
        mask = (1 << right) - 1
        return np.asarray((high >> right) + ((high & mask) > (mask >> 1) + (high < 0))).astype(np.int32)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = integers((3, 4, 2), "int32", -(1 << 24), 1 << 24)
        multiplier = integers((4, 1), "int32", 1 << 30, (1 << 31) - 1)
        yield Sample(cls(), (x, multiplier, integers((4, 1), "int32", -12, 0)), "channels")
        one: Any = lambda v: np.array(v, np.int32)
        yield Sample(cls(), (integers((40,), "int32", -40, 40), one(1 << 30), one(-2)), "halves")
        yield Sample(cls(), (integers((9,), "int32"), one(1518500250), one(3)), "left")
        yield Sample(cls(), (integers((9,), "int32", -(1 << 31), (1 << 31) - 1), one((1 << 31) - 1), one(-31)), "all")


__all__ = ["FixedPointScale"]
