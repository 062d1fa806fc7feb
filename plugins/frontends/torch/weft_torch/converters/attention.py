"""Attention."""

from __future__ import annotations

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import product
from weft_torch.context import Context
from weft_torch.registry import op


@op("aten.scaled_dot_product_attention")
def attention(
    c: Context, q: Value, k: Value, v: Value, mask: Value | None, dropout: float, causal: bool, scale: float | None,
    grouped: bool,
) -> Value:  # fmt: skip
    if dropout:
        raise c.unsupported("random numbers: dropout")
    if not grouped:
        k, v = (c.broadcast(t, (*q.shape[:-2], *t.shape[-2:])) for t in (k, v))
    shape = c.result_shape()
    y = c.all(ops.Attention(scale, causal), *(_by_heads(c, t) for t in (q, k, v)), _mask(c, mask, q))[0]
    return c.reshape(y, shape)


def _by_heads(c: Context, x: Value) -> Value:
    """[batch, heads, length, size]: axes in front of the heads are one."""
    if len(x.shape) == 4:
        return x
    if len(x.shape) < 4:
        return c.reshape(x, (*([1] * (4 - len(x.shape))), *x.shape))
    return c.reshape(x, (product(x.shape[:-3]), *x.shape[-3:]))


def _mask(c: Context, mask: Value | None, q: Value) -> Value | None:
    if mask is None or len(q.shape) <= 4:
        return mask
    front: tuple[Dim, ...] = q.shape[:-2]
    return _by_heads(c, c.broadcast(mask, (*front, *mask.shape[-2:])))


__all__ = ["attention"]
