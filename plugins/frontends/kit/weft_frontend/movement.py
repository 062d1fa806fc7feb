"""Movement of elements as TensorFlow and its relatives have it: strided slices with masks, blocks of space, mirrored
pads, segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import lt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.context import Context
from weft_ops import slice_range
from weft_ops.shapes import axis_of, dim_expr, dim_select, product, quotient, simplified
from weft_ops.words import Reduction


def target_shape(c: Context, source: Sequence[Dim], wanted: Sequence[Dim]) -> tuple[Dim, ...]:
    """The sizes of a reshape, of which one may be -1, which is what remains.

    Raises:
        FrontendError: two are, or one is less.
    """
    free = [k for k, d in enumerate(wanted) if isinstance(d, int) and d == -1]
    if len(free) > 1 or any(isinstance(d, int) and d < -1 for d in wanted):
        raise c.error(f"a shape of {list(wanted)}")
    kept = list(wanted)
    for k in free:
        kept[k] = quotient(source, [*kept[:k], *kept[k + 1 :]])
    return tuple(simplified(d) for d in kept)


def pieces(c: Context, x: Value, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    """Pieces of these sizes, one after another along an axis."""
    found, start = [], as_dim(0)
    for size in sizes:
        found.append(c.slice(x, axis, start, size))
        start = (
            as_dim(dim_expr(start) + dim_expr(size))
            if not isinstance(start, int) or not isinstance(size, int)
            else start + size
        )
    return found


@dataclass(frozen=True)
class Masks:
    """Bits of a strided slice, one for each bound: what is left out, an ellipsis, a new axis, a single element."""

    begin: int = 0
    end: int = 0
    ellipsis: int = 0
    new_axis: int = 0
    shrink_axis: int = 0


def strided_slice(
    c: Context,
    x: Value,
    begins: Sequence[Dim],
    ends: Sequence[Dim],
    steps: Sequence[Dim],
    masks: Masks,
    offset: bool = False,
) -> Value:
    """Python's x[begin:end:step, …].

    Args:
        offset: ends are lengths from the begins.

    Raises:
        FrontendError: the bounds do not fit the operand.
    """
    count = len(begins)
    if len(ends) != count or len(steps) != count or len(x.shape) > 8 or count > 16:
        raise c.error(f"{count} begins, {len(ends)} ends and {len(steps)} steps")
    if bin(masks.ellipsis & ((1 << count) - 1)).count("1") > 1:
        raise c.error("two ellipses")
    cut = _Cut(c, x, begins, ends, steps, masks, offset)
    return cut.result()


@dataclass
class _Cut:
    """A strided slice while it is worked out, axis by axis."""

    c: Context
    x: Value
    begins: Sequence[Dim]
    ends: Sequence[Dim]
    steps: Sequence[Dim]
    masks: Masks
    offset: bool

    def result(self) -> Value:
        self.starts: list[Dim] = []
        self.sizes: list[Dim] = []
        self.strides: list[Dim] = []
        self.shape: list[Dim] = []
        rank, masks = len(self.x.shape), self.masks
        every = range(len(self.begins))
        named = sum(not (masks.ellipsis | masks.new_axis) >> k & 1 for k in every)
        for k in every:
            if masks.ellipsis >> k & 1:
                self.whole(rank - named)
            elif masks.new_axis >> k & 1:
                self.shape.append(1)
            else:
                self.one(k)
        self.whole(rank - len(self.starts))
        x = self.x
        if tuple(self.sizes) != x.shape or any(s != 1 for s in self.strides):
            x = self.c(ops.Slice(tuple(self.starts), tuple(self.sizes), tuple(self.strides)), x)
        return self.c.reshape(x, tuple(self.shape))

    def take(self, start: Dim, size: Dim, step: Dim) -> None:
        self.starts.append(start)
        self.sizes.append(size)
        self.strides.append(step)

    def whole(self, many: int) -> None:
        for _ in range(many):
            size = self.x.shape[len(self.starts)]
            self.take(0, size, 1)
            self.shape.append(size)

    def one(self, k: int) -> None:
        c, masks = self.c, self.masks
        if len(self.starts) >= len(self.x.shape):
            raise c.error(f"bounds of more than {len(self.x.shape)} axes")
        size, step = self.x.shape[len(self.starts)], self.steps[k]
        if isinstance(step, int) and step == 0:
            raise c.error("a step is 0")
        if masks.shrink_axis >> k & 1:
            # TensorFlow takes a single element at `begin`, which a mask does not move.
            self.single(self.begins[k], size)
            return
        end = self.ends[k]
        if self.offset and not masks.end >> k & 1:
            end = simplified(as_dim(dim_expr(self.begins[k]) + dim_expr(end)))
        first, taken = slice_range(
            size, None if masks.begin >> k & 1 else self.begins[k], None if masks.end >> k & 1 else end, step
        )
        self.take(simplified(first), simplified(taken), step)
        self.shape.append(self.sizes[-1])

    def single(self, index: Dim, size: Dim) -> None:
        """One element, whose axis goes."""
        if isinstance(index, int) and isinstance(size, int):
            self.take(axis_of(index, size), 1, 1)
        elif isinstance(index, int):
            self.take(index if index >= 0 else simplified(as_dim(dim_expr(size) + index)), 1, 1)
        else:
            place = simplified(dim_select(lt(index, 0), as_dim(dim_expr(size) + index), index))
            self.take(place, 1, 1)


def mirror_pad(c: Context, x: Value, before: Sequence[Dim], after: Sequence[Dim]) -> Value:
    """Elements mirrored at the borders, which are repeated themselves (mode SYMMETRIC)."""
    for axis in range(len(x.shape)):
        parts = [x]
        size = x.shape[axis]
        if before[axis] != 0:
            parts.insert(0, c.slice(x, axis, as_dim(dim_expr(before[axis]) - 1), before[axis], -1))
        if after[axis] != 0:
            parts.append(c.slice(x, axis, as_dim(dim_expr(size) - 1), after[axis], -1))
        x = c.concat(parts, axis)
    return x


Around = Sequence[tuple[Dim, Dim]]
"""Of each axis what is padded or cut before and after."""


def space_to_batch(c: Context, x: Value, block: Sequence[int], around: Around, filling: Value) -> Value:
    """Blocks of the axes behind the first, padded, one after another along the first."""
    m, rest = len(block), len(x.shape) - 1 - len(block)
    before, after = [a for a, _ in around], [b for _, b in around]
    x = c(ops.Pad((0, *before, *(0,) * rest, 0, *after, *(0,) * rest)), x, filling)
    outer = []
    for k, (d, b) in enumerate(zip(x.shape[1 : m + 1], block)):
        x = c.sized(
            x, as_dim(dim_expr(d) % b) if not isinstance(d, int) else d % b, 0, f"axis {k + 1} is not of whole blocks"
        )
        outer.append(quotient((d,), (b,)))
    split = [x.shape[0]]
    for o, b in zip(outer, block):
        split += [o, b]
    tail = x.shape[m + 1 :]
    y = c.reshape(x, (*split, *tail))
    order = (*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m + 1, 2), *range(2 * m + 1, len(y.shape)))
    y = c.transpose(y, order)
    return c.reshape(y, (product((x.shape[0], *block)), *outer, *tail))


def batch_to_space(c: Context, x: Value, block: Sequence[int], around: Around) -> Value:
    """The reverse of `space_to_batch`: what was padded is cut."""
    m = len(block)
    batch = quotient((x.shape[0],), block)
    y = c.reshape(x, (*block, batch, *x.shape[1:]))
    order = [m]
    for k in range(m):
        order += [m + 1 + k, k]
    y = c.transpose(y, (*order, *range(2 * m + 1, len(y.shape))))
    y = c.reshape(y, (batch, *(product((d, b)) for d, b in zip(x.shape[1 : m + 1], block)), *x.shape[m + 1 :]))
    for k, (before, after) in enumerate(around):
        if before != 0 or after != 0:
            size = simplified(as_dim(dim_expr(y.shape[1 + k]) - before - after))
            y = c.slice(y, 1 + k, before, size)
    return y


def gathered(c: Context, x: Value, indices: Value, axis: int, batch: int) -> Value:
    """Slices of `x` along an axis by indices from 0, of which the first axes, `batch` of them, are those of `x`."""
    if not 0 <= batch <= axis or batch > len(indices.shape):
        raise c.error(f"batch_dims {batch} and axis {axis}")
    indices = c.within(indices, 0, as_dim(dim_expr(x.shape[axis]) - 1), "index")
    if not batch:
        return c.gather(x, indices, axis)
    # The axis goes behind those of the batch, which GatherND shares.
    order = (*range(batch), axis, *(k for k in range(batch, len(x.shape)) if k != axis))
    found = c(ops.GatherND(batch), c.transpose(x, order), c.reshape(indices, (*indices.shape, 1)))
    many = len(indices.shape) - batch  # axes of indices, which belong where the axis was
    before = axis - batch
    back = (
        *range(batch),
        *range(batch + many, batch + many + before),
        *range(batch, batch + many),
        *range(batch + many + before, len(found.shape)),
    )
    return c.transpose(found, back)


def bounded(c: Context, indices: Value, x: Value, batch: int = 0) -> Value:
    """Index vectors into the axes of `x` behind the batch, each checked against its axis."""
    depth = indices.shape[-1]
    if not isinstance(depth, int) or depth > len(x.shape) - batch:
        raise c.error(f"index vectors of {depth} for {len(x.shape) - batch} axes")
    for k in range(depth):
        part = c.slice(indices, -1, k, 1)
        indices = c.within(indices, 0, as_dim(dim_expr(x.shape[batch + k]) - 1), "index", part=part)
    return indices


def segments(c: Context, x: Value, numbers: Value, reduction: Reduction, start: float, count: Dim) -> Value:
    """What elements with one number along the first axes come to together; numbers below 0 are left out."""
    many = len(numbers.shape)
    flat = c.reshape(x, (product(numbers.shape), *x.shape[many:]))
    where = c.reshape(numbers, (product(numbers.shape), 1))
    # What is left out goes to a row behind the others, which is cut off.
    last = c.cast(c.dim(count), where.dtype)
    where = c.within(where, None, as_dim(dim_expr(count) - 1), "segment")
    where = c(ops.Where(), c(ops.Less(), where, 0), last, where)
    rows = as_dim(dim_expr(count) + 1)
    ground = c.broadcast(c.number(start, x.dtype), (rows, *x.shape[many:]))
    found = c(ops.ScatterND(reduction), ground, where, flat)
    return c.slice(found, 0, 0, count)


def segment_count(c: Context, numbers: Value) -> Dim:
    """How many segments ascending numbers name: as the last says."""
    if numbers.constant is not None:
        return int(numbers.constant.max(initial=-1)) + 1
    last = c(ops.Maximum(), c.add(c(ops.ReduceMax(None, False), c.cast(numbers, dt.int64)), 1), 0)
    return c.sizes(c.reshape(last, (1,)), "the segments")[0]


__all__ = [
    "Around", "Masks", "batch_to_space", "bounded", "gathered", "mirror_pad", "pieces", "segment_count", "segments",
    "space_to_batch", "strided_slice", "target_shape",
]  # fmt: skip
