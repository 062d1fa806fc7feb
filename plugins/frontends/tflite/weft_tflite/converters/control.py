"""Branches and loops: sub-graphs of the model as bodies of operators."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_tflite.context import Context
from weft_tflite.registry import moving_op


def captured(c: Context, number: int, operands: list[Any]) -> Body:
    """A sub-graph over operands of the graph around it."""
    graph = c.importer.graph(number, c, len(operands))

    def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
        inner = [level.capture(c.importer, o) for o in operands]
        found = c.importer.put(number, c, inner)
        return [(f"result_{k}", c.importer.as_value(o)) for k, o in enumerate(found)]

    return build_body(c.importer, graph.name, (), make)


@moving_op("IF")
def if_(c: Context) -> list[Any]:
    numbers = c.integer("then_subgraph_index"), c.integer("else_subgraph_index")
    test = c.constant(0)
    if test is not None:
        return c.importer.put(numbers[0 if test.reshape(-1)[0] else 1], c, c.operands[1:])
    then, orelse = (captured(c, number, c.operands[1:]) for number in numbers)
    found = c.builder.add_all(
        ops.If(then.graph, orelse.graph), c.reshape(c.value(0), ()), *then.captured, *orelse.captured
    )
    return [shaped(c.builder, v) for v in found]


@moving_op("STABLEHLO_COMPOSITE")
def composite(c: Context) -> list[Any]:
    """What it is made of, as the model says."""
    return c.importer.put(c.integer("decomposition_subgraph_index"), c, c.operands)


@moving_op("WHILE")
def while_(c: Context) -> list[Any]:
    """The test is made of the first values, and behind each iteration of the next."""
    test, step = c.integer("cond_subgraph_index"), c.integer("body_subgraph_index")
    first = [c.value(k) for k in range(c.count)]
    (going,) = c.importer.put(test, c, first)
    types = [v.tensor for v in first]
    graph = c.importer.graph(step, c, len(first))

    def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
        found = [c.importer.as_value(o) for o in c.importer.put(step, c, operands[1:])]
        for k, (value, type) in enumerate(zip(found, types)):
            if value.type != type:
                raise c.unsupported(f"value {k} is {type} at first and {value.type} behind an iteration")
        (more,) = c.importer.put(test, c, found)
        results = [("more", c.reshape(c.importer.as_value(more), ()))]
        return results + [(f"value_{k}", value) for k, value in enumerate(found)]

    given = [("trip", TensorType(dt.int64, ())), *((f"value_{k}", t) for k, t in enumerate(types))]
    body = build_body(c.importer, graph.name, given, make)
    op = ops.Loop(body.graph, len(first), True, None, (), (), (), ())
    found = c.builder.add_all(op, None, c.reshape(c.importer.as_value(going), ()), *first, *body.captured)
    return [shaped(c.builder, v) for v in found]
