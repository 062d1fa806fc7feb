"""Sequences and optionals: those whose elements are known at import live there only; others are values of the run, and
steps of the plan."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import OpenType, OptionalType, SequenceType, Value
from weft_frontend import contents as ct
from weft_frontend.bodies import shaped
from weft_frontend.operands import Absent, Elements
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of

PARTS = 256
"""Of a tensor, at most, that are values of the graph one by one."""


def _known(c: Context, k: int) -> Elements | None:
    """Operand k, if its elements are known; None if it is a sequence of the run."""
    operand = c.operands[k]
    if isinstance(operand, Elements):
        return operand
    if not isinstance(operand, Value) or not isinstance(operand.type, SequenceType):
        raise c.error(f"input {k} is no sequence")
    return None


def _position(c: Context, k: int, count: int, last: int) -> int | None:
    """The position that operand k says; None if it is known only at run time.

    Raises:
        FrontendError: it is not in the sequence.
    """
    known = c.known(k)
    if known is None or not known.is_constant:
        return None
    given = int(known.dims()[0])
    position = given + count if given < 0 else given
    if not 0 <= position <= last:
        raise c.error(f"position {given} is not in a sequence of {count}")
    return position


def _tensor(c: Context, value: Value) -> Value:
    """What a step gives, as a tensor where its rank is known or the model declares it."""
    declared = c.importer.declared.get(c.node.output[0]) if not c.scope.prefix else None
    kind = None if declared is None else declared.WhichOneof("value")
    rank = (
        len(declared.tensor_type.shape.dim)
        if declared is not None and kind == "tensor_type" and declared.tensor_type.HasField("shape")
        else None
    )
    return shaped(c.builder, value, rank)


def _step(c: Context, op: ops.HostOperator, *inputs: Value | None) -> Any:
    return c.builder.add(op, *inputs)


@onnx_op("SequenceConstruct")
def sequence_construct(c: Context) -> Any:
    return [Elements(c.operands)]


@onnx_op("SequenceEmpty")
def sequence_empty(c: Context) -> Any:
    return [Elements((), c.dtype("dtype", dt.float32))]


@onnx_op("SequenceAt")
def sequence_at(c: Context) -> Any:
    found = _known(c, 0)
    if found is not None:
        position = _position(c, 1, len(found), len(found) - 1)
        if position is not None:
            return [found[position]]
    return _tensor(c, _step(c, ops.SequenceAt(), c.value(0), c.value(1)))


@onnx_op("SequenceInsert")
def sequence_insert(c: Context) -> Any:
    found = _known(c, 0)
    if found is not None:
        position = _position(c, 2, len(found), len(found)) if c.given(2) else len(found)
        if position is not None:
            return [Elements([*found[:position], c.operands[1], *found[position:]])]
    return _step(c, ops.SequenceInsert(), *(c.value(k) for k in range(3) if c.given(k)))


@onnx_op("SequenceErase")
def sequence_erase(c: Context) -> Any:
    found = _known(c, 0)
    if found is not None:
        position = _position(c, 1, len(found), len(found) - 1) if c.given(1) else len(found) - 1
        if not found:
            raise c.error("the sequence is empty")
        if position is not None:
            return [Elements([*found[:position], *found[position + 1 :]], c.importer.as_value(found[0]).dtype)]
    return _step(c, ops.SequenceErase(), *(c.value(k) for k in range(2) if c.given(k)))


@onnx_op("SequenceLength")
def sequence_length(c: Context) -> Any:
    found = _known(c, 0)
    return ct.content(dt.int64, [len(found)], ()) if found is not None else _step(c, ops.SequenceLength(), c.value(0))


@onnx_op("ConcatFromSequence")
def concat_from_sequence(c: Context) -> Any:
    found, axis, new = _known(c, 0), c.integer("axis"), c.flag("new_axis")
    if found is None:
        return _tensor(c, _step(c, ops.SequenceConcat(axis, new), c.value(0)))
    values = [c.importer.as_value(v) for v in found]
    if not values:
        raise c.error("the sequence is empty")
    if any(isinstance(v.type, OpenType) or v.dtype == dt.string for v in values):
        return _tensor(c, _step(c, ops.SequenceConcat(axis, new), c.value(0)))
    if new:
        at = axis_of(axis, len(values[0].shape) + 1)
        values, axis = [c.reshape(v, (*v.shape[:at], 1, *v.shape[at:])) for v in values], at
    return c.concat(values, axis)


@onnx_op("SplitToSequence")
def split_to_sequence(c: Context) -> Any:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    size, known = x.shape[axis], c.known(1) if c.given(1) else None
    given = tuple(int(d) for d in known.dims()) if known is not None and known.is_constant else None
    each = given[0] if given is not None and c.shape(1) == () else 1 if given is None else None
    if each is not None and each <= 0:
        raise c.error(f"parts of {each} elements")
    if (
        not isinstance(size, int)
        or x.dtype == dt.string
        or (given is None and c.given(1))
        or (each is not None and size > each * PARTS)
    ):
        # How many parts there are, or how long they are is known only at run time, or they are too many to write down.
        return _step(c, ops.SequenceSplit(axis, c.flag("keepdims", True)), x, c.optional(1))
    if each is not None:
        sizes = [min(each, size - k) for k in range(0, size, each)]
    else:
        assert given is not None
        sizes = list(given)
        if any(n < 0 for n in sizes) or sum(sizes) != size:
            raise c.error(f"parts of {sizes} elements do not make up {size}")
    parts, first = [], 0
    for n in sizes:
        part = c.slice(x, axis, first, n)
        keep = given is not None or c.flag("keepdims", True)
        parts.append(part if keep else c.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :])))
        first += n
    return [Elements(parts, x.dtype)]


# -- optionals --------------------------------------------------------------------------------------------------------


@onnx_op("OptionalHasElement")
def optional_has_element(c: Context) -> Any:
    operand = c.operands[0] if c.operands else Absent()
    if isinstance(operand, Value) and isinstance(operand.type, OptionalType):
        return _step(c, ops.OptionalHasElement(), operand)
    return ct.content(dt.bool_, [not isinstance(operand, Absent)], ())


@onnx_op("Optional")
def optional(c: Context) -> Any:
    if c.given(0):
        return [c.operands[0]]
    declared = c.attribute("type")
    if declared is None:
        raise c.error("there is neither a value nor a type")
    # Of which type nothing is, matters only where it leaves the graph, which says it.
    return [Absent()]


@onnx_op("OptionalGetElement")
def optional_get_element(c: Context) -> Any:
    if not c.given(0):
        raise c.error("the optional holds nothing")
    operand = c.operands[0]
    if isinstance(operand, Value) and isinstance(operand.type, OptionalType):
        return _tensor(c, _step(c, ops.OptionalGetElement(), operand))
    return [operand]
