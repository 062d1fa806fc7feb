"""Loops that converters write: a step is repeated until nothing asks for more."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Level, build_body
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
    count = len(first)
    values = [*first, *around]

    def make(level: Level, operands: list[Value]) -> list[tuple[str, Value]]:
        inner = copy.copy(c)
        inner.builder = c.importer.builder
        held = list(operands[1:]) + [level.capture(c.importer, v) for v in around]
        found = list(step(inner, held))
        test = inner.reshape(more(inner, [*found, *held[count:]]), ())
        return [("more", test), *((f"value_{k}", v) for k, v in enumerate(found))]

    given = [("trip", TensorType(dt.int64, ())), *((f"value_{k}", v.tensor) for k, v in enumerate(first))]
    body = build_body(c.importer, "steps", given, make)
    op = ops.Loop(body.graph, count, True, None, (), (), (), ())
    going = c.reshape(more(c, values), ())
    return list(c.builder.add_all(op, None, going, *first, *body.captured))


__all__ = ["repeated"]
