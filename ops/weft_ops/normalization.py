"""Softmax and the normalisations: composites that decompose into reductions and elementwise operators.

Inputs narrower than float32 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr.functions import call
from weft.expr.nodes import Expr, and_, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, Tensor, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Absolute, Power, Reciprocal, Sign, Sqrt, Where
from weft_ops.comparison import Equal
from weft_ops.composing import Composer
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import floats
from weft_ops.movement import Iota
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.reduction import Argmax
from weft_ops.shapes import (
    axes_of,
    axis_of,
    broadcast,
    expect_kind,
    one_dtype,
    operands,
    product,
    quotient,
    show,
    static,
    tensor,
    unify,
    unify_shapes,
)
from weft_ops.transcendental import Exp, Log


class Composite(Operator):
    """An operator of floats that is given by simpler ones; the result has the type of the first operand."""

    kind = "composite"

    def infer(self, *types: Type | None) -> Type | tuple[Type, ...] | Inferred:
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
    row_wise = True
    stays_whole = True

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

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """y · (g - Σ g·y): of the result alone."""
        (g,) = gradients
        assert g is not None
        c = Composer(builder)
        axes = (axis_of(self.axis, len(g.shape)),)
        y, wide = c.wide(node.output), c.wide(g)
        return (c.cast(c.mul(y, c.sub(wide, c.sum(c.mul(wide, y), axes))), g.dtype),)

    @algorithm("decompose")
    def shifted(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = (axis_of(self.axis, len(x.shape)),)
        wide = c.wide(x)
        exps = c(Exp(), c.sub(wide, c.max(wide, axes)))
        return c.cast(c.mul(exps, c(Reciprocal(), c.sum(exps, axes))), x.dtype)

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

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """g - e^y · Σ g."""
        (g,) = gradients
        assert g is not None
        c = Composer(builder)
        axes = (axis_of(self.axis, len(g.shape)),)
        wide = c.wide(g)
        return (c.cast(c.sub(wide, c.mul(c(Exp(), c.wide(node.output)), c.sum(wide, axes))), g.dtype),)

    @algorithm("decompose")
    def shifted(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = (axis_of(self.axis, len(x.shape)),)
        wide = c.wide(x)
        low = c.sub(wide, c.max(wide, axes))
        return c.cast(c.sub(low, c(Log(), c.sum(c(Exp(), low), axes))), x.dtype)


def _by_normalized(
    c: Composer, g: Value, y: Value, inverse: Value, axes: tuple[int, ...], centred: bool = True
) -> Value:
    """The gradient by x from that by y = (x - mean) / √(variance + epsilon), the latter's divisor inverted given: (g -
    mean of g - y · mean of g·y) · inverse. Not `centred`: y = x / √(mean of x² + epsilon)."""
    rest = c.sub(g, c.mul(y, c.mean(c.mul(g, y), axes)))
    return c.mul(c.sub(rest, c.mean(g, axes)) if centred else rest, inverse)


def _inverse_deviation(c: Composer, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """1 / √(mean of x² + epsilon): one division per row, not one per element."""
    return c(Reciprocal(), c(Sqrt(), c.add(c.mean(c.mul(x, x), axes), epsilon)))


@dataclass(frozen=True)
class LayerNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias over axes `axis` … last; inputs x, scale, bias, the latter two
    optional, broadcast to x."""

    axis: int = -1
    epsilon: float = 1e-5
    row_wise = True
    stays_whole = True
    _subtracts_mean: ClassVar[bool] = True

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for other dtypes, an axis out of range, or a scale or bias that does not broadcast to x."""
        assumed: list[Assumption] = []
        given = operands([t for t in types if t is not None])
        x = tensor(types[0] if types else None)
        expect_kind(one_dtype(given), ("float",))
        axis_of(self.axis, x.rank)
        unify_shapes(
            x.shape, broadcast(*(t.shape for t in given), assumed=assumed), "broadcast of scale and bias", assumed
        )
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

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

    def _centred(self, c: Composer, x: Value, axes: tuple[int, ...]) -> Value:
        """What is normalised by its mean square."""
        # Far from 0 the mean itself, rounded, is off by more than the differences can bear: first take away one of the
        # elements.
        first = x
        for axis in axes if all(n != 0 for n in x.shape) else ():
            first = c.slice(first, axis, 0, 1)
        near = c.sub(x, first)
        return c.sub(near, c.mean(near, axes))

    def moments(self, c: Composer, x: Value, axes: tuple[int, ...]) -> Value:
        low = self._centred(c, x, axes)
        return c.mul(low, _inverse_deviation(c, low, axes, self.epsilon))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of x alone: what is normalised is computed anew."""
        (g,), (x, scale, bias) = gradients, (*node.inputs, None, None)[:3]
        assert x is not None and g is not None
        c, rank = Composer(builder), len(x.shape)
        axes = tuple(range(axis_of(self.axis, rank), rank))
        wide = c.wide(g)
        low = self._centred(c, c.wide(x), axes)
        inverse = _inverse_deviation(c, low, axes, self.epsilon)
        y = c.mul(low, inverse)
        inner = wide if scale is None else c.mul(wide, c.wide(scale))
        by_x = c.cast(_by_normalized(c, inner, y, inverse, axes, self._subtracts_mean), x.dtype)
        by_scale = None if scale is None else c.cast(c.sum_to(c.mul(wide, y), scale.shape), scale.dtype)
        by_bias = None if bias is None else c.cast(c.sum_to(wide, bias.shape), bias.dtype)
        return (by_x, by_scale, by_bias)[: len(node.inputs)]

    @algorithm("decompose")
    def two_passes(
        self, builder: GraphBuilder, x: Value, scale: Value | None = None, bias: Value | None = None
    ) -> Value:
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
        yield Sample(
            cls(),
            (floats((2, 8), "float16"), floats((8,), "float16", seed=1), floats((8,), "float16", seed=2)),
            "float16",
        )

    def tolerance(self, *types: TensorType) -> float:
        return 32.0 + super().tolerance(*types)


@dataclass(frozen=True)
class RMSNorm(LayerNorm):
    """x / √(mean of x² + epsilon) · scale over axes `axis` … last; inputs x, scale (optional)."""

    _subtracts_mean = False

    def normalize(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x / np.sqrt((x * x).mean(axes, keepdims=True) + self.epsilon)

    def _centred(self, c: Composer, x: Value, axes: tuple[int, ...]) -> Value:
        return x

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3, 8)), floats((8,), seed=1)), "last")
        yield Sample(cls(1, 1e-3), (floats((2, 3, 5)), floats((3, 5), seed=1)), "two_axes")
        yield Sample(cls(), (floats((2, 8), "bfloat16"), None), "bfloat16")


@dataclass(frozen=True)
class BatchNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias per index of `axis`; inputs x and vectors scale, bias, mean,
    variance (given, not measured)."""

    epsilon: float = 1e-5
    axis: int = 1

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for vectors of another length; the vectors' float dtype may differ from x's."""
        assumed: list[Assumption] = []
        x, *vectors = operands(types, 5)
        expect_kind(x.dtype, ("float",))
        axis = axis_of(self.axis, x.rank)
        for name, v in zip(("scale", "bias", "mean", "variance"), vectors):
            expect_kind(v.dtype, ("float",), name)
            unify_shapes([unify(x.shape[axis], x.shape[axis], name, assumed)], v.shape, name, assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, *vectors = arrays
        assert x is not None
        shape = [-1 if d == self.axis % x.ndim else 1 for d in range(x.ndim)]
        scale, bias, mean, variance = (widen(v).reshape(shape) for v in vectors if v is not None)
        return rounded((widen(x) - mean) / np.sqrt(variance + self.epsilon) * scale + bias, dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """With r = 1 / √(variance + epsilon) and two sums per index of the axis, of g and of g·(x - mean): by x,
        g·r·scale; by scale, the second times r; by bias, the first; by mean, the first times -r·scale; by variance, the
        second times -r³·scale/2."""
        (x, *vectors), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, rank = Composer(builder), len(x.shape)
        axis = axis_of(self.axis, rank)
        column = [x.shape[axis], *(1 for _ in x.shape[axis + 1 :])]
        others = tuple(d for d in range(rank) if d != axis)
        wide = c.wide(g)
        dtypes = [v.dtype for v in vectors if v is not None]
        scale, _, mean, variance = (c.cast(v, wide.dtype) for v in vectors if v is not None)
        inverse = c(Reciprocal(), c(Sqrt(), c.add(variance, self.epsilon)))
        factor = c.mul(scale, inverse)
        total = c.sum(wide, others, False)
        moment = c.sum(c.mul(wide, c.sub(c.wide(x), c.reshape(mean, column))), others, False)
        by_variance = c.mul(c.mul(moment, c.mul(factor, c.mul(inverse, inverse))), -0.5)
        found = (c.mul(moment, inverse), total, c.mul(c.mul(total, factor), -1.0), by_variance)
        by_x = c.cast(c.mul(wide, c.reshape(factor, column)), x.dtype)
        return by_x, *(c.cast(v, dtype) for v, dtype in zip(found, dtypes))

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
            vectors = [
                floats((3,), dtype, seed=1),
                floats((3,), dtype, seed=2),
                floats((3,), dtype, seed=3),
                floats((3,), dtype, 0.5, 2, seed=4),
            ]
            yield Sample(cls(), (floats((2, 3, 4, 5), dtype), *vectors), dtype)
            yield Sample(cls(1e-2, -1), (floats((2, 3), dtype), *vectors), f"{dtype}_last")

    def tolerance(self, *types: TensorType) -> float:
        return 16.0


@dataclass(frozen=True)
class InstanceNorm(Composite):
    """Per sample and channel of x [n, c, …]: (x - mean) / √(variance + epsilon) · scale + bias; inputs x, scale [c],
    bias [c]."""

    epsilon: float = 1e-5

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, scale, bias = operands(types, 3)
        expect_kind(one_dtype([x, scale, bias]), ("float",))
        if x.rank < 2:
            raise GraphError(f"expected x [n, c, …], got {show(x.shape)}")
        for t, name in ((scale, "scale"), (bias, "bias")):
            unify_shapes([x.shape[1]], t.shape, name, assumed)
        self.groups_of(x.shape)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def groups_of(self, shape: tuple[Dim, ...]) -> Dim:
        return shape[1]

    def reference(self, *arrays: Array | None) -> Array:
        x, scale, bias = arrays
        assert x is not None and scale is not None and bias is not None
        (groups,) = static([self.groups_of(x.shape)])
        wide = widen(x).reshape(x.shape[0], groups, -1)
        low = wide - wide.mean(-1, keepdims=True)
        y = (low / np.sqrt((low * low).mean(-1, keepdims=True) + self.epsilon)).reshape(x.shape)
        vector = (-1, *(1 for _ in x.shape[2:]))
        return rounded(y * widen(scale).reshape(vector) + widen(bias).reshape(vector), dt.dtype(x.dtype))

    def _grouped(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The shape in which all axes but two are normalised over."""
        groups = self.groups_of(shape)
        return shape if groups is shape[1] else (shape[0], groups, quotient(shape[1:], [groups]))

    def _normalized(self, c: Composer, x: Value) -> tuple[Value, Value]:
        """The wide x in the grouped shape, normalised, and what its differences from the mean were multiplied by."""
        axes = tuple(range(2, len(x.shape)))
        low = c.sub(x, c.mean(x, axes))
        inverse = _inverse_deviation(c, low, axes, self.epsilon)
        return c.mul(low, inverse), inverse

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of x alone: what is normalised is computed anew."""
        (x, scale, bias), (g,) = node.inputs, gradients
        assert x is not None and scale is not None and bias is not None and g is not None
        c, wide = Composer(builder), compute_dtype(x.dtype)
        shape, vector = self._grouped(x.shape), (x.shape[1], *(1 for _ in x.shape[2:]))
        y, inverse = self._normalized(c, c.reshape(c.cast(x, wide), shape))
        whole = c.cast(g, wide)
        inner = c.reshape(c.mul(whole, c.reshape(c.cast(scale, wide), vector)), shape)
        by_x = c.reshape(_by_normalized(c, inner, y, inverse, tuple(range(2, len(shape)))), x.shape)
        others = (0, *range(2, len(x.shape)))
        by_scale = c.sum(c.mul(whole, c.reshape(y, x.shape)), others, False)
        return c.cast(by_x, x.dtype), c.cast(by_scale, scale.dtype), c.cast(c.sum(whole, others, False), bias.dtype)

    @algorithm("decompose")
    def two_passes(self, builder: GraphBuilder, x: Value, scale: Value, bias: Value) -> Value:
        c = Composer(builder)
        y, _ = self._normalized(c, c.reshape(c.wide(x), self._grouped(x.shape)))
        y = c.reshape(y, x.shape)
        vector = (x.shape[1], *(1 for _ in x.shape[2:]))
        return c.cast(c.add(c.mul(y, c.reshape(c.wide(scale), vector)), c.reshape(c.wide(bias), vector)), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in ("float32", "float16"):
            yield Sample(
                cls(), (floats((2, 3, 4, 5), dtype), floats((3,), dtype, seed=1), floats((3,), dtype, seed=2)), dtype
            )
        yield Sample(cls(1e-2), (floats((2, 4, 7)), floats((4,), seed=1), floats((4,), seed=2)), "one_axis")

    def tolerance(self, *types: TensorType) -> float:
        return 32.0 + super().tolerance(*types)


@dataclass(frozen=True)
class GroupNorm(InstanceNorm):
    """As InstanceNorm, but mean and variance over groups of neighbouring channels; scale and bias are per channel."""

    groups: int = 1

    def groups_of(self, shape: tuple[Dim, ...]) -> Dim:
        if isinstance(shape[1], int) and shape[1] % self.groups:
            raise GraphError(f"channels: expected a multiple of groups = {self.groups}, got {shape[1]}")
        return self.groups

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in ("float32", "float16"):
            yield Sample(
                cls(groups=2),
                (floats((2, 4, 3, 5), dtype), floats((4,), dtype, seed=1), floats((4,), dtype, seed=2)),
                dtype,
            )
        yield Sample(cls(1e-2, 1), (floats((2, 3, 7)), floats((3,), seed=1), floats((3,), seed=2)), "one_group")


@dataclass(frozen=True)
class LRN(Operator):
    """x / (bias + alpha/size · Σ x²)^beta, the sum over `size` neighbouring channels of x [n, c, …]."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    kind = "reduction"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        if x.rank < 2:
            raise GraphError(f"expected x [n, c, …], got {show(x.shape)}")
        return TensorType(x.dtype, x.shape)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        """None: `size` decides."""
        return None

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        below, above = (self.size - 1) // 2, self.size // 2
        square = np.pad(wide * wide, [(below, above) if d == 1 else (0, 0) for d in range(x.ndim)])
        total = sum(square.take(range(k, k + x.shape[1]), 1) for k in range(self.size))
        return rounded(wide / (self.bias + self.alpha / self.size * total) ** self.beta, dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """g / b^beta - 2·alpha·beta/size · x · Σ g·x / b^(beta + 1), with b = bias + alpha/size · Σ x²; the first sum
        is over the channels whose b contains this one."""
        from weft_ops.window import SumPool

        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, below, above = Composer(builder), (self.size - 1) // 2, self.size // 2
        wide, by = c.wide(x), c.wide(g)

        def near(v: Value, before: int, after: int) -> Value:
            flat = c.reshape(v, (x.shape[0], 1, x.shape[1], product(x.shape[2:])))
            return c.reshape(c(SumPool((self.size, 1), (), (before, 0, after, 0)), flat), x.shape)

        b = c.add(c.mul(near(c.mul(wide, wide), below, above), self.alpha / self.size), self.bias)
        direct = c.mul(by, c(Power(), b, -self.beta))
        others = near(c.div(c.mul(direct, wide), b), above, below)
        factor = 2 * self.alpha * self.beta / self.size
        return (c.cast(c.sub(direct, c.mul(c.mul(wide, others), factor)), x.dtype),)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        wide = compute_dtype(x.dtype)
        k = reduce_axis(self.size, "near")

        def squares(*i: Expr) -> Expr:
            at = i[1] + k.var - (self.size - 1) // 2
            value = cast_to(x[(i[0], at, *i[2:])], wide)
            return sum_over(select(and_(at >= 0, at < x.shape[1]), value * value, const(0, wide)), k)

        total = compute(x.shape, squares, "squares")

        def formula(*i: Expr) -> Expr:
            base = total[i] * (self.alpha / self.size) + self.bias
            return cast_to(cast_to(x[i], wide) / call("pow", base, const(self.beta, wide)), x.dtype)

        return compute(x.shape, formula, "lrn")

    def tolerance(self, *types: TensorType) -> float:
        return 16.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(3, 2e-1, 0.5, 2.0), (floats((2, 5, 3, 3)),), "odd")
        yield Sample(cls(4), (floats((1, 3, 2)),), "even")
        yield Sample(cls(3), (floats((1, 3, 2), "float16"),), "float16")


@dataclass(frozen=True)
class LpNorm(Composite):
    """x over its p-norm (p 1 or 2) along `axis`; zero where the norm is."""

    axis: int = -1
    p: int = 2

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        axis_of(self.axis, x.rank)
        if self.p not in (1, 2):
            raise GraphError(f"p: expected 1 or 2, got {self.p}")
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        norm = (
            np.abs(wide).sum(self.axis, keepdims=True)
            if self.p == 1
            else np.sqrt((wide * wide).sum(self.axis, keepdims=True))
        )
        return rounded(np.where(norm == 0, 0, wide / np.where(norm == 0, 1, norm)), dt.dtype(x.dtype))

    def _divisor(self, c: Composer, x: Value) -> Value:
        """The norm of the wide x. Where it is zero so is x: any divisor gives zero."""
        axes = (axis_of(self.axis, len(x.shape)),)
        norm = c.sum(c(Absolute(), x), axes) if self.p == 1 else c(Sqrt(), c.sum(c.mul(x, x), axes))
        return c(Where(), c(Equal(), norm, 0.0), c.number(1.0, norm.dtype), norm)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """(g - d · Σ g·y) / norm, with d = sign(x) if p is 1, else y. The root itself would have no derivative at 0."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = Composer(builder)
        wide, by = c.wide(x), c.wide(g)
        divisor = self._divisor(c, wide)
        y = c.div(wide, divisor)
        along = c.sum(c.mul(by, y), (axis_of(self.axis, len(x.shape)),))
        return (c.cast(c.div(c.sub(by, c.mul(c(Sign(), wide) if self.p == 1 else y, along)), divisor), x.dtype),)

    @algorithm("decompose")
    def divided(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        wide = c.wide(x)
        return c.cast(c.div(wide, self._divisor(c, wide)), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for p in (1, 2):
            yield Sample(cls(1, p), (floats((2, 3, 4)),), f"p{p}")
            yield Sample(cls(-1, p), (np.array([[0, 0], [3, -4]], np.float32),), f"zero_p{p}")


@dataclass(frozen=True)
class MeanVarianceNorm(Composite):
    """(x - mean) / √(variance + epsilon) over `axes`."""

    axes: tuple[int, ...] = (0, 2, 3)
    epsilon: float = 1e-9

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        axes_of(self.axes, x.rank)
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        low = wide - wide.mean(self.axes, keepdims=True)
        return rounded(low / np.sqrt((low * low).mean(self.axes, keepdims=True) + self.epsilon), dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of x alone: what is normalised is computed anew."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, axes = Composer(builder), axes_of(self.axes, len(x.shape))
        wide = c.wide(x)
        low = c.sub(wide, c.mean(wide, axes))
        inverse = _inverse_deviation(c, low, axes, self.epsilon)
        return (c.cast(_by_normalized(c, c.wide(g), c.mul(low, inverse), inverse, axes), x.dtype),)

    @algorithm("decompose")
    def two_passes(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = axes_of(self.axes, len(x.shape))
        wide = c.wide(x)
        low = c.sub(wide, c.mean(wide, axes))
        return c.cast(c.div(low, c(Sqrt(), c.add(c.mean(c.mul(low, low), axes), self.epsilon))), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3, 4, 5)),), "images")
        yield Sample(cls((-1,)), (floats((3, 6)),), "rows")


@dataclass(frozen=True)
class Hardmax(Composite):
    """1 at the first greatest element along `axis`, 0 elsewhere."""

    axis: int = -1

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        axis_of(self.axis, x.rank)
        return TensorType(x.dtype, x.shape)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        line = np.arange(x.shape[self.axis]).reshape([-1 if d == self.axis % x.ndim else 1 for d in range(x.ndim)])
        return np.asarray((np.argmax(widen(x), self.axis, keepdims=True) == line).astype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """It is constant but for jumps."""
        return (None,)

    @algorithm("decompose")
    def one_hot(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axis = axis_of(self.axis, len(x.shape))
        line = c(Iota(dt.int64, (x.shape[axis], *(1 for _ in x.shape[axis + 1 :])), 0))
        return c.cast(c(Equal(), c(Argmax(axis, True), x), line), x.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (np.array([[1, 3, 3], [0, -1, -2]], np.float32),), "last")
        yield Sample(cls(1), (floats((2, 3, 4)),), "middle")


__all__ = [
    "BatchNorm",
    "GroupNorm",
    "Hardmax",
    "InstanceNorm",
    "LRN",
    "LayerNorm",
    "LogSoftmax",
    "LpNorm",
    "MeanVarianceNorm",
    "RMSNorm",
    "Softmax",
]
