"""Reductions over axes.

Axes may be formulas (known only at run time): then every axis has a mask "is reduced" and its extents are selections by
it, so one program serves any choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, any_of, cast_to, const, select, wrap
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Gradients, Operator, Sample, algorithm, touched
from weft.tensor.language import (
    Dim,
    Placeholder,
    ReduceAxis,
    Tensor,
    as_dim,
    compute,
    highest,
    lowest,
    reduce,
    reduce_axis,
)
from weft_ops.arithmetic import Divide, Maximum, Multiply, Where
from weft_ops.comparison import Equal
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import booleans, floats, integers
from weft_ops.movement import BroadcastTo, Fill, Reshape
from weft_ops.moving import composer
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import axes_of, axis_of, dim_expr, dim_select, expect_kind, operands, product, static


@dataclass(frozen=True)
class Reduction(Operator):
    """What reductions share. `axes`: ints or formulas, negative from the end; None is all, () none; `keepdims` as
    numpy's."""

    axes: tuple[Dim, ...] | None = None
    keepdims: bool = False
    kind = "reduction"
    kinds: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    reducer: ClassVar[str] = "sum"

    def infer(self, *types: Type | None) -> TensorType:
        """Raises GraphError for another kind of dtype or axes out of range."""
        (x,) = operands(types, 1)
        expect_kind(x.dtype, self.kinds)
        return TensorType(x.dtype, self.out_shape(x.shape))

    def reduced_axes(self, rank: int) -> tuple[int, ...] | None:
        return None if self.runtime_axes else self.numpy_axes(rank)

    @property
    def runtime_axes(self) -> bool:
        return self.axes is not None and any(isinstance(a, Expr) for a in self.axes)

    def masks(self, rank: int) -> list[bool | Expr]:
        """Per axis whether it is reduced: bools, or formulas if the axes are."""
        if self.axes is None:
            return [True] * rank
        if len(self.axes) > rank:
            raise GraphError(f"axes: {len(self.axes)} of them, the operand has {rank} dimension(s)")
        if not self.runtime_axes:
            axes = axes_of(static(self.axes), rank)
            return [d in axes for d in range(rank)]
        formulas = [wrap(a, dt.int64) for a in self.axes]
        return [any_of(c for a in formulas for c in (e.eq(a, d), e.eq(a, d - rank))) for d in range(rank)]

    def kept_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The result's shape with reduced axes kept as 1."""
        return tuple(dim_select(m, 1, d) for m, d in zip(self.masks(len(shape)), shape))

    def out_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        masks = self.masks(len(shape))
        if self.keepdims:
            return self.kept_shape(shape)
        if not self.runtime_axes:
            return tuple(d for m, d in zip(masks, shape) if not m)
        assert self.axes is not None
        # Output axis j is the kept axis before which j axes are kept.
        before: list[Expr] = [const(0, dt.int64)]
        for m in masks:
            before.append(before[-1] + select(wrap(m), const(0, dt.int64), const(1, dt.int64)))
        result: list[Dim] = []
        for j in range(len(shape) - len(self.axes)):
            d: Expr = const(1, dt.int64)
            for m, size, rank in zip(map(wrap, masks), shape, before):
                d = select(e.and_(e.not_(m), e.eq(rank, j)), wrap(size, dt.int64), d)
            result.append(as_dim(d))
        return tuple(result)

    def length(self, shape: Sequence[Dim]) -> Dim:
        """How many elements each result covers."""
        return product([dim_select(m, d, 1) for m, d in zip(self.masks(len(shape)), shape)])

    def spread(self, builder: GraphBuilder, value: Value, like: Value) -> Value:
        """A value of the result's shape, broadcast to that of the operand `like`."""
        kept = self.kept_shape(like.shape)
        aligned = value if value.shape == kept else builder.add(Reshape(kept), value)
        return builder.add(BroadcastTo(like.shape), aligned)

    def accumulator(self, dtype: DType) -> DType:
        return compute_dtype(dtype)

    def chosen_reducer(self, dtype: DType) -> str:
        return self.reducer

    def before(self, x: Expr) -> Expr:
        return x

    def after(self, total: Expr, length: Dim) -> Expr:
        return total

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        wide = self.accumulator(x.dtype)
        masks = self.masks(x.rank)
        kept = self.keepdims or self.runtime_axes
        axes = {
            d: reduce_axis(dim_select(m, size, 1), f"r{d}")
            for d, (m, size) in enumerate(zip(masks, x.shape))
            if isinstance(m, Expr) or m
        }
        shape = self.kept_shape(x.shape) if kept else tuple(d for m, d in zip(masks, x.shape) if not m)

        def formula(*index: Expr) -> Expr:
            left = iter(index)
            at: list[Expr] = []
            for d, m in enumerate(masks):
                if m is True:
                    if kept:
                        next(left)
                    at.append(axes[d].var)
                else:
                    i = next(left)
                    # Of the two indices of an axis reduced perhaps, one is 0.
                    at.append(i if m is False else i + axes[d].var)
            value = cast_to(self.before(cast_to(x[tuple(at)], wide)), wide)
            return reduce(self.chosen_reducer(wide), value, list(axes.values())) if axes else value

        total = compute(shape, formula, "reduced")
        length = self.length(x.shape)
        dtype = x.dtype
        if self.runtime_axes and not self.keepdims:
            from weft_ops.movement import reshape_index

            out = self.out_shape(x.shape)
            return compute(
                out, lambda *i: cast_to(self.after(total[reshape_index(i, out, shape)], length), dtype), "result"
            )
        if wide == dtype and type(self).after is Reduction.after:
            return total
        return compute(shape, lambda *i: cast_to(self.after(total[i], length), dtype), "result")

    def numpy_axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.axes is None else axes_of(static(self.axes), rank)

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        """The reduction of the wide x by numpy."""
        raise NotImplementedError

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        with np.errstate(all="ignore"):
            return rounded(self.over(widen(x), self.numpy_axes(x.ndim)), dt.dtype(x.dtype))

    def tolerance(self, *types: TensorType) -> float:
        return reduction_tolerance(self.length(types[0].shape)) if types[0].dtype.is_float else 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = floats((3, 4, 5), lo=0.5, hi=1.5)
        yield Sample(cls(), (x,), "all")
        yield Sample(cls((1,)), (x,), "one")
        yield Sample(cls((-1, 0), True), (x,), "two_kept")
        yield Sample(cls((), True), (x,), "none")
        yield Sample(cls((0,)), (floats((7,), "float16"),), "float16")
        yield Sample(cls((0,)), (floats((7, 2), "float64"),), "float64")
        yield Sample(cls((1,)), (integers((3, 4), "int32", 1, 4),), "int32")
        yield Sample(cls((1,)), (integers((3, 4), "int8", -100, 100),), "int8")
        if "bool" in cls.kinds:
            yield Sample(cls((1,)), (booleans((3, 4)),), "bool")


@dataclass(frozen=True)
class ReduceSum(Reduction):
    """The sum; integers wrap in their dtype."""

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        return (self.spread(builder, g, x),)

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        return x.sum(axis=axes, keepdims=self.keepdims, dtype=x.dtype)


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """The product; integers wrap in their dtype."""

    reducer = "prod"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of each element the product of those before it and of those after it: nothing is divided, so zeros are no
        exception, here and in the gradient's gradient.

        Where the axes are formulas, the product of all others that are not zero, or zero: there the gradient's gradient
        lacks what two zeros would have.
        """
        from weft_ops.scanning import CumProd  # which imports this module

        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, rank = composer(builder), len(x.shape)
        wide = c.wide(x)
        if self.runtime_axes:
            none = c(Equal(), wide, 0.0)
            factors = c(Where(), none, c.number(1, wide.dtype), wide)
            count = c.cast(none, dt.int64)
            whole = self.spread(builder, c(self, factors), x)
            zeros = self.spread(builder, c(ReduceSum(self.axes, self.keepdims), count), x)
            others = c(Where(), c(Equal(), zeros, count), c(Divide(), whole, factors), c.number(0, wide.dtype))
        else:
            axes = self.numpy_axes(rank)
            order = (*(k for k in range(rank) if k not in axes), *axes)
            line = c.transpose(wide, order)
            shape = line.shape
            if axes:
                line = c.reshape(line, (*shape[: rank - len(axes)], product(shape[rank - len(axes) :])))
                line = c(Multiply(), *(c(CumProd(-1, True, reverse), line) for reverse in (False, True)))
            else:
                line = c(Fill(wide.dtype, shape, 1))
            others = c.transpose(c.reshape(line, shape), [order.index(k) for k in range(rank)])
        return (c.cast(c.mul(others, self.spread(builder, c.wide(g), x)), x.dtype),)

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        return x.prod(axis=axes, keepdims=self.keepdims, dtype=x.dtype)


@dataclass(frozen=True)
class ReduceMean(Reduction):
    """The mean; of integers, truncated; of no integers, 0."""

    def after(self, total: Expr, length: Dim) -> Expr:
        count = cast_to(wrap(length, dt.int64), total.dtype)
        # Floats divide 0 by 0 for NaN; integers must not divide by 0.
        return e.truncdiv(total, e.maximum(count, const(1, total.dtype))) if total.dtype.is_integer else total / count

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = composer(builder)
        wide = c.wide(g)
        each = c.div(wide, c.cast(c.dim(self.length(x.shape)), wide.dtype))
        return (self.spread(builder, c.cast(each, x.dtype), x),)

    def accumulator(self, dtype: DType) -> DType:
        return dt.int64 if dtype.is_integer else compute_dtype(dtype)

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        if x.dtype.kind != "f" and not x.size:
            return x.sum(axis=axes, keepdims=self.keepdims, dtype=x.dtype)
        mean = x.mean(axis=axes, keepdims=self.keepdims, dtype=x.dtype if x.dtype.kind == "f" else np.longdouble)
        return mean if x.dtype.kind == "f" else np.trunc(mean)


@dataclass(frozen=True)
class ReduceMax(Reduction):
    """The greatest element; NaN wins. Of bools: any. Of nothing: the least value."""

    kinds = ("int", "uint", "float", "bool")
    reducer = "max"

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Elements that are the greatest share the gradient evenly, as PyTorch's `amax` has it; NaN has none."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c = composer(builder)
        wide = c.wide(g)
        found = c(IsExtreme(self.axes, self.reducer == "max"), x)
        # Of nothing and of NaN there is none, and nothing to share.
        count = c(Maximum(), c(ReduceSum(self.axes, self.keepdims), c.cast(found, wide.dtype)), 1)
        share = c.div(wide, count)
        return (c.cast(c(Where(), found, self.spread(builder, share, x), c.number(0, wide.dtype)), x.dtype),)

    @property
    def commutes(self) -> Commutes:
        return "monotone"

    def chosen_reducer(self, dtype: DType) -> str:
        return "any" if dtype.is_bool else self.reducer

    def accumulator(self, dtype: DType) -> DType:
        return dtype

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        return x.max(
            axis=axes,
            keepdims=self.keepdims,
            initial=-np.inf if x.dtype.kind == "f" else lowest(dt.dtype(x.dtype)).value,
        )

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample(cls((1,)), (np.array([[1, np.nan], [-np.inf, -np.inf], [np.inf, 2]], np.float32),), "special")
        yield Sample(cls((1,)), (floats((2, 0)),), "empty")


@dataclass(frozen=True)
class ReduceMin(ReduceMax):
    """The least element; NaN wins. Of bools: all. Of nothing: the greatest value."""

    reducer = "min"

    def chosen_reducer(self, dtype: DType) -> str:
        return "all" if dtype.is_bool else self.reducer

    def over(self, x: Array, axes: tuple[int, ...]) -> Any:
        return x.min(
            axis=axes,
            keepdims=self.keepdims,
            initial=np.inf if x.dtype.kind == "f" else highest(dt.dtype(x.dtype)).value,
        )


@dataclass(frozen=True)
class IsExtreme(Operator):
    """Whether each element of x is the greatest (else the least) along `axes`, those of ReduceMax: bool of its shape.

    One operator, which reads x twice from memory: a comparison of elements that are computed as they are read with an
    extreme that was found among others might miss it by a rounding. NaN is none.
    """

    axes: tuple[Dim, ...] | None = None
    greatest: bool = True
    kind = "opaque"
    reads_twice = True
    no_gradient = "its results are places"

    @property
    def _reduction(self) -> Reduction:
        return (ReduceMax if self.greatest else ReduceMin)(self.axes, True)

    def infer(self, *types: Type | None) -> TensorType:
        self._reduction.infer(*types)
        return TensorType(dt.bool_, operands(types, 1)[0].shape)

    def reference(self, *arrays: Array | None) -> Array:
        assert arrays[0] is not None
        return np.asarray(arrays[0] == self._reduction.reference(arrays[0]))

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return 32 * touched(*inputs, *outputs)

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        extreme, masks = self._reduction.direct(x), self._reduction.masks(x.rank)
        zero = const(0, dt.int64)

        def formula(*index: Expr) -> Expr:
            return e.eq(x[index], extreme[tuple(dim_expr(dim_select(m, zero, i)) for m, i in zip(masks, index))])

        return compute(x.shape, formula, "extreme")

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = integers((3, 4, 5), "float32", 0, 3)
        for greatest in (False, True):
            yield Sample(cls(None, greatest), (x,), f"all_{greatest}")
            yield Sample(cls((-1, 0), greatest), (x,), f"two_{greatest}")
            yield Sample(cls((1,), greatest), (integers((3, 4), "int8", -2, 2),), f"int8_{greatest}")
        yield Sample(cls((1,)), (np.array([[1, np.nan], [-np.inf, -np.inf], [np.inf, 2]], np.float32),), "special")
        yield Sample(cls((0,)), (floats((7,), "float16"),), "float16")
        yield Sample(cls((1,)), (floats((2, 0)),), "empty")


@dataclass(frozen=True)
class Argmax(Operator):
    """Where the greatest element along `axis` is, int64: the first such place, or the last if `last`; NaN is
    greatest."""

    axis: int = 0
    keepdims: bool = False
    last: bool = False
    kind = "reduction"
    reads_twice = True
    no_gradient = "its results are places"
    best: ClassVar[str] = "argmax"

    def reduced_axes(self, rank: int) -> tuple[int, ...] | None:
        return (axis_of(self.axis, rank),)

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        axis = axis_of(self.axis, x.rank)
        return TensorType(dt.int64, (*x.shape[:axis], *((1,) if self.keepdims else ()), *x.shape[axis + 1 :]))

    @algorithm("tensors")
    def places(self, x: Tensor) -> Tensor:
        """The extreme, then the first or last place that has it: both are reductions that vectors and threads can
        share.

        What is computed as it is read might be rounded differently the second time: it is read once.
        """
        if not isinstance(x.source, Placeholder):
            return self.direct(x)
        axis = axis_of(self.axis, x.rank)
        n, narrow = x.shape[axis], isinstance(x.shape[axis], int) and 0 < x.shape[axis] < 1 << 31
        shape = (*x.shape[:axis], *((1,) if self.keepdims else ()), *x.shape[axis + 1 :])
        word = dt.int32 if narrow else dt.int64
        look, find = reduce_axis(n, "look"), reduce_axis(n, "find")

        def element(index: tuple[Expr, ...], r: ReduceAxis) -> Expr:
            return x[(*index[:axis], r, *(index[axis + 1 :] if self.keepdims else index[axis:]))]

        most = compute(
            shape, lambda *i: reduce("max" if self.best == "argmax" else "min", element(i, look), look), "most"
        )

        def place(*index: Expr) -> Expr:
            value = element(index, find)
            # If the extreme is NaN it equals nothing; else nothing is NaN.
            here = any_of([e.eq(value, most[index]), *([e.ne(value, value)] if x.dtype.is_float else [])])
            return reduce(
                "max" if self.last else "min",
                select(here, cast_to(find.var, word), (lowest if self.last else highest)(word)),
                find,
            )

        found = compute(shape, place, "place")
        if narrow:
            return compute(shape, lambda *i: cast_to(found[i], dt.int64), "arg")
        # Of nothing: -1.
        return compute(
            shape,
            lambda *i: e.maximum(found[i], -1) if self.last else e.minimum(found[i], e.sub(wrap(n, dt.int64), 1)),
            "arg",
        )

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        """Both at once."""
        axis = axis_of(self.axis, x.rank)
        r = reduce_axis(x.shape[axis], "r")
        shape = (*x.shape[:axis], *((1,) if self.keepdims else ()), *x.shape[axis + 1 :])

        def formula(*index: Expr) -> tuple[Expr, ...]:
            rest = index[axis + 1 :] if self.keepdims else index[axis:]
            return reduce(self.best + ("_last" if self.last else ""), (x[(*index[:axis], r, *rest)], r.var), r)

        return compute(shape, formula, "arg")[1]

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        wide = widen(x)
        find = getattr(np, self.best)
        if self.last:
            at = wide.shape[self.axis] - 1 - find(np.flip(wide, self.axis), axis=self.axis, keepdims=self.keepdims)
        else:
            at = find(wide, axis=self.axis, keepdims=self.keepdims)
        return np.asarray(at, np.int64)

    def tolerance(self, *types: TensorType) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for last in (False, True):
            yield Sample(cls(1, False, last), (integers((3, 9), "int32", 0, 3),), f"ties_{last}")
            yield Sample(cls(-1, True, last), (floats((2, 3, 5)),), f"float32_{last}")
            yield Sample(cls(0, False, last), (np.array([1, np.nan, 3, np.nan], np.float32),), f"nan_{last}")
            yield Sample(cls(0, False, last), (np.full((4,), -np.inf, np.float32),), f"infinite_{last}")
            yield Sample(cls(0, True, last), (floats((4, 2), "float16"),), f"float16_{last}")


@dataclass(frozen=True)
class Argmin(Argmax):
    """Where the least element along `axis` is, int64: the first such place, or the last if `last`; NaN is least."""

    best = "argmin"


__all__ = ["Argmax", "Argmin", "IsExtreme", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]
