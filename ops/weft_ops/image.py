"""Images: resizing, sampling at given places, regions, blocks of pixels as channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Operator, Sample, algorithm
from weft.loop.nodes import Allocate, Buffer, For, Let, Stmt, Store, buffer, seq
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.composing import Composer
from weft_ops.examples import floats, integers
from weft_ops.indexing import nest
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import (
    axes_of,
    dim_ceildiv,
    dim_expr,
    dim_floordiv,
    dim_max,
    expect_kind,
    expect_rank,
    expect_some,
    operands,
    product,
    same,
    show,
    static,
    tensor,
    unify,
)
from weft_ops.words import COORDINATES, INTERPOLATIONS, NEAREST, Border, Coordinates, Interpolation, Nearest

F64 = dt.float64


def cubic_weights(t: Any, a: float) -> list[Any]:
    """The weights of the four neighbours of a place at fraction t after the second; numbers, arrays or formulas."""
    s = 1.0 - t
    near: Callable[..., Any] = lambda v: ((a + 2) * v - (a + 3)) * v * v + 1.0
    far: Callable[..., Any] = lambda v: ((a * v - 5 * a) * v + 8 * a) * v - 4 * a
    return [far(t + 1.0), near(t), near(s), far(s + 1.0)]


@dataclass(frozen=True)
class Resize(Operator):
    """x resampled to `shape` along `axes` (None: all); elements nearest, linear or cubic, as ONNX's Resize.

    Inputs: x, then optional scales [axes] (floats known only at run time) and roi [2·axes] (starts…, ends…, for
    tf_crop_and_resize). Scales are `scales`, else that input, else new size / old size. Places are computed in float64.
    """

    shape: tuple[Dim, ...]
    mode: Interpolation = "nearest"
    coordinates: Coordinates = "half_pixel"
    nearest: Nearest = "round_prefer_floor"
    axes: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a shape, scales or names that do not fit."""
        assumed: list[Assumption] = []
        x = tensor(types[0] if types else None)
        expect_kind(x.dtype, ("int", "uint", "float"))
        if len(self.shape) != x.rank:
            raise GraphError(f"shape: expected {x.rank} dimensions, got {show(self.shape)}")
        for value, known, name in (
            (self.mode, INTERPOLATIONS, "mode"),
            (self.coordinates, COORDINATES, "coordinates"),
            (self.nearest, NEAREST, "nearest"),
        ):
            if value not in known:
                raise GraphError(f"{name}: expected one of {', '.join(known)}, got '{value}'")
        axes = self.all_axes(x.rank)
        if self.scales is not None and len(self.scales) != len(axes):
            raise GraphError(f"scales: expected {len(axes)} number(s), got {self.scales}")
        if self.coordinates == "tf_crop_and_resize" and (len(types) < 3 or types[2] is None):
            raise GraphError("roi: expected an input for tf_crop_and_resize, got nothing")
        for d in range(x.rank):
            if d not in axes:
                unify(x.shape[d], self.shape[d], f"dimension {d} is not resized", assumed)
            else:
                expect_some(x.shape[d], self.shape[d], f"dimension {d}, which is resized", assumed)
        return Inferred(TensorType(x.dtype, self.shape), assumed)

    def all_axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.axes is None else axes_of(self.axes, rank)

    def moves(self, k: int, before: Dim, after: Dim, runtime: bool) -> bool:
        """Whether resizing along the k-th axis may change anything."""
        still = (self.scales[k] == 1 if self.scales is not None else not runtime) and same(before, after) is True
        return not still or self.coordinates == "tf_crop_and_resize"

    @property
    def commutes(self) -> Commutes:
        return "anything" if self.mode == "nearest" and self.coordinates != "tf_crop_and_resize" else "nothing"

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        x = inputs[0]
        if x is None or x.shape[axis] != output.shape[axis]:
            return False
        axes = self.all_axes(x.rank)
        return axis not in axes or not self.moves(
            axes.index(axis), x.shape[axis], output.shape[axis], len(inputs) > 1 and inputs[1] is not None
        )

    # -- meaning
    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        """One axis after the other: on the way there are sizes of the operand and of the result. None with `antialias`,
        whose scales decide."""
        if self.antialias or inputs[0] is None:
            return None
        sizes = zip(inputs[0].shape, outputs[0].shape)
        return (1 << 9) * math.prod(max(1, n, m) for n, m in sizes if isinstance(n, int) and isinstance(m, int))

    def reference(self, *arrays: Array | None) -> Array:
        x, scales, roi = (*arrays, None, None)[:3]
        assert x is not None
        shape = static(self.shape)
        axes = self.all_axes(x.ndim)
        y = x if self.mode == "nearest" else x.astype(np.float64)
        for k, d in enumerate(axes):
            if not self.moves(k, x.shape[d], shape[d], scales is not None):
                continue
            n, m = x.shape[d], shape[d]
            scale = self.scales[k] if self.scales is not None else float(scales[k]) if scales is not None else m / n
            at, outside = self.places(
                np.arange(m, dtype=np.float64),
                n,
                m,
                scale,
                None if roi is None else (float(roi[k]), float(roi[k + len(axes)])),
            )
            column = (-1, *(1 for _ in x.shape[d + 1 :]))
            if self.mode == "nearest":
                y = y.take(np.clip(self.nearest_place(at), 0, n - 1).astype(np.int64), d)
            else:
                index, weights = self.taps(at, n, scale)
                y = np.asarray(
                    sum(y.take(np.clip(index[q], 0, n - 1), d) * weights[q].reshape(column) for q in range(len(index)))
                )
            if outside is not None:
                y = np.where(outside.reshape(column), np.asarray(self.extrapolation, y.dtype), y)
        return y if self.mode == "nearest" else rounded(y, dt.dtype(x.dtype))

    def places(
        self, o: Array, n: int, m: int, scale: float, roi: tuple[float, float] | None
    ) -> tuple[Array, Array | None]:
        width = scale * n
        match self.coordinates:
            case "align_corners":
                return (o * 0 if width == 1 else o * (n - 1) / (width - 1)), None
            case "asymmetric":
                return o / scale, None
            case "tf_crop_and_resize":
                assert roi is not None
                start, end = roi
                at = o * 0 + (end - start) * (n - 1) / 2 if width == 1 else o * (end - start) * (n - 1) / (width - 1)
                at = at + start * (n - 1)
                return at, (at < 0) | (at > n - 1)
            case "pytorch_half_pixel":
                return (o * 0 - 0.5 if width == 1 else (o + 0.5) / scale - 0.5), None
            case "half_pixel_symmetric":
                return n / 2 * (1 - m / width) + (o + 0.5) / scale - 0.5, None
        return (o + 0.5) / scale - 0.5, None

    def nearest_place(self, at: Array) -> Array:
        match self.nearest:
            case "floor":
                return np.floor(at)
            case "ceil":
                return np.ceil(at)
            case "round_prefer_ceil":
                return np.floor(at + 0.5)
        return np.ceil(at - 0.5)

    def taps(self, at: Array, n: int, scale: float) -> tuple[list[Array], list[Array]]:
        base = np.floor(at).astype(np.int64)
        t = at - base
        if self.antialias:
            squeeze = min(scale, 1.0)
            reach = math.ceil((2 if self.mode == "cubic" else 1) / squeeze)
            offsets = list(range(1 - reach, reach + 1))
            distance = [np.abs((q - t) * squeeze) for q in offsets]
            weights = [self.kernel_value(v) for v in distance]
        else:
            offsets = [0, 1] if self.mode == "linear" else [-1, 0, 1, 2]
            weights = [1 - t, t] if self.mode == "linear" else cubic_weights(t, self.cubic_a)
        index = [base + q for q in offsets]
        if self.exclude_outside:
            weights = [np.where((i >= 0) & (i < n), w, 0) for i, w in zip(index, weights)]
        if self.exclude_outside or self.antialias:
            total = np.asarray(sum(weights))
            weights = [w / np.where(total == 0, 1, total) for w in weights]
        return index, weights

    def kernel_value(self, v: Array) -> Array:
        if self.mode == "linear":
            return np.asarray(np.clip(1 - v, 0, 1))
        a = self.cubic_a
        return np.where(
            v <= 1, ((a + 2) * v - (a + 3)) * v * v + 1, np.where(v < 2, ((a * v - 5 * a) * v + 8 * a) * v - 4 * a, 0)
        )

    # -- formulas
    @algorithm("tensors")
    def separable(self, x: Tensor, scales: Tensor | None = None, roi: Tensor | None = None) -> Tensor:
        """Along each axis, tables of places and weights, then one pass; nearest moves all axes at once."""
        axes = self.all_axes(x.rank)
        todo = [(k, d) for k, d in enumerate(axes) if self.moves(k, x.shape[d], self.shape[d], scales is not None)]
        if self.mode == "nearest":
            return self.move_nearest(x, todo, scales, roi, len(axes))
        wide = compute_dtype(x.dtype) if x.dtype.is_float else dt.float32
        y: Tensor = compute(x.shape, lambda *i: cast_to(x[i], wide), "widened") if wide != x.dtype else x
        for k, d in todo:
            y = self.along(y, k, d, self.shape[d], scales, roi, len(axes))
        if y is x or y.dtype != x.dtype:
            last = y
            y = compute(self.shape, lambda *i: cast_to(last[i], x.dtype), "resize")
        return y

    def scale(self, k: int, n: Dim, m: Dim, scales: Tensor | None) -> Expr:
        if self.scales is not None:
            return const(self.scales[k], F64)
        if scales is not None:
            return cast_to(scales[k], F64)
        return cast_to(dim_expr(m), F64) / cast_to(dim_expr(n), F64)

    def table(self, k: int, d: int, n: Dim, m: Dim, scales: Tensor | None, roi: Tensor | None, count: int) -> Tensor:
        """Where each output element lies in the input, float64 [m]."""
        scale, size = self.scale(k, n, m, scales), cast_to(dim_expr(n), F64)
        width = scale * size
        one, last = e.eq(width, 1.0), size - 1.0
        beyond = select(one, const(1.0, F64), width - 1.0)

        def formula(i: Expr) -> Expr:
            o = cast_to(i, F64)
            match self.coordinates:
                case "align_corners":
                    return select(one, const(0.0, F64), o * last / beyond)
                case "asymmetric":
                    return o / scale
                case "tf_crop_and_resize":
                    assert roi is not None
                    start, end = cast_to(roi[k], F64), cast_to(roi[k + count], F64)
                    return select(one, (end - start) * last / 2.0, o * (end - start) * last / beyond) + start * last
                case "pytorch_half_pixel":
                    return select(one, const(-0.5, F64), (o + 0.5) / scale - 0.5)
                case "half_pixel_symmetric":
                    shift = size / 2.0 * (1.0 - cast_to(dim_expr(m), F64) / width)
                    return shift + (o + 0.5) / scale - 0.5
            return (o + 0.5) / scale - 0.5

        return compute((m,), formula, f"place{d}")

    def outside(self, place: Expr, n: Dim) -> Expr | None:
        if self.coordinates != "tf_crop_and_resize":
            return None
        return e.or_(place < 0.0, place > cast_to(dim_expr(as_dim(n - 1)), F64))

    def _repeats(self, k: int, n: Dim, m: Dim, runtime: bool) -> int | None:
        """How often each of n elements stands in the result, where that is what the nearest ones are."""
        scale = (
            self.scales[k]
            if self.scales is not None
            else m / n
            if not runtime and isinstance(m, int) and isinstance(n, int) and n
            else 0.0
        )
        floors = self.coordinates == "asymmetric" and self.nearest == "floor"
        rounds = self.coordinates == "half_pixel" and self.nearest.startswith("round")
        if not (floors or rounds) or scale != int(scale) or same(as_dim(n * int(scale)), m) is not True:
            return None
        return int(scale)

    def move_nearest(
        self, x: Tensor, todo: Sequence[tuple[int, int]], scales: Tensor | None, roi: Tensor | None, count: int
    ) -> Tensor:
        repeats = {
            d: times for k, d in todo if (times := self._repeats(k, x.shape[d], self.shape[d], scales is not None))
        }
        places = {
            d: self.table(k, d, x.shape[d], self.shape[d], scales, roi, count) for k, d in todo if d not in repeats
        }

        def pick(at: Expr) -> Expr:
            match self.nearest:
                case "floor":
                    return call("floor", at)
                case "ceil":
                    return call("ceil", at)
                case "round_prefer_ceil":
                    return call("floor", at + 0.5)
            return call("ceil", at - 0.5)

        indices = {
            d: compute(
                t.shape,
                lambda o, t=t, d=d: e.maximum(e.minimum(cast_to(pick(t[o]), dt.int64), as_dim(x.shape[d] - 1)), 0),
                f"index{d}",
            )
            for d, t in places.items()
        }

        def formula(*i: Expr) -> Expr:
            value = x[
                tuple(
                    indices[d][i[d]] if d in indices else i[d] // repeats[d] if d in repeats else i[d]
                    for d in range(x.rank)
                )
            ]
            gone = [o for d, t in places.items() if (o := self.outside(t[i[d]], x.shape[d])) is not None]
            return select(e.any_of(gone), const(self.extrapolation, x.dtype), value) if gone else value

        return compute(self.shape, formula, "resize")

    def along(self, y: Tensor, k: int, d: int, m: Dim, scales: Tensor | None, roi: Tensor | None, count: int) -> Tensor:
        n, wide = y.shape[d], y.dtype
        place = self.table(k, d, n, m, scales, roi, count)
        base: Callable[..., Any] = lambda o: cast_to(call("floor", place[o]), dt.int64)
        fraction: Callable[..., Any] = lambda o: place[o] - call("floor", place[o])
        inside: Callable[..., Any] = lambda i: e.and_(i >= 0, i < n)
        clamped: Callable[..., Any] = lambda i: e.maximum(e.minimum(i, as_dim(n - 1)), 0)
        shape = (*y.shape[:d], m, *y.shape[d + 1 :])

        def finish(value: Expr, o: Expr) -> Expr:
            gone = self.outside(place[o], n)
            return value if gone is None else select(gone, const(self.extrapolation, wide), value)

        if self.antialias:
            # A window for the scale new/old suffices: a given scale is at least that.
            reach = dim_ceildiv(as_dim(n * (2 if self.mode == "cubic" else 1)), dim_max(m, 1))
            reach = dim_max(reach, 2 if self.mode == "cubic" else 1)
            squeeze = e.minimum(self.scale(k, n, m, scales), 1.0)

            def weight(o: Expr, q: Expr) -> Expr:
                offset = q + 1 - reach
                v = call("abs", (cast_to(offset, F64) - fraction(o)) * squeeze)
                a = self.cubic_a
                if self.mode == "linear":
                    w = e.maximum(1.0 - v, 0.0)
                else:
                    near, far = ((a + 2) * v - (a + 3)) * v * v + 1.0, ((a * v - 5 * a) * v + 8 * a) * v - 4 * a
                    w = select(v <= 1.0, near, select(v < 2.0, far, const(0.0, F64)))
                return select(inside(base(o) + offset), w, const(0.0, F64)) if self.exclude_outside else w

            q, p = reduce_axis(as_dim(reach * 2), f"tap{d}"), reduce_axis(as_dim(reach * 2), f"part{d}")
            total = compute((m,), lambda o: sum_over(weight(o, p.var), p), f"total{d}")
            share: Callable[..., Any] = lambda o, j: cast_to(
                weight(o, j) / select(e.eq(total[o], 0.0), const(1.0, F64), total[o]), wide
            )
            weights = compute((m, as_dim(reach * 2)), share, f"weight{d}")
            first = compute((m,), lambda o: base(o) + 1 - reach, f"first{d}")
            blended = compute(
                shape,
                lambda *i: sum_over(weights[i[d], q.var] * y[(*i[:d], clamped(first[i[d]] + q.var), *i[d + 1 :])], q),
                f"along{d}",
            )
            if self.coordinates != "tf_crop_and_resize":
                return blended
            return compute(shape, lambda *i: finish(blended[i], i[d]), f"cropped{d}")
        offsets = [0, 1] if self.mode == "linear" else [-1, 0, 1, 2]

        def table(o: Expr, j: Expr) -> Expr:
            t = fraction(o)
            ws = [1.0 - t, t] if self.mode == "linear" else cubic_weights(t, self.cubic_a)
            if self.exclude_outside:
                ws = [select(inside(base(o) + q), w, const(0.0, F64)) for q, w in zip(offsets, ws)]
                total: Expr = ws[0]
                for w in ws[1:]:
                    total = total + w
                ws = [w / select(e.eq(total, 0.0), const(1.0, F64), total) for w in ws]
            chosen = ws[-1]
            for q in reversed(range(len(ws) - 1)):
                chosen = select(e.eq(j, q), ws[q], chosen)
            return cast_to(chosen, wide)

        weights = compute((m, len(offsets)), table, f"weight{d}")
        first = compute((m,), base, f"first{d}")

        def blend(*i: Expr) -> Expr:
            value: Expr | None = None
            for q, offset in enumerate(offsets):
                term = weights[i[d], q] * y[(*i[:d], clamped(first[i[d]] + offset), *i[d + 1 :])]
                value = term if value is None else value + term
            assert value is not None
            return finish(value, i[d])

        return compute(shape, blend, f"along{d}")

    def tolerance(self, *types: TensorType) -> float:
        return 0.0 if self.mode == "nearest" else 32.0 if types[0].dtype.is_float else 1.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((1, 2, 4, 5))
        all_nearest: tuple[Nearest, ...] = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for near in all_nearest:
            yield Sample(cls((1, 2, 7, 3), nearest=near), (x,), f"nearest_{near}")
        modes: tuple[Interpolation, ...] = ("linear", "cubic")
        places: tuple[Coordinates, ...] = (
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
        )
        for mode in modes:
            for c in places:
                yield Sample(cls((1, 2, 7, 3), mode, c, axes=(2, 3)), (x,), f"{mode}_{c}")
            yield Sample(cls((1, 2, 2, 9), mode, exclude_outside=True), (x,), f"{mode}_exclude")
            yield Sample(cls((1, 2, 2, 3), mode, antialias=True), (x,), f"{mode}_antialias")
            yield Sample(
                cls((1, 2, 6, 2), mode, antialias=True, exclude_outside=True), (x,), f"{mode}_antialias_exclude"
            )
            roi = np.array([0.4, 0.6, 1.2, 1.7], np.float32)
            yield Sample(
                cls((1, 2, 3, 3), mode, "tf_crop_and_resize", axes=(2, 3), extrapolation=9.0),
                (x, None, roi),
                f"{mode}_crop",
            )
            yield Sample(cls((1, 2, 2, 3), mode, scales=(1.0, 1.0, 0.6, 0.6)), (x,), f"{mode}_scales")
            yield Sample(
                cls((1, 2, 2, 8), mode, axes=(2, 3)), (x, np.array([0.6, 1.7], np.float32)), f"{mode}_runtime_scales"
            )
            yield Sample(cls((5,), mode), (floats((3,), "float16"),), f"{mode}_float16")
        yield Sample(cls((1, 2, 1, 1), "linear", "align_corners"), (x,), "one")
        yield Sample(cls((2, 5), "nearest"), (integers((2, 3), "uint8", 0, 255),), "uint8")
        yield Sample(cls((2, 3), "linear"), (floats((2, 3)),), "same")


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


CHANNELS = 8
"""Channels of a region that are sampled together."""


@dataclass(frozen=True)
class RoiAlign(Operator):
    """Regions of x [n, c, h, w] pooled to [regions, c, height, width]; inputs x, rois [regions, 4] (x1, y1, x2, y2),
    batch indices [regions].

    Each bin takes samples² bilinear samples (0: as many as its size rounds up to) and gives their mean, or the greatest
    weighted corner if `maximum`.
    """

    height: int = 1
    width: int = 1
    samples_per_bin: int = 0
    spatial_scale: float = 1.0
    half_pixel: bool = True
    maximum: bool = False
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, rois, batch = operands(types, 3)
        expect_kind(x.dtype, ("float",))
        expect_rank(x, 4, "x")
        expect_rank(rois, 2, "rois")
        unify(4, rois.shape[1], "region", assumed)
        unify(rois.shape[0], batch.shape[0], "regions", assumed)
        for d in x.shape[2:]:
            expect_some(d, rois.shape[0], "an axis that is sampled", assumed)
        return Inferred(TensorType(x.dtype, (rois.shape[0], x.shape[1], self.height, self.width)), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, rois, batch = arrays
        assert x is not None and rois is not None and batch is not None
        h, w = x.shape[2:]
        out = np.zeros((len(rois), x.shape[1], self.height, self.width), np.float64)
        shift = 0.5 if self.half_pixel else 0.0
        least = 0.0 if self.half_pixel else 1.0
        for r, roi in enumerate(rois.astype(np.float64)):
            x1, y1, x2, y2 = roi * self.spatial_scale - shift
            rw, rh = (x2 - x1, y2 - y1) if self.half_pixel else (max(x2 - x1, least), max(y2 - y1, least))
            bh, bw = rh / self.height, rw / self.width
            gh, gw = (self.samples_per_bin or math.ceil(bh)), (self.samples_per_bin or math.ceil(bw))
            plane = x[int(batch[r])].astype(np.float64)
            for ph, pw in np.ndindex(self.height, self.width):
                found: list[Array] = []
                for iy, ix in np.ndindex(max(gh, 0), max(gw, 0)):
                    y, z = y1 + ph * bh + (iy + 0.5) * bh / gh, x1 + pw * bw + (ix + 0.5) * bw / gw
                    if y < -1 or y > h or z < -1 or z > w:
                        corners = [np.zeros(x.shape[1])] * 4
                    else:
                        (ya, yb, fy), (xa, xb, fx) = self.corner(y, h), self.corner(z, w)
                        pairs = ((ya, 1 - fy, xa, 1 - fx), (ya, 1 - fy, xb, fx), (yb, fy, xa, 1 - fx), (yb, fy, xb, fx))
                        corners = [plane[:, i, j] * u * v for i, u, j, v in pairs]
                    found.append(np.max(corners, 0) if self.maximum else np.sum(corners, 0))
                if found:
                    out[r, :, ph, pw] = np.max(found, 0) if self.maximum else np.sum(found, 0) / max(gh * gw, 1)
        return rounded(out, dt.dtype(x.dtype))

    @staticmethod
    def corner(v: float, n: int) -> tuple[int, int, float]:
        v = max(v, 0.0)
        low = int(v)
        return (n - 1, n - 1, 0.0) if low >= n - 1 else (low, low + 1, v - low)

    @algorithm("program")
    def sampled(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x, rois, batch), (out,) = inputs, outputs
        wide = compute_dtype(x.dtype)
        h, w = x.shape[2], x.shape[3]
        # A place is found once for some channels: for all of them, planes of a size that caches dislike would drive
        # each other out.
        some = const(CHANNELS, dt.int64)
        total = buffer("total", (some,), wide, "local")
        channel, start, end = (Var(name, dt.int64) for name in ("channel", "start", "end"))
        f: Callable[..., Any] = lambda name: Var(name, wide)
        y1, x1, bh, bw, sy, sx, value = (f(n) for n in ("y1", "x1", "bin_h", "bin_w", "sample_y", "sample_x", "value"))
        gh, gw, iy, ix, ya, xa = (Var(n, dt.int64) for n in ("grid_h", "grid_w", "iy", "ix", "low_y", "low_x"))
        b = Var("image", dt.int64)

        def body(i: tuple[Var, ...]) -> Stmt:
            r, block, ph, pw = i
            c, left = block * some + channel, e.minimum(x.shape[1] - block * some, some)
            edge: Callable[..., Any] = lambda k: (
                cast_to(rois[r, k], wide) * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
            )
            size: Callable[..., Any] = lambda lo, hi: hi - lo if self.half_pixel else e.maximum(hi - lo, 1.0)
            measured: Callable[..., Any] = lambda v: e.maximum(cast_to(call("ceil", v), dt.int64), 0)
            count: Callable[..., Any] = lambda v: (
                const(self.samples_per_bin, dt.int64) if self.samples_per_bin else measured(v)
            )
            at: Callable[..., Any] = lambda first, p, step, k, n: (
                first + cast_to(p, wide) * step + (cast_to(k, wide) + 0.5) * step / cast_to(n, wide)
            )

            def corners(v: Expr, low: Expr, n: Expr) -> tuple[Expr, Expr, Expr]:
                last = low >= n - 1
                return (
                    select(last, n - 1, low),
                    select(last, n - 1, low + 1),
                    select(last, const(0.0, wide), e.maximum(v, 0.0) - cast_to(low, wide)),
                )

            (ay, by, fy), (ax, bx, fx) = corners(sy, ya, h), corners(sx, xa, w)
            read: Callable[..., Any] = lambda p, q: cast_to(x[b, c, p, q], wide)
            terms = [
                read(ay, ax) * ((1.0 - fy) * (1.0 - fx)),
                read(ay, bx) * ((1.0 - fy) * fx),
                read(by, ax) * (fy * (1.0 - fx)),
                read(by, bx) * (fy * fx),
            ]
            best = terms[0]
            for t in terms[1:]:
                best = e.maximum(best, t) if self.maximum else best + t
            off = e.any_of([sy < -1.0, sy > cast_to(h, wide), sx < -1.0, sx > cast_to(w, wide)])
            low: Callable[..., Any] = lambda v: cast_to(
                e.maximum(e.minimum(v, cast_to(e.maximum(h, w), wide)), 0.0), dt.int64
            )
            first = e.and_(e.eq(iy, 0), e.eq(ix, 0))
            merge = select(first, value, e.maximum(total[channel], value)) if self.maximum else total[channel] + value
            each = For(channel, left, Let(value, select(off, const(0.0, wide), best), Store(total, (channel,), merge)))
            take = Let(ya, low(sy), Let(xa, low(sx), each))
            sample = Let(sy, at(y1, ph, bh, iy, gh), Let(sx, at(x1, pw, bw, ix, gw), take))
            divisor = cast_to(e.maximum(gh * gw, 1), wide)
            result = cast_to(total[end] if self.maximum else total[end] / divisor, x.dtype)
            clear, put = (
                For(start, left, Store(total, (start,), const(0.0, wide))),
                For(end, left, Store(out, (r, block * some + end, ph, pw), result)),
            )
            loops = seq(clear, For(iy, gh, For(ix, gw, sample)), put)
            image = e.maximum(e.minimum(cast_to(batch[r], dt.int64), x.shape[0] - 1), 0)
            stmt: Stmt = Allocate(total, loops)
            for var, v in reversed([
                (b, image), (y1, edge(1)), (x1, edge(0)), (bh, size(y1, edge(3)) / float(self.height)), (bw, size(x1,
                    edge(2)) / float(self.width)),
                (gh, count(bh)), (gw, count(bw)),
            ]):  # fmt: skip
                stmt = Let(var, v, stmt)
            return stmt

        n, channels, height, width = out.shape
        return nest("bin", (n, (channels + CHANNELS - 1) // CHANNELS, height, width), body, parallel=1)

    def tolerance(self, *types: TensorType) -> float:
        return 64.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((2, 2, 6, 7), lo=0)
        rois = np.array([[0.3, 0.4, 4.1, 5.2], [1.2, -2.3, 9.7, 3.1], [2.5, 2.5, 2.6, 2.7]], np.float32)
        batch = np.array([0, 1, 1])
        for maximum in (False, True):
            yield Sample(cls(2, 3, 2, 1.0, True, maximum), (x, rois, batch), f"half_pixel_{maximum}")
            yield Sample(cls(2, 2, 0, 0.9, False, maximum), (x, rois, batch), f"adaptive_{maximum}")
        yield Sample(cls(1, 2, 2), (floats((1, 11, 4, 5)), rois[:1], np.zeros(1, np.int64)), "channels")


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

    def tolerance(self, *types: TensorType) -> float:
        return 16.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for align in (False, True):
            yield Sample(cls((3, 4), align), (floats((2, 2, 3)),), f"plane_{align}")
            yield Sample(cls((2, 3, 2), align), (floats((1, 3, 4)),), f"volume_{align}")


__all__ = ["AffineGrid", "DepthToSpace", "GridSample", "Resize", "RoiAlign", "SpaceToDepth"]
