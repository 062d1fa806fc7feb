"""The operator that changes the layout of a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weft.errors import GraphError
from weft.graph.layout import Layout, blocked
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.tensor.language import Tensor, compute


@dataclass(frozen=True)
class Relayout(Operator):
    """The same value, stored by `layout` (None: row-major)."""

    layout: Layout | None = None
    kind = "injective"
    role = "relayout"

    def infer(self, *types: Type | None) -> Type:
        (x,) = types
        if not isinstance(x, TensorType):
            raise GraphError(f"only tensors have a layout, got {x}")
        if self.layout is not None:
            self.layout.stored_shape(x.shape)
        return x.with_layout(self.layout)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return x if self.layout is None else self.layout.unpack(self.layout.pack(x), x.shape)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        return compute(x.shape, lambda *i: x[i], "relayout")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(2 * 6 * 3, dtype=np.float32).reshape(2, 6, 3)
        yield Sample(Relayout(None), (x,), "row_major")
        yield Sample(Relayout(blocked(3, 1, 4)), (x,), "blocked_padded")
