"""Which function converts which ONNX operator.

    @onnx_op("LeakyRelu")
    def leaky_relu(c: Context) -> Result:
        return c(LeakyRelu(c.real("alpha", 0.01)), c.value(0))

`weft_frontend.registry` says what a converter returns and raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_frontend.registry import Registry
from weft_frontend.registry import Result as Result

if TYPE_CHECKING:
    from weft_onnx.context import Context

REGISTRY: Registry[Context] = Registry("weft_onnx.converters")
onnx_op, onnx_formula = REGISTRY.op, REGISTRY.formula
find, find_formula, reaches, supported = REGISTRY.find, REGISTRY.find_formula, REGISTRY.reaches, REGISTRY.supported
