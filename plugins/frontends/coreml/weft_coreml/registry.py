"""Which function converts which operator of a program, and which layer of a network.

    @op("leaky_relu")
    def leaky_relu(c: Context) -> Result:
        return c(LeakyRelu(c.real("alpha")), c.value_of("x"))

Layers have the domain `NETWORK`, classical models the domain `MODEL`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft_frontend.registry import Registry
from weft_frontend.registry import Result as Result

if TYPE_CHECKING:
    from weft_coreml.context import Context

NETWORK = "network"
"""The domain of layers of neural networks."""
MODEL = "model"
"""The domain of classical models."""
REGISTRY: Registry[Context] = Registry("weft_coreml.converters")
op, formula = REGISTRY.op, REGISTRY.formula


def layer(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a converter for layers."""
    return REGISTRY.op(*names, domain=NETWORK)


def model(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a converter for classical models."""
    return REGISTRY.op(*names, domain=MODEL)


__all__ = ["MODEL", "NETWORK", "REGISTRY", "Result", "formula", "layer", "model", "op"]
