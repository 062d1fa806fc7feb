"""Softmax and the normalisations: composites that decompose into reductions and elementwise operators.

Inputs narrower than float32 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.ops.arithmetic import Sqrt
from weft.ops.composing import Composer
from weft.ops.contraction import reduction_tolerance
from weft.ops.examples import floats
from weft.ops.precision import rounded, widen
from weft.ops.shapes import axis_of, broadcast, expect_kind, one_dtype, operands, tensor, unify, unify_shapes
from weft.ops.transcendental import Exp, Log


class Composite(Operator):
    """An operator of floats that is given by simpler ones; the result has the type of the first operand."""

    kind = "composite"

    def infer(self, *types: Type | None) -> Type | tuple[Type, ...]:
        x = tensor(types[0] if types else None)
        expect_kind(x.dtype, ("float",))
        return TensorType(x.dtype, x.shape)

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d if isinstance(d, int) else 64 for d in types[0].shape]
        return 4 + reduction_tolerance(int(np.prod(sizes)))


@dataclass(frozen=True)
class Softmax(Composite):
    """e^(x - max) / Σ e^(x - max) along `axis`."""

    axis: int = -1

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        axis_of(self.axis, x.rank)
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        with np.errstate(all="ignore"):
            exps = np.exp(wide - wide.max(self.axis, keepdims=True, initial=-np.inf))
            return rounded(exps / exps.sum(self.axis, keepdims=True), dt.dtype(x.dtype))

    @algorithm("decompose")
    def shifted(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = (axis_of(self.axis, len(x.shape)),)
        wide = c.wide(x)
        exps = c(Exp(), c.sub(wide, c.max(wide, axes)))
        return c.cast(c.div(exps, c.sum(exps, axes)), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((3, 7)),), "last")
        yield Sample(cls(1), (floats((2, 5, 3), lo=-9, hi=9),), "middle")
        yield Sample(cls(0), (floats((4, 1)) * 100,), "large")
        yield Sample(cls(-1), (np.array([[0, -np.inf, 1], [2, 2, np.inf]], np.float32),), "infinite")
        yield Sample(cls(), (floats((2, 6), "float16"),), "float16")
        yield Sample(cls(), (floats((2, 6), "bfloat16"),), "bfloat16")
        yield Sample(cls(), (floats((2, 6), "float64"),), "float64")


@dataclass(frozen=True)
class LogSoftmax(Softmax):
    """x - max - log Σ e^(x - max) along `axis`."""

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        with np.errstate(all="ignore"):
            shifted = wide - wide.max(self.axis, keepdims=True, initial=-np.inf)
            return rounded(shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True)), dt.dtype(x.dtype))

    @algorithm("decompose")
    def shifted(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = (axis_of(self.axis, len(x.shape)),)
        wide = c.wide(x)
        low = c.sub(wide, c.max(wide, axes))
        return c.cast(c.sub(low, c(Log(), c.sum(c(Exp(), low), axes))), x.dtype)


@dataclass(frozen=True)
class LayerNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias over axes `axis` … last; inputs x, scale, bias, the latter two optional, broadcast to x."""

    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for other dtypes, an axis out of range, or a scale or bias that does not broadcast to x."""
        given = operands([t for t in types if t is not None])
        x = tensor(types[0] if types else None)
        expect_kind(one_dtype(given), ("float",))
        axis_of(self.axis, x.rank)
        unify_shapes(x.shape, broadcast(*(t.shape for t in given)), "broadcast of scale and bias")
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        x, scale, bias = (*arrays, None, None)[:3]
        assert x is not None
        wide = widen(x)
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        y = self.normalize(wide, axes)
        y = y if scale is None else y * widen(scale)
        return rounded(y if bias is None else y + widen(bias), dt.dtype(x.dtype))

    def normalize(self, x: Any, axes: tuple[int, ...]) -> Any:
        low = x - x.mean(axes, keepdims=True)
        return low / np.sqrt((low * low).mean(axes, keepdims=True) + self.epsilon)

    def moments(self, c: Composer, x: Value, axes: tuple[int, ...]) -> Value:
        low = c.sub(x, c.mean(x, axes))
        return c.div(low, c(Sqrt(), c.add(c.mean(c.mul(low, low), axes), self.epsilon)))

    @algorithm("decompose")
    def two_passes(self, builder: GraphBuilder, x: Value, scale: Value | None = None, bias: Value | None = None) -> Value:
        c = Composer(builder)
        axes = tuple(range(axis_of(self.axis, len(x.shape)), len(x.shape)))
        y = self.moments(c, c.wide(x), axes)
        y = y if scale is None else c.mul(y, c.wide(scale))
        return c.cast(y if bias is None else c.add(y, c.wide(bias)), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3, 8)), floats((8,), seed=1), floats((8,), seed=2)), "last")
        yield Sample(cls(1, 1e-3), (floats((2, 3, 5)), floats((3, 5), seed=1), None), "two_axes")
        yield Sample(cls(-1), (floats((2, 9)) + 100, None, None), "bare")
        yield Sample(cls(), (floats((2, 8), "float16"), floats((8,), "float16", seed=1), floats((8,), "float16", seed=2)), "float16")

    def tolerance(self, *types: TensorType) -> float:
        return 32.0 + super().tolerance(*types)


@dataclass(frozen=True)
class RMSNorm(LayerNorm):
    """x / √(mean of x² + epsilon) · scale over axes `axis` … last; inputs x, scale (optional)."""

    def normalize(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x / np.sqrt((x * x).mean(axes, keepdims=True) + self.epsilon)

    def moments(self, c: Composer, x: Value, axes: tuple[int, ...]) -> Value:
        return c.div(x, c(Sqrt(), c.add(c.mean(c.mul(x, x), axes), self.epsilon)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3, 8)), floats((8,), seed=1)), "last")
        yield Sample(cls(1, 1e-3), (floats((2, 3, 5)), floats((3, 5), seed=1)), "two_axes")
        yield Sample(cls(), (floats((2, 8), "bfloat16"), None), "bfloat16")


@dataclass(frozen=True)
class BatchNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias per index of `axis`; inputs x and vectors scale, bias, mean, variance (given, not measured)."""

    epsilon: float = 1e-5
    axis: int = 1

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for vectors of another length; the vectors' float dtype may differ from x's."""
        x, *vectors = operands(types, 5)
        expect_kind(x.dtype, ("float",))
        axis = axis_of(self.axis, x.rank)
        for name, v in zip(("scale", "bias", "mean", "variance"), vectors):
            expect_kind(v.dtype, ("float",), name)
            unify_shapes([unify(x.shape[axis], x.shape[axis], name)], v.shape, name)
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        x, *vectors = arrays
        assert x is not None
        shape = [-1 if d == self.axis % x.ndim else 1 for d in range(x.ndim)]
        scale, bias, mean, variance = (widen(v).reshape(shape) for v in vectors if v is not None)
        return rounded((widen(x) - mean) / np.sqrt(variance + self.epsilon) * scale + bias, dt.dtype(x.dtype))

    @algorithm("decompose")
    def folded(self, builder: GraphBuilder, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Value:
        """x·a + b with a = scale / √(variance + epsilon) and b = bias - mean·a: constants where the vectors are."""
        c = Composer(builder)
        wide = c.wide(x)
        scale, bias, mean, variance = (c.cast(v, wide.dtype) for v in (scale, bias, mean, variance))
        a = c.div(scale, c(Sqrt(), c.add(variance, self.epsilon)))
        b = c.sub(bias, c.mul(mean, a))
        axis = axis_of(self.axis, len(x.shape))
        shape = [x.shape[axis], *(1 for _ in x.shape[axis + 1 :])]
        return c.cast(c.add(c.mul(wide, c.reshape(a, shape)), c.reshape(b, shape)), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in ("float32", "float16"):
            vectors = [floats((3,), dtype, seed=1), floats((3,), dtype, seed=2), floats((3,), dtype, seed=3), floats((3,), dtype, 0.5, 2, seed=4)]
            yield Sample(cls(), (floats((2, 3, 4, 5), dtype), *vectors), dtype)
            yield Sample(cls(1e-2, -1), (floats((2, 3), dtype), *vectors), f"{dtype}_last")

    def tolerance(self, *types: TensorType) -> float:
        return 16.0


__all__ = ["BatchNorm", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]
