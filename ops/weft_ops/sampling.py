"""Sampling of images at given places."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import STEP, Array, Gradients, Operator, Sample, algorithm, touched
from weft.loop.nodes import Buffer, For, Let, Stmt, Store, seq
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Floor, Maximum, Minimum, Round, Where
from weft_ops.comparison import Equal, Less, LessEqual, LogicalAnd
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul
from weft_ops.examples import floats
from weft_ops.gathering import GatherElements
from weft_ops.indexing import nest
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.resizing import cubic_weights
from weft_ops.shapes import (
    dim_expr,
    expect_kind,
    expect_rank,
    expect_some,
    one_dtype,
    operands,
    product,
    same,
    show,
    static,
    unify,
    unify_shapes,
)
from weft_ops.words import Border, Interpolation


@dataclass(frozen=True)
class GridSample(Operator):
    """x [n, c, in…] sampled at grid [n, out…, axes]: places from -1 to 1, the last axis of x first; nearest, linear or
    cubic, as torch's grid_sample.

    Places beyond the border: zeros, the border's element, or reflected. `align_corners`: -1 and 1 are centres of
    elements, else their outer edges.
    """

    mode: Interpolation = "linear"
    padding: Border = "zeros"
    align_corners: bool = False
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, grid = operands(types, 2)
        expect_kind(x.dtype, ("float",))
        expect_kind(grid.dtype, ("float",), "grid")
        if x.rank < 3 or grid.rank != x.rank:
            raise GraphError(
                f"expected x [n, c, in…] and grid [n, out…, axes], got {show(x.shape)} and {show(grid.shape)}"
            )
        unify(x.shape[0], grid.shape[0], "batch", assumed)
        unify(x.rank - 2, grid.shape[-1], "axes of the grid", assumed)
        for d in x.shape[2:]:
            expect_some(d, product(grid.shape[1:-1]), "an axis that is sampled", assumed)
        return Inferred(TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1])), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, grid = arrays
        assert x is not None and grid is not None
        sizes = x.shape[2:]
        wide = widen(x)
        out = np.zeros((*x.shape[:2], *grid.shape[1:-1]), wide.dtype)
        for b in range(x.shape[0]):
            for o in np.ndindex(*grid.shape[1:-1]):
                at = [self.position(float(p), n) for p, n in zip(grid[(b, *o)][::-1], sizes)]
                taps = [self.taps(v, n) for v, n in zip(at, sizes)]
                for choice in np.ndindex(*(len(t) for t in taps)):
                    picked = [t[q] for t, q in zip(taps, choice)]
                    if all(0 <= i < n for (i, _), n in zip(picked, sizes)):
                        out[(b, slice(None), *o)] += wide[(b, slice(None), *(i for i, _ in picked))] * math.prod(
                            w for _, w in picked
                        )
        return rounded(out, dt.dtype(x.dtype))

    def position(self, p: float, n: int) -> float:
        v = (p + 1) / 2 * (n - 1) if self.align_corners else ((p + 1) * n - 1) / 2
        v = float(np.rint(v)) if self.mode == "nearest" else v
        lo, hi = (0.0, n - 1.0) if self.align_corners else (-0.5, n - 0.5)
        if lo <= v <= hi or self.padding == "zeros":
            return v
        return min(max(v, 0.0), n - 1.0) if self.padding == "border" else self.reflected(v, lo, hi)

    def reflected(self, v: float, lo: float, hi: float) -> float:
        if lo <= v <= hi or hi == lo:
            return v
        distance = lo - v if v < lo else v - hi
        turns, rest = divmod(distance, hi - lo)
        return lo + rest if (turns % 2 == 0) == (v < lo) else hi - rest

    def taps(self, v: float, n: int) -> list[tuple[int, float]]:
        base = math.floor(v)
        t = v - base
        if self.mode == "nearest":
            pairs = [(int(v), 1.0)]
        elif self.mode == "linear":
            pairs = [(base, 1 - t), (base + 1, t)]
        else:
            pairs = list(zip(range(base - 1, base + 3), cubic_weights(t, -0.75)))
        lo, hi = (0.0, n - 1.0) if self.align_corners else (-0.5, n - 0.5)
        if self.padding == "border":
            return [(min(max(i, 0), n - 1), w) for i, w in pairs]
        return [(int(self.reflected(i, lo, hi)), w) for i, w in pairs] if self.padding == "reflection" else pairs

    @algorithm("tensors")
    def direct(self, x: Tensor, grid: Tensor) -> Tensor:
        wide = compute_dtype(x.dtype)
        sizes = x.shape[2:]
        n = len(sizes)

        def bounds(size: Dim) -> tuple[Expr, Expr]:
            s = cast_to(dim_expr(size), wide)
            return (const(0.0, wide), s - 1.0) if self.align_corners else (const(-0.5, wide), s - 0.5)

        def reflected(v: Expr, lo: Expr, hi: Expr) -> Expr:
            span = select(e.eq(hi, lo), const(1.0, wide), hi - lo)
            below = v < lo
            distance = select(below, lo - v, v - hi)
            turns = call("floor", distance / span)
            rest = distance - turns * span
            even = e.eq(turns - call("floor", turns * 0.5) * 2.0, 0.0)
            bounced = select(e.eq(even, below), lo + rest, hi - rest)
            return select(e.and_(lo <= v, v <= hi), v, select(e.eq(hi, lo), v, bounced))

        def place(*i: Expr) -> Expr:
            result: Expr | None = None
            for d, size in reversed(list(enumerate(sizes))):
                p, s = cast_to(grid[(*i[:-1], n - 1 - d)], wide), cast_to(dim_expr(size), wide)
                v = (p + 1.0) * 0.5 * (s - 1.0) if self.align_corners else ((p + 1.0) * s - 1.0) * 0.5
                v = call("round", v) if self.mode == "nearest" else v
                lo, hi = bounds(size)
                if self.padding == "border":
                    v = select(e.and_(lo <= v, v <= hi), v, e.minimum(e.maximum(v, 0.0), s - 1.0))
                elif self.padding == "reflection":
                    v = reflected(v, lo, hi)
                result = v if result is None else select(e.eq(i[-1], d), v, result)
            assert result is not None
            return result

        places = compute(grid.shape, place, "place")

        def formula(*i: Expr) -> Expr:
            options: list[list[tuple[Expr, Expr, Expr]]] = []  # per axis: safe index, weight, whether it exists
            for d, size in enumerate(sizes):
                v = places[(i[0], *i[2:], d)]
                floor = call("floor", v)
                t, base = v - floor, cast_to(floor, dt.int64)
                if self.mode == "nearest":
                    pairs: list[tuple[Expr, Expr]] = [(base, const(1.0, wide))]
                elif self.mode == "linear":
                    pairs = [(base, 1.0 - t), (base + 1, t)]
                else:
                    pairs = [(base + (q - 1), w) for q, w in enumerate(cubic_weights(t, -0.75))]
                axis: list[tuple[Expr, Expr, Expr]] = []
                for index, w in pairs:
                    if self.padding == "reflection":
                        index = cast_to(reflected(cast_to(index, wide), *bounds(size)), dt.int64)
                    safe = e.maximum(e.minimum(index, as_dim(size - 1)), 0)
                    axis.append((safe, w, const(True) if self.padding == "border" else e.eq(safe, index)))
                options.append(axis)
            total: Expr = const(0.0, wide)
            for choice in np.ndindex(*(len(o) for o in options)):
                picked = [o[q] for o, q in zip(options, choice)]
                weight = picked[0][1]
                for _, w, _ in picked[1:]:
                    weight = weight * w
                value = cast_to(x[(i[0], i[1], *(index for index, _, _ in picked))], wide)
                total = total + weight * select(e.all_of(ok for _, _, ok in picked), value, const(0.0, wide))
            return cast_to(total, x.dtype)

        return compute((*x.shape[:2], *grid.shape[1:-1]), formula, "gridsample")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The result is a weighted gather of the elements of x: by x, g scattered back; by the grid, the products of
        what was gathered and the derivatives of the weights. At the border of x, beyond which it repeats, the
        derivative is 0, as torch has it."""
        (x, grid), (g,) = node.inputs, gradients
        assert x is not None and grid is not None and g is not None
        c, wide, sizes = Composer(builder), compute_dtype(x.dtype), x.shape[2:]
        count = product(grid.shape[1:-1])
        where = c.reshape(c.cast(grid, wide), (grid.shape[0], count, len(sizes)))
        axes = [self._along(c, c.pick(where, 2, len(sizes) - 1 - d), n) for d, n in enumerate(sizes)]
        choices = list(np.ndindex(*(len(taps) for taps in axes)))

        def stacked(parts: Sequence[Value]) -> Value:
            return c.concat([c.reshape(v, (v.shape[0], 1, count)) for v in parts], 1)

        def places(choice: Sequence[int]) -> Value:
            flat = axes[0][choice[0]].place
            for taps, q, n in zip(axes[1:], choice[1:], sizes[1:]):
                flat = c.add(c.mul(flat, c.dim(n)), taps[q].place)
            return flat

        def weights(choice: Sequence[int], by: int | None = None) -> Value:
            """The weight of one choice of taps, or its derivative by the place along an axis."""
            factors = [t[q].slope if d == by else t[q].weight for d, (t, q) in enumerate(zip(axes, choice))]
            total = factors[0]
            for v in factors[1:]:
                total = c.mul(total, v)
            return total

        taken, flat = stacked([places(q) for q in choices]), (*x.shape[:2], product(sizes))
        rows, given = c.reshape(c.cast(g, wide), (*x.shape[:2], count)), c.reshape(c.cast(x, wide), flat)
        by_x = c(WeightedScatter(flat[2]), rows, taken, stacked([weights(q) for q in choices]))
        by_x = c.cast(c.reshape(by_x, x.shape), x.dtype)
        if self.mode == "nearest":
            return by_x, None
        by_weights = _by_weights(c, given, taken, rows)
        by_grid = [
            c.sum(c.mul(by_weights, stacked([weights(q, d) for q in choices])), (1,), False)
            for d in reversed(range(len(sizes)))
        ]
        joined = c.concat([c.reshape(v, (*v.shape, 1)) for v in by_grid], 2)
        return by_x, c.cast(c.reshape(joined, grid.shape), grid.dtype)

    def _along(self, c: Composer, p: Value, n: Dim) -> list[_Tap]:
        """The taps along an axis of n elements of places p of the grid."""
        last = c.cast(c.dim(as_dim(n - 1)), p.dtype)
        size = c.add(last, 1.0)
        step = c.mul(last if self.align_corners else size, 0.5)
        at = c.sub(c.mul(c.add(p, 1.0), step), c.number(0.0 if self.align_corners else 0.5, p.dtype))
        lo = c.number(0.0 if self.align_corners else -0.5, p.dtype)
        hi = c.sub(last, lo)
        slope = c.broadcast(step, p.shape)
        zero = c.number(0.0, p.dtype)
        at = c(Round(), at) if self.mode == "nearest" else at
        if self.padding == "border":
            clipped = c(Maximum(), c(Minimum(), at, last), zero)
            if self.mode == "cubic":
                inside = c(LogicalAnd(), c(LessEqual(), lo, at), c(LessEqual(), at, hi))
                clipped = c(Where(), inside, at, clipped)
            else:
                inside = c(LogicalAnd(), c(Less(), zero, at), c(Less(), at, last))
            at, slope = clipped, c(Where(), inside, slope, zero)
        elif self.padding == "reflection":
            at, sign = _reflected(c, at, lo, hi)
            slope = c.mul(slope, sign)
        base = c(Floor(), at)
        t = c.sub(at, base)
        found: list[_Tap] = []
        for offset, terms in _POLYNOMIALS[self.mode].items():
            i = c.add(base, float(offset))
            if self.padding == "reflection":
                i, _ = _reflected(c, i, lo, hi)
            safe = c(Maximum(), c(Minimum(), i, last), zero)
            weight = _polynomial(c, terms, t)
            change = c.mul(_polynomial(c, [k * v for k, v in enumerate(terms)][1:] or [0.0], t), slope)
            if self.padding != "border":
                exists = c(Equal(), safe, i)
                weight, change = (c(Where(), exists, v, zero) for v in (weight, change))
            # Of a place that is no number: the first element, with a weight that is none either.
            place = c.cast(c(Where(), c(LessEqual(), zero, safe), safe, zero), dt.int64)
            found.append(_Tap(place, weight, change))
        return found

    def tolerance(self, *types: TensorType) -> float:
        return 256.0  # places are rounded to the dtype before they choose elements

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, grid = floats((2, 2, 4, 3)), floats((2, 3, 5, 2), lo=-1.4, hi=1.4)
        modes: tuple[Interpolation, ...] = ("nearest", "linear", "cubic")
        for mode in modes:
            for padding in ("zeros", "border", "reflection"):
                yield Sample(cls(mode, padding, mode == "linear"), (x, grid), f"{mode}_{padding}")
        yield Sample(
            cls("linear", "zeros"), (floats((1, 1, 3, 4, 2)), floats((1, 2, 2, 2, 3), lo=-1.2, hi=1.2)), "volume"
        )


@dataclass(frozen=True)
class _Tap:
    """One of the elements along an axis that a place is made of, for all places [n, places]: its index, its weight, and
    the derivative of that by the grid."""

    place: Value
    weight: Value
    slope: Value


def _cubic_polynomials(a: float) -> dict[int, list[float]]:
    """`cubic_weights` as coefficients of powers of t."""
    from numpy.polynomial import Polynomial

    weights = cubic_weights(Polynomial([0.0, 1.0]), a)
    return {q - 1: [float(v) for v in w.coef] for q, w in enumerate(weights)}


_POLYNOMIALS: dict[Interpolation, dict[int, list[float]]] = {
    "nearest": {0: [1.0]},
    "linear": {0: [1.0, -1.0], 1: [0.0, 1.0]},
    "cubic": _cubic_polynomials(-0.75),
}
"""Per tap, by its distance from the one below the place: the coefficients of its weight as a polynomial of the place's
fraction."""


def _polynomial(c: Composer, terms: Sequence[float], t: Value) -> Value:
    total = c.broadcast(c.number(terms[-1], t.dtype), t.shape)
    for v in reversed(terms[:-1]):
        total = c.add(c.mul(total, t), v)
    return total


def _reflected(c: Composer, v: Value, lo: Value, hi: Value) -> tuple[Value, Value]:
    """As `GridSample.reflected`, and the derivative of it: 1 or -1."""
    one = c.number(1.0, v.dtype)
    same_ends = c(Equal(), hi, lo)
    span = c(Where(), same_ends, one, c.sub(hi, lo))
    below = c(Less(), v, lo)
    distance = c(Where(), below, c.sub(lo, v), c.sub(v, hi))
    turns = c(Floor(), c.div(distance, span))
    rest = c.sub(distance, c.mul(turns, span))
    even = c(Equal(), c.sub(turns, c.mul(c(Floor(), c.mul(turns, 0.5)), 2.0)), 0.0)
    from_low = c(Equal(), even, below)
    bounced = c(Where(), from_low, c.add(lo, rest), c.sub(hi, rest))
    kept = c(LogicalAnd(), c(LessEqual(), lo, v), c(LessEqual(), v, hi))
    still = c(Where(), same_ends, v, bounced)
    # Of the distance ±1, from the low end 1, from the high one -1.
    sign = c(Where(), even, c.number(-1.0, v.dtype), one)
    sign = c(Where(), same_ends, one, sign)
    return c(Where(), kept, v, still), c(Where(), kept, one, sign)


def _by_weights(c: Composer, x: Value, places: Value, g: Value) -> Value:
    """The gradient of WeightedGather by its weights: Σ over channels of g [n, c, p] times what it takes of x [n, c, s],
    [n, taps, p]."""
    n, taps, count = places.shape
    flat = c.reshape(places, (n, 1, as_dim(taps * count)))
    taken = c(GatherElements(2), x, c.broadcast(flat, (*x.shape[:2], as_dim(taps * count))))
    taken = c.reshape(taken, (*x.shape[:2], taps, count))
    return c.sum(c.mul(taken, c.reshape(g, (*g.shape[:2], 1, count))), (1,), False)


@dataclass(frozen=True)
class WeightedGather(Operator):
    """Σ over taps of weights [n, taps, p] times the elements of x [n, c, s] at places [n, taps, p], integers from 0 to
    s - 1: [n, c, p]."""

    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, places, weights = operands(types, 3)
        one_dtype([x, weights])
        expect_kind(x.dtype, ("float",))
        expect_kind(places.dtype, ("int",), "places")
        for t, name in ((x, "x"), (places, "places"), (weights, "weights")):
            expect_rank(t, 3, name)
        unify_shapes(places.shape, weights.shape, "weights", assumed)
        unify(x.shape[0], places.shape[0], "batch", assumed)
        expect_some(x.shape[2], product(places.shape), "elements that are gathered", assumed)
        return Inferred(TensorType(x.dtype, (*x.shape[:2], places.shape[2])), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, places, weights = arrays
        assert x is not None and places is not None and weights is not None
        at = np.clip(places, 0, x.shape[2] - 1)
        n, channels, _ = x.shape
        flat = np.broadcast_to(at.reshape(n, 1, -1), (n, channels, at[0].size if n else 0))
        taken = np.take_along_axis(widen(x), flat, 2).reshape(n, channels, *at.shape[1:])
        return rounded((taken * widen(weights)[:, None]).sum(2), dt.dtype(x.dtype))

    @algorithm("tensors")
    def direct(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        wide, tap = compute_dtype(x.dtype), reduce_axis(places.shape[1], "tap")

        def formula(b: Expr, channel: Expr, p: Expr) -> Expr:
            at = e.maximum(e.minimum(cast_to(places[b, tap, p], dt.int64), as_dim(x.shape[2] - 1)), 0)
            return sum_over(cast_to(x[b, channel, at], wide) * cast_to(weights[b, tap, p], wide), tap)

        total = compute((*x.shape[:2], places.shape[2]), formula, "gathered")
        return total if wide == x.dtype else compute(total.shape, lambda *i: cast_to(total[i], x.dtype), "rounded")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x, places, weights), (g,) = node.inputs, gradients
        assert x is not None and places is not None and weights is not None and g is not None
        c = Composer(builder)
        by_x = c(WeightedScatter(x.shape[2]), c.wide(g), places, c.wide(weights))
        by_weights = _by_weights(c, c.wide(x), places, c.wide(g))
        return c.cast(by_x, x.dtype), None, c.cast(by_weights, weights.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return 16.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        places = np.array([[[0, 3, 4, 1], [2, 2, 0, 1]], [[1, 1, 2, 3], [4, 4, 4, 0]]])
        weights = floats((2, 2, 4), seed=1)
        yield Sample(cls(), (floats((2, 3, 5)), places, weights), "float32")
        yield Sample(cls(), (floats((2, 1, 5), "float16"), places, weights.astype(np.float16)), "float16")


@dataclass(frozen=True)
class WeightedScatter(Operator):
    """Zeros [n, c, size] to which every element of g [n, c, p] is added at the places [n, taps, p], times weights [n,
    taps, p]: the gradient of WeightedGather by x. In the order of p, so that equal operands give equal sums. Of float32
    or float64, in which the sums are."""

    size: Dim
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        g, places, weights = operands(types, 3)
        if compute_dtype(one_dtype([g, weights])) != g.dtype or not g.dtype.is_float:
            raise GraphError(f"gradient: expected float32 or float64, got {g.dtype}", hint="cast first")
        expect_kind(places.dtype, ("int",), "places")
        for t, name in ((g, "gradient"), (places, "places"), (weights, "weights")):
            expect_rank(t, 3, name)
        unify_shapes(places.shape, weights.shape, "weights", assumed)
        for d in (0, 2):
            unify(g.shape[d], places.shape[d], f"places, dimension {d}", assumed)
        expect_some(self.size, product(places.shape), "elements that are added to", assumed)
        return Inferred(TensorType(g.dtype, (*g.shape[:2], self.size)), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return 16 * touched(*inputs, *outputs) + STEP * touched(inputs[1])

    def reference(self, *arrays: Array | None) -> Array:
        g, places, weights = arrays
        assert g is not None and places is not None and weights is not None
        (size,) = static([self.size])
        out = np.zeros((*g.shape[:2], size), widen(g).dtype)
        at = np.clip(places, 0, size - 1)
        for b, channel in np.ndindex(*g.shape[:2]):
            np.add.at(out[b, channel], at[b], widen(weights)[b] * widen(g)[b, channel])
        return rounded(out, dt.dtype(g.dtype))

    @algorithm("program")
    def ordered(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (g, places, weights), (out,) = inputs, outputs
        count, taps, size = g.shape[2], places.shape[1], out.shape[2]
        start, p, tap, at = (Var(name, dt.int64) for name in ("start", "p", "tap", "at"))

        def body(i: tuple[Var, ...]) -> Stmt:
            place = e.maximum(e.minimum(cast_to(places[i[0], tap, p], dt.int64), size - 1), 0)
            add = Store(out, (*i, at), out[(*i, at)] + weights[i[0], tap, p] * g[(*i, p)])
            clear = For(start, size, Store(out, (*i, start), const(0.0, out.dtype)))
            return seq(clear, For(p, count, For(tap, taps, Let(at, place, add))))

        return nest("row", out.shape[:2], body, parallel=2)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (g, places, weights), (by,) = node.inputs, gradients
        assert g is not None and places is not None and weights is not None and by is not None
        c = Composer(builder)
        return c(WeightedGather(), by, places, weights), None, _by_weights(c, by, places, g)

    def tolerance(self, *types: TensorType) -> float:
        return 64.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        places = np.array([[[0, 3, 4, 1], [2, 2, 0, 1]], [[1, 1, 2, 3], [4, 4, 4, 0]]])
        weights = floats((2, 2, 4), seed=1)
        yield Sample(cls(5), (floats((2, 3, 4)), places, weights), "float32")


@dataclass(frozen=True)
class AffineGrid(Operator):
    """The grid that GridSample takes for an affine map: theta [n, k, k + 1], k = 2 or 3 spatial axes of `size`, gives
    [n, size…, k]."""

    size: tuple[Dim, ...]
    align_corners: bool = False
    kind = "opaque"

    def infer(self, *types: Type | None) -> TensorType:
        (theta,) = operands(types, 1)
        expect_kind(theta.dtype, ("float",))
        k = len(self.size)
        if theta.rank != 3 or any(same(a, b) is False for a, b in zip(theta.shape[1:], (k, k + 1))):
            raise GraphError(f"theta: expected [n, {k}, {k + 1}], got {show(theta.shape)}")
        return TensorType(theta.dtype, (theta.shape[0], *self.size, k))

    def reference(self, *arrays: Array | None) -> Array:
        (theta,) = arrays
        assert theta is not None
        size = static(self.size)
        lines = []
        for n in size:
            o = np.arange(n, dtype=np.float64)
            lines.append(-1 + 2 * o / max(n - 1, 1) if self.align_corners else -1 + (2 * o + 1) / n)
        mesh = np.meshgrid(*lines, indexing="ij")
        base = np.stack([*mesh[::-1], np.ones(size)], -1)
        return rounded(np.einsum("nij,...j->n...i", theta.astype(np.float64), base), dt.dtype(theta.dtype))

    @algorithm("tensors")
    def direct(self, theta: Tensor) -> Tensor:
        wide = compute_dtype(theta.dtype)
        k = len(self.size)

        def formula(*i: Expr) -> Expr:
            total = cast_to(theta[i[0], i[-1], k], wide)
            for j in range(k):
                d = k - 1 - j
                o, n = cast_to(i[1 + d], wide), cast_to(dim_expr(self.size[d]), wide)
                v = o * 2.0 / e.maximum(n - 1.0, 1.0) - 1.0 if self.align_corners else (o * 2.0 + 1.0) / n - 1.0
                total = total + cast_to(theta[i[0], i[-1], j], wide) * v
            return cast_to(total, theta.dtype)

        return compute((theta.shape[0], *self.size, k), formula, "affinegrid")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The product with what each coefficient adds to the grid: the grids of maps that have one coefficient."""
        (theta,), (g,) = node.inputs, gradients
        assert theta is not None and g is not None
        c, k, count = Composer(builder), len(self.size), product(self.size)
        wide = compute_dtype(g.dtype)
        units = np.zeros((k + 1, k, k + 1), np.float64)
        units[:, 0] = np.eye(k + 1)
        shares = c(AffineGrid(self.size, self.align_corners), builder.constant(units.astype(wide.numpy), "units"))
        shares = c.transpose(c.reshape(c.pick(shares, -1, 0), (k + 1, count)), (1, 0))
        rows = c.transpose(c.reshape(c.cast(g, wide), (g.shape[0], count, k)), (0, 2, 1))
        return (c.cast(c(MatMul(), rows, shares), theta.dtype),)

    def tolerance(self, *types: TensorType) -> float:
        return 16.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for align in (False, True):
            yield Sample(cls((3, 4), align), (floats((2, 2, 3)),), f"plane_{align}")
            yield Sample(cls((2, 3, 2), align), (floats((1, 3, 4)),), f"volume_{align}")


__all__ = [
    "AffineGrid",
    "GridSample",
    "WeightedGather",
    "WeightedScatter",
]
