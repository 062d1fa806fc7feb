"""Comparisons of the nodes of trees, as ai.onnx.ml numbers them, and Core ML."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from weft_ops.forests import number_before

Array: TypeAlias = "np.ndarray[Any, Any]"
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
"""Comparisons; Core ML has the first six."""


def compared(
    mode: Array, split: Array, nan_true: Array, true: Array, false: Array
) -> tuple[Array, Array, Array, Array] | None:
    """Nodes of any order comparison as x > split: split, nan_left, left, right; None if some test for equality."""
    if not (mode <= GT).all():
        return None
    # x < s is x ≤ the number before s; x ≥ s and x > s are their opposites.
    below = (mode == LT) | (mode == GTE)
    swapped = (mode == GTE) | (mode == GT)
    split = np.where(below, number_before(split), split)
    return split, nan_true != swapped, np.where(swapped, false, true), np.where(swapped, true, false)


__all__ = ["EQ", "GT", "GTE", "LEQ", "LT", "MEMBER", "NEQ", "compared"]
