"""Operators that PyTorch's modules call when no gradients are wanted, by other operators: a layer of a transformer's
encoder, and attention with its linear layers. PyTorch has no decompositions of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def _masked(mask: Tensor, kind: int | None) -> Tensor:
    """A mask as [batch, heads, queries, keys] or what broadcasts to it; True: the key is left out. Numbers count as
    PyTorch takes them: all but 0 leave the key out."""
    mask = mask if mask.dtype == torch.bool else mask != 0
    return mask[:, None, None, :] if kind == 1 else mask


def attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The result [batch, queries, embed_dim], and the weights where they are wanted.

    Args:
        mask_type: 0: the mask is [queries, keys], 1: [batch, keys], 2: [batch, heads, queries, keys].
    """
    if query is key and key is value:
        parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3, 0), qkv_bias.chunk(3, 0)
        parts = tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
    q, k, v = (x.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2) for x in parts)
    shares = None
    if mask is None and not need_weights:
        found = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-1, -2)
        scores = scores if mask is None else scores.masked_fill(_masked(mask, mask_type), float("-inf"))
        shares = torch.softmax(scores, -1)
        found = shares @ v
    result = F.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights or shares is None:
        return result, None
    return result, shares.mean(1) if average_attn_weights else shares


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention and a perceptron, each with a residual and a normalisation before or after it."""

    def attended(x: Tensor) -> Tensor:
        given = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask)
        return attention(x, x, x, embed_dim, num_heads, *given, need_weights=False, mask_type=mask_type)[0]

    def perceptron(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first(src))
        return x + perceptron(second(x))
    x = first(src + attended(src))
    return second(x + perceptron(x))


FUSED: Mapping[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
"""Operator → what it computes."""

__all__ = ["FUSED", "attention", "encoder_layer"]
