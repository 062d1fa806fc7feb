"""Cells of recurrent networks: their gates and activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, const, select

Cell = Literal["lstm", "gru", "rnn"]
GATES: dict[str, int] = {"lstm": 4, "gru": 3, "rnn": 1}
DEFAULTS: dict[str, tuple[str, ...]] = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
# Activations by name: alpha and beta where not given.
ACTIVATIONS: dict[str, tuple[float, float]] = {
    "sigmoid": (0, 0), "tanh": (0, 0), "relu": (0, 0), "softplus": (0, 0), "softsign": (0, 0), "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0),
    "thresholdedrelu": (1.0, 0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5), "elu": (1.0, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Activation:
    """An activation of a recurrent cell, with its parameters."""

    name: str
    alpha: float
    beta: float

    def formula(self, x: Expr) -> Expr:
        one, zero = const(1.0, x.dtype), const(0.0, x.dtype)
        match self.name:
            case "sigmoid":
                return one / (call("exp", -x) + one)
            case "tanh":
                return call("tanh", x)
            case "relu":
                return select(x < 0, zero, x)
            case "softplus":
                return e.maximum(x, zero) + call("log1p", call("exp", -call("abs", x)))
            case "softsign":
                return x / (call("abs", x) + one)
            case "affine":
                return x * self.alpha + self.beta
            case "leakyrelu":
                return select(x < 0, x * self.alpha, x)
            case "thresholdedrelu":
                return select(x > self.alpha, x, zero)
            case "scaledtanh":
                return call("tanh", x * self.beta) * self.alpha
            case "hardsigmoid":
                return e.maximum(e.minimum(x * self.alpha + self.beta, one), zero)
            case _:
                return select(x < 0, call("expm1", x) * self.alpha, x)

    def value(self, x: Any) -> Any:
        match self.name:
            case "sigmoid":
                return 1 / (1 + np.exp(-x))
            case "tanh":
                return np.tanh(x)
            case "relu":
                return np.where(x < 0, 0, x)
            case "softplus":
                return np.logaddexp(x, 0)
            case "softsign":
                return x / (1 + np.abs(x))
            case "affine":
                return self.alpha * x + self.beta
            case "leakyrelu":
                return np.where(x < 0, self.alpha * x, x)
            case "thresholdedrelu":
                return np.where(x > self.alpha, x, 0)
            case "scaledtanh":
                return self.alpha * np.tanh(self.beta * x)
            case "hardsigmoid":
                return np.clip(self.alpha * x + self.beta, 0, 1)
            case _:
                return np.where(x < 0, self.alpha * np.expm1(x), x)


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """Names (any case) with parameters; those that ONNX omits take their defaults.

    Raises:
        GraphError: no such activation.
    """
    result = []
    # ONNX lists parameters only for the activations that have them, in order.
    alpha, beta = iter(alphas), iter(betas)
    for name in names:
        low = name.lower()
        if low not in ACTIVATIONS:
            raise GraphError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got '{name}'")
        default = ACTIVATIONS[low]
        a = (
            next(alpha, default[0])
            if low in ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
            else 0.0
        )
        b = next(beta, default[1]) if low in ("affine", "scaledtanh", "hardsigmoid") else 0.0
        result.append(Activation(low, a, b))
    return result
