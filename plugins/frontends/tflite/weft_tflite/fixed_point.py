"""The numbers of LiteRT's integer kernels: multipliers with shifts, bounds of activations, tables of functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.dtypes import DType
from weft_tflite.model_file import Quantization

Array = np.ndarray[Any, Any]


def rounded(x: float) -> int:
    """To the nearest integer, halves away from zero."""
    return math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1)


def rounded_array(x: Array) -> Array:
    """As `rounded`, in the array's own precision."""
    whole = np.trunc(x)
    return np.asarray(whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0).astype(x.dtype))


def multiplier_of(real: float) -> tuple[int, int]:
    """A number ≥ 0 as multiplier · 2^(shift - 31), the multiplier of 31 bits."""
    if real == 0:
        return 0, 0
    fraction, shift = math.frexp(real)
    multiplier = rounded(fraction * (1 << 31))
    if multiplier == 1 << 31:
        multiplier, shift = 1 << 30, shift + 1
    return (0, 0) if shift < -31 else (multiplier, shift)


def multipliers_of(real: Array) -> tuple[Array, Array]:
    """`multiplier_of` each of an array, as int32."""
    pairs = [multiplier_of(float(r)) for r in real.reshape(-1)]
    found = np.array(pairs, np.int64).reshape(*real.shape, 2).astype(np.int32)
    return found[..., 0], found[..., 1]


def bounds_of(dtype: DType) -> tuple[int, int]:
    """The least and greatest number of an integer dtype."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def activation_bounds(activation: str, scale: Quantization, dtype: DType) -> tuple[int, int] | None:
    """Between which quantised numbers a fused activation leaves its operand; None: it is no bound."""
    low, high = bounds_of(dtype)

    def quantized(x: float) -> int:
        return int(scale.zero[0]) + rounded(float(np.float32(x) / np.float32(scale.scale[0])))

    if activation == "linear":
        return low, high
    if activation == "relu":
        return max(low, quantized(0.0)), high
    if activation == "relu6":
        return max(low, quantized(0.0)), min(high, quantized(6.0))
    if activation == "relu_n1_to_1":
        return max(low, quantized(-1.0)), min(high, quantized(1.0))
    return None


def table_of(function: Callable[[Array], Array], x: Quantization, y: Quantization, dtype: DType) -> Array:
    """What a function of floats makes of each of 256 quantised numbers, the least first."""
    low, high = bounds_of(dtype)
    given = np.arange(low, high + 1)
    real = x.scale[0] * (given - int(x.zero[0])).astype(np.float32)
    inverse = np.float32(1) / y.scale[0]
    with np.errstate(all="ignore"):
        results = rounded_array(function(real).astype(np.float32) * inverse) + np.float32(y.zero[0])
    return np.clip(np.nan_to_num(results.astype(np.float64)), low, high).astype(dtype.numpy)


__all__ = [
    "activation_bounds", "bounds_of", "multiplier_of", "multipliers_of", "rounded", "rounded_array", "table_of",
]  # fmt: skip
