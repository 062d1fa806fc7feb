"""Shapes and the movement of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Expr, size_of
from weft.graph.identity import Require
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_frontend.contents import LIMIT, Content
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_formula, onnx_op
from weft_ops.movement import slice_range
from weft_ops.shapes import axis_of, dim_expr, product, quotient, simplified, static
from weft_ops.words import PAD_MODES
from weft_runtime.abi import LARGEST

# -- shapes as values -------------------------------------------------------------------------------------------------


@onnx_op("Shape")
def shape(c: Context) -> Content:
    dims = c.shape(0)
    rank = len(dims)
    start, end = c.integer("start", 0), c.integer("end", rank)
    return ct.content(dt.int64, list(dims[slice(start, end)]))


@onnx_op("Size")
def size(c: Context) -> Content:
    return ct.content(dt.int64, [product(c.shape(0))], ())


onnx_formula("Shape")(shape)
onnx_formula("Size")(size)


@onnx_op("Reshape")
def reshape(c: Context) -> Value:
    x = c.value(0)
    if c.version >= 5 and c.known(1) is None:
        return c.reshape(x, _runtime_shape(c, x, c.value(1), c.flag("allowzero")))
    wanted = c.integers("shape") if c.version < 5 else c.dims(1, "the shape")
    assert wanted is not None
    return c.reshape(x, target_shape(x.shape, wanted, c.flag("allowzero")))


def _runtime_shape(c: Context, x: Value, wanted: Value, allow_zero: bool) -> tuple[Dim, ...]:
    """The dimensions of a Reshape to a shape known only at run time: 0 and -1 are resolved as data, so that each
    dimension is one symbol."""
    if len(wanted.shape) != 1 or not isinstance(wanted.shape[0], int):
        raise c.unsupported("a shape of unknown length")
    count = wanted.shape[0]
    if count > LIMIT:
        raise c.unsupported(f"a shape of {count} dimensions")
    wanted = c.cast(wanted, dt.int64)
    if not allow_zero:
        source = c.vector((*x.shape[:count], *([0] * (count - len(x.shape)))))
        wanted = c(ops.Where(), c(ops.Equal(), wanted, 0), source, wanted)
    free = c(ops.Equal(), wanted, -1)
    others = c(ops.ReduceProd(None, False), c(ops.Where(), free, c.number(1, dt.int64), wanted))
    rest = c.div(c.dim(product(x.shape)), c(ops.Maximum(), others, 1))
    return c.sizes(c(ops.Where(), free, rest, wanted), "the shape")


def target_shape(source: Sequence[Dim], wanted: Sequence[Dim], allow_zero: bool) -> tuple[Dim, ...]:
    """The dimensions of a Reshape: 0 keeps the source's (unless `allow_zero`), -1 is what remains. Formulas are
    sizes."""
    kept: list[Dim] = []
    for k, d in enumerate(wanted):
        same = source[k] if k < len(source) else 0
        kept.append(same if isinstance(d, int) and d == 0 and not allow_zero else d)
    for k, d in enumerate(kept):
        if isinstance(d, int) and d == -1:
            kept[k] = quotient(source, [*kept[:k], *kept[k + 1 :]])
    return tuple(_tidy(d) for d in kept)


@onnx_op("Flatten")
def flatten(c: Context) -> Value:
    x = c.value(0)
    axis = c.integer("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@onnx_op("Transpose")
def transpose(c: Context) -> Value:
    x = c.value(0)
    order = axis_order(c, len(x.shape))
    return x if order in ((), (0,)) and len(x.shape) < 2 else c(ops.Transpose(order), x)


def axis_order(c: Context, rank: int) -> tuple[int, ...]:
    return c.integers("perm") or tuple(reversed(range(rank)))


@onnx_op("Expand")
def expand(c: Context) -> Value:
    dims = c.dims(1, "the shape")
    assert dims is not None
    return c(ops.BroadcastTo(dims), c.value(0))


@onnx_op("Tile")
def tile(c: Context) -> Value:
    repeats = c.dims(1, "the repeats")
    assert repeats is not None
    return c(ops.Tile(repeats), c.value(0))


# -- parts ------------------------------------------------------------------------------------------------------------


@onnx_op("Concat")
def concat(c: Context) -> Value:
    return c.concat(c.values(), c.integer("axis"))


@onnx_op("Slice")
def slice_(c: Context) -> Value:
    x = c.value(0)
    if c.version >= 10 and any(c.given(k) and c.known(k) is None for k in range(1, 5)):
        return _runtime_slice(c, x)
    starts, ends, axes, steps = slice_bounds(c)
    rank = len(x.shape)
    chosen = tuple(range(len(starts))) if axes is None else tuple(axis_of(int(a), rank) for a in axes)
    all_starts: list[Dim] = [0] * rank
    all_sizes = list(x.shape)
    all_steps: list[Dim] = [1] * rank
    for axis, start, end, step in zip(chosen, starts, ends, steps):
        if step == 0:
            raise c.error("a step is 0")
        first, count = slice_range(x.shape[axis], start, end, step)
        all_starts[axis], all_sizes[axis], all_steps[axis] = _tidy(first), _tidy(count), step
    if tuple(all_sizes) == x.shape and all(s == 1 for s in all_steps):
        return x
    return c(ops.Slice(tuple(all_starts), tuple(all_sizes), tuple(all_steps)), x)


def _runtime_slice(c: Context, x: Value) -> Value:
    """Bounds known only at run time are wrapped and clamped as data; each start and size is then one symbol, a step the
    difference of two."""
    rank = len(x.shape)
    starts, ends = (c.cast(c.value(k), dt.int64) for k in (1, 2))
    if len(starts.shape) != 1 or starts.shape != ends.shape:
        raise c.error(
            f"starts and ends are {list(starts.shape)} and {list(ends.shape)}, expected vectors of one length"
        )
    count = starts.shape[0]
    if not isinstance(count, int):
        raise c.unsupported("bounds of unknown number")
    if count > rank:
        raise c.error(f"{count} bounds for {rank} axes")
    steps = c.builder.constant(np.ones(count, np.int64))
    if c.given(4):
        # Steps beyond all sizes take the first element alone.
        steps = c.clamped(c.nonzero(c.cast(c.value(4), dt.int64), "a step"), -LARGEST, LARGEST)
    axes = c.known(3)
    if c.given(3) and axes is None:
        # Spread over all axes: those not named are taken whole.
        where = c.different(c.axes(c.value(3), rank))

        def put(default: int, v: Value) -> Value:
            return c(ops.ScatterElements(0), c.builder.constant(np.full(rank, default, np.int64)), where, v)

        starts, ends, steps = put(0, starts), put(LARGEST, ends), put(1, steps)
        chosen: tuple[int, ...] = tuple(range(rank))
    else:
        chosen = tuple(range(count)) if axes is None else tuple(axis_of(a, rank) for a in axes.dims())
    size = c.vector([x.shape[a] for a in chosen])
    down = c(ops.Less(), steps, 0)
    zero, minus = c.number(0, dt.int64), c.number(-1, dt.int64)
    lowest, highest = c(ops.Where(), down, minus, zero), c(ops.Where(), down, c.sub(size, 1), size)

    def bounded(v: Value) -> Value:
        wrapped = c(ops.Where(), c(ops.Less(), v, 0), c.add(v, size), v)
        return c(ops.Minimum(), c(ops.Maximum(), wrapped, lowest), highest)

    first, last = bounded(starts), bounded(ends)
    stride = c(ops.Absolute(), steps)
    span = c(ops.Where(), down, c.sub(first, last), c.sub(last, first))
    counts = c.div(c(ops.Maximum(), c.sub(c.add(span, stride), 1), 0), c(ops.Maximum(), stride, 1))
    firsts, sizes = c.sizes(c(ops.Maximum(), first, 0), "starts"), c.sizes(counts, "ends")
    all_steps: Sequence[Dim]
    if steps.constant is not None:
        all_steps = [int(v) for v in steps.constant]
    else:
        all_steps = c.differences(steps, "steps")
    result: list[tuple[Dim, Dim, Dim]] = [(0, d, 1) for d in x.shape]
    for axis, start, amount, step in zip(chosen, firsts, sizes, all_steps):
        result[axis] = (start, amount, step)
    return c(ops.Slice(*(tuple(r[k] for r in result) for k in range(3))), x)


def _tidy(d: Dim) -> Dim:
    """A formula over sizes, simplified."""
    return d if isinstance(d, int) else simplified(d)


def slice_bounds(c: Context) -> tuple[Any, Any, Any, Any]:
    if c.version < 10:
        first, last = c.integers("starts") or (), c.integers("ends") or ()
        return first, last, c.integers("axes"), (1,) * len(first)
    starts, ends = c.dims(1, "starts") or (), c.dims(2, "ends") or ()
    return starts, ends, c.dims(3, "axes"), c.dims(4, "steps") or (1,) * len(starts)


PIECES = 256
"""Pieces of one Split that are slices, whose places stand in the code of a kernel each. Those of more are looked up, by
one kernel for all of a size."""
LONG_START = 32
"""Parts of the sum of the sizes before a piece, from which on it is simplified: n + n + … becomes a product."""


@onnx_op("Split")
def split(c: Context) -> list[Value]:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    sizes = split_sizes(c, x.shape[axis])
    x = c.sized(
        x,
        as_dim(sum(map(dim_expr, sizes), start=dim_expr(0))),
        x.shape[axis],
        f"the parts add up to {{0}}, axis {axis} has size {{1}}",
    )
    results, start = [], as_dim(0)
    if len(sizes) > PIECES and ct.known(*sizes):
        ends = np.cumsum(static(sizes))
        c.affordable(int(ends[-1]), "places of the parts")
        return [c.gather(x, c.builder.constant(np.arange(end - n, end)), axis) for n, end in zip(static(sizes), ends)]
    for n in sizes:
        results.append(c.slice(x, axis, start, n))
        start = as_dim(start + n)
        if isinstance(start, Expr) and size_of(start) > LONG_START:
            start = simplified(start)
    return results


def split_sizes(c: Context, size: Dim) -> tuple[Dim, ...]:
    given = c.integers("split") if c.version < 13 else c.dims(1, "the split")
    if given is not None:
        return given
    count = c.integer("num_outputs", len(c.node.output))
    if count != len(c.node.output):
        raise c.error(f"num_outputs: expected {len(c.node.output)}, as many as the node has, got {count}")
    if isinstance(size, int):
        each = -(-size // count)
        return tuple(max(0, min(each, size - k * each)) for k in range(count))
    from weft_ops.shapes import dim_ceildiv

    each_dim = dim_ceildiv(size, count)
    return (*([each_dim] * (count - 1)), as_dim(size - each_dim * (count - 1)))


@onnx_op("Pad")
def pad(c: Context) -> Value:
    x = c.value(0)
    rank = len(x.shape)
    mode = c.choice("mode", "constant", PAD_MODES)
    if c.version < 11:
        pads: Sequence[Dim] | None = c.integers("pads")
        fill = c.number(c.real("value", 0.0), x.dtype) if c.real("value", 0.0) else None
        axes = None
    else:
        fill = c.optional(2)
        runtime = c.given(3) and c.known(3) is None
        axes = None if runtime else c.numbers(3, "axes")
        pads = _spread_pads(c, rank) if runtime else c.signed(1, "pads")
    assert pads is not None
    if axes is not None:
        full: list[Dim] = [0] * (2 * rank)
        for k, a in enumerate(axes):
            full[axis_of(a, rank)], full[axis_of(a, rank) + rank] = pads[k], pads[k + len(axes)]
        pads = full
    if len(pads) != 2 * rank:
        raise c.error(f"{len(pads)} pads do not fit {rank} dimension(s)")
    if not any(isinstance(p, Expr) or p for p in pads):
        return x
    inputs = [x] if fill is None or mode != "constant" else [x, fill]
    return c(ops.Pad(tuple(pads), mode), *inputs)


def _spread_pads(c: Context, rank: int) -> tuple[Dim, ...]:
    """Pads of axes known only at run time, over all axes."""
    axes, pads = c.cast(c.value(3), dt.int64), c.cast(c.value(1), dt.int64)
    (count,) = axes.shape
    axes = c.different(c.axes(axes, rank))
    pads = c.within(pads, -LARGEST, LARGEST, "pads")
    zeros = c.builder.constant(np.zeros(rank, np.int64))
    parts = [c(ops.ScatterElements(0), zeros, axes, c.slice(pads, 0, first, count)) for first in (0, count)]
    whole = c.concat(parts, 0)
    return c.differences(whole, "pads")


# -- by index ---------------------------------------------------------------------------------------------------------


@onnx_op("DepthToSpace")
def depth_to_space(c: Context) -> Value:
    x = c.value(0)
    n, channels, h, w = x.shape
    b = c.integer("blocksize")
    depth = as_dim(channels // (b * b))
    if c.string("mode", "DCR") == "DCR":
        y = c.transpose(c.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = c.transpose(c.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return c.reshape(y, (n, depth, as_dim(h * b), as_dim(w * b)))


@onnx_op("SpaceToDepth")
def space_to_depth(c: Context) -> Value:
    x = c.value(0)
    n, channels, h, w = x.shape
    b = c.integer("blocksize")
    order = (0, 3, 5, 1, 2, 4) if c.string("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = c.transpose(c.reshape(x, (n, channels, as_dim(h // b), b, as_dim(w // b), b)), order)
    return c.reshape(y, (n, as_dim(channels * (b * b)), as_dim(h // b), as_dim(w // b)))


# -- from nothing -----------------------------------------------------------------------------------------------------


@onnx_op("ConstantOfShape")
def constant_of_shape(c: Context) -> Value:
    dims = c.dims(0, "the shape")
    assert dims is not None
    value = c.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    return c(ops.Fill(dt.dtype(value.dtype), dims, value.reshape(-1)[0].item()))


@onnx_op("EyeLike")
def eye_like(c: Context) -> Value:
    if len(c.shape(0)) != 2:
        raise c.error(f"the input has {len(c.shape(0))} dimension(s), expected two")
    rows, columns = c.shape(0)
    return c(ops.Eye(c.dtype("dtype", c.operand_dtype(0)), rows, columns, c.integer("k")))


@onnx_op("Range")
def range_(c: Context) -> Value:
    start, limit, delta = (c.constant(k) for k in range(3))
    if delta is not None and not delta.reshape(-1)[0]:
        raise c.error("the step is 0")
    if start is not None and limit is not None and delta is not None:
        first, last, step = (a.reshape(-1)[0] for a in (start, limit, delta))
        # Only how much is asked for: numpy counts in the operands' own dtype.
        span, each = (last.item() - first.item(), step.item())
        if not math.isfinite(span / each):
            raise c.error(f"from {first} to {last} by {step} has no end")
        if span / each > LIMIT:  # no list of sizes: a pass may compute it
            places = -(-span // each) if isinstance(span, int) else math.ceil(span / each)
            return c.add(
                c.mul(c(ops.Iota(c.operand_dtype(0), (places,))), c.reshape(c.value(2), ())), c.reshape(c.value(0), ())
            )
        return c.builder.constant(np.arange(first, last, step, dtype=start.dtype), c.node.output[0])
    dtype, by = c.operand_dtype(0), c.value(2)
    if all(c.known(k) is not None for k in range(3)):
        bounds = [c.content(k).dims()[0] for k in range(3)]
        if isinstance(bounds[2], Expr):
            by = c.required(
                by, Require(bounds[2], 1, None, "the step is {0}, expected at least 1", (bounds[2],), c.op_type)
            )
        count = _count(*bounds)
    elif dtype.is_integer:
        by = c.nonzero(by, "the step")
        first, last, step = (c.reshape(c.cast(v, dt.int64), ()) for v in (c.value(0), c.value(1), by))
        down = c(ops.Less(), step, 0)
        low, high = c(ops.Where(), down, last, first), c(ops.Where(), down, first, last)
        # The difference of two int64 is a uint64; sums and negations wrap around to it.
        span = c.sub(c.cast(high, dt.uint64), c.cast(low, dt.uint64))
        stride = c.cast(c(ops.Where(), down, c(ops.Negative(), step), step), dt.uint64)
        places = c.add(c.div(c.sub(span, 1), c(ops.Maximum(), stride, 1)), 1)
        (count,) = c.sizes(
            c.cast(c(ops.Where(), c(ops.Less(), low, high), c(ops.Minimum(), places, 2 * LARGEST), 0), dt.int64),
            "the length",
        )
    else:
        # The length is computed in floats, as numpy does.
        by = c.nonzero(by, "the step")
        ratio = c(ops.Ceil(), c.div(c.sub(c.value(1), c.value(0)), by))
        (count,) = c.sizes(c.whole(c(ops.Where(), c(ops.LessEqual(), ratio, 0.0), 0.0, ratio)), "the length")
    return c.add(c.mul(c(ops.Iota(dtype, (count,))), c.reshape(by, ())), c.reshape(c.value(0), ()))


def _count(start: Dim, limit: Dim, delta: Dim) -> Dim:
    """max(0, ⌈(limit - start) / delta⌉) of sizes."""
    if isinstance(delta, int) and delta < 0:
        start, limit, delta = limit, start, -delta
    return _tidy(as_dim(ct.larger(as_dim(limit - start + (delta - 1)), 0) // delta))


# -- on contents ------------------------------------------------------------------------------------------------------
