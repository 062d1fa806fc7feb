"""Sampling of images at given places, and of regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.functions import call
from weft.expr.nodes import Expr, Var, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.loop.nodes import Allocate, Buffer, For, Let, Stmt, Store, buffer, seq
from weft.tensor.language import Dim, Tensor, as_dim, compute
from weft_ops.examples import floats
from weft_ops.indexing import nest
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.resizing import cubic_weights
from weft_ops.shapes import (
    dim_expr,
    expect_kind,
    expect_rank,
    expect_some,
    operands,
    product,
    same,
    show,
    static,
    unify,
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


__all__ = ["AffineGrid", "GridSample", "RoiAlign"]
