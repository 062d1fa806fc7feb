"""Short spellings for decompositions: `Composer` applies operators to values and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr.nodes import Const, eq, select
from weft.graph.identity import Require
from weft.graph.nodes import GraphBuilder, Value, single
from weft.graph.operator import Operator
from weft.tensor.language import Dim, as_dim
from weft_ops import arithmetic as a
from weft_ops.checking import at_most, bounds
from weft_ops.comparison import Equal
from weft_ops.movement import BroadcastTo, Concat, Dims, Gather, Pad, Reshape, Slice, Transpose
from weft_ops.precision import compute_dtype
from weft_ops.reduction import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from weft_ops.shapes import is_one, product

Number = int | float | bool

WIDEST, PART = 64, 16
"""Operands of one Concat at most, and of one part of a wider one: each is a case in its kernel's code."""


class Composer:
    """Adds nodes to a builder. A number next to a value becomes a constant of its dtype."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def __call__(self, op: Operator, *inputs: Value | Number | None) -> Value:
        """`op`, which has one output, applied; numbers take the dtype of the first value that is not a condition."""
        return single(op, self.all(op, *inputs))

    def all(self, op: Operator, *inputs: Value | Number | None) -> tuple[Value, ...]:
        """The outputs of `op`; numbers take the dtype of the first value that is not a condition."""
        dtype = next((v.dtype for v in inputs if isinstance(v, Value) and not v.dtype.is_bool), dt.bool_)
        given = (v if v is None or isinstance(v, Value) else self.number(v, dtype) for v in inputs)
        return self.builder.add_all(op, *given)

    def number(self, value: Number, dtype: DType) -> Value:
        return self.builder.constant(np.asarray(value).astype(dtype.numpy), "c")

    def add(self, x: Value, y: Value | Number) -> Value:
        return self(a.Add(), x, y)

    def sub(self, x: Value | Number, y: Value | Number) -> Value:
        return self(a.Subtract(), x, y)

    def mul(self, x: Value, y: Value | Number) -> Value:
        return self(a.Multiply(), x, y)

    def div(self, x: Value | Number, y: Value | Number) -> Value:
        return self(a.Divide(), x, y)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self(a.Cast(dtype), x)

    def wide(self, x: Value) -> Value:
        """`x` in the dtype in which composites of its dtype compute."""
        return self.cast(x, compute_dtype(x.dtype))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.shape == tuple(shape) else self(Reshape(tuple(shape)), x)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        return x if tuple(axes) == tuple(range(len(x.shape))) else self(Transpose(tuple(axes)), x)

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.shape == tuple(shape) else self(BroadcastTo(tuple(shape)), x)

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """One after another along an axis; of more than `WIDEST`, first parts of `PART`, whose kernels are alike and
        short."""
        while len(xs) > WIDEST:
            xs = [self.concat(xs[k : k + PART], axis) for k in range(0, len(xs), PART)]
        return xs[0] if len(xs) == 1 else self(Concat(axis), *xs)

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: Dim = 1) -> Value:
        """`size` elements from `start` along one axis."""
        axis %= len(x.shape)
        starts = tuple(start if d == axis else 0 for d in range(len(x.shape)))
        sizes = tuple(size if d == axis else n for d, n in enumerate(x.shape))
        steps = tuple(step if d == axis else 1 for d in range(len(x.shape)))
        return self(Slice(starts, sizes, steps), x)

    def pick(self, x: Value, axis: int, index: Dim) -> Value:
        """Element `index` along an axis, which goes."""
        axis %= len(x.shape)
        part = self.slice(x, axis, index, 1)
        return self.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        return self(Gather(axis), x, indices)

    def pad(self, x: Value, pads: Sequence[Dim]) -> Value:
        return self(Pad(tuple(pads)), x)

    def sum(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceSum(tuple(axes), keepdims), x)

    def sum_to(self, x: Value, shape: Sequence[Dim]) -> Value:
        """`x` summed over the axes along which `shape` broadcasts to it, in that shape."""
        extra = len(x.shape) - len(shape)
        ones = (k + extra for k, d in enumerate(shape) if is_one(d))
        axes = [*range(extra), *(k for k in ones if not is_one(x.shape[k]))]
        return self.reshape(self.sum(x, axes) if axes else x, shape)

    def mean(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceMean(tuple(axes), keepdims), x)

    def max(self, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        return self(ReduceMax(tuple(axes), keepdims), x)

    def dim(self, value: Dim, dtype: DType = dt.int64) -> Value:
        """A dimension as data: a scalar."""
        if isinstance(value, int):
            return self.number(value, dtype)
        return self.reshape(self(Dims((value,), dtype)), ())

    # -- what data has to be
    def within(
        self, x: Value, low: Dim | None, high: Dim | None, what: str, of: str, part: Value | None = None
    ) -> Value:
        """`x`, all elements of which lie in low … high (None: unbounded): checked by the run before it uses `x`, as far
        as it is not certain.

        Args:
            what: an element is called in the error; `of` the operator that requires it.
            part: what to look at instead of all of `x`.

        Raises:
            GraphError: it is certain that one does not.
        """
        seen = x if part is None else part
        if not seen.dtype.is_integer or product(seen.shape) == 0:
            return x  # what needs integers refuses others itself
        least, greatest = bounds(seen)
        expected = (
            "expected at least {1}" if high is None else "expected at most {2}" if low is None else "expected {1} … {2}"
        )
        text, span = f"{what} {{0}} is out of range, {expected}", tuple(0 if d is None else d for d in (low, high))
        if not (low is None or (least is not None and at_most(low, least))):
            value = self._found(seen, np.min, ReduceMin(None, False), "least")
            x = self.required(x, Require(value, low, None, text, (value, *span), of))
        if not (high is None or (greatest is not None and at_most(greatest, high))):
            value = self._found(seen, np.max, ReduceMax(None, False), "greatest")
            x = self.required(x, Require(value, None, high, text, (value, *span), of))
        return x

    def nonzero(self, x: Value, what: str, of: str) -> Value:
        """`x`, none of whose elements is 0; else as `within`."""
        if product(x.shape) == 0:
            return x
        least, greatest = bounds(x)
        if (least is not None and at_most(1, least)) or (greatest is not None and at_most(greatest, -1)):
            return x
        if x.dtype.is_integer and x.constant is None and product(x.shape) == 1:
            zeros = as_dim(select(eq(self.builder.symbol(x), 0), 1, 0))  # it is looked at where it is
        else:
            zeros = self._found(self.cast(self(Equal(), x, 0), dt.int64), np.sum, ReduceSum(None, False), "zeros")
        return self.required(x, Require(zeros, None, 0, f"{what} is 0 in {{0}} place(s)", (zeros,), of))

    def _found(self, x: Value, known: Callable[[Any], Any], reduction: Operator, name: str) -> Dim:
        """What the reduction makes of all elements of an integer value, as a number (by `known`) or a data symbol."""
        if x.constant is not None and x.constant.size:
            return int(known(x.constant))
        result = x if product(x.shape) == 1 else self(reduction, x)
        return as_dim(self.builder.symbol(result, 0, f"{x.name}.{name}"))

    def required(self, x: Value, op: Require) -> Value:
        """`x` under a condition over sizes and data symbols, of which no node is made if it certainly holds.

        Raises:
            GraphError: it certainly does not.
        """
        if isinstance(op.holds, Const):
            op.infer(x.type)  # which raises unless it holds
            return x
        return self(op, x)
