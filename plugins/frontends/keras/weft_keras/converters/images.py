"""Images: blocks, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft.tensor.language import Dim
from weft_keras.converters.network import arranged
from weft_keras.registry import layer, operation

if TYPE_CHECKING:
    from weft_keras.call import Call


@operation("DepthToSpace", "SpaceToDepth")
def blocks(c: Call) -> Value:
    op = ops.DepthToSpace if c.op_type == "DepthToSpace" else ops.SpaceToDepth
    return arranged(c, c.tensor("x"), lambda x: c(op(int(c.attribute("block_size"))), x))


@operation("Resize")
def resize(c: Call) -> Value:
    return resized(c, c.tensor("images"), c.attribute("size"))


@layer("Resizing")
def resizing(c: Call) -> Value:
    return resized(c, c.tensor("data", c.out), (c.attribute("height"), c.attribute("width")))


def resized(c: Call, x: Value, size: Sequence[Any]) -> Value:
    mode = c.attribute("interpolation")
    if len(x.shape) != 4:
        raise c.unsupported(f"of {len(x.shape)} dimensions")
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise c.unsupported(f"interpolation '{mode}'")
    if not c.out.is_float:
        raise c.unsupported(f"of {x.dtype}")
    wanted = tuple(map(int, size))

    def apply(x: Value) -> Value:
        if c.attribute("crop_to_aspect_ratio"):
            x = cropped(c, x, wanted)
        elif c.attribute("pad_to_aspect_ratio"):
            x = framed(c, x, wanted)
        return c(resize_operator(c, (*x.shape[:2], *wanted), mode), x)

    return c.cast(arranged(c, c.wide(x) if x.dtype.is_float else c.cast(x, dt.float32), apply), c.out)


def resize_operator(c: Call, shape: Sequence[Dim], mode: str) -> ops.Resize:
    """With filters as Keras' backend has them: PyTorch's cubic one has another coefficient than the others'."""
    smooth = bool(c.attribute("antialias"))
    if mode == "nearest":
        return ops.Resize(tuple(shape), "nearest", "half_pixel", "round_prefer_ceil")
    if mode == "bilinear":
        return ops.Resize(tuple(shape), "linear", "half_pixel", exclude_outside=smooth, antialias=smooth)
    torch = c.importer.keras.backend.backend() == "torch"
    coefficient = -0.75 if torch and not smooth else -0.5
    return ops.Resize(tuple(shape), "cubic", "half_pixel", cubic_a=coefficient,
                      exclude_outside=smooth or not torch, antialias=smooth)  # fmt: skip


def parted(c: Call, x: Value, wanted: Sequence[int]) -> tuple[int, int, int, int]:
    """Height and width of images, and those that have the ratio of the wanted ones for the other's sake."""
    height, width = c.fixed(x.shape[2:], "a ratio of sizes")
    return height, width, int(float(width * wanted[0]) / wanted[1]), int(float(height * wanted[1]) / wanted[0])


def cropped(c: Call, x: Value, wanted: Sequence[int]) -> Value:
    """The middle of images, of the wanted ratio."""
    height, width, high, wide = parted(c, x, wanted)
    for axis, size, kept in ((2, height, max(min(height, high), 1)), (3, width, max(min(width, wide), 1))):
        x = c.slice(x, axis, (size - kept) // 2, kept)
    return x


def framed(c: Call, x: Value, wanted: Sequence[int]) -> Value:
    """Images inside of a frame, of the wanted ratio; as many elements are added before as behind."""
    if c.attribute("fill_mode") != "constant":
        raise c.unsupported(f"fill_mode '{c.attribute('fill_mode')}'")
    height, width, high, wide = parted(c, x, wanted)
    more = [(max(size, whole) - size) // 2 for size, whole in ((height, high), (width, wide))]
    if not any(more):
        return x
    return c(ops.Pad((0, 0, *more, 0, 0, *more)), x, c.number(float(c.attribute("fill_value")), x.dtype))


@layer("RandomCrop")
def random_crop(c: Call) -> Value:
    """Images as they are: crops are made in training. Keras gives the result the size of the crops all the same."""
    c.checked = False
    return c.tensor("data")


@layer("Discretization")
def discretization(c: Call) -> Value:
    """How many boundaries are not above an element."""
    if c.attribute("output_mode") != "int" or not c.out.is_integer:
        raise c.unsupported(f"output_mode '{c.attribute('output_mode')}'")
    x = c.wide(c.tensor("inputs", dt.float32))
    bounds = np.asarray(c.attribute("bin_boundaries"), np.float32)
    x = c.reshape(x, (*x.shape, 1))
    below = c.cast(c(ops.GreaterEqual(), x, c.builder.constant(bounds, "boundaries")), c.out)
    y = c.sum(below, (len(x.shape) - 1,))
    return c.reshape(y, y.shape[:-1])
