"""Formulas of values that are known at import: sizes as data, and what models compute with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.expr.nodes import Expr
from weft_frontend import contents as ct
from weft_frontend.contents import Content
from weft_onnx.converters.axes import squeezed_shape, unsqueezed_shape
from weft_onnx.converters.movement import (
    axis_order,
    slice_bounds,
    split_sizes,
    target_shape,
)
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_formula
from weft_ops.shapes import axis_of, static


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
        dims = squeezed_shape(c, x.shape) if c.op_type == "Squeeze" else unsqueezed_shape(c, x.shape)
    return None if any(isinstance(d, Expr) for d in dims) else _moved(c, x.elements.reshape(dims))


@onnx_formula("Transpose")
def transpose_content(c: Context) -> Content:
    return _moved(c, c.content(0).elements.transpose(axis_order(c, len(c.shape(0)))))


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
    starts, ends, axes, steps = slice_bounds(c)
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
    sizes = split_sizes(c, x.shape[axis])
    if not ct.known(*sizes):
        return None
    return [_moved(c, part) for part in np.split(x, np.cumsum(static(sizes))[:-1], axis)]


@onnx_formula("Expand", "Tile")
def expand_content(c: Context) -> Content | None:
    dims = c.dims(1, "the shape")
    x = c.content(0).elements
    if dims is None or not ct.known(*dims):
        return None
    if c.op_type == "Tile":
        if x.size * math.prod(static(dims)) > ct.LIMIT:
            return None
        return _moved(c, np.tile(x, static(dims)))
    out = np.broadcast_shapes(x.shape, static(dims))
    return None if math.prod(out) > ct.LIMIT else _moved(c, np.broadcast_to(x, out))


@onnx_formula("ConstantOfShape")
def constant_of_shape_content(c: Context) -> Content | None:
    dims = c.content(0).dims()
    value = c.tensor("value")
    if value is None or not ct.known(*dims) or math.prod(static(dims)) > ct.LIMIT:
        return None
    return ct.of_array(np.full(dims, value.reshape(-1)[0]))


@onnx_formula("Range")
def range_content(c: Context) -> Content | None:
    bounds = [c.content(k).dims()[0] for k in range(3)]
    if not ct.known(*bounds) or bounds[2] == 0:
        return None
    if abs(bounds[1] - bounds[0]) > ct.LIMIT * abs(bounds[2]):
        return None
    return ct.of_array(np.arange(*bounds, dtype=c.content(0).dtype.numpy))


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
    function: Any = {
        "ReduceProd": lambda a, b: a * b,
        "ReduceSum": lambda a, b: a + b,
        "ReduceMax": ct.larger,
        "ReduceMin": ct.smaller,
    }[c.op_type]
    result = x.dims()[0]
    for d in x.dims()[1:]:
        result = ct.plain(function(result, d))
    return ct.content(x.dtype, [result], (1,) if c.flag("keepdims", True) else ())
