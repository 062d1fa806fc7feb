"""Resizing of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import Array, Commutes, Gradients, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.examples import floats, integers
from weft_ops.precision import compute_dtype, rounded
from weft_ops.shapes import (
    axes_of,
    dim_ceildiv,
    dim_expr,
    dim_max,
    expect_kind,
    expect_some,
    product,
    same,
    show,
    static,
    tensor,
    unify,
)
from weft_ops.words import COORDINATES, INTERPOLATIONS, NEAREST, Coordinates, Interpolation, Nearest

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
    no_gradient_by = {
        1: "scales decide which elements are read: by them no gradient is defined",
        2: "the region decides which elements are read: by it no gradient is defined",
    }

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
        for k, d in self._in_order(todo, x.shape):
            y = self.along(y, k, d, self.shape[d], scales, roi, len(axes))
        if y is x or y.dtype != x.dtype:
            last = y
            y = compute(self.shape, lambda *i: cast_to(last[i], x.dtype), "resize")
        return y

    def _in_order(self, todo: Sequence[tuple[int, int]], before: Sequence[Dim]) -> list[tuple[int, int]]:
        """The axes in the order in which they are resized: those that shrink first, those that grow last. The innermost
        one, along which the elements of a vector are gathered, comes between them: there are the fewest elements."""

        def grows(d: int) -> bool:
            n, m = before[d], self.shape[d]
            return isinstance(n, int) and isinstance(m, int) and m > n

        return sorted(todo, key=lambda axis: 1 if axis[1] == len(before) - 1 else 2 if grows(axis[1]) else 0)

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
            taken = compute((m, as_dim(reach * 2)), lambda o, j: clamped(base(o) + j + 1 - reach), f"taken{d}")
            blended = compute(
                shape,
                lambda *i: sum_over(weights[i[d], q.var] * y[(*i[:d], taken[i[d], q.var], *i[d + 1 :])], q),
                f"along{d}",
            )
            if self.coordinates != "tf_crop_and_resize":
                return blended
            return compute(shape, lambda *i: finish(blended[i], i[d]), f"cropped{d}")
        offsets = [0, 1] if self.mode == "linear" else [-1, 0, 1, 2]

        def table(j: Expr, o: Expr) -> Expr:
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

        # A row for each tap: neighbouring results read neighbouring weights and places.
        weights = compute((len(offsets), m), table, f"weight{d}")
        taken = compute((len(offsets), m), lambda j, o: clamped(base(o) + j + offsets[0]), f"taken{d}")

        def blend(*i: Expr) -> Expr:
            value: Expr | None = None
            for q in range(len(offsets)):
                term = weights[q, i[d]] * y[(*i[:d], taken[q, i[d]], *i[d + 1 :])]
                value = term if value is None else value + term
            assert value is not None
            return finish(value, i[d])

        return compute(shape, blend, f"along{d}")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Along each axis a product with the weights of all elements in all results, which are what the identity is
        resampled to: at compile time where sizes are known. Of elements that are repeated, the sum over the repeats."""
        from weft_ops.composing import Composer
        from weft_ops.contraction import MatMul
        from weft_ops.indexing import Eye

        (x, scales, roi), (g,) = (*node.inputs, None, None)[:3], gradients
        assert x is not None and g is not None
        c, axes, runtime = Composer(builder), self.all_axes(len(x.shape)), scales is not None
        found = c.wide(g)
        for k, d in enumerate(axes):
            n, m = x.shape[d], self.shape[d]
            if not self.moves(k, n, m, runtime):
                continue
            before, after = found.shape[:d], found.shape[d + 1 :]
            times = self._repeats(k, n, m, runtime) if self.mode == "nearest" else None
            if times is not None:
                found = c.sum(c.reshape(found, (*before, n, times, *after)), (d + 1,), False)
                continue
            one = replace(
                self,
                shape=(n, m),
                axes=(1,),
                scales=None if self.scales is None else (self.scales[k],),
                extrapolation=0.0,
            )
            ends = None if roi is None else c.concat([c.slice(roi, 0, j, 1) for j in (k, k + len(axes))], 0)
            weights = c(one, c(Eye(found.dtype, n, n)), None if scales is None else c.slice(scales, 0, k, 1), ends)
            if after:
                flat = c.reshape(found, (product(before), m, product(after)))
                found = c(MatMul(), weights, flat)
            else:
                found = c(MatMul(), c.reshape(found, (product(before), m)), c.transpose(weights, (1, 0)))
            found = c.reshape(found, (*before, n, *after))
        return (c.cast(found, x.dtype), None, None)[: len(node.inputs)]

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


__all__ = ["Resize"]
