"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node
from weft_ops.shapes import product


def _over(total: Dim, rest: Dim) -> Dim:
    if isinstance(total, int) and isinstance(rest, int):
        return total // rest if rest else 0
    return as_dim(wrap(total, dt.int64) // rest)


Mode = Literal["constant", "edge", "reflect"]


@op("Flatten", "flatten")
def flatten(c: Node) -> Value:
    x = c.value(0)
    return c.reshape(x, (x.shape[0], product(x.shape[1:])))


@op("Reshape", "reshape")
def reshape(c: Node) -> Value:
    x, wanted = c.value(0), list(c.integers("shape") or ())
    if not wanted:
        raise c.unsupported("target_shape")
    if c.flag("reverse"):
        if any(w < -1 for w in wanted):
            raise c.unsupported("reverse with -2, -3 or -4")
        return c.reshape(x, tuple(reversed(_shape(c, x.shape[::-1], wanted[::-1]))))
    return c.reshape(x, _shape(c, x.shape, wanted))


def _shape(c: Node, given: Sequence[Dim], wanted: Sequence[int]) -> tuple[Dim, ...]:
    """The shape that a text such as (0, -3, -4, -1, 2) stands for: 0 copies a dimension, -1 is what is left, -2 copies
    all that are left, -3 is the product of two, -4 divides one into the two that follow."""
    result: list[Dim] = []
    rest: int | None = None
    at, todo = 0, list(wanted)
    try:
        while todo:
            w = todo.pop(0)
            if w > 0:
                result.append(w)
                at += 1
            elif w == 0:
                result.append(given[at])
                at += 1
            elif w == -1:
                if rest is not None:
                    raise c.error(f"shape {tuple(wanted)} has -1 twice")
                rest = len(result)
                result.append(1)
                at += 1
            elif w == -2:
                result += given[at:]
                at = len(given)
            elif w == -3:
                result.append(product([given[at], given[at + 1]]))
                at += 2
            elif w == -4:
                a, b = todo.pop(0), todo.pop(0)
                if (a == -1) == (b == -1) and a == -1:
                    raise c.error(f"shape {tuple(wanted)} has -1 twice")
                parts: list[Dim] = [_over(given[at], b) if a == -1 else a, _over(given[at], a) if b == -1 else b]
                result += parts
                at += 1
            else:
                raise c.error(f"shape {tuple(wanted)}")
    except IndexError:
        raise c.error(f"shape {tuple(wanted)} does not fit {len(given)} dimension(s)") from None
    if rest is not None:
        result[rest] = _over(product(given), product([d for k, d in enumerate(result) if k != rest]))
    return tuple(result)


@op("transpose")
def transpose(c: Node) -> Value:
    x = c.value(0)
    axes = c.integers("axes")
    order = tuple(reversed(range(len(x.shape)))) if axes is None else tuple(c.axis(a) for a in axes)
    if sorted(order) != list(range(len(x.shape))):
        raise c.error(f"axes {axes} of {len(x.shape)} dimension(s)")
    return c.transpose(x, order)


@op("SwapAxis", "swapaxes")
def swap(c: Node) -> Value:
    x = c.value(0)
    order = list(range(len(x.shape)))
    a, b = c.axis(c.integer("dim1")), c.axis(c.integer("dim2"))
    order[a], order[b] = b, a
    return c.transpose(x, order)


@op("expand_dims")
def expand_dims(c: Node) -> Value:
    x, axis = c.value(0), c.axis(c.integer("axis"), extra=1)
    return c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@op("squeeze")
def squeeze(c: Node) -> Value:
    x, axes = c.value(0), c.integers("axis")
    gone = {k for k, d in enumerate(x.shape) if d == 1} if axes is None else {c.axis(a) for a in axes}
    if any(x.shape[k] != 1 for k in gone):
        raise c.error(f"axis {axes} of {x.type}, whose size is not 1")
    return c.reshape(x, tuple(d for k, d in enumerate(x.shape) if k not in gone) or (1,))


@op("Concat", "concat")
def concat(c: Node) -> Value:
    return c.concat(c.values(), c.axis(c.integer("dim", 1)))


@op("stack")
def stack(c: Node) -> Value:
    axis = c.axis(c.integer("axis"), extra=1)
    return c.concat([c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in c.values()], axis)


@op("SliceChannel", "split")
def split(c: Node) -> list[Value]:
    x, axis, count = c.value(0), c.axis(c.integer("axis", 1)), c.integer("num_outputs")
    (size,) = c.fixed(x.shape[axis : axis + 1], "a split along an axis")
    if count < 1 or size % count:
        raise c.error(f"{size} elements are not a multiple of {count} outputs")
    parts = [c.slice(x, axis, k * (size // count), size // count) for k in range(count)]
    if not c.flag("squeeze_axis"):
        return parts
    if size != count:
        raise c.error(f"squeeze_axis with parts of {size // count} elements")
    return [c.reshape(p, (*p.shape[:axis], *p.shape[axis + 1 :])) for p in parts]


def _sliced(c: Node, x: Value, axis: int, begin: int | None, end: int | None, step: int | None) -> Value:
    size = x.shape[axis]
    step = 1 if step in (None, 0) else step
    assert step is not None
    if begin in (None, 0) and end is None and step == 1:
        return x
    if isinstance(size, int):
        taken = range(size)[slice(begin, end, step)]
        return c.slice(x, axis, taken.start if len(taken) else 0, len(taken), step)
    if step != 1 or (begin or 0) < 0 or (end is not None and end >= 0):
        raise c.unsupported("a slice of an open size")
    first = begin or 0
    return c.slice(x, axis, first, as_dim(wrap(size, dt.int64) - first + (end or 0)))


@op("slice", "crop")
def slice_(c: Node) -> Value:
    x = c.value(0)
    begins, ends = c.optional_integers("begin") or (), c.optional_integers("end") or ()
    steps = c.optional_integers("step") or (None,) * len(begins)
    if not len(begins) == len(ends) == len(steps) <= len(x.shape):
        raise c.error(f"begin {begins}, end {ends}, step {steps}")
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps)):
        x = _sliced(c, x, axis, begin, end, step)
    return x


@op("slice_axis")
def slice_axis(c: Node) -> Value:
    ends = c.optional_integers("end") or (None,)
    return _sliced(c, c.value(0), c.axis(c.integer("axis")), c.integer("begin"), ends[0], 1)


@op("slice_like")
def slice_like(c: Node) -> Value:
    x, like = c.value(0), c.shape(1)
    axes = c.integers("axes")
    for axis in range(min(len(x.shape), len(like))) if axes is None else sorted({c.axis(a) for a in axes}):
        x = c.slice(x, axis, 0, like[axis])
    return x


@op("Pad", "pad")
def pad(c: Node) -> Value:
    x, widths = c.value(0), c.integers("pad_width") or ()
    if len(widths) != 2 * len(x.shape) or min(widths) < 0:
        raise c.error(f"pad_width {widths} of {len(x.shape)} dimension(s)")
    known: tuple[Mode, ...] = ("constant", "edge", "reflect")
    mode = c.choice("mode", known[0], known)
    pads = (*widths[::2], *widths[1::2])
    if mode == "constant":
        return c(ops.Pad(pads), x, c.number(c.real("constant_value"), x.dtype))
    return c(ops.Pad(pads, mode), x)


@op("tile")
def tile(c: Node) -> Value:
    x, repeats = c.value(0), c.integers("reps") or ()
    rank = max(len(x.shape), len(repeats))
    x = c.reshape(x, (*(1 for _ in range(rank - len(x.shape))), *x.shape))
    return c(ops.Tile((*(1 for _ in range(rank - len(repeats))), *repeats)), x)


@op("repeat")
def repeat(c: Node) -> Value:
    x, count = c.value(0), c.integer("repeats", 1)
    if c.text("axis") is None:
        x = c.reshape(x, (product(x.shape),))
    axis = 0 if c.text("axis") is None else c.axis(c.integer("axis"))
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = c.broadcast(c.reshape(x, (*before, size, 1, *after)), (*before, size, count, *after))
    return c.reshape(wide, (*before, product([size, count]), *after))


@op("broadcast_to")
def broadcast_to(c: Node) -> Value:
    x, wanted = c.value(0), c.integers("shape") or ()
    if len(wanted) != len(x.shape):
        raise c.error(f"shape {wanted} of {len(x.shape)} dimension(s)")
    return c.broadcast(x, tuple(d if w == 0 else w for d, w in zip(x.shape, wanted)))


@op("broadcast_like")
def broadcast_like(c: Node) -> Value:
    if c.integers("lhs_axes") is not None or c.integers("rhs_axes") is not None:
        raise c.unsupported("lhs_axes and rhs_axes")
    return c.broadcast(c.value(0), c.shape(1))


@op("broadcast_axis", "broadcast_axes")
def broadcast_axis(c: Node) -> Value:
    x, axes, sizes = c.value(0), c.integers("axis") or (), c.integers("size") or ()
    if len(axes) != len(sizes):
        raise c.error(f"axis {axes}, size {sizes}")
    wanted = {c.axis(a): s for a, s in zip(axes, sizes)}
    return c.broadcast(x, tuple(wanted.get(k, d) for k, d in enumerate(x.shape)))


@op("reverse", "flip")
def reverse(c: Node) -> Value:
    x = c.value(0)
    for axis in c.integers("axis") or ():
        k = c.axis(axis)
        size = x.shape[k]
        last = size - 1 if isinstance(size, int) else as_dim(wrap(size, dt.int64) - 1)
        x = c.slice(x, k, last, size, -1)
    return x


@op("Embedding")
def embedding(c: Node) -> Value:
    """An index beyond the rows is moved to the nearest."""
    x, w = c.cast(c.value(0), dt.int64), c.value(1)
    return c.gather(w, _moved(c, x, w.shape[0]), 0)


@op("take")
def take(c: Node) -> Value:
    x, indices = c.value(0), c.cast(c.value(1), dt.int64)
    axis = c.axis(c.integer("axis"))
    if c.choice("mode", "clip", ("clip", "wrap", "raise")) != "clip":
        raise c.unsupported(f"mode {c.text('mode')}")
    return c.gather(x, _moved(c, indices, x.shape[axis]), axis)


def _moved(c: Node, x: Value, size: Dim) -> Value:
    last = c.number(size - 1, dt.int64) if isinstance(size, int) else c.dim(as_dim(wrap(size, dt.int64) - 1))
    return c(ops.Maximum(), c(ops.Minimum(), x, last), c.number(0, dt.int64))


@op("one_hot")
def one_hot(c: Node) -> Value:
    x, depth = c.cast(c.value(0), dt.int64), c.integer("depth")
    if depth < 1:
        raise c.error(f"depth is {depth}")
    c.affordable(depth, "the classes")
    test = c(ops.Equal(), c.reshape(x, (*x.shape, 1)), c.builder.constant(np.arange(depth), "classes", "int64"))
    dtype = c.dtype("dtype", dt.float32)
    on, off = c.number(c.real("on_value", 1.0), dtype), c.number(c.real("off_value", 0.0), dtype)
    return c(ops.Where(), test, on, off)


@op("depth_to_space", "space_to_depth")
def blocks(c: Node) -> Value:
    size = c.integer("block_size")
    return c(ops.DepthToSpace(size) if c.op_type == "depth_to_space" else ops.SpaceToDepth(size), c.value(0))
