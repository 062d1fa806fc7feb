"""Complex numbers, as spectra are: real and imaginary parts along a last axis of two."""

from __future__ import annotations

from dataclasses import dataclass

from weft.graph.nodes import Value


@dataclass(frozen=True, eq=False)
class Complex:
    """Complex numbers. `parts`: [..., 2]."""

    parts: Value


__all__ = ["Complex"]
