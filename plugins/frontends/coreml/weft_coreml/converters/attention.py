"""Attention."""

from __future__ import annotations

import weft_ops as ops
from weft.graph.nodes import Value
from weft_coreml.context import Context
from weft_coreml.registry import op
from weft_ops.shapes import product


def by_heads(c: Context, x: Value) -> Value:
    """[batch, heads, length, size]: axes in front of the heads are one."""
    if len(x.shape) < 4:
        return c.reshape(x, (*([1] * (4 - len(x.shape))), *x.shape))
    return x if len(x.shape) == 4 else c.reshape(x, (product(x.shape[:-3]), *x.shape[-3:]))


@op("scaled_dot_product_attention")
def attention(c: Context) -> Value:
    q, k, v = c.of("query"), c.of("key"), c.of("value")
    mask = c.maybe("attn_mask")
    if mask is not None and len(q.shape) > 4 and len(mask.shape) > 2:
        mask = by_heads(c, c.broadcast(mask, (*q.shape[:-2], *mask.shape[-2:])))
    if mask is not None and not mask.dtype.is_bool:
        mask = c.cast(mask, q.dtype)
    y = c.all(ops.Attention(), *(by_heads(c, t) for t in (q, k, v)), mask)[0]
    return c.reshape(y, (*q.shape[:-1], v.shape[-1]))
