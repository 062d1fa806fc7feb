"""Products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import weft_ops as ops
from weft.graph.nodes import Value
from weft_caffe2.registry import op
from weft_frontend.windows import padded, same_pads
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_caffe2.network import Node

NOTSET, VALID, SAME, CAFFE = range(4)
"""Values of the argument `legacy_pad`."""


def spatial(c: Node, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An argument with a number for each spatial axis: as a list, for height and width, or once for all."""
    found = c.integers(f"{name}s")
    sides = [f"{name}_h", f"{name}_w"]
    if found is None and sum(c.has(side) for side in sides):
        found = tuple(c.integer(side, default) for side in sides)
    if found is None:
        found = (c.integer(name, default),) * rank
    if len(found) != rank:
        raise c.error(f"{name} has {len(found)} numbers for {rank} spatial axes")
    return found


def pads_of(c: Node, rank: int) -> tuple[int, ...]:
    """The pads before each spatial axis, then those behind."""
    found = c.integers("pads")
    sides = ["pad_t", "pad_l", "pad_b", "pad_r"]
    if found is None and sum(c.has(side) for side in sides):
        found = tuple(c.integer(side, 0) for side in sides)
    if found is None:
        found = (c.integer("pad", 0),) * (2 * rank)
    if len(found) != 2 * rank:
        raise c.error(f"there are {len(found)} pads for {rank} spatial axes")
    return found


def window(c: Node, x: Value) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and dilations."""
    rank = len(x.shape) - 2
    kernel, strides = spatial(c, "kernel", rank, 0), spatial(c, "stride", rank, 1)
    dilations = spatial(c, "dilation", rank, 1)
    if rank < 1 or min(kernel) < 1 or min(strides) < 1 or min(dilations) < 1:
        raise c.error(f"kernel {kernel}, stride {strides}, dilation {dilations}")
    return kernel, strides, dilations


def biased(c: Node, y: Value, k: int) -> Value:
    if not c.given(k):
        return y
    bias = c.value(k)
    return c.add(y, c.reshape(bias, (1, *bias.shape, *(1 for _ in y.shape[2:]))))


@op("Conv", "Conv1D", "Conv2D", "Conv3D")
def conv(c: Node) -> Value:
    last = c.channels_last()
    x, w = (c.first(c.value(k)) if last else c.value(k) for k in (0, 1))
    kernel, strides, dilations = window(c, x)
    legacy, group = c.integer("legacy_pad", NOTSET), c.integer("group", 1)
    if legacy not in (NOTSET, VALID, SAME):
        raise c.unsupported(f"legacy_pad {legacy}")
    pads: Sequence[object] = pads_of(c, len(kernel))
    if legacy != NOTSET and any(p != 0 for p in pads):
        raise c.error(f"legacy_pad {legacy} and pads {pads}")
    if w.shape[2:] != kernel or group < 1:
        raise c.error(f"kernel {kernel} in {group} groups, the weights are {w.type}")
    x, given = padded(c, x, same_pads(x.shape[2:], kernel, strides, (1,) * len(kernel))) if legacy == SAME else (
        x, pads_of(c, len(kernel)))  # fmt: skip
    if legacy == SAME and max(dilations) > 1:
        raise c.unsupported("legacy_pad 2 with a dilation")
    y = biased(c, c(ops.Conv(strides, given, dilations, group), x, w), 2)
    return c.last(y) if last else y


@op("ConvTranspose")
def conv_transpose(c: Node) -> Value:
    last = c.channels_last()
    x, w = (c.first(c.value(k)) if last else c.value(k) for k in (0, 1))
    kernel, strides, dilations = window(c, x)
    group, legacy, more = c.integer("group", 1), c.integer("legacy_pad", NOTSET), spatial(c, "adj", len(kernel), 0)
    if legacy not in (NOTSET, VALID) or max(dilations) > 1 or (last and group > 1):
        raise c.unsupported(f"legacy_pad {legacy}, dilation {dilations}, {group} groups")
    if w.shape[2:] != kernel or any(not 0 <= a < s for a, s in zip(more, strides)):
        raise c.error(f"kernel {kernel}, adj {more}, stride {strides}, the weights are {w.type}")
    y = biased(c, c(ops.ConvTranspose(strides, pads_of(c, len(kernel)), dilations, more, group), x, w), 2)
    return c.last(y) if last else y


@op(*(f"{kind}Pool{rank}" for kind in ("Max", "Average") for rank in ("", "1D", "2D", "3D")))
def pool(c: Node) -> Value:
    last, largest = c.channels_last(), c.op_type.startswith("Max")
    x = c.first(c.value(0)) if last else c.value(0)
    include = bool(c.integer("count_include_pad", 0))
    if c.integer("global_pooling", 0):
        for name in ("kernel", "kernels", "stride", "strides", "pad", "pads", "kernel_h", "kernel_w", "legacy_pad"):
            c.argument(name)
        axes = tuple(range(2, len(x.shape)))
        y = c.max(x, axes) if largest else c.mean(x, axes)
        return c.last(y) if last else y
    kernel, strides, dilations = window(c, x)
    legacy, pads = c.integer("legacy_pad", NOTSET), pads_of(c, len(kernel))
    if legacy not in (NOTSET, VALID, CAFFE) or max(dilations) > 1 or (legacy == CAFFE and include):
        raise c.unsupported(f"legacy_pad {legacy}, dilation {dilations}, count_include_pad {include}")
    if legacy == VALID and any(pads):
        raise c.error(f"legacy_pad {legacy} and pads {pads}")
    if any(p >= k for p, k in zip(pads, (*kernel, *kernel))):
        raise c.error(f"kernel {kernel}, pads {pads}")
    arguments = (kernel, strides, pads, dilations, legacy == CAFFE)
    if legacy == CAFFE and not any(pads):
        for size, k, s in zip(c.fixed(x.shape[2:], "legacy_pad 3"), kernel, strides):
            if s > k and -(-(size - k) // s) * s >= size:
                raise c.error(
                    f"the last window of {k} elements, at stride {s}, begins behind the {size} of the operand"
                )
    y = c(ops.MaxPool(*arguments) if largest else ops.AveragePool(*arguments, include), x)
    return c.last(y) if last else y


@op("FC", "FCTransposed")
def dense(c: Node) -> Value:
    x, w = c.value(0), c.value(1)
    axis, at = c.axis(c.integer("axis", 1)), c.axis(c.integer("axis_w", 1), 1)
    (size,) = c.fixed([product(x.shape[axis:])], "the elements of a row")
    rows, columns = c.fixed([product(w.shape[:at]), product(w.shape[at:])], "weights")
    w, transposed = c.reshape(w, (rows, columns)), c.op_type == "FCTransposed"
    if size != (rows if transposed else columns):
        raise c.error(f"rows of {size} elements, weights of {rows} × {columns}")
    y = c(ops.MatMul(), c.reshape(x, (product(x.shape[:axis]), size)), w if transposed else c.transpose(w, (1, 0)))
    y = c.add(y, c.value(2)) if c.given(2) else y
    return c.reshape(y, (*x.shape[:axis], columns if transposed else rows))


@op("MatMul", "BatchMatMul")
def matmul(c: Node) -> Value:
    a, b = c.value(0), c.value(1)
    if c.op_type == "MatMul":
        if len(a.shape) != 2 or len(b.shape) != 2 or c.integer("axis_a", 1) != 1 or c.integer("axis_b", 1) != 1:
            raise c.unsupported("operands that are no matrices")
    elif not c.integer("broadcast", 0) and len(a.shape) != len(b.shape):
        raise c.error(f"operands of {len(a.shape)} and {len(b.shape)} dimensions")
    if min(len(a.shape), len(b.shape)) < 2:
        raise c.unsupported("an operand of one dimension")
    turned = [c.transpose(v, (*range(len(v.shape) - 2), len(v.shape) - 1, len(v.shape) - 2)) for v in (a, b)]
    a, b = (t if c.integer(name, 0) else v for name, v, t in zip(("trans_a", "trans_b"), (a, b), turned))
    return c(ops.MatMul(), a, b)
