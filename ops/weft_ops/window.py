"""Pooling: reductions over windows that slide along the spatial axes of x [n, c, in…]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, all_of, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Operator, Sample, algorithm
from weft.tensor.language import Dim, ReduceAxis, Tensor, compute, lowest, reduce, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.composing import Composer
from weft_ops.contraction import filled, pad_pairs, reduction_tolerance, reference_windows, window_extent
from weft_ops.examples import floats, integers
from weft_ops.indexing import ScatterElements
from weft_ops.movement import Fill
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import expect_kind, operands, product, quotient, show, static, unify, unify_shapes

DHW = "dhw"


@dataclass(frozen=True)
class Pool(Operator):
    """What pools share: kernel, strides (empty: 1, unlike torch's), pads (begin…, end…), dilations, ceil_mode."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    ceil_mode: bool = False
    kind = "window"

    def infer(self, *types: Type | None) -> Type | tuple[Type, ...]:
        """Raises GraphError for a rank that does not fit the kernel."""
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        return TensorType(x.dtype, self.out_shape(x.shape))

    def out_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        if len(shape) != 2 + len(self.kernel):
            raise GraphError(f"expected x [n, c, in…] with {len(self.kernel)} spatial axes, got {show(shape)}")
        strides, pads, dilations = self.spatial()
        return (
            *shape[:2],
            *(window_extent(*a, self.ceil_mode) for a in zip(shape[2:], self.kernel, strides, pads, dilations)),
        )

    def spatial(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]:
        n = len(self.kernel)
        return filled(self.strides, n, 1), pad_pairs(self.pads, n), filled(self.dilations, n, 1)

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        """Each channel is computed by itself."""
        return axis < 2

    def reference_windows(self, x: Array, fill: Any) -> Array:
        """Windows [n, c, out…, kernel…] of the wide x, `fill` outside."""
        strides, pads, dilations = self.spatial()
        counts = static(self.out_shape(x.shape))[2:]
        need = [(c - 1) * s + (k - 1) * d + 1 for c, s, k, d in zip(counts, strides, self.kernel, dilations)]
        widths = [(lo, max(hi, m - size - lo)) for (lo, hi), m, size in zip(pads, need, x.shape[2:])]
        padded = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)
        return reference_windows(padded, self.kernel, strides, dilations, counts)

    def taps(self) -> list[ReduceAxis]:
        n = len(self.kernel)
        return [reduce_axis(d, f"k{DHW[3 - n + k] if n <= 3 else k}") for k, d in enumerate(self.kernel)]

    def position(self, at: Sequence[Expr], taps: Sequence[ReduceAxis], size: Sequence[Dim]) -> tuple[list[Expr], Expr]:
        """Input indices of a window's element, and whether it lies inside."""
        strides, pads, dilations = self.spatial()
        inner = [o * s + t.var * d - lo for o, s, t, d, (lo, _) in zip(at, strides, taps, dilations, pads)]
        tests: list[Expr] = []
        for i, n, (lo, hi) in zip(inner, size, pads):
            tests += [i >= 0] if lo > 0 else []
            tests += [i < n] if hi > 0 or self.ceil_mode else []
        return inner, all_of(tests)

    @classmethod
    def variants(cls) -> Iterable[tuple[Pool, tuple[int, ...], str]]:
        yield cls((2, 2), (2, 2)), (1, 2, 6, 7), "plain"
        yield cls((3, 3), (2, 2), (1, 1, 1, 1)), (2, 3, 7, 6), "pads"
        yield cls((3, 2), (2, 1), (0, 1, 1, 0), (1, 2)), (1, 2, 8, 7), "all"
        yield cls((3, 3), (2, 2), (0, 0, 0, 0), (), True), (1, 1, 6, 6), "ceil"
        yield cls((2, 2), (3, 3), (1, 1, 1, 1), (), True), (1, 1, 5, 4), "ceil_skips"
        yield cls((3,), (2,), (1, 1)), (1, 2, 9), "one_axis"
        yield cls((2, 2, 2), (1, 2, 1)), (1, 1, 3, 4, 5), "three_axes"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for op, shape, name in cls.variants():
            yield Sample(op, (floats(shape),), name)
        yield Sample(cls((2, 2), (1, 1), (1, 0, 0, 1)), (floats((1, 2, 4, 4), "float16"),), "float16")


@dataclass(frozen=True)
class MaxPool(Pool):
    """The greatest element of each window; padding never wins."""

    @property
    def commutes(self) -> Commutes:
        return "monotone"

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        taps, least = self.taps(), lowest(x.dtype)

        def formula(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            return reduce("max", select(inside, x[(*index[:2], *inner)], least), taps)

        return compute(self.out_shape(x.shape), formula, "maxpool")

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        dtype = dt.dtype(x.dtype)
        views = self.reference_windows(widen(x), lowest(dtype).value)
        return rounded(views.max(axis=tuple(range(x.ndim, views.ndim))), dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample(cls((2, 2), (2, 2), (1, 1, 1, 1)), (integers((1, 1, 4, 4), "uint8", 0, 255),), "uint8")
        yield Sample(cls((2,)), (np.array([[[1, np.nan, 0, -np.inf, -np.inf]]], np.float32),), "nan")


@dataclass(frozen=True)
class AveragePool(Pool):
    """The mean of each window: over its elements inside x, or inside x and its pads if `count_include_pad`."""

    count_include_pad: bool = False

    def counts(self, index: Sequence[Expr], size: Sequence[Dim]) -> Expr:
        """How many elements of the window at `index` count, int64."""
        strides, pads, dilations = self.spatial()
        total: Expr = const(1, dt.int64)
        for o, k, s, (lo, hi), d, n in zip(index, self.kernel, strides, pads, dilations, size):
            if (self.count_include_pad and not self.ceil_mode) or (lo <= 0 and hi <= 0 and not self.ceil_mode):
                total = total * k
                continue
            first = o * s - lo
            begin, end = (-lo, n + hi) if self.count_include_pad else (0, n)
            low = e.maximum(e.ceildiv(e.sub(const(begin, dt.int64), first), d), 0)
            high = e.minimum(e.ceildiv(e.sub(e.wrap(end, dt.int64), first), d), k)
            total = total * e.maximum(high - low, 0)
        return total

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        taps, wide = self.taps(), compute_dtype(x.dtype)
        shape = self.out_shape(x.shape)

        def formula(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            return sum_over(select(inside, cast_to(x[(*index[:2], *inner)], wide), const(0, wide)), taps)

        total = compute(shape, formula, "poolsum")

        def mean(*index: Expr) -> Expr:
            count = cast_to(self.counts(index[2:], x.shape[2:]), wide)
            value = total[index]
            return cast_to(e.truncdiv(value, count) if wide.is_integer else value / count, x.dtype)

        return compute(shape, mean, "averagepool")

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        dtype = dt.dtype(x.dtype)
        _, pads, _ = self.spatial()
        ones = np.ones((1, 1, *x.shape[2:]), np.float64)
        if self.count_include_pad:
            padded = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
            bare = type(self)(self.kernel, self.strides, (), self.dilations, self.ceil_mode)
            strides, _, dilations = self.spatial()
            counts = static(self.out_shape(x.shape))[2:]
            need = [
                max(0, (c - 1) * s + (k - 1) * d + 1 - n)
                for c, s, k, d, n in zip(counts, strides, self.kernel, dilations, padded.shape[2:])
            ]
            views = reference_windows(
                np.pad(padded, [(0, 0), (0, 0), *((0, m) for m in need)]), bare.kernel, strides, dilations, counts
            )
        else:
            views = self.reference_windows(ones, 0)
        axes = tuple(range(x.ndim, 2 * x.ndim - 2))
        total = self.reference_windows(widen(x), 0).sum(axis=axes)
        with np.errstate(all="ignore"):
            return rounded(
                np.trunc(total / views.sum(axis=axes)) if dtype.is_integer else total / views.sum(axis=axes), dtype
            )

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(int(np.prod(self.kernel)))

    @classmethod
    def variants(cls) -> Iterable[tuple[Pool, tuple[int, ...], str]]:
        for op, shape, name in super().variants():
            yield op, shape, name
            yield cls(op.kernel, op.strides, op.pads, op.dilations, op.ceil_mode, True), shape, f"{name}_include"


@dataclass(frozen=True)
class MaxPoolWithIndices(MaxPool):
    """MaxPool and, int64, where each element was found: its flat index in x; `column_major` counts the spatial axes
    first-fastest.

    Of equal elements, the first.
    """

    column_major: bool = False

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        shape = self.out_shape(x.shape)
        return TensorType(x.dtype, shape), TensorType(dt.int64, shape)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Any:
        taps, least = self.taps(), lowest(x.dtype)

        def formula(*index: Expr) -> Any:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            flat: Expr = index[0] * x.shape[1] + index[1]
            for n in x.shape[2:]:
                flat = flat * n
            spatial: Expr = const(0, dt.int64)
            pairs = list(zip(inner, x.shape[2:]))
            for i, n in reversed(pairs) if self.column_major else pairs:
                spatial = spatial * n + i
            value = select(inside, x[(*index[:2], *inner)], least)
            return reduce("argmax", (value, select(inside, flat + spatial, const(-1, dt.int64))), taps)

        return compute(self.out_shape(x.shape), formula, "maxpool")

    def reference(self, *arrays: Array | None) -> Any:
        (x,) = arrays
        assert x is not None
        dtype = dt.dtype(x.dtype)
        spatial = x.shape[2:]
        flat = np.arange(int(np.prod(spatial))).reshape(spatial, order="F" if self.column_major else "C")
        lead = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1 for _ in spatial)) * int(np.prod(spatial))
        values = self.reference_windows(widen(x), lowest(dtype).value)
        places = self.reference_windows((lead + flat).astype(np.int64), -1)
        shape = values.shape[: x.ndim]
        values, places = values.reshape(*shape, -1), places.reshape(*shape, -1)
        # Padding never wins, not even over the least value.
        ranked = np.where(places < 0, -np.inf, values.astype(np.float64))
        best = np.where(
            (places >= 0) & ((ranked == ranked.max(-1, keepdims=True)) | np.isnan(ranked)),
            places,
            np.iinfo(np.int64).max,
        )
        at = (
            np.argmin(best, -1)[..., None]
            if not self.column_major
            else np.argmin(np.where(best == np.iinfo(np.int64).max, best, 0), -1)[..., None]
        )
        return rounded(np.take_along_axis(values, at, -1)[..., 0], dtype), np.take_along_axis(places, at, -1)[..., 0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for op, shape, name in MaxPool.variants():
            for column_major in (False, True):
                yield Sample(
                    cls(op.kernel, op.strides, op.pads, op.dilations, op.ceil_mode, column_major),
                    (floats(shape),),
                    f"{name}_{column_major}",
                )


@dataclass(frozen=True)
class LpPool(Pool):
    """(Σ |x|^p)^(1/p) of each window; padding is zero."""

    p: int = 2

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        taps, wide = self.taps(), compute_dtype(x.dtype)
        shape = self.out_shape(x.shape)

        def formula(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            value = call("abs", cast_to(x[(*index[:2], *inner)], wide))
            power = value
            for _ in range(self.p - 1):
                power = power * value
            return sum_over(select(inside, power, const(0, wide)), taps)

        total = compute(shape, formula, "poolsum")
        root: Callable[..., Any] = lambda v: (
            v if self.p == 1 else call("sqrt", v) if self.p == 2 else call("pow", v, const(1 / self.p, wide))
        )
        return compute(shape, lambda *i: cast_to(root(total[i]), x.dtype), "lppool")

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("float",))
        if self.p < 1:
            raise GraphError(f"p: expected at least 1, got {self.p}")
        return TensorType(x.dtype, self.out_shape(x.shape))

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        views = self.reference_windows(np.abs(widen(x)) ** self.p, 0)
        return rounded(views.sum(axis=tuple(range(x.ndim, views.ndim))) ** (1 / self.p), dt.dtype(x.dtype))

    def tolerance(self, *types: TensorType) -> float:
        return 8 + reduction_tolerance(int(np.prod(self.kernel)))

    @classmethod
    def variants(cls) -> Iterable[tuple[Pool, tuple[int, ...], str]]:
        for k, (op, shape, name) in enumerate(super().variants()):
            yield cls(op.kernel, op.strides, op.pads, op.dilations, op.ceil_mode, k % 3 + 1), shape, name


@dataclass(frozen=True)
class MaxUnpool(Operator):
    """A tensor of `shape`, zero except where indices (flat, as MaxPoolWithIndices gives them) place the elements of x;
    inputs x, indices."""

    shape: tuple[Dim, ...]
    kind = "composite"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, ("int", "uint"), "indices")
        if len(self.shape) != x.rank or indices.rank != x.rank:
            raise GraphError(
                f"expected {x.rank} dimensions, got shape {show(self.shape)} and indices {show(indices.shape)}"
            )
        unify_shapes(x.shape, indices.shape, "indices", assumed)
        return Inferred(TensorType(x.dtype, self.shape), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        out = np.zeros(int(np.prod(static(self.shape))), x.dtype)
        out[indices.reshape(-1)] = x.reshape(-1)
        return out.reshape(static(self.shape))

    @algorithm("decompose")
    def scattered(self, builder: GraphBuilder, x: Value, indices: Value) -> Value:
        c = Composer(builder)
        zeros = c(Fill(x.dtype, (product(self.shape),), 0))
        return c.reshape(c(ScatterElements(0), zeros, c.reshape(indices, (-1,)), c.reshape(x, (-1,))), self.shape)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((1, 1, 4, 4)), (floats((1, 1, 2, 2)), np.array([[[[5, 7], [13, 15]]]])), "plane")


@dataclass(frozen=True)
class Col2Im(Operator):
    """Sums columns back into an image: x [n, c · Π block, windows] → [n, c, image…]; each column holds one window's
    elements.

    `image` and `block` (the window) may be formulas; strides, pads (begin…, end…), dilations as Conv's.
    """

    image: tuple[Dim, ...]
    block: tuple[Dim, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    kind = "window"

    def spatial(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]:
        n = len(self.image)
        return filled(self.strides, n, 1), pad_pairs(self.pads, n), filled(self.dilations, n, 1)

    def windows(self) -> tuple[Dim, ...]:
        return tuple(window_extent(*a) for a in zip(self.image, self.block, *self.spatial()))

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        if x.rank != 3 or len(self.image) != len(self.block):
            raise GraphError(
                f"expected x [n, c·block, windows] and a block of {len(self.image)} axes, got {show(x.shape)} and"
                f" {show(self.block)}"
            )
        unify(product(self.windows()), x.shape[2], "windows", assumed)
        return Inferred(TensorType(x.dtype, (x.shape[0], quotient([x.shape[1]], self.block), *self.image)), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        image, block, counts = static(self.image), static(self.block), static(self.windows())
        strides, pads, dilations = self.spatial()
        wide = widen(x).reshape(x.shape[0], -1, *block, *counts)
        out = np.zeros((x.shape[0], wide.shape[1], *(n + lo + hi for n, (lo, hi) in zip(image, pads))), wide.dtype)
        for tap in np.ndindex(*block):
            where = tuple(
                slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(tap, dilations, counts, strides)
            )
            out[(slice(None), slice(None), *where)] += wide[(slice(None), slice(None), *tap)]
        inner = tuple(slice(lo, lo + n) for n, (lo, _) in zip(image, pads))
        return rounded(out[(slice(None), slice(None), *inner)], dt.dtype(x.dtype))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        wide = compute_dtype(x.dtype)
        strides, pads, dilations = self.spatial()
        counts = self.windows()
        taps = [reduce_axis(d, f"tap{k}") for k, d in enumerate(self.block)]
        shape = (x.shape[0], quotient([x.shape[1]], self.block), *self.image)

        def formula(b: Expr, channel: Expr, *at: Expr) -> Expr:
            tests: list[Expr] = []
            row, column = channel, const(0, dt.int64)
            for o, t, n, (lo, _), s, d, count in zip(at, taps, self.block, pads, strides, dilations, counts):
                first = o + lo - t.var * d
                tests += [first >= 0, first // s < count] + ([] if s == 1 else [e.eq(first % s, 0)])
                row, column = row * n + t.var, column * count + first // s
            return sum_over(select(all_of(tests), cast_to(x[b, row, column], wide), const(0, wide)), taps)

        total = compute(shape, formula, "col2im")
        return total if wide == x.dtype else compute(shape, lambda *i: cast_to(total[i], x.dtype), "rounded")

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(product(self.block))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((5, 5), (1, 5)), (floats((1, 10, 5)),), "rows")
        yield Sample(cls((5, 6), (2, 3), (2, 1), (1, 0, 0, 1), (1, 2)), (floats((2, 6, 9)),), "all")
        yield Sample(cls((4, 4, 4), (1, 2, 2)), (floats((1, 4, 36)),), "three_axes")


__all__ = ["AveragePool", "Col2Im", "LpPool", "MaxPool", "MaxPoolWithIndices", "MaxUnpool"]
