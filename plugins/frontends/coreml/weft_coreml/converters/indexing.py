"""Elements taken and put by indices, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_coreml.context import Context
from weft_coreml.registry import op
from weft_ops.shapes import dim_expr
from weft_ops.words import Reduction

MODES: dict[str, Reduction] = {"update": "none", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def counted(c: Context, name: str, size: Dim) -> Value:
    """Indices into an axis, as int64; the negative ones count from the end, or are errors with `validate_indices`."""
    indices = c.cast(c.of(name), dt.int64)
    if c.flag("validate_indices"):
        return c.within(indices, 0, as_dim(dim_expr(size) - 1), "index")
    return c.indices(indices, size)


def tuples(c: Context, dims: Sequence[Dim]) -> Value:
    """Indices [..., k] into axes, as int64; with `validate_indices` negative ones are errors."""
    indices = c.cast(c.of("indices"), dt.int64)
    if c.flag("validate_indices"):
        last = len(indices.shape) - 1
        for k in range(c.integer_of(indices.shape[last])):
            part = c.pick(indices, last, k)
            indices = c.within(indices, 0, as_dim(dim_expr(dims[k]) - 1), "index", part=part)
    return indices


@op("gather")
def gather(c: Context) -> Value:
    x = c.of("x")
    batch = c.integer("batch_dims", 0)
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    indices = counted(c, "indices", x.shape[axis])
    if not batch:
        return c(ops.Gather(axis), x, indices)
    if batch < 0:
        batch += len(indices.shape)
    if not 0 <= batch <= min(axis, len(indices.shape)):
        raise c.error(f"batch_dims {batch} of axis {axis}")
    # The axis comes behind those that are shared, and is taken by GatherND.
    order = [*range(batch), axis, *(d for d in range(batch, len(x.shape)) if d != axis)]
    y = c(ops.GatherND(batch), c.transpose(x, order), c.reshape(indices, (*indices.shape, 1)))
    free = len(indices.shape) - batch
    before = axis - batch
    rank = len(y.shape)
    back = [*range(batch), *range(batch + free, batch + free + before), *range(batch, batch + free)]
    return c.transpose(y, [*back, *range(batch + free + before, rank)])


@op("gather_along_axis")
def gather_along_axis(c: Context) -> Value:
    x = c.of("x")
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    return c(ops.GatherElements(axis), x, counted(c, "indices", x.shape[axis]))


@op("gather_nd")
def gather_nd(c: Context) -> Value:
    x, batch = c.of("x"), c.integer("batch_dims", 0)
    return c(ops.GatherND(batch), x, tuples(c, x.shape[batch:]))


def mode_of(c: Context) -> Reduction:
    found = c.text("mode", "add")
    if found not in (*MODES, "sub", "div"):
        raise c.unsupported(f"mode '{found}'")
    return MODES.get(found, "add" if found == "sub" else "mul")


def merged(c: Context, updates: Value) -> Value:
    """The updates as the mode needs them: differences and quotients are sums and products."""
    mode = c.text("mode", "add")
    if mode == "sub":
        return c(ops.Negative(), updates)
    if mode == "div":
        if not updates.dtype.is_float:
            raise c.unsupported("mode 'div' of integers")
        return c(ops.Reciprocal(), updates)
    return updates


@op("scatter_along_axis")
def scatter_along_axis(c: Context) -> Value:
    x = c.of("data")
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    indices = counted(c, "indices", x.shape[axis])
    return c(ops.ScatterElements(axis, mode_of(c)), x, indices, merged(c, c.of("updates")))


@op("scatter")
def scatter(c: Context) -> Value:
    """Slices along an axis; indices of any shape stand in its place in the updates."""
    x, updates = c.of("data"), merged(c, c.of("updates"))
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    indices = counted(c, "indices", x.shape[axis])
    k = len(indices.shape)
    order = (axis, *(d for d in range(len(x.shape)) if d != axis))
    y = c.transpose(x, order)
    moved = (*range(axis, axis + k), *range(axis), *range(axis + k, len(updates.shape)))
    rows = c.transpose(updates, moved)
    at = c.reshape(indices, (*indices.shape, 1))
    put = c(ops.ScatterND(mode_of(c)), y, at, rows)
    return c.transpose(put, [order.index(d) for d in range(len(order))])


@op("scatter_nd")
def scatter_nd(c: Context) -> Value:
    x = c.of("data")
    return c(ops.ScatterND(mode_of(c)), x, tuples(c, x.shape), merged(c, c.of("updates")))


@op("one_hot")
def one_hot(c: Context) -> Value:
    """A negative index, or one that is too large, gives no on value."""
    indices = c.cast(c.of("indices"), dt.int64)
    (depth,) = c.dims_of("one_hot_vector_size", "the length of a vector")
    to = c.result_dtype()
    on, off = (c.maybe(name) for name in ("on_value", "off_value"))
    values = [c.number(fill, to) if v is None else c.cast(c.reshape(v, ()), to) for v, fill in ((on, 1), (off, 0))]
    axis = c.axis(c.integer("axis", -1), len(indices.shape) + 1)
    shape = tuple(1 if d == axis else None for d in range(len(indices.shape) + 1))
    rest = iter(indices.shape)
    spread = c.reshape(indices, tuple(next(rest) if d is None else d for d in shape))
    places = c.reshape(c(ops.Iota(dt.int64, (depth,))), tuple(depth if d == axis else 1 for d in range(len(shape))))
    return c(ops.Where(), c(ops.Equal(), spread, places), *values)


@op("non_zero")
def non_zero(c: Context) -> Value:
    x = c.of("x")
    found = c.importer.demanded(c(ops.CountNonZero(), x))
    assert found is not None
    return c.cast(c.transpose(c(ops.NonZero(as_dim(found.dims()[0])), x), (1, 0)), c.result_dtype())


@op("argsort")
def argsort(c: Context) -> Value:
    x = c.of("x")
    made = ops.Argsort(c.axis(c.integer("axis", -1), len(x.shape)), not c.flag("ascending"))
    return c.cast(c(made, x), c.result_dtype())


@op("topk")
def topk(c: Context) -> list[Value]:
    x = c.of("x")
    axis = c.axis(c.integer("axis", -1), len(x.shape))
    k: Any = 1
    if c.has("k"):
        (k,) = c.dims_of("k", "k")
        k = x.shape[axis] if isinstance(k, int) and k == -1 else k
    values, places = c.all(ops.TopK(k, axis, not c.flag("ascending")), x)
    return [values, c.cast(places, c.result_dtype(1))] if c.outputs > 1 else [values]


__all__ = ["MODES", "counted"]
