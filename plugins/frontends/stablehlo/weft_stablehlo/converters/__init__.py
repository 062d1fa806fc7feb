"""Converters of StableHLO's operations; importing this package registers all of them."""

from weft_stablehlo.converters import (
    bits,
    calls,
    complex_numbers,
    contraction,
    control,
    elementwise,
    indexing,
    linear,
    movement,
    ordering,
    random,
    reduction,
    signal,
    sizes,
    windows,
)

__all__ = [
    "bits", "calls", "complex_numbers", "contraction", "control", "elementwise", "indexing", "linear", "movement",
    "ordering", "random", "reduction", "signal", "sizes", "windows",
]  # fmt: skip
