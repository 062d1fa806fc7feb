"""Arrays for samples: deterministic, small, without surprises."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt

Array = np.ndarray[Any, Any]


def floats(shape: Sequence[int], dtype: object = "float32", lo: float = -2.0, hi: float = 2.0, seed: int = 0) -> Array:
    """Uniform numbers between lo and hi; the same for the same arguments."""
    key = zlib.crc32(f"{tuple(shape)} {dtype} {lo} {hi} {seed}".encode())
    return np.asarray(np.random.default_rng(key).uniform(lo, hi, tuple(shape))).astype(dt.dtype(dtype).numpy)


def integers(shape: Sequence[int], dtype: object = "int64", lo: int = -9, hi: int = 9, seed: int = 0) -> Array:
    """Uniform integers lo … hi."""
    key = zlib.crc32(f"{tuple(shape)} {dtype} {lo} {hi} {seed}".encode())
    return np.asarray(np.random.default_rng(key).integers(lo, hi + 1, tuple(shape))).astype(dt.dtype(dtype).numpy)


def booleans(shape: Sequence[int], seed: int = 0) -> Array:
    return integers(shape, "int64", 0, 1, seed).astype(np.bool_)


def special(dtype: object = "float32") -> Array:
    """Zeros of both signs, infinities, NaN and ordinary numbers."""
    return np.array([0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan]).astype(dt.dtype(dtype).numpy)
