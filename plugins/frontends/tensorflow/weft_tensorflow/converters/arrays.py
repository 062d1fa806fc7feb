"""Arrays of tensors (TensorArrayV3) of the first version of TensorFlow: a handle, and the flow, which every operator
takes and gives on. The flow stands for what is in the array."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend import contents as ct
from weft_ops.shapes import same
from weft_tensorflow.context import Context
from weft_tensorflow.converters import lists
from weft_tensorflow.lists import Array, TensorList
from weft_tensorflow.registry import tf_op


def array(c: Context) -> Array:
    found = c.operands[0] if c.operands else None
    if not isinstance(found, Array):
        raise c.error("input 0 is no array of tensors")
    return found


@tf_op("TensorArrayV3")
def create(c: Context) -> list[Any]:
    dtype, count, shape = c.dtype("dtype"), c.dim_at(0, "the size"), c.sizes_of("element_shape")
    known = shape is not None and all(d >= 0 for d in shape)
    stack = lists.zeros(c, dtype, count, shape) if known and shape is not None else None
    return [Array(c.flag("dynamic_size")), TensorList(dtype, count, stack)]


def filled(c: Context, flow: int, item: Value, behind: int) -> tuple[TensorList, Value]:
    """The array before `item` is written, and its elements; the sizes of one are those of `item` from `behind` on."""
    found = lists.the_list(c, flow)
    if array(c).grows:
        raise c.unsupported("an array that grows while the model runs")
    return found, found.stack if found.stack is not None else lists.zeros(
        c, item.dtype, found.count, item.shape[behind:]
    )


@tf_op("TensorArrayWriteV3")
def write(c: Context) -> TensorList:
    item = c.value(2)
    found, stack = filled(c, 3, item, 0)
    index = c.reshape(lists.place(c, 1, found.count), (1, 1))
    updated = c(ops.ScatterND(), stack, index, c.reshape(item, (1, *item.shape)))
    return TensorList(found.dtype, found.count, updated)


@tf_op("TensorArrayScatterV3")
def scatter(c: Context) -> TensorList:
    """Elements put in their places; of all places in order the elements themselves."""
    indices, items = c.value(1), c.value(2)
    found = lists.the_list(c, 3)
    if all_of(c, indices, found):
        return TensorList(found.dtype, found.count, items)
    found, stack = filled(c, 3, items, 1)
    places = c.reshape(lists.places(c, indices, found.count), (*indices.shape, 1))
    return TensorList(found.dtype, found.count, c(ops.ScatterND(), stack, places, items))


def all_of(c: Context, indices: Value, found: TensorList) -> bool:
    """Whether indices are all places of an array in order."""
    if len(indices.shape) != 1 or same(indices.shape[0], found.count) is not True:
        return False
    known = c.importer.known(indices)
    if known is not None:
        return list(known.dims()) == list(range(known.shape[0]))
    node = indices.producer
    while node is not None and isinstance(node.op, ops.Cast) and node.inputs[0] is not None:
        node = node.inputs[0].producer
    return node is not None and isinstance(node.op, ops.Iota)


@tf_op("TensorArrayReadV3")
def read(c: Context) -> Value:
    found = lists.the_list(c, 2)
    if found.stack is None:
        raise c.unsupported("an element of an array that nothing was written to")
    return c.gather(found.stack, lists.place(c, 1, found.count), 0)


@tf_op("TensorArrayGatherV3")
def gather(c: Context) -> Value:
    indices, found = c.value(1), lists.the_list(c, 2)
    if found.stack is None:
        raise c.unsupported("elements of an array that nothing was written to")
    if all_of(c, indices, found):
        return found.stack
    return c.gather(found.stack, lists.places(c, indices, found.count), 0)


@tf_op("TensorArraySizeV3")
def size(c: Context) -> Any:
    return ct.content(dt.int32, [lists.the_list(c, 1).count], ())


@tf_op("TensorArrayConcatV3")
def concat(c: Context) -> list[Any]:
    return lists.joined(c, lists.the_list(c, 1))


@tf_op("TensorArrayCloseV3")
def close(c: Context) -> list[Any]:
    return []
