"""Shapes and the movement of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft import ops
from weft.expr.nodes import Expr
from weft.graph.nodes import Value
from weft.ops.movement import slice_range
from weft.ops.shapes import axis_of, dim_select, product, quotient, simplified
from weft.tensor.language import Dim, as_dim
from weft_onnx import contents as ct
from weft_onnx.contents import Content
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_formula, onnx_op

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


def _fixed(c: Context, dims: Sequence[Dim], declared: tuple[int, ...] | None) -> tuple[Dim, ...]:
    """Formulas replaced by the numbers that the model declares for them."""
    if declared is None or len(declared) != len(dims):
        return tuple(dims)
    return tuple(d if isinstance(d, int) else n for d, n in zip(dims, declared))


@onnx_op("Reshape")
def reshape(c: Context) -> Value:
    x = c.value(0)
    wanted = c.integers("shape") if c.version < 5 else c.dims(1, "the shape")
    assert wanted is not None
    return c.reshape(x, target_shape(x.shape, wanted, c.flag("allowzero")))


def target_shape(source: Sequence[Dim], wanted: Sequence[Dim], allow_zero: bool) -> tuple[Dim, ...]:
    """The dimensions of a Reshape: 0 keeps the source's (unless `allow_zero`), -1 is what remains; where they are formulas, selected at run time."""
    kept: list[Dim] = []
    for k, d in enumerate(wanted):
        same = source[k] if k < len(source) else 0
        if isinstance(d, int):
            kept.append(same if d == 0 and not allow_zero else d)
        elif allow_zero or _not_negative(d):
            kept.append(d)
        else:
            kept.append(dim_select(ct.compare("eq", d, 0), same, d))
    for k, d in enumerate(kept):
        others = [*kept[:k], *kept[k + 1 :]]
        if isinstance(d, int) and d == -1:
            kept[k] = quotient(source, [_positive(o) for o in others])
            break
    else:
        for k, d in enumerate(kept):
            if isinstance(d, Expr) and not _not_negative(d):
                # At most one of these is -1, so the others are themselves.
                others = [*kept[:k], *kept[k + 1 :]]
                kept[k] = dim_select(ct.compare("eq", d, -1), quotient(source, [_positive(o) for o in others]), d)
    return tuple(simplified(d) if isinstance(d, Expr) and _not_negative(d) else d for d in kept)


def _positive(d: Dim) -> Dim:
    """A divisor: dimensions that are 0 leave nothing to divide."""
    return d if isinstance(d, int) or _not_negative(d) else as_dim(ct.larger(d, 1))


def _not_negative(d: Dim) -> bool:
    """Whether a formula is certainly a size: over sizes of inputs only."""
    if isinstance(d, int):
        return d >= 0
    from weft.expr.nodes import free_vars
    from weft.expr.ranges import Range, range_of

    # Data symbols, whose names hold a dot, may be anything.
    low = range_of(d, {n: Range(None, None) if "." in n else Range(0, None) for n in free_vars(d)}).lo
    return low is not None and low >= 0


@onnx_op("Flatten")
def flatten(c: Context) -> Value:
    x = c.value(0)
    axis = c.integer("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _axes(c: Context, attribute_until: int, operand: int, rank: int) -> tuple[int, ...] | None:
    """Axes that are an attribute up to a version and an operand after it."""
    axes = c.integers("axes") if c.version <= attribute_until else c.numbers(operand, "axes")
    return None if axes is None else tuple(axis_of(a, rank) for a in axes)


def _runtime_axes(c: Context, operand: int) -> bool:
    return c.version >= 13 and c.given(operand) and c.known(operand) is None


@onnx_op("Squeeze")
def squeeze(c: Context) -> Value:
    x = c.value(0)
    if _runtime_axes(c, 1):
        declared = c.declared_shape()
        if declared is None:
            raise c.unsupported("axes known only at run time")
        return c.reshape(x, declared)
    return c.reshape(x, _squeezed(c, x.shape))


def _squeezed(c: Context, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    axes = _axes(c, 12, 1, len(dims))
    if axes is None:
        if any(isinstance(d, Expr) for d in dims):
            raise c.unsupported("no axes, over dimensions known only at run time")
        return tuple(d for d in dims if d != 1)
    for a in axes:
        if isinstance(dims[a], int) and dims[a] != 1:
            raise c.error(f"axis {a} has {dims[a]} elements, only axes of one element are squeezed")
    return tuple(d for k, d in enumerate(dims) if k not in axes)


@onnx_op("Unsqueeze")
def unsqueeze(c: Context) -> Value:
    x = c.value(0)
    if _runtime_axes(c, 1):
        declared = c.declared_shape()
        if declared is None:
            raise c.unsupported("axes known only at run time")
        return c.reshape(x, declared)
    return c.reshape(x, _unsqueezed(c, x.shape))


def _unsqueezed(c: Context, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    count = len(c.integers("axes") or ()) if c.version <= 12 else int(np.prod(c.shape(1)))  # type: ignore[arg-type]
    rank = len(dims) + count
    axes = _axes(c, 12, 1, rank)
    if axes is None or len(set(axes)) != count:
        raise c.error(f"axes {axes} are not {count} different ones")
    rest = iter(dims)
    return tuple(1 if k in axes else next(rest) for k in range(rank))


@onnx_op("Transpose")
def transpose(c: Context) -> Value:
    x = c.value(0)
    return c(ops.Transpose(_order(c, len(x.shape))), x) if len(x.shape) > 1 else x  # type: ignore[no-any-return]


def _order(c: Context, rank: int) -> tuple[int, ...]:
    return c.integers("perm") or tuple(reversed(range(rank)))


@onnx_op("Expand")
def expand(c: Context) -> Value:
    dims = c.dims(1, "the shape")
    assert dims is not None
    return c(ops.BroadcastTo(dims), c.value(0))  # type: ignore[no-any-return]


@onnx_op("Tile")
def tile(c: Context) -> Value:
    repeats = c.dims(1, "the repeats")
    assert repeats is not None
    return c(ops.Tile(repeats), c.value(0))  # type: ignore[no-any-return]


# -- parts ------------------------------------------------------------------------------------------------------------


@onnx_op("Concat")
def concat(c: Context) -> Value:
    values = c.values()
    return values[0] if len(values) == 1 else c(ops.Concat(c.integer("axis")), *values)


@onnx_op("Slice")
def slice_(c: Context) -> Value:
    x = c.value(0)
    starts, ends, axes, steps = _slices(c)
    if axes is not None and any(isinstance(a, Expr) for a in axes):
        raise c.unsupported("axes known only at run time")
    rank = len(x.shape)
    chosen = tuple(range(len(starts))) if axes is None else tuple(axis_of(int(a), rank) for a in axes)  # type: ignore[call-overload]
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
    return c(ops.Slice(tuple(all_starts), tuple(all_sizes), tuple(all_steps)), x)  # type: ignore[no-any-return]


def _tidy(d: Dim) -> Dim:
    """A formula over sizes of inputs, simplified."""
    if isinstance(d, int):
        return d
    from weft.expr.nodes import free_vars

    return d if any("." in n for n in free_vars(d)) else simplified(d)


def _slices(c: Context) -> tuple[Any, Any, Any, Any]:
    if c.version < 10:
        starts, ends, axes = c.integers("starts") or (), c.integers("ends") or (), c.integers("axes")
        return starts, ends, axes, (1,) * len(starts)
    starts, ends = c.dims(1, "starts") or (), c.dims(2, "ends") or ()
    return starts, ends, c.dims(3, "axes"), c.dims(4, "steps") or (1,) * len(starts)


@onnx_op("Split")
def split(c: Context) -> list[Value]:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    sizes = _parts(c, x.shape[axis])
    results, start = [], as_dim(0)
    for n in sizes:
        results.append(c.slice(x, axis, start, n))
        start = as_dim(start + n)
    return results


def _parts(c: Context, size: Dim) -> tuple[Dim, ...]:
    given = c.integers("split") if c.version < 13 else c.dims(1, "the split")
    if given is not None:
        return given
    count = c.integer("num_outputs", len(c.node.output))
    if isinstance(size, int):
        each = -(-size // count)
        return tuple(max(0, min(each, size - k * each)) for k in range(count))
    from weft.ops.shapes import dim_ceildiv

    each_dim = dim_ceildiv(size, count)
    return (*([each_dim] * (count - 1)), as_dim(size - each_dim * (count - 1)))


@onnx_op("Pad")
def pad(c: Context) -> Value:
    x = c.value(0)
    rank = len(x.shape)
    mode = c.string("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise c.error(f"mode is '{mode}', expected constant, edge, reflect or wrap")
    if c.version < 11:
        pads: Sequence[Dim] | None = c.integers("pads")
        fill = c.number(c.real("value", 0.0), x.dtype) if c.real("value", 0.0) else None
        axes = None
    else:
        pads = c.dims(1, "pads")
        fill = c.optional(2)
        axes = c.numbers(3, "axes")
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
    return c(ops.Pad(tuple(pads), mode), *inputs)  # type: ignore[arg-type,no-any-return]


# -- by index ---------------------------------------------------------------------------------------------------------


@onnx_op("Gather")
def gather(c: Context) -> Value:
    return c(ops.Gather(c.integer("axis")), c.value(0), c.value(1))  # type: ignore[no-any-return]


@onnx_op("GatherElements")
def gather_elements(c: Context) -> Value:
    return c(ops.GatherElements(c.integer("axis")), c.value(0), c.value(1))  # type: ignore[no-any-return]


@onnx_op("GatherND")
def gather_nd(c: Context) -> Value:
    return c(ops.GatherND(c.integer("batch_dims")), c.value(0), c.value(1))  # type: ignore[no-any-return]


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(c: Context) -> Value:
    return c(ops.ScatterElements(c.integer("axis"), c.string("reduction", "none")), c.value(0), c.value(1), c.value(2))  # type: ignore[arg-type,no-any-return]


@onnx_op("ScatterND")
def scatter_nd(c: Context) -> Value:
    return c(ops.ScatterND(c.string("reduction", "none")), c.value(0), c.value(1), c.value(2))  # type: ignore[arg-type,no-any-return]


@onnx_op("OneHot")
def one_hot(c: Context) -> Value:
    indices = c.value(0)
    depth = c.importer.demanded(c.operands[1])
    if depth is None:
        depth_value = c.constant(1)
        if depth_value is None:
            # A float depth known at run time is counted as an integer.
            depth = c.importer.demanded(c.cast(c.value(1), dt.int64))
            assert depth is not None
            (d,) = depth.dims()
        else:
            d = int(depth_value.reshape(-1)[0])
    else:
        (d,) = depth.dims()
    return c(ops.OneHot(d, c.integer("axis", -1)), indices, c.value(2))  # type: ignore[no-any-return]


@onnx_op("Trilu")
def trilu(c: Context) -> Value:
    k = c.dims(1, "k")
    return c(ops.Trilu(c.flag("upper", True), k[0] if k else 0), c.value(0))  # type: ignore[no-any-return]


@onnx_op("ReverseSequence")
def reverse_sequence(c: Context) -> Value:
    return c(ops.ReverseSequence(c.integer("time_axis", 0), c.integer("batch_axis", 1)), c.value(0), c.value(1))  # type: ignore[no-any-return]


@onnx_op("NonZero")
def non_zero(c: Context) -> Value:
    x = c.value(0)
    count = c.importer.demanded(c(ops.CountNonZero(), x))
    assert count is not None
    return c(ops.NonZero(count.dims()[0]), x)  # type: ignore[no-any-return]


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
    y = c.transpose(c.reshape(x, (n, channels, as_dim(h // b), b, as_dim(w // b), b)), (0, 3, 5, 1, 2, 4))
    return c.reshape(y, (n, as_dim(channels * (b * b)), as_dim(h // b), as_dim(w // b)))


# -- from nothing -----------------------------------------------------------------------------------------------------


@onnx_op("ConstantOfShape")
def constant_of_shape(c: Context) -> Value:
    dims = c.dims(0, "the shape")
    assert dims is not None
    value = c.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    return c(ops.Fill(dt.dtype(value.dtype), dims, value.reshape(-1)[0].item()))  # type: ignore[no-any-return]


@onnx_op("EyeLike")
def eye_like(c: Context) -> Value:
    rows, columns = c.shape(0)
    return c(ops.Eye(c.dtype("dtype", c.operand_dtype(0)), rows, columns, c.integer("k")))  # type: ignore[no-any-return]


@onnx_op("Range")
def range_(c: Context) -> Value:
    start, limit, delta = (c.constant(k) for k in range(3))
    if start is not None and limit is not None and delta is not None:
        first, last, step = (a.reshape(-1)[0] for a in (start, limit, delta))
        return c.builder.constant(np.arange(first, last, step, dtype=start.dtype), c.node.output[0])
    dtype = c.operand_dtype(0)
    if dtype.is_integer:
        (first_dim,), (last_dim,), (step_dim,) = (c.dims(k, "bounds") or () for k in range(3))
        count = _count(first_dim, last_dim, step_dim)
        line = c(ops.Iota(dtype, (count,)))
    else:
        # The count is computed in floats, as numpy does, and read back as a size.
        wide = c.div(c.sub(c.value(1), c.value(0)), c.value(2))
        ceiling = c.cast(c(ops.Ceil(), wide), dt.int64)
        found = c.importer.demanded(c(ops.Maximum(), ceiling, 0))
        assert found is not None
        line = c(ops.Iota(dtype, (as_dim(found.dims()[0]),)))
    return c.add(c.mul(line, c.value(2)), c.value(0))


def _count(start: Dim, limit: Dim, delta: Dim) -> Dim:
    """max(0, ⌈(limit - start) / delta⌉)."""
    span = as_dim(limit - start) if not isinstance(limit, int) or not isinstance(start, int) else limit - start
    if isinstance(delta, int):
        if delta < 0:
            span, delta = as_dim(-span), -delta
        up = as_dim(span + (delta - 1))
    else:
        sign = ct.choose(ct.compare("lt", delta, 0), -1, 1)
        span, delta = as_dim(span * sign), ct.larger(ct.larger(delta, -delta), 1)
        up = as_dim(span + (delta - 1))
    return _tidy(as_dim(ct.larger(up, 0) // delta))


# -- on contents ------------------------------------------------------------------------------------------------------


def _moved(c: Context, elements: Any) -> Content:
    array = np.empty(np.shape(elements), dtype=object)
    array[...] = elements
    return Content(c.content(0).dtype, array)


@onnx_formula("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshape_content(c: Context) -> Content | None:
    x = c.content(0)
    if c.op_type == "Reshape":
        wanted = c.integers("shape") if c.version < 5 else c.dims(1, "the shape")
        assert wanted is not None
        dims = target_shape(x.shape, wanted, c.flag("allowzero"))
    elif c.op_type == "Flatten":
        return None
    else:
        dims = _squeezed(c, x.shape) if c.op_type == "Squeeze" else _unsqueezed(c, x.shape)
    return None if any(isinstance(d, Expr) for d in dims) else _moved(c, x.elements.reshape(dims))  # type: ignore[arg-type]


@onnx_formula("Transpose")
def transpose_content(c: Context) -> Content:
    return _moved(c, c.content(0).elements.transpose(_order(c, len(c.shape(0)))))


@onnx_formula("Concat")
def concat_content(c: Context) -> Content:
    return _moved(c, np.concatenate([c.content(k).elements for k in range(c.count)], c.integer("axis")))


@onnx_formula("Gather")
def gather_content(c: Context) -> Content | None:
    indices = c.content(1)
    x = c.content(0).elements
    axis = axis_of(c.integer("axis"), x.ndim)
    if not indices.is_constant or any(not -x.shape[axis] <= i < x.shape[axis] for i in indices.dims()):
        return None
    return _moved(c, np.take(x, indices.array(), axis=axis))


@onnx_formula("Slice")
def slice_content(c: Context) -> Content | None:
    starts, ends, axes, steps = _slices(c)
    if not ct.known(*starts, *ends, *(axes or ()), *steps) or 0 in steps:
        return None
    x = c.content(0).elements
    at = [slice(None)] * x.ndim
    for axis, start, end, step in zip(range(len(starts)) if axes is None else axes, starts, ends, steps):
        size = x.shape[axis]
        # Python reads a negative end of a backward slice from the end; ONNX clamps what is before the first.
        stop = None if step < 0 and end < -size else end
        at[axis] = slice(start, stop, step)
    return _moved(c, x[tuple(at)])


@onnx_formula("Split")
def split_content(c: Context) -> list[Content] | None:
    x = c.content(0).elements
    axis = axis_of(c.integer("axis"), x.ndim)
    sizes = _parts(c, x.shape[axis])
    if not ct.known(*sizes):
        return None
    return [_moved(c, part) for part in np.split(x, np.cumsum(sizes)[:-1], axis)]


@onnx_formula("Expand", "Tile")
def expand_content(c: Context) -> Content | None:
    dims = c.dims(1, "the shape")
    x = c.content(0).elements
    if dims is None or not ct.known(*dims):
        return None
    if c.op_type == "Tile":
        if x.size * int(np.prod(dims)) > ct.LIMIT:
            return None
        return _moved(c, np.tile(x, dims))
    out = np.broadcast_shapes(x.shape, dims)  # type: ignore[arg-type]
    return None if np.prod(out) > ct.LIMIT else _moved(c, np.broadcast_to(x, out))


@onnx_formula("ConstantOfShape")
def constant_of_shape_content(c: Context) -> Content | None:
    dims = c.content(0).dims()
    value = c.tensor("value")
    if value is None or not ct.known(*dims) or np.prod(dims) > ct.LIMIT:
        return None
    return ct.of_array(np.full(dims, value.reshape(-1)[0]))


@onnx_formula("Range")
def range_content(c: Context) -> Content | None:
    bounds = [c.content(k).dims()[0] for k in range(3)]
    if not ct.known(*bounds) or bounds[2] == 0:
        return None
    values = np.arange(*bounds, dtype=c.content(0).dtype.numpy)
    return ct.of_array(values)


@onnx_formula("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def reduce_content(c: Context) -> Content | None:
    x = c.content(0)
    if x.dtype.is_bool or len(x.shape) != 1 or not x.dims():
        return None
    if c.given(1) and c.content(1).dims() not in ((0,), (-1,), ()):
        return None
    if not c.given(1) and c.integers("axes") not in (None, (0,), (-1,)):
        return None
    if c.given(1) and not c.content(1).dims() and c.flag("noop_with_empty_axes"):
        return x
    function: Any = {"ReduceProd": lambda a, b: a * b, "ReduceSum": lambda a, b: a + b, "ReduceMax": ct.larger, "ReduceMin": ct.smaller}[c.op_type]
    result = x.dims()[0]
    for d in x.dims()[1:]:
        result = ct.plain(function(result, d))
    return ct.content(x.dtype, [result], (1,) if c.flag("keepdims", True) else ())
