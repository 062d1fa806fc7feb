"""Operators whose elements come from attributes and sizes alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Sample, algorithm
from weft.tensor.language import Dim, Tensor, compute
from weft_ops.moving import Movement
from weft_ops.shapes import (
    axis_of,
    dim_expr,
    expect_kind,
    operands,
    static,
)


@dataclass(frozen=True)
class Iota(Movement):
    """0, 1, 2, … along `axis` of a new tensor."""

    dtype: DType
    shape: tuple[Dim, ...]
    axis: int = 0

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        expect_kind(self.dtype, ("int", "uint", "float"), "dtype")
        axis_of(self.axis, len(self.shape))
        return TensorType(self.dtype, self.shape)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def reference(self, *arrays: Array | None) -> Array:
        shape, axis = static(self.shape), axis_of(self.axis, len(self.shape))
        line = np.arange(shape[axis]).astype(self.dtype.numpy)
        return np.broadcast_to(line.reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape).copy()

    @algorithm("tensors")
    def direct(self) -> Tensor:
        return compute(self.shape, lambda *i: cast_to(i[self.axis], self.dtype), "iota")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.int64, (5,)), (), "int64")
        yield Sample(cls(dt.float32, (2, 3), -1), (), "float32")


@dataclass(frozen=True)
class Fill(Movement):
    """A new tensor of one value."""

    dtype: DType
    shape: tuple[Dim, ...]
    value: float = 0

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        return TensorType(self.dtype, self.shape)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def reference(self, *arrays: Array | None) -> Array:
        return np.full(static(self.shape), self.value).astype(self.dtype.numpy)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        return compute(self.shape, lambda *i: const(self.value, self.dtype), "fill")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.float32, (2, 3), 1.5), (), "float32")
        yield Sample(cls(dt.int64, (), 7), (), "scalar")
        yield Sample(cls(dt.bool_, (0, 2), 1), (), "empty")


@dataclass(frozen=True)
class Dims(Movement):
    """The numbers that formulas give, as a vector: how a dimension becomes data."""

    values: tuple[Dim, ...]
    dtype: DType = dt.int64

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        expect_kind(self.dtype, ("int", "uint", "float"), "dtype")
        return TensorType(self.dtype, (len(self.values),))

    def reference(self, *arrays: Array | None) -> Array:
        return np.array(static(self.values), np.int64).astype(self.dtype.numpy)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        def formula(i: Expr) -> Expr:
            value: Expr = const(0, dt.int64)
            for k, d in reversed(list(enumerate(self.values))):
                value = dim_expr(d) if k == len(self.values) - 1 else select(e.eq(i, k), dim_expr(d), value)
            return cast_to(value, self.dtype)

        return compute((len(self.values),), formula, "dims")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((3, 1, 4)), (), "int64")
        yield Sample(cls((7,), dt.float32), (), "float32")
        yield Sample(cls(()), (), "empty")


__all__ = ["Dims", "Fill", "Iota"]
