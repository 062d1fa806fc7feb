"""Gradients of operators that PyTorch has no decompositions of, by other operators of PyTorch. Those of which Weft's
operators have gradients are converters, beside that of the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def adaptive_average(n: int, gradient: Tensor, x: Tensor) -> Tensor:
    """Of adaptive average pooling along the last n axes: each element has its share of every part that it lies in."""
    wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    for d in range(x.dim() - n, x.dim()):
        size, count, behind = x.shape[d], gradient.shape[d], (1,) * (x.dim() - d - 1)
        part, place = torch.arange(count), torch.arange(size)
        first, end = part * size // count, ((part + 1) * size + count - 1) // count
        inside = (place >= first.unsqueeze(1)) & (place < end.unsqueeze(1))
        share = (wide / (end - first).to(wide.dtype).reshape(count, *behind)).unsqueeze(d + 1)
        wide = torch.where(inside.reshape(count, size, *behind), share, 0).sum(d)
    return wide.to(gradient.dtype)


def at_indices(n: int, gradient: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Of a maximum whose places within one channel, of n axes, are known."""
    front = x.shape[: x.dim() - n]
    flat = x.new_zeros(x.shape).flatten(-n)
    return flat.scatter_add(-1, indices.reshape(*front, -1), gradient.reshape(*front, -1)).reshape(x.shape)


def replicated(n: int, gradient: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Of padding with the elements at the border: `padding` is that of the last axis, then of the one before it."""
    for k in range(n):
        d = x.dim() - 1 - k
        place = torch.arange(gradient.shape[d]) - padding[2 * k]
        gradient = _summed(gradient, d, place.clamp(0, x.shape[d] - 1), x.shape[d])
    return gradient


def nearest(n: int, exact: bool, gradient: Tensor, output_size: Any, input_size: Any, *scales: float | None) -> Tensor:
    """Of resampling that takes the nearest element, which is computed in float32 as PyTorch's kernels do."""
    for k in range(n):
        d = gradient.dim() - n + k
        size, scale = input_size[d], scales[k] if scales else None
        ratio = 1 / scale if scale is not None and scale > 0 else size / gradient.shape[d]
        place = torch.arange(gradient.shape[d], dtype=torch.float32) + (0.5 if exact else 0.0)
        gradient = _summed(gradient, d, (place * ratio).to(torch.int64).clamp(max=size - 1), size)
    return gradient


def _summed(x: Tensor, d: int, places: Tensor, size: int) -> Tensor:
    """What belongs to each place along an axis of this size."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    zeros = wide.new_zeros((*x.shape[:d], size, *x.shape[d + 1 :]))
    return zeros.index_add(d, places, wide).to(x.dtype)


def hard_shrink(gradient: Tensor, x: Tensor, bound: float) -> Tensor:
    return torch.where((x >= -bound) & (x <= bound), 0, gradient)


def distance(gradient: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """By x, of the distances between all rows of x and all of y."""
    apart, total = x.unsqueeze(-2) - y.unsqueeze(-3), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x)
    if p == 1:
        parts = apart.sign()
    elif p == float("inf"):
        parts = apart.sign() * (apart.abs() == total)
    elif p == 2:
        parts = torch.where(total == 0, 0, apart / total)
    else:
        power = apart.sign() * apart.abs() ** (p - 1) / total ** (p - 1)
        parts = torch.where((total == 0) | ((apart == 0) & (p < 1)), 0, power)
    return (gradient.unsqueeze(-1) * parts).sum(-2)


def weight_norm(gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = aten._weight_norm_differentiable_backward(gradient, v, g, norms, dim)
    return found


GRADIENTS: Mapping[Any, Callable[..., Any]] = {
    aten._adaptive_avg_pool2d_backward.default: partial(adaptive_average, 2),
    aten._adaptive_avg_pool3d_backward.default: partial(adaptive_average, 3),
    aten.adaptive_max_pool2d_backward.default: partial(at_indices, 2),
    aten.adaptive_max_pool3d_backward.default: partial(at_indices, 3),
    aten.replication_pad1d_backward.default: partial(replicated, 1),
    aten.replication_pad2d_backward.default: partial(replicated, 2),
    aten.replication_pad3d_backward.default: partial(replicated, 3),
    aten.upsample_nearest1d_backward.default: partial(nearest, 1, False),
    aten.upsample_nearest2d_backward.default: partial(nearest, 2, False),
    aten.upsample_nearest3d_backward.default: partial(nearest, 3, False),
    aten._upsample_nearest_exact1d_backward.default: partial(nearest, 1, True),
    aten._upsample_nearest_exact2d_backward.default: partial(nearest, 2, True),
    aten._upsample_nearest_exact3d_backward.default: partial(nearest, 3, True),
    aten.hardshrink_backward.default: hard_shrink,
    aten.softshrink_backward.default: hard_shrink,
    aten._cdist_backward.default: distance,
    aten._weight_norm_interface_backward.default: weight_norm,
}
"""Operator → what it computes."""

__all__ = ["GRADIENTS"]
