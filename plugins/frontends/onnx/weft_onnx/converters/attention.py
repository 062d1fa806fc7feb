"""Attention and position encodings."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import dim_expr


@onnx_op("Attention")
def attention(c: Context) -> Any:
    op = ops.Attention(
        c.real("scale") if c.has("scale") else None,
        c.flag("is_causal"),
        c.integer("q_num_heads"),
        c.integer("kv_num_heads"),
        c.real("softcap", 0.0),
        c.integer("left_window_size", -1),
        c.integer("right_window_size", -1),
        c.integer("qk_matmul_output_mode"),
        c.dtype("softmax_precision", c.operand_dtype(0)) if c.has("softmax_precision") else None,
    )
    operands = [c.optional(k) for k in range(7)]
    if operands[6] is not None:
        keys = c.shape(1)
        operands[6] = c.within(operands[6], 0, keys[1 if len(keys) == 3 else 2], "length")
    return c.all(op, *operands)


@onnx_op("RotaryEmbedding")
def rotary_embedding(c: Context) -> Value:
    op = ops.RotaryEmbedding(c.flag("interleaved"), c.integer("rotary_embedding_dim"), c.integer("num_heads"))
    positions, cosines = c.optional(3), c.value(1)
    if positions is not None:
        positions = c.within(positions, 0, as_dim(dim_expr(cosines.shape[0]) - 1), "position")
    return c(op, c.value(0), cosines, c.value(2), positions)
