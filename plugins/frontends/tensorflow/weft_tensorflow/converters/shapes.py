"""Sizes as values: integers known as formulas while a model is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft_frontend import contents as ct
from weft_frontend.contents import LIMIT, Content
from weft_ops.shapes import product
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_formula, tf_op


@tf_op("Shape")
@tf_formula("Shape")
def shape(c: Context) -> Content:
    return ct.content(c.dtype("out_type", dt.int32), list(c.shape(0)))


@tf_op("ShapeN")
def shapes(c: Context) -> list[Content]:
    return [ct.content(c.dtype("out_type", dt.int32), list(c.shape(k))) for k in range(c.count)]


@tf_op("Rank")
@tf_formula("Rank")
def rank(c: Context) -> Content:
    return ct.content(dt.int32, [len(c.shape(0))], ())


@tf_op("Size")
@tf_formula("Size")
def size(c: Context) -> Content:
    return ct.content(c.dtype("out_type", dt.int32), [product(c.shape(0))], ())


def _floordiv(a: Any, b: Any) -> Any:
    return a // b


EACH: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b, "AddV2": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Maximum": ct.larger, "Minimum": ct.smaller, "FloorDiv": _floordiv, "FloorMod": lambda a, b: a % b,
    "Neg": lambda a: -a, "Div": ct.divide, "TruncateDiv": ct.divide, "Square": lambda a: a * a,
    "Abs": lambda a: ct.larger(a, -a),
}  # fmt: skip
COMPARED: dict[str, Callable[..., Any]] = {
    "Equal": lambda a, b: ct.compare("eq", a, b), "NotEqual": lambda a, b: ct.compare("ne", a, b),
    "Less": lambda a, b: ct.compare("lt", a, b), "LessEqual": lambda a, b: ct.compare("le", a, b),
    "Greater": lambda a, b: ct.compare("lt", b, a), "GreaterEqual": lambda a, b: ct.compare("le", b, a),
}  # fmt: skip
LOGICAL: dict[str, Callable[..., Any]] = {"LogicalAnd": ct.both, "LogicalOr": ct.either, "LogicalNot": ct.negation}


def _each(function: Callable[..., Any], kind: str) -> Callable[[Context], Content | None]:
    def formula(c: Context) -> Content | None:
        contents = [c.content(k) for k in range(c.count)]
        if kind != "logical" and any(x.dtype.is_bool for x in contents):
            return None
        try:
            return ct.each(function, contents[0].dtype if kind == "number" else dt.bool_, *contents)
        except (ZeroDivisionError, ValueError):
            return None

    return formula


for _kind, _table in (("number", EACH), ("compared", COMPARED), ("logical", LOGICAL)):
    for _name, _function in _table.items():
        tf_formula(_name)(_each(_function, _kind))


@tf_formula("Select", "SelectV2")
def select(c: Context) -> Content | None:
    test, a, b = (c.content(k) for k in range(3))
    if c.op_type == "Select" and test.shape not in ((), a.shape):
        return None
    try:
        return ct.each(ct.choose, a.dtype, test, a, b)
    except ValueError:
        return None


@tf_formula("Cast")
def cast(c: Context) -> Content | None:
    x, to = c.content(0), c.dtype("DstT")
    if to not in ct.KINDS or to.is_bool != x.dtype.is_bool:
        return None
    return Content(to, x.elements)


@tf_formula("Pack")
def pack(c: Context) -> Content | None:
    parts = [c.content(k).elements for k in range(c.count)]
    if len({p.shape for p in parts}) != 1 or sum(p.size for p in parts) > LIMIT:
        return None
    return Content(c.content(0).dtype, np.stack(parts, c.axis(c.integer("axis", 0), parts[0].ndim + 1)))


@tf_formula("ConcatV2")
def concatenation(c: Context) -> Content | None:
    parts = [c.content(k).elements for k in range(c.count - 1)]
    axis = c.content(c.count - 1)
    if not parts or not axis.is_constant or axis.elements.size != 1 or sum(p.size for p in parts) > LIMIT:
        return None
    rank = parts[0].ndim
    at = int(axis.dims()[0])
    if not -rank <= at < rank or len({(p.ndim, p.shape[: at % rank], p.shape[at % rank + 1 :]) for p in parts}) != 1:
        return None
    return Content(c.content(0).dtype, np.concatenate(parts, at))


@tf_formula("Reshape")
def reshaped(c: Context) -> Content | None:
    x, wanted = c.content(0), c.content(1)
    if not wanted.is_constant or wanted.elements.ndim != 1:
        return None
    try:
        return Content(x.dtype, x.elements.reshape([int(d) for d in wanted.dims()]))
    except ValueError:
        return None


@tf_formula("Squeeze")
def squeezed(c: Context) -> Content | None:
    x = c.content(0)
    axes = c.integers("squeeze_dims", ())
    try:
        return Content(x.dtype, np.asarray(np.squeeze(x.elements, tuple(axes) or None), object))
    except ValueError:
        return None


@tf_formula("ExpandDims")
def expanded(c: Context) -> Content | None:
    x, axis = c.content(0), c.content(1)
    rank = x.elements.ndim
    if not axis.is_constant or axis.elements.size != 1 or not -rank - 1 <= int(axis.dims()[0]) <= rank:
        return None
    return Content(x.dtype, np.expand_dims(x.elements, int(axis.dims()[0])))


def _whole(c: Context) -> Content | None:
    """A vector that is reduced to one element."""
    x, axes = c.content(0), c.content(1)
    if x.elements.ndim != 1 or not axes.is_constant or list(axes.dims()) not in ([0], [-1]):
        return None
    return x


def _fold(function: Callable[[Any, Any], Any], start: Any, kind: str) -> Callable[[Context], Content | None]:
    def formula(c: Context) -> Content | None:
        x = _whole(c)
        if x is None or x.dtype.is_bool != (kind == "logical"):
            return None
        elements = x.dims()
        if start is None and not elements:
            return None
        total = elements[0] if start is None else start
        for d in elements[1:] if start is None else elements:
            total = function(total, d)
        return ct.content(x.dtype, [total], (1,) if c.flag("keep_dims") else ())

    return formula


tf_formula("Prod")(_fold(lambda a, b: a * b, 1, "number"))
tf_formula("Sum")(_fold(lambda a, b: a + b, 0, "number"))
tf_formula("Max")(_fold(ct.larger, None, "number"))
tf_formula("Min")(_fold(ct.smaller, None, "number"))
tf_formula("All")(_fold(ct.both, True, "logical"))
tf_formula("Any")(_fold(ct.either, False, "logical"))


@tf_formula("GatherV2")
def gather(c: Context) -> Content | None:
    x, indices = c.content(0), c.content(1)
    if x.elements.ndim != 1 or not indices.is_constant or c.integer("batch_dims", 0):
        return None
    where = indices.array().astype(np.int64)
    if where.size and not 0 <= where.min() <= where.max() < x.elements.size:
        return None
    return Content(x.dtype, np.asarray(x.elements[where], object).reshape(where.shape))


@tf_formula("Unpack")
def unpack(c: Context) -> list[Content] | None:
    x = c.content(0)
    if x.elements.ndim != 1 or x.elements.size != c.integer("num"):
        return None
    return [ct.content(x.dtype, [d], ()) for d in x.dims()]


@tf_formula("Range")
def range_(c: Context) -> Content | None:
    bounds = [c.content(k) for k in range(3)]
    if not all(b.is_constant and b.elements.size == 1 for b in bounds):
        return None
    start, stop, step = (int(b.dims()[0]) for b in bounds)
    if step == 0 or not 0 <= (stop - start) / step <= LIMIT:
        return None
    return ct.content(bounds[0].dtype, list(range(start, stop, step)))


@tf_formula("Slice")
def slice_(c: Context) -> Content | None:
    x, begin, size_ = (c.content(k) for k in range(3))
    if x.elements.ndim != 1 or not begin.is_constant or not size_.is_constant:
        return None
    first, count = int(begin.dims()[0]), int(size_.dims()[0])
    last = x.elements.size if count == -1 else first + count
    if not 0 <= first <= last <= x.elements.size:
        return None
    return Content(x.dtype, x.elements[first:last])


@tf_formula("StridedSlice")
def strided_slice(c: Context) -> Content | None:
    """Of a vector, by numbers."""
    x = c.content(0)
    bounds = [c.content(k) for k in (1, 2, 3)]
    if x.elements.ndim != 1 or any(not b.is_constant or b.shape != (1,) for b in bounds):
        return None
    if c.integer("ellipsis_mask", 0) or c.integer("new_axis_mask", 0):
        return None
    begin, end, step = (int(b.dims()[0]) for b in bounds)
    if c.integer("shrink_axis_mask", 0) & 1:
        if not -x.elements.size <= begin < x.elements.size:
            return None
        return ct.content(x.dtype, [x.elements[begin]], ())
    if step == 0:
        return None
    first = None if c.integer("begin_mask", 0) & 1 else begin
    last = None if c.integer("end_mask", 0) & 1 else end
    return Content(x.dtype, x.elements[first:last:step])


@tf_formula("BroadcastTo", "Fill")
def filled(c: Context) -> Content | None:
    x, wanted = (c.content(0), c.content(1)) if c.op_type == "BroadcastTo" else (c.content(1), c.content(0))
    if not wanted.is_constant or any(d < 0 for d in wanted.dims()) or np.prod(wanted.dims(), dtype=object) > LIMIT:
        return None
    try:
        return Content(x.dtype, np.broadcast_to(x.elements, [int(d) for d in wanted.dims()]).copy())
    except ValueError:
        return None
