"""Attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_keras.registry import operation

if TYPE_CHECKING:
    from weft_keras.call import Call


@operation("DotProductAttention")
def dot_product_attention(c: Call) -> Value:
    """Of q [b, t, heads, d], k and v [b, s, heads, d]; a mask [b, heads, t, s] says what may be attended."""
    if c.attribute("attn_logits_soft_cap") is not None:
        raise c.unsupported("a cap of the products")
    q, k, v = (c.transpose(c.tensor(n, c.out), (0, 2, 1, 3)) for n in ("query", "key", "value"))
    scale, bias, mask = (c.arg(n) for n in ("scale", "bias", "mask"))
    (depth,) = c.fixed(q.shape[-1:], "the size of a head")
    scores = c(ops.MatMul(), q, c.transpose(k, (0, 1, 3, 2)))
    scores = c.mul(scores, 1 / math.sqrt(depth) if scale is None else float(scale))
    if bias is not None:
        scores = c.add(scores, c.as_tensor(bias, scores.dtype))
    least = c.number(-0.7 * 3.4e38 if scores.dtype == dt.float32 else -3e4, scores.dtype)
    if c.attribute("is_causal"):
        t, s = c.fixed(q.shape[2:3], "causal attention")[0], c.fixed(k.shape[2:3], "causal attention")[0]
        scores = c(ops.Where(), c.builder.constant(np.tri(t, s, dtype=bool), "causal"), scores, least)
    if mask is not None:
        scores = c(ops.Where(), c.as_tensor(mask, dt.bool_), scores, least)
    y = c(ops.MatMul(), c(ops.Softmax(3), scores), v)
    return c.transpose(y, (0, 2, 1, 3))
