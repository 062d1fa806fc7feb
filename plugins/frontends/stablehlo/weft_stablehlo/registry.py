"""Which function converts which operation.

    @op("tanh")
    def tanh(c: Context) -> Value:
        return c(Tanh(), c.value(0))

Names are those of the dialect stablehlo; another dialect is named: "chlo.erf". A converter takes the context of the
operation, and returns what stands for its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft_frontend.registry import Registry
from weft_stablehlo.context import Complex, Context

REGISTRY: Registry[Context] = Registry("weft_stablehlo.converters")
CUSTOM = "custom_call"
"""The domain of targets of custom calls."""
Converter = Callable[[Context], Any]


def op(*names: str) -> Callable[[Converter], Converter]:
    """Registers a converter."""

    def register(function: Converter) -> Converter:
        def convert(c: Context) -> Any:
            found = function(c)
            return [found] if isinstance(found, Complex) else found

        for name in names:
            domain, _, rest = (
                name.rpartition(".") if not name.startswith(CUSTOM) else (CUSTOM, "", name[len(CUSTOM) + 1 :])
            )
            REGISTRY.op(rest, domain=domain)(convert)
        return function

    return register


def formula(*names: str) -> Callable[[Converter], Converter]:
    """Registers what computes an operation on sizes that are known as formulas."""
    return REGISTRY.formula(*names)


__all__ = ["CUSTOM", "REGISTRY", "formula", "op"]
