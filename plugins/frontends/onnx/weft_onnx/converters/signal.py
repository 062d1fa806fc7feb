"""Fourier transforms and windows."""

from __future__ import annotations

from weft import dtypes as dt
from weft import ops
from weft.graph.nodes import Value
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("DFT")
def dft(c: Context) -> Value:
    length = c.dims(1, "the length")
    if c.version < 20:
        axis: int | None = c.integer("axis", 1)
    else:
        given = c.numbers(2, "the axis")
        axis = given[0] if given else -2
    assert axis is not None
    return c(ops.DFT(axis, c.flag("inverse"), c.flag("onesided"), length[0] if length else None), c.value(0))  # type: ignore[no-any-return]


@onnx_op("STFT")
def stft(c: Context) -> Value:
    x, window = c.value(0), c.optional(2)
    step, length = c.dims(1, "the step"), c.dims(3, "the frame's length")
    if step is None or (length is None and window is None):
        raise c.error("neither a window nor a frame's length is given")
    size = length[0] if length else window.shape[0]  # type: ignore[union-attr]
    return c(ops.STFT(step[0], size, c.flag("onesided", True)), x, window)  # type: ignore[no-any-return]


@onnx_op("HannWindow", "HammingWindow", "BlackmanWindow")
def window(c: Context) -> Value:
    size = c.dims(0, "the size")
    assert size is not None
    name = c.op_type.removesuffix("Window").lower()
    return c(ops.Window(name, size[0], c.flag("periodic", True), c.dtype("output_datatype", dt.float32)))  # type: ignore[arg-type,no-any-return]
