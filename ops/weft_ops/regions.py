"""Regions of images pooled to one size, and the gradients."""

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
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.loop.nodes import Allocate, Buffer, For, If, Let, Stmt, Store, buffer, seq
from weft.tensor.language import Dim, lowest
from weft_ops.composing import Composer
from weft_ops.examples import floats
from weft_ops.filling import Fill
from weft_ops.indexing import nest
from weft_ops.precision import compute_dtype, rounded
from weft_ops.scattering import ScatterElements
from weft_ops.shapes import (
    expect_kind,
    expect_rank,
    expect_some,
    operands,
    product,
    show,
    static,
    unify,
    unify_shapes,
)

CHANNELS = 8
"""Channels of a region that are sampled together."""


@dataclass(frozen=True)
class _BinSample:
    """A sample of a bin, in formulas: the image, row, column and weight of the four elements around it, whether it lies
    outside of the image, where it is 0, and whether it is the bin's first."""

    image: Expr
    corners: tuple[tuple[Expr, Expr, Expr], ...]
    off: Expr
    first: Expr


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
    no_gradient_by = {1: "regions decide which elements are read: by them no gradient is defined"}

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
        out = np.zeros((len(rois), x.shape[1], self.height, self.width), np.float64)
        for r, ph, pw in np.ndindex(len(rois), self.height, self.width):
            plane = x[int(batch[r])].astype(np.float64)
            found: list[Array] = []
            for sample in self._reference_samples(rois[r].astype(np.float64), x.shape[2:], ph, pw):
                corners = [plane[:, i, j] * k for i, j, k in sample] or [np.zeros(x.shape[1])]
                found.append(np.max(corners, 0) if self.maximum else np.sum(corners, 0))
            if found:
                out[r, :, ph, pw] = np.max(found, 0) if self.maximum else np.sum(found, 0) / len(found)
        return rounded(out, dt.dtype(x.dtype))

    def _reference_samples(
        self, roi: Array, size: tuple[int, ...], ph: int, pw: int
    ) -> Iterable[list[tuple[int, int, float]]]:
        """The samples of a bin: row, column and weight of the four elements of each, none outside of the image."""
        h, w = size
        x1, y1, x2, y2 = roi * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
        rw, rh = (x2 - x1, y2 - y1) if self.half_pixel else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        bh, bw = rh / self.height, rw / self.width
        gh, gw = (self.samples_per_bin or math.ceil(bh)), (self.samples_per_bin or math.ceil(bw))
        for iy, ix in np.ndindex(max(gh, 0), max(gw, 0)):
            y, z = y1 + ph * bh + (iy + 0.5) * bh / gh, x1 + pw * bw + (ix + 0.5) * bw / gw
            if y < -1 or y > h or z < -1 or z > w:
                yield []
                continue
            (ya, yb, fy), (xa, xb, fx) = self.corner(y, h), self.corner(z, w)
            pairs = ((ya, 1 - fy, xa, 1 - fx), (ya, 1 - fy, xb, fx), (yb, fy, xa, 1 - fx), (yb, fy, xb, fx))
            yield [(i, j, u * v) for i, u, j, v in pairs]

    @staticmethod
    def corner(v: float, n: int) -> tuple[int, int, float]:
        v = max(v, 0.0)
        low = int(v)
        return (n - 1, n - 1, 0.0) if low >= n - 1 else (low, low + 1, v - low)

    @algorithm("program")
    def sampled(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x, rois, batch), (out,) = inputs, outputs
        wide = compute_dtype(x.dtype)
        # A place is found once for some channels: for all of them, planes of a size that caches dislike would drive
        # each other out.
        some = const(CHANNELS, dt.int64)
        total = buffer("total", (some,), wide, "local")
        channel, start, end = (Var(name, dt.int64) for name in ("channel", "start", "end"))
        value = Var("value", wide)

        def body(i: tuple[Var, ...]) -> Stmt:
            r, block, ph, pw = i
            c, left = block * some + channel, e.minimum(x.shape[1] - block * some, some)

            def each(s: _BinSample) -> Stmt:
                terms = [cast_to(x[s.image, c, row, column], wide) * weight for row, column, weight in s.corners]
                best = terms[0]
                for t in terms[1:]:
                    best = e.maximum(best, t) if self.maximum else best + t
                old = total[channel]
                merge = select(s.first, value, e.maximum(old, value)) if self.maximum else old + value
                put = Store(total, (channel,), merge)
                return For(channel, left, Let(value, select(s.off, const(0.0, wide), best), put))

            def around(loops: Stmt, image: Expr, count: Expr) -> Stmt:
                divisor = cast_to(e.maximum(count, 1), wide)
                result = cast_to(total[end] if self.maximum else total[end] / divisor, x.dtype)
                clear = For(start, left, Store(total, (start,), const(0.0, wide)))
                put = For(end, left, Store(out, (r, block * some + end, ph, pw), result))
                return Allocate(total, seq(clear, loops, put))

            return self._bin_samples((x.shape[0], *x.shape[2:]), wide, rois, batch, (r, ph, pw), each, around)

        n, channels, height, width = out.shape
        return nest("bin", (n, (channels + CHANNELS - 1) // CHANNELS, height, width), body, parallel=1)

    def _bin_samples(
        self,
        shape: Sequence[Expr],
        wide: dt.DType,
        rois: Buffer,
        batch: Buffer,
        at: tuple[Expr, Expr, Expr],
        each: Callable[[_BinSample], Stmt],
        around: Callable[[Stmt, Expr, Expr], Stmt],
    ) -> Stmt:
        """`each` of the samples of a bin, in loops, with `around` them what comes before and after.

        Args:
            shape: of x, without channels: images, height, width.
            at: region, row and column of the bin.
            around: of the loops, the image, and how many samples there are.
        """
        (images, h, w), (r, ph, pw) = shape, at
        f: Callable[..., Any] = lambda name: Var(name, wide)
        y1, x1, bh, bw, sy, sx = (f(n) for n in ("y1", "x1", "bin_h", "bin_w", "sample_y", "sample_x"))
        gh, gw, iy, ix, ya, xa = (Var(n, dt.int64) for n in ("grid_h", "grid_w", "iy", "ix", "low_y", "low_x"))
        b = Var("image", dt.int64)
        edge: Callable[..., Any] = lambda k: (
            cast_to(rois[r, k], wide) * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
        )
        size: Callable[..., Any] = lambda lo, hi: hi - lo if self.half_pixel else e.maximum(hi - lo, 1.0)
        measured: Callable[..., Any] = lambda v: e.maximum(cast_to(call("ceil", v), dt.int64), 0)
        count: Callable[..., Any] = lambda v: (
            const(self.samples_per_bin, dt.int64) if self.samples_per_bin else measured(v)
        )
        place: Callable[..., Any] = lambda first, p, step, k, n: (
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
        weighted = (
            (ay, ax, (1.0 - fy) * (1.0 - fx)),
            (ay, bx, (1.0 - fy) * fx),
            (by, ax, fy * (1.0 - fx)),
            (by, bx, fy * fx),
        )
        off = e.any_of([sy < -1.0, sy > cast_to(h, wide), sx < -1.0, sx > cast_to(w, wide)])
        low: Callable[..., Any] = lambda v: cast_to(
            e.maximum(e.minimum(v, cast_to(e.maximum(h, w), wide)), 0.0), dt.int64
        )
        first = e.and_(e.eq(iy, 0), e.eq(ix, 0))
        take = Let(ya, low(sy), Let(xa, low(sx), each(_BinSample(b, weighted, off, first))))
        sample = Let(sy, place(y1, ph, bh, iy, gh), Let(sx, place(x1, pw, bw, ix, gw), take))
        image = e.maximum(e.minimum(cast_to(batch[r], dt.int64), images - 1), 0)
        stmt = around(For(iy, gh, For(ix, gw, sample)), b, gh * gw)
        for var, v in reversed([
            (b, image), (y1, edge(1)), (x1, edge(0)), (bh, size(y1, edge(3)) / float(self.height)), (bw, size(x1,
                edge(2)) / float(self.width)),
            (gh, count(bh)), (gw, count(bw)),
        ]):  # fmt: skip
            stmt = Let(var, v, stmt)
        return stmt

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x, rois, batch), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = Composer(builder)
        if self.maximum:
            places, weights = c.all(RoiAlignGreatest(**self.attributes()), c.wide(x), rois, batch)
            zeros = c(Fill(weights.dtype, (product(x.shape),), 0))
            added = c(
                ScatterElements(0, "add"), zeros, c.reshape(places, (-1,)), c.reshape(c.mul(c.wide(g), weights), (-1,))
            )
            return c.cast(c.reshape(added, x.shape), x.dtype), None, None
        op = RoiAlignGradient(**self.attributes(), shape=(x.shape[0], *x.shape[2:]))
        return c.cast(c(op, c.wide(g), rois, batch), x.dtype), None, None

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
class RoiAlignGreatest(RoiAlign):
    """Which element of x, of float32 or float64, is the result of RoiAlign with `maximum`, times which weight: flat
    indices in x, int64, and weights, both [regions, c, height, width]. The first of equal ones; where nothing is
    sampled, or a sample outside of the image is the greatest, the weight is 0."""

    def infer(self, *types: Type | None) -> Inferred:
        found = super().infer(*types)
        (result,) = found.types
        assert isinstance(result, TensorType)
        if not self.maximum or compute_dtype(result.dtype) != result.dtype:
            raise GraphError(f"expected `maximum`, and float32 or float64, got {result.dtype}", hint="cast first")
        return Inferred((TensorType(dt.int64, result.shape), result), found.assumes)

    def reference(self, *arrays: Array | None) -> Any:
        x, rois, batch = arrays
        assert x is not None and rois is not None and batch is not None
        _, channels, h, w = x.shape
        places = np.zeros((len(rois), channels, self.height, self.width), np.int64)
        weights = np.zeros(places.shape, x.dtype)
        for r, c, ph, pw in np.ndindex(*places.shape):
            first = (int(batch[r]) * channels + c) * h * w
            best = -np.inf
            for sample in self._reference_samples(rois[r].astype(np.float64), (h, w), ph, pw):
                for i, j, weight in sample or [(0, 0, 0.0)]:
                    value = float(x[int(batch[r]), c, i, j]) * weight
                    if value > best:
                        best = value
                        places[r, c, ph, pw], weights[r, c, ph, pw] = first + i * w + j, weight
        return places, weights

    @algorithm("program")
    def sampled(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x, rois, batch), (places, weights) = inputs, outputs
        wide, some = x.dtype, const(CHANNELS, dt.int64)
        best = buffer("best", (some,), wide, "local")
        channel, start = Var("channel", dt.int64), Var("start", dt.int64)

        def body(i: tuple[Var, ...]) -> Stmt:
            r, block, ph, pw = i
            left = e.minimum(x.shape[1] - block * some, some)
            c, none = block * some + channel, const(0, dt.int64)
            out: Callable[[Expr], tuple[Expr, ...]] = lambda k: (r, block * some + k, ph, pw)

            def each(s: _BinSample) -> Stmt:
                def candidate(name: str, value: Expr, row: Expr, column: Expr, weight: Expr) -> Stmt:
                    term = Var(name, wide)
                    flat = ((s.image * x.shape[1] + c) * x.shape[2] + row) * x.shape[3] + column
                    taken = seq(
                        Store(best, (channel,), term),
                        Store(places, out(channel), flat),
                        Store(weights, out(channel), weight),
                    )
                    return Let(term, value, If(term > best[channel], taken))

                zero = const(0.0, wide)
                inside = [
                    candidate(f"term{k}", x[s.image, c, p, q] * weight, p, q, weight)
                    for k, (p, q, weight) in enumerate(s.corners)
                ]
                return For(channel, left, If(s.off, candidate("term", zero, none, none, zero), seq(*inside)))

            def around(loops: Stmt, image: Expr, count: Expr) -> Stmt:
                clear = seq(
                    Store(best, (start,), lowest(wide)),
                    Store(places, out(start), none),
                    Store(weights, out(start), const(0.0, wide)),
                )
                return Allocate(best, seq(For(start, left, clear), loops))

            return self._bin_samples((x.shape[0], *x.shape[2:]), wide, rois, batch, (r, ph, pw), each, around)

        n, channels, height, width = places.shape
        return nest("bin", (n, (channels + CHANNELS - 1) // CHANNELS, height, width), body, parallel=1)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """By x, the weights are constant but for jumps."""
        return (None, None, None)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in RoiAlign.samples():
            if isinstance(sample.op, RoiAlign) and sample.op.maximum:
                yield Sample(cls(**sample.op.attributes()), sample.inputs, sample.name)


@dataclass(frozen=True)
class RoiAlignGradient(RoiAlign):
    """The gradient by x of RoiAlign without `maximum` from that by its result, g [regions, c, height, width]: [n, c, h,
    w], where `shape` is (n, h, w). Inputs g, of float32 or float64, rois, batch indices.

    Regions are added in order, so that equal operands give equal sums.
    """

    shape: tuple[Dim, ...] = ()

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        g, rois, batch = operands(types, 3)
        if not g.dtype.is_float or compute_dtype(g.dtype) != g.dtype:
            raise GraphError(f"gradient: expected float32 or float64, got {g.dtype}", hint="cast first")
        if len(self.shape) != 3 or self.maximum:
            raise GraphError(f"expected images, height and width, and no `maximum`, got {show(self.shape)}")
        expect_rank(g, 4, "gradient")
        expect_rank(rois, 2, "rois")
        unify(4, rois.shape[1], "region", assumed)
        unify(rois.shape[0], batch.shape[0], "regions", assumed)
        unify_shapes((rois.shape[0], g.shape[1], self.height, self.width), g.shape, "gradient", assumed)
        for d in self.shape:
            expect_some(d, rois.shape[0], "an axis that is added to", assumed)
        return Inferred(TensorType(g.dtype, (self.shape[0], g.shape[1], *self.shape[1:])), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        g, rois, batch = arrays
        assert g is not None and rois is not None and batch is not None
        images, h, w = static(self.shape)
        out = np.zeros((images, g.shape[1], h, w), np.float64)
        for r, ph, pw in np.ndindex(len(rois), self.height, self.width):
            samples = list(self._reference_samples(rois[r].astype(np.float64), (h, w), ph, pw))
            for i, j, weight in (corner for sample in samples for corner in sample):
                out[int(batch[r]), :, i, j] += g[r, :, ph, pw].astype(np.float64) / len(samples) * weight
        return rounded(out, dt.dtype(g.dtype))

    @algorithm("program")
    def sampled(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (g, rois, batch), (out,) = inputs, outputs
        wide, some = g.dtype, const(CHANNELS, dt.int64)
        images, channels, h, w = out.shape
        names = ("channel", "clear_image", "clear", "clear_row", "clear_column", "region", "bin_row", "bin_column")
        channel, zero_b, zero_c, zero_y, zero_x, r, ph, pw = (Var(name, dt.int64) for name in names)
        divisor, share = Var("divisor", wide), Var("share", wide)

        def body(i: tuple[Var, ...]) -> Stmt:
            (block,) = i
            left, c = e.minimum(channels - block * some, some), block * some + channel

            def each(s: _BinSample) -> Stmt:
                at = [(s.image, c, p, q) for p, q, _ in s.corners]
                adds = [Store(out, k, out[k] + share * weight) for k, (_, _, weight) in zip(at, s.corners)]
                return If(e.not_(s.off), For(channel, left, Let(share, g[r, c, ph, pw] / divisor, seq(*adds))))

            def around(loops: Stmt, image: Expr, count: Expr) -> Stmt:
                return Let(divisor, cast_to(e.maximum(count, 1), wide), loops)

            bins = self._bin_samples((images, h, w), wide, rois, batch, (r, ph, pw), each, around)
            zero = Store(out, (zero_b, block * some + zero_c, zero_y, zero_x), const(0.0, wide))
            clear = For(zero_b, images, For(zero_c, left, For(zero_y, h, For(zero_x, w, zero))))
            return seq(clear, For(r, g.shape[0], For(ph, g.shape[2], For(pw, g.shape[3], bins))))

        return nest("block", ((channels + CHANNELS - 1) // CHANNELS,), body, parallel=1)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (_, rois, batch), (by,) = node.inputs, gradients
        assert by is not None
        given = {k: v for k, v in self.attributes().items() if k != "shape"}
        return builder.add(RoiAlign(**given), by, rois, batch), None, None

    def tolerance(self, *types: TensorType) -> float:
        return 256.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in RoiAlign.samples():
            x, rois, batch = sample.inputs
            op = sample.op
            assert isinstance(op, RoiAlign) and x is not None and rois is not None
            if not op.maximum:
                g = floats((len(rois), x.shape[1], op.height, op.width), seed=1)
                shape = (x.shape[0], *x.shape[2:])
                yield Sample(cls(**op.attributes(), shape=shape), (g, rois, batch), sample.name)


__all__ = ["RoiAlign", "RoiAlignGradient", "RoiAlignGreatest"]
