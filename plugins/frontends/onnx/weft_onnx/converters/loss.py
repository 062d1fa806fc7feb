"""Losses."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft.tensor.language import as_dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import dim_expr
from weft_ops.words import LOSS_REDUCTIONS


@onnx_op("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(c: Context) -> Any:
    op = ops.NegativeLogLikelihood if c.op_type.startswith("Negative") else ops.SoftmaxCrossEntropy
    ignore = c.integer("ignore_index") if c.has("ignore_index") else None
    x, target = c.value(0), c.value(1)
    if len(x.shape) > 1:
        counted = (
            None
            if ignore is None
            else c(ops.Where(), c(ops.Equal(), target, ignore), c.number(0, target.dtype), target)
        )
        target = c.within(target, 0, as_dim(dim_expr(x.shape[1]) - 1), "class", part=counted)
    return c.all(op(c.choice("reduction", "mean", LOSS_REDUCTIONS), ignore), x, target, c.optional(2))
