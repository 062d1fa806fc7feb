"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.registry import op


@op("fft")
def fft(c: Context) -> Any:
    """Along the last axes: one behind another, the last one first where it has real numbers, and last where it gives
    them."""
    kind = c.keyword("fft_type")
    lengths = c.integers("fft_length")
    rank = len(c.shape(0))
    axes = list(range(rank - len(lengths), rank))
    if c.results[0].is_static and c.empty(c.result_shape):
        blank = c(ops.Fill(c.dtype, c.result_shape))
        return Complex([blank, blank]) if c.results[0].complex else blank
    if not axes:
        return c.operands[0]
    inverse = kind in ("IFFT", "IRFFT")
    if kind == "RFFT":
        x = c.value(0)
        x = c.reshape(x, (*x.shape, 1))
        x = c(ops.DFT(axes[-1], onesided=True), x)
        axes = axes[:-1]
    else:
        re, im = c.pair(0)
        x = c.concat([c.reshape(p, (*p.shape, 1)) for p in (re, im)], rank)
    last = axes.pop() if kind == "IRFFT" else None
    for axis in axes:
        x = c(ops.DFT(axis, inverse), x)
    if last is not None:
        x = c(ops.DFT(last, True, True, lengths[-1]), x)
        return c.pick(x, -1, 0)
    return Complex([c.pick(x, -1, 0), c.pick(x, -1, 1)])
