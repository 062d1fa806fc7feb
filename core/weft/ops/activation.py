"""Activations, elementwise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Expr, const, select
from weft.graph.nodes import TensorType
from weft.ops.elementwise import FloatUnary, Function, Unary
from weft.ops.precision import in_compute_dtype


@dataclass(frozen=True)
class Relu(Unary):
    """0 where x < 0, else x; NaN stays."""

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return x if x.dtype.kind == "uint" else select(x < 0, const(0, x.dtype), x)

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] < 0, 0, arrays[0])


@dataclass(frozen=True)
class LeakyRelu(FloatUnary):
    """alpha·x where x < 0, else x."""

    alpha: float = 0.01

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return select(x < 0, x * self.alpha, x)

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] < 0, arrays[0] * self.alpha, arrays[0])


@dataclass(frozen=True)
class Sigmoid(FloatUnary):
    """1 / (1 + e^-x)."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return const(1.0, x.dtype) / (call("exp", -x) + 1.0)

    def value(self, *arrays: Any) -> Any:
        return 1 / (1 + np.exp(-arrays[0]))


@dataclass(frozen=True)
class Tanh(Function):
    """The hyperbolic tangent."""

    function = "tanh"


@dataclass(frozen=True)
class Gelu(FloatUnary):
    """x·Φ(x), Φ the normal distribution by erf, or its tanh approximation if `approximate`."""

    approximate: bool = False

    # The definition gives -∞·0 = NaN at -∞ by either formula, except that rounding decides near it.
    specials = False

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        if self.approximate:
            inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
            return x * 0.5 * (call("tanh", inner) + 1.0)
        return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)

    def value(self, *arrays: Any) -> Any:
        (x,) = arrays
        if self.approximate:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + FUNCTIONS["erf"].evaluate(x * math.sqrt(0.5)))

    @classmethod
    def variants(cls) -> Iterable[Unary]:
        return (cls(False), cls(True))

    def tolerance(self, *types: TensorType) -> float:
        return 8.0


__all__ = ["Gelu", "LeakyRelu", "Relu", "Sigmoid", "Tanh"]
