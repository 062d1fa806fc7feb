"""Losses."""

from __future__ import annotations

from typing import Any

from weft import ops
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(c: Context) -> Any:
    op = ops.NegativeLogLikelihood if c.op_type.startswith("Negative") else ops.SoftmaxCrossEntropy
    ignore = c.integer("ignore_index") if c.has("ignore_index") else None
    return c(op(c.string("reduction", "mean"), ignore), c.value(0), c.value(1), c.optional(2))  # type: ignore[arg-type]
