"""Pictures as columns, each the elements of one window, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, all_of, cast_to, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.composing import Composer
from weft_ops.contraction import filled, pad_pairs, reduction_tolerance, reference_windows, window_extent
from weft_ops.examples import floats, integers
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import operands, product, quotient, show, static, unify


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

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The windows of the gradient."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = Composer(builder)
        return (c.reshape(c(Windows(self.block, self.strides, self.pads, self.dilations), g), x.shape),)

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(product(self.block))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((5, 5), (1, 5)), (floats((1, 10, 5)),), "rows")
        yield Sample(cls((5, 6), (2, 3), (2, 1), (1, 0, 0, 1), (1, 2)), (floats((2, 6, 9)),), "all")
        yield Sample(cls((4, 4, 4), (1, 2, 2)), (floats((1, 4, 36)),), "three_axes")


@dataclass(frozen=True)
class Windows(Operator):
    """The elements of each window of x [n, c, in…]: [n, c, kernel…, out…]; padding is zero.

    Their products with weights are a convolution; Col2Im, of this under another shape, sums them back. `kernel` may be
    formulas; strides, pads (begin…, end…), dilations as Conv's.
    """

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    kind = "injective"

    def spatial(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]:
        n = len(self.kernel)
        return filled(self.strides, n, 1), pad_pairs(self.pads, n), filled(self.dilations, n, 1)

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for a rank that does not fit the kernel, or negative pads."""
        (x,) = operands(types, 1)
        if x.rank != 2 + len(self.kernel):
            raise GraphError(f"expected x [n, c, in…] with {len(self.kernel)} spatial axes, got {show(x.shape)}")
        if any(p < 0 for p in self.pads):
            raise GraphError(f"pads: expected 0 or more, got {self.pads}")
        return TensorType(x.dtype, self.out_shape(x.shape))

    def out_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        counts = (window_extent(*a) for a in zip(shape[2:], self.kernel, *self.spatial()))
        return (*shape[:2], *map(as_dim, self.kernel), *counts)

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        """Each channel is computed by itself."""
        return axis < 2

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return 16 * touched(*inputs, *outputs)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        strides, pads, dilations = self.spatial()
        n = len(self.kernel)
        shape = static(self.out_shape(x.shape))
        padded = np.pad(x, [(0, 0), (0, 0), *pads])
        views = reference_windows(padded, shape[2 : 2 + n], strides, dilations, shape[2 + n :])
        order = (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
        return np.ascontiguousarray(views.transpose(order))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        strides, pads, dilations = self.spatial()
        n = len(self.kernel)

        def formula(*index: Expr) -> Expr:
            taps, at = index[2 : 2 + n], index[2 + n :]
            inner = [o * s + t * d - lo for o, s, t, d, (lo, _) in zip(at, strides, taps, dilations, pads)]
            tests: list[Expr] = []
            for i, size, (lo, hi) in zip(inner, x.shape[2:], pads):
                tests += ([i >= 0] if lo else []) + ([i < size] if hi else [])
            value = x[(*index[:2], *inner)]
            return select(all_of(tests), value, const(0, x.dtype)) if tests else value

        return compute(self.out_shape(x.shape), formula, "windows")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The sum of what its copies have."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, n = Composer(builder), len(self.kernel)
        channels, windows = product([x.shape[1], *self.kernel]), product(g.shape[2 + n :])
        columns = c.reshape(g, (x.shape[0], channels, windows))
        return (c(Col2Im(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations), columns),)

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((1, 5)), (floats((1, 2, 5, 5)),), "rows")
        yield Sample(cls((2, 3), (2, 1), (1, 0, 0, 1), (1, 2)), (floats((2, 3, 5, 6)),), "all")
        yield Sample(cls((3,), (2,), (1, 1)), (integers((1, 2, 8)),), "one_axis")
        yield Sample(cls((1, 2, 2)), (floats((1, 1, 4, 4, 4), "float16"),), "three_axes")


__all__ = ["Col2Im", "Windows"]
