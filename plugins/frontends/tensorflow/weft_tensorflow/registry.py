"""Which function converts which operator of TensorFlow.

@tf_op("LeakyRelu")
def leaky_relu(c: Context) -> Result:
    return c(LeakyRelu(c.real("alpha", 0.2)), c.value(0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_frontend.registry import Registry
from weft_frontend.registry import Result as Result

if TYPE_CHECKING:
    from weft_tensorflow.context import Context

REGISTRY: Registry[Context] = Registry("weft_tensorflow.converters")
tf_op, tf_formula = REGISTRY.op, REGISTRY.formula

__all__ = ["REGISTRY", "Result", "tf_formula", "tf_op"]
