"""Branches and loops: sub-graphs of the program as bodies of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_torch.context import Context
from weft_torch.registry import op

TRIP = ("trip", TensorType(dt.int64, ()))


def _values(c: Context, operands: Sequence[Any]) -> list[Value]:
    """Operands as values."""
    return [o if isinstance(o, Value) else c.to(o, dt.int64) for o in operands]


def _results(c: Context, module: Any, operands: Sequence[Any]) -> list[Value]:
    return [c.importer.as_value(o) for o in c.importer.inline(module, operands)]


def _branch(c: Context, module: Any, operands: Sequence[Value]) -> Body:
    def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
        inner = [level.capture(c.importer, o) for o in operands]
        return [(f"result_{k}", v) for k, v in enumerate(_results(c, module, inner))]

    return build_body(c.importer, c.name, (), make)


@op("higher_order.cond")
def cond(c: Context, test: Any, then: Any, orelse: Any, operands: Sequence[Any] = ()) -> list[Any]:
    given = _values(c, operands)
    if isinstance(test, bool):
        return list(c.importer.inline(then if test else orelse, given))
    if not isinstance(test, Value):
        raise c.unsupported("a condition on sizes")
    a, b = _branch(c, then, given), _branch(c, orelse, given)
    found = c.builder.add_all(ops.If(a.graph, b.graph), c.reshape(test, ()), *a.captured, *b.captured)
    return [shaped(c.builder, v) for v in found]


@op("higher_order.while_loop")
def while_loop(c: Context, test: Any, step: Any, carried: Sequence[Any], around: Sequence[Any] = ()) -> list[Any]:
    """The test is made of the first values, and behind each iteration of the next."""
    first, held = _values(c, carried), _values(c, around)
    types = [v.tensor for v in first]
    (going,) = _results(c, test, [*first, *held])

    def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
        inner = [level.capture(c.importer, v) for v in held]
        found = _results(c, step, [*operands[1:], *inner])
        for k, (value, type) in enumerate(zip(found, types)):
            if value.type != type:
                raise c.unsupported(f"value {k} is {type} at first and {value.type} behind an iteration")
        (more,) = _results(c, test, [*found, *inner])
        return [("more", c.importer.builder.add(ops.Reshape(()), more)), *_named(found)]

    body = build_body(c.importer, c.name, [TRIP, *((f"value_{k}", t) for k, t in enumerate(types))], make)
    loop = ops.Loop(body.graph, len(first), True, None, (), (), (), ())
    found = c.builder.add_all(loop, None, c.reshape(going, ()), *first, *body.captured)
    return [shaped(c.builder, v) for v in found]


def _named(values: Sequence[Value]) -> list[tuple[str, Value]]:
    return [(f"value_{k}", v) for k, v in enumerate(values)]


def _over(c: Context, step: Any, states: list[Value], items: list[Value], held: list[Value]) -> list[Any]:
    """Over the first axis of the items; what the step gives beyond the states is collected."""
    count = items[0].shape[0]
    types = [v.tensor for v in states]
    types += [TensorType(v.dtype, v.shape[1:]) for v in items]
    collected = 0

    def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
        nonlocal collected
        found = _results(c, step, [*operands[1:], *(level.capture(c.importer, v) for v in held)])
        collected = len(found) - len(states)
        return _named(found)

    body = build_body(c.importer, c.name, [TRIP, *((f"value_{k}", t) for k, t in enumerate(types))], make)
    n, m = len(items), collected
    loop = ops.Loop(body.graph, len(states), False, count, (0,) * n, (False,) * n, (0,) * m, (False,) * m)
    return [shaped(c.builder, v) for v in c.builder.add_all(loop, None, None, *states, *items, *body.captured)]


@op("higher_order.scan")
def scan(c: Context, step: Any, first: Sequence[Any], items: Sequence[Any], around: Sequence[Any] = ()) -> list[Any]:
    return _over(c, step, _values(c, first), _values(c, items), _values(c, around))


@op("higher_order.map_impl")
def map_(c: Context, step: Any, items: Sequence[Any], around: Sequence[Any] = ()) -> list[Any]:
    return _over(c, step, [], _values(c, items), _values(c, around))


__all__ = ["cond", "scan", "while_loop"]
