"""Resampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_ops.words import Border, Interpolation
from weft_torch.context import Context
from weft_torch.converters.network import axes_in
from weft_torch.registry import op


def scales_of(
    c: Context, before: Sequence[Dim], after: Sequence[Dim], given: Sequence[float | None] | None
) -> tuple[float, ...] | None:
    """New size over old size along each axis, where the model says it; one alone that is missing is computed."""
    n = axes_in(c)
    if given is None or all(s is None for s in given):
        return None
    found: list[float] = []
    for scale, m, size in zip(given, before[-n:], after[-n:]):
        if scale is not None:
            found.append(float(scale))
        elif isinstance(m, int) and isinstance(size, int):
            found.append(size / m)
        else:
            raise c.unsupported("a scale for one axis alone, of sizes known only at run time")
    return tuple(found)


@op("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d", "aten._upsample_nearest_exact1d",
    "aten._upsample_nearest_exact2d", "aten._upsample_nearest_exact3d")  # fmt: skip
def nearest(c: Context, x: Value, size: Any, *scales: float | None) -> Value:
    return _nearest(c, x, scales)


@op(*(f"aten.{name}{k}d.vec" for name in ("upsample_nearest", "_upsample_nearest_exact") for k in (1, 2, 3)))
def nearest_vec(c: Context, x: Value, size: Any, scales: Any) -> Value:
    return _nearest(c, x, scales)


def _nearest(c: Context, x: Value, given: Sequence[float | None] | None) -> Value:
    exact = "exact" in c.op_type
    n, shape = axes_in(c), c.result_shape()
    scales = scales_of(c, x.shape, shape, given)
    axes = tuple(range(len(shape) - n, len(shape)))
    places = [
        _places(before, after, scales[k] if scales is not None else None, exact)
        for k, (before, after) in enumerate(zip(x.shape[-n:], shape[-n:]))
    ]
    if all(agrees for _, agrees in places):
        coordinates, rounding = ("half_pixel", "round_prefer_ceil") if exact else ("asymmetric", "floor")
        return c(ops.Resize(shape, "nearest", coordinates, rounding, axes, scales), x)  # type: ignore[arg-type]
    for k, ((table, _), d) in enumerate(zip(places, axes)):
        scale = scales[k] if scales is not None else None
        at = _computed(c, x.shape[d], shape[d], scale, exact) if table is None else c.builder.constant(table)
        x = c.gather(x, at, d)
    return x


def _computed(c: Context, before: Dim, after: Dim, scale: float | None, exact: bool) -> Value:
    """The element that PyTorch takes for each place of an axis of open size, in float32."""
    size = c.cast(c.dim(before), dt.float32)
    ratio = c.div(size, c.cast(c.dim(after), dt.float32)) if scale is None else c.number(1 / scale, dt.float32)
    place = c.cast(c(ops.Iota(dt.int64, (after,))), dt.float32)
    at = c(ops.Floor(), c.mul(c.add(place, 0.5) if exact else place, ratio))
    return c(ops.Minimum(), c.cast(at, dt.int64), c.sub(c.dim(before), 1))


def _places(before: Dim, after: Dim, scale: float | None, exact: bool) -> tuple[np.ndarray[Any, Any] | None, bool]:
    """The element that PyTorch takes for each place, in float32, and whether float64 gives the same; None of sizes
    known only at run time: they agree where no product with the ratio is rounded."""
    if not isinstance(before, int) or not isinstance(after, int):
        return None, scale is not None and (256 / scale).is_integer()
    shift, ratio = 0.5 if exact else 0.0, 1 / scale if scale is not None else before / max(after, 1)
    at, wanted = np.arange(after), np.float32(ratio)
    rounded = np.floor((at.astype(np.float32) + np.float32(shift)) * wanted).astype(np.int64)
    table = np.minimum(rounded, before - 1)
    return table, bool(np.array_equal(table, np.minimum(np.floor((at + shift) * ratio), before - 1)))


MODES: dict[str, Interpolation] = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


def _smooth(c: Context, x: Value, corners: bool, given: Sequence[float | None] | None) -> Value:
    return c(_resize(c, x.shape, c.result_shape(), corners, given), x)


def _resize(
    c: Context, before: Sequence[Dim], shape: tuple[Dim, ...], corners: bool, given: Sequence[float | None] | None
) -> ops.Resize:
    n = axes_in(c)
    mode = next(m for word, m in MODES.items() if f"upsample_{word}" in c.op_type)
    smoothed = "_aa" in c.op_type
    if smoothed and corners:
        raise c.unsupported("antialias with align_corners")
    return ops.Resize(
        shape, mode, "align_corners" if corners else "half_pixel", "round_prefer_floor",
        tuple(range(len(shape) - n, len(shape))), None if corners else scales_of(c, before, shape, given),
        -0.5 if smoothed else -0.75, smoothed, smoothed,
    )  # fmt: skip


_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
           "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip


@op(*(f"aten.{name}" for name in _SMOOTH))
def smooth(c: Context, x: Value, size: Any, corners: bool, *scales: float | None) -> Value:
    return _smooth(c, x, corners, scales)


@op(*(f"aten.{name}.vec" for name in _SMOOTH))
def smooth_vec(c: Context, x: Value, size: Any, corners: bool, scales: Any) -> Value:
    return _smooth(c, x, corners, scales)


@op(*(f"aten.{name}_backward" for name in _SMOOTH))
def smooth_backward(c: Context, gradient: Value, size: Any, before: Any, corners: bool, *scales: float | None) -> Value:
    shape = tuple(c.result_shape())
    made = _resize(c, shape, tuple(gradient.shape), corners, scales)
    x = c(ops.Fill(gradient.dtype, shape, 0))
    (found,) = c.gradients(made, (x,), gradient)
    assert found is not None
    return found


@op("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sampler_backward(
    c: Context, gradient: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool, wanted: Sequence[bool]
) -> Sequence[Value | None]:
    by_x, by_grid = c.gradients(_grid_sample(c, mode, padding, corners), (x, grid), gradient)
    if by_grid is None:  # the nearest element jumps
        by_grid = c(ops.Fill(grid.dtype, grid.shape, 0))
    return by_x if wanted[0] else None, by_grid if wanted[1] else None


def _grid_sample(c: Context, mode: int, padding: int, corners: bool) -> ops.GridSample:
    if (mode, padding) == (2, 1):  # PyTorch clips what is read, Weft and ONNX the place, which differs near the border
        raise c.unsupported("mode bicubic with padding_mode border")
    modes: tuple[Interpolation, ...] = ("linear", "nearest", "cubic")
    borders: tuple[Border, ...] = ("zeros", "border", "reflection")
    return ops.GridSample(modes[mode], borders[padding], corners)


@op("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(c: Context, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    return c(_grid_sample(c, mode, padding, corners), x, grid)


@op("aten.affine_grid_generator")
def affine_grid(c: Context, theta: Value, size: Any, corners: bool) -> Value:
    return c(ops.AffineGrid(tuple(size[2:]), corners), theta)


__all__ = ["scales_of"]
