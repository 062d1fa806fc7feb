"""The words that attributes of operators take, as types, and as tuples for those who check a text."""

from __future__ import annotations

from typing import Literal, get_args

Interpolation = Literal["nearest", "linear", "cubic"]
"""Between elements: the nearest one, two per axis, four per axis."""
Coordinates = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
]  # fmt: skip
"""Where a place of the result lies in the operand, as ONNX names it."""
Nearest = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
"""Which of two elements is the nearest one."""
Border = Literal["zeros", "border", "reflection"]
"""What is read beyond the border."""
PadMode = Literal["constant", "edge", "reflect", "wrap"]
"""What elements are added."""
Reduction = Literal["none", "add", "mul", "min", "max"]
"""How a new element is joined with the old one."""
LossReduction = Literal["none", "sum", "mean"]
"""How losses of places become the result."""
Missing = Literal["right", "left", "node", "feature"]
"""Where NaN goes from a node of a tree: everywhere the same way, as the node says, or as the feature's number says."""
Combine = Literal["sum", "min", "max"]
"""What becomes of the weights of all trees."""

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
"""Every `Interpolation`."""
COORDINATES: tuple[Coordinates, ...] = get_args(Coordinates)
"""Every `Coordinates`."""
NEAREST: tuple[Nearest, ...] = get_args(Nearest)
"""Every `Nearest`."""
BORDERS: tuple[Border, ...] = get_args(Border)
"""Every `Border`."""
PAD_MODES: tuple[PadMode, ...] = get_args(PadMode)
"""Every `PadMode`."""
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
"""Every `Reduction`."""
LOSS_REDUCTIONS: tuple[LossReduction, ...] = get_args(LossReduction)
"""Every `LossReduction`."""
