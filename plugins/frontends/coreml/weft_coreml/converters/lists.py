"""Lists of tensors, which stand side by side in one tensor."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_coreml.context import Context, Listed, Text
from weft_coreml.registry import op
from weft_frontend import contents as ct
from weft_frontend.contents import Content
from weft_ops.shapes import dim_expr, dim_max


def list_of(c: Context, name: str = "ls") -> Listed:
    """An operand that is a list."""
    found = c.at(name)
    if not isinstance(found, Listed):
        raise c.error(f"operand '{name}' is no list")
    return found


def stacked(c: Context, found: Listed) -> Value:
    """The elements of a list, one after another."""
    if found.values is None:
        raise c.unsupported("a list whose elements' sizes are not known before one is written")
    return found.values


@op("make_list")
def make_list(c: Context) -> Listed:
    """Zeros; where sizes of the elements are words they are those of the first one that is written."""
    c.at("elem_shape")
    length: Dim = 1
    if c.has("init_length"):
        (length,) = c.dims_of("init_length", "the length of a list")
    dtype = c.dtype_named("dtype", "fp32")
    dynamic = c.flag("dynamic_length", True)
    sizes: list[Dim] = []
    for operand in c.named["elem_shape"]:
        known = None if isinstance(operand, Text) else c.importer.known(operand)
        if known is None or not known.is_constant:
            return Listed(None, length, dtype, dynamic)
        sizes += [int(d) for d in known.dims()]
    if any(isinstance(d, int) and d < 0 for d in (length, *sizes)):
        raise c.error(f"a list of {length} elements of the shape {tuple(sizes)}")
    return Listed(c(ops.Fill(dtype, (length, *sizes), 0)), length, dtype, dynamic)


@op("list_length")
def list_length(c: Context) -> Content:
    return ct.content(dt.int32, [list_of(c).length], ())


def grown(c: Context, found: Listed, element: tuple[Dim, ...], least: Dim) -> tuple[Value, Dim]:
    """The elements with zeros behind them up to `least`, and how many these are."""
    x, length = found.values, found.length
    if x is None:
        x = c(ops.Fill(found.dtype, (length, *element), 0))
    if not found.dynamic:
        return x, length
    longer = dim_max(length, least)
    if longer == length:
        return x, length
    none = (0,) * (len(x.shape) - 1)
    return c.pad(x, (*none, 0, as_dim(dim_expr(longer) - length), *none)), longer


def place(c: Context, name: str) -> Dim:
    """The place of an element, which may be known only at run time."""
    known = c.content_of(name)
    if known is not None and len(known.dims()) == 1:
        return as_dim(known.dims()[0])
    (found,) = c.sizes(c.reshape(c.cast(c.of(name), dt.int64), (1,)), "a place in a list")
    return found


@op("list_write")
def list_write(c: Context) -> Listed:
    found, value, at = list_of(c), c.of("value"), place(c, "index")
    x, length = grown(c, found, value.shape, as_dim(dim_expr(at) + 1))
    index = c.within(c.reshape(c.dim(at), (1, 1)), 0, as_dim(dim_expr(length) - 1), "a place in a list")
    y = c(ops.ScatterND(), x, index, c.reshape(c.cast(value, x.dtype), (1, *value.shape)))
    return Listed(y, length, found.dtype, found.dynamic)


@op("list_scatter")
def list_scatter(c: Context) -> Listed:
    found, value = list_of(c), c.of("value")
    indices = c.cast(c.of("indices"), dt.int64)
    known = c.content_of("indices")
    if known is not None and known.is_constant:
        last: Any = max((int(d) for d in known.dims()), default=-1)
    else:
        greatest = c.reshape(c(ops.ReduceMax((0,), True), indices), (1,))
        (last,) = c.sizes(c.within(greatest, 0, None, "a place in a list"), "a place in a list")
    x, length = grown(c, found, value.shape[1:], as_dim(dim_expr(last) + 1))
    indices = c.within(indices, 0, as_dim(dim_expr(length) - 1), "a place in a list")
    y = c(ops.ScatterND(), x, c.reshape(indices, (indices.shape[0], 1)), c.cast(value, x.dtype))
    return Listed(y, length, found.dtype, found.dynamic)


@op("list_read", "list_gather")
def list_gather(c: Context) -> Value:
    x = stacked(c, list_of(c))
    name = "index" if c.op_type == "list_read" else "indices"
    indices = c.within(c.cast(c.of(name), dt.int64), 0, as_dim(dim_expr(x.shape[0]) - 1), "a place in a list")
    return c.gather(x, c.reshape(indices, ()) if name == "index" else indices, 0)


__all__ = ["list_of", "stacked"]
