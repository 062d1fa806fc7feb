"""Images: resizing, sampling at given places, regions, blocks of pixels as channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.errors import GraphError
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Operator, Sample, algorithm
from weft.tensor.language import Dim, as_dim
from weft_ops.composing import Composer
from weft_ops.examples import floats, integers
from weft_ops.regions import RoiAlign, RoiAlignGradient, RoiAlignGreatest
from weft_ops.resizing import Resize
from weft_ops.sampling import (
    AffineGrid,
    GridSample,
    WeightedGather,
    WeightedScatter,
)
from weft_ops.shapes import (
    dim_floordiv,
    expect_rank,
    operands,
    static,
)


@dataclass(frozen=True)
class DepthToSpace(Operator):
    """Channels of x [n, c, h, w] become blocks of pixels: [n, c/block², h·block, w·block]; mode DCR or CRD orders
    channels."""

    block: int
    mode: Literal["DCR", "CRD"] = "DCR"
    kind = "composite"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_rank(x, 4)
        n, c, h, w = x.shape
        if isinstance(c, int) and c % self.block**2:
            raise GraphError(f"channels: expected a multiple of block² = {self.block**2}, got {c}")
        return TensorType(x.dtype, (n, dim_floordiv(c, self.block**2), as_dim(h * self.block), as_dim(w * self.block)))

    def shapes(self, shape: Sequence[Dim]) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
        n, c, h, w = shape
        k, rest = self.block, dim_floordiv(c, self.block**2)
        return (
            ((n, k, k, rest, h, w), (0, 3, 4, 1, 5, 2))
            if self.mode == "DCR"
            else ((n, rest, k, k, h, w), (0, 1, 4, 2, 5, 3))
        )

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        shape, order = self.shapes(x.shape)
        return np.ascontiguousarray(
            x.reshape(static(shape))
            .transpose(order)
            .reshape(x.shape[0], -1, x.shape[2] * self.block, x.shape[3] * self.block)
        )

    @algorithm("decompose")
    def moved(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        shape, order = self.shapes(x.shape)
        return c.reshape(c.transpose(c.reshape(x, shape), order), self.infer(x.type).shape)

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(2), (floats((1, 8, 2, 3)),), "DCR")
        yield Sample(cls(2, "CRD"), (integers((2, 4, 2, 2)),), "CRD")


@dataclass(frozen=True)
class SpaceToDepth(Operator):
    """Blocks of pixels of x [n, c, h, w] become channels: [n, c·block², h/block, w/block]; the inverse of DepthToSpace
    in its mode."""

    block: int
    mode: Literal["DCR", "CRD"] = "DCR"
    kind = "composite"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_rank(x, 4)
        n, c, h, w = x.shape
        for name, d in (("height", h), ("width", w)):
            if isinstance(d, int) and d % self.block:
                raise GraphError(f"{name}: expected a multiple of block = {self.block}, got {d}")
        return TensorType(
            x.dtype, (n, as_dim(c * self.block**2), dim_floordiv(h, self.block), dim_floordiv(w, self.block))
        )

    def split(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        n, c, h, w = shape
        return (n, c, dim_floordiv(h, self.block), self.block, dim_floordiv(w, self.block), self.block)

    @property
    def order(self) -> tuple[int, ...]:
        return (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        n, _, h, w = x.shape
        return np.ascontiguousarray(
            x.reshape(static(self.split(x.shape)))
            .transpose(self.order)
            .reshape(n, -1, h // self.block, w // self.block)
        )

    @algorithm("decompose")
    def moved(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        return c.reshape(c.transpose(c.reshape(x, self.split(x.shape)), self.order), self.infer(x.type).shape)

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(2), (floats((1, 2, 4, 6)),), "DCR")
        yield Sample(cls(2, "CRD"), (integers((2, 2, 2, 2)),), "CRD")


__all__ = [
    "AffineGrid",
    "DepthToSpace",
    "GridSample",
    "Resize",
    "RoiAlign",
    "RoiAlignGradient",
    "RoiAlignGreatest",
    "SpaceToDepth",
    "WeightedGather",
    "WeightedScatter",
]
