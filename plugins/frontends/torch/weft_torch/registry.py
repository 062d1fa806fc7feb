"""Which function converts which operator of PyTorch.

    @op("aten.leaky_relu", "aten.leaky_relu_")
    def leaky_relu(c: Context, x: Value, slope: Number) -> Value:
        return c(LeakyRelu(float(slope)), x)

A converter takes the context and the operator's arguments in the order of its schema, defaults included: tensors as
Values, lists of tensors as lists, sizes as numbers or formulas, all else as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft_frontend.registry import Registry
from weft_torch.context import Context

registry: Registry[Context] = Registry("weft_torch.converters")
complexes: Registry[Context] = Registry("weft_torch.converters")
"""Of nodes of which an operand or a result is complex; these take the context alone."""
F = TypeVar("F", bound=Callable[..., Any])


def op(*names: str) -> Callable[[F], F]:
    """Registers a converter for operators "namespace.name", of the default overload, or "namespace.name.overload"."""

    def register(function: F) -> F:
        for full in names:
            domain, _, name = full.partition(".")
            registry.op(name, domain=domain)(lambda c: function(c, *c.arguments))
        return function

    return register


def complex_op(*names: str) -> Callable[[F], F]:
    """Registers a converter for operators of complex numbers."""

    def register(function: F) -> F:
        for full in names:
            domain, _, name = full.partition(".")
            complexes.op(name, domain=domain)(function)
        return function

    return register


def qualified(target: Any) -> tuple[str, str]:
    """The (namespace, name) by which an operator is registered: the overload is named unless it is the default."""
    domain, _, name = str(target.name()).partition("::")
    return domain, name.removesuffix(".default")


__all__ = ["complex_op", "complexes", "op", "qualified", "registry"]
