"""The movement of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import lt
from weft.graph.inferred import Assumption
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_frontend import movement as kit
from weft_frontend.contents import Content
from weft_frontend.movement import Masks, pieces, target_shape
from weft_ops.shapes import broadcast, dim_expr, dim_select, equals, simplified
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op

HELD = (
    "Identity", "Snapshot", "CheckNumerics", "EnsureShape", "PlaceholderWithDefault",
    "DebugGradientIdentity", "RefIdentity", "CopyHost", "Copy",
)  # fmt: skip
"""Operators whose result is their operand."""


@tf_op(*HELD)
def identity(c: Context) -> Any:
    return c.operands[0]


@tf_op("StopGradient", "PreventGradient")
def stop_gradient(c: Context) -> Any:
    return c.detached(c.operands[0])


@tf_op("IdentityN")
def identities(c: Context) -> list[Any]:
    return list(c.operands)


@tf_op("Reshape")
def reshape(c: Context) -> Value:
    x = c.value(0)
    return c.reshape(x, target_shape(c, x.shape, c.shape_at(1, "the shape")))


@tf_op("Squeeze")
def squeeze(c: Context) -> Value:
    x = c.value(0)
    rank = len(x.shape)
    axes = {c.axis(a, rank) for a in c.integers("squeeze_dims", c.integers("axis", ()))}
    if not axes:
        if any(not isinstance(d, int) for d in x.shape):
            raise c.unsupported("no axes, where sizes are known only at run time")
        axes = {k for k, d in enumerate(x.shape) if d == 1}
    for a in sorted(axes):
        x = c.sized(x, x.shape[a], 1, f"axis {a} has {{0}} elements, only axes of one element are squeezed")
    return c.reshape(x, tuple(d for k, d in enumerate(x.shape) if k not in axes))


@tf_op("ExpandDims")
def expand_dims(c: Context) -> Value:
    x = c.value(0)
    rank = len(x.shape)
    if c.known(1) is not None:
        axis = c.axis(c.number_at(1, "the axis"), rank + 1)
        return c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
    where = c.sizes(c.reshape(c.axes(c.value(1), rank + 1), (1,)), "the axis")[0]
    sizes: list[Dim] = []
    for k in range(rank + 1):
        behind = x.shape[k - 1] if k else 1
        before = x.shape[k] if k < rank else 1
        here = lt(dim_expr(k), dim_expr(where))
        sizes.append(dim_select(equals(where, k), 1, dim_select(here, before, behind)))
    return c.reshape(x, tuple(sizes))


@tf_op("Transpose", "ConjugateTranspose")
def transpose(c: Context) -> Value:
    x, axes = c.value(0), c.numbers(1, "the order of axes")
    assert axes is not None
    order = tuple(c.axis(a, len(x.shape)) for a in axes)
    if len(set(order)) != len(x.shape) or len(order) != len(x.shape):
        raise c.error(f"the order {list(axes)} of {len(x.shape)} axes")
    return c.transpose(x, order)


@tf_op("BroadcastTo")
def broadcast_to(c: Context) -> Value:
    return c(ops.BroadcastTo(c.shape_at(1, "the shape")), c.value(0))


@tf_op("BroadcastArgs")
def broadcast_args(c: Context) -> Content:
    assumed: list[Assumption] = []
    found = broadcast(*(c.shape_at(k, "a shape") for k in (0, 1)), assumed=assumed)
    if assumed:
        raise c.unsupported("sizes of which it shows only at run time whether they are 1")
    return ct.content(c.dtype("T", dt.int32), list(found))


@tf_op("Tile")
def tile(c: Context) -> Value:
    return c(ops.Tile(c.shape_at(1, "the repeats")), c.value(0))


@tf_op("ConcatV2", "Concat")
def concatenation(c: Context) -> Value:
    """The axis comes last, in the older operator first."""
    last = c.count - 1
    parts, at = (range(last), last) if c.op_type == "ConcatV2" else (range(1, c.count), 0)
    values = [c.value(k) for k in parts]
    if not values:
        raise c.error("nothing is put together")
    return c.concat(values, c.axis(c.number_at(at, "the axis"), len(values[0].shape)))


@tf_op("Pack")
def pack(c: Context) -> Value:
    values = c.values()
    if not values:
        raise c.error("nothing is put together")
    shape = values[0].shape
    axis = c.axis(c.integer("axis", 0), len(shape) + 1)
    return c.concat([c.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values], axis)


@tf_op("Unpack")
def unpack(c: Context) -> list[Value]:
    x, count = c.value(0), c.integer("num")
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    x = c.sized(x, x.shape[axis], count, f"axis {axis} has {{0}} elements for {{1}} results")
    return [c.pick(x, axis, k) for k in range(count)]


@tf_op("Split")
def split(c: Context) -> list[Value]:
    x, count = c.value(1), c.integer("num_split")
    axis = c.axis(c.number_at(0, "the axis"), len(x.shape))
    size = x.shape[axis]
    if count < 1 or (isinstance(size, int) and size % count):
        raise c.error(f"{size} elements in {count} parts")
    if isinstance(size, int):
        return pieces(c, x, axis, [size // count] * count)
    part = simplified(as_dim(dim_expr(size) // count))
    rest = simplified(as_dim(dim_expr(size) - dim_expr(part) * count))
    x = c.sized(x, rest, 0, f"axis {axis} is not of {count} equal parts: {{0}} elements are left")
    return pieces(c, x, axis, [part] * count)


@tf_op("SplitV")
def split_v(c: Context) -> list[Value]:
    x = c.value(0)
    sizes = list(c.signed(1, "the sizes") or ())
    axis = c.axis(c.number_at(2, "the axis"), len(x.shape))
    free = [k for k, d in enumerate(sizes) if isinstance(d, int) and d < 0]
    if len(free) > 1 or len(sizes) != c.integer("num_split"):
        raise c.error(f"sizes {sizes} of {c.integer('num_split')} results")
    for k in free:
        rest = sum((dim_expr(d) for d in (*sizes[:k], *sizes[k + 1 :])), start=dim_expr(0))
        sizes[k] = simplified(as_dim(dim_expr(x.shape[axis]) - rest))
    total = simplified(as_dim(sum(map(dim_expr, sizes), start=dim_expr(0))))
    x = c.sized(x, total, x.shape[axis], f"the parts add up to {{0}}, axis {axis} has size {{1}}")
    return pieces(c, x, axis, sizes)


def _rest(size: Dim, start: Dim) -> Dim:
    return simplified(as_dim(dim_expr(size) - dim_expr(start)))


@tf_op("Slice")
def slice_(c: Context) -> Value:
    x = c.value(0)
    starts, sizes = c.signed(1, "the begins"), c.signed(2, "the sizes")
    assert starts is not None and sizes is not None
    if len(starts) != len(x.shape) or len(sizes) != len(x.shape):
        raise c.error(f"{len(starts)} begins and {len(sizes)} sizes for {len(x.shape)} axes")
    taken = [
        n if isinstance(n, int) and n >= 0 else simplified(dim_select(lt(dim_expr(n), 0), _rest(d, s), n))
        for d, s, n in zip(x.shape, starts, sizes)
    ]
    return c(ops.Slice(tuple(starts), tuple(taken)), x)


def masks_of(c: Context) -> Masks:
    return Masks(*(c.integer(f"{n}_mask", 0) for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")))


@tf_op("StridedSlice")
def strided_slice(c: Context) -> Value:
    begins, ends, steps = (c.signed(k, "bounds", True) or () for k in (1, 2, 3))
    return kit.strided_slice(c, c.value(0), begins, ends, steps, masks_of(c))


# -- padding ----------------------------------------------------------------------------------------------------------


def pads(c: Context, k: int, axes: int) -> list[tuple[Dim, Dim]]:
    """Pads [axes, 2] of operand k, before and after each axis."""
    found = c.shape_at(k, "the pads")
    if len(found) != 2 * axes:
        raise c.error(f"{len(found)} pads for {axes} axes")
    if any(isinstance(d, int) and d < 0 for d in found):
        raise c.error(f"pads {list(found)}")
    return list(zip(found[::2], found[1::2]))


@tf_op("Pad", "PadV2")
def pad(c: Context) -> Value:
    x = c.value(0)
    around = pads(c, 1, len(x.shape))
    filling = c.reshape(c.value(2), ()) if c.op_type == "PadV2" else c.number(0, x.dtype)
    return c(ops.Pad((*(a for a, _ in around), *(b for _, b in around))), x, filling)


@tf_op("MirrorPad")
def mirror_pad(c: Context) -> Value:
    x = c.value(0)
    around = pads(c, 1, len(x.shape))
    before, after = [a for a, _ in around], [b for _, b in around]
    if c.choice("mode", None, ("REFLECT", "SYMMETRIC")) == "REFLECT":
        return c(ops.Pad((*before, *after), "reflect"), x)
    return kit.mirror_pad(c, x, before, after)


def blocks(c: Context, rank: int) -> tuple[tuple[int, ...], list[tuple[Dim, Dim]]]:
    """Blocks, and of each axis what is padded or cut before and after."""
    if c.op_type in ("SpaceToBatch", "BatchToSpace"):
        block: tuple[int, ...] = (c.integer("block_size"),) * 2
        around = pads(c, 1, 2)
    else:
        block = c.numbers(1, "the blocks") or ()
        around = pads(c, 2, len(block))
    if len(block) >= rank or min(block, default=1) < 1:
        raise c.error(f"blocks {list(block)} for {rank} axes")
    return block, around


@tf_op("SpaceToBatchND", "SpaceToBatch")
def space_to_batch(c: Context) -> Value:
    x = c.value(0)
    return kit.space_to_batch(c, x, *blocks(c, len(x.shape)), c.number(0, x.dtype))


@tf_op("BatchToSpaceND", "BatchToSpace")
def batch_to_space(c: Context) -> Value:
    x = c.value(0)
    return kit.batch_to_space(c, x, *blocks(c, len(x.shape)))


# -- orders -----------------------------------------------------------------------------------------------------------


@tf_op("ReverseV2")
def reverse(c: Context) -> Value:
    x, axes = c.value(0), c.numbers(1, "the axes")
    assert axes is not None
    for a in axes:
        axis = c.axis(a, len(x.shape))
        x = c.slice(x, axis, simplified(as_dim(dim_expr(x.shape[axis]) - 1)), x.shape[axis], -1)
    return x


@tf_op("Reverse")
def reverse_by_flags(c: Context) -> Value:
    x, flags = c.value(0), c.constant(1)
    if flags is None or len(flags) != len(x.shape):
        raise c.unsupported("axes known only at run time")
    for axis in np.flatnonzero(flags).tolist():
        x = c.slice(x, axis, simplified(as_dim(dim_expr(x.shape[axis]) - 1)), x.shape[axis], -1)
    return x


@tf_op("ReverseSequence")
def reverse_sequence(c: Context) -> Value:
    x, lengths = c.value(0), c.value(1)
    time, batch = c.axis(c.integer("seq_dim"), len(x.shape)), c.axis(c.integer("batch_dim", 0), len(x.shape))
    lengths = c.within(c.cast(lengths, dt.int64), 0, x.shape[time], "a length")
    return c(ops.ReverseSequence(time, batch), x, lengths)


@tf_op("Fill")
def fill(c: Context) -> Value:
    dims = c.shape_at(0, "the shape")
    known = [d for d in dims if isinstance(d, int)]
    c.affordable(int(np.prod(known)) if len(known) == len(dims) and c.constant(1) is not None else 0, "the elements")
    return c(ops.BroadcastTo(dims), c.reshape(c.value(1), (1,) * len(dims)))


@tf_op("Bitcast")
def bitcast(c: Context) -> Value:
    x, to = c.value(0), c.dtype("type")
    if x.dtype.bits != to.bits:
        raise c.unsupported(f"{x.dtype} to {to}, of another width")
    return x if x.dtype == to else c(ops.Bitcast(to), x)
