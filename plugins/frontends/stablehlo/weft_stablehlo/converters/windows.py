"""Reductions over windows that slide, and what is put back where a window chose it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_ops.shapes import product
from weft_stablehlo.bodies import on_tensors, operations, reduction
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.converters.movement import padded
from weft_stablehlo.converters.reduction import each, merge, neutral
from weft_stablehlo.registry import op


@dataclass(frozen=True)
class Windows:
    """By axis: how many elements a window has, how far it moves, what is added in front and behind, what between the
    elements of the operand, how far apart those of a window are."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    apart: tuple[int, ...]
    dilations: tuple[int, ...]


def windows_of(c: Context) -> Windows:
    sizes = c.integers("window_dimensions")
    ones = (1,) * len(sizes)
    pads = c.integers("padding", (0,) * (2 * len(sizes)))
    return Windows(
        sizes, c.integers("window_strides", ones), pads[0::2], pads[1::2], c.integers("base_dilations", ones),
        c.integers("window_dilations", ones),
    )  # fmt: skip


@op("reduce_window")
def reduce_window(c: Context) -> Any:
    w = windows_of(c)
    count = c.count // 2
    name = reduction(c.block(0)) if count == 1 else None
    operands = [c.operands[k] if c.is_complex(k) else c.value(k) for k in range(count)]
    starts = [c.operands[count + k] if c.is_complex(count + k) else c.value(count + k) for k in range(count)]
    if name is not None and not c.is_complex(0):
        found = pooled(c, name, operands[0], starts[0], w)
        if found is None:
            found = running(c, name, operands[0], starts[0], w)
        if found is not None:
            return found
    operands = [around(c, o, s, w) for o, s in zip(operands, starts)]
    for axis, size in enumerate(w.sizes):
        operands = along(c, name, operands, axis, size, w)
    if any(s != 1 for s in w.strides):
        operands = [each(o, lambda v: strided(c, v, w.strides)) for o in operands]
    if not all(is_neutral(name, s) for s in starts) and not any(w.sizes[k] == 0 for k in range(len(w.sizes))):
        operands = combined(c, name, starts_like(c, starts, operands), operands)
    return operands


def is_neutral(name: str | None, start: Any) -> bool:
    if name is None or not isinstance(start, Value) or start.constant is None:
        return False
    return bool(start.constant.reshape(-1)[0] == neutral(name, start.dtype))


def starts_like(c: Context, starts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    shape = (operands[0][0] if isinstance(operands[0], Complex) else operands[0]).shape
    return [each(s, lambda v: c.broadcast(v, shape)) for s in starts]


def combined(c: Context, name: str | None, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    if name is not None and not isinstance(first[0], Complex):
        return [merge(c, name, first[0], second[0])]
    return on_tensors(c, 0, [*first, *second])


def around(c: Context, x: Any, start: Any, w: Windows) -> Any:
    """An operand with its start between the elements and around them."""
    inner = tuple(a - 1 for a in w.apart)
    if isinstance(x, Complex):
        return Complex([padded(c, p, s, w.low, w.high, inner) for p, s in zip(x, start)])
    return padded(c, x, start, w.low, w.high, inner)


def strided(c: Context, x: Value, strides: Sequence[int]) -> Value:
    for axis, step in enumerate(strides):
        if step != 1:
            size = x.shape[axis]
            if not isinstance(size, int):
                raise c.unsupported("strides over a size known only at run time")
            x = c.slice(x, axis, 0, -(-size // step), step)
    return x


def along(c: Context, name: str | None, operands: list[Any], axis: int, size: int, w: Windows) -> list[Any]:
    """Windows along one axis: those of twice as many elements are made of two, those of any number of such."""
    if size == 1:
        return operands
    step = w.dilations[axis]
    length = (operands[0][0] if isinstance(operands[0], Complex) else operands[0]).shape[axis]
    if not isinstance(length, int):
        raise c.unsupported("windows over a size known only at run time")
    count = length - (size - 1) * step
    if count <= 0:
        return [each(o, lambda v: c.slice(v, axis, 0, 0)) for o in operands]
    have, power, done, result = operands, 1, 0, None
    while True:
        if size & power:
            part = [each(o, lambda v: c.slice(v, axis, done * step, count)) for o in have]  # noqa: B023
            result = part if result is None else combined(c, name, result, part)
            done += power
        if done == size:
            assert result is not None
            return result
        longer = length - (2 * power - 1) * step
        first = [each(o, lambda v: c.slice(v, axis, 0, longer)) for o in have]  # noqa: B023
        second = [each(o, lambda v: c.slice(v, axis, power * step, longer)) for o in have]  # noqa: B023
        have = combined(c, name, first, second)
        power *= 2


def pooled(c: Context, name: str, x: Value, start: Value, w: Windows) -> Value | None:
    """Windows over one to three axes of floats as a pooling, the axes that windows have put last."""
    moving = [k for k, s in enumerate(w.sizes) if s > 1 or w.strides[k] > 1 or w.low[k] or w.high[k]]
    still = [k for k in range(len(w.sizes)) if k not in moving]
    if name not in ("max", "add") or not x.dtype.is_float or not 1 <= len(moving) <= 3 or any(a > 1 for a in w.apart):
        return None
    if not is_neutral(name, start) or any(p < 0 for p in (*w.low, *w.high)) or c.empty(x.shape):
        return None
    sizes = tuple(w.sizes[k] for k in moving)
    if name == "add" and (
        math.prod(sizes) > 256 or any(isinstance(x.shape[k], int) and w.sizes[k] >= max(x.shape[k], 32) for k in moving)
    ):
        return None  # running sums and global ones have better ways
    if any(
        w.low[k] > (w.sizes[k] - 1) * w.dilations[k] or w.high[k] > (w.sizes[k] - 1) * w.dilations[k] for k in moving
    ):
        return None
    order = [*still, *moving]
    lead = tuple(x.shape[k] for k in still)
    y = c.transpose(x, order)
    y = c.reshape(y, (product(lead[:-1]), lead[-1] if lead else 1, *(x.shape[k] for k in moving)))
    pads = (*(w.low[k] for k in moving), *(w.high[k] for k in moving))
    strides, dilations = tuple(w.strides[k] for k in moving), tuple(w.dilations[k] for k in moving)
    if name == "max":
        y = c(ops.MaxPool(sizes, strides, pads, dilations), y)
    else:
        wide = c.wide(y)
        mean = c(ops.AveragePool(sizes, strides, pads, dilations, count_include_pad=True), wide)
        y = c.cast(c.mul(mean, float(math.prod(sizes))), x.dtype)
    y = c.reshape(y, (*lead, *y.shape[2:]))
    return c.transpose(y, [order.index(k) for k in range(len(order))])


def running(c: Context, name: str, x: Value, start: Value, w: Windows) -> Value | None:
    """Sums and products of all elements so far, along one axis."""
    moving = [k for k, s in enumerate(w.sizes) if s > 1]
    if name not in ("add", "mul") or len(moving) != 1 or not is_neutral(name, start) or x.dtype.bits < 32:
        return None
    (axis,) = moving
    size = x.shape[axis]
    others = [k for k in range(len(w.sizes)) if k != axis]
    if any(w.low[k] or w.high[k] for k in others) or any(v != 1 for v in (*w.strides, *w.apart, *w.dilations)):
        return None
    if w.sizes[axis] != size or x.dtype.is_bool:
        return None
    ends = (w.low[axis], w.high[axis])
    if ends not in ((size - 1, 0), (0, size - 1)):
        return None
    return c((ops.CumSum if name == "add" else ops.CumProd)(axis, False, ends[0] == 0), x)


SELECTIONS = {"GE": (True, False), "GT": (True, True), "LE": (False, False), "LT": (False, True)}
"""By what a region compares: whether the greatest element is chosen, and whether the last of equal ones."""


@op("select_and_scatter")
def select_and_scatter(c: Context) -> Value:
    """Each window's chosen element gets its part of the source; the parts of one place are merged."""
    x, source, start = c.value(0), c.value(1), c.value(2)
    compare = operations(c.block(0))
    name = reduction(c.block(1))
    word = c.importer.keyword_of(compare[0], "comparison_direction") if len(compare) == 2 else ""
    ordered = len(compare) == 2 and tuple(compare[0].operands) == tuple(c.block(0).arguments)
    if word not in SELECTIONS or not ordered or name is None:
        raise c.unsupported("a choice other than the greatest or least element, or a general merge")
    if not all(isinstance(d, int) for d in x.shape):
        raise c.unsupported("windows over a size known only at run time")
    kind, own = x.dtype, source.dtype
    if kind.is_bool:
        x, source, start = (c.cast(v, dt.uint8) for v in (x, source, start))
        name = {"and": "min", "or": "max"}[name]
    total = math.prod(d for d in x.shape if isinstance(d, int))
    count = math.prod(d for d in source.shape if isinstance(d, int))
    where = chosen_places(c, x, source, windows_of(c), *SELECTIONS[word])
    spots = c.reshape(c(ops.Where(), c(ops.Less(), where, 0), total, where), (count, 1))
    blank = c.broadcast(start, (total + 1,))
    found = c(ops.ScatterND(name), blank, spots, c.reshape(source, (count,)))  # type: ignore[arg-type]
    return c.cast(c.reshape(c.slice(found, 0, 0, total), x.shape), own)


def chosen_places(c: Context, x: Value, source: Value, w: Windows, greatest: bool, last: bool) -> Value:
    """The number of the element that each window chooses; -1 of a window that has none."""
    worst = c.builder.constant(np.array(neutral("max" if greatest else "min", x.dtype)).astype(x.dtype.numpy))
    zeros = (0,) * len(x.shape)
    inside = padded(c, x, worst, w.low, w.high, zeros)
    numbers = c.reshape(c(ops.Iota(dt.int64, (product(x.shape),), 0)), x.shape)
    placed = padded(c, numbers, c.number(-1, dt.int64), w.low, w.high, zeros)
    best: Value | None = None
    where: Value | None = None
    for offset in np.ndindex(*w.sizes):
        part = ops.Slice(tuple(int(k) for k in offset), source.shape, w.strides)
        value, place = c(part, inside), c(part, placed)
        if best is None or where is None:
            best, where = value, place
            continue
        better = c(ops.Greater() if greatest else ops.Less(), value, best)
        if last:
            better = c(ops.LogicalOr(), better, c(ops.Equal(), value, best))
        # An element of the operand comes before what is around it.
        first = c(ops.LogicalAnd(), c(ops.Less(), where, 0), c(ops.GreaterEqual(), place, 0))
        better = c(ops.LogicalOr(), c(ops.LogicalAnd(), better, c(ops.GreaterEqual(), place, 0)), first)
        best, where = c(ops.Where(), better, value, best), c(ops.Where(), better, place, where)
    assert where is not None
    return where
