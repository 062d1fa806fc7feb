"""Control flow whose course is known at import: branches are taken, loops unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft import ops
from weft.graph.nodes import Value
from weft.ops.shapes import axis_of
from weft_onnx import contents as ct
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op

# Beyond this many trips the unrolled graph would be larger than is useful.
TRIPS = 64


@onnx_op("If")
def if_(c: Context) -> Any:
    condition = c.constant(0)
    branches = [c.graph(n) for n in ("then_branch", "else_branch")]
    assert branches[0] is not None and branches[1] is not None
    if condition is not None:
        branch = branches[0 if bool(condition.reshape(-1)[0]) else 1]
        assert branch is not None
        return c.importer.subgraph(branch, c)
    # Operators have no effects: both branches are computed and one result is taken.
    chosen = []
    test = c.reshape(c.value(0), ())
    for a, b in zip(*(c.importer.subgraph(g, c) for g in branches if g is not None)):
        if not all(isinstance(v, (Value, ct.Content)) for v in (a, b)):
            raise c.unsupported("a condition known only at run time, over results that are no tensors")
        x, y = c.importer.as_value(a), c.importer.as_value(b)
        if x.type != y.type:
            raise c.unsupported("a condition known only at run time, over results of different types")
        chosen.append(c(ops.Where(), test, x, y))
    return chosen


@onnx_op("Loop")
def loop(c: Context) -> Any:
    body = c.graph("body")
    assert body is not None
    carried = list(c.operands[2:])
    trips = c.constant(0) if c.given(0) else np.array(TRIPS + 1)
    start = c.constant(1) if c.given(1) else np.array(True)
    if trips is None or start is None:
        raise c.unsupported("a number of trips known only at run time")
    count = int(trips.reshape(-1)[0])
    going = bool(start.reshape(-1)[0])
    scanned: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    k = 0
    while going and k < count:
        if k >= TRIPS:
            raise c.unsupported(f"more than {TRIPS} trips")
        index = ct.content(dt.int64, [k], ())
        results = c.importer.subgraph(body, c, [index, c.builder.constant(np.array(True)), *carried])
        test = c.importer.known(results[0])
        if test is None or not test.is_constant:
            raise c.unsupported("a condition known only at run time")
        going = bool(test.dims()[0])
        carried = results[1 : 1 + len(carried)]
        for found, value in zip(scanned, results[1 + len(carried) :]):
            found.append(c.importer.as_value(value))
        k += 1
    if scanned and not k:
        raise c.unsupported("no trip, with results of every trip")
    return [*carried, *(_stacked(c, found, 0) for found in scanned)]


def _stacked(c: Context, parts: list[Value], axis: int) -> Value:
    shape = parts[0].shape
    axis = axis_of(axis, len(shape) + 1)
    return c.concat([c.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts], axis)


@onnx_op("Scan", versions=(9, 10_000))
def scan(c: Context) -> Any:
    body = c.graph("body")
    assert body is not None
    n = c.integer("num_scan_inputs")
    states = list(c.operands[: c.count - n])
    sequences = [c.value(k) for k in range(c.count - n, c.count)]
    outputs = len(body.output) - len(states)
    in_axes, out_axes = c.integers("scan_input_axes") or (0,) * n, c.integers("scan_output_axes") or (0,) * outputs
    in_back, out_back = c.integers("scan_input_directions") or (0,) * n, c.integers("scan_output_directions") or (0,) * outputs
    axes = [axis_of(a, len(s.shape)) for a, s in zip(in_axes, sequences)]
    count = sequences[0].shape[axes[0]]
    if not isinstance(count, int):
        raise c.unsupported("a number of steps known only at run time")
    if count > TRIPS or count == 0:
        raise c.unsupported(f"{count} steps")
    found: list[list[Value]] = [[] for _ in range(outputs)]
    for k in range(count):
        items = [c.pick(s, a, count - 1 - k if back else k) for s, a, back in zip(sequences, axes, in_back)]
        results = c.importer.subgraph(body, c, [*states, *items])
        states = results[: len(states)]
        for parts, value in zip(found, results[len(states) :]):
            parts.append(c.importer.as_value(value))
    return [*states, *(_stacked(c, parts[::-1] if back else parts, axis) for parts, axis, back in zip(found, out_axes, out_back))]


# -- sequences and optionals that live at import only -----------------------------------------------------------------


def _sequence(c: Context, k: int) -> list[Any]:
    operand = c.operands[k]
    if not isinstance(operand, list):
        raise c.error(f"input {k} is no sequence")
    return operand


def _position(c: Context, k: int, count: int) -> int:
    given = c.numbers(k, "a position")
    if given is None:
        return -1
    position = given[0] + count if given[0] < 0 else given[0]
    if not 0 <= position <= count:
        raise c.error(f"position {given[0]} is not in a sequence of {count}")
    return position


@onnx_op("SequenceConstruct", "SequenceEmpty")
def sequence_construct(c: Context) -> Any:
    return [list(c.operands)]


@onnx_op("SequenceAt")
def sequence_at(c: Context) -> Any:
    found = _sequence(c, 0)
    position = _position(c, 1, len(found))
    if position == len(found):
        raise c.error(f"position {position} is not in a sequence of {len(found)}")
    return found[position]


@onnx_op("SequenceInsert")
def sequence_insert(c: Context) -> Any:
    found = list(_sequence(c, 0))
    found.insert(_position(c, 2, len(found)) if c.given(2) else len(found), c.operands[1])
    return [found]


@onnx_op("SequenceErase")
def sequence_erase(c: Context) -> Any:
    found = list(_sequence(c, 0))
    del found[_position(c, 1, len(found)) if c.given(1) else -1]
    return [found]


@onnx_op("SequenceLength")
def sequence_length(c: Context) -> Any:
    return ct.content(dt.int64, [len(_sequence(c, 0))], ())


@onnx_op("ConcatFromSequence")
def concat_from_sequence(c: Context) -> Any:
    values = [c.importer.as_value(v) for v in _sequence(c, 0)]
    if c.flag("new_axis"):
        return _stacked(c, values, c.integer("axis"))
    return c.concat(values, c.integer("axis"))


@onnx_op("SplitToSequence")
def split_to_sequence(c: Context) -> Any:
    x = c.value(0)
    axis = axis_of(c.integer("axis"), len(x.shape))
    size = x.shape[axis]
    if not isinstance(size, int):
        raise c.unsupported("an axis of unknown size")
    given = c.numbers(1, "the split")
    if given is None:
        sizes: Any = [1] * size
    elif c.shape(1) == ():
        sizes = [min(given[0], size - k) for k in range(0, size, given[0])]
    else:
        sizes = given
    parts, first = [], 0
    for n in sizes:
        part = c.slice(x, axis, first, n)
        keep = given is not None or c.flag("keepdims", True)
        parts.append(part if keep else c.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :])))
        first += n
    return [parts]


@onnx_op("OptionalHasElement")
def optional_has_element(c: Context) -> Any:
    return ct.content(dt.bool_, [c.given(0)], ())


@onnx_op("Optional", "OptionalGetElement")
def optional_get_element(c: Context) -> Any:
    if not c.given(0):
        raise c.unsupported("an empty optional")
    return [c.operands[0]]
