"""Convolutions and pools of ONNX Runtime's domains over images whose channels come last, or in blocks."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from weft.graph.nodes import Value
from weft_onnx.contrib import contrib_op
from weft_onnx.converters.fused import ACTIVATION, CONV, fused_conv
from weft_onnx.converters.network import average_pool, conv, global_average_pool, global_max_pool, max_pool
from weft_onnx.converters.quantization import qlinear_conv
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op

POOL = "auto_pad ceil_mode dilations kernel_shape pads storage_order strides count_include_pad"
INTERNAL = "com.ms.internal.nhwc"


def channels_last(c: Context, convert: Callable[[Context], Any], images: tuple[int, ...] = (0,)) -> Value:
    """What `convert` makes of a node whose operands at `images` and whose result have their channels last."""
    other = copy(c)
    other.operands = list(c.operands)
    for k in images:
        if c.given(k):
            x = c.value(k)
            rank = len(x.shape)
            other.operands[k] = c.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    y: Value = convert(other)
    return c.transpose(y, (0, *range(2, len(y.shape)), 1))


@contrib_op("NhwcConv", attributes=CONV)
def nhwc_conv(c: Context) -> Value:
    return channels_last(c, conv)


@contrib_op("NhwcFusedConv", attributes=f"{CONV} {ACTIVATION}")
def nhwc_fused_conv(c: Context) -> Value:
    return channels_last(c, fused_conv, (0, 3))


@contrib_op("NhwcMaxPool", attributes=POOL)
def nhwc_max_pool(c: Context) -> Value:
    return channels_last(c, max_pool)


@contrib_op("QLinearConv", attributes=f"{CONV} channels_last")
def quantised_conv(c: Context) -> Value:
    return channels_last(c, qlinear_conv) if c.flag("channels_last") else qlinear_conv(c)


@contrib_op("Conv", attributes=f"{CONV} {ACTIVATION}", domain=INTERNAL)
def internal_conv(c: Context) -> Value:
    return channels_last(c, fused_conv, (0, 3))


def _internal(name: str, convert: Callable[[Context], Any]) -> None:
    @contrib_op(name, attributes=POOL, domain=INTERNAL)
    def pool(c: Context) -> Value:
        return channels_last(c, convert)


for _name, _convert in (
    ("MaxPool", max_pool),
    ("AveragePool", average_pool),
    ("GlobalAveragePool", global_average_pool),
    ("GlobalMaxPool", global_max_pool),
):
    _internal(_name, _convert)


@onnx_op(
    "Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReorderInput", "ReorderOutput", "Upsample",
    domain="com.microsoft.nchwc", refuses=True,
)  # fmt: skip
def blocked(c: Context) -> Value:
    """Weights lie as the processor that ONNX Runtime saved the model on wants them, which the model does not say."""
    raise c.unsupported(
        "weights in the order of one processor, written by ONNX Runtime at ORT_ENABLE_ALL: save the model at"
        " ORT_ENABLE_EXTENDED"
    )
