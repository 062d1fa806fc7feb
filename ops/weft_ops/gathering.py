"""Operators that take elements by indices, which are data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, select
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Gradients, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute
from weft_ops.examples import floats, integers
from weft_ops.filling import Fill
from weft_ops.moving import Movement, composer
from weft_ops.shapes import (
    axis_of,
    expect_kind,
    operands,
    show,
)


def safe_index(index: Expr, size: Dim) -> Expr:
    """An index given as data, in range: negative ones count from the end, what is beyond is clamped."""
    i = cast_to(index, dt.int64)
    if index.dtype.kind == "int":
        i = select(i < 0, i + size, i)
    return e.maximum(e.minimum(i, as_dim(size - 1)), 0)


def clamp_indices(indices: Array, size: int) -> Array:
    """`safe_index` by numpy."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, max(size - 1, 0))


def added_rows(builder: GraphBuilder, like: Value, indices: Value, rows: Value) -> Value:
    """A value of the type of `like` whose slices along the first axis are the sums of those of `rows`
    [indices.shape…, like.shape[1:]…] that have their index: in the order of the indices, so that equal operands give
    equal sums; in float32 for narrower floats."""
    from weft_ops.scattering import ScatterND  # which imports this module

    c = composer(builder)
    wide = c.wide(rows)
    vectors = c.reshape(indices, (*indices.shape, 1))
    return c.cast(c(ScatterND("add"), c(Fill(wide.dtype, like.shape, 0)), vectors, wide), like.dtype)


@dataclass(frozen=True)
class Gather(Movement):
    """Slices of x along `axis` by integer indices (numpy's take): x.shape[:axis] + indices.shape + x.shape[axis + 1:].

    Negative indices count from the end; those out of range are clamped.
    """

    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, ("int", "uint"), "indices")
        axis = axis_of(self.axis, x.rank)
        return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The sums of the slices that each index was given for, as an embedding's: `added_rows`."""
        (x, indices), (g,) = node.inputs, gradients
        assert x is not None and indices is not None and g is not None
        c, axis, r = composer(builder), axis_of(self.axis, len(x.shape)), len(indices.shape)
        if axis == 0:
            return added_rows(builder, x, indices, g), None
        # The axis first, so that whole slices are added.
        order = (*range(axis, axis + r), *range(axis), *range(axis + r, len(g.shape)))
        back = (*range(1, axis + 1), 0, *range(axis + 1, len(x.shape)))
        like = c(Fill(x.dtype, (x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :]), 0))
        return c.transpose(added_rows(builder, like, indices, c.transpose(g, order)), back), None

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        return np.asarray(np.take(x, clamp_indices(indices, x.shape[self.axis]), axis=self.axis))

    @algorithm("tensors")
    def direct(self, x: Tensor, indices: Tensor) -> Tensor:
        axis, r = axis_of(self.axis, x.rank), indices.rank

        def formula(*i: Expr) -> Expr:
            return x[(*i[:axis], safe_index(indices[i[axis : axis + r]], x.shape[axis]), *i[axis + r :])]

        return compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), formula, "gather")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(0), (floats((5, 3)), np.array([[0, -1], [4, 2]])), "rows")
        yield Sample(cls(1), (floats((2, 4, 3)), np.array([3, 0, -4], np.int32)), "middle")
        yield Sample(cls(-1), (integers((2, 4)), np.array(2)), "scalar")
        yield Sample(cls(0), (floats((3, 2)), np.array([7, -9])), "clamped")


@dataclass(frozen=True)
class GatherElements(Movement):
    """numpy's take_along_axis: out[i…] = x[i… with indices[i…] at `axis`]; indices as in Gather."""

    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, ("int", "uint"), "indices")
        axis_of(self.axis, x.rank)
        if indices.rank != x.rank:
            raise GraphError(f"indices: expected {x.rank} dimension(s), got {show(indices.shape)}")
        return TensorType(x.dtype, indices.shape)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """What was taken from a place, added up there, in order."""
        from weft_ops.scattering import ScatterElements  # which imports this module

        (x, indices), (g,) = node.inputs, gradients
        assert x is not None and indices is not None and g is not None
        c = composer(builder)
        wide = c.wide(g)
        zeros = c(Fill(wide.dtype, x.shape, 0))
        return c.cast(c(ScatterElements(self.axis, "add"), zeros, indices, wide), g.dtype), None

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        axis = self.axis % x.ndim
        at: list[Any] = list(np.indices(indices.shape, sparse=True))
        at[axis] = clamp_indices(indices, x.shape[axis])
        return np.asarray(x[tuple(at)])

    @algorithm("tensors")
    def direct(self, x: Tensor, indices: Tensor) -> Tensor:
        axis = axis_of(self.axis, x.rank)
        return compute(
            indices.shape, lambda *i: x[(*i[:axis], safe_index(indices[i], x.shape[axis]), *i[axis + 1 :])], "gather"
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(1), (floats((3, 4)), np.array([[0, -1], [3, 1], [2, 2]])), "columns")
        yield Sample(cls(0), (floats((3, 4)), np.array([[0, 1, 2]], np.int32)), "rows")


__all__ = ["Gather", "GatherElements"]
