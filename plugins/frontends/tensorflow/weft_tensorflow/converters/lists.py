"""Lists of tensors, which loops fill and go through."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_frontend import contents as ct
from weft_ops.shapes import dim_expr, simplified
from weft_tensorflow.context import Context
from weft_tensorflow.lists import TensorList
from weft_tensorflow.registry import tf_op


def the_list(c: Context, k: int = 0) -> TensorList:
    found = c.operands[k] if k < c.count else None
    if not isinstance(found, TensorList):
        raise c.error(f"input {k} is no list of tensors")
    return found


def zeros(c: Context, dtype: Any, count: Dim, shape: tuple[Dim, ...]) -> Value:
    """Elements that nothing was put into."""
    return c.broadcast(c.number(0, dtype), (count, *shape))


def element_shape(c: Context, k: int) -> tuple[Dim, ...] | None:
    """A shape that is an operand; None: a size, or the rank, is open."""
    known = c.known(k)
    if known is None or not known.shape:
        return None
    sizes = tuple(as_dim(d) for d in known.dims())
    return None if any(isinstance(d, int) and d < 0 for d in sizes) else sizes


@tf_op("TensorListReserve")
def reserve(c: Context) -> TensorList:
    count, shape, dtype = c.dim_at(1, "the length"), element_shape(c, 0), c.dtype("element_dtype")
    return TensorList(dtype, count, None if shape is None else zeros(c, dtype, count, shape))


@tf_op("EmptyTensorList")
def empty(c: Context) -> TensorList:
    return TensorList(c.dtype("element_dtype"), 0)


@tf_op("TensorListFromTensor")
def from_tensor(c: Context) -> TensorList:
    x = c.value(0)
    return TensorList(x.dtype, x.shape[0], x)


@tf_op("TensorListStack")
def stack(c: Context) -> Value:
    found = the_list(c)
    if found.stack is not None:
        return found.stack
    shape = element_shape(c, 1)
    if shape is None:
        raise c.unsupported("a list that nothing was put into")
    return zeros(c, found.dtype, found.count, shape)


@tf_op("TensorListLength")
def length(c: Context) -> Any:
    return ct.content(dt.int32, [the_list(c).count], ())


def place(c: Context, k: int, count: Dim) -> Value:
    """Operand k as an index into a list."""
    return places(c, c.value(k), count)


def places(c: Context, indices: Value, count: Dim) -> Value:
    """Indices into a list."""
    return c.within(c.cast(indices, dt.int64), 0, as_dim(dim_expr(count) - 1), "index")


@tf_op("TensorListGetItem")
def get_item(c: Context) -> Value:
    found = the_list(c)
    if found.stack is None:
        shape = element_shape(c, 2)
        if shape is None:
            raise c.unsupported("an element of a list that nothing was put into")
        return c.broadcast(c.number(0, found.dtype), shape)
    return c.gather(found.stack, place(c, 1, found.count), 0)


@tf_op("TensorListSetItem")
def set_item(c: Context) -> TensorList:
    found, item = the_list(c), c.value(2)
    known = c.known(1)
    if c.flag("resize_if_index_out_of_bounds") and (known is None or not isinstance(found.count, int)):
        raise c.unsupported("a list that grows while the model runs")
    stack = found.stack if found.stack is not None else zeros(c, item.dtype, found.count, item.shape)
    if c.flag("resize_if_index_out_of_bounds") and known is not None:
        at = known.dims()[0]
        if isinstance(at, int) and isinstance(found.count, int) and at >= found.count:
            c.affordable(at - found.count, "the elements")
            more = zeros(c, item.dtype, at + 1 - found.count, item.shape)
            found = TensorList(found.dtype, at + 1, c.concat([stack, more], 0))
            stack = found.stack if found.stack is not None else stack
    index = c.reshape(place(c, 1, found.count), (1, 1))
    updates = c.reshape(item, (1, *item.shape))
    return TensorList(found.dtype, found.count, c(ops.ScatterND(), stack, index, updates))


@tf_op("TensorListPushBack")
def push_back(c: Context) -> TensorList:
    found, item = the_list(c), c.value(1)
    last = c.reshape(item, (1, *item.shape))
    whole = last if found.stack is None else c.concat([found.stack, last], 0)
    return TensorList(found.dtype, simplified(as_dim(dim_expr(found.count) + 1)), whole)


@tf_op("TensorListPopBack")
def pop_back(c: Context) -> list[Any]:
    found = the_list(c)
    if found.stack is None:
        raise c.error("the list is empty")
    count = simplified(as_dim(dim_expr(found.count) - 1))
    rest = TensorList(found.dtype, count, c.slice(found.stack, 0, 0, count))
    return [rest, c.pick(found.stack, 0, count)]


@tf_op("TensorListGather")
def gather(c: Context) -> Value:
    found, indices = the_list(c), c.value(1)
    if found.stack is None:
        raise c.unsupported("a list that nothing was put into")
    return c.gather(found.stack, places(c, indices, found.count), 0)


@tf_op("TensorListScatterIntoExistingList")
def scatter_into(c: Context) -> TensorList:
    found, items, indices = the_list(c), c.value(1), c.value(2)
    stack = found.stack if found.stack is not None else zeros(c, items.dtype, found.count, items.shape[1:])
    where = c.reshape(places(c, indices, found.count), (*indices.shape, 1))
    return TensorList(found.dtype, found.count, c(ops.ScatterND(), stack, where, items))


@tf_op("TensorListConcatV2", "TensorListConcat")
def concat(c: Context) -> list[Any]:
    """Elements one after another along their first axis; all are of one length here."""
    return joined(c, the_list(c))


def joined(c: Context, found: TensorList) -> list[Any]:
    if found.stack is None or len(found.stack.shape) < 2:
        raise c.unsupported("a list that nothing was put into")
    from weft_ops.shapes import product

    count, rows, *rest = found.stack.shape
    whole = c.reshape(found.stack, (product((count, rows)), *rest))
    return [whole, c.broadcast(c.dim(rows), (count,))]
