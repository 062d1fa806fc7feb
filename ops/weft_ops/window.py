"""Pooling: reductions over windows that slide along the spatial axes of x [n, c, in…]."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, all_of, any_of, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Gradients, Operator, Sample, algorithm
from weft.tensor.language import (
    Dim,
    Placeholder,
    ReduceAxis,
    Tensor,
    as_dim,
    compute,
    highest,
    lowest,
    reduce,
    reduce_axis,
)
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Absolute, Power, Sign, Where
from weft_ops.comparison import Equal, Less
from weft_ops.composing import Composer
from weft_ops.contraction import filled, pad_pairs, reduction_tolerance, reference_windows, window_extent
from weft_ops.examples import floats, integers
from weft_ops.indexing import ScatterElements
from weft_ops.movement import Fill
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import dim_expr, expect_kind, operands, product, show, static, unify_shapes

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

    def infer(self, *types: Type | None) -> Type | tuple[Type, ...] | Inferred:
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

    def along(self, axes: Collection[int]) -> Self:
        """The same along some spatial axes only."""
        strides, pads, dilations = self.spatial()

        def only(values: Sequence[int], other: int) -> tuple[int, ...]:
            return tuple(v if k in axes else other for k, v in enumerate(values))

        both = [only([pair[end] for pair in pads], 0) for end in (0, 1)]
        return replace(
            self,
            kernel=only(self.kernel, 1),
            strides=only(strides, 1),
            pads=(*both[0], *both[1]) if any(any(p) for p in both) else (),
            dilations=only(dilations, 1),
        )

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

    def counts(self, index: Sequence[Expr], size: Sequence[Dim], pads_count: bool) -> Expr:
        """How many elements of the window at `index` lie inside x, or inside x and its pads if `pads_count`, int64."""
        strides, pads, dilations = self.spatial()
        total: Expr = const(1, dt.int64)
        for o, k, s, (lo, hi), d, n in zip(index, self.kernel, strides, pads, dilations, size):
            if (pads_count and not self.ceil_mode) or (lo <= 0 and hi <= 0 and not self.ceil_mode):
                total = total * k
                continue
            first = o * s - lo
            begin, end = (-lo, n + hi) if pads_count else (0, n)
            low = e.maximum(e.ceildiv(e.sub(const(begin, dt.int64), first), d), 0)
            high = e.minimum(e.ceildiv(e.sub(e.wrap(end, dt.int64), first), d), k)
            total = total * e.maximum(high - low, 0)
        return total

    def _reference_counts(self, size: Sequence[int], pads_count: bool) -> Array:
        """As `counts`, of all windows: float64 [1, 1, out…]."""
        strides, pads, dilations = self.spatial()
        ones = np.ones((1, 1, *size), np.float64)
        if pads_count:
            padded = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
            counts = static(self.out_shape(ones.shape))[2:]
            need = [
                max(0, (c - 1) * s + (k - 1) * d + 1 - n)
                for c, s, k, d, n in zip(counts, strides, self.kernel, dilations, padded.shape[2:])
            ]
            views = reference_windows(
                np.pad(padded, [(0, 0), (0, 0), *((0, m) for m in need)]), self.kernel, strides, dilations, counts
            )
        else:
            views = self.reference_windows(ones, 0)
        return np.asarray(views.sum(axis=tuple(range(views.ndim - len(size), views.ndim))))

    def _covering(
        self, at: Sequence[Expr], steps: Sequence[ReduceAxis], counts: Sequence[Dim]
    ) -> tuple[list[Expr], Expr]:
        """The windows of which an element of x is a part: their indices, and whether there is such a window."""
        windows: list[Expr] = []
        tests: list[Expr] = []
        for i, r, k, s, (lo, _), d, count in zip(at, steps, self.kernel, *self.spatial(), counts):
            last, span = (i + lo) // s, (k - 1) * d + 1
            window = last - r.var
            offset = (i + lo) - window * s
            tests += [window >= 0, window < count]
            tests += [] if span % s == 0 else [offset < span]
            tests += [] if d == 1 else [e.eq(offset % d, 0)]
            windows.append(window)
        return windows, all_of(tests)

    def _steps(self) -> list[ReduceAxis]:
        """Per axis, as many as there are windows that an element may be a part of."""
        n = len(self.kernel)
        strides, _, dilations = self.spatial()
        return [
            reduce_axis(-(-((k - 1) * d + 1) // s), f"w{DHW[3 - n + j] if n <= 3 else j}")
            for j, (k, s, d) in enumerate(zip(self.kernel, strides, dilations))
        ]

    def _settings(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
        """The attributes that all pools have."""
        return self.kernel, self.strides, self.pads, self.dilations, self.ceil_mode

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

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Where each window's element was found is computed anew: kept, it would take as much memory as the result, or
        twice."""
        (x,), (g, *_) = node.inputs, gradients
        assert x is not None
        _, places = builder.add_all(MaxPoolWithIndices(*self._settings()), x)
        return (None if g is None else builder.add(MaxPoolGradient(*self._settings(), size=x.shape[2:]), g, places),)

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

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        taps, wide = self.taps(), compute_dtype(x.dtype)
        shape = self.out_shape(x.shape)

        def formula(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            return sum_over(select(inside, cast_to(x[(*index[:2], *inner)], wide), const(0, wide)), taps)

        total = compute(shape, formula, "poolsum")

        def mean(*index: Expr) -> Expr:
            count = cast_to(self.counts(index[2:], x.shape[2:], self.count_include_pad), wide)
            value = total[index]
            return cast_to(e.truncdiv(value, count) if wide.is_integer else value / count, x.dtype)

        return compute(shape, mean, "averagepool")

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        dtype = dt.dtype(x.dtype)
        counts = self._reference_counts(x.shape[2:], self.count_include_pad)
        total = self.reference_windows(widen(x), 0).sum(axis=tuple(range(x.ndim, 2 * x.ndim - 2)))
        with np.errstate(all="ignore"):
            return rounded(np.trunc(total / counts) if dtype.is_integer else total / counts, dtype)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        return (
            builder.add(
                PoolGradient(*self._settings(), size=x.shape[2:], mean=True, count_include_pad=self.count_include_pad),
                g,
            ),
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
    reads_twice = True

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        if self.column_major:
            return super().gradient(builder, node, gradients)
        (x,), (g, *_) = node.inputs, gradients
        assert x is not None
        if g is None:
            return (None,)
        return (builder.add(MaxPoolGradient(*self._settings(), size=x.shape[2:]), g, node.outputs[1]),)

    def infer(self, *types: Type | None) -> tuple[Type, ...]:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        shape = self.out_shape(x.shape)
        return TensorType(x.dtype, shape), TensorType(dt.int64, shape)

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        if algorithm == "places" and self.column_major:
            return "the order of taps is not that of places"
        return None

    @algorithm("tensors")
    def places(self, x: Tensor) -> Any:
        """The greatest, then the first tap that has it: both are reductions that vectors can share.

        What is computed as it is read might be rounded differently the second time: it is read once.
        """
        if not isinstance(x.source, Placeholder):
            return self.direct(x)
        shape, none = self.out_shape(x.shape), highest(dt.int32)
        look = self.taps()
        find = [reduce_axis(k, f"find_{t.var.name}") for k, t in zip(self.kernel, look)]

        def greatest(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], look, x.shape[2:])
            return reduce("max", select(inside, x[(*index[:2], *inner)], lowest(x.dtype)), look)

        most = compute(shape, greatest, "most")

        def first(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], find, x.shape[2:])
            value = x[(*index[:2], *inner)]
            number: Expr = const(0, dt.int32)
            for t, k in zip(find, self.kernel):
                number = number * k + cast_to(t.var, dt.int32)
            # If the greatest is NaN it equals nothing; else nothing is NaN.
            here = any_of([e.eq(value, most[index]), *([e.ne(value, value)] if x.dtype.is_float else [])])
            return reduce("min", select(inside, select(here, number, none), none), find)

        tap = compute(shape, first, "tap")
        plane = product(x.shape[2:])
        # In 32 bits, where they suffice, twice as many at once.
        word = dt.int32 if isinstance(plane, int) and plane < 1 << 30 else dt.int64

        def place(*index: Expr) -> Expr:
            rest: Expr = tap[index]
            steps: list[Expr] = []
            for k in reversed(self.kernel):
                steps.insert(0, rest % k)
                rest = rest // k
            at: Expr = const(0, word)
            for o, t, n, s, (lo, _), d in zip(index[2:], steps, x.shape[2:], *self.spatial()):
                at = at * cast_to(dim_expr(n), word) + (cast_to(o, word) * s - lo + cast_to(t, word) * d)
            flat = (index[0] * x.shape[1] + index[1]) * plane + cast_to(at, dt.int64)
            return select(e.eq(tap[index], none), const(-1, dt.int64), flat)

        return most, compute(shape, place, "place")

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
class SumPool(Pool):
    """The sum of each window; padding is zero."""

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        taps, wide = self.taps(), compute_dtype(x.dtype)
        shape = self.out_shape(x.shape)

        def formula(*index: Expr) -> Expr:
            inner, inside = self.position(index[2:], taps, x.shape[2:])
            return sum_over(select(inside, cast_to(x[(*index[:2], *inner)], wide), const(0, wide)), taps)

        total = compute(shape, formula, "poolsum")
        return total if wide == x.dtype else compute(shape, lambda *i: cast_to(total[i], x.dtype), "rounded")

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        views = self.reference_windows(widen(x), 0)
        return rounded(views.sum(axis=tuple(range(x.ndim, views.ndim))), dt.dtype(x.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        return (builder.add(PoolGradient(*self._settings(), size=x.shape[2:]), g),)

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(int(np.prod(self.kernel)))


@dataclass(frozen=True)
class PoolGradient(Pool):
    """The gradient by x of SumPool, or of AveragePool if `mean`, from that by its result: each element has the sum of
    what is at the windows of which it is a part. [n, c, out…] → [n, c, size…].

    `size`: the spatial sizes of x. `count_include_pad` as AveragePool's.
    """

    size: tuple[Dim, ...] = ()
    mean: bool = False
    count_include_pad: bool = False

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a gradient that is not of the pool's result."""
        assumed: list[Assumption] = []
        (g,) = operands(types, 1)
        expect_kind(g.dtype, ("float",))
        x = (*g.shape[:2], *self.size)
        unify_shapes(self.out_shape(x), g.shape, "gradient", assumed)
        return Inferred(TensorType(g.dtype, x), assumed)

    @algorithm("tensors")
    def direct(self, g: Tensor) -> Tensor:
        steps, wide = self._steps(), compute_dtype(g.dtype)
        shape = (*g.shape[:2], *self.size)

        def share(*index: Expr) -> Expr:
            count = cast_to(self.counts(index[2:], self.size, self.count_include_pad), wide)
            return cast_to(g[index], wide) / count

        # Divided once for each window, not for each of its elements.
        source = compute(g.shape, share, "share") if self.mean else g

        def formula(*index: Expr) -> Expr:
            windows, covered = self._covering(index[2:], steps, g.shape[2:])
            return sum_over(select(covered, cast_to(source[(*index[:2], *windows)], wide), const(0, wide)), steps)

        total = compute(shape, formula, "spread")
        return total if wide == g.dtype else compute(shape, lambda *i: cast_to(total[i], g.dtype), "rounded")

    def reference(self, *arrays: Array | None) -> Array:
        (g,) = arrays
        assert g is not None
        strides, pads, dilations = self.spatial()
        size, counts = static(self.size), g.shape[2:]
        wide = widen(g)
        if self.mean:
            wide = wide / self._reference_counts(size, self.count_include_pad)
        need = [(c - 1) * s + (k - 1) * d + 1 for c, s, k, d in zip(counts, strides, self.kernel, dilations)]
        out = np.zeros((*g.shape[:2], *(max(m, n + lo) for m, n, (lo, _) in zip(need, size, pads))), wide.dtype)
        for tap in np.ndindex(*self.kernel):
            where = (slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(tap, dilations, counts, strides))
            out[(slice(None), slice(None), *where)] += wide
        inner = (slice(lo, lo + n) for n, (lo, _) in zip(size, pads))
        return rounded(out[(slice(None), slice(None), *inner)], dt.dtype(g.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (g,) = gradients
        assert g is not None
        pool = (
            AveragePool(*self._settings(), count_include_pad=self.count_include_pad)
            if self.mean
            else SumPool(*self._settings())
        )
        return (builder.add(pool, g),)

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(int(np.prod(self.kernel)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for op, shape, name in SumPool.variants():
            g = floats(static(op.out_shape(shape)))
            yield Sample(cls(*op._settings(), size=shape[2:]), (g,), name)
            for include in (False, True):
                yield Sample(
                    cls(*op._settings(), size=shape[2:], mean=True, count_include_pad=include),
                    (g,),
                    f"{name}_mean_{include}",
                )
        yield Sample(cls((2, 2), (1, 1), (1, 0, 0, 1), size=(4, 4)), (floats((1, 2, 4, 4), "float16"),), "float16")


@dataclass(frozen=True)
class MaxPoolGradient(Pool):
    """The gradient by x of MaxPool from that by its result and the indices that MaxPoolWithIndices gives: each element
    has the sum of what is at the windows whose greatest it is. [n, c, out…] twice → [n, c, size…].

    `size`: the spatial sizes of x. Every element looks at its windows: nothing is written twice, so that all elements
    are computed at once.
    """

    size: tuple[Dim, ...] = ()

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a gradient or indices that are not of the pool's result."""
        assumed: list[Assumption] = []
        g, places = operands(types, 2)
        expect_kind(g.dtype, ("float",))
        expect_kind(places.dtype, ("int",), "indices")
        x = (*g.shape[:2], *self.size)
        unify_shapes(self.out_shape(x), g.shape, "gradient", assumed)
        unify_shapes(g.shape, places.shape, "indices", assumed)
        return Inferred(TensorType(g.dtype, x), assumed)

    @algorithm("tensors")
    def direct(self, g: Tensor, places: Tensor) -> Tensor:
        steps, wide = self._steps(), compute_dtype(g.dtype)
        shape = (*g.shape[:2], *self.size)

        def formula(*index: Expr) -> Expr:
            windows, covered = self._covering(index[2:], steps, g.shape[2:])
            place: Expr = index[0]
            for i, n in zip(index[1:], shape[1:]):
                place = place * n + i
            # A window that exists is read in any case: reads under a condition would not be vectors.
            near = (e.maximum(e.minimum(w, as_dim(n - 1)), 0) for w, n in zip(windows, g.shape[2:]))
            at = (*index[:2], *near)
            chosen = e.and_(covered, e.eq(places[at], cast_to(place, places.dtype)))
            return sum_over(select(chosen, cast_to(g[at], wide), const(0, wide)), steps)

        total = compute(shape, formula, "spread")
        return total if wide == g.dtype else compute(shape, lambda *i: cast_to(total[i], g.dtype), "rounded")

    def reference(self, *arrays: Array | None) -> Array:
        g, places = arrays
        assert g is not None and places is not None
        shape = (*g.shape[:2], *static(self.size))
        wide = widen(g)
        out = np.zeros(shape, wide.dtype)
        found = places >= 0
        np.add.at(out.reshape(-1), places[found], wide[found])
        return rounded(out, dt.dtype(g.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """What is at the indices."""
        (_, places), (g,) = node.inputs, gradients
        assert places is not None and g is not None
        c = Composer(builder)
        found = c.gather(c.reshape(g, (product(g.shape),)), places, 0)
        # Windows without an element of x have -1.
        return c(Where(), c(Less(), places, 0), c.number(0, g.dtype), found), None

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(int(np.prod(self.kernel)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for op, shape, name in MaxPool.variants():
            pool = MaxPoolWithIndices(*op._settings())
            places = pool.reference(floats(shape))[1]
            yield Sample(cls(*op._settings(), size=shape[2:]), (floats(places.shape, seed=1), places), name)
        ties = MaxPoolWithIndices((3, 3), (2, 2), (1, 1, 1, 1))
        places = ties.reference(np.zeros((1, 2, 6, 5), np.float32))[1]
        yield Sample(
            cls(*ties._settings(), size=(6, 5)), (floats(places.shape, "float16", seed=1), places), "ties_float16"
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

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """sign(x) · |x|^(p - 1) · Σ g·y^(1 - p) over the windows; 0 where all of a window is 0."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = Composer(builder)
        wide, share = c.wide(x), c.wide(g)
        factor = c(Sign(), wide) if self.p == 1 else wide
        if self.p > 1:
            y = c.wide(node.output)
            zero = c(Equal(), y, 0.0)
            y = c(Where(), zero, c.number(1.0, y.dtype), y)
            share = c(Where(), zero, c.number(0.0, y.dtype), c.div(share, self._power(c, y, self.p - 1)))
        if self.p > 2:
            factor = c.mul(wide, self._power(c, c(Absolute(), wide), self.p - 2))
        total = c(PoolGradient(*self._settings(), size=x.shape[2:]), share)
        return (c.cast(c.mul(factor, total), x.dtype),)

    @staticmethod
    def _power(c: Composer, x: Value, p: int) -> Value:
        return x if p == 1 else c.mul(x, x) if p == 2 else c(Power(), x, float(p))

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

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """What is at the indices; these are taken to differ, as those of windows without overlap do."""
        (_, indices), (g,) = node.inputs, gradients
        assert indices is not None and g is not None
        c = Composer(builder)
        return c.gather(c.reshape(g, (product(self.shape),)), indices, 0), None

    @algorithm("decompose")
    def scattered(self, builder: GraphBuilder, x: Value, indices: Value) -> Value:
        c = Composer(builder)
        zeros = c(Fill(x.dtype, (product(self.shape),), 0))
        return c.reshape(c(ScatterElements(0), zeros, c.reshape(indices, (-1,)), c.reshape(x, (-1,))), self.shape)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((1, 1, 4, 4)), (floats((1, 1, 2, 2)), np.array([[[[5, 7], [13, 15]]]])), "plane")


__all__ = [
    "AveragePool",
    "LpPool",
    "MaxPool",
    "MaxPoolGradient",
    "MaxPoolWithIndices",
    "MaxUnpool",
    "PoolGradient",
    "SumPool",
]
