"""Sizes as values: integers known as formulas while a program is read, and tensors made of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import Expr
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_coreml.context import Context
from weft_coreml.converters.movement import bounds_of, expanded, moved, squeezed, target_shape
from weft_coreml.registry import formula, op
from weft_frontend import contents as ct
from weft_frontend.contents import LIMIT, Content
from weft_ops.shapes import dim_ceildiv, dim_expr, dim_max


@op("shape")
def shape(c: Context) -> Content:
    return ct.content(c.result_dtype(), list(c.shape_of("x")))


formula("shape")(shape)


@op("fill")
def fill(c: Context) -> Value:
    dims = c.dims_of("shape", "a shape")
    value = c.maybe("value")
    to = c.result_dtype()
    if value is not None and value.constant is None:
        return c.broadcast(c.cast(c.reshape(value, ()), to), dims)
    number = 0 if value is None or value.constant is None else value.constant.reshape(-1)[0].item()
    return c(ops.Fill(to, dims, number))


@op("fill_like")
def fill_like(c: Context) -> Value:
    value = c.maybe("value")
    to = c.result_dtype()
    number = 0 if value is None or value.constant is None else value.constant.reshape(-1)[0].item()
    return c(ops.Fill(to, c.shape_of("ref_tensor"), number))


@op("range_1d")
def range_1d(c: Context) -> Value:
    """start, start + step, … below end."""
    names = ("start", "end", "step")
    contents = [c.content_of(name) for name in names]
    to = c.result_dtype()
    if all(x is not None for x in contents):
        start, end, step = (as_dim(x.dims()[0]) for x in contents if x is not None)
        if isinstance(step, int) and step > 0:
            count = dim_max(0, dim_ceildiv(as_dim(dim_expr(end) - dim_expr(start)), step))
            at = c.mul(c(ops.Iota(dt.int64, (count,))), step)
            return c.cast(c.add(at, c.dim(start)), to)
    arrays = [c.of(name).constant for name in names]
    if all(a is not None for a in arrays):
        first, last, by = (a.reshape(-1)[0].item() for a in arrays if a is not None)
        if by == 0:
            raise c.error("the step is 0")
        count = max(int(np.ceil((last - first) / by)), 0)
        c.affordable(count, "a range")
        return c.vector_of(first + by * np.arange(count), to)
    first_, last_, by_ = (c.cast(c.of(name), dt.float64) for name in names)
    steps = c(ops.Ceil(), c.div(c.sub(last_, first_), by_))
    (count_,) = c.sizes(c.reshape(c.whole(c(ops.Maximum(), steps, 0.0)), (1,)), "the length of a range")
    at = c.cast(c(ops.Iota(dt.int64, (count_,))), dt.float64)
    return c.cast(c.add(c.mul(at, c.reshape(by_, ())), c.reshape(first_, ())), to)


# -- formulas ---------------------------------------------------------------------------------------------------------

EACH: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": ct.larger,
    "minimum": ct.smaller, "floor_div": lambda a, b: a // b, "mod": lambda a, b: a % b,
}  # fmt: skip
COMPARED: dict[str, Callable[..., Any]] = {
    "equal": lambda a, b: ct.compare("eq", a, b), "not_equal": lambda a, b: ct.compare("ne", a, b),
    "less": lambda a, b: ct.compare("lt", a, b), "less_equal": lambda a, b: ct.compare("le", a, b),
    "greater": lambda a, b: ct.compare("lt", b, a), "greater_equal": lambda a, b: ct.compare("le", b, a),
}  # fmt: skip


def _each(function: Callable[..., Any]) -> Callable[[Context], Content | None]:
    def apply(c: Context) -> Content | None:
        x, y = c.content_of("x"), c.content_of("y")
        if x is None or y is None or x.dtype.is_bool or y.dtype.is_bool:
            return None
        try:
            return ct.each(function, c.result_dtype(), x, y)
        except (ZeroDivisionError, ValueError):
            return None

    return apply


for _name, _function in (*EACH.items(), *COMPARED.items()):
    formula(_name)(_each(_function))


@formula("cast")
def cast(c: Context) -> Content | None:
    x = c.content_of("x")
    to = c.result_dtype()
    if x is None or to not in ct.KINDS or to.is_bool != x.dtype.is_bool:
        return None
    return Content(to, x.elements)


def _parts(c: Context) -> list[Any] | None:
    found = [c.importer.known(o) for o in c.named["values"]]
    if any(x is None for x in found) or sum(x.elements.size for x in found if x is not None) > LIMIT:
        return None
    return [x for x in found if x is not None]


@formula("concat", "stack")
def concat(c: Context) -> Content | None:
    parts = _parts(c)
    if not parts or c.flag("interleave"):
        return None
    rank = parts[0].elements.ndim
    if c.op_type == "stack":
        return Content(parts[0].dtype, np.stack([p.elements for p in parts], c.axis(c.integer("axis"), rank + 1)))
    return Content(parts[0].dtype, np.concatenate([p.elements for p in parts], c.axis(c.integer("axis"), rank)))


@formula("reshape", "squeeze", "expand_dims")
def reshaped(c: Context) -> Content | None:
    x = c.content_of("x")
    if x is None:
        return None
    if c.op_type == "reshape":
        to = target_shape(c, x.shape, c.dims_of("shape", "a shape"))
    elif c.op_type == "squeeze":
        to = squeezed(c, x.shape, c.ints("axes") if c.has("axes") else None)
    else:
        to = expanded(c, x.shape, c.ints("axes"))
    if any(isinstance(d, Expr) for d in to):
        return None
    return Content(x.dtype, moved(x.elements.reshape(to)))


@formula("gather")
def gather(c: Context) -> Content | None:
    x, indices = c.content_of("x"), c.content_of("indices")
    if x is None or indices is None or not indices.is_constant or c.integer("batch_dims", 0) or not x.shape:
        return None
    axis = c.axis(c.integer("axis", 0), len(x.shape))
    if any(not -x.shape[axis] <= i < x.shape[axis] for i in indices.dims()):
        return None
    return Content(x.dtype, moved(np.take(x.elements, indices.array().astype(np.int64), axis)))


@formula("slice_by_index")
def slice_by_index(c: Context) -> Content | None:
    x = c.content_of("x")
    if x is None or any(name in c.named and c.content_of(name) is None for name in ("begin", "end")):
        return None
    starts, counts, _, gone = bounds_of(c, x.shape)
    firsts, lengths = ([d for d in dims if isinstance(d, int)] for dims in (starts, counts))
    if len(firsts) < len(starts) or len(lengths) < len(counts):
        return None
    if any(not 0 <= firsts[k] < x.shape[k] for k in gone):
        return None
    found = x.elements
    for k, (first, count, step) in enumerate(zip(firsts, lengths, c.ints("stride", (1,) * len(firsts)))):
        found = np.take(found, [first + step * i for i in range(count)], k)
    return Content(x.dtype, moved(np.squeeze(found, tuple(gone))))


@formula("slice_by_size")
def slice_by_size(c: Context) -> Content | None:
    x, begin, size = (c.content_of(name) for name in ("x", "begin", "size"))
    if x is None or begin is None or size is None or not begin.is_constant or not size.is_constant:
        return None
    found = x.elements
    for k, (first, count) in enumerate(zip(begin.dims(), size.dims())):
        first = first + x.shape[k] if first < 0 else first
        last = x.shape[k] if count == -1 else first + count
        found = found[(slice(None),) * k + (slice(first, last),)]
    return Content(x.dtype, found)


@formula("split")
def split(c: Context) -> list[Content] | None:
    x = c.content_of("x")
    if x is None or (c.has("split_sizes") and c.content_of("split_sizes") is None):
        return None
    axis = c.axis(c.integer("axis"), len(x.shape))
    sizes = c.ints("split_sizes") or (x.shape[axis] // c.outputs,) * c.outputs
    if sum(sizes) != x.shape[axis]:
        return None
    return [Content(x.dtype, p) for p in np.split(x.elements, np.cumsum(sizes)[:-1], axis)]


@formula("reduce_prod", "reduce_sum", "reduce_max", "reduce_min")
def reduced(c: Context) -> Content | None:
    x = c.content_of("x")
    if x is None or len(x.shape) != 1 or not x.shape[0] or x.dtype.is_bool:
        return None
    join: Callable[[Any, Any], Any] = {
        "reduce_prod": lambda a, b: a * b, "reduce_sum": lambda a, b: a + b, "reduce_max": ct.larger,
        "reduce_min": ct.smaller,
    }[c.op_type]  # fmt: skip
    first, *rest = x.dims()
    for d in rest:
        first = join(first, d)
    return ct.content(x.dtype, [first], (1,) if c.flag("keep_dims") else ())


@formula("select")
def select(c: Context) -> Content | None:
    test, a, b = (c.content_of(name) for name in ("cond", "a", "b"))
    if test is None or a is None or b is None:
        return None
    return ct.each(lambda t, p, q: ct.choose(ct.as_bool(t), p, q), a.dtype, test, a, b)


@formula("identity")
def identity(c: Context) -> Any:
    return c.at("x")


@formula("fill")
def filled(c: Context) -> Content | None:
    dims, value = c.content_of("shape"), c.content_of("value")
    if dims is None or value is None or not dims.is_constant or int(np.prod(dims.array())) > LIMIT:
        return None
    return Content(value.dtype, moved(np.full(c.ints("shape"), value.dims()[0], object)))


@formula("tile")
def tiled(c: Context) -> Content | None:
    x, reps = c.content_of("x"), c.content_of("reps")
    if x is None or reps is None or not reps.is_constant or x.elements.size * int(np.prod(reps.array())) > LIMIT:
        return None
    return Content(x.dtype, moved(np.tile(x.elements, c.ints("reps"))))


@formula("logical_not", "logical_and", "logical_or")
def logic(c: Context) -> Content | None:
    x, y = c.content_of("x"), c.content_of("y")
    if x is None or (y is None and c.op_type != "logical_not"):
        return None
    if y is None:
        return ct.each(lambda a: ct.negation(ct.as_bool(a)), dt.bool_, x)
    join = ct.both if c.op_type == "logical_and" else ct.either
    return ct.each(lambda a, b: join(ct.as_bool(a), ct.as_bool(b)), dt.bool_, x, y)
