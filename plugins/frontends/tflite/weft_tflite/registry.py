"""Which function converts which TFLite operator.

    @tflite_op("LEAKY_RELU")
    def leaky_relu(c: Context) -> Result:
        return c(LeakyRelu(c.real("alpha")), c.value(0))

Operators on quantised tensors have converters of their own, under the domain `QUANTIZED`; those in `MOVES` only move
elements, or compare them, and need none where all their tensors have one scale and zero point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft_frontend.registry import Registry
from weft_frontend.registry import Result as Result

if TYPE_CHECKING:
    from weft_tflite.context import Context

QUANTIZED = "quantized"
"""The domain of converters for quantised operands."""
COMPLEX = "complex"
"""The domain of converters for operands of complex numbers."""
CUSTOM = "custom"
"""The domain of custom operators, which plugins may convert."""
MOVES: set[str] = set()
"""Operators that move elements, whatever these mean."""
REGISTRY: Registry[Context] = Registry("weft_tflite.converters")
tflite_op, tflite_formula = REGISTRY.op, REGISTRY.formula


def quantized_op(*names: str) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    """Registers a converter for operators of quantised operands."""
    return REGISTRY.op(*names, domain=QUANTIZED)


def moving_op(*names: str) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    """Registers a converter for operators that move elements; the same one for numbers and quantised numbers."""
    MOVES.update(names)
    return REGISTRY.op(*names)


def complex_op(*names: str) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    """Registers a converter for operators of complex operands: `Complex` of weft_tflite.context."""
    return REGISTRY.op(*names, domain=COMPLEX)


__all__ = ["COMPLEX", "CUSTOM", "MOVES", "QUANTIZED", "REGISTRY", "Result", "complex_op", "moving_op", "quantized_op",
           "tflite_formula", "tflite_op"]  # fmt: skip
