"""Control flow. What is known at import goes its course there: branches are taken, loops unrolled; the rest are
operators that hold bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import FrontendError
from weft.expr.nodes import Expr, Var, size_of
from weft.graph.control import SEQUENCE
from weft.graph.nodes import OpenType, SequenceType, TensorType, Type, Value
from weft.graph.operator import Array, Operator
from weft_frontend import contents as ct
from weft_frontend.bodies import Body, shaped
from weft_frontend.cases import case_of, fork_at, in_cases
from weft_frontend.control import both, fitting, harmless
from weft_frontend.operands import Elements, Scope
from weft_onnx.bodies import import_body, reopened
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_onnx.tensors import dtype_of
from weft_ops.shapes import axis_of

# Beyond this many iterations the unrolled graph would be larger than is useful.
TRIPS = 64
# Parts of the formula of a size from which on bodies are no longer written one after another.
LONGEST_SIZE = 64


# -- branches ---------------------------------------------------------------------------------------------------------


@onnx_op("If")
def if_(c: Context) -> Any:
    condition = c.constant(0)
    known = c.known(0)
    formula = None if known is None else known.dims()[0]
    if condition is None and (case := case_of(c.importer, formula)) is not None:
        condition = np.array(case == 0)
    branches = [c.graph(n) for n in ("then_branch", "else_branch")]
    assert branches[0] is not None and branches[1] is not None
    if condition is not None:
        branch = branches[0 if bool(condition.reshape(-1)[0]) else 1]
        assert branch is not None
        return c.importer.subgraph(branch, c)
    if any(fork.tests(formula) for fork in c.importer.level.forks):
        return _in_cases(c, branches, formula)
    bodies = [import_body(c.importer, g, c, ()) for g in branches if g is not None]
    if harmless(bodies):
        return both(c, c.value(0), bodies)
    then, orelse = bodies
    if not all(map(_of_one_rank, then.graph.outputs, orelse.graph.outputs)):
        found = _in_cases(c, branches, formula)
        if found is not None:
            return found
    return _added(c, ops.If(then.graph, orelse.graph), c.value(0), *then.captured, *orelse.captured)


def _of_one_rank(a: Value, b: Value) -> bool:
    """Whether results of both branches have as many dimensions, as far as they are tensors."""
    types = (a.type, b.type)
    if not all(isinstance(t, (TensorType, OpenType)) for t in types):
        return True
    ranks = {t.rank for t in types if isinstance(t, (TensorType, OpenType))}
    return len(ranks) == 1 and None not in ranks


def _in_cases(c: Context, branches: Sequence[GraphProto | None], formula: Any) -> Sequence[Any] | None:
    """What follows is converted for either branch; None where that would be too often."""
    texts = (f"the condition of '{c.name}' is true", f"the condition of '{c.name}' is false")
    fork = fork_at(c.importer, c.reshape(c.value(0), ()), formula, texts)
    if fork is None:
        return None

    def convert(k: int, scope: Scope) -> Sequence[Any]:
        branch = branches[k]
        assert branch is not None
        return c.importer.subgraph(branch, reopened(c, scope))

    return in_cases(c.importer, fork, c.scope, convert)


# -- loops ------------------------------------------------------------------------------------------------------------


@onnx_op("Loop")
def loop(c: Context) -> Any:
    body = c.graph("body")
    assert body is not None
    found = _unrolled(c, body)
    return found if found is not None else _repeated(c, body)


def _unrolled(c: Context, body: GraphProto) -> list[Any] | None:
    """The results of a loop whose few iterations are known at import; None of another."""
    carried = list(c.operands[2:])
    trips = c.constant(0) if c.given(0) else np.array(TRIPS + 1)
    start = c.constant(1) if c.given(1) else np.array(True)
    if trips is None or start is None or (c.given(0) and int(trips.reshape(-1)[0]) > TRIPS):
        return None
    count = int(trips.reshape(-1)[0])
    if not c.importer.may_write(body, count if c.given(0) else 1):
        return None
    going = bool(start.reshape(-1)[0])
    scanned: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    k = 0
    while going and k < count:
        if k >= TRIPS:
            return None
        index = ct.content(dt.int64, [k], ())
        results = c.importer.subgraph(body, c, [index, c.builder.constant(np.array(True)), *carried])
        test = c.importer.known(results[0])
        if test is None or not test.is_constant:
            return None
        going = bool(test.dims()[0])
        carried = results[1 : 1 + len(carried)]
        for found, value in zip(scanned, results[1 + len(carried) :]):
            found.append(c.importer.as_value(value))
        k += 1
    if scanned and not k:
        return None
    if not all(isinstance(v.type, TensorType) and v.shape == found[0].shape for found in scanned for v in found):
        return None
    return [*carried, *(_stacked(c, found, 0) for found in scanned)]


def _repeated(c: Context, graph: GraphProto) -> list[Any]:
    trips, going = (c.value(k) if c.given(k) else None for k in (0, 1))
    initial = [_carried(c, k) for k in range(2, c.count)]
    body = _fitting(c, graph, initial, [TensorType(dt.int64, ()), ct.content(dt.bool_, [True], ())], (), True)
    last = body.graph.outputs[0].constant
    if trips is None and last is not None and bool(last.reshape(-1)[0]):
        raise FrontendError(
            "Loop: it never ends", why="there is no number of iterations, and the condition of its body is always true"
        )
    collected = len(body.graph.outputs) - 1 - len(initial)
    count = _certain(c, last)
    if count is not None:  # sizes of what is collected are known then, and gradients pass it
        del body.graph.outputs[0], body.graph.output_names[0]
    op = ops.Loop(body.graph, len(initial), count is None, count, (), (), (0,) * collected, (False,) * collected)
    return _added(c, op, trips, going, *initial, *body.captured)


def _certain(c: Context, last: Array | None) -> int | None:
    """The number of iterations of a loop, where it is known at import: nothing ends it before. `last`: what its body
    says of whether there is another one, if that is known."""
    trips = c.constant(0) if c.given(0) else None
    start = c.constant(1) if c.given(1) else np.array(True)
    always = all(x is not None and x.size == 1 and bool(x.reshape(-1)[0]) for x in (start, last))
    return max(0, int(trips.reshape(-1)[0])) if trips is not None and trips.size == 1 and always else None


def _added(c: Context, op: Operator, *inputs: Value | None) -> list[Any]:
    """The results of an operator that holds bodies, as tensors where their ranks are known."""
    return [shaped(c.builder, v) for v in c.builder.add_all(op, *inputs)]


def _carried(c: Context, k: int) -> Value:
    if not c.given(k):
        raise c.unsupported("a value that is carried from iteration to iteration and is absent at first")
    return c.importer.as_value(c.operands[k], c.node.input[k])


def _fitting(
    c: Context, graph: GraphProto, initial: Sequence[Value], before: Sequence[Any], after: Sequence[Type], tests: bool
) -> Body:
    """The body over types of the carried values that hold at every iteration; what it takes `before` and `after` them.

    Raises:
        FrontendError: there are no such types.
    """

    def make(types: Sequence[Type]) -> Body:
        return import_body(c.importer, graph, c, [*before, *types, *after], counted=not tests)

    return fitting(c, initial, int(tests), make)


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
    items = [c.value(k) for k in range(c.count - n, c.count)]
    outputs = len(body.output) - len(states)
    in_axes, out_axes = c.integers("scan_input_axes") or (0,) * n, c.integers("scan_output_axes") or (0,) * outputs
    in_back, out_back = (
        c.integers("scan_input_directions") or (0,) * n,
        c.integers("scan_output_directions") or (0,) * outputs,
    )
    axes = [axis_of(a, len(s.shape)) for a, s in zip(in_axes, items)]
    return _scanned(
        c, body, states, _Course(items, axes, list(map(bool, in_back)), list(out_axes), list(map(bool, out_back)))
    )


@onnx_op("Scan", versions=(8, 8))
def scan_of_batches(c: Context) -> Any:
    """The first form: every operand has the batch before all else, and each of the batch is scanned by itself."""
    body = c.graph("body")
    assert body is not None
    if c.given(0):
        raise c.unsupported("lengths of each of the batch")
    n = c.integer("num_scan_inputs")
    states, items = [c.value(k) for k in range(1, c.count - n)], [c.value(k) for k in range(c.count - n, c.count)]
    outputs = len(body.output) - len(states)
    back = list(map(bool, c.integers("directions") or (0,) * n))
    batch = items[0].shape[0]
    if not isinstance(batch, int) or not 0 < batch <= TRIPS:
        raise c.unsupported(f"a batch of {batch}")
    rows = []
    for k in range(batch):
        course = _Course([c.pick(x, 0, k) for x in items], [0] * n, back, [0] * outputs, [False] * outputs)
        rows.append([c.importer.as_value(v) for v in _scanned(c, body, [c.pick(s, 0, k) for s in states], course)])
    return [_stacked(c, list(column), 0) for column in zip(*rows)]


@dataclass
class _Course:
    """What a scan goes over and what it collects: axes (`SEQUENCE` for sequences), and which go backward."""

    items: list[Value]
    axes: list[int]
    backward: list[bool]
    result_axes: list[int]
    result_backward: list[bool]


def _scanned(c: Context, body: GraphProto, states: Sequence[Any], course: _Course) -> list[Any]:
    counts = [x.shape[a] for x, a in zip(course.items, course.axes)]
    count = next((n for n in counts if isinstance(n, int)), counts[0])
    if (
        isinstance(count, int)
        and 0 < count <= TRIPS
        and all(isinstance(n, int) for n in counts)
        and c.importer.may_write(body, count)
    ):
        unrolled = _scan_unrolled(c, body, states, course, count)
        if unrolled is not None:
            return unrolled
    initial = [c.importer.as_value(s) for s in states]
    taken = [TensorType(x.dtype, (*x.shape[:a], *x.shape[a + 1 :])) for x, a in zip(course.items, course.axes)]
    inner = _fitting(c, body, initial, (), taken, False)
    # Axes of results count from the front; their ranks are the body's.
    ranks = [v.tensor.rank + 1 for v in inner.graph.outputs[len(initial) :]]
    axes = tuple(axis_of(a, r) for a, r in zip(course.result_axes, ranks))
    op = ops.Loop(
        inner.graph, len(initial), False, count, tuple(course.axes), tuple(course.backward), axes,
        tuple(course.result_backward)
    )  # fmt: skip
    return _added(c, op, None, None, *initial, *course.items, *inner.captured)


def _scan_unrolled(
    c: Context, body: GraphProto, states: Sequence[Any], course: _Course, count: int
) -> list[Any] | None:
    """One body after another; None where open sizes of a state are formulas of those before it and grow long: some
    double with every trip."""
    found: list[list[Value]] = [[] for _ in course.result_axes]
    shortened = c.importer.shortened
    for k in range(count):
        items = [
            c.pick(s, a, count - 1 - k if back else k) for s, a, back in zip(course.items, course.axes, course.backward)
        ]
        results = c.importer.subgraph(body, c, [*states, *items])
        states = results[: len(states)]
        sizes = [d for v in states if isinstance(v, Value) and isinstance(v.type, TensorType) for d in v.shape]
        if c.importer.shortened > shortened or any(isinstance(d, Expr) and size_of(d) > LONGEST_SIZE for d in sizes):
            return None
        for parts, value in zip(found, results[len(states) :]):
            parts.append(c.importer.as_value(value))
    ends = zip(found, course.result_axes, course.result_backward)
    return [*states, *(_stacked(c, parts[::-1] if back else parts, axis) for parts, axis, back in ends)]


@onnx_op("SequenceMap")
def sequence_map(c: Context) -> Any:
    body = c.graph("body")
    assert body is not None
    given = [o if isinstance(o, Elements) else c.value(k) for k, o in enumerate(c.operands)]
    sequences = [isinstance(o, Elements) or isinstance(o.type, SequenceType) for o in given]
    if all(isinstance(o, Elements) for o, each in zip(given, sequences) if each):
        lengths = {len(o) for o in given if isinstance(o, Elements)}
        if len(lengths) > 1:
            raise c.error(f"its sequences have different numbers of elements: {', '.join(map(str, sorted(lengths)))}")
        rows = [
            c.importer.subgraph(body, c, [o[k] if isinstance(o, Elements) else o for o in given])
            for k in range(lengths.pop())
        ]
        if rows:
            return [Elements(column) for column in zip(*rows)]
        return [Elements((), dtype_of(o.type.tensor_type.elem_type, o.name)) for o in body.output]
    values = [c.importer.as_value(o) for o in given]
    items = [v for v, each in zip(values, sequences) if each]
    # What is no sequence is the same at every iteration: as the body's own inputs they stand between the items, so all
    # are taken in the loop's order.
    types = [
        _element(c, v.type.element, info) if isinstance(v.type, SequenceType) else v.type
        for v, info in zip(values, body.input)
    ]
    inner = import_body(c.importer, body, c, types, counted=True)
    inner.graph.inputs = [
        inner.graph.inputs[0],
        *(x for x, each in zip(inner.graph.inputs[1:], sequences) if each),
        *(x for x, each in zip(inner.graph.inputs[1:], sequences) if not each),
        *inner.graph.inputs[1 + len(values) :],
    ]
    rest = [v for v, each in zip(values, sequences) if not each]
    n, m = len(items), len(body.output)
    op = ops.Loop(inner.graph, 0, False, None, (SEQUENCE,) * n, (False,) * n, (SEQUENCE,) * m, (False,) * m)
    return _added(c, op, None, None, *items, *rest, *inner.captured)


def _element(c: Context, element: Type, info: Any) -> Type:
    """The type of a sequence's element as a body takes it: of the rank that is known or declared, and sizes that have
    names there."""
    if not isinstance(element, OpenType):
        return element
    declared = info.type.tensor_type
    rank = element.rank if element.rank is not None else len(declared.shape.dim) if declared.HasField("shape") else None
    if rank is None:
        return element
    return TensorType(element.dtype, tuple(Var(c.builder.unique("size"), dt.int64) for _ in range(rank)))
