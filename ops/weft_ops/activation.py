"""Activations, elementwise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.expr.functions import FUNCTIONS, call
from weft.expr.nodes import Expr, cast_to, const, maximum, minimum, select
from weft.graph.nodes import TensorType
from weft_ops.elementwise import Binary, FloatUnary, Function, Unary
from weft_ops.precision import in_compute_dtype


@dataclass(frozen=True)
class Relu(Unary):
    """0 where x < 0, else x; NaN stays."""

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return x if x.dtype.kind == "uint" else select(x < 0, const(0, x.dtype), x)

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        return select(result > 0, const(1.0, result.dtype), const(0.0, result.dtype))

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

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        return result * (1.0 - result)

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


@dataclass(frozen=True)
class HardSigmoid(FloatUnary):
    """alpha·x + beta between 0 and 1."""

    alpha: float = 0.2
    beta: float = 0.5

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return maximum(minimum(args[0] * self.alpha + self.beta, 1.0), 0.0)

    def value(self, *arrays: Any) -> Any:
        return np.clip(arrays[0] * self.alpha + self.beta, 0, 1)


@dataclass(frozen=True)
class HardSwish(FloatUnary):
    """x · HardSigmoid(x, 1/6, 1/2)."""

    specials = False

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return x * maximum(minimum(x * (1 / 6) + 0.5, 1.0), 0.0)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] * np.clip(arrays[0] / 6 + 0.5, 0, 1)


@dataclass(frozen=True)
class Elu(FloatUnary):
    """alpha·(e^x - 1) where x < 0, else x."""

    alpha: float = 1.0

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return select(x < 0, call("expm1", x) * self.alpha, x)

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] < 0, self.alpha * np.expm1(arrays[0]), arrays[0])


@dataclass(frozen=True)
class Selu(FloatUnary):
    """gamma·alpha·(e^x - 1) where x ≤ 0, else gamma·x."""

    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return select(x <= 0, call("expm1", x) * (self.alpha * self.gamma), x * self.gamma)

    def value(self, *arrays: Any) -> Any:
        (x,) = arrays
        return self.gamma * np.where(x <= 0, self.alpha * np.expm1(x), x)


@dataclass(frozen=True)
class Celu(FloatUnary):
    """alpha·(e^(x/alpha) - 1) where x < 0, else x."""

    alpha: float = 1.0

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return select(x < 0, call("expm1", x / self.alpha) * self.alpha, x)

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] < 0, self.alpha * np.expm1(arrays[0] / self.alpha), arrays[0])

    @classmethod
    def variants(cls) -> Iterable[Unary]:
        return (cls(), cls(2.0))


@dataclass(frozen=True)
class Softplus(FloatUnary):
    """log(1 + e^x), without overflow."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return maximum(x, 0.0) + call("log1p", call("exp", -call("abs", x)))

    def value(self, *arrays: Any) -> Any:
        return np.logaddexp(arrays[0], 0)


@dataclass(frozen=True)
class Softsign(FloatUnary):
    """x / (1 + |x|)."""

    specials = False

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] / (call("abs", args[0]) + 1.0)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] / (1 + np.abs(arrays[0]))


@dataclass(frozen=True)
class ThresholdedRelu(FloatUnary):
    """x where x > alpha, else 0."""

    alpha: float = 1.0

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return select(x > self.alpha, x, const(0.0, x.dtype))

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] > self.alpha, arrays[0], 0)


@dataclass(frozen=True)
class Shrink(Unary):
    """x + bias where x < -lambd, x - bias where x > lambd, else 0."""

    lambd: float = 0.5
    bias: float = 0.0

    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        to = x.dtype if x.dtype.is_float and x.dtype.bits >= 32 else dt.float32
        w = cast_to(x, to)
        zero = const(0.0, to)
        result = select(w < -self.lambd, w + self.bias, select(w > self.lambd, w - self.bias, zero))
        return cast_to(result, x.dtype)

    def value(self, *arrays: Any) -> Any:
        x = arrays[0].astype(np.float64) if arrays[0].dtype.kind in "iu" else arrays[0]
        return np.where(x < -self.lambd, x + self.bias, np.where(x > self.lambd, x - self.bias, 0))

    @classmethod
    def variants(cls) -> Iterable[Unary]:
        return (cls(), cls(1.0, 1.0))

    # Negative numbers minus a bias may leave an unsigned dtype.
    kinds = ("int", "float")


@dataclass(frozen=True)
class Mish(FloatUnary):
    """x · tanh(softplus(x))."""

    specials = False

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return x * call("tanh", maximum(x, 0.0) + call("log1p", call("exp", -call("abs", x))))

    def value(self, *arrays: Any) -> Any:
        return arrays[0] * np.tanh(np.logaddexp(arrays[0], 0))


@dataclass(frozen=True)
class Swish(FloatUnary):
    """x · sigmoid(alpha·x); SiLU with alpha 1."""

    alpha: float = 1.0
    specials = False

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        (x,) = args
        return x / (call("exp", x * -self.alpha) + 1.0)

    def derivative(self, position: int, operands: Sequence[Expr | None], result: Expr) -> Expr:
        (x,) = operands
        assert x is not None
        sigmoid = const(1.0, x.dtype) / (call("exp", x * -self.alpha) + 1.0)
        return sigmoid + sigmoid * (1.0 - sigmoid) * (x * self.alpha)

    def value(self, *arrays: Any) -> Any:
        return arrays[0] / (1 + np.exp(-self.alpha * arrays[0]))

    @classmethod
    def variants(cls) -> Iterable[Unary]:
        return (cls(), cls(0.5))


@dataclass(frozen=True)
class PRelu(Binary):
    """slope·x where x < 0, else x; inputs x, slope (broadcasts)."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        x, slope = args
        return x if x.dtype.kind == "uint" else select(x < 0, x * slope, x)

    def value(self, *arrays: Any) -> Any:
        return np.where(arrays[0] < 0, arrays[0] * arrays[1], arrays[0])


__all__ = [
    "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Shrink",
    "Sigmoid", "Softplus", "Softsign", "Swish",
    "Tanh", "ThresholdedRelu",
]  # fmt: skip
