"""Running sums and products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft import dtypes as dt
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, wrap
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Operator, Sample, algorithm, touched
from weft.tensor.language import Dim, Tensor, as_dim, compute, scan
from weft_ops.composing import Composer
from weft_ops.contraction import reduction_tolerance
from weft_ops.examples import floats, integers
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import axis_of, dim_select, expect_kind, operands, product, static


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
        axis, rank = wrap(self.axis, dt.int64), len(x.shape)
        axis = e.select(axis < 0, axis + rank, axis)
        before = product([dim_select(axis > d, n, 1) for d, n in enumerate(x.shape)])
        size = product([dim_select(e.eq(axis, d), n, 1) for d, n in enumerate(x.shape)])
        after = product([dim_select(axis < d, n, 1) for d, n in enumerate(x.shape)])
        flat = c.reshape(x, (before, as_dim(size), after))
        return c.reshape(c(type(self)(1, self.exclusive, self.reverse), flat), x.shape)

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

    def combine(self, a: Expr, b: Expr) -> Expr:
        return a * b

    def accumulate(self, x: Array, axis: int) -> Array:
        return np.cumprod(x, axis, dtype=x.dtype)


__all__ = ["CumProd", "CumSum"]
