"""Which operators PyTorch takes apart: all that this frontend has no converter for, and PyTorch has a decomposition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from weft.converters import Converters
from weft_torch.fused import FUSED
from weft_torch.registry import complexes, qualified, registry

COMPLEX = ("complex", "polar")
"""Operators that make complex numbers, kept although PyTorch takes them apart."""


def table(others: Converters | None = None) -> Any:
    """PyTorch's decompositions, without those of operators that have a converter here or from a plugin."""
    found = torch.export.default_decompositions()
    for op, function in _more().items():
        if op not in found:
            found[op] = function
    for op in list(found):
        if isinstance(op, torch._ops.OpOverload) and _converted(op, others):
            found.pop(op)
    return found


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


__all__ = ["table"]
