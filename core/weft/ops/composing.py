"""Short spellings for decompositions: `Composer` applies operators to values and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import GraphBuilder, Value
from weft.graph.operator import Operator
from weft.ops import arithmetic as a
from weft.ops.movement import BroadcastTo, Concat, Dims, Gather, Pad, Reshape, Slice, Transpose
from weft.ops.precision import compute_dtype
from weft.ops.reduction import ReduceMax, ReduceMean, ReduceSum
from weft.tensor.language import Dim

Number = int | float | bool


class Composer:
    """Adds nodes to a builder. A number next to a value becomes a constant of its dtype."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def __call__(self, op: Operator, *inputs: Value | Number | None) -> Any:
        """`op` applied; numbers take the dtype of the first value that is not a condition."""
        dtype = next((v.dtype for v in inputs if isinstance(v, Value) and not v.dtype.is_bool), dt.bool_)
        return self.builder.add(op, *(v if v is None or isinstance(v, Value) else self.number(v, dtype) for v in inputs))

    def number(self, value: Number, dtype: DType) -> Value:
        return self.builder.constant(np.asarray(value).astype(dtype.numpy), "c")

    def add(self, x: Value, y: Value | Number) -> Value:
        return self(a.Add(), x, y)  # type: ignore[no-any-return]

    def sub(self, x: Value | Number, y: Value | Number) -> Value:
        return self(a.Subtract(), x, y)  # type: ignore[no-any-return]

    def mul(self, x: Value, y: Value | Number) -> Value:
        return self(a.Multiply(), x, y)  # type: ignore[no-any-return]

    def div(self, x: Value | Number, y: Value | Number) -> Value:
        return self(a.Divide(), x, y)  # type: ignore[no-any-return]

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self(a.Cast(dtype), x)

    def wide(self, x: Value) -> Value:
        """`x` in the dtype in which composites of its dtype compute."""
        return self.cast(x, compute_dtype(x.dtype))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.shape == tuple(shape) else self(Reshape(tuple(shape)), x)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        return x if tuple(axes) == tuple(range(len(x.shape))) else self(Transpose(tuple(axes)), x)

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.shape == tuple(shape) else self(BroadcastTo(tuple(shape)), x)

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        return xs[0] if len(xs) == 1 else self(Concat(axis), *xs)

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: Dim = 1) -> Value:
        """`size` elements from `start` along one axis."""
        axis %= len(x.shape)
        starts = tuple(start if d == axis else 0 for d in range(len(x.shape)))
        sizes = tuple(size if d == axis else n for d, n in enumerate(x.shape))
        steps = tuple(step if d == axis else 1 for d in range(len(x.shape)))
        return self(Slice(starts, sizes, steps), x)  # type: ignore[no-any-return]

    def pick(self, x: Value, axis: int, index: Dim) -> Value:
        """Element `index` along an axis, which goes."""
        axis %= len(x.shape)
        part = self.slice(x, axis, index, 1)
        return self.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        return self(Gather(axis), x, indices)  # type: ignore[no-any-return]

    def pad(self, x: Value, pads: Sequence[Dim]) -> Value:
        return self(Pad(tuple(pads)), x)  # type: ignore[no-any-return]

    def sum(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceSum(tuple(axes), keepdims), x)  # type: ignore[no-any-return]

    def mean(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceMean(tuple(axes), keepdims), x)  # type: ignore[no-any-return]

    def max(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceMax(tuple(axes), keepdims), x)  # type: ignore[no-any-return]

    def dim(self, value: Dim, dtype: DType = dt.int64) -> Value:
        """A dimension as data: a scalar."""
        if isinstance(value, int):
            return self.number(value, dtype)
        return self.reshape(self(Dims((value,), dtype)), ())
