"""Selection and placement by data: multi-dimensional indices, scatters, one-hot, triangles, reversal, non-zeros."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Const, Expr, Var, cast_to, const, select, wrap
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type
from weft.graph.operator import Array, Commutes, Gradients, Operator, Sample, algorithm, touched
from weft.loop.nodes import Allocate, Buffer, If, Seq, Stmt, Store, buffer, seq
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Where
from weft_ops.examples import booleans, floats, integers
from weft_ops.filling import Fill, Iota
from weft_ops.gathering import clamp_indices, safe_index
from weft_ops.moving import INDEX, Movement, composer
from weft_ops.scattering import ScatterElements, ScatterND
from weft_ops.scattering import nest as nest
from weft_ops.shapes import axis_of, expect_kind, is_one, operands, show, static, unify

# -- gather -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatherND(Movement):
    """Slices of x by index vectors: indices [b…, k…, m] with `batch_dims` leading axes shared with x; the last axis
    indexes the m axes after them.

    Result: indices.shape[:-1] + x.shape[batch_dims + m:]. Negative indices count from the end, those out of range are
    clamped.
    """

    batch_dims: int = 0

    def parts(self, x: Sequence[Dim], indices: Sequence[Dim]) -> tuple[int, tuple[Dim, ...]]:
        m = indices[-1] if indices else 0
        if not isinstance(m, int) or not indices:
            raise GraphError(f"indices: expected a known last dimension, got {show(indices)}")
        if not 0 <= self.batch_dims < len(indices) or self.batch_dims + m > len(x):
            raise GraphError(f"indices {show(indices)} with {self.batch_dims} batch dimension(s) do not fit {show(x)}")
        return m, (*indices[:-1], *x[self.batch_dims + m :])

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, indices = operands(types, 2)
        expect_kind(indices.dtype, INDEX, "indices")
        _, shape = self.parts(x.shape, indices.shape)
        for d in range(self.batch_dims):
            unify(x.shape[d], indices.shape[d], f"batch dimension {d}", assumed)
        return Inferred(TensorType(x.dtype, shape), assumed)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """What was taken from a place, added up there, in order."""
        (x, indices), (g,) = node.inputs, gradients
        assert x is not None and indices is not None and g is not None
        c, b, lead = composer(builder), self.batch_dims, indices.shape[:-1]
        wide = c.wide(g)
        if not b and indices.shape[-1] == 0:
            return c.cast(c.sum(wide, range(len(lead)), False), g.dtype), None
        vectors = indices
        if b:
            grid = [c(Iota(dt.int64, (*lead, 1), d)) for d in range(b)]
            vectors = c.concat([*grid, c.cast(indices, dt.int64)], len(lead))
        zeros = c(Fill(wide.dtype, x.shape, 0))
        return c.cast(c(ScatterND("add"), zeros, vectors, wide), g.dtype), None

    def reference(self, *arrays: Array | None) -> Array:
        x, indices = arrays
        assert x is not None and indices is not None
        b = self.batch_dims
        m, _ = self.parts(x.shape, indices.shape)
        lead = indices.shape[:-1]
        grid = np.indices(lead)
        at = [grid[d] for d in range(b)] + [clamp_indices(indices[..., q], x.shape[b + q]) for q in range(m)]
        return np.asarray(x[tuple(at)]) if at else np.broadcast_to(x, (*lead, *x.shape)).copy()

    @algorithm("tensors")
    def direct(self, x: Tensor, indices: Tensor) -> Tensor:
        m, shape = self.parts(x.shape, indices.shape)
        lead = indices.rank - 1

        def formula(*i: Expr) -> Expr:
            at = [safe_index(indices[(*i[:lead], q)], x.shape[self.batch_dims + q]) for q in range(m)]
            return x[(*i[: self.batch_dims], *at, *i[lead:])]

        return compute(shape, formula, "gather")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((2, 3, 4)), np.array([[0, 1], [1, -1]])), "pairs")
        yield Sample(cls(), (integers((2, 2)), np.array([[0, 0], [1, 1]], np.int32)), "elements")
        yield Sample(cls(1), (floats((2, 3, 4)), np.array([[[1], [0]], [[2], [1]]])), "batched")


# -- patterns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneHot(Movement):
    """values[1] where the index along the new `axis` of size `depth` equals indices, else values[0]; inputs indices,
    values [off, on].

    Negative indices count from the end; an index out of range gives no on value.
    """

    depth: Dim
    axis: int = -1

    def out_shape(self, indices: Sequence[Dim]) -> tuple[Dim, ...]:
        axis = axis_of(self.axis, len(indices) + 1)
        return (*indices[:axis], self.depth, *indices[axis:])

    def infer(self, *types: Type | None) -> TensorType:
        indices, values = operands(types, 2)
        if tuple(values.shape) != (2,):
            raise GraphError(f"values: expected [off, on], got shape {show(values.shape)}")
        expect_kind(indices.dtype, ("int", "uint", "float"), "indices")
        return TensorType(values.dtype, self.out_shape(indices.shape))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of the values: the sum where there are ones, and where there are none."""
        (indices, values), (g,) = node.inputs, gradients
        assert indices is not None and values is not None and g is not None
        c = composer(builder)
        wide, zero = c.wide(g), c.number(0, c.wide(g).dtype)
        on = c(self, indices, builder.constant(np.array([False, True]), "places"))
        parts = (c(Where(), on, zero, wide), c(Where(), on, wide, zero))
        sums = [c.reshape(c.sum(v, range(len(g.shape)), False), (1,)) for v in parts]
        return None, c.cast(c.concat(sums, 0), g.dtype)

    def reference(self, *arrays: Array | None) -> Array:
        indices, values = arrays
        assert indices is not None and values is not None
        (depth,) = static([self.depth])
        wide = indices.astype(np.int64)
        wide = np.where(wide < 0, wide + depth, wide)
        axis = axis_of(self.axis, indices.ndim + 1)
        line = np.arange(depth).reshape([-1 if d == axis else 1 for d in range(indices.ndim + 1)])
        return np.asarray(np.where(np.expand_dims(wide, axis) == line, values[1], values[0]))

    @algorithm("tensors")
    def direct(self, indices: Tensor, values: Tensor) -> Tensor:
        axis = axis_of(self.axis, indices.rank + 1)

        def formula(*i: Expr) -> Expr:
            k = cast_to(indices[(*i[:axis], *i[axis + 1 :])], dt.int64)
            k = select(k < 0, k + self.depth, k)
            return select(e.eq(k, i[axis]), values[1], values[0])

        return compute(self.out_shape(indices.shape), formula, "onehot")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(4), (np.array([[0, 3], [-1, 7]]), np.array([0, 5], np.float32)), "last")
        yield Sample(cls(3, 0), (np.array([1, 2], np.int32), np.array([1, 2], np.int64)), "first")
        yield Sample(cls(3, 1), (np.array([1.0, 2.0], np.float32), np.array([1, 2], np.int32)), "float_indices")


@dataclass(frozen=True)
class Trilu(Movement):
    """The upper (else lower) triangle of the last two axes, counted from diagonal k; zero elsewhere."""

    upper: bool = True
    k: Dim = 0

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        if x.rank < 2:
            raise GraphError(f"expected at least two dimensions, got {show(x.shape)}")
        return TensorType(x.dtype, x.shape)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The same triangle of the gradient."""
        (g,) = gradients
        assert g is not None
        return (builder.add(self, g),)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        (k,) = static([self.k])
        rows, columns = np.indices(x.shape[-2:], sparse=True)
        keep = columns - rows >= k if self.upper else columns - rows <= k
        return np.where(keep, x, np.zeros((), x.dtype))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        def formula(*i: Expr) -> Expr:
            offset, k = i[-1] - i[-2], wrap(self.k, dt.int64)
            return select(k <= offset if self.upper else offset <= k, x[i], const(0, x.dtype))

        return compute(x.shape, formula, "trilu")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for k in (0, 2, -1):
            yield Sample(cls(True, k), (integers((2, 3, 4)),), f"upper{k}")
            yield Sample(cls(False, k), (floats((4, 3)),), f"lower{k}")


@dataclass(frozen=True)
class Eye(Movement):
    """A matrix with ones on diagonal k, zeros elsewhere."""

    dtype: DType
    rows: Dim
    columns: Dim
    k: Dim = 0

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 0)
        return TensorType(self.dtype, (self.rows, self.columns))

    def reference(self, *arrays: Array | None) -> Array:
        rows, columns, k = static([self.rows, self.columns, self.k])
        return np.eye(rows, columns, k).astype(self.dtype.numpy)

    @algorithm("tensors")
    def direct(self) -> Tensor:
        return compute((self.rows, self.columns), lambda i, j: cast_to(e.eq(j, i + self.k), self.dtype), "eye")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(dt.float32, 3, 4, 1), (), "float32")
        yield Sample(cls(dt.int32, 3, 2, -1), (), "int32")


@dataclass(frozen=True)
class Tile(Movement):
    """The operand repeated repeats[d] times along axis d."""

    repeats: tuple[Dim, ...]

    def out_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        if len(self.repeats) != len(shape):
            raise GraphError(f"repeats: expected {len(shape)} number(s), got {show(self.repeats)}")
        return tuple(as_dim(d * r) for d, r in zip(shape, self.repeats))

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        return TensorType(x.dtype, self.out_shape(x.shape))

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The sum of all copies."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = composer(builder)
        copies = c.reshape(c.wide(g), tuple(d for pair in zip(self.repeats, x.shape) for d in pair))
        axes = [2 * k for k, r in enumerate(self.repeats) if not is_one(r)]
        total = c.sum(copies, axes, False) if axes else copies
        return (c.cast(c.reshape(total, x.shape), g.dtype),)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return np.tile(arrays[0], static(self.repeats)).reshape(static(self.out_shape(arrays[0].shape)))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        # Of an axis without elements nothing is read, wherever that would be.
        whole = [as_dim(r) == 1 or as_dim(n) == 0 for r, n in zip(self.repeats, x.shape)]

        def formula(*index: Expr) -> Expr:
            return x[tuple(i if w else i % n for i, w, n in zip(index, whole, x.shape))]

        return compute(self.out_shape(x.shape), formula, "tile")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((2, 1, 3)), (floats((2, 3, 2)),), "float32")
        yield Sample(cls((0,)), (integers((3,)),), "none")
        yield Sample(cls((2, 3)), (floats((2, 0)),), "of_none")


@dataclass(frozen=True)
class ReverseSequence(Movement):
    """The first lengths[b] elements along `time_axis` reversed, for every b along `batch_axis`; inputs x, lengths
    [batch]."""

    time_axis: int = 0
    batch_axis: int = 1

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, lengths = operands(types, 2)
        expect_kind(lengths.dtype, INDEX, "lengths")
        time, batch = axis_of(self.time_axis, x.rank), axis_of(self.batch_axis, x.rank)
        if time == batch or lengths.rank != 1:
            raise GraphError(
                f"expected different axes and a vector of lengths, got axes {time} and {batch}, lengths"
                f" {show(lengths.shape)}"
            )
        unify(x.shape[batch], lengths.shape[0], "lengths", assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The gradient reversed."""
        (_, lengths), (g,) = node.inputs, gradients
        assert lengths is not None and g is not None
        return builder.add(self, g, lengths), None

    def reference(self, *arrays: Array | None) -> Array:
        x, lengths = arrays
        assert x is not None and lengths is not None
        moved = np.moveaxis(x, (self.time_axis, self.batch_axis), (0, 1))
        out = moved.copy()
        for b, n in enumerate(lengths):
            out[:n, b] = moved[:n, b][::-1]
        return np.ascontiguousarray(np.moveaxis(out, (0, 1), (self.time_axis, self.batch_axis)))

    @algorithm("tensors")
    def direct(self, x: Tensor, lengths: Tensor) -> Tensor:
        time, batch = axis_of(self.time_axis, x.rank), axis_of(self.batch_axis, x.rank)

        def formula(*i: Expr) -> Expr:
            n = e.minimum(cast_to(lengths[i[batch]], dt.int64), as_dim(x.shape[time]))
            return x[(*i[:time], select(i[time] < n, n - 1 - i[time], i[time]), *i[time + 1 :])]

        return compute(x.shape, formula, "reverse")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (floats((4, 3, 2)), np.array([4, 1, 3])), "time_first")
        yield Sample(cls(1, 0), (integers((3, 4)), np.array([2, 0, 4], np.int32)), "batch_first")


# -- non-zeros --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountNonZero(Operator):
    """How many elements are not zero: int64 [1]. Its element makes the symbol that NonZero takes as its size."""

    kind = "reduction"
    no_gradient = "its result is a number of elements"

    def infer(self, *types: Type | None) -> TensorType:
        operands(types, 1)
        return TensorType(dt.int64, (1,))

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        return np.array([np.count_nonzero(x)], np.int64)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        axes = [reduce_axis(d, f"r{k}") for k, d in enumerate(x.shape)]

        def formula(_: Expr) -> Expr:
            value = cast_to(cast_to(x[tuple(axes)], dt.bool_), dt.int64)
            return sum_over(value, axes) if axes else value

        return compute((1,), formula, "count")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), (booleans((3, 4)),), "bool")
        yield Sample(cls(), (np.array([0.0, -0.0, np.nan, 2], np.float32),), "float32")
        yield Sample(cls(), (np.array(3),), "scalar")
        yield Sample(cls(), (floats((0, 2)),), "empty")


@dataclass(frozen=True)
class NonZero(Operator):
    """The indices of the elements that are not zero, in order: int64 [rank, size].

    `size` is their number (see CountNonZero); what is beyond it is cut, what is short of it zero.
    """

    size: Dim
    kind = "opaque"
    no_gradient = "its results are places"

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        return TensorType(dt.int64, (x.rank, self.size))

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        (size,) = static([self.size])
        found = np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1) if x.ndim else np.zeros((0, size), np.int64)
        out = np.zeros((x.ndim, size), np.int64)
        out[:, : min(size, found.shape[1])] = found[:, :size]
        return out

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    @algorithm("program")
    def in_order(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        (x,) = inputs
        (y,) = outputs
        rank = len(x.shape)
        if rank == 0:
            return Seq(())
        found = buffer("found", (1,), dt.int64, "local")
        zero = Const(0, dt.int64)
        count = found[0]

        def body(i: tuple[Var, ...]) -> Stmt:
            stores: list[Stmt] = [Store(y, (const(d, dt.int64), count), i[d]) for d in range(rank)]
            take = If(count < y.shape[1], seq(*stores, Store(found, (zero,), count + 1)))
            return If(cast_to(x[i], dt.bool_), take)

        clear = nest("z", y.shape, lambda i: Store(y, i, zero), parallel=0)
        return seq(clear, Allocate(found, seq(Store(found, (zero,), zero), nest("n", x.shape, body))))

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = integers((3, 4), "int32", 0, 1)
        yield Sample(cls(int(np.count_nonzero(x))), (x,), "int32")
        yield Sample(cls(2), (np.array([True, False, True]),), "bool")
        yield Sample(cls(3), (np.array([0.0, 0.5], np.float32),), "long")
        yield Sample(cls(1), (np.array([2.0, 0.5], np.float32),), "short")


__all__ = [
    "CountNonZero", "Eye", "GatherND", "NonZero", "OneHot", "ReverseSequence", "ScatterElements", "ScatterND", "Tile",
    "Trilu",
]  # fmt: skip
