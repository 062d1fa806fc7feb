"""Operators that fill blobs: those of init_net."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft_caffe2.registry import op
from weft_frontend.archives import count_of

if TYPE_CHECKING:
    from weft_caffe2.network import Node

GIVEN = {
    "GivenTensorFill": ("floats", np.float32), "GivenTensorDoubleFill": ("floats", np.float64),
    "GivenTensorIntFill": ("ints", np.int32), "GivenTensorInt64Fill": ("ints", np.int64),
    "GivenTensorInt16Fill": ("ints", np.int16), "GivenTensorBoolFill": ("ints", np.bool_),
}  # fmt: skip
RANDOM = (
    "GaussianFill", "MSRAFill", "UniformFill", "UniformIntFill", "UniqueUniformFill", "XavierFill",
)  # fmt: skip


def _shape(c: Node) -> tuple[int, ...]:
    shape = c.integers("shape")
    if c.integer("input_as_shape", 0) or c.integers("extra_shape"):
        raise c.unsupported("a shape that is not its argument shape")
    if shape is None or any(d < 0 for d in shape):
        raise c.error(f"the shape is {shape}")
    return shape


@op(*GIVEN)
def given(c: Node) -> Value:
    shape, (kind, dtype) = _shape(c), GIVEN[c.op_type]
    if c.count:
        raise c.unsupported("a shape that is an input")
    found = c.argument("values")
    values: Array = np.array(getattr(found, kind) if found is not None else (), dtype)
    count = count_of(shape, "a blob")
    if values.size != count:
        raise c.error(f"a blob of shape {shape} has {values.size} values")
    return c.builder.constant(values.reshape(shape), c.message.output[0])


@op("ConstantFill")
def constant(c: Node) -> Value:
    dtype = c.dtype_argument("dtype", dt.float32)
    value = c.real("value", 0) if dtype.is_float else c.integer("value", 0)
    if c.count:
        c.integers("shape")
        if c.integer("input_as_shape", 0) or c.integers("extra_shape"):
            raise c.unsupported("a shape that is not that of its input")
        return c.broadcast(c.number(value, dtype), c.shape(0))
    shape = _shape(c)
    c.affordable(count_of(shape, "a blob"), "the blob")
    return c.builder.constant(np.full(shape, value, dtype.numpy), c.message.output[0])


@op(*RANDOM, refuses=True)
def random(c: Node) -> Value:
    raise c.unsupported("random weights: run init_net in Caffe2, and save its blobs as a network of GivenTensorFill")
