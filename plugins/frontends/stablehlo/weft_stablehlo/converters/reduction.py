"""Reductions over axes: those of one operation by Weft's own, others by halving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Value
from weft.graph.operator import Operator
from weft_ops.shapes import product
from weft_stablehlo.attributes import keyword
from weft_stablehlo.bodies import on_tensors, operations, reduction
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.registry import op

REDUCERS: dict[str, Any] = {
    "add": ops.ReduceSum, "mul": ops.ReduceProd, "max": ops.ReduceMax, "min": ops.ReduceMin,
}  # fmt: skip
MERGES: dict[str, Operator] = {
    "add": ops.Add(), "mul": ops.Multiply(), "max": ops.Maximum(), "min": ops.Minimum(), "and": ops.BitwiseAnd(),
    "or": ops.BitwiseOr(),
}  # fmt: skip
BOOLS: dict[str, Operator] = {"and": ops.LogicalAnd(), "or": ops.LogicalOr()}


def neutral(name: str, dtype: DType) -> Any:
    """What changes no result of a reduction."""
    if name in ("add", "or"):
        return 0
    if name == "mul":
        return 1
    if dtype.is_bool:
        return name == "and"
    if name == "and":
        return -1 if dtype.kind == "int" else np.iinfo(dtype.numpy).max
    if dtype.is_float:
        return -np.inf if name == "max" else np.inf
    bits = np.iinfo(dtype.numpy)
    return bits.min if name == "max" else bits.max


def merge(c: Context, name: str, x: Value, y: Value) -> Value:
    return c((BOOLS if x.dtype.is_bool else MERGES)[name], x, y)


@op("reduce")
def reduce(c: Context) -> Any:
    axes = c.integers("dimensions")
    count = c.count // 2
    name = reduction(c.block(0)) if count == 1 else None
    if name is not None and not c.is_complex(0):
        return reduced(c, name, c.value(0), c.value(1), axes)
    if name == "add":
        return Complex([reduced(c, name, x, v, axes) for x, v in zip(c.parts(0), c.parts(1))])
    found = extreme(c, axes) if count == 2 else None
    return found if found is not None else halved(c, axes, count)


def reduced(c: Context, name: str, x: Value, start: Value, axes: Sequence[int]) -> Value:
    """A reduction of one operation, and its start."""
    if not axes:
        return merge(c, name, x, c.broadcast(start, x.shape))
    if name in REDUCERS and not x.dtype.is_bool:
        found = c(REDUCERS[name](tuple(axes)), x) if product(x.shape) != 0 else None
    elif x.dtype.is_bool:
        wide = c.cast(x, dt.uint8)
        shrunk = (
            c((ops.ReduceMin if name == "and" else ops.ReduceMax)(tuple(axes)), wide) if product(x.shape) != 0 else None
        )
        found = None if shrunk is None else c.cast(shrunk, dt.bool_)
    else:
        found = folded(c, name, x, axes)
    if found is None:
        shape = tuple(d for k, d in enumerate(x.shape) if k not in axes)
        return c.broadcast(start, shape)
    known = start.constant
    if known is not None and known.size == 1 and known.reshape(-1)[0] == neutral(name, x.dtype):
        return found
    return merge(c, name, found, c.broadcast(start, found.shape))


def folded(c: Context, name: str, x: Value, axes: Sequence[int]) -> Value | None:
    """By halving each axis, of operations that have no reduction of their own."""
    if product(x.shape) == 0:
        return None
    for axis in sorted(axes, reverse=True):
        size = x.shape[axis]
        if not isinstance(size, int):
            raise c.unsupported(f"'{name}' over a size known only at run time")
        while size > 1:
            half = size // 2
            first, second = c.slice(x, axis, 0, half), c.slice(x, axis, half, half)
            both = merge(c, name, first, second)
            x = c.concat([both, c.slice(x, axis, 2 * half, 1)], axis) if size % 2 else both
            size = half + size % 2
        x = c.pick(x, axis, 0)
    return x


def halved(c: Context, axes: Sequence[int], count: int) -> list[Any]:
    """Any reduction: the region on the first half of an axis and the second, until one element is left."""
    parts = [c.operands[k] if c.is_complex(k) else c.value(k) for k in range(count)]
    starts = [c.operands[count + k] if c.is_complex(count + k) else c.value(count + k) for k in range(count)]
    shape = c.shape(0)
    if c.empty(shape):
        kept = tuple(d for k, d in enumerate(shape) if k not in axes)
        return [each(s, lambda v: c.broadcast(v, kept)) for s in starts]
    for axis in sorted(axes, reverse=True):
        size = shape[axis]
        if not isinstance(size, int):
            raise c.unsupported("a region over a size known only at run time")
        while size > 1:
            half, odd = size // 2, size % 2
            first = [each(p, lambda v: c.slice(v, axis, 0, half)) for p in parts]  # noqa: B023
            second = [each(p, lambda v: c.slice(v, axis, half, half)) for p in parts]  # noqa: B023
            both = on_tensors(c, 0, [*first, *second])
            if odd:
                last = [each(p, lambda v: c.slice(v, axis, 2 * half, 1)) for p in parts]  # noqa: B023
                both = [paired(b, o, lambda v, w: c.concat([v, w], axis)) for b, o in zip(both, last)]  # noqa: B023
            parts, size = both, half + odd
        parts = [each(p, lambda v: c.pick(v, axis, 0)) for p in parts]  # noqa: B023
    kept = parts[0][0].shape if isinstance(parts[0], Complex) else parts[0].shape
    return on_tensors(c, 0, [*(each(s, lambda v: c.broadcast(v, kept)) for s in starts), *parts])


def each(operand: Any, function: Any) -> Any:
    """A function of each part of an operand."""
    return Complex([function(p) for p in operand]) if isinstance(operand, Complex) else function(operand)


def paired(a: Any, b: Any, function: Any) -> Any:
    if isinstance(a, Complex):
        return Complex([function(x, y) for x, y in zip(a, b)])
    return function(a, b)


def extreme(c: Context, axes: Sequence[int]) -> list[Any] | None:
    """The greatest or least elements along one axis and their places, where the second operand counts the places and
    the region chooses as JAX's argmax and argmin do."""
    greatest = chosen(c.block(0))
    if greatest is None or len(axes) != 1 or c.is_complex(0):
        return None
    (axis,) = axes
    places = c.operands[1]
    node = places.producer if isinstance(places, Value) else None
    if node is not None and isinstance(node.op, ops.Cast) and node.inputs[0] is not None:
        node = node.inputs[0].producer
    x = c.value(0)
    if node is None or not isinstance(node.op, ops.Iota) or node.op.axis != axis or not isinstance(x.shape[axis], int):
        return None
    start = c.value(2).constant
    worst = neutral("max" if greatest else "min", x.dtype)
    if start is None or start.reshape(-1)[0] != worst or c.empty(x.shape):
        return None
    seen = x
    if x.dtype.is_float:
        # NaN is chosen first: it lies beyond what all others are.
        nan = c(ops.IsNan(), x)
        first = c(ops.Argmax(axis), c.cast(nan, dt.uint8))
        some = c(ops.ReduceMax((axis,)), c.cast(nan, dt.uint8))
        seen = c(ops.Where(), nan, worst, x)
    elif x.dtype.is_bool:
        seen = c.cast(x, dt.uint8)
    at = c((ops.Argmax if greatest else ops.Argmin)(axis), seen)
    if x.dtype.is_float:
        at = c(ops.Where(), c.cast(some, dt.bool_), first, at)
    apart = c.reshape(at, (*at.shape[:axis], 1, *at.shape[axis:]))
    best = c.reshape(c(ops.GatherElements(axis), x, apart), at.shape)
    return [best, c.cast(at, c.results[1].dtype)]


CHOICE = ("compare", "compare", "or", "compare", "compare", "and", "or", "select", "select", "return")


def chosen(block: Any) -> bool | None:
    """Whether a region is that of JAX's argmax (True) or argmin (False): better = a > b or a is NaN; the place is i if
    better, or if a = b and i < j; else j."""
    found = operations(block)
    if tuple(op.name.removeprefix("stablehlo.") for op in found) != CHOICE or len(block.arguments) != 4:
        return None
    a, i, b, j = block.arguments
    words = [keyword(found[k].attributes["comparison_direction"]) for k in (0, 1, 3, 4)]
    if words[0] not in ("GT", "LT") or words[1:] != ["NE", "EQ", "LT"]:
        return None
    greater, nan, better, same, less, tie, take, x, at = (op.results[0] for op in found[:-1])
    wanted = [(a, b), (a, a), None, (a, b), (i, j), None, None]
    right = all(w is None or tuple(op.operands) == w for w, op in zip(wanted, found))
    right = right and set_equal(found[2].operands, (greater, nan)) and set_equal(found[5].operands, (same, less))
    right = right and set_equal(found[6].operands, (better, tie)) and tuple(found[7].operands)[1:] == (a, b)
    right = right and found[7].operands[0] in (better, take) and tuple(found[8].operands) == (take, i, j)
    return words[0] == "GT" if right and tuple(found[9].operands) == (x, at) else None


def set_equal(operands: Any, values: tuple[Any, Any]) -> bool:
    a, b = operands
    return bool((a == values[0] and b == values[1]) or (a == values[1] and b == values[0]))


__all__ = ["each", "halved", "merge", "neutral", "paired", "reduced"]
