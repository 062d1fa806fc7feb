"""Movement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_caffe2.registry import op
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_caffe2.network import Node


def _channel_axis(c: Node) -> int:
    """The argument `axis`, else the channels' axis by `order`."""
    if c.has("axis"):
        return c.integer("axis", 1)
    return 3 if c.channels_last() else 1


@op("Concat")
def concat(c: Node) -> list[Value]:
    axis, xs = _channel_axis(c), c.values()
    rank = len(xs[0].shape)
    if c.integer("add_axis", 0):
        if not 0 <= axis <= rank:
            raise c.error(f"axis {axis} of {rank} dimension(s)")
        xs = [c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
        sizes: list[Dim] = [1] * len(xs)
    else:
        axis = c.axis(axis)
        sizes = [x.shape[axis] for x in xs]
    return [c.concat(xs, axis), c.cast(c.vector(sizes), dt.int32)]


@op("Split")
def split(c: Node) -> list[Value]:
    x, axis, count = c.value(0), c.axis(_channel_axis(c)), c.outputs
    if c.count > 1:
        raise c.unsupported("lengths that are an input")
    (size,) = c.fixed(x.shape[axis : axis + 1], "parts along an axis")
    lengths = c.integers("split")
    if lengths is None:
        if size % count:
            raise c.error(f"{size} elements are not a multiple of {count} parts")
        lengths = (size // count,) * count
    if len(lengths) != count or sum(lengths) != size or min(lengths) < 0:
        raise c.error(f"split {lengths} of {size} elements for {count} outputs")
    starts = [sum(lengths[:k]) for k in range(count)]
    return [c.slice(x, axis, start, length) for start, length in zip(starts, lengths)]


@op("Slice")
def slice_(c: Node) -> Value:
    x = c.value(0)
    if c.count > 1:
        raise c.unsupported("starts and ends that are inputs")
    starts, ends = c.integers("starts") or (), c.integers("ends") or ()
    if len(starts) != len(ends) or len(starts) > len(x.shape):
        raise c.error(f"starts {starts} and ends {ends} of {len(x.shape)} dimension(s)")
    parts = [(k, start, end) for k, (start, end) in enumerate(zip(starts, ends)) if (start, end) != (0, -1)]
    if len(parts) > 1:
        raise c.unsupported("parts along several axes, which Caffe2 does not cut either")
    for k, start, end in parts:
        (size,) = c.fixed(x.shape[k : k + 1], "a part")
        # -1 is behind the last element.
        first, last = (v if v >= 0 else size + 1 + v for v in (start, end))
        if not 0 <= first <= last <= size or first >= size:
            raise c.error(f"axis {k}: {start} … {end} of {size} elements")
        x = c.slice(x, k, first, last - first)
    return x


@op("Reshape")
def reshape(c: Node) -> list[Value]:
    x = c.value(0)
    given = c.dims(1, "a shape") if c.count > 1 else c.integers("shape")
    if given is None:
        raise c.error("needs a shape")
    wanted: list[Dim] = []
    open_ = None
    for k, d in enumerate(given):
        if d == 0:
            if k >= len(x.shape):
                raise c.error(f"dimension {k} is copied from one that the operand does not have")
            wanted.append(x.shape[k])
        elif d == -1 and open_ is None:
            open_ = k
            wanted.append(1)
        elif isinstance(d, int) and d < 0:
            raise c.error(f"the shape is {given}")
        else:
            wanted.append(d)
    if open_ is not None:
        total, rest = product(x.shape), product(wanted)
        if isinstance(total, int) and isinstance(rest, int) and (rest == 0 or total % rest):
            raise c.error(f"{total} elements do not divide into {given}")
        wanted[open_] = as_dim(wrap(total, dt.int64) // rest)
    return [c.reshape(x, wanted), c.vector(x.shape)]


@op("Flatten")
def flatten(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis", 1), extra=1)
    return c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@op("FlattenToVec")
def vector(c: Node) -> Value:
    x = c.value(0)
    return c.reshape(x, (product(x.shape),))


@op("Transpose")
def transpose(c: Node) -> Value:
    x = c.value(0)
    axes = c.integers("axes") or tuple(reversed(range(len(x.shape))))
    if sorted(axes) != list(range(len(x.shape))):
        raise c.error(f"axes {axes} of {len(x.shape)} dimension(s)")
    return c.transpose(x, axes)


@op("NCHW2NHWC")
def to_last(c: Node) -> Value:
    return c.last(c.value(0))


@op("NHWC2NCHW")
def to_first(c: Node) -> Value:
    return c.first(c.value(0))


@op("ExpandDims")
def expand(c: Node) -> Value:
    x, dims = c.value(0), sorted(set(c.integers("dims") or ()))
    shape = list(x.shape)
    for d in dims:
        if not 0 <= d <= len(shape):
            raise c.error(f"dims {tuple(dims)} of {len(x.shape)} dimension(s)")
        shape.insert(d, 1)
    return c.reshape(x, shape)


@op("Squeeze")
def squeeze(c: Node) -> Value:
    x, dims = c.value(0), set(c.integers("dims") or ())
    if any(not 0 <= d < len(x.shape) or x.shape[d] != 1 for d in dims):
        raise c.error(f"dims {tuple(sorted(dims))} of {x.type} are not all of size 1")
    return c.reshape(x, [d for k, d in enumerate(x.shape) if k not in dims])


@op("Shape")
def shape(c: Node) -> Value:
    sizes, axes = c.shape(0), c.integers("axes")
    return c.vector(sizes if axes is None else [sizes[c.axis(a)] for a in axes])


@op("Tile")
def tile(c: Node) -> Value:
    x, times, axis = c.value(0), c.integer("tiles", 1), c.axis(c.integer("axis", 0))
    if c.count > 1 or times < 1:
        raise c.unsupported(f"{times} tiles, or a number of them that is an input")
    return c(ops.Tile(tuple(times if k == axis else 1 for k in range(len(x.shape)))), x)


@op("Gather", "BatchGather")
def gather(c: Node) -> Value:
    data, indices = c.value(0), c.value(1)
    axis = c.axis(c.integer("axis", 0)) if c.op_type == "Gather" else 1
    return c.gather(data, c.indices(indices, data.shape[axis]), axis)


@op("ChannelShuffle")
def shuffle(c: Node) -> Value:
    last = c.channels_last()
    x = c.first(c.value(0)) if last else c.value(0)
    group = c.integer("group", 1)
    (channels,) = c.fixed(x.shape[1:2], "channels")
    if group < 1 or channels % group:
        raise c.error(f"{group} groups of {channels} channels")
    y = c.reshape(x, (x.shape[0], group, channels // group, *x.shape[2:]))
    y = c.reshape(c.transpose(y, (0, 2, 1, *range(3, len(y.shape)))), x.shape)
    return c.last(y) if last else y


@op("ResizeNearest", "UpsampleNearest", "UpsampleBilinear", "ResizeBilinear")
def resize(c: Node) -> Value:
    if c.count > 1:
        raise c.unsupported("scales that are an input")
    last = c.channels_last()
    x = c.first(c.value(0)) if last else c.value(0)
    if c.op_type == "UpsampleNearest":
        scales = (float(c.integer("scale", 2)),) * 2
    else:
        scales = c.real("height_scale", 1), c.real("width_scale", 1)
    sizes = c.fixed(x.shape[2:], "resizing")
    if len(sizes) != 2 or min(scales) <= 0:
        raise c.error(f"scales {scales} of {len(x.shape)} dimension(s)")
    made: Any = tuple(int(size * scale) for size, scale in zip(sizes, scales))
    if c.op_type.endswith("Nearest"):
        y = c(ops.Resize((*x.shape[:2], *made), "nearest", "asymmetric", "floor", (2, 3), scales), x)
    else:
        y = c(ops.Resize((*x.shape[:2], *made), "linear", "align_corners", axes=(2, 3)), x)
    return c.last(y) if last else y


@op("PadImage")
def pad(c: Node) -> Value:
    from weft_caffe2.converters.windows import pads_of

    last, mode = c.channels_last(), c.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise c.error(f"mode is '{mode[:60]}'")
    x = c.first(c.value(0)) if last else c.value(0)
    before, after = pads_of(c, 2)[:2], pads_of(c, 2)[2:]
    amounts = (0, 0, *before, 0, 0, *after)
    if mode == "constant":
        y = c(ops.Pad(amounts), x, c.number(c.real("value", 0), x.dtype))
    else:
        y = c(ops.Pad(amounts, "edge" if mode == "edge" else "reflect"), x)
    return c.last(y) if last else y
