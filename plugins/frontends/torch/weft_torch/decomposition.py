"""Which operators PyTorch takes apart: all that this frontend has no converter for, and PyTorch has a decomposition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from weft.converters import Converters
from weft_torch.corners import CORNERS
from weft_torch.drawing import dropout
from weft_torch.fused import FUSED
from weft_torch.gradients import GRADIENTS
from weft_torch.registry import complexes, qualified, registry

LOSS = torch.ops.aten.multilabel_margin_loss_forward.default
COMPLEX = ("complex", "polar")
"""Operators that make complex numbers, kept although PyTorch takes them apart."""


def table(others: Converters | None = None) -> Any:
    """PyTorch's decompositions, without those of operators that have a converter here or from a plugin."""
    found = torch.export.default_decompositions()
    for op, function in _more().items():
        if op not in found:
            found[op] = function
    found[LOSS] = _multilabel_margin_loss
    found.update(CORNERS)
    for name, function in CHUNKED.items():
        if hasattr(torch.ops.torch_nn, name):  # PyTorch registers it where a program first uses it
            found[getattr(torch.ops.torch_nn, name).default] = function
    for op in list(found):
        if isinstance(op, torch._ops.OpOverload) and _converted(op, others):
            found.pop(op)
    return found


def training_table(others: Converters | None = None) -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's decompositions for graphs with gradients."""
    return {**dict(table(others).items()), **GRADIENTS, torch.ops.aten.native_dropout.default: dropout}


def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """Instead of PyTorch's own, which counts the first class for every target behind the end (-1), and gives the loss
    of a vector an axis that PyTorch's kernel does not."""
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    n = rows.shape[1]
    k = torch.arange(n, device=x.device)
    end = torch.amin(torch.where(targets == -1, k, n), -1, keepdim=True)
    counted = k < end
    is_target = torch.any(k == torch.where(counted, targets, -1).unsqueeze(-1), 1)
    own = torch.gather(rows, 1, torch.where(counted, targets, 0))
    apart = (1 - own.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0)
    apart = torch.where(counted.unsqueeze(-1) & ~is_target.unsqueeze(1), apart, 0)
    loss = apart.sum((1, 2)) / n
    loss = (loss, loss.mean(), loss.sum())[reduction]
    is_target = is_target.to(x.dtype).reshape(x.shape)
    return (loss.reshape(()) if x.dim() < 2 else loss), is_target


def _chunked(
    x: torch.Tensor, linear: torch.Tensor, target: torch.Tensor, bias: Any, weight: Any, reduction: str, ignored: int,
    smoothing: float, size: int, policy: str, exact: torch.dtype, retain: bool, *gradients: bool,
) -> Any:  # fmt: skip
    """The loss of a linear layer's results, without gradients: that PyTorch computes it in chunks saves memory."""
    if any(gradients):
        return NotImplemented
    loss = _loss(x, linear, target, bias, weight, ignored, exact, reduction, smoothing)
    return loss, x.new_empty(0, 0), x.new_empty(0, 0), x.new_empty(0)


def _chunked_rows(
    x: torch.Tensor, linear: torch.Tensor, target: torch.Tensor, bias: Any, weight: Any, ignored: int,
    size: int, policy: str, exact: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    return _loss(x, linear, target, bias, weight, ignored, exact, "none", 0.0)


def _loss(
    x: torch.Tensor, linear: torch.Tensor, target: torch.Tensor, bias: Any, weight: Any, ignored: int,
    exact: torch.dtype, reduction: str, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    bias, weight = (None if v is None else v.to(exact) for v in (bias, weight))
    logits = torch.nn.functional.linear(x.to(exact), linear.to(exact), bias)
    loss = torch.nn.functional.cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )
    return loss.to(x.dtype)


CHUNKED: dict[str, Callable[..., Any]] = {
    "_linear_cross_entropy_batch_chunked": _chunked,
    "_linear_cross_entropy_batch_chunked_no_reduction": _chunked_rows,
}


def _converted(op: torch._ops.OpOverload[..., Any], others: Converters | None) -> bool:
    domain, name = qualified(op)
    own = registry.find(domain, name) is not None or (name in COMPLEX and complexes.find(domain, name) is not None)
    return own or (others is not None and others.find(domain, name, 1) is not None)


@cache
def _more() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions of operators that PyTorch's exporter keeps, and that have no converter here."""
    known = global_decomposition_table["post_autograd"]
    return {**{op: f for op, f in known.items() if isinstance(op, torch._ops.OpOverload) and not _writes(op)}, **FUSED}


def _writes(op: torch._ops.OpOverload[..., Any]) -> bool:
    """Whether an operator writes to its operands; PyTorch makes others of these first."""
    return bool(op._schema.is_mutable)


__all__ = ["table", "training_table"]
