"""Gathers, scatters, choices and what is made of indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import maximum
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_frontend.movement import bounded, gathered, segment_count, segments
from weft_ops.shapes import dim_expr
from weft_ops.words import Reduction
from weft_tensorflow.context import Context
from weft_tensorflow.converters import diagonals
from weft_tensorflow.registry import tf_op


@tf_op("GatherV2")
def gather_v2(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    axis = c.axis(c.number_at(2, "the axis"), len(x.shape))
    batch = c.integer("batch_dims", 0)
    return gathered(c, x, indices, axis, batch + len(indices.shape) if batch < 0 else batch)


@tf_op("Gather")
def gather(c: Context) -> Value:
    return gathered(c, c.value(0), c.value(1), 0, 0)


@tf_op("GatherNd")
def gather_nd(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    if c.integer("batch_dims", 0):
        raise c.unsupported("batch_dims")
    return c(ops.GatherND(), x, bounded(c, indices, x))


@tf_op("ScatterNd")
def scatter_nd(c: Context) -> Value:
    indices, updates = c.value(0), c.value(1)
    zeros = c.broadcast(c.number(0, updates.dtype), c.shape_at(2, "the shape"))
    return c(ops.ScatterND("none" if updates.dtype.is_bool else "add"), zeros, bounded(c, indices, zeros), updates)


SCATTERS: dict[str, Reduction] = {
    "TensorScatterUpdate": "none", "TensorScatterAdd": "add", "TensorScatterMax": "max", "TensorScatterMin": "min",
}  # fmt: skip


def _scatter(reduction: Reduction) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x, indices, updates = c.value(0), c.value(1), c.value(2)
        return c(ops.ScatterND(reduction), x, bounded(c, indices, x), updates)

    return convert


for _name, _reduction in SCATTERS.items():
    tf_op(_name)(_scatter(_reduction))


@tf_op("TensorScatterSub")
def scatter_sub(c: Context) -> Value:
    x, indices = c.value(0), c.value(1)
    return c(ops.ScatterND("add"), x, bounded(c, indices, x), c(ops.Negative(), c.value(2)))


@tf_op("OneHot")
def one_hot(c: Context) -> Value:
    indices, depth = c.value(0), c.dim_at(1, "the depth")
    axis = c.integer("axis", -1)
    axis = len(indices.shape) if axis == -1 else axis
    values = c.concat([c.reshape(c.value(3), (1,)), c.reshape(c.value(2), (1,))], 0)
    # OneHot counts negative indices from the end; here they are in no place.
    if indices.dtype.kind != "uint":
        beyond = c.cast(c.dim(depth), indices.dtype)
        indices = c(ops.Where(), c(ops.Less(), indices, 0), beyond, indices)
    return c(ops.OneHot(depth, axis), indices, values)


@tf_op("Range")
def range_(c: Context) -> Value:
    start, stop, step = (c.constant(k) for k in range(3))
    dtype = c.operand_dtype(0)
    if start is not None and stop is not None and step is not None:
        first, last, by = (v.reshape(()).item() for v in (start, stop, step))
        if by == 0 or (last - first) / by < 0:
            raise c.error(f"from {first} to {last} by {by}")
        count = -(-(last - first) // by) if isinstance(by, int) else int(np.ceil(np.abs((last - first) / by)))
        c.affordable(count, "the elements")
        found = np.arange(count).astype(dtype.numpy) * dtype.numpy.type(by) + dtype.numpy.type(first)
        return c.builder.constant(found.astype(dtype.numpy))
    if not dtype.is_integer:
        return float_range(c, *(c.reshape(c.value(k), ()) for k in range(3)))
    (first,), (last,), (by,) = (c.signed(k, "bounds") or () for k in range(3))
    if not isinstance(by, int) or by == 0:
        raise c.unsupported("a step known only at run time")
    span = dim_expr(last) - dim_expr(first) if by > 0 else dim_expr(first) - dim_expr(last)
    count = as_dim(maximum((span + (abs(by) - 1)) // abs(by), 0))
    numbers = c(ops.Iota(dt.int64, (count,)))
    numbers = numbers if by == 1 else c.mul(numbers, by)
    return c.cast(numbers if first == 0 else c.add(numbers, c.dim(first)), dtype)


def float_range(c: Context, first: Value, last: Value, by: Value) -> Value:
    """Numbers from the first on, to before the last, which only the run knows."""
    steps = c(ops.Ceil(), c.div(c.cast(c.sub(last, first), dt.float64), c.cast(by, dt.float64)))
    count = c.sizes(c.reshape(c.whole(steps), (1,)), "the count")[0]
    return c.add(c.mul(c.cast(c(ops.Iota(dt.int64, (count,))), first.dtype), by), first)


@tf_op("LinSpace")
def lin_space(c: Context) -> Value:
    start, stop, count = c.value(0), c.value(1), c.number_at(2, "the count")
    if count < 1:
        raise c.error(f"{count} numbers")
    c.affordable(count, "the elements")
    if count == 1:
        return c.reshape(start, (1,))
    step = c.div(c.sub(stop, start), float(count - 1))
    ramp = c.builder.constant(np.arange(count - 1).astype(start.dtype.numpy))
    return c.concat([c.add(c.mul(ramp, step), start), c.reshape(stop, (1,))], 0)


@tf_op("Where")
def where(c: Context) -> Value:
    """The places of what is not zero, [number, rank]."""
    x = c.value(0)
    if not x.shape:
        raise c.unsupported("a scalar")
    if x.dtype.is_float:
        x = c(ops.NotEqual(), x, 0.0)
    size = c.builder.symbol(c(ops.CountNonZero(), x))
    return c.transpose(c(ops.NonZero(as_dim(size)), x), (1, 0))


# -- matrices ---------------------------------------------------------------------------------------------------------


def eye(c: Context, rows: object, columns: object, k: int = 0) -> Value:
    return c.cast(c(ops.Eye(dt.int32, rows, columns, k)), dt.bool_)  # type: ignore[arg-type]


@tf_op("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def matrix_diag(c: Context) -> Value:
    x = c.value(0)
    n = x.shape[-1]
    if c.op_type == "MatrixDiag":
        return c(ops.Where(), eye(c, n, n), c.reshape(x, (*x.shape[:-1], 1, n)), c.number(0, x.dtype))
    of = diagonals.band(c, 1)
    rows, columns = diagonals.sizes(c, x, of)
    filling = c.reshape(c.value(4), ())
    if of.low == of.high == 0 and rows == columns == n:
        return c(ops.Where(), eye(c, n, n), c.reshape(x, (*x.shape[:-1], 1, n)), filling)
    return diagonals.put(c, x, of, rows, columns, filling)


@tf_op("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def matrix_diag_part(c: Context) -> Value:
    x = c.value(0)
    if c.op_type == "MatrixDiagPart":
        return diagonals.taken(c, x, diagonals.Band(0, 0, True), c.number(0, x.dtype))
    return diagonals.taken(c, x, diagonals.band(c, 1), c.reshape(c.value(2), ()))


@tf_op("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def matrix_set_diag(c: Context) -> Value:
    x, diagonal = c.value(0), c.value(1)
    of = diagonals.Band(0, 0, True) if c.op_type == "MatrixSetDiag" else diagonals.band(c, 2)
    rows, columns = x.shape[-2:]
    length = diagonals.longest(of, rows, columns)
    diagonal = c.sized(diagonal, diagonal.shape[-1], length, "the diagonals have {0} elements, the longest takes {1}")
    return diagonals.put(c, diagonal, of, rows, columns, x)


@tf_op("MatrixBandPart")
def matrix_band_part(c: Context) -> Value:
    """What lies at most so many places below and above the diagonal; all of it where the number is negative."""
    x = c.value(0)
    for k, upper in ((1, True), (2, False)):
        known = c.known(k)
        if known is not None and known.is_constant:
            band = int(known.dims()[0])
            x = x if band < 0 else c(ops.Trilu(upper, -band if upper else band), x)
            continue
        rows, columns = (c(ops.Iota(dt.int64, (d,))) for d in x.shape[-2:])
        off = c.sub(c.reshape(rows, (x.shape[-2], 1)), columns)
        off = off if upper else c(ops.Negative(), off)
        band_value = c.reshape(c.cast(c.value(k), dt.int64), ())
        kept = c(ops.LogicalOr(), c(ops.LessEqual(), off, band_value), c(ops.Less(), band_value, 0))
        x = c(ops.Where(), kept, x, c.number(0, x.dtype))
    return x


# -- segments ---------------------------------------------------------------------------------------------------------


def _unsorted(reduction: Reduction, start: str, ascending: bool) -> Callable[[Context], Value]:
    def convert(c: Context) -> Value:
        x, numbers = c.value(0), c.value(1)
        count = segment_count(c, numbers) if ascending else c.dim_at(2, "the number of segments")
        bounds = np.finfo(x.dtype.numpy) if x.dtype.is_float else np.iinfo(x.dtype.numpy)
        first = {"zero": 0, "one": 1, "least": bounds.min, "greatest": bounds.max}[start]
        ground = float(first) if x.dtype.is_float else int(first)
        found = segments(c, x, numbers, reduction, ground, count)
        if not ascending or start in ("zero", "one"):
            return found
        # Of a segment without elements the older operators give 0.
        return c(ops.Where(), populated(c, numbers, count, len(x.shape) - 1), found, c.number(0, x.dtype))

    return convert


def populated(c: Context, numbers: Value, count: object, behind: int) -> Value:
    """Which segments have elements, with axes of one element behind."""
    ones = c.broadcast(c.number(1, dt.int32), numbers.shape)
    many = segments(c, ones, numbers, "add", 0, count)  # type: ignore[arg-type]
    return c(ops.Greater(), c.reshape(many, (*many.shape, *(1,) * behind)), 0)


SEGMENTS: tuple[tuple[str, Reduction, str], ...] = (
    ("Sum", "add", "zero"), ("Prod", "mul", "one"), ("Max", "max", "least"), ("Min", "min", "greatest"),
)  # fmt: skip
for _name, _reduction, _start in SEGMENTS:
    tf_op(f"UnsortedSegment{_name}")(_unsorted(_reduction, _start, False))
    tf_op(f"Segment{_name}")(_unsorted(_reduction, _start, True))


@tf_op("SegmentMean")
def segment_mean(c: Context) -> Value:
    x, numbers = c.value(0), c.value(1)
    count = segment_count(c, numbers)
    sums = segments(c, x, numbers, "add", 0, count)
    ones = c.broadcast(c.number(1, x.dtype), numbers.shape)
    many = segments(c, ones, numbers, "add", 0, count)
    many = c.reshape(many, (*many.shape, *(1,) * (len(x.shape) - 1)))
    return c.div(sums, c(ops.Maximum(), many, 1))


@tf_op(*(f"SparseSegment{n}{w}" for n in ("Sum", "Mean", "SqrtN") for w in ("", "WithNumSegments")))
def sparse_segments(c: Context) -> Value:
    """Segments of rows that indices choose."""
    x, indices, numbers = c.value(0), c.value(1), c.value(2)
    rows = gathered(c, x, indices, 0, 0)
    given = c.op_type.endswith("WithNumSegments")
    count = c.dim_at(3, "the number of segments") if given else segment_count(c, numbers)
    sums = segments(c, rows, numbers, "add", 0, count)
    if "Sum" in c.op_type:
        return sums
    ones = c.broadcast(c.number(1, x.dtype), numbers.shape)
    many = segments(c, ones, numbers, "add", 0, count)
    many = c(ops.Maximum(), c.reshape(many, (*many.shape, *(1,) * (len(x.shape) - 1))), 1)
    return c.div(sums, many if "Mean" in c.op_type else c(ops.Sqrt(), many))


@tf_op("Bucketize")
def bucketize(c: Context) -> Value:
    """How many of the boundaries are not above each element."""
    x = c.value(0)
    bounds = c.builder.constant(np.array(c.reals("boundaries"), np.float32))
    if x.dtype not in (dt.float32, dt.int32):
        raise c.unsupported(f"{x.dtype}")
    above = c(ops.GreaterEqual(), c.reshape(c.cast(x, dt.float32), (*x.shape, 1)), bounds)
    return c.sum(c.cast(above, dt.int32), (-1,), False)


@tf_op("SparseToDense")
def sparse_to_dense(c: Context) -> Value:
    indices, values, default = c.value(0), c.value(2), c.value(3)
    ground = c.broadcast(c.reshape(default, ()), c.shape_at(1, "the shape"))
    rank = len(indices.shape)
    rows = indices.shape[0] if rank else 1
    where = c.reshape(indices, (rows, indices.shape[1] if rank == 2 else 1))
    updates = c.broadcast(values, (rows,)) if not values.shape else values
    return c(ops.ScatterND(), ground, bounded(c, where, ground), updates)


@tf_op("InvertPermutation")
def invert_permutation(c: Context) -> Value:
    x = c.value(0)
    return c.cast(c(ops.Argsort(0), x), x.dtype)
