"""Operators that the profile of C for microcontrollers computes: sums of products of 8-bit integers, channels last,
and the scaling of such sums.

Sums have two steps, which a schedule puts one behind the other for a few results at a time: the operand's elements
without their zero point, as int16, with what lies outside of the picture as 0; then sums of products of these with the
weights.
The graph pass `weft_c.narrow_sums` makes them of convolutions and products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr.nodes import Const, Expr, all_of, cast_to, const, le, lt, select, shl, shr
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Elementwise, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops import Conv
from weft_ops.shapes import broadcast, operands

QUAD = 4
"""Products that the weights of one word of 32 bits are for."""


def _numbers(shape: tuple[int, ...], least: int, most: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(least, most + 1, shape).astype(np.int32)


def _bytes(shape: tuple[int, ...], seed: int = 0) -> Array:
    return _numbers(shape, -128, 127, seed).astype(np.int8)


@dataclass(frozen=True)
class Windows(Operator):
    """What both operators have: windows of x [n, in…, c], int8 or uint8.

    Attributes: kernel, strides, pads (begin, end), dilations per axis of the picture; `zero`, the operand's zero point,
    with which the picture is surrounded. No axis: products of matrices.
    """

    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    dilations: tuple[int, ...] = ()
    zero: int = 0
    kind = "contraction"

    def checked(self, types: Sequence[Type | None]) -> tuple[TensorType, TensorType]:
        """The operands' types. Raises GraphError."""
        x, w = operands(types, 2)
        if x.dtype not in (dt.int8, dt.uint8) or w.dtype != dt.int8:
            raise GraphError(f"expected int8 or uint8 and int8, got {x.dtype} and {w.dtype}")
        if x.rank != len(self.kernel) + 2:
            raise GraphError(f"expected x of rank {len(self.kernel) + 2}, got {x.rank}")
        if not isinstance(x.shape[-1], int):
            raise GraphError("expected channels of a known number")
        return x, w

    def counts(self, x: Sequence[Dim]) -> tuple[Dim, ...]:
        """Windows along each axis of the picture."""
        pads = (*(lo for lo, _ in self.pads), *(hi for _, hi in self.pads))
        return Conv(self.strides, pads, self.dilations).out_dims(x[1:-1], self.kernel)

    def element(
        self, x: Tensor, batch: Expr, at: Sequence[Expr], channel: Expr, *conditions: Expr, divided: bool = False
    ) -> Expr:
        """x[batch, at…, channel] without its zero point, 0 outside of the picture, int16. `at` begins at the padding.

        One comparison of numbers without sign says whether an index is inside. The loop passes do not divide loops by
        such comparisons; `divided`: by those of the last axis of the picture they do, so that its interior has none.
        """
        inside = list(conditions)
        index = []
        for k, (i, n, pair) in enumerate(zip(at, x.shape[1:-1], self.pads)):
            moved = i - pair[0] if pair[0] else i
            index.append(moved)
            if divided and k == len(at) - 1:
                inside += [le(0, moved)] if pair[0] else []
                inside += [lt(moved, n)] if pair[1] else []
            elif any(pair):
                inside.append(lt(cast_to(moved, dt.uint32), cast_to(const(0) + n, dt.uint32)))
        value = cast_to(x[(batch, *index, channel)], dt.int16)
        value = value - const(self.zero, dt.int16) if self.zero else value
        return select(all_of(inside), value, Const(0, dt.int16)) if inside else value

    def windows(self, x: Array) -> Array:
        """[n, out…, kernel…, c] of x without its zero point, int64."""
        wide = np.moveaxis(x.astype(np.int64) - self.zero, -1, 1)
        padded = np.pad(wide, [(0, 0), (0, 0), *self.pads])
        n = len(self.kernel)
        if not n:
            return wide
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]
        views = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(2, 2 + n)))
        steps = (slice(None), slice(None), *(slice(None, None, s) for s in self.strides))
        return np.moveaxis(views[(*steps, *(slice(None, None, d) for d in self.dilations))], 1, -1)

    def tolerance(self, *types: TensorType) -> float:
        return 0.0


@dataclass(frozen=True)
class WindowSum(Windows):
    """Convolution or product: [n, out…, results], int32, with weights w [groups, quads, beside, 2, 2].

    The weights of a result are those of the window row by row, channels last, in quads of four, filled up with zeros:
    w[g, q, r, j, i] is number 4q + 2i + j of result g·beside + r. So a word has the quad of one result, its second and
    third byte exchanged, and beside it is that of the next: two results are together, or one if their number is odd.
    """

    results: int = 1
    role = "window_sum"

    @property
    def beside(self) -> int:
        """Results whose weights are together."""
        return 2 - self.results % 2

    def infer(self, *types: Type | None) -> Type:
        """Raises GraphError for operands that do not fit."""
        x, w = self.checked(types)
        length = math.prod(self.kernel) * int(str(x.shape[-1]))
        wanted = (self.results // self.beside, -(-length // QUAD), self.beside, 2, 2)
        if w.shape != wanted:
            raise GraphError(f"expected weights {list(wanted)}, got {list(w.shape)}")
        return TensorType(dt.int32, (x.shape[0], *self.counts(x.shape), self.results))

    def reference(self, *arrays: Array | None) -> Array:
        x, w = arrays
        assert x is not None and w is not None
        rows = self.windows(x)
        n = len(self.kernel)
        rows = rows.reshape(*rows.shape[: 1 + n], -1)
        flat = w.astype(np.int64).transpose(0, 2, 1, 4, 3).reshape(self.results, -1)
        return np.asarray(rows @ flat[:, : rows.shape[-1]].T).astype(np.int32)

    @algorithm("tensors")
    def columns(self, x: Tensor, w: Tensor) -> Tensor:
        """The elements of each window side by side, then sums."""
        n, channels = len(self.kernel), int(str(x.shape[-1]))
        length, quads = math.prod(self.kernel) * channels, w.shape[1]
        counts = self.counts(x.shape)

        def column(b: Expr, *index: Expr) -> Expr:
            at, k = index[:n], index[n]
            inside = [lt(k, length)] if length % QUAD else []
            taps: list[Expr] = []
            rest = k // channels if n else k
            for size in reversed(self.kernel):
                taps.insert(0, rest % size if len(taps) < n - 1 else rest)
                rest = rest // size
            places = [i * s + t * d for i, s, t, d in zip(at, self.strides, taps, self.dilations)]
            return self.element(x, b, places, k % channels if n else k, *inside, divided=True)

        side_by_side = compute((x.shape[0], *counts, as_dim(quads * QUAD)), column, "columns")
        q, i, j = reduce_axis(quads, "quad"), reduce_axis(2, "pair"), reduce_axis(2, "half")

        def total(b: Expr, *index: Expr) -> Expr:
            a = side_by_side[(b, *index[:n], q.var * QUAD + i.var * 2 + j.var)]
            weight = w[index[n] // 2, q, index[n] % 2, j, i] if self.beside == 2 else w[index[n], q, 0, j, i]
            return sum_over(cast_to(a, dt.int32) * cast_to(weight, dt.int32), [q, i, j])

        return compute((x.shape[0], *counts, self.results), total, "sums")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        ones, none = (1, 1), ((0, 0), (0, 0))
        yield Sample(cls(zero=-7, results=5), (_bytes((3, 8)), _bytes((5, 2, 1, 2, 2), 1)), "product")
        op = cls((1, 1), ones, none, ones, 3, 4)
        yield Sample(op, (_bytes((1, 3, 3, 8)), _bytes((2, 2, 2, 2, 2), 1)), "pointwise")
        op = cls((3, 3), (1, 2), ((1, 1), (0, 1)), (1, 1), -128, 6)
        yield Sample(op, (_bytes((2, 5, 6, 4)), _bytes((3, 9, 2, 2, 2), 1)), "window")
        op = cls((3, 2), ones, none, (1, 2), 5, 2)
        yield Sample(op, (_bytes((1, 4, 5, 3)), _bytes((1, 5, 2, 2, 2), 1)), "filled")


@dataclass(frozen=True)
class ChannelSum(Windows):
    """Convolution of each channel by itself with weights w [c, kernel…]: [n, out…, c], int32."""

    role = "channel_sum"

    def infer(self, *types: Type | None) -> Type:
        """Raises GraphError for operands that do not fit."""
        x, w = self.checked(types)
        if w.shape != (x.shape[-1], *self.kernel):
            raise GraphError(f"expected weights {[x.shape[-1], *self.kernel]}, got {w.shape}")
        return TensorType(dt.int32, (x.shape[0], *self.counts(x.shape), x.shape[-1]))

    def reference(self, *arrays: Array | None) -> Array:
        x, w = arrays
        assert x is not None and w is not None
        taps = tuple(range(1 + len(self.kernel), 1 + 2 * len(self.kernel)))
        return np.asarray((self.windows(x) * np.moveaxis(w.astype(np.int64), 0, -1)).sum(taps)).astype(np.int32)

    @algorithm("tensors")
    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        """The picture of each channel with its surroundings, then sums."""
        counts = self.counts(x.shape)
        whole = tuple(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape[1:-1], self.pads))

        def row(b: Expr, *index: Expr) -> Expr:
            return self.element(x, b, index[1:], index[0])

        around = compute((x.shape[0], x.shape[-1], *whole), row, "rows")
        taps = [reduce_axis(d, f"tap{k}") for k, d in enumerate(self.kernel)]

        def total(b: Expr, *index: Expr) -> Expr:
            at = [i * s + t.var * d for i, s, t, d in zip(index, self.strides, taps, self.dilations)]
            a = cast_to(around[(b, index[-1], *at)], dt.int32)
            return sum_over(a * cast_to(w[(index[-1], *taps)], dt.int32), taps)

        return compute((x.shape[0], *counts, x.shape[-1]), total, "sums")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        op = cls((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), -128)
        yield Sample(op, (_bytes((1, 5, 4, 6)), _bytes((6, 3, 3), 1)), "same")
        op = cls((3, 2), (2, 1), ((0, 0), (1, 0)), (1, 2), 9)
        yield Sample(op, (_bytes((2, 7, 5, 3)), _bytes((3, 3, 2), 1)), "all")


@dataclass(frozen=True)
class Rescale(Elementwise):
    """x · multiplier · 2^(-31 - right), rounded as `FixedPointScale` does, for |x| < 2^30; all int32, broadcast.

    The upper half of the doubled product is rounded to nearest, halves up, and divided by 2^right, halves away from
    zero. 0 ≤ multiplier and 0 ≤ right ≤ 31. Attributes: `divides`: right is 1 at least.
    """

    divides: bool = False

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for operands that are not int32."""
        given = operands(types, 3)
        for t in given:
            if t.dtype != dt.int32:
                raise GraphError(f"expected operands of int32, got {t.dtype}")
        assumed: list[Assumption] = []
        return Inferred(TensorType(dt.int32, broadcast(*(t.shape for t in given), assumed=assumed)), assumed)

    def formula(self, *args: Expr) -> Expr:
        x, multiplier, right = args
        product = cast_to(x, dt.int64) * cast_to(multiplier, dt.int64)
        high = cast_to(shr(product + const(1 << 30, dt.int64), const(31, dt.int64)), dt.int32)
        half = shl(const(1, dt.int32), right - 1) + shr(high, const(31, dt.int32))
        return shr(high + (half if self.divides else select(lt(0, right), half, const(0, dt.int32))), right)

    def reference(self, *arrays: Array | None) -> Array:
        x, multiplier, right = (np.asarray(a, np.int64) for a in arrays)
        high = (x * multiplier + (1 << 30)) >> 31
        half = np.where(right > 0, ((1 << right) >> 1) - (high < 0), 0)
        return np.asarray((high + half) >> right).astype(np.int32)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _numbers((3, 4, 2), -(1 << 24), 1 << 24)
        multiplier = _numbers((4, 1), 1 << 30, (1 << 31) - 1)
        yield Sample(cls(True), (x, multiplier, _numbers((4, 1), 1, 12)), "channels")
        yield Sample(cls(), (x, multiplier, _numbers((4, 1), 0, 3)), "none")
        halves = _numbers((40,), -40, 40)
        yield Sample(cls(True), (halves, np.array(1 << 30, np.int32), np.array(2, np.int32)), "halves")


__all__ = ["QUAD", "ChannelSum", "Rescale", "WindowSum"]
