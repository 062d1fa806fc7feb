"""Branches and loops of neural networks. They have no results of their own: their layers give other values to names of
the network around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.graph.nodes import TensorType, Type, Value
from weft_coreml.network import Layer
from weft_coreml.registry import layer
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_frontend.control import chosen, fitting
from weft_frontend.operands import Poison, Poisoned, Scope, Unsupported, poisoned
from weft_ops.composing import Composer

LEAST = 1e-6
"""What is not farther from 0 is false."""
MOST_DEPTH = 32


def written(network: Any, depth: int = 0) -> dict[str, None]:
    """The names that the layers of a network give values, those of networks inside too."""
    if depth > MOST_DEPTH:
        raise UnsupportedError(f"networks are more than {MOST_DEPTH} inside of each other")
    names: dict[str, None] = {}
    for message in network.layers:
        names |= dict.fromkeys(message.output)
        for part in (message.branch, message.loop):
            for _, inner in part.ListFields():
                if hasattr(inner, "layers"):
                    names |= written(inner, depth + 1)
    return names


def run(c: Layer, network: Any, scope: Scope) -> None:
    for message in network.layers:
        c.importer.add(message, scope)


def value_of(c: Layer, scope: Scope, name: str) -> Value:
    """What a name stands for, as float32."""
    found = scope.find(name)
    if found is None:
        raise c.error(f"'{name}' is computed by no layer")
    if poisoned(found):
        raise Poisoned
    return here(c).cast(c.importer.as_value(found, name), dt.float32)


def here(c: Layer) -> Composer:
    """Builds nodes of the body that is read."""
    return Composer(c.importer.builder)


def holds(c: Layer, value: Value) -> Value:
    """Whether the only element of a value is true."""
    k = here(c)
    return k.reshape(k(ops.Greater(), k(ops.Absolute(), value), LEAST), ())


def inside(c: Layer, level: Level) -> Scope:
    """The names of a body: its own, and those around it."""
    return Scope({}, c.scope, "", lambda o: level.capture(c.importer, o))


@layer("branch")
def branch(c: Layer) -> list[Any]:
    networks = (c.parameters.ifBranch, c.parameters.elseBranch)
    test = c.x()
    if test.constant is not None and test.constant.size == 1:
        run(c, networks[0 if abs(float(test.constant.reshape(-1)[0])) > LEAST else 1], c.scope)
        return []
    sides = [written(n) for n in networks]
    # A name that one of both leaves alone keeps its value there; if it has none it is of no use behind.
    names = [n for n in sides[0] | sides[1] if all(n in s or c.scope.find(n) is not None for s in sides)]

    def body(network: Any) -> Body:
        def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
            scope = inside(c, level)
            run(c, network, scope)
            return [(n, value_of(c, scope, n)) for n in names]

        return build_body(c.importer, c.name, (), make)

    try:
        found = chosen(c, holds(c, test), body(networks[0]), body(networks[1]))
    except (Poisoned, Unsupported):
        c.scope.values.update((n, Poison()) for n in names)
        raise
    c.scope.values.update(zip(names, found))
    return []


@layer("loop")
def loop(c: Layer) -> list[Any]:
    """What a loop carries are the names with a value before it to which its layers give others."""
    p = c.parameters
    trips = None
    if c.operands:
        trips = c.reshape(c.cast(c.as_value(c.integers_of(0), "count"), dt.int64), ())
    elif p.maxLoopIterations or not p.conditionVar:
        trips = c.number(int(p.maxLoopIterations), dt.int64)
    names = [n for n in written(p.bodyNetwork) | written(p.conditionNetwork) if c.scope.find(n) is not None]
    try:
        found = _looped(c, names, trips)
    except (Poisoned, Unsupported):
        c.scope.values.update((n, Poison()) for n in names)
        raise
    c.scope.values.update(zip(names, found))
    return []


def _looped(c: Layer, names: Sequence[str], trips: Value | None) -> list[Value]:
    p = c.parameters
    before = Scope({}, c.scope)
    run(c, p.conditionNetwork, before)
    going = holds(c, value_of(c, before, p.conditionVar)) if p.conditionVar else None
    first = [value_of(c, before, n) for n in names]

    def make(types: Sequence[Type]) -> Body:
        def results(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            scope = inside(c, level)
            scope.values.update(zip(names, operands[1:]))
            run(c, p.bodyNetwork, scope)
            run(c, p.conditionNetwork, scope)
            more = holds(c, value_of(c, scope, p.conditionVar)) if p.conditionVar else here(c).number(True, dt.bool_)
            values = [value_of(c, scope, n) for n in names]
            for name, value, type in zip(names, values, types):
                if not isinstance(type, TensorType) or value.tensor.rank != type.rank:
                    raise c.unsupported(f"'{name}' is {type} at first and {value.type} behind an iteration")
            return [("more", more), *zip(names, values)]

        return build_body(c.importer, c.name, [("trip", TensorType(dt.int64, ())), *zip(names, types)], results)

    body = fitting(c, first, 1, make)
    repeated = ops.Loop(body.graph, len(names), True, None, (), (), (), ())
    found = c.builder.add_all(repeated, trips, going, *first, *body.captured)
    return [shaped(c.builder, v) for v in found]


__all__ = ["written"]
