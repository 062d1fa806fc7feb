"""Decompositions in place of PyTorch's own, which divide by 0 or take the logarithm of 0 where they then select another
value: through what is not selected, their gradients were NaN, or lacked what the function has there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import apply_loss_reduction, pw_cast_for_opmath
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common.wrappers import elementwise_type_promotion_wrapper

aten = torch.ops.aten
LEAST = -100.0
"""What the logarithms of `binary_cross_entropy` are at least."""


def _promoted(*names: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Operands that are integers become floats, narrow floats are computed in float32."""
    found: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] = elementwise_type_promotion_wrapper(
        type_promoting_args=names, type_promotion_kind=Promotion.INT_TO_FLOAT
    )
    return found


@_promoted("x")
def sinc(x: Tensor) -> Tensor:
    """sin(πx) / (πx); 1 at 0."""
    y = math.pi * x
    none = y == 0
    safe = torch.where(none, 1, y)
    return torch.where(none, 1, torch.sin(safe) / safe)


@_promoted("x", "y")
def xlogy(x: Any, y: Any) -> Tensor:
    """x · log(y); 0 where x is 0, unless y is NaN."""
    return _times(x, y, torch.log, 0.0)


@_promoted("x", "y")
def xlog1py(x: Any, y: Any) -> Tensor:
    """x · log(1 + y); 0 where x is 0, unless y is NaN."""
    return _times(x, y, torch.log1p, -1.0)


def _times(x: Any, y: Any, function: Callable[[Tensor], Tensor], least: float) -> Tensor:
    """x · function(y), which is finite for y above `least`, and 0 at `least + 1`."""
    x = torch.scalar_tensor(x, dtype=y.dtype) if not isinstance(x, Tensor) else x
    y = torch.scalar_tensor(y, dtype=x.dtype) if not isinstance(y, Tensor) else y
    none = (x == 0) & ((y <= least) | (y == math.inf))
    return x * function(torch.where(none, least + 1, y))


@pw_cast_for_opmath  # type: ignore[untyped-decorator]
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Where x is 0 or 1 a logarithm is its least, and has no gradient."""
    none, all_ = x == 0, x == 1
    log = torch.where(none, LEAST, torch.log(torch.where(none, 1, x)).clamp_min(LEAST))
    rest = torch.where(all_, LEAST, torch.log1p(-torch.where(all_, 0, x)).clamp_min(LEAST))
    loss = (target - 1) * rest - target * log
    return apply_loss_reduction(loss if weight is None else loss * weight, reduction)


CORNERS: Mapping[Any, Callable[..., Any]] = {
    aten.sinc.default: sinc,
    **{getattr(aten.xlogy, name): xlogy for name in ("Tensor", "Scalar_Self", "Scalar_Other")},
    **{getattr(aten.special_xlog1py, name): xlog1py for name in ("default", "self_scalar", "other_scalar")},
    aten.binary_cross_entropy.default: binary_cross_entropy,
}
"""Operator → what it computes."""

__all__ = ["CORNERS"]
