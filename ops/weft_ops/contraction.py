"""Sums of products: matrix product and convolution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr.nodes import Const, Expr, all_of, cast_to, const, eq, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.examples import floats, integers
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import (
    broadcast,
    broadcast_indices,
    dim_floordiv,
    expect_kind,
    is_one,
    one_dtype,
    operands,
    product,
    same,
    show,
    static,
    unify,
    widened,
)

if TYPE_CHECKING:
    from weft_ops.composing import Composer

MOST_ZEROS = 1.5
"""Products with zero weights, over those with taps, from which on a transposed convolution is several."""


def reduction_tolerance(length: Dim) -> float:
    """Ulps for a sum of `length` products, relative to the largest output: rounding errors walk at random."""
    return 4.0 + 2.0 * math.sqrt(length if isinstance(length, int) else 4096)


@dataclass(frozen=True)
class MatMul(Operator):
    """numpy's matmul of a, b: the last two axes are matrices, those before broadcast; a vector on the left is a row, on
    the right a column, and its axis goes.

    Accumulates in float32 for narrower floats. `dtype`: multiply and accumulate in it and give it (int8 × int8 →
    int32); None: the operands' own.
    """

    dtype: DType | None = None
    kind = "contraction"
    layout_role = "product"
    reads_transposed = (1,)

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for scalars, different dtypes (unless `dtype` is given), or lengths that do not agree."""
        assumed: list[Assumption] = []
        a, b = operands(types, 2)
        result = self.dtype or one_dtype([a, b])
        for t in (a, b):
            expect_kind(t.dtype, ("int", "uint", "float", "complex"))
        if not a.rank or not b.rank:
            raise GraphError(f"expected at least one dimension, got {show(a.shape)} and {show(b.shape)}")
        unify(a.shape[-1], b.shape[-2 if b.rank > 1 else 0], "length of the products", assumed)
        batch = broadcast(a.shape[:-2], b.shape[:-2], assumed=assumed)
        return Inferred(TensorType(result, (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ()))), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        # Of m × k by k × n: the root of m·k · k·n · m·n is m·n·k. Wide floats and integers have no library.
        dtype = outputs[0].dtype
        each = 2 if dtype.is_float and dtype.bits <= 32 else 16 if dtype.is_integer else 64
        return 16 * touched(*inputs, *outputs) + each * math.isqrt(
            math.prod(touched(t) for t in inputs) * touched(*outputs)
        )

    def reference(self, *arrays: Array | None) -> Array:
        a, b = arrays
        assert a is not None and b is not None
        result = self.dtype or _dtype(a)
        if self.dtype is not None:
            a, b = a.astype(self.dtype.numpy), b.astype(self.dtype.numpy)
        return rounded(np.matmul(widen(a), widen(b)), result)

    @algorithm("tensors")
    def direct(self, a: Tensor, b: Tensor) -> Tensor:
        dtype = self.dtype or a.dtype
        wide = compute_dtype(dtype)
        batch = broadcast(a.shape[:-2], b.shape[:-2], assumed=[])
        row, column = a.rank > 1, b.rank > 1
        shape = (*batch, *a.shape[-2:-1], *(b.shape[-1:] if column else ()))
        k = reduce_axis(unify(a.shape[-1], b.shape[-2 if column else 0], "length of the products", []), "k")

        def formula(*index: Expr) -> Expr:
            lead = index[: len(batch)]
            i = index[len(batch) : len(batch) + row]
            j = index[len(index) - column :] if column else ()
            left = a[(*broadcast_indices(a.shape[:-2], lead), *i, k)]
            right = b[(*broadcast_indices(b.shape[:-2], lead), k, *j)]
            return sum_over(cast_to(left, wide) * cast_to(right, wide), k)

        product: Tensor = compute(shape, formula, "matmul")
        return product if wide == dtype else compute(shape, lambda *i: cast_to(product[i], dtype), "rounded")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """g·bᵀ and aᵀ·g. Of a matrix b that all matrices of a share, one product over all their rows."""
        from weft_ops.composing import Composer

        (a, b), (g,) = node.inputs, gradients
        assert a is not None and b is not None and g is not None
        c = Composer(builder)
        left, right = c.cast(a, g.dtype), c.cast(b, g.dtype)
        row, column = len(a.shape) == 1, len(b.shape) == 1
        left = c.reshape(left, (1, *a.shape)) if row else left
        right = c.reshape(right, (*b.shape, 1)) if column else right
        batch = g.shape[: len(g.shape) - (not row) - (not column)]
        g = c.reshape(g, (*batch, left.shape[-2], right.shape[-1]))
        by_a = c(MatMul(), g, _transposed(c, right))
        if batch and all(map(is_one, right.shape[:-2])):
            rows = product([*batch, left.shape[-2]])
            by_b = c(
                MatMul(),
                _transposed(c, c.reshape(left, (rows, left.shape[-1]))),
                c.reshape(g, (rows, right.shape[-1])),
            )
            by_b = c.reshape(by_b, b.shape)
        else:
            by_b = c(MatMul(), _transposed(c, left), g)
            by_b = c.reshape(by_b, by_b.shape[:-1]) if column else by_b
        by_a = c.reshape(by_a, (*by_a.shape[:-2], by_a.shape[-1])) if row else by_a
        return c.cast(by_a, a.dtype), c.cast(by_b, b.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(types[0].shape[-1])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        yield Sample(cls(), (f((5, 7)), f((7, 3), seed=1)), "matrix")
        yield Sample(cls(), (f((2, 1, 5, 7)), f((3, 7, 4), seed=1)), "batched")
        yield Sample(cls(), (f((3, 5, 7)), f((7, 4), seed=1)), "shared_right")
        yield Sample(cls(), (f((7,)), f((7,), seed=1)), "dot")
        yield Sample(cls(), (f((7,)), f((2, 7, 4), seed=1)), "row")
        yield Sample(cls(), (f((2, 5, 7)), f((7,), seed=1)), "column")
        yield Sample(cls(), (f((1, 9)), f((9, 1), seed=1)), "one")
        yield Sample(cls(), (f((4, 6), "float16"), f((6, 5), "float16", seed=1)), "float16")
        yield Sample(cls(), (f((4, 6), "bfloat16"), f((6, 5), "bfloat16", seed=1)), "bfloat16")
        yield Sample(cls(), (f((4, 6), "float64"), f((6, 5), "float64", seed=1)), "float64")
        yield Sample(cls(), (integers((4, 6), "int32"), integers((6, 5), "int32", seed=1)), "int32")
        from weft.dtypes import int32

        yield Sample(cls(int32), (integers((4, 6), "uint8", 0, 255), integers((6, 5), "int8", -128, 127)), "uint8_int8")


def _transposed(c: Composer, x: Value) -> Value:
    """Matrices with their axes exchanged."""
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _dtype(x: Array) -> DType:
    from weft.dtypes import dtype

    return dtype(x.dtype)


def window_extent(
    size: Dim, kernel: Dim, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool = False
) -> Dim:
    """How many windows fit along an axis; with `ceil_mode` also a last one that hangs over, if it starts before the
    right padding."""
    span = as_dim(dilation * (kernel - 1) + 1)
    slack = as_dim(size + (pads[0] + pads[1]) - span)
    if not ceil_mode:
        return as_dim(dim_floordiv(slack, stride) + 1)
    from weft_ops.shapes import dim_ceildiv, dim_min

    return dim_min(as_dim(dim_ceildiv(slack, stride) + 1), as_dim(dim_floordiv(as_dim(size + pads[0] - 1), stride) + 1))


def filled(value: Sequence[int], count: int, default: int) -> tuple[int, ...]:
    """An attribute per spatial axis; empty stands for `default` everywhere."""
    if value and len(value) != count:
        raise GraphError(f"expected {count} number(s), got {tuple(value)}")
    return tuple(value) or (default,) * count


def pad_pairs(pads: Sequence[int], count: int) -> tuple[tuple[int, int], ...]:
    """(begin…, end…) as (begin, end) per axis."""
    flat = filled(pads, 2 * count, 0)
    return tuple(zip(flat[:count], flat[count:]))


def reference_windows(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], counts: Sequence[int]
) -> Array:
    """A view [batch, channel, out…, kernel…] of x [batch, channel, in…] already padded."""
    n = len(kernel)
    steps = x.strides[2:]
    shape = (*x.shape[:2], *counts, *kernel)
    return np.lib.stride_tricks.as_strided(
        x,
        shape,
        (*x.strides[:2], *(steps[d] * strides[d] for d in range(n)), *(steps[d] * dilations[d] for d in range(n))),
        writeable=False,
    )


@dataclass(frozen=True)
class Conv(Operator):
    """Convolution (cross-correlation) of x [n, c, in…] with w [oc, c/groups, kernel…] → [n, oc, out…], one to three (or
    more) spatial axes.

    Attributes: strides, pads (begin…, end…), dilations per spatial axis, empty for 1, 0, 1; groups. Padding is zero. A
    bias is an Add of its own. `dtype`: multiply and accumulate in it and give it; None: the operands' own (float32
    inside for narrower floats).
    """

    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    groups: int = 1
    dtype: DType | None = None
    kind = "contraction"
    layout_role = "convolution"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, channels or attributes that do not agree."""
        assumed: list[Assumption] = []
        x, w = operands(types, 2)
        result = self.dtype or one_dtype([x, w])
        if x.rank < 3 or w.rank != x.rank:
            raise GraphError(
                f"expected x [n, c, in…] and w [oc, c/groups, kernel…], got {show(x.shape)} and {show(w.shape)}"
            )
        unify(as_dim(w.shape[1] * self.groups), x.shape[1], "channels", assumed)
        if isinstance(w.shape[0], int) and w.shape[0] % self.groups:
            raise GraphError(f"output channels: expected a multiple of groups = {self.groups}, got {w.shape[0]}")
        return Inferred(TensorType(result, (x.shape[0], w.shape[0], *self.out_dims(x.shape[2:], w.shape[2:]))), assumed)

    def spatial(self, n: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]:
        """Strides, (begin, end) pads and dilations for n spatial axes."""
        return filled(self.strides, n, 1), pad_pairs(self.pads, n), filled(self.dilations, n, 1)

    def out_dims(self, size: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
        strides, pads, dilations = self.spatial(len(size))
        return tuple(window_extent(*a) for a in zip(size, kernel, strides, pads, dilations))

    def reference(self, *arrays: Array | None) -> Array:
        x, w = arrays
        assert x is not None and w is not None
        dtype = self.dtype or _dtype(x)
        if self.dtype is not None:
            x, w = x.astype(dtype.numpy), w.astype(dtype.numpy)
        strides, pads, dilations = self.spatial(x.ndim - 2)
        counts = static(self.out_dims(x.shape[2:], w.shape[2:]))
        padded = np.pad(widen(x), [(0, 0), (0, 0), *pads])
        views = reference_windows(padded, w.shape[2:], strides, dilations, counts)
        g, n = self.groups, x.ndim - 2
        views = views.reshape(x.shape[0], g, w.shape[1], *views.shape[2:])
        weights = widen(w).reshape(g, w.shape[0] // g, *w.shape[1:])
        out = np.stack(
            [
                np.tensordot(views[:, k], weights[k], ((1, *range(2 + n, 2 + 2 * n)), tuple(range(1, 2 + n))))
                for k in range(g)
            ],
            axis=1,
        )  # [n, g, out…, oc/g]
        out = np.moveaxis(out, -1, 2)
        return rounded(out.reshape(x.shape[0], w.shape[0], *counts), dtype)

    @algorithm("tensors")
    def direct(self, x: Tensor, w: Tensor) -> Tensor:
        """Taps that fall outside are left out of the sum."""
        dtype = self.dtype or x.dtype
        wide = compute_dtype(dtype)
        n = x.rank - 2
        strides, pads, dilations = self.spatial(n)
        ic = reduce_axis(w.shape[1], "ic")
        taps = [reduce_axis(d, f"k{'dhw'[3 - n + k] if n <= 3 else k}") for k, d in enumerate(w.shape[2:])]
        shape = (x.shape[0], w.shape[0], *self.out_dims(x.shape[2:], w.shape[2:]))
        per_group = dim_floordiv(w.shape[0], self.groups)

        def formula(b: Expr, oc: Expr, *at: Expr) -> Expr:
            first: Expr = Const(0, ic.var.dtype) if self.groups == 1 else (oc // per_group) * w.shape[1]
            inner = [o * s + t.var * d - lo for o, s, t, d, (lo, _) in zip(at, strides, taps, dilations, pads)]
            term = cast_to(x[(b, first + ic.var, *inner)], wide) * cast_to(w[(oc, ic, *taps)], wide)
            inside = all_of(c for i, d, pair in zip(inner, x.shape[2:], pads) for c in _bounds(i, d, pair))
            return sum_over(select(inside, term, Const(0, wide)), [ic, *taps])

        product: Tensor = compute(shape, formula, "conv")
        return product if wide == dtype else compute(shape, lambda *i: cast_to(product[i], dtype), "rounded")

    @algorithm("tensors")
    def padded(self, x: Tensor, w: Tensor) -> Tensor:
        """A padded copy of x first, then a sum without conditions."""
        dtype = self.dtype or x.dtype
        wide = compute_dtype(dtype)
        n = x.rank - 2
        strides, pads, dilations = self.spatial(n)
        source = x
        if any(p for pair in pads for p in pair):
            zero = const(0, x.dtype)

            def padded(*index: Expr) -> Expr:
                inner = [i - lo for i, (lo, _) in zip(index[2:], pads)]
                inside = all_of(c for i, d, pair in zip(inner, x.shape[2:], pads) for c in _bounds(i, d, pair))
                return select(inside, x[(*index[:2], *inner)], zero)

            source = compute(
                (*x.shape[:2], *(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape[2:], pads))), padded, "pad"
            )
        ic = reduce_axis(w.shape[1], "ic")
        taps = [reduce_axis(d, f"k{'dhw'[3 - n + k] if n <= 3 else k}") for k, d in enumerate(w.shape[2:])]
        shape = (x.shape[0], w.shape[0], *self.out_dims(x.shape[2:], w.shape[2:]))
        per_group = dim_floordiv(w.shape[0], self.groups)

        def formula(b: Expr, oc: Expr, *at: Expr) -> Expr:
            first: Expr = Const(0, ic.var.dtype) if self.groups == 1 else (oc // per_group) * w.shape[1]
            inner = [o * s + t.var * d for o, s, t, d in zip(at, strides, taps, dilations)]
            return sum_over(
                cast_to(source[(b, first + ic.var, *inner)], wide) * cast_to(w[(oc, ic, *taps)], wide), [ic, *taps]
            )

        product: Tensor = compute(shape, formula, "conv")
        return product if wide == dtype else compute(shape, lambda *i: cast_to(product[i], dtype), "rounded")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """By x, the transposed convolution; by w, see `weights_gradient`."""
        from weft_ops.composing import Composer

        (x, w), (g,) = node.inputs, gradients
        assert x is not None and w is not None and g is not None
        c, size, kernel = Composer(builder), x.shape[2:], w.shape[2:]
        strides, pads, dilations = self.spatial(len(size))
        # What the stride leaves of x after the last window.
        left = [
            (n + lo + hi - (k - 1) * d - 1) % s if isinstance(n, int) and isinstance(k, int) else s - 1
            for n, k, s, (lo, hi), d in zip(size, kernel, strides, pads, dilations)
        ]
        flat = (*(lo for lo, _ in pads), *(hi for _, hi in pads))
        by_x = c(ConvTranspose(strides, flat, dilations, tuple(left), self.groups), g, c.cast(w, g.dtype))
        for k, n in enumerate(size):
            if same(by_x.shape[2 + k], n) is not True:
                by_x = c.slice(by_x, 2 + k, 0, n)
        by_w = weights_gradient(c, c.cast(x, g.dtype), g, kernel, strides, pads, dilations, self.groups)
        return c.cast(by_x, x.dtype), c.cast(by_w, w.dtype)

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(product(types[1].shape[1:]))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        yield Sample(cls(), (f((2, 3, 7, 6)), f((4, 3, 3, 2), seed=1)), "plain")
        yield Sample(cls((2, 1), (1, 0, 2, 1), (1, 2)), (f((1, 3, 8, 9)), f((5, 3, 3, 3), seed=1)), "all")
        yield Sample(cls(pads=(1, 1, 1, 1), groups=2), (f((1, 4, 5, 5)), f((6, 2, 3, 3), seed=1)), "groups")
        yield Sample(cls(pads=(1, 1, 1, 1), groups=4), (f((1, 4, 5, 5)), f((4, 1, 3, 3), seed=1)), "depthwise")
        yield Sample(cls((2,), (1, 1)), (f((2, 3, 9)), f((4, 3, 3), seed=1)), "one_axis")
        yield Sample(cls(pads=(1, 0, 1, 0, 1, 0)), (f((1, 2, 3, 4, 5)), f((3, 2, 2, 2, 2), seed=1)), "three_axes")
        yield Sample(cls(), (f((1, 8, 3, 3)), f((5, 8, 1, 1), seed=1)), "pointwise")
        yield Sample(
            cls(pads=(1, 1, 1, 1)), (f((1, 2, 4, 4), "float16"), f((2, 2, 3, 3), "float16", seed=1)), "float16"
        )
        from weft.dtypes import int32

        yield Sample(
            cls(pads=(1, 1, 1, 1), dtype=int32),
            (integers((1, 2, 4, 4), "uint8", 0, 255), integers((3, 2, 3, 3), "int8", -128, 127)),
            "uint8_int8",
        )


def weights_gradient(
    c: Composer,
    x: Value,
    g: Value,
    kernel: Sequence[Dim],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """The gradient by the weights of a convolution of x [n, c, in…], from that by its result, g [n, oc, out…]: [oc,
    c/groups, kernel…].

    A product over all windows of all pictures: as a convolution it would have a window as large as the result, and
    results as few as the taps, which no schedule of convolutions is made for. A kernel of one tap copies nothing.
    """
    from weft_ops.columns import Windows

    rank, count = len(kernel), product([g.shape[0], *g.shape[2:]])
    if all(map(is_one, kernel)) and not any(p for pair in pads for p in pair):
        for k, (n, s) in enumerate(zip(g.shape[2:], strides)):
            x = c.slice(x, 2 + k, 0, n, s) if s > 1 else x
        columns = c.reshape(x, (*x.shape[:2], *kernel, *x.shape[2:]))
    else:
        flat = (*(lo for lo, _ in pads), *(hi for _, hi in pads))
        columns = c(Windows(tuple(kernel), tuple(strides), flat, tuple(dilations)), x)
    per_in, per_out = dim_floordiv(x.shape[1], groups), dim_floordiv(g.shape[1], groups)
    if is_one(per_in) and is_one(per_out):
        # A product of one row is a sum, whose kernel reads the windows where they lie.
        rows = c.reshape(c.wide(g), (*g.shape[:2], *(1 for _ in kernel), *g.shape[2:]))
        axes = (0, *range(2 + rank, 2 + 2 * rank))
        sums = c.sum(c.mul(c.wide(columns), rows), axes, False)
        return c.reshape(c.cast(sums, g.dtype), (g.shape[1], 1, *kernel))
    columns = c.transpose(columns, (*range(1, 2 + rank), 0, *range(2 + rank, 2 + 2 * rank)))
    shared = () if groups == 1 else (groups,)
    columns = c.reshape(columns, (*shared, product([per_in, *kernel]), count))
    rows = c.reshape(c.transpose(g, (1, 0, *range(2, 2 + rank))), (*shared, per_out, count))
    return c.reshape(c(MatMul(), rows, _transposed(c, columns)), (g.shape[1], per_in, *kernel))


def _bounds(i: Expr, size: Dim, pads: tuple[int, int]) -> list[Expr]:
    """What must be tested to know that 0 ≤ i < size, given how far i can stray."""
    return ([i >= 0] if pads[0] > 0 else []) + ([i < size] if pads[1] > 0 else [])


@dataclass(frozen=True)
class ConvTranspose(Operator):
    """The transpose of Conv: x [n, c, in…], w [c, oc/groups, kernel…] → [n, oc, stride·(in - 1) + extent - pads +
    output_padding…].

    Negative pads add zeros. w may be of a narrower float than x.

    Every stride-th output sums a part of the taps over neighbours in x: those of one residue are a convolution without
    stride, of x with these taps flipped. The decomposition computes them so, as channels, which it then puts beside one
    another. The tensors algorithm is a convolution of x spread by its strides ("pad": zeros between and around) with
    the kernel flipped.
    """

    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    kind = "composite"

    def spatial(self, n: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]:
        return (
            filled(self.strides, n, 1),
            pad_pairs(self.pads, n),
            filled(self.dilations, n, 1),
            filled(self.output_padding, n, 0),
        )

    def out_dims(self, size: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
        settings = self.spatial(len(size))
        return tuple(
            as_dim((n - 1) * s + (k - 1) * d + 1 + extra - lo - hi)
            for n, k, s, (lo, hi), d, extra in zip(size, kernel, *settings)
        )

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, channels or attributes that do not agree."""
        assumed: list[Assumption] = []
        x, w = operands(types, 2)
        dtype = one_dtype([x, widened(w, x)])
        if x.rank < 3 or w.rank != x.rank:
            raise GraphError(
                f"expected x [n, c, in…] and w [c, oc/groups, kernel…], got {show(x.shape)} and {show(w.shape)}"
            )
        unify(w.shape[0], x.shape[1], "channels", assumed)
        return Inferred(
            TensorType(dtype, (x.shape[0], as_dim(w.shape[1] * self.groups), *self.out_dims(x.shape[2:], w.shape[2:]))),
            assumed,
        )

    def reference(self, *arrays: Array | None) -> Array:
        x, w = arrays
        assert x is not None and w is not None
        n, g = x.ndim - 2, self.groups
        strides, pads, dilations, extra = self.spatial(n)
        wx, ww = widen(x), widen(w)
        counts = x.shape[2:]
        full = [
            (c - 1) * s + (k - 1) * d + 1 + max(p, 0)
            for c, k, s, d, p in zip(counts, w.shape[2:], strides, dilations, extra)
        ]
        out = np.zeros((x.shape[0], g, w.shape[1], *full), wx.dtype)
        parts = wx.reshape(x.shape[0], g, -1, *counts)
        weights = ww.reshape(g, -1, *w.shape[1:])
        for tap in np.ndindex(*w.shape[2:]):
            where = tuple(
                slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(tap, dilations, counts, strides)
            )
            product = np.einsum("bgc...,gco->bgo...", parts, weights[(..., *tap)])
            out[(slice(None), slice(None), slice(None), *where)] += product
        grow = [(max(-lo, 0), max(-hi, 0)) for lo, hi in pads]
        out = np.pad(out.reshape(x.shape[0], -1, *full), [(0, 0), (0, 0), *grow])
        out = out[
            (slice(None), slice(None), *(slice(max(lo, 0), m - max(hi, 0)) for m, (lo, hi) in zip(out.shape[2:], pads)))
        ]
        return rounded(out, _dtype(x))

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        if algorithm != "phases" or types[1] is None:
            return None
        (w,) = operands([types[1]], 1)
        if not all(isinstance(k, int) for k in w.shape):
            return "the size of the kernel is not known"
        strides, _, dilations, _ = self.spatial(w.rank - 2)
        if any(s > 1 and d > 1 for s, d in zip(strides, dilations)):
            return "taps of a dilated kernel do not go by residues of the stride"
        return None

    @algorithm("decompose")
    def phases(self, builder: GraphBuilder, x: Value, w: Value) -> Value:
        from weft_ops.composing import Composer

        c, n, g = Composer(builder), len(x.shape) - 2, self.groups
        strides, pads, dilations, extra = self.spatial(n)
        kernel = [k for k in w.shape[2:] if isinstance(k, int)]
        taps = [-(-k // s) for k, s in zip(kernel, strides)]
        # Residues with as many taps as any, and those with one less, which would compute with zeros otherwise. To those
        # beyond a kernel shorter than the stride no tap comes: they are zeros.
        parts = [[(0, s if t > 1 else k, t)] for k, s, t in zip(kernel, strides, taps)]
        if math.prod(t * s for t, s in zip(taps, strides)) >= MOST_ZEROS * math.prod(kernel):
            parts = [
                [(0, k % s, t), (k % s, s, t - 1)] if k % s and t > 1 else p
                for k, s, t, p in zip(kernel, strides, taps, parts)
            ]
        first = [
            min(lo // s, p[-1][2] - 1 if s > 1 else (k - 1) * d)
            for (lo, _), k, s, d, p in zip(pads, kernel, strides, dilations, parts)
        ]
        after = [
            max(0, ((k - 1) * d + e - hi) // s) for (_, hi), k, s, d, e in zip(pads, kernel, strides, dilations, extra)
        ]
        # Weights [g, ic, oc, t0, s0, t1, s1, …], taps in reverse.
        per_in, per_out = as_dim(dim_floordiv(w.shape[0], g)), w.shape[1]
        full = c.pad(w, [0] * (n + 2) + [0, 0] + [t * s - k for k, s, t in zip(kernel, strides, taps)])
        full = c.reshape(full, (g, per_in, per_out, *(d for t, s in zip(taps, strides) for d in (t, s))))

        def part(chosen: Sequence[tuple[int, int, int]]) -> Value:
            """The outputs of some residues per axis: [n, g, s0, s1, …, oc, q0, q1, …]."""
            v = full
            for k, (low, high, t) in enumerate(chosen):
                v = c.slice(v, 3 + 2 * k, t - 1, t, -1)
                v = c.slice(v, 4 + 2 * k, low, high - low)
            v = c.transpose(v, (0, *(4 + 2 * k for k in range(n)), 2, 1, *(3 + 2 * k for k in range(n))))
            counts = [high - low for low, high, _ in chosen]
            v = c.reshape(v, (as_dim(per_out * (g * math.prod(counts))), per_in, *(t for _, _, t in chosen)))
            before = [(t - 1) * d - q for (_, _, t), d, q in zip(chosen, dilations, first)]
            y = c(Conv((), (*before, *after), dilations, g), x, v)
            return c.reshape(y, (y.shape[0], g, *counts, per_out, *y.shape[2:]))

        def joined(chosen: Sequence[tuple[int, int, int]]) -> Value:
            k = len(chosen)
            return part(chosen) if k == n else c.concat([joined([*chosen, p]) for p in parts[k]], 2 + k)

        y = joined([])
        size = y.shape[3 + n :]
        missed = [s - p[-1][1] for s, p in zip(strides, parts)]
        if any(missed):
            y = c.pad(y, [*(0 for _ in y.shape), 0, 0, *missed, *(0 for _ in y.shape[2 + n :])])
        y = c.transpose(y, (0, 1, 2 + n, *(d for k in range(n) for d in (3 + n + k, 2 + k))))
        y = c.reshape(y, (y.shape[0], as_dim(per_out * g), *(as_dim(q * s) for q, s in zip(size, strides))))
        for k, (count, q, s, (lo, _)) in enumerate(zip(self.out_dims(x.shape[2:], w.shape[2:]), first, strides, pads)):
            if y.shape[2 + k] != count:
                y = c.slice(y, 2 + k, lo - q * s, count)
        return y

    @algorithm("tensors")
    def direct(self, x: Tensor, w: Tensor) -> Tensor:
        wide = compute_dtype(x.dtype)
        n = x.rank - 2
        strides, pads, dilations, _ = self.spatial(n)
        kernel = w.shape[2:]
        before = [as_dim((k - 1) * d - lo) for k, d, (lo, _) in zip(kernel, dilations, pads)]
        out = self.out_dims(x.shape[2:], kernel)
        size = [as_dim(o + (k - 1) * d) for o, k, d in zip(out, kernel, dilations)]
        zero = const(0, x.dtype)

        def spread(*index: Expr) -> Expr:
            inner = [i - b for i, b in zip(index[2:], before)]
            tests: list[Expr] = []
            for i, s, m in zip(inner, strides, x.shape[2:]):
                tests += [i >= 0, i // s < m] + ([] if s == 1 else [eq(i % s, 0)])
            return select(all_of(tests), x[(*index[:2], *(i // s for i, s in zip(inner, strides)))], zero)

        source = compute((*x.shape[:2], *size), spread, "pad")
        per_group_in, per_group_out = dim_floordiv(x.shape[1], self.groups), w.shape[1]
        ic = reduce_axis(per_group_in, "ic")
        taps = [reduce_axis(d, f"k{'dhw'[3 - n + k] if n <= 3 else k}") for k, d in enumerate(kernel)]
        shape = (x.shape[0], as_dim(w.shape[1] * self.groups), *out)

        def formula(b: Expr, oc: Expr, *at: Expr) -> Expr:
            group: Expr = Const(0, ic.var.dtype) if self.groups == 1 else oc // per_group_out
            channel = ic.var + group * per_group_in
            flipped = [as_dim(k - 1) - t.var for t, k in zip(taps, kernel)]
            value = source[(b, channel, *(o + t.var * d for o, t, d in zip(at, taps, dilations)))]
            return sum_over(
                cast_to(value, wide)
                * cast_to(w[(channel, oc if self.groups == 1 else oc % per_group_out, *flipped)], wide),
                [ic, *taps],
            )

        product: Tensor = compute(shape, formula, "convtranspose")
        return product if wide == x.dtype else compute(shape, lambda *i: cast_to(product[i], x.dtype), "rounded")

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """By x, the convolution; by w, that of the convolution with x and the result exchanged."""
        from weft_ops.composing import Composer

        (x, w), (g,) = node.inputs, gradients
        assert x is not None and w is not None and g is not None
        c, kernel = Composer(builder), w.shape[2:]
        strides, pads, dilations, extra = self.spatial(len(kernel))
        # What output_padding adds no window reaches; elements of negative pads are those of no window either.
        given = [(lo, hi - more) for (lo, hi), more in zip(pads, extra)]
        for k, (lo, hi) in enumerate(given):
            if lo < 0 or hi < 0:
                before, after = max(0, -lo), max(0, -hi)
                g = c.slice(g, 2 + k, before, as_dim(g.shape[2 + k] - (before + after)))
        given = [(max(0, lo), max(0, hi)) for lo, hi in given]
        flat = (*(lo for lo, _ in given), *(hi for _, hi in given))
        by_x = c(Conv(strides, flat, dilations, self.groups), g, c.cast(w, g.dtype))
        by_w = weights_gradient(c, g, x, kernel, strides, given, dilations, self.groups)
        return by_x, c.cast(by_w, w.dtype)

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d for d in (types[1].shape[0], *types[1].shape[2:]) if isinstance(d, int)]
        return reduction_tolerance(math.prod(sizes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        yield Sample(cls(), (f((1, 2, 3, 3)), f((2, 3, 3, 3), seed=1)), "plain")
        yield Sample(cls((3, 2), (1, 0, 2, 1), (1, 2), (1, 1)), (f((2, 3, 4, 3)), f((3, 2, 3, 2), seed=1)), "all")
        yield Sample(cls((2, 2), groups=2), (f((1, 4, 3, 2)), f((4, 3, 2, 2), seed=1)), "groups")
        yield Sample(cls((2,)), (f((1, 2, 5)), f((2, 2, 3), seed=1)), "one_axis")
        yield Sample(cls((3, 2), (0, -1, -1, 1)), (f((1, 1, 3, 3)), f((1, 2, 3, 3), seed=1)), "negative_pads")
        yield Sample(cls(), (f((1, 1, 2, 3, 2)), f((1, 2, 2, 2, 2), seed=1)), "three_axes")
        yield Sample(cls((2, 2), (1, 1, 1, 1), (), (1, 1)), (f((1, 4, 4, 3)), f((4, 3, 3, 3), seed=1)), "residues")
        yield Sample(cls((2, 3), (5, 0, 4, 1)), (f((1, 2, 7, 4)), f((2, 3, 3, 5), seed=1)), "cropped")
        yield Sample(cls((2, 3), (), (), (1, 0)), (f((1, 4, 3, 2)), f((4, 3, 1, 2), seed=1)), "short")
        yield Sample(cls((2, 2)), (f((1, 2, 3, 3), "float16"), f((2, 1, 2, 2), "float16", seed=1)), "float16")


__all__ = ["Conv", "ConvTranspose", "MatMul"]
