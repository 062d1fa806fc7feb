"""Activations that formats name as part of another operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from weft.graph.nodes import Value
from weft_ops import (
    Elu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Maximum,
    Minimum,
    Relu,
    Selu,
    Sigmoid,
    Softplus,
    Softsign,
    Swish,
    Tanh,
)
from weft_ops.composing import Composer


def clipped(c: Composer, x: Value, low: float | None, high: float | None) -> Value:
    """`x` with what lies beyond low … high moved to the nearer of them (None: unbounded)."""
    if low is not None:
        x = c(Maximum(), x, low)
    return x if high is None else c(Minimum(), x, high)


ACTIVATIONS: Mapping[str, Callable[[Composer, Value], Value]] = MappingProxyType(
    {
        "linear": lambda c, x: x,
        "relu": lambda c, x: c(Relu(), x),
        "relu6": lambda c, x: clipped(c, x, 0.0, 6.0),
        "relu_n1_to_1": lambda c, x: clipped(c, x, -1.0, 1.0),
        "relu_0_to_1": lambda c, x: clipped(c, x, 0.0, 1.0),
        "leaky_relu": lambda c, x: c(LeakyRelu(0.2), x),
        "elu": lambda c, x: c(Elu(1.0), x),
        "selu": lambda c, x: c(Selu(), x),
        "sigmoid": lambda c, x: c(Sigmoid(), x),
        "hard_sigmoid": lambda c, x: c(HardSigmoid(1 / 6, 0.5), x),
        "hard_swish": lambda c, x: c(HardSwish(), x),
        "silu": lambda c, x: c(Swish(), x),
        "softplus": lambda c, x: c(Softplus(), x),
        "softsign": lambda c, x: c(Softsign(), x),
        "tanh": lambda c, x: c(Tanh(), x),
    }
)
"""By name: the function of (composer, x). `hard_sigmoid` is clip(x/6 + 1/2, 0, 1); `leaky_relu` has the slope 0.2."""

__all__ = ["ACTIVATIONS", "clipped"]
