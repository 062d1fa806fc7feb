"""Winograd's minimal filtering for 3×3 convolutions: fewer multiplications, for transforms of the picture and of the
result.

A tile of m×m outputs is Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A of the 3×3 taps g and the (m+2)×(m+2) inputs d, so summing over
channels is (m+2)² matrix products over all tiles: 36 multiplications for 16 outputs with m = 4 where the definition has
144 (Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). The matrices follow from evaluating
polynomials at points (Toom and Cook); the farther the points are from ±1 and each other, the more is lost to
cancellation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from weft.errors import GraphError
from weft.expr.nodes import Const, Expr, all_of, eq, minimum, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import TensorType, Type
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.contraction import Conv, pad_pairs, reduction_tolerance, window_extent
from weft_ops.examples import floats
from weft_ops.scheduling.winograd import RESULT, SPARING, STAGES
from weft_ops.shapes import dim_ceildiv, expect_kind, one_dtype, operands, show, simplified, static, unify

__all__ = ["WinogradConv", "transform_weights"]

TAPS = 3
"""Height and width of the convolution's window."""
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(1),),
    # ±√½ and ±√2 lose the least (Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution",
    # 2020); with 181/128 for √2 all coefficients but one are exact in float32.
    4: (Fraction(181, 256), Fraction(181, 128)),
}
"""Per tile size m the points beside 0 and infinity; each stands for itself and its negative."""
Matrix = tuple[tuple[Fraction, ...], ...]


@cache
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ [m, m + 2], G [m + 2, 3] and Bᵀ [m + 2, m + 2], exact; points in the order 0, +p, -p, …, infinity."""
    points = [Fraction(0), *(p for q in POINTS[m] for p in (q, -q))]

    def without(skip: int | None) -> list[Fraction]:
        """The coefficients of ∏ (x - point), lowest first, one point left out."""
        found = [Fraction(1)]
        for k, p in enumerate(points):
            if k != skip:
                found = [a - p * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)])]
        return found

    b = [(*without(k), Fraction(0)) for k in range(len(points))] + [tuple(without(None))]
    a = [(*(p**r for p in points), Fraction(r == m - 1)) for r in range(m)]
    g = []
    for k, p in enumerate(points):
        scale = Fraction(1)
        for j, q in enumerate(points):
            scale *= p - q if j != k else 1
        g.append(tuple(p**t / scale for t in range(TAPS)))
    g.append(tuple(Fraction(t == TAPS - 1) for t in range(TAPS)))
    return tuple(a), tuple(g), tuple(b)


def taps_matrix(m: int) -> Array:
    """What the taps of a window are multiplied with: G ⊗ G, float64 [(m + 2)², 9]."""
    g = np.array(matrices(m)[1], np.float64)
    return np.kron(g, g)


def transform_weights(w: Array, m: int) -> Array:
    """G w Gᵀ of w [oc, ic, 3, 3] as [(m + 2)², ic, oc], computed in float64, of w's dtype."""
    both = taps_matrix(m)
    taps = w.reshape(w.shape[0], w.shape[1], TAPS * TAPS)
    out = np.empty((len(both), w.shape[1], w.shape[0]), w.dtype)
    for first in range(0, w.shape[0], 64):  # a part at a time: in float64 all would be eight times the weights
        part = taps[first : first + 64].astype(np.float64)
        out[:, :, first : first + 64] = np.moveaxis(part @ both.T, 2, 0).transpose(0, 2, 1)
    return out


def _weighted(terms: Iterable[tuple[Fraction, Expr]]) -> Expr | None:
    """Σ coefficient · term, in that order; None if nothing is left."""
    total: Expr | None = None
    for c, e in terms:
        if not c:
            continue
        part = e if abs(c) == 1 else e * Const(float(abs(c)), e.dtype)
        if total is None:
            total = part if c > 0 else Const(0, e.dtype) - part
        else:
            total = total + part if c > 0 else total - part
    return total


def transformed_inputs(m: int, d: Sequence[Expr]) -> list[Expr]:
    """Bᵀ d. What is even and what is odd in the point is written alike for a point and its negative, so that it is
    computed once."""
    rows = matrices(m)[2]
    found: list[Expr] = []
    for k, row in enumerate(rows):
        negative = 0 < k < len(rows) - 1 and k % 2 == 0
        row = rows[k - 1] if negative else row
        # Positive terms first, so that no sum begins with a negation.
        terms = sorted(((c, e, i % 2) for i, (c, e) in enumerate(zip(row, d))), key=lambda t: t[0] < 0)
        even, odd = (_weighted((c, e) for c, e, parity in terms if parity == side) for side in (0, 1))
        if even is not None and odd is not None:
            found.append(even - odd if negative else even + odd)
        else:
            found.extend(part for part in (even, odd) if part is not None)
    return found


def transformed_outputs(m: int, e: Sequence[Expr]) -> list[Expr]:
    """Aᵀ e. Sums and differences of what belongs to a point and its negative are shared as in `transformed_inputs`."""
    rows = matrices(m)[0]
    found: list[Expr] = []
    for r, row in enumerate(rows):
        pairs = [(row[k], e[k] + e[k + 1] if r % 2 == 0 else e[k] - e[k + 1]) for k in range(1, len(row) - 1, 2)]
        total = _weighted([(row[0], e[0]), *pairs, (row[-1], e[-1])])
        assert total is not None
        found.append(total)
    return found


def _pick(index: Expr, choices: Sequence[Expr]) -> Expr:
    """choices[index]."""
    result = choices[-1]
    for k in reversed(range(len(choices) - 1)):
        result = select(eq(index, k), choices[k], result)
    return result


@dataclass(frozen=True)
class WinogradConv(Operator):
    """Convolution of x [n, c, h, w] with 3×3 taps, stride 1, given as u = transform_weights(taps, m) [(m + 2)², c, oc]
    → [n, oc, h', w'].

    Attributes: m (2 or 4), outputs of a tile along each axis; pads as in Conv; block, channels that stand together in
    transformed data (of both c and oc a divisor); skip, whether products are left out that only outputs beyond the
    picture would need. Errors against those of Conv are about a half (m = 2) or double (m = 4): docs/math.md.
    """

    m: int
    pads: tuple[int, ...] = ()
    block: int = 1
    skip: bool = False
    kind = "contraction"
    layout_role = "winograd"
    no_gradient = "a pass makes it of a convolution; gradients are taken before, of the convolution"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for other tile sizes, ranks or channels that do not agree."""
        assumed: list[Assumption] = []
        x, u = operands(types, 2)
        dtype = one_dtype([x, u])
        expect_kind(dtype, ("float",))
        if self.m not in POINTS:
            raise GraphError(f"m: expected one of {', '.join(map(str, POINTS))}, got {self.m}")
        if x.rank != 4 or u.rank != 3 or u.shape[0] != (self.m + 2) ** 2:
            raise GraphError(
                f"expected x [n, c, h, w] and u [{(self.m + 2) ** 2}, c, oc], got {show(x.shape)} and {show(u.shape)}"
            )
        unify(u.shape[1], x.shape[1], "channels", assumed)
        for d in u.shape[1:]:
            if not isinstance(d, int) or self.block < 1 or d % self.block:
                raise GraphError(f"channels: expected multiples of block = {self.block}, got {show(u.shape[1:])}")
        return Inferred(TensorType(dtype, (x.shape[0], u.shape[2], *self.out_dims(x.shape[2:]))), assumed)

    def out_dims(self, size: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(window_extent(n, TAPS, 1, p, 1) for n, p in zip(size, pad_pairs(self.pads, 2)))

    def reference(self, *arrays: Array | None) -> Array:
        """By the definition, on the taps that the weights were made from (least squares: the transform has more rows
        than columns)."""
        x, u = arrays
        assert x is not None and u is not None
        g = np.array(matrices(self.m)[1], np.float64)
        taps = np.tensordot(np.linalg.pinv(np.kron(g, g)), u.astype(np.float64), 1)  # [9, c, oc]
        w = taps.transpose(2, 1, 0).reshape(u.shape[2], u.shape[1], TAPS, TAPS)
        return np.asarray(Conv(pads=self.pads).reference(x.astype(np.float64), w)).astype(x.dtype)

    @algorithm("tensors")
    def winograd(self, x: Tensor, u: Tensor) -> Tensor:
        """Tiles are numbered row by row: t = row · tiles in a row + column. Every transform is one of rows, then one of
        columns."""
        m, a, block, dtype = self.m, self.m + 2, self.block, x.dtype
        (top, _), (left, _) = pad_pairs(self.pads, 2)
        n, _, h, w = x.shape
        c, oc = static(u.shape[1:])
        height, width = (simplified(d) for d in self.out_dims((h, w)))
        down, across = (simplified(dim_ceildiv(d, m)) for d in (height, width))
        tiles = as_dim(down * across)
        zero = Const(0, dtype)

        def picture_rows(b: Expr, cb: Expr, ty: Expr, p: Expr, j: Expr, ci: Expr) -> Expr:
            column = j - left
            elements = []
            for i in range(a):
                row = ty * m + (i - top)
                inside = all_of([*([row >= 0] if i < top else []), row < h])
                elements.append(select(inside, x[(b, cb * block + ci, row, column)], zero))
            inside = all_of([*([column >= 0] if left else []), column < w])
            return select(inside, _pick(p, transformed_inputs(m, elements)), zero)

        rows: Tensor = compute(
            (n, c // block, down, a, as_dim(across * m + TAPS - 1), block),
            picture_rows,
            "winograd_rows",
            role=STAGES[0],
        )

        if not (isinstance(down, int) and isinstance(across, int)):
            return self._of_open_sizes(rows, u, n, (height, width), (down, across))

        def picture(pq: Expr, b: Expr, cb: Expr, t: Expr, ci: Expr) -> Expr:
            elements = [rows[(b, cb, t // across, pq // a, (t % across) * m + k, ci)] for k in range(a)]
            return _pick(pq % a, transformed_inputs(m, elements))

        v: Tensor = compute((a * a, n, c // block, tiles, block), picture, "winograd_input", role=STAGES[1])

        def products(role: str, first: tuple[int, int], count: tuple[int, int], columns: Dim, number: Dim) -> Tensor:
            """Of transformed values p, q from `first` on, `count` of them, on `number` tiles, `columns` of each row of
            tiles."""
            cb, ci = reduce_axis(c // block, "cb"), reduce_axis(block, "ci")

            def product(b: Expr, ob: Expr, p: Expr, q: Expr, t: Expr, oi: Expr) -> Expr:
                pq = (p + first[0]) * a + (q + first[1])
                place = t if columns == across else t // columns * across + t % columns
                return sum_over(v[(pq, b, cb, place, ci)] * u[(pq, cb.var * block + ci.var, ob * block + oi)], [cb, ci])

            made: Tensor = compute((n, oc // block, *count, as_dim(number), block), product, role, role=role)
            return made

        bottom, right = self.spared(height, width)
        rest = a - bottom, a - right
        main = products(STAGES[2], (0, 0), rest, across, tiles)
        below = products(SPARING[0], (a - 1, 0), (1, rest[1]), across, (down - 1) * across) if bottom else None
        beside = products(SPARING[1], (0, a - 1), (a, 1), across - 1, down * (across - 1)) if right else None

        def element(b: Expr, ob: Expr, t: Expr, p: int, q: Expr, oi: Expr) -> Expr:
            """A product; anything where it was left out, for it has no part in the picture."""
            if below is not None and p == a - 1:
                e = below[(b, ob, Const(0, q.dtype), q, minimum(t, (down - 1) * across - 1), oi)]
            else:
                e = main[(b, ob, Const(p, q.dtype), q, t, oi)]
            if beside is None:
                return e
            place = t // across * (across - 1) + minimum(t % across, across - 2)
            return select(q < a - 1, e, beside[(b, ob, Const(p, q.dtype), Const(0, q.dtype), place, oi)])

        def result_rows(b: Expr, ob: Expr, t: Expr, r: Expr, q: Expr, oi: Expr) -> Expr:
            return _pick(r, transformed_outputs(m, [element(b, ob, t, p, q, oi) for p in range(a)]))

        half: Tensor = compute((n, oc // block, tiles, m, a, block), result_rows, "winograd_columns", role=STAGES[3])

        def result(b: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
            t = (y // m) * across + z // m
            return _pick(
                z % m, transformed_outputs(m, [half[(b, o // block, t, y % m, q, o % block)] for q in range(a)])
            )

        out: Tensor = compute((n, oc, height, width), result, "winograd", role=RESULT)
        return out

    def _of_open_sizes(self, rows: Tensor, u: Tensor, n: Dim, size: tuple[Dim, Dim], tiles: tuple[Dim, Dim]) -> Tensor:
        """What follows the transform of rows, of a picture whose size is a formula: tiles are numbered by row and
        column, so that nothing divides by their number."""
        m, a, block = self.m, self.m + 2, self.block
        c, oc = static(u.shape[1:])
        down, across = tiles

        def picture(pq: Expr, b: Expr, cb: Expr, ty: Expr, tx: Expr, ci: Expr) -> Expr:
            elements = [rows[(b, cb, ty, pq // a, tx * m + k, ci)] for k in range(a)]
            return _pick(pq % a, transformed_inputs(m, elements))

        v: Tensor = compute((a * a, n, c // block, down, across, block), picture, "winograd_input", role=STAGES[1])
        cb, ci = reduce_axis(c // block, "cb"), reduce_axis(block, "ci")

        def product(b: Expr, ob: Expr, pq: Expr, ty: Expr, tx: Expr, oi: Expr) -> Expr:
            return sum_over(v[(pq, b, cb, ty, tx, ci)] * u[(pq, cb.var * block + ci.var, ob * block + oi)], [cb, ci])

        made: Tensor = compute((n, oc // block, a * a, down, across, block), product, STAGES[2], role=STAGES[2])

        def result_rows(b: Expr, ob: Expr, ty: Expr, tx: Expr, r: Expr, q: Expr, oi: Expr) -> Expr:
            return _pick(r, transformed_outputs(m, [made[(b, ob, p * a + q, ty, tx, oi)] for p in range(a)]))

        half: Tensor = compute((n, oc // block, down, across, m, a, block), result_rows, STAGES[3], role=STAGES[3])

        def result(b: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
            elements = [half[(b, o // block, y // m, z // m, y % m, q, o % block)] for q in range(a)]
            return _pick(z % m, transformed_outputs(m, elements))

        out: Tensor = compute((n, oc, *size), result, RESULT, role=RESULT)
        return out

    def spared(self, height: Dim, width: Dim) -> tuple[bool, bool]:
        """Whether the last row and the last column of tiles do without the products at infinity: these are in a tile's
        last output only."""

        def beyond(size: Dim) -> bool:
            return self.skip and isinstance(size, int) and size > self.m and size % self.m != 0

        return beyond(height), beyond(width)

    def tolerance(self, *types: TensorType) -> float:
        channels = types[1].shape[1]
        return (2.0 if self.m == 2 else 8.0) * reduction_tolerance(
            9 * channels if isinstance(channels, int) else channels
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def case(
            name: str,
            m: int,
            pads: tuple[int, ...],
            size: tuple[int, int],
            channels: tuple[int, int] = (4, 6),
            block: int = 2,
            skip: bool = False,
        ) -> Sample:
            taps = floats((channels[1], channels[0], TAPS, TAPS), seed=1)
            return Sample(
                cls(m, pads, block, skip), (floats((2, channels[0], *size)), transform_weights(taps, m)), name
            )

        yield case("two", 2, (1, 1, 1, 1), (6, 5))
        yield case("four", 4, (1, 1, 1, 1), (9, 8))
        yield case("bare", 4, (), (6, 6))
        yield case("asymmetric", 2, (0, 2, 1, 0), (5, 7))
        yield case("wide_pads", 4, (2, 0, 2, 3), (4, 7), block=1)
        yield case("single", 2, (1, 1, 1, 1), (6, 7), block=1)
        yield case("blocks", 4, (1, 1, 1, 1), (7, 7), (16, 16), 8)
        yield case("skip", 2, (1, 1, 1, 1), (5, 7), skip=True)
