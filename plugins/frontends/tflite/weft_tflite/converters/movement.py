"""The movement of elements."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.inferred import Assumption
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import movement as kit
from weft_frontend.contents import Content
from weft_frontend.movement import Masks, pieces, target_shape
from weft_ops.shapes import axis_of, dim_expr, product, same, simplified
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_op


@moving_op("RESHAPE")
def reshape(c: Context) -> Value:
    x = c.value(0)
    wanted = c.dims(1, "the shape") if c.given(1) and len(c.shape(1)) == 1 else c.integers("new_shape")
    assert wanted is not None
    if wanted == (0,) and product(x.shape) == 1:
        wanted = ()  # as old converters write a scalar
    return c.reshape(x, target_shape(c, x.shape, wanted))


@moving_op("SQUEEZE")
def squeeze(c: Context) -> Value:
    x = c.value(0)
    axes = {axis_of(a, len(x.shape)) for a in c.integers("squeeze_dims")}
    if not axes:
        if any(not isinstance(d, int) for d in x.shape):
            raise c.unsupported("no axes, where sizes are known only at run time")
        axes = {k for k, d in enumerate(x.shape) if d == 1}
    for a in sorted(axes):
        x = c.sized(x, x.shape[a], 1, f"axis {a} has {{0}} elements, only axes of one element are squeezed")
    return c.reshape(x, tuple(d for k, d in enumerate(x.shape) if k not in axes))


@moving_op("EXPAND_DIMS")
def expand_dims(c: Context) -> Value:
    x = c.value(0)
    axes = c.numbers(1, "the axis")
    assert axes is not None and len(axes) == 1
    axis = axis_of(axes[0], len(x.shape) + 1)
    return c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@moving_op("TRANSPOSE")
def transpose(c: Context) -> Value:
    x = c.value(0)
    axes = c.numbers(1, "the order of axes")
    assert axes is not None
    return c.transpose(x, tuple(axis_of(a, len(x.shape)) for a in axes))


@moving_op("BROADCAST_TO")
def broadcast_to(c: Context) -> Value:
    dims = c.dims(1, "the shape")
    assert dims is not None
    return c(ops.BroadcastTo(dims), c.value(0))


@tflite_op("BROADCAST_ARGS")
def broadcast_args(c: Context) -> Content:
    from weft_frontend import contents as ct
    from weft_ops.shapes import broadcast

    shapes = [c.dims(k, "a shape") or () for k in (0, 1)]
    assumed: list[Assumption] = []
    found = broadcast(*shapes, assumed=assumed)
    if assumed:
        raise c.unsupported("sizes of which it shows only at run time whether they are 1")
    return ct.content(c.output_dtype(), list(found))


@moving_op("TILE")
def tile(c: Context) -> Value:
    repeats = c.dims(1, "the repeats")
    assert repeats is not None
    return c(ops.Tile(repeats), c.value(0))


@tflite_op("CONCATENATION")
def concatenation(c: Context) -> Value:
    return c.activated(c.concat(c.values(), axis_of(c.integer("axis"), len(c.value(0).shape))))


@moving_op("PACK")
def pack(c: Context) -> Value:
    values = c.values()
    shape = values[0].shape
    axis = axis_of(c.integer("axis"), len(shape) + 1)
    return c.concat([c.reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in values], axis)


@moving_op("UNPACK")
def unpack(c: Context) -> list[Value]:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    x = c.sized(x, x.shape[axis], c.outputs, f"axis {axis} has {{0}} elements for {{1}} results")
    return [c.pick(x, axis, k) for k in range(c.outputs)]


@moving_op("SPLIT")
def split(c: Context) -> list[Value]:
    axes, x = c.numbers(0, "the axis"), c.value(1)
    assert axes is not None and len(axes) == 1
    axis = axis_of(axes[0], len(x.shape))
    size = x.shape[axis]
    if not isinstance(size, int):
        raise c.unsupported("an axis whose size is known only at run time")
    if size % c.outputs:
        raise c.error(f"{size} elements in {c.outputs} parts")
    return pieces(c, x, axis, [size // c.outputs] * c.outputs)


@moving_op("SPLIT_V")
def split_v(c: Context) -> list[Value]:
    x, axes = c.value(0), c.numbers(2, "the axis")
    sizes = list(c.signed(1, "the sizes") or ())
    assert axes is not None and len(axes) == 1
    axis = axis_of(axes[0], len(x.shape))
    free = [k for k, d in enumerate(sizes) if isinstance(d, int) and d < 0]
    if len(free) > 1 or len(sizes) != c.outputs:
        raise c.error(f"sizes {sizes} of {c.outputs} results")
    for k in free:
        rest = sum((dim_expr(d) for d in (*sizes[:k], *sizes[k + 1 :])), start=dim_expr(0))
        sizes[k] = simplified(as_dim(dim_expr(x.shape[axis]) - rest))
    total = simplified(as_dim(sum(map(dim_expr, sizes), start=dim_expr(0))))
    x = c.sized(x, total, x.shape[axis], f"the parts add up to {{0}}, axis {axis} has size {{1}}")
    return pieces(c, x, axis, sizes)


@moving_op("SLICE")
def slice_(c: Context) -> Value:
    x = c.value(0)
    starts, sizes = c.signed(1, "the begins"), c.signed(2, "the sizes")
    assert starts is not None and sizes is not None
    if len(starts) != len(x.shape) or len(sizes) != len(x.shape):
        raise c.error(f"{len(starts)} begins and {len(sizes)} sizes for {len(x.shape)} axes")
    taken = [
        simplified(as_dim(dim_expr(d) - dim_expr(s))) if isinstance(n, int) and n == -1 else n
        for d, s, n in zip(x.shape, starts, sizes)
    ]
    return c(ops.Slice(tuple(starts), tuple(taken)), x)


@moving_op("STRIDED_SLICE")
def strided_slice(c: Context) -> Value:
    """Python's x[begin:end:step, …] with bits of masks for what is left out, an ellipsis, new axes and single
    elements."""
    x = c.value(0)
    begins, ends, steps = (c.signed(k, "bounds", True) or () for k in (1, 2, 3))
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = Masks(*(c.integer(f"{name}_mask") for name in names))
    return kit.strided_slice(c, x, begins, ends, steps, masks, c.flag("offset"))


# -- padding ----------------------------------------------------------------------------------------------------------


def pads(c: Context, rank: int) -> tuple[Dim, ...]:
    """Pads [rank, 2] as begin…, end…."""
    found = c.dims(1, "the pads")
    assert found is not None
    if len(found) != 2 * rank:
        raise c.error(f"{len(found)} pads for {rank} axes")
    if any(isinstance(d, int) and d < 0 for d in found):
        raise c.error(f"pads {list(found)}")
    return (*found[::2], *found[1::2])


@tflite_op("PAD")
def pad(c: Context) -> Value:
    x = c.value(0)
    return c(ops.Pad(pads(c, len(x.shape))), x, c.number(0, x.dtype))


@moving_op("PADV2")
def pad_v2(c: Context) -> Value:
    x = c.value(0)
    return c(ops.Pad(pads(c, len(x.shape))), x, c.reshape(c.value(2), ()))


@moving_op("MIRROR_PAD")
def mirror_pad(c: Context) -> Value:
    x = c.value(0)
    around = pads(c, len(x.shape))
    if c.integer("mode") == 0:
        return c(ops.Pad(around, "reflect"), x)
    return kit.mirror_pad(c, x, around[: len(x.shape)], around[len(x.shape) :])


def blocks(c: Context, spatial: int) -> tuple[tuple[int, ...], list[tuple[Dim, Dim]]]:
    """Blocks, and of each axis what is padded or cut before and after."""
    block, around = c.numbers(1, "the blocks"), c.dims(2, "pads")
    assert block is not None and around is not None
    if len(block) > spatial or min(block, default=1) < 1 or len(around) != 2 * len(block):
        raise c.error(f"blocks {list(block)} and {len(around)} pads for {spatial} axes")
    return block, list(zip(around[::2], around[1::2]))


def space_to_batch(c: Context, filling: Value) -> Value:
    x = c.value(0)
    return kit.space_to_batch(c, x, *blocks(c, len(x.shape) - 1), filling)


@tflite_op("SPACE_TO_BATCH_ND")
def space_to_batch_nd(c: Context) -> Value:
    return space_to_batch(c, c.number(0, c.value(0).dtype))


@moving_op("BATCH_TO_SPACE_ND")
def batch_to_space_nd(c: Context) -> Value:
    x = c.value(0)
    return kit.batch_to_space(c, x, *blocks(c, len(x.shape) - 1))


@moving_op("REVERSE_V2")
def reverse(c: Context) -> Value:
    x, axes = c.value(0), c.numbers(1, "the axes")
    assert axes is not None
    for a in axes:
        axis = axis_of(a, len(x.shape))
        x = c.slice(x, axis, simplified(as_dim(dim_expr(x.shape[axis]) - 1)), x.shape[axis], -1)
    return x


@moving_op("REVERSE_SEQUENCE")
def reverse_sequence(c: Context) -> Value:
    x, lengths = c.value(0), c.value(1)
    time, batch = axis_of(c.integer("seq_dim"), len(x.shape)), axis_of(c.integer("batch_dim"), len(x.shape))
    lengths = c.within(c.cast(lengths, dt.int64), 0, x.shape[time], "a length")
    return c(ops.ReverseSequence(time, batch), x, lengths)


@moving_op("FILL")
def fill(c: Context) -> Value:
    dims = c.dims(0, "the shape")
    assert dims is not None
    known = [d for d in dims if isinstance(d, int)]
    c.affordable(int(np.prod(known)) if len(known) == len(dims) and c.constant(1) is not None else 0, "the elements")
    return c(ops.BroadcastTo(dims), c.reshape(c.value(1), (1,) * len(dims)))


@moving_op("DENSIFY")
def densify(c: Context) -> Value:
    """Sparse constants are dense from the beginning."""
    return c.value(0)


@moving_op("BITCAST")
def bitcast(c: Context) -> Value:
    x, to = c.value(0), c.output_dtype()
    if x.dtype.bits != to.bits:
        raise c.unsupported(f"{x.dtype} to {to}, of another width")
    return x if x.dtype == to else c(ops.Bitcast(to), x)


@moving_op("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(c: Context) -> Value:
    """An update in place of a part of the operand, moved inside where it would leave it."""
    x, update, start = c.value(0), c.value(1), c.cast(c.value(2), dt.int64)
    room = c.vector([simplified(as_dim(dim_expr(a) - dim_expr(b))) for a, b in zip(x.shape, update.shape)])
    start = c(ops.Maximum(), c(ops.Minimum(), start, room), 0)
    rank = len(x.shape)
    if not rank:
        return update
    places = [
        c.reshape(c(ops.Iota(dt.int64, (d,))), tuple(d if j == k else 1 for j in range(rank)))
        for k, d in enumerate(update.shape)
    ]
    indices = [
        c.reshape(c.broadcast(c.add(p, c.pick(start, 0, k)), update.shape), (*update.shape, 1))
        for k, p in enumerate(places)
    ]
    return c(ops.ScatterND(), x, c.concat(indices, rank), update)


def equal_shapes(a: Value, b: Value) -> bool:
    """Whether two values certainly have one shape."""
    return len(a.shape) == len(b.shape) and all(same(x, y) is True for x, y in zip(a.shape, b.shape))
