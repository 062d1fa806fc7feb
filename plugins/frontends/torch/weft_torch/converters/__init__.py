"""Converters of PyTorch's operators; importing this package registers all of them."""

from weft_torch.converters import (
    activation,
    attention,
    contraction,
    creation,
    elementwise,
    indexing,
    logic,
    movement,
    network,
    ordering,
    recurrent,
    reduction,
    resizing,
)

__all__ = [
    "activation", "attention", "contraction", "creation", "elementwise", "indexing", "logic", "movement", "network",
    "ordering", "recurrent", "reduction", "resizing",
]  # fmt: skip
