"""Padding of windows: SAME as TensorFlow and ONNX have it, and pads that formulas of sizes give."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.expr.nodes import maximum, wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_ops import Pad
from weft_ops.composing import Composer


def same_pads(
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    larger_after: bool = True,
) -> tuple[Dim, ...]:
    """The pads (begin…, end…) with which a window operator gives ⌈size / stride⌉ elements.

    Args:
        sizes: of the operand's spatial axes; formulas give formulas.
        larger_after: of an odd sum the larger half comes after (SAME, SAME_UPPER), else before (SAME_LOWER).
    """
    before: list[Dim] = []
    after: list[Dim] = []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (extent - 1) * dilation + 1
        total: Dim
        if stride == 1:
            total = span - 1  # whatever the size
        elif isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
        else:
            steps = (wrap(size, dt.int64) + (stride - 1)) // stride
            total = as_dim(maximum((steps - 1) * stride + span - size, 0))
        small = total // 2 if isinstance(total, int) else as_dim(total // 2)
        large = (
            total - small
            if isinstance(total, int) and isinstance(small, int)
            else as_dim(wrap(total, dt.int64) - small)
        )
        before.append(small if larger_after else large)
        after.append(large if larger_after else small)
    return (*before, *after)


def transposed_same_pads(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads (begin…, end…) and the output padding with which a transposed convolution gives size · stride elements,
    as the gradient of a SAME convolution does."""
    before, after, extra = [], [], []
    for extent, stride, dilation in zip(kernel, strides, dilations, strict=True):
        span = (extent - 1) * dilation + 1
        total = span - stride
        before.append(max(total, 0) // 2)
        after.append(max(total, 0) - max(total, 0) // 2)
        extra.append(max(-total, 0))
    return (*before, *after), tuple(extra)


def padded(
    c: Composer, x: Value, pads: Sequence[Dim], value: int | float | Value = 0, *, first: int = 2
) -> tuple[Value, tuple[int, ...]]:
    """An operand and the pads that are left for its window operator: `x` is padded by a node where a pad is a formula,
    which window operators do not take.

    Args:
        pads: (begin…, end…) over the spatial axes.
        value: what it is padded with, e.g. -inf for a maximum.
        first: the first spatial axis of `x`.
    """
    fixed = tuple(p for p in pads if isinstance(p, int))
    if len(fixed) == len(pads):
        return x, fixed
    half = len(pads) // 2
    behind = (0,) * (len(x.shape) - first - half)
    ahead = (0,) * first
    every = (*ahead, *pads[:half], *behind, *ahead, *pads[half:], *behind)
    filling = value if isinstance(value, Value) else c.number(value, x.dtype)
    return c(Pad(every), x, filling), (0,) * len(pads)


def ceil_pads(size: Dim, extent: int, stride: int, before: int, after: int, dilation: int = 1) -> Dim:
    """The pad after with which a window operator that rounds down gives as many elements as one that rounds up, of
    which the last window begins inside the operand or the pad before (Caffe's and PyTorch's ceil_mode).

    Raises:
        ValueError: the size is a formula: give the operator a ceil mode instead.
    """
    if not isinstance(size, int):
        raise ValueError("the size is known only at run time")
    span = (extent - 1) * dilation + 1
    steps = max(-(-(size + before + after - span) // stride), 0)
    if steps * stride >= size + before:
        steps -= 1
    return max(steps * stride + span - size - before, after)


__all__ = ["ceil_pads", "padded", "same_pads", "transposed_same_pads"]
