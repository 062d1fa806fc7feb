"""Attention and position encodings."""

from __future__ import annotations

from typing import Any

from weft import ops
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


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
    return c(op, *(c.optional(k) for k in range(7)))


@onnx_op("RotaryEmbedding")
def rotary_embedding(c: Context) -> Value:
    op = ops.RotaryEmbedding(c.flag("interleaved"), c.integer("rotary_embedding_dim"), c.integer("num_heads"))
    return c(op, c.value(0), c.value(1), c.value(2), c.optional(3))  # type: ignore[no-any-return]
