"""Resampling of images."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.identity import Require
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_onnx.converters.network import add_bias
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op
from weft_ops.shapes import axis_of, dim_expr, product, static
from weft_ops.words import BORDERS, COORDINATES, INTERPOLATIONS, NEAREST, Interpolation

# What GridSample calls them: since operator set 20 as Resize does.
INTERPOLATION_WORDS: dict[str, Interpolation] = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "nearest": "nearest",
    "linear": "linear",
    "cubic": "cubic",
}


@onnx_op("Resize", versions=(11, 10_000))
def resize(c: Context) -> Value:
    x = c.value(0)
    rank = len(x.shape)
    axes = c.integers("axes")
    chosen = tuple(range(rank)) if axes is None else tuple(axis_of(a, rank) for a in axes)
    if c.string("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise c.unsupported("coordinate_transformation_mode tf_half_pixel_for_nn")
    coordinates = c.choice("coordinate_transformation_mode", "half_pixel", COORDINATES)
    roi = c.optional(1) if coordinates == "tf_crop_and_resize" else None
    # An empty tensor stands for an absent one.
    by_scales = c.given(2) and c.shape(2) != (0,)
    shape, scales, scale_values = _by_scales(c, x, 2, chosen, roi) if by_scales else _by_sizes(c, x, chosen)
    op = ops.Resize(
        shape,
        c.choice("mode", "nearest", INTERPOLATIONS),
        coordinates,
        c.choice("nearest_mode", "round_prefer_floor", NEAREST),
        axes and chosen,
        scales,
        c.real("cubic_coeff_a", -0.75),
        c.flag("exclude_outside"),
        c.flag("antialias"),
        c.real("extrapolation_value", 0.0),
    )
    return c(op, x, scale_values, roi)


@onnx_op("Upsample", "Resize", versions=(7, 10))
def upsample(c: Context) -> Value:
    x = c.value(0)
    if c.op_type == "Upsample" and c.version < 9:
        given = c.reals("scales") or ()
        shape: tuple[Dim, ...] = tuple(_scaled(d, s) for d, s in zip(x.shape, given))
        scales: tuple[float, ...] | None = given
        values = None
    else:
        shape, scales, values = _by_scales(c, x, 1, tuple(range(len(x.shape))), None)
    mode = c.choice("mode", "nearest", INTERPOLATIONS)
    return c(ops.Resize(shape, mode, "asymmetric", "floor", None, scales), x, values, None)


def _scaled(d: Dim, scale: float) -> Dim:
    if isinstance(d, int):
        return math.floor(d * scale)
    if scale == int(scale):
        return d * int(scale)
    numerator, denominator = scale.as_integer_ratio()
    return d * numerator // denominator


def _by_scales(
    c: Context, x: Value, k: int, chosen: tuple[int, ...], roi: Value | None
) -> tuple[tuple[Dim, ...], tuple[float, ...] | None, Value | None]:
    """The new shape, the scales, and the scales as data if they are known only at run time."""
    shape = list(x.shape)
    known = c.constant(k)
    if known is not None and roi is None:
        scales = tuple(float(s) for s in known)
        for axis, s in zip(chosen, scales):
            shape[axis] = _scaled(x.shape[axis], s)
        return tuple(shape), scales, None
    value = c.value(k)
    old = c.cast(c.vector([x.shape[a] for a in chosen]), dt.float32)
    if roi is not None:
        # The region's share of the old size is scaled.
        n = len(chosen)
        region = c.cast(roi, dt.float32)
        old = c.mul(old, c.sub(c.slice(region, 0, n, n), c.slice(region, 0, 0, n)))
    value = _positive(c, c.cast(value, dt.float32), "a scale")
    new = c.whole(c(ops.Floor(), c.mul(old, value)))
    for axis, d in zip(chosen, c.sizes(new, "the scales")):
        shape[axis] = d
    return tuple(shape), None, value


def _positive(c: Context, x: Value, what: str) -> Value:
    """Floats, each of which must be greater than 0 and finite."""
    good = c(ops.LogicalAnd(), c(ops.Greater(), x, 0.0), c(ops.Less(), x, float("inf")))
    (bad,) = c.sizes(c(ops.ReduceSum(None, False), c.cast(c(ops.LogicalNot(), good), dt.int64)), what)
    return c.required(
        x, Require(bad, None, 0, f"{what} is not positive and finite in {{0}} place(s)", (bad,), c.op_type)
    )


def _by_sizes(
    c: Context, x: Value, chosen: tuple[int, ...]
) -> tuple[tuple[Dim, ...], tuple[float, ...] | None, Value | None]:
    shape = list(x.shape)
    policy = c.string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        sizes = c.dims(3, "the sizes")
        if sizes is None:
            raise c.error("neither scales nor sizes are given")
        for axis, d in zip(chosen, sizes):
            shape[axis] = d
        return tuple(shape), None, None
    if policy not in ("not_larger", "not_smaller"):
        raise c.error(f"keep_aspect_ratio_policy is '{policy}', expected stretch, not_larger or not_smaller")
    old = c.cast(c.vector([x.shape[a] for a in chosen]), dt.float32)
    ratios = c.div(c.cast(c.value(3), dt.float32), old)
    ratio = c((ops.ReduceMin if policy == "not_larger" else ops.ReduceMax)(None, False), ratios)
    new = c.whole(c(ops.Floor(), c.add(c.mul(old, ratio), 0.5)))
    for axis, d in zip(chosen, c.sizes(new, "the sizes")):
        shape[axis] = d
    return tuple(shape), None, c.broadcast(ratio, (len(chosen),))


@onnx_op("GridSample")
def grid_sample(c: Context) -> Value:
    mode = INTERPOLATION_WORDS[c.choice("mode", "linear", tuple(INTERPOLATION_WORDS))]
    padding = c.choice("padding_mode", "zeros", BORDERS)
    return c(ops.GridSample(mode, padding, c.flag("align_corners")), c.value(0), c.value(1))


@onnx_op("RoiAlign")
def roi_align(c: Context) -> Value:
    # Before version 16 there was no shift by half a pixel.
    coordinates = c.string("coordinate_transformation_mode", "half_pixel" if c.version >= 16 else "output_half_pixel")
    op = ops.RoiAlign(
        c.integer("output_height", 1), c.integer("output_width", 1), c.integer("sampling_ratio"),
        c.real("spatial_scale", 1.0),
        coordinates == "half_pixel", c.string("mode", "avg") == "max",
    )  # fmt: skip
    x = c.value(0)
    return c(op, x, c.value(1), c.within(c.value(2), 0, as_dim(dim_expr(x.shape[0]) - 1), "batch index"))


@onnx_op("AffineGrid")
def affine_grid(c: Context) -> Value:
    """theta [n, d, d + 1] times the places of every element of the grid, from -1 to 1, the last axis first."""
    theta = c.value(0)
    size = c.dims(1, "the size")
    assert size is not None
    if len(size) not in (4, 5):
        raise c.error(f"the size: expected 4 or 5 numbers, got {len(size)}")
    n, _, *spatial = size
    theta = c.sized(theta, n, theta.shape[0], "the size says {0} picture(s), theta has {1}")
    rank = len(spatial)
    places: list[Any] = []
    for k, d in enumerate(spatial):
        line = c.cast(c(ops.Iota(theta.dtype, (d,))), theta.dtype)
        count = c.cast(c.dim(d), theta.dtype)
        if c.flag("align_corners"):
            # One element lies at -1: the divisor does not matter.
            place = c.sub(c.div(c.mul(line, 2.0), c(ops.Maximum(), c.sub(count, 1.0), 1.0)), 1.0)
        else:
            place = c.sub(c.div(c.add(c.mul(line, 2.0), 1.0), count), 1.0)
        shape = [d if j == k else 1 for j in range(rank)]
        places.append(c.broadcast(c.reshape(place, (*shape, 1)), (*spatial, 1)))
    ones = c(ops.Fill(theta.dtype, (*spatial, 1), 1.0))
    points = c.reshape(c.concat([*reversed(places), ones], rank), (-1, rank + 1))
    return c.reshape(c(ops.MatMul(), points, c.transpose(theta, (0, 2, 1))), (n, *spatial, rank))


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(c: Context) -> Value:
    """Triangles, evenly spaced in mels, over the bins of a spectrum."""
    dtype = c.dtype("output_datatype", dt.float32)
    bins, length, rate = (
        c.dims(0, "num_mel_bins"),
        c.dims(1, "dft_length"),
        c.within(c.value(2), 1, None, "the sample rate"),
    )
    assert bins is not None and length is not None
    low, high = (c.cast(c.reshape(c.value(k), ()), dt.float32) for k in (3, 4))
    spectrum = length[0] // 2 + 1

    def mel(hz: Value) -> Value:
        return c.mul(c(ops.Log(), c.add(c.div(hz, 700.0), 1.0)), 2595.0 / math.log(10))

    edge = c(ops.Iota(dt.float32, (bins[0] + 2,)))
    step = c.div(c.sub(mel(high), mel(low)), c.cast(c.dim(bins[0] + 2), dt.float32))
    hz = c.mul(c.sub(c(ops.Exp(), c.mul(c.add(c.mul(edge, step), mel(low)), math.log(10) / 2595.0)), 1.0), 700.0)
    scaled = c.div(c.mul(hz, c.cast(c.dim(length[0] + 1), dt.float32)), c.cast(c.reshape(rate, ()), dt.float32))
    places = c.cast(c(ops.Floor(), scaled), dt.int64)
    left, centre, right = (c.cast(c.slice(places, 0, k, bins[0]), dt.float32) for k in range(3))
    frequency = c(ops.Iota(dt.float32, (spectrum, 1)))
    zero, one = c.number(0.0, dt.float32), c.number(1.0, dt.float32)
    rise, fall = c.sub(centre, left), c.sub(right, centre)
    up = c(ops.Where(), c(ops.LessEqual(), rise, 0.0), one, c.div(c.sub(frequency, left), c(ops.Maximum(), rise, 1.0)))
    down = c.div(c.sub(right, frequency), c(ops.Maximum(), fall, 1.0))
    up_inside = c(ops.LogicalAnd(), c(ops.LessEqual(), left, frequency), c(ops.LessEqual(), frequency, centre))
    down_inside = c(ops.LogicalAnd(), c(ops.Less(), centre, frequency), c(ops.Less(), frequency, right))
    return c.cast(c(ops.Where(), up_inside, up, c(ops.Where(), down_inside, down, zero)), dtype)


@onnx_op("DeformConv")
def deform_conv(c: Context) -> Value:
    """x sampled at the moved places of every tap, then a product with the weights."""
    x, w, offset = c.value(0), c.value(1), c.value(2)
    if len(x.shape) != 4:
        raise c.unsupported(f"{len(x.shape) - 2} spatial axes")
    if not w.tensor.is_static:
        raise c.unsupported("weights of unknown size")
    kernel, places = static(w.shape[2:]), offset.shape[2:]
    strides, dilations = c.integers("strides") or (1, 1), c.integers("dilations") or (1, 1)
    pads = c.integers("pads") or (0, 0, 0, 0)
    groups, parts = c.integer("group", 1), c.integer("offset_group", 1)
    n, channels, *size = x.shape
    taps = math.prod(kernel)
    c.affordable(taps, f"places in a kernel of {list(kernel)}")
    images = as_dim(n * parts)
    # offset [n, parts · taps · 2, oh, ow]: for every tap how far it is moved down, then right.
    moved = c.reshape(offset, (images, taps, 2, *places))
    rows = product([taps, *places])
    near: list[tuple[Value, Value]] = []
    for d in range(2):
        tap = np.arange(taps) // kernel[1] if d == 0 else np.arange(taps) % kernel[1]
        start = c.builder.constant((tap * dilations[d] - pads[d]).astype(x.dtype.numpy).reshape(taps, 1, 1))
        line = c.mul(c(ops.Iota(x.dtype, (places[d], *([1] * (1 - d))))), float(strides[d]))
        at = c.reshape(c.add(c.add(c.pick(moved, 2, d), start), line), (images, rows))
        low = c(ops.Floor(), at)
        near.append((c.cast(low, dt.int64), c.sub(at, low)))
    per_part = as_dim(channels // parts)
    flat = c.reshape(x, (images, per_part, product(size)))
    # Per axis the elements below and above: safe index, and weight, which is zero outside.
    ends: list[list[tuple[Value, Value]]] = []
    for (low, fraction), extent in zip(near, size):
        pair = []
        for index, share in ((low, c.sub(1.0, fraction)), (c.add(low, 1), fraction)):
            inside = c(ops.LogicalAnd(), c(ops.GreaterEqual(), index, 0), c(ops.Less(), index, c.dim(extent)))
            safe = c(ops.Maximum(), c(ops.Minimum(), index, c.sub(c.dim(extent), 1)), 0)
            pair.append((safe, c(ops.Where(), inside, share, 0.0)))
        ends.append(pair)
    corners: list[Value] = []
    for (y, down), (z, right) in itertools.product(*ends):
        at = c.reshape(c.add(c.mul(y, c.dim(size[1])), z), (images, 1, rows))
        taken = c(ops.GatherElements(2), flat, c.broadcast(at, (images, per_part, rows)))
        corners.append(c.mul(taken, c.reshape(c.mul(down, right), (images, 1, rows))))
    sampled = c.add(c.add(corners[0], corners[1]), c.add(corners[2], corners[3]))
    if c.given(4):
        sampled = c.mul(sampled, c.reshape(c.value(4), (images, 1, rows)))
    width = as_dim(channels // groups * taps)
    columns = c.reshape(sampled, (n, groups, width, product(places)))
    weights = c.reshape(w, (groups, as_dim(w.shape[0] // groups), width))
    result = c.reshape(c(ops.MatMul(), weights, columns), (n, w.shape[0], *places))
    return add_bias(c, result, c.optional(3))
