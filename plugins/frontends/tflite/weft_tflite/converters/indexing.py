"""Gathers, scatters, choices and what is made of indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend.movement import bounded, gathered, segment_count, segments
from weft_ops.shapes import axis_of, dim_expr
from weft_ops.words import Reduction
from weft_tflite.context import Context
from weft_tflite.registry import moving_op, tflite_op


def inside(c: Context, indices: Value, size: Dim) -> Value:
    """Indices from 0, as LiteRT takes them."""
    return c.within(indices, 0, as_dim(dim_expr(size) - 1), "index")


@moving_op("GATHER")
def gather(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    axis = axis_of(c.integer("axis"), len(x.shape))
    batch = c.integer("batch_dims")
    batch = batch + len(indices.shape) if batch < 0 else batch
    return gathered(c, x, indices, axis, batch)


@moving_op("GATHER_ND")
def gather_nd(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    return c(ops.GatherND(), x, bounded(c, indices, x))


@moving_op("SCATTER_ND")
def scatter_nd(c: Context) -> Value:
    indices, updates, dims = c.value(0), c.value(1), c.dims(2, "the shape")
    assert dims is not None
    zeros = c.broadcast(c.number(0, updates.dtype), dims)
    return c(ops.ScatterND("none" if updates.dtype.is_bool else "add"), zeros, bounded(c, indices, zeros), updates)


@moving_op("EMBEDDING_LOOKUP")
def embedding_lookup(c: Context) -> Value:
    indices, x = c.value(0), c.value(1)
    return c.gather(x, inside(c, indices, x.shape[0]), 0)


@moving_op("SELECT_V2")
def select_v2(c: Context) -> Value:
    return c(ops.Where(), c.value(0), c.value(1), c.value(2))


@moving_op("SELECT")
def select(c: Context) -> Value:
    """A condition of fewer axes chooses along the first."""
    test, a, b = c.value(0), c.value(1), c.value(2)
    behind = len(a.shape) - len(test.shape)
    return c(ops.Where(), c.reshape(test, (*test.shape, *(1,) * behind)) if behind > 0 else test, a, b)


@moving_op("ONE_HOT")
def one_hot(c: Context) -> Value:
    indices, depth = c.value(0), c.dims(1, "the depth")
    assert depth is not None and len(depth) == 1
    axis = c.integer("axis")
    axis = len(indices.shape) if axis == -1 else axis
    values = c.concat([c.reshape(c.value(3), (1,)), c.reshape(c.value(2), (1,))], 0)
    # OneHot counts negative indices from the end; here they are in no place.
    indices = c(ops.Where(), c(ops.Less(), indices, 0), c.cast(c.dim(depth[0]), indices.dtype), indices)
    return c(ops.OneHot(depth[0], axis), indices, values)


@tflite_op("RANGE")
def range_(c: Context) -> Value:
    start, stop, step = (c.constant(k) for k in range(3))
    if start is not None and stop is not None and step is not None:
        first, last, by = (v.reshape(()).item() for v in (start, stop, step))
        if by == 0 or (last - first) / by < 0:
            raise c.error(f"from {first} to {last} by {by}")
        count = -(-(last - first) // by) if isinstance(by, int) else int(np.ceil(np.abs((last - first) / by)))
        c.affordable(count, "the elements")
        dtype = c.output_dtype()
        found = np.arange(count) * dtype.numpy.type(by) + dtype.numpy.type(first)
        return c.builder.constant(found.astype(dtype.numpy))
    if not c.value(0).dtype.is_integer:
        raise c.unsupported("floats known only at run time")
    bounds = [c.signed(k, "bounds") or () for k in range(3)]
    (first,), (last,), (by,) = bounds
    if not isinstance(by, int) or by == 0:
        raise c.unsupported("a step known only at run time")
    span = dim_expr(last) - dim_expr(first) if by > 0 else dim_expr(first) - dim_expr(last)
    from weft.expr.nodes import maximum

    count = as_dim(maximum((span + (abs(by) - 1)) // abs(by), 0))
    numbers = c.mul(c(ops.Iota(dt.int64, (count,))), by)
    return c.cast(c.add(numbers, c.dim(first)), c.output_dtype())


@moving_op("WHERE")
def where(c: Context) -> Value:
    """The indices of the elements that are not zero, [count, rank]."""
    x = c.value(0)
    if not x.shape:
        raise c.unsupported("a scalar")
    if x.dtype.is_float:
        x = c(ops.NotEqual(), x, 0.0)
    size = c.builder.symbol(c(ops.CountNonZero(), x))
    return c.transpose(c(ops.NonZero(as_dim(size)), x), (1, 0))


@moving_op("MATRIX_DIAG")
def matrix_diag(c: Context) -> Value:
    x = c.value(0)
    n = x.shape[-1]
    eye = c.cast(c(ops.Eye(dt.int32, n, n)), dt.bool_)
    return c(ops.Where(), eye, c.reshape(x, (*x.shape[:-1], 1, n)), c.number(0, x.dtype))


@moving_op("MATRIX_SET_DIAG")
def matrix_set_diag(c: Context) -> Value:
    x, diagonal = c.value(0), c.value(1)
    rows, columns = x.shape[-2:]
    least = diagonal.shape[-1]
    if not isinstance(columns, int) or not isinstance(least, int):
        raise c.unsupported("sizes known only at run time")
    eye = c.cast(c(ops.Eye(dt.int32, rows, columns)), dt.bool_)
    if least != columns:
        diagonal = c.pad(diagonal, (*(0,) * len(diagonal.shape), *(0,) * (len(diagonal.shape) - 1), columns - least))
    return c(ops.Where(), eye, c.reshape(diagonal, (*diagonal.shape[:-1], 1, columns)), x)


def _unsorted(reduction: Reduction, start: str) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        count = c.dims(2, "the number of segments")
        assert count is not None and len(count) == 1
        dtype = c.value(0).dtype
        bounds = np.finfo(dtype.numpy) if dtype.is_float else np.iinfo(dtype.numpy)
        first = {"zero": 0, "one": 1, "least": bounds.min, "greatest": bounds.max}[start]
        ground = float(first) if dtype.is_float else int(first)
        return segments(c, c.value(0), c.value(1), reduction, ground, count[0])

    return convert


UNSORTED: tuple[tuple[str, Reduction, str], ...] = (
    ("SUM", "add", "zero"), ("PROD", "mul", "one"), ("MAX", "max", "least"), ("MIN", "min", "greatest"),
)  # fmt: skip
for _name, _reduction, _start in UNSORTED:
    tflite_op(f"UNSORTED_SEGMENT_{_name}")(_unsorted(_reduction, _start))


@tflite_op("SEGMENT_SUM")
def segment_sum(c: Context) -> Value:
    """The numbers ascend: there are as many segments as the last says."""
    return segments(c, c.value(0), c.value(1), "add", 0, segment_count(c, c.value(1)))


@tflite_op("BUCKETIZE")
def bucketize(c: Context) -> Value:
    """How many of the boundaries are not above each element."""
    x = c.value(0)
    bounds = c.builder.constant(np.array(c.op.options["boundaries"], np.float32))
    if x.dtype != dt.float32:
        raise c.unsupported(f"{x.dtype}")
    above = c(ops.GreaterEqual(), c.reshape(x, (*x.shape, 1)), bounds)
    return c.cast(c.sum(c.cast(above, dt.int32), (-1,), False), c.output_dtype())


@tflite_op("SPARSE_TO_DENSE")
def sparse_to_dense(c: Context) -> Value:
    indices, dims, values, default = c.value(0), c.dims(1, "the shape"), c.value(2), c.value(3)
    assert dims is not None
    ground = c.broadcast(c.reshape(default, ()), dims)
    rank = len(indices.shape)
    rows = indices.shape[0] if rank else 1
    where = c.reshape(indices, (rows, indices.shape[1] if rank == 2 else 1))
    updates = c.broadcast(values, (rows,)) if not values.shape else values
    return c(ops.ScatterND(), ground, bounded(c, where, ground), updates)
