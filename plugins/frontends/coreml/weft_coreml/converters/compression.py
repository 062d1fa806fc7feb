"""Compressed weights, which become dense constants, and quantised tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft_coreml.context import Context
from weft_coreml.registry import op
from weft_coreml.types import KINDS, count_of, unpacked

TABLES = {2: "UINT1", 4: "UINT2", 16: "UINT4", 64: "UINT6", 256: "UINT8"}
"""Element types of indices by the length of the table that they are for."""


def given(c: Context, name: str) -> Array:
    """A constant operand.

    Raises:
        FrontendError: it is left out.
    """
    found = c.array(name)
    if found is None:
        raise c.error(f"operand '{name}' is missing")
    return found


def kept(c: Context, array: Array) -> Value:
    return c.builder.constant(np.ascontiguousarray(array), c.name)


def along(c: Context, v: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A number, or a vector along an axis, that broadcasts to a shape."""
    if v.size == 1:
        return v.reshape(())
    if v.ndim != 1 or v.size != shape[axis]:
        raise c.error(f"{v.shape} numbers along axis {axis} of {shape}")
    return v.reshape(tuple(v.size if k == axis else 1 for k in range(len(shape))))


@op("constexpr_affine_dequantize")
def affine_dequantize(c: Context) -> Value:
    data, scale, zero = (given(c, name) for name in ("quantized_data", "scale", "zero_point"))
    axis = c.axis(c.integer("axis", 0), max(data.ndim, 1))
    scale, zero = (along(c, v, data.shape, axis) for v in (scale, zero))
    return kept(c, ((data.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)).astype(scale.dtype))


@op("constexpr_cast")
def constexpr_cast(c: Context) -> Value:
    return kept(c, given(c, "source_val").astype(c.dtype_named("output_dtype").numpy))


@op("constexpr_lut_to_dense")
def lut_to_dense(c: Context) -> Value:
    indices, lut = given(c, "indices"), given(c, "lut")
    if c.has("shape"):
        shape = c.ints("shape")
        kind = KINDS.get(TABLES.get(lut.size, ""))
        if kind is None or lut.ndim != 1:
            raise c.error(f"a table of {lut.shape} numbers")
        return kept(c, lut[unpacked(indices.tobytes(), kind, count_of(shape))].reshape(shape))
    return kept(c, looked_up(c, indices, lut, c.integer("vector_axis") if c.has("vector_axis") else None))


def looked_up(c: Context, indices: Array, lut: Array, axis: int | None) -> Array:
    """Elements, or vectors along an axis, of tables that are each for a block of the indices."""
    rank = indices.ndim
    if lut.ndim != rank + 2:
        raise c.error(f"tables {lut.shape} for indices {indices.shape}")
    entries, width = lut.shape[-2:]
    if any(b == 0 or a % b for a, b in zip(indices.shape, lut.shape)) or (width > 1 and axis is None):
        raise c.error(f"tables {lut.shape} for indices {indices.shape}")
    if indices.size and int(indices.max()) >= entries:
        raise c.error(f"index {int(indices.max())} of a table of {entries}")
    c.affordable(indices.size * (rank + 1) // 64, "places in tables")
    at = tuple(
        (np.arange(n) // (n // m)).reshape([n if d == k else 1 for d in range(rank)])
        for k, (n, m) in enumerate(zip(indices.shape, lut.shape))
    )
    found = lut[(*at, indices)]  # [indices…, width]
    if axis is None:
        return np.asarray(found[..., 0])
    d = c.axis(axis, rank)
    moved = np.moveaxis(found, -1, d + 1)
    return np.asarray(moved).reshape((*indices.shape[:d], indices.shape[d] * width, *indices.shape[d + 1 :]))


def dense(c: Context, data: Array, mask: Array) -> Array:
    """The elements that the mask says are not zero, in their places."""
    places = mask != 0
    if int(places.sum()) != data.size:
        raise c.error(f"the mask has {int(places.sum())} places for {data.size} elements")
    found = np.zeros(mask.shape, data.dtype)
    found[places] = data.reshape(-1)
    return found


@op("constexpr_sparse_to_dense")
def sparse_to_dense(c: Context) -> Value:
    data, mask = given(c, "nonzero_data"), given(c, "mask")
    if c.has("shape"):
        shape = c.ints("shape")
        mask = unpacked(mask.tobytes(), KINDS["UINT1"], count_of(shape)).reshape(shape)
    return kept(c, dense(c, data, mask))


def shifted(c: Context, data: Array) -> Array:
    """scale · (data - offset), of which each number is for a block."""
    scale = given(c, "scale")
    if scale.ndim != data.ndim or any(b == 0 or a % b for a, b in zip(data.shape, scale.shape)):
        raise c.error(f"scales {scale.shape} for data {data.shape}")

    def spread(v: Array) -> Array:
        for k, n in enumerate(data.shape):
            v = v if v.shape[k] in (1, n) else np.repeat(v, n // v.shape[k], k)
        return v

    found = data.astype(scale.dtype)
    offset = c.array("offset")
    if offset is not None:
        if offset.shape != scale.shape:
            raise c.error(f"offsets {offset.shape}, scales {scale.shape}")
        found = found - spread(offset).astype(scale.dtype)
    return found * spread(scale)


@op("constexpr_blockwise_shift_scale")
def blockwise_shift_scale(c: Context) -> Value:
    return kept(c, shifted(c, given(c, "data")))


@op("constexpr_sparse_blockwise_shift_scale")
def sparse_blockwise_shift_scale(c: Context) -> list[Value]:
    mask = given(c, "data_mask")
    found = shifted(c, dense(c, given(c, "nonzero_data"), mask))
    return [kept(c, mask), kept(c, found[mask != 0])]


@op("constexpr_lut_to_sparse")
def lut_to_sparse(c: Context) -> list[Value]:
    mask, lut = given(c, "indices_mask"), given(c, "lut")
    axis = c.integer("vector_axis") if c.has("vector_axis") else None
    found = looked_up(c, dense(c, given(c, "indices_nonzero_data"), mask), lut, axis)
    whole = mask if axis is None else np.repeat(mask, lut.shape[-1], c.axis(axis, mask.ndim))
    return [kept(c, whole), kept(c, found[whole != 0])]


# -- at run time ------------------------------------------------------------------------------------------------------


def _parameters(c: Context, x: Value) -> tuple[int, list[Any]]:
    rank = len(x.shape)
    axis = c.axis(c.integer("axis"), rank) if c.has("axis") and rank else 0
    given = (c.of("scale"), c.maybe("zero_point"))
    # One number for all, or a vector along the axis.
    scale, zero = (v if v is None or (len(v.shape) == 1 and rank) else c.reshape(v, ()) for v in given)
    return axis, [scale, zero]


@op("quantize")
def quantize(c: Context) -> Value:
    x = c.of("input")
    axis, (scale, zero) = _parameters(c, x)
    to = c.dtype_named("output_dtype")
    return c(ops.Quantize(to, axis), x, scale, zero)


@op("dequantize")
def dequantize(c: Context) -> Value:
    x = c.of("input")
    axis, (scale, zero) = _parameters(c, x)
    return c(ops.Dequantize(axis), x, scale, zero)


__all__ = ["dense", "looked_up", "shifted"]
