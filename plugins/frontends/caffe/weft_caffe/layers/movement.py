"""Movement and reductions; what belongs to training alone."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_caffe.numbers import decimal
from weft_caffe.registry import layer
from weft_ops.shapes import product

if TYPE_CHECKING:
    from weft_caffe.network import Layer


@layer("Concat")
def concat(c: Layer) -> Value:
    p = c.parameters("concat_param")
    return c.concat(c.values(), c.axis(int(p.concat_dim) if p.HasField("concat_dim") else p.axis))


@layer("Slice")
def slice_(c: Layer) -> list[Value]:
    p, x = c.parameters("slice_param"), c.value(0)
    axis = c.axis(int(p.slice_dim) if p.HasField("slice_dim") else p.axis)
    (size,) = c.fixed(x.shape[axis : axis + 1], "a slice along an axis")
    count, points = len(c.message.top), [int(v) for v in p.slice_point]
    if points:
        if len(points) != count - 1 or points != sorted(set(points)) or points[0] < 1 or points[-1] >= size:
            raise c.error(f"slice_point {points} of {size} elements for {count} tops")
    elif size % count:
        raise c.error(f"{size} elements are not a multiple of {count} tops")
    else:
        points = [k * (size // count) for k in range(1, count)]
    bounds = [0, *points, size]
    return [c.slice(x, axis, a, b - a) for a, b in pairwise(bounds)]


@layer("Split")
def split(c: Layer) -> list[Value]:
    return [c.value(0)] * len(c.message.top)


@layer("Silence")
def silence(c: Layer) -> list[Value]:
    return []


@layer("Flatten")
def flatten(c: Layer) -> Value:
    p, x = c.parameters("flatten_param"), c.value(0)
    first, last = c.axis(p.axis), c.axis(p.end_axis)
    if first > last + 1:
        raise c.error(f"axis {p.axis} is behind end_axis {p.end_axis}")
    return c.reshape(x, (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@layer("Reshape")
def reshape(c: Layer) -> Value:
    p, x = c.parameters("reshape_param"), c.value(0)
    rank = len(x.shape)
    first = p.axis if p.axis >= 0 else rank + p.axis + 1
    end = rank if p.num_axes == -1 else first + p.num_axes
    if not 0 <= first <= rank or p.num_axes < -1 or end > rank:
        raise c.error(f"axis {p.axis} and num_axes {p.num_axes} of {rank} dimension(s)")
    wanted: list[Dim] = []
    open_ = None
    for k, d in enumerate(p.shape.dim):
        if d == 0:
            if first + k >= rank:
                raise c.error(f"dimension {k} is copied from one that the operand does not have")
            wanted.append(x.shape[first + k])
        elif d == -1 and open_ is None:
            open_ = k
            wanted.append(1)
        elif d < 1:
            raise c.error(f"dimensions {tuple(p.shape.dim)}")
        else:
            wanted.append(int(d))
    if open_ is not None:
        total, rest = product(x.shape[first:end]), product(wanted)
        if isinstance(total, int) and isinstance(rest, int) and (rest == 0 or total % rest):
            raise c.error(f"{total} elements do not divide into {tuple(p.shape.dim)}")
        wanted[open_] = as_dim(wrap(total, dt.int64) // rest)
    return c.reshape(x, (*x.shape[:first], *wanted, *x.shape[end:]))


@layer("Permute")
def permute(c: Layer) -> Value:
    x, order = c.value(0), [int(v) for v in c.parameters("permute_param").order]
    order += [k for k in range(len(x.shape)) if k not in order]
    if sorted(order) != list(range(len(x.shape))):
        raise c.error(f"order {order} of {len(x.shape)} dimension(s)")
    return c.transpose(x, order)


@layer("Crop")
def crop(c: Layer) -> Value:
    p, x, like = c.parameters("crop_param"), c.value(0), c.shape(1)
    axis, offsets = c.axis(p.axis), [int(v) for v in p.offset]
    count = len(x.shape) - axis
    if len(like) != len(x.shape) or len(offsets) not in (0, 1, count):
        raise c.error(f"{len(offsets)} offset(s) for {count} axes, and a reference of {len(like)} dimension(s)")
    starts = (offsets or [0]) * (1 if len(offsets) == count else count)
    for k, start in enumerate(starts, axis):
        size, wanted = x.shape[k], like[k]
        if isinstance(size, int) and isinstance(wanted, int) and start + wanted > size:
            raise c.error(f"axis {k}: {wanted} elements from {start} on, of {size}")
        x = c.slice(x, k, start, wanted)
    return x


@layer("Tile")
def tile(c: Layer) -> Value:
    p, x = c.parameters("tile_param"), c.value(0)
    axis = c.axis(p.axis)
    if p.tiles < 1:
        raise c.error(f"tiles is {p.tiles}")
    return c(ops.Tile(tuple(int(p.tiles) if k == axis else 1 for k in range(len(x.shape)))), x)


@layer("Reduction")
def reduction(c: Layer) -> Value:
    p, x = c.parameters("reduction_param"), c.value(0)
    method = p.DESCRIPTOR.fields_by_name["operation"].enum_type.values_by_number[p.operation].name
    axis = c.axis(p.axis)
    axes = tuple(range(axis, len(x.shape)))
    if method == "ASUM":
        x = c(ops.Absolute(), x)
    elif method == "SUMSQ":
        x = c.mul(x, x)
    y = c.mean(x, axes, keepdims=False) if method == "MEAN" else c.sum(x, axes, keepdims=False)
    return y if p.coeff == 1 else c.mul(y, decimal(p.coeff))


@layer("ArgMax")
def arg_max(c: Layer) -> Value:
    """Caffe's top is float, and pairs indices with values along a new axis where no axis is given."""
    p, x = c.parameters("argmax_param"), c.value(0)
    if p.top_k < 1:
        raise c.error(f"top_k is {p.top_k}")
    if p.HasField("axis"):
        values, indices = c.all(ops.TopK(int(p.top_k), c.axis(p.axis)), x)
        return values if p.out_max_val else c.cast(indices, dt.float32)
    flat = c.reshape(x, (x.shape[0], 1, product(x.shape[1:])))
    values, indices = c.all(ops.TopK(int(p.top_k), 2), flat)
    found = c.cast(indices, dt.float32)
    return c.concat([found, values], 1) if p.out_max_val else found


TRAINED = (
    "SoftmaxWithLoss", "SoftmaxLoss", "EuclideanLoss", "HingeLoss", "InfogainLoss", "SigmoidCrossEntropyLoss",
    "ContrastiveLoss", "MultinomialLogisticLoss", "Accuracy",
)  # fmt: skip


@layer(*TRAINED, refuses=True)
def trained(c: Layer) -> Value:
    raise c.unsupported("it belongs to training: give the network as it is deployed")
