"""Sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_stablehlo.attributes import keyword
from weft_stablehlo.bodies import on_tensors, operations
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters.elementwise import total_order
from weft_stablehlo.converters.reduction import each
from weft_stablehlo.registry import op

MOST_COMPARED = 1 << 24
"""Pairs that are compared where the region is not one of those that are known."""


@op("sort")
def sort(c: Context) -> Any:
    axis, shape = c.attribute("dimension"), c.shape(0)
    axis %= len(shape)
    operands = [c.operands[k] if c.is_complex(k) else c.value(k) for k in range(c.count)]
    if shape[axis] in (0, 1) or c.empty(shape):
        return operands
    keys = sort_keys(c)
    if keys is None:
        order = compared(c, operands, axis)
    else:
        order = sorted_by(c, keys, axis)
    return [each(o, lambda v: c(ops.GatherElements(axis), v, order)) for o in operands]


def sorted_by(c: Context, keys: list[tuple[Value, bool]], axis: int) -> Value:
    """The order by several keys: by the last one first, since equal ones keep their order."""
    order: Value | None = None
    for key, descending in reversed(keys):
        seen = key if order is None else c(ops.GatherElements(axis), key, order)
        step = c(ops.Argsort(axis, descending), seen)
        order = step if order is None else c(ops.GatherElements(axis), order, step)
    assert order is not None
    return order


def sort_keys(c: Context) -> list[tuple[Value, bool]] | None:
    """By what a region that compares one pair of its arguments, or lexicographically several, sorts; and whether from
    the greatest. None: it does something else."""
    block = c.block(0)
    found = operations(block)
    arguments = list(block.arguments)
    made = {r: op for op in found for r in op.results}
    if not found[-1].operands:
        return None
    terms = lexicographic(found[-1].operands[0], made)
    if terms is None:
        return None
    keys: list[tuple[Value, bool]] = []
    for compare in terms:
        word = keyword(compare.attributes["comparison_direction"])
        roots = [origin(v, made, arguments) for v in compare.operands]
        a, b = roots
        if word not in ("LT", "GT") or a is None or b is None:
            return None
        (first, how), (second, other) = a, b
        if first > second:
            first, second, word = second, first, "GT" if word == "LT" else "LT"
        if how != other or second != first + 1 or first % 2:
            return None
        if c.is_complex(first // 2):
            return None
        x = c.value(first // 2)
        kind = "compare_type" in compare.attributes and keyword(compare.attributes["compare_type"])
        keys.append((ordered(c, x, how, kind == "TOTALORDER"), word == "GT"))
    return keys


def ordered(c: Context, x: Value, how: str, total: bool) -> Value:
    """Numbers in the order that a region compares: `how` "plain", or "canonical" where it makes all zeros and all NaNs
    equal first."""
    if x.dtype.is_bool:
        return c.cast(x, dt.uint8)
    if not x.dtype.is_float:
        return x
    if how == "canonical":
        x = c(ops.Where(), c(ops.Equal(), x, 0.0), 0.0, x)
        x = c(ops.Where(), c(ops.IsNan(), x), np.nan, x)
    return total_order(c, x) if total and x.dtype.bits >= 16 else x


def origin(value: Any, made: dict[Any, Any], arguments: list[Any]) -> tuple[int, str] | None:
    """The argument that a compared value is, and whether its zeros and NaNs are made equal first, as JAX does it."""
    if value in arguments:
        return arguments.index(value), "plain"
    op = made.get(value)
    steps = 0
    while op is not None and op.name == "stablehlo.select" and steps < 2:
        test = made.get(op.operands[0])
        value = op.operands[2]
        if test is None or test.name != "stablehlo.compare":
            return None
        word = keyword(test.attributes["comparison_direction"])
        other = made.get(op.operands[1])
        if other is None or other.name != "stablehlo.constant":
            return None
        if word == "NE" and not (test.operands[0] == value and test.operands[1] == value):
            return None
        if word == "EQ" and test.operands[0] != value:
            return None
        if word not in ("EQ", "NE"):
            return None
        steps += 1
        if value in arguments:
            return (arguments.index(value), "canonical") if steps == 2 else None
        op = made.get(value)
    return None


def lexicographic(value: Any, made: dict[Any, Any]) -> list[Any] | None:
    """The comparisons of keys, the first key's first, of a < b or (a = b and (…)); one alone is such."""
    op = made.get(value)
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        return [op]
    if op.name != "stablehlo.or":
        return None
    for first, second in ((0, 1), (1, 0)):
        less, both = made.get(op.operands[first]), made.get(op.operands[second])
        if less is None or both is None or less.name != "stablehlo.compare" or both.name != "stablehlo.and":
            continue
        for a, b in ((0, 1), (1, 0)):
            same, rest = made.get(both.operands[a]), lexicographic(both.operands[b], made)
            if same is None or rest is None or same.name != "stablehlo.compare":
                continue
            if keyword(same.attributes["comparison_direction"]) == "EQ" and tuple(same.operands) == tuple(
                less.operands
            ):
                return [less, *rest]
    return None


def compared(c: Context, operands: list[Any], axis: int) -> Value:
    """The order by any region: an element's place is the number of those that come before it."""
    shape = c.shape(0)
    size = shape[axis]
    if not isinstance(size, int) or not all(isinstance(d, int) for d in shape):
        raise c.unsupported("a comparison other than by keys, over a size known only at run time")
    if math.prod(d for d in shape if isinstance(d, int)) * size > MOST_COMPARED:
        raise c.unsupported("a comparison other than by keys, of many elements")
    wide = (*shape[: axis + 1], size, *shape[axis + 1 :])
    left = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    right = (*shape[:axis], 1, *shape[axis:])
    here = [each(o, lambda v: c.broadcast(c.reshape(v, left), wide)) for o in operands]
    there = [each(o, lambda v: c.broadcast(c.reshape(v, right), wide)) for o in operands]
    pairs = [x for pair in zip(there, here) for x in pair]
    (before,) = on_tensors(c, 0, pairs)
    pairs = [x for pair in zip(here, there) for x in pair]
    (behind,) = on_tensors(c, 0, pairs)
    mine = c(ops.Iota(dt.int64, wide, axis))
    other = c(ops.Iota(dt.int64, wide, axis + 1))
    tie = c(ops.LogicalAnd(), c(ops.LogicalNot(), behind), c(ops.Less(), other, mine))
    counted = c.cast(c(ops.LogicalOr(), before, tie), dt.int64)
    places = c.sum(counted, (axis + 1,), False)
    return c(ops.Argsort(axis), places)


__all__ = ["Complex"]
