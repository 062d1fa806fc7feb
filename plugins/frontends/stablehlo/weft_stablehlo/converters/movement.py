"""Operations that move elements: of complex numbers both parts alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.shapes import dim_expr, dim_max, dim_min
from weft_stablehlo.context import Complex, Context
from weft_stablehlo.registry import op


def moving(*names: str) -> Callable[[Callable[[Context, Value], Value]], Any]:
    """Registers what moves the elements of operand 0."""

    def register(function: Callable[[Context, Value], Value]) -> Any:
        def convert(c: Context) -> Any:
            found = [function(c, x) for x in c.parts(0)]
            return Complex(found) if c.is_complex(0) else found[0]

        op(*names)(convert)
        return function

    return register


@op("constant", "chlo.constant")
def constant(c: Context) -> Any:
    (type,) = c.results
    array = c.constant_attribute("value", type)
    if type.complex:
        parts = (np.array(p, order="C") for p in (array.real, array.imag))
        return Complex([c.builder.constant(p, c.name) for p in parts])
    return c.builder.constant(array, c.name)


@op("iota")
def iota(c: Context) -> Any:
    return counted(c, c.result_shape)


def counted(c: Context, shape: tuple[Dim, ...]) -> Any:
    """Numbers from 0 on along an axis."""
    axis = c.attribute("iota_dimension")
    (type,) = c.results
    wide = type.dtype.is_float or type.dtype.bits < 32
    found = c.cast(c(ops.Iota(dt.int64 if wide else type.dtype, shape, axis)), type.dtype)
    return Complex([found, c.broadcast(c.number(0, type.dtype), shape)]) if type.complex else found


@moving("reshape")
def reshape(c: Context, x: Value) -> Value:
    return c.reshape(x, c.result_shape)


@moving("transpose")
def transpose(c: Context, x: Value) -> Value:
    return c.transpose(x, c.integers("permutation"))


@moving("broadcast_in_dim")
def broadcast_in_dim(c: Context, x: Value) -> Value:
    return placed(c, x, c.integers("broadcast_dimensions"), c.result_shape)


@moving("broadcast")
def broadcast(c: Context, x: Value) -> Value:
    return c.broadcast(x, c.result_shape)


def placed(c: Context, x: Value, axes: tuple[int, ...], shape: tuple[Dim, ...]) -> Value:
    """`x`, whose axes are these of the result, repeated to its shape."""
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    x = c.transpose(x, order)
    own: list[Dim] = [1] * len(shape)
    for k, axis in enumerate(sorted(axes)):
        own[axis] = x.shape[k]
    return c.broadcast(c.reshape(x, tuple(own)), shape)


@moving("reverse")
def reverse(c: Context, x: Value) -> Value:
    for axis in c.integers("dimensions"):
        x = c.reversed(x, axis)
    return x


@moving("slice")
def slice_(c: Context, x: Value) -> Value:
    starts, limits, steps = (c.integers(n) for n in ("start_indices", "limit_indices", "strides"))
    sizes = tuple(-(-max(b - a, 0) // s) for a, b, s in zip(starts, limits, steps))
    return c(ops.Slice(starts, sizes, steps), x)


@op("concatenate")
def concatenate(c: Context) -> Any:
    axis = c.attribute("dimension")
    several = [c.parts(k) for k in range(c.count)]
    found = []
    for parts in zip(*several):
        kept = [p for p in parts if p.shape[axis] != 0] or list(parts[:1])
        found.append(c.concat(kept, axis))
    return Complex(found) if c.is_complex(0) else found[0]


@op("pad")
def pad(c: Context) -> Any:
    low, high, inner = (c.integers(n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    found = [padded(c, x, v, low, high, inner) for x, v in zip(c.parts(0), c.parts(1), strict=True)]
    return Complex(found) if c.is_complex(0) else found[0]


def padded(
    c: Context, x: Value, value: Value, low: tuple[Dim, ...], high: tuple[Dim, ...], inner: tuple[int, ...]
) -> Value:
    """`x` with a value between its elements and around it; what is negative crops."""
    for axis, count in enumerate(inner):
        if count and x.shape[axis] != 0:
            x = spread(c, x, axis, count, value)
    if all(isinstance(p, int) and p == 0 for p in (*low, *high)):
        return x
    return c(ops.Pad((*low, *high)), x, value)


def spread(c: Context, x: Value, axis: int, count: int, value: Value) -> Value:
    """`count` times a value between the elements of an axis."""
    size = x.shape[axis]
    rank = len(x.shape)
    apart = c.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    pads = [0] * (2 * (rank + 1))
    pads[rank + 1 + axis + 1] = count
    wide = c(ops.Pad(tuple(pads)), apart, value)
    long = c.importer.as_dim(dim_expr(size) * (count + 1)) if not isinstance(size, int) else size * (count + 1)
    flat = c.reshape(wide, (*x.shape[:axis], long, *x.shape[axis + 1 :]))
    kept = c.importer.as_dim(dim_expr(long) - count) if not isinstance(long, int) else long - count
    return c.slice(flat, axis, 0, kept)


@op("dynamic_slice")
def dynamic_slice(c: Context) -> Any:
    sizes = c.integers("slice_sizes")
    shape = c.shape(0)
    starts = [at(c, 1 + k, n, s) for k, (n, s) in enumerate(zip(shape, sizes))]
    found = [c(ops.Slice(tuple(starts), sizes), x) for x in c.parts(0)]
    return Complex(found) if c.is_complex(0) else found[0]


def at(c: Context, k: int, size: Dim, part: Dim) -> Dim:
    """Operand k as where a part of an axis begins, moved so that it lies inside."""
    room = (
        size - part
        if isinstance(size, int) and isinstance(part, int)
        else c.importer.as_dim(dim_expr(size) - dim_expr(part))
    )
    if room == 0:
        return 0
    known = c.known(k)
    if known is not None:
        (start,) = known.dims()
        return dim_max(0, dim_min(start, room))
    x = c.place_value(c.value(k))
    if isinstance(room, int):
        (start,) = c.sizes(c.clamped(c.reshape(x, (1,)), 0, room), "a place")
        return start
    (start,) = c.sizes(c(ops.Maximum(), c.reshape(x, (1,)), 0), "a place")
    return dim_min(start, room)


@op("dynamic_update_slice")
def dynamic_update_slice(c: Context) -> Any:
    if c.empty(c.shape(1)):
        return c.operands[0]
    found = [updated(c, x, y) for x, y in zip(c.parts(0), c.parts(1), strict=True)]
    return Complex(found) if c.is_complex(0) else found[0]


def updated(c: Context, x: Value, y: Value) -> Value:
    """`x` with `y` written at a place: each element of x asks which element of y it becomes, if any, so that all is one
    kernel."""
    inside = None
    for axis, (size, part) in enumerate(zip(x.shape, y.shape)):
        if size == part:
            continue
        start = c.place_value(c.value(2 + axis))
        room = c.dim(c.importer.as_dim(dim_expr(size) - dim_expr(part)))
        start = c(ops.Minimum(), c(ops.Maximum(), start, 0), room)
        place = c.sub(c(ops.Iota(dt.int64, (size,), 0)), start)
        found = c(ops.LogicalAnd(), c(ops.GreaterEqual(), place, 0), c(ops.Less(), place, c.dim(part)))
        found = c.reshape(found, (size, *(1,) * (len(x.shape) - axis - 1)))
        inside = found if inside is None else c(ops.LogicalAnd(), inside, found)
        nearest = c(ops.Minimum(), c(ops.Maximum(), place, 0), c.dim(c.importer.as_dim(dim_expr(part) - 1)))
        y = c.gather(y, nearest, axis)
    return y if inside is None else c(ops.Where(), inside, y, x)
