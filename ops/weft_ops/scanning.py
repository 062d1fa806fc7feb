"""Running sums and products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from weft import dtypes as dt
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, wrap
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, Tensor, as_dim, compute, scan
from weft_ops.composing import Composer
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import floats, integers
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import axis_of, dim_select, expect_kind, one_dtype, operands, product, static, unify_shapes


@dataclass(frozen=True)
class CumSum(Operator):
    """The sum of the elements up to each one along `axis`; `exclusive`: without itself; `reverse`: from the end.

    The axis may be a formula (known only at run time): then x is seen as [before, axis, after], whose extents are
    formulas.
    """

    axis: Dim = 0
    exclusive: bool = False
    reverse: bool = False
    kind = "opaque"
    start: ClassVar[int] = 0

    def infer(self, *types: Type | None) -> TensorType:
        (x,) = operands(types, 1)
        expect_kind(x.dtype, ("int", "uint", "float"))
        if isinstance(self.axis, int):
            axis_of(self.axis, x.rank)
        return TensorType(x.dtype, x.shape)

    def applies(self, algorithm: str, *types: Type | None) -> str | None:
        runtime = isinstance(self.axis, Expr)
        if algorithm == "by_reshape":
            return None if runtime else "the axis is known"
        return "the axis is known only at run time" if runtime else None

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The sum of the gradients from each element on, the other way."""
        (g,) = gradients
        assert g is not None
        return (builder.add(replace(self, reverse=not self.reverse), g),)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return a + b

    def accumulate(self, x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, dtype=x.dtype)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        (axis,) = static([self.axis])
        wide = widen(x)
        wide = np.flip(wide, axis) if self.reverse else wide
        if self.exclusive:
            first = np.full_like(wide.take([0], axis), self.start) if wide.shape[axis] else wide
            wide = (
                np.concatenate([first, wide.take(range(wide.shape[axis] - 1), axis)], axis)
                if wide.shape[axis]
                else wide
            )
        total = self.accumulate(wide, axis)
        return rounded(np.flip(total, axis) if self.reverse else total, dt.dtype(x.dtype))

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        assert isinstance(self.axis, int)
        axis = axis_of(self.axis, x.rank)
        wide = compute_dtype(x.dtype)
        rest = (*x.shape[:axis], *x.shape[axis + 1 :])
        first = compute(rest, lambda *i: const(self.start, wide), "start")

        def at(t: Expr, i: tuple[Expr, ...]) -> Expr:
            return cast_to(x[(*i[:axis], t, *i[axis:])], wide)

        def step(t: Expr, total: Tensor) -> Tensor:
            if not self.exclusive:
                return compute(rest, lambda *i: self.combine(total[i], at(t, i)), "total")
            before = t + 1 if self.reverse else t - 1
            exists = before < x.shape[axis] if self.reverse else before >= 0
            return compute(
                rest,
                lambda *i: self.combine(total[i], e.select(exists, at(before, i), const(self.start, wide))),
                "total",
            )

        (totals,) = scan(x.shape[axis], [first], step, name="running", reverse=self.reverse)
        return compute(x.shape, lambda *i: cast_to(totals[(i[axis], *i[:axis], *i[axis + 1 :])], x.dtype), "cumulative")

    @algorithm("decompose")
    def by_reshape(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        flat = c.reshape(x, self._lines(x.shape))
        return c.reshape(c(type(self)(1, self.exclusive, self.reverse), flat), x.shape)

    def _lines(self, shape: Sequence[Dim]) -> tuple[Dim, Dim, Dim]:
        """The shape [before, axis, after] of a value of the shape given."""
        axis, rank = wrap(self.axis, dt.int64), len(shape)
        axis = e.select(axis < 0, axis + rank, axis)
        before = product([dim_select(axis > d, n, 1) for d, n in enumerate(shape)])
        size = product([dim_select(e.eq(axis, d), n, 1) for d, n in enumerate(shape)])
        after = product([dim_select(axis < d, n, 1) for d, n in enumerate(shape)])
        return before, as_dim(size), after

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d for d in types[0].shape if isinstance(d, int)]
        return reduction_tolerance(max(sizes, default=1)) if types[0].dtype.is_float else 0.0

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for exclusive in (False, True):
            for reverse in (False, True):
                yield Sample(
                    cls(1, exclusive, reverse), (floats((2, 5, 3), lo=0.5, hi=1.5),), f"float32_{exclusive}_{reverse}"
                )
        yield Sample(cls(0), (integers((6,), "int32"),), "int32")
        yield Sample(cls(-1), (floats((2, 4), "float16"),), "float16")
        yield Sample(cls(0), (floats((4,), "float64"),), "float64")


@dataclass(frozen=True)
class CumProd(CumSum):
    """The product of the elements up to each one along `axis`; attributes as CumSum's."""

    start = 1

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of element i the product of those before it, times Σ over k from i on of gradient k and the product of those
        from i + 1 to k: a recurrence (`LinearScan`). Nothing is divided, so zeros are no exception.
        """
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, shape = Composer(builder), x.shape
        lines = self._lines(shape) if isinstance(self.axis, Expr) else shape
        axis = 1 if isinstance(self.axis, Expr) else axis_of(self.axis, len(shape))
        wide, given = (c.reshape(c.wide(v), lines) for v in (x, g))

        def following(v: Value) -> Value:
            """The next element's at each element's place, zero at the last one's."""
            crop = [-1 if d == axis else 0 for d in range(len(lines))]
            add = [-d for d in crop]
            return c.pad(v, [*add, *crop] if self.reverse else [*crop, *add])

        before = c(CumProd(axis, True, self.reverse), wide)
        ahead = following(given) if self.exclusive else given
        total = c(LinearScan(axis, not self.reverse), following(wide), ahead)
        return (c.cast(c.reshape(c.mul(before, total), shape), x.dtype),)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return a * b

    def accumulate(self, x: Array, axis: int) -> Array:
        return np.cumprod(x, axis, dtype=x.dtype)


@dataclass(frozen=True)
class LinearScan(Operator):
    """y[i] = factors[i] · y[i - 1] + terms[i] along `axis`, from 0; `reverse`: y[i + 1], from the end.

    Inputs: factors, terms, of one shape and float dtype; narrower floats than float32 are rounded once. A running
    product's gradient is one, as is a linear recurrence whose coefficients are data.
    """

    axis: int = 0
    reverse: bool = False
    kind = "opaque"

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for another kind of dtype, different dtypes or shapes, or an axis out of range."""
        assumed: list[Assumption] = []
        factors, terms = operands(types, 2)
        expect_kind(one_dtype([factors, terms]), ("float",))
        axis_of(self.axis, factors.rank)
        unify_shapes(factors.shape, terms.shape, "terms", assumed)
        return Inferred(TensorType(terms.dtype, terms.shape), assumed)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int | None:
        return (1 << 8) * touched(*inputs, *outputs)

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Of the terms the same recurrence the other way, each element's factor that of the next one; of the factors
        that times the element before."""
        (factors, terms), (g,) = node.inputs, gradients
        assert factors is not None and terms is not None and g is not None
        c, rank = Composer(builder), len(terms.shape)
        axis = axis_of(self.axis, rank)

        def moved(v: Value, back: bool) -> Value:
            crop = [-1 if d == axis else 0 for d in range(rank)]
            add = [-d for d in crop]
            return c.pad(v, [*crop, *add] if back else [*add, *crop])

        by_terms = c(LinearScan(axis, not self.reverse), moved(c.wide(factors), not self.reverse), c.wide(g))
        before = moved(c.wide(node.output), self.reverse)
        return c.cast(c.mul(by_terms, before), g.dtype), c.cast(by_terms, g.dtype)

    def reference(self, *arrays: Array | None) -> Array:
        factors, terms = arrays
        assert factors is not None and terms is not None
        a, b = (np.moveaxis(widen(v), self.axis, 0) for v in (factors, terms))
        out, state = np.zeros_like(b), np.zeros(b.shape[1:], b.dtype)
        for i in reversed(range(len(b))) if self.reverse else range(len(b)):
            out[i] = state = a[i] * state + b[i]
        return np.ascontiguousarray(rounded(np.moveaxis(out, 0, self.axis), dt.dtype(terms.dtype)))

    @algorithm("tensors")
    def direct(self, factors: Tensor, terms: Tensor) -> Tensor:
        axis, wide = axis_of(self.axis, terms.rank), compute_dtype(terms.dtype)
        rest = (*terms.shape[:axis], *terms.shape[axis + 1 :])
        first = compute(rest, lambda *i: const(0, wide), "start")

        def step(t: Expr, state: Tensor) -> Tensor:
            def formula(*i: Expr) -> Expr:
                a, b = (cast_to(v[(*i[:axis], t, *i[axis:])], wide) for v in (factors, terms))
                return a * state[i] + b

            return compute(rest, formula, "state")

        (states,) = scan(terms.shape[axis], [first], step, name="running", reverse=self.reverse)
        return compute(terms.shape, lambda *i: cast_to(states[(i[axis], *i[:axis], *i[axis + 1 :])], terms.dtype), "y")

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d for d in types[0].shape if isinstance(d, int)]
        return 2 * reduction_tolerance(max(sizes, default=1))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for reverse in (False, True):
            yield Sample(
                cls(1, reverse), (floats((2, 5, 3), lo=-1, hi=1), floats((2, 5, 3), seed=1)), f"float32_{reverse}"
            )
        yield Sample(cls(-1), (floats((2, 4), "float16", -1, 1), floats((2, 4), "float16", seed=1)), "float16")
        yield Sample(cls(0), (floats((4,), "float64"), floats((4,), "float64", seed=1)), "float64")
        yield Sample(cls(0), (floats((0, 2)), floats((0, 2))), "empty")


__all__ = ["CumProd", "CumSum", "LinearScan"]
