"""Operands whose channels come last, for operators whose channels are axis 1.

They are imported with transpositions on both sides; the compiler moves these through elementwise operators, and those
that meet cancel each other.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.graph.nodes import Value
from weft_ops.composing import Composer


def channels_first(c: Composer, x: Value) -> Value:
    """[n, …, channels] → [n, channels, …]."""
    rank = len(x.shape)
    return c.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(c: Composer, x: Value) -> Value:
    """[n, channels, …] → [n, …, channels]."""
    rank = len(x.shape)
    return c.transpose(x, (0, *range(2, rank), 1))


def among_channels_first(c: Composer, x: Value, apply: Callable[[Value], Value]) -> Value:
    """`apply`, which takes and gives channels as axis 1, on an operand whose channels come last."""
    return channels_last(c, apply(channels_first(c, x)))


def reordered(c: Composer, w: Value, given: str, wanted: str) -> Value:
    """A filter's axes in another order, each named by a letter: `reordered(c, w, "HWIO", "OIHW")`.

    Raises:
        ValueError: the two do not name the same axes, one for each of the filter.
    """
    if sorted(given) != sorted(wanted) or len(set(given)) != len(w.shape):
        raise ValueError(f"a filter of {len(w.shape)} axes cannot go from {given} to {wanted}")
    return c.transpose(w, [given.index(axis) for axis in wanted])


__all__ = ["among_channels_first", "channels_first", "channels_last", "reordered"]
