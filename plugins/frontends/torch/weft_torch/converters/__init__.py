"""Converters of PyTorch's operators; importing this package registers all of them."""

from weft_torch.converters import (
    activation,
    attention,
    bessel,
    complexes,
    contraction,
    control,
    counting,
    creation,
    elementwise,
    factors,
    gamma,
    indexing,
    jacobi,
    linalg,
    logic,
    movement,
    network,
    ordering,
    polynomials,
    quantized,
    recurrent,
    reduction,
    resizing,
    special,
)

__all__ = [
    "activation", "attention", "bessel", "complexes", "contraction", "control", "counting", "creation", "elementwise",
    "factors", "gamma", "indexing", "jacobi", "linalg", "logic", "movement", "network", "ordering",
    "polynomials", "quantized", "recurrent", "reduction", "resizing", "special",
]  # fmt: skip
