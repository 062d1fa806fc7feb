"""Products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_caffe.registry import layer
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_caffe.network import Layer


def _spatial(c: Layer, p: Any, name: str, rank: int, default: int) -> tuple[int, ...]:
    """A parameter of a window for each spatial axis: given once, for each, or as height and width."""
    short = {"kernel_size": "kernel"}.get(name, name)
    sides = [f"{short}_h", f"{short}_w"]
    if all(side in p.DESCRIPTOR.fields_by_name for side in sides) and any(p.HasField(side) for side in sides):
        if rank != 2 or len(getattr(p, name)):
            raise c.error(f"{short}_h and {short}_w are for two spatial axes, and instead of {name}")
        return tuple(int(getattr(p, side)) for side in sides)
    given = [int(v) for v in getattr(p, name)]
    if len(given) not in (0, 1, rank):
        raise c.error(f"{name} has {len(given)} numbers for {rank} spatial axes")
    return tuple(given or [default]) * (1 if len(given) == rank else rank)


def _convolution(c: Layer) -> tuple[Any, Value, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Parameters, operand, kernel, strides, pads and dilations."""
    p, x = c.parameters("convolution_param"), c.value(0)
    if c.axis(p.axis) != 1:
        raise c.unsupported(f"axis {p.axis}")
    rank = len(x.shape) - 2
    kernel, strides = _spatial(c, p, "kernel_size", rank, 0), _spatial(c, p, "stride", rank, 1)
    pads, dilations = _spatial(c, p, "pad", rank, 0), _spatial(c, p, "dilation", rank, 1)
    if rank < 1 or min(kernel) < 1 or min(strides) < 1 or min(dilations) < 1 or p.num_output < 1 or p.group < 1:
        raise c.error(
            f"kernel {kernel}, stride {strides}, dilation {dilations}, {p.num_output} outputs, {p.group} groups"
        )
    return p, x, kernel, strides, (*pads, *pads), dilations


def _biased(c: Layer, y: Value, k: int, channels: int) -> Value:
    bias = c.weight(k, (channels,), "bias")
    return c.add(y, c.reshape(bias, (1, channels, *(1 for _ in y.shape[2:]))))


def _each(c: Layer, convert: Any) -> list[Value]:
    """A layer that treats each of its bottoms alike."""
    if len(c.message.bottom) != len(c.message.top):
        raise c.error(f"{len(c.message.bottom)} bottom(s) and {len(c.message.top)} top(s)")
    if len(c.message.bottom) > 1:
        raise c.unsupported("several bottoms")
    return [convert(c)]


@layer("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution")
def convolution(c: Layer) -> Any:
    p, x, kernel, strides, pads, dilations = _convolution(c)
    (channels,) = c.fixed(x.shape[1:2], "channels")
    group = int(p.group) if c.op_type == "Convolution" else channels
    if channels % group or p.num_output % group:
        raise c.error(f"{group} groups of {channels} channels in and {p.num_output} out")
    w = c.weight(0, (p.num_output, channels // group, *kernel), "filter")
    y = c(ops.Conv(strides, pads, dilations, group), x, w)
    return _each(c, lambda c: _biased(c, y, 1, p.num_output) if p.bias_term else y)


@layer("Deconvolution")
def deconvolution(c: Layer) -> Any:
    p, x, kernel, strides, pads, dilations = _convolution(c)
    (channels,) = c.fixed(x.shape[1:2], "channels")
    group = int(p.group)
    if channels % group or p.num_output % group:
        raise c.error(f"{group} groups of {channels} channels in and {p.num_output} out")
    w = c.weight(0, (channels, p.num_output // group, *kernel), "filter")
    y = c(ops.ConvTranspose(strides, pads, dilations, (0,) * len(kernel), group), x, w)
    return _each(c, lambda c: _biased(c, y, 1, p.num_output) if p.bias_term else y)


@layer("InnerProduct")
def inner_product(c: Layer) -> Value:
    p, x = c.parameters("inner_product_param"), c.value(0)
    axis = c.axis(p.axis)
    (size,) = c.fixed([product(x.shape[axis:])], "the elements of a row")
    w = c.weight(0, (size, p.num_output) if p.transpose else (p.num_output, size), "weights")
    rows = c.reshape(x, (product(x.shape[:axis]), size))
    y = c(ops.MatMul(), rows, w if p.transpose else c.transpose(w, (1, 0)))
    if p.bias_term:
        y = c.add(y, c.weight(1, (p.num_output,), "bias"))
    return c.reshape(y, (*x.shape[:axis], p.num_output))


@layer("Embed")
def embed(c: Layer) -> Value:
    p, x = c.parameters("embed_param"), c.value(0)
    rows = c.cast(x, dt.int64)
    w = c.weight(0, (p.input_dim, p.num_output), "weights")
    y = c.gather(w, c.within(rows, 0, int(p.input_dim) - 1, "index"), 0)
    return c.add(y, c.weight(1, (p.num_output,), "bias")) if p.bias_term else y


@layer("Pooling")
def pooling(c: Layer) -> Any:
    p, x = c.parameters("pooling_param"), c.value(0)
    if len(x.shape) != 4:
        raise c.error(f"takes four dimensions, got {len(x.shape)}")
    method = p.DESCRIPTOR.fields_by_name["pool"].enum_type.values_by_number[p.pool].name
    if method == "STOCHASTIC":
        raise c.unsupported("stochastic pooling")
    if p.global_pooling:
        if p.kernel_size or p.kernel_h or p.kernel_w:
            raise c.error("global_pooling and a kernel are both given")
        reduction = ops.ReduceMax((2, 3), True) if method == "MAX" else ops.ReduceMean((2, 3), True)
        return c(reduction, x)
    if len(c.message.top) > 1:
        raise c.unsupported("a top for the positions of maxima")
    sides = p.HasField("kernel_h"), p.HasField("stride_h"), p.HasField("pad_h") or p.HasField("pad_w")
    kernel = (int(p.kernel_h), int(p.kernel_w)) if sides[0] else (int(p.kernel_size),) * 2
    strides = (int(p.stride_h), int(p.stride_w)) if sides[1] else (int(p.stride),) * 2
    pads = (int(p.pad_h), int(p.pad_w)) if sides[2] else (int(p.pad),) * 2
    if min(kernel) < 1 or min(strides) < 1 or any(a >= k for a, k in zip(pads, kernel)):
        raise c.error(f"kernel {kernel}, stride {strides}, pad {pads}")
    ceil = p.round_mode == 0
    if ceil and not any(pads):
        _windows_begin_inside(c, x.shape[2:], kernel, strides)
    arguments = (kernel, strides, (*pads, *pads), (1, 1), ceil)
    # The mean is over a window inside the operand and its pads.
    return c(ops.MaxPool(*arguments) if method == "MAX" else ops.AveragePool(*arguments, True), x)


def _windows_begin_inside(c: Layer, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int]) -> None:
    """Without pads Caffe also counts a last window that begins behind the operand, which holds nothing."""
    for size, k, s in zip(sizes, kernel, strides):
        if isinstance(size, int) and s > k and -(-(size - k) // s) * s >= size:
            raise c.error(f"the last window of {k} elements, at stride {s}, begins behind the {size} of the operand")
