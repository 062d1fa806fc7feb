"""Branches and loops: regions as bodies of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Body, put_here
from weft_frontend.operands import Absent
from weft_stablehlo.context import Context
from weft_stablehlo.registry import op
from weft_stablehlo.tensors import tensor_type


@op("if")
def if_(c: Context) -> list[Any]:
    test = c.constant(0)
    if test is not None:
        return c.put(0 if test.reshape(-1)[0] else 1, ())
    return branch(c, c.reshape(c.value(0), ()), [c.importer.body(c.block(k), c, ()) for k in (0, 1)])


@op("case")
def case(c: Context) -> list[Any]:
    """A number that no branch has takes the last one."""
    last = len(c.op.regions) - 1
    test = c.constant(0)
    if test is not None:
        k = int(test.reshape(-1)[0])
        return c.put(k if 0 <= k <= last else last, ())
    if last == 0:
        return c.put(0, ())
    return _nested(c, c.reshape(c.value(0), ()), 0, c.values_here)


def _nested(c: Context, index: Value, k: int, values: Any) -> list[Any]:
    """Branch k, or those behind it."""
    last = len(c.op.regions) - 1
    if k == last:
        return c.importer.put(c.block(last), (), values, f"{c.name}/")
    here = c.importer.nested(c, values, lambda v, _: c.importer.put(c.block(k), (), v, f"{c.name}/"))
    rest = c.importer.nested(c, values, lambda v, capture: _nested(c, capture(index), k + 1, v))
    return branch(c, c(ops.Equal(), index, k), [here, rest])


def branch(c: Context, test: Value, bodies: Sequence[Body]) -> list[Any]:
    then, orelse = bodies
    types = c.results
    if harmless(bodies):
        pairs = zip(put_here(c.importer, then), put_here(c.importer, orelse))
        return c.importer.joined(types, [c(ops.Where(), test, x, y) for x, y in pairs])
    found = c.builder.add_all(ops.If(then.graph, orelse.graph), test, *then.captured, *orelse.captured)
    return c.importer.joined(types, found)


def harmless(bodies: Sequence[Body]) -> bool:
    """Whether both branches may be computed: few operations, none of which can fail or is a loop."""
    for body in bodies:
        if body.graph.symbols or len(body.graph.nodes) > 16:
            return False
        if any(
            n.op.kind in ("control", "host", "contraction", "opaque") or isinstance(n.op, ops.Require)
            for n in body.graph.nodes
        ):
            return False
    pairs = list(zip(bodies[0].graph.outputs, bodies[1].graph.outputs))
    return all(isinstance(x.type, TensorType) and x.type == y.type for x, y in pairs)


@op("while")
def while_(c: Context) -> list[Any]:
    """The test is made of the first values, and behind each iteration of the next."""
    blocks = [c.block(k) for k in (0, 1)]
    kept = [k for k, o in enumerate(c.operands) if not isinstance(o, Absent)]
    if len(kept) < c.count:
        raise c.unsupported("tokens that are carried")
    types = [tensor_type(v.type) for v in c.op.operands]
    first = c.importer.flat(c.operands)
    (going,) = c.put(0, c.operands)
    carried = [v.tensor for v in first]

    def make(values: Any, found: Sequence[Any]) -> list[Value]:
        parts = c.importer.flat(found)
        for k, (value, type) in enumerate(zip(parts, carried)):
            if value.type != type:
                raise c.unsupported(f"a carried value {k} that is {type} at first and {value.type} behind an iteration")
        (more,) = c.importer.put(blocks[0], c.importer.joined(types, parts), values, f"{c.name}/test/")
        return [c.reshape(c.importer.as_value(more), ()), *parts]

    body = c.importer.body(blocks[1], c, carried, make, counted=True)
    op = ops.Loop(body.graph, len(first), True, None, (), (), (), ())
    found = c.builder.add_all(op, None, c.reshape(c.importer.as_value(going), ()), *first, *body.captured)
    return c.importer.joined(types, list(found))
