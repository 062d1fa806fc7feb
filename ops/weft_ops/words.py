"""The words that attributes of operators take, as types, and as tuples for those who check a text."""

from __future__ import annotations

from typing import Literal, get_args

Interpolation = Literal["nearest", "linear", "cubic"]
Coordinates = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
]  # fmt: skip
Nearest = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
Border = Literal["zeros", "border", "reflection"]
PadMode = Literal["constant", "edge", "reflect", "wrap"]
Reduction = Literal["none", "add", "mul", "min", "max"]
LossReduction = Literal["none", "sum", "mean"]
Missing = Literal["right", "left", "node"]

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
COORDINATES: tuple[Coordinates, ...] = get_args(Coordinates)
NEAREST: tuple[Nearest, ...] = get_args(Nearest)
BORDERS: tuple[Border, ...] = get_args(Border)
PAD_MODES: tuple[PadMode, ...] = get_args(PadMode)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
LOSS_REDUCTIONS: tuple[LossReduction, ...] = get_args(LossReduction)
