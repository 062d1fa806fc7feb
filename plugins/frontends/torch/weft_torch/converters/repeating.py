"""Loops that converters write: a step is repeated until nothing asks for more."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Body, Level, build_body
from weft_torch.context import Context

Step = Callable[[Context, list[Value]], Sequence[Value]]
"""(the context in which to add nodes, the values so far) → the next values."""
Test = Callable[[Context, list[Value]], Value]
"""(the context in which to add nodes, the values so far) → whether there is another step, a bool."""


def repeated(c: Context, first: Sequence[Value], more: Test, step: Step, around: Sequence[Value] = ()) -> list[Value]:
    """The values when `more` no longer holds.

    Args:
        around: further values that test and step use, given to both behind the others; they stay as they are.
    """
    body = _body(c, first, step, around, more)
    op = ops.Loop(body.graph, len(first), True, None, (), (), (), ())
    going = c.reshape(more(c, [*first, *around]), ())
    return list(c.builder.add_all(op, None, going, *first, *body.captured))


def times(c: Context, number: Value, first: Sequence[Value], step: Step) -> list[Value]:
    """The values after a number of steps, an integer scalar. It has a gradient, which `repeated` has not."""
    body = _body(c, first, step, (), None)
    op = ops.Loop(body.graph, len(first), False, None, (), (), (), ())
    return list(c.builder.add_all(op, number, None, *first, *body.captured))


def _body(c: Context, first: Sequence[Value], step: Step, around: Sequence[Value], more: Test | None) -> Body:
    """One step, and, with `more`, whether there is another."""
    count = len(first)

    def make(level: Level, operands: list[Value]) -> list[tuple[str, Value]]:
        inner = copy.copy(c)
        inner.builder = c.importer.builder
        held = list(operands[1:]) + [level.capture(c.importer, v) for v in around]
        found = list(step(inner, held))
        results = [(f"value_{k}", v) for k, v in enumerate(found)]
        if more is None:
            return results
        return [("more", inner.reshape(more(inner, [*found, *held[count:]]), ())), *results]

    given = [("trip", TensorType(dt.int64, ())), *((f"value_{k}", v.tensor) for k, v in enumerate(first))]
    return build_body(c.importer, "steps", given, make)


__all__ = ["repeated", "times"]
