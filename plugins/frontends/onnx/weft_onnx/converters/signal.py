"""Fourier transforms and windows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import eq, wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import dim_select, product


@onnx_op("DFT")
def dft(c: Context) -> Value:
    length = c.dims(1, "the length")
    size = length[0] if length else None
    if c.version >= 20 and c.given(2) and c.known(2) is None:
        return _along_runtime_axis(c, c.value(0), size)
    if c.version < 20:
        axis: int | None = c.integer("axis", 1)
    else:
        given = c.numbers(2, "the axis")
        axis = given[0] if given else -2
    assert axis is not None
    return c(ops.DFT(axis, c.flag("inverse"), c.flag("onesided"), size), c.value(0))


def _along_runtime_axis(c: Context, x: Value, size: Dim | None) -> Value:
    """x seen as [before, n, after, parts], whose extents are selected by the axis."""
    # Not the last, whose elements are the parts of a number.
    rank = len(x.shape)
    (axis_value,) = c.sizes(c.within(c.axes(c.value(2), rank), 0, rank - 2, "axis"), "the axis")
    axis = wrap(axis_value, dt.int64)
    inner = x.shape[:-1]
    here = [eq(axis, d) for d in range(len(x.shape) - 1)]
    before = product([dim_select(axis > d, n, 1) for d, n in enumerate(inner)])
    n = product([dim_select(at, n, 1) for at, n in zip(here, inner)])
    after = product([dim_select(axis < d, n, 1) for d, n in enumerate(inner)])
    op = ops.DFT(1, c.flag("inverse"), c.flag("onesided"), size)
    y = c(op, c.reshape(x, (before, n, after, x.shape[-1])))
    return c.reshape(y, (*(dim_select(at, y.shape[1], d) for at, d in zip(here, inner)), y.shape[-1]))


@onnx_op("STFT")
def stft(c: Context) -> Value:
    x, window = c.value(0), c.optional(2)
    step, length = c.dims(1, "the step"), c.dims(3, "the frame's length")
    size = length[0] if length else window.shape[0] if window is not None else None
    if step is None or size is None:
        raise c.error("neither a window nor a frame's length is given")
    return c(ops.STFT(step[0], size, c.flag("onesided", True)), x, window)


WINDOWS: Mapping[str, Literal["hann", "hamming", "blackman"]] = MappingProxyType(
    {"HannWindow": "hann", "HammingWindow": "hamming", "BlackmanWindow": "blackman"}
)


@onnx_op(*WINDOWS)
def window(c: Context) -> Value:
    size = c.dims(0, "the size")
    assert size is not None
    return c(ops.Window(WINDOWS[c.op_type], size[0], c.flag("periodic", True), c.dtype("output_datatype", dt.float32)))
