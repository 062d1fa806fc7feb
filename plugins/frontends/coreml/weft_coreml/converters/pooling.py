"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_coreml.context import Context
from weft_coreml.converters.contraction import each, pads_of
from weft_coreml.registry import op
from weft_frontend.windows import padded


@op("max_pool", "avg_pool", "l2_pool")
def pool(c: Context) -> Value:
    x = c.of("x")
    n = len(x.shape) - 2
    kernel, strides = each(c, "kernel_sizes", n), each(c, "strides", n)
    pads = pads_of(c, x.shape[2:], kernel, strides, (1,) * n)
    ceil = c.flag("ceil_mode")
    if ceil:
        pads, ceil = _ceiled(c, x.shape[2:], kernel, strides, pads), False
    return pooled(c, x, c.op_type, kernel, strides, pads, c.flag("exclude_padding_from_average"))


def _ceiled(c: Context, sizes: Any, kernel: Any, strides: Any, pads: Any) -> tuple[Dim, ...]:
    """Pads with which as many windows fit as where their number is rounded up; the last begins inside."""
    n = len(kernel)
    fixed = c.static((*sizes, *pads), "sizes with ceil_mode")
    after = []
    for size, k, s, lo, hi in zip(fixed[:n], kernel, strides, fixed[n : 2 * n], fixed[2 * n :]):
        steps = (size + lo + hi - k + s - 1) // s + 1
        if lo + hi > 0 and (steps - 1) * s >= size + (lo + hi) / 2:
            steps -= 1
        after.append(max((steps - 1) * s + k - size - lo, hi))
    return (*fixed[n : 2 * n], *after)


def pooled(
    c: Context, x: Value, kind: str, kernel: tuple[int, ...], strides: tuple[int, ...], pads: Any, exclude: bool
) -> Value:
    """A pool whose pads may be formulas."""
    if kind == "max_pool":
        x, fixed = padded(c, x, pads, -math.inf)
        return c(ops.MaxPool(kernel, strides, fixed), x)
    if kind == "l2_pool":
        x, fixed = padded(c, x, pads)
        return c(ops.LpPool(kernel, strides, fixed), x)
    if all(isinstance(p, int) for p in pads):
        return c(ops.AveragePool(kernel, strides, tuple(pads), count_include_pad=not exclude and any(pads)), x)
    y, fixed = padded(c, x, pads)
    mean = c(ops.AveragePool(kernel, strides, fixed), y)
    if not exclude:
        return mean
    ones, fixed = padded(c, c(ops.Fill(x.dtype, (1, 1, *x.shape[2:]), 1)), pads)
    return c.div(mean, c(ops.AveragePool(kernel, strides, fixed), ones))


__all__ = ["pooled"]
