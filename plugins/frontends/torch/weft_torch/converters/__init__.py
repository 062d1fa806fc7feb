"""Converters of PyTorch's operators; importing this package registers all of them."""

from weft_torch.converters import (
    activation,
    attention,
    complexes,
    contraction,
    creation,
    elementwise,
    indexing,
    linalg,
    logic,
    movement,
    network,
    ordering,
    recurrent,
    reduction,
    resizing,
    special,
)

__all__ = [
    "activation", "attention", "complexes", "contraction", "creation", "elementwise", "indexing", "linalg", "logic",
    "movement", "network", "ordering", "recurrent", "reduction", "resizing", "special",
]  # fmt: skip
