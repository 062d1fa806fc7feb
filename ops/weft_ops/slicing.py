"""Operators that take a part of their operand, or add elements at its ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, all_of, const, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Commutes, Gradients, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute
from weft_ops.arithmetic import Where
from weft_ops.examples import booleans, floats, integers
from weft_ops.filling import Fill, Iota
from weft_ops.gathering import added_rows
from weft_ops.moving import ZERO, Movement, composer
from weft_ops.shapes import (
    dim_ceildiv,
    dim_expr,
    dim_max,
    dim_min,
    dim_select,
    expect_some,
    one_dtype,
    operands,
    product,
    show,
    simplified,
    static,
)
from weft_ops.words import PAD_MODES, PadMode

if TYPE_CHECKING:
    from weft_ops.composing import Composer


def slice_range(size: Dim, start: Dim | None, stop: Dim | None, step: Dim = 1) -> tuple[Dim, Dim]:
    """(first index, number of elements) of the Python slice start:stop:step of an axis of `size`; formulas where they
    are.

    None is Python's omitted bound. A step that is a formula may have either sign.
    """
    if isinstance(step, Expr):
        up, down = slice_range(size, start, stop, 1), slice_range(size, start, stop, -1)
        positive = dim_expr(step) > 0
        count_up, count_down = dim_ceildiv(up[1], dim_max(step, 1)), dim_ceildiv(down[1], dim_max(as_dim(-step), 1))
        return dim_select(positive, up[0], down[0]), dim_select(positive, count_up, count_down)

    def bound(i: Dim | None, default: Dim, lo: Dim, hi: Dim | None) -> Dim:
        if i is None:
            return default
        if isinstance(i, int):
            wrapped: Dim = i if i >= 0 else as_dim(size + i)
        else:
            wrapped = dim_select(i < 0, as_dim(i + size), i)
        if isinstance(wrapped, int) and wrapped == 0 and step > 0:
            return 0
        if isinstance(i, int) and i >= 2**31 - 1 and step > 0 and hi is not None:
            return hi
        if isinstance(i, int) and i <= -(2**31) + 1:
            return lo
        return dim_max(lo, wrapped if hi is None else dim_min(wrapped, hi))

    if step > 0:
        first, last = bound(start, 0, 0, size), bound(stop, size, 0, size)
        if isinstance(first, int) and first == 0:
            return first, dim_ceildiv(last, step)
        # Of a start beyond the end nothing is left anyway, so the shorter formula does: n - 1 elements or none rather
        # than n - min(n, 1).
        return first, dim_ceildiv(dim_max(as_dim(last - bound(start, 0, 0, None)), 0), step)
    top = as_dim(size - 1)
    first, last = bound(start, top, -1, top), bound(stop, -1, -1, top)
    return first, dim_ceildiv(dim_max(as_dim(first - last), 0), -step)


@dataclass(frozen=True)
class Slice(Movement):
    """Elements starts[d] + i · steps[d] for i < sizes[d], per axis d; all given for every axis, already inside the
    operand.

    See `slice_range` for bounds as Python writes them.
    """

    starts: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    steps: tuple[Dim, ...] = ()

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a number of starts, sizes or steps other than the rank, or an element certainly
        outside."""
        assumed: list[Assumption] = []
        (x,) = operands(types, 1)
        for name, value in (("starts", self.starts), ("sizes", self.sizes), ("steps", self.steps or self.starts)):
            if len(value) != x.rank:
                raise GraphError(f"{name}: expected {x.rank} number(s), got {show(value)}")
        for d, (start, size, step, n) in enumerate(zip(self.starts, self.sizes, self.all_steps, x.shape)):
            if (
                isinstance(start, int)
                and isinstance(size, int)
                and isinstance(step, int)
                and isinstance(n, int)
                and size > 0
            ):
                last = start + (size - 1) * step
                if not (0 <= start < n and 0 <= last < n):
                    raise GraphError(f"dimension {d}: expected elements 0 … {n - 1}, got {start} … {last}")
                continue
            zero, count, first = dim_expr(0), dim_expr(n), dim_expr(start)
            end = first + (dim_expr(size) - 1) * step
            inside = all_of([e.le(zero, first), e.lt(first, count), e.le(zero, end), e.lt(end, count)])
            what = f"dimension {d}: expected elements below {{0}}, got {{1}} … {{2}}"
            holds = e.or_(e.le(dim_expr(size), zero), inside)
            assumed.append(Assumption(holds, (count, first, end), what, "slice inside the operand"))
        return Inferred(TensorType(x.dtype, self.sizes), assumed)

    @property
    def all_steps(self) -> tuple[Dim, ...]:
        return self.steps or (1,) * len(self.starts)

    def cost(self, *types: Type | None) -> float:
        return 1.0

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        start = self.starts[axis]
        return self.all_steps[axis] == 1 and isinstance(start, int) and start % factor == 0

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The gradient with zeros between its elements and around them; by places where a step is a formula."""
        (x,), (g,) = node.inputs, gradients
        assert x is not None and g is not None
        c, steps = composer(builder), self.all_steps
        if not all(isinstance(s, int) and s for s in steps):
            return super().gradient(builder, node, gradients)
        starts, sizes = list(self.starts), list(self.sizes)
        for d, (size, step) in enumerate(zip(self.sizes, steps)):
            assert isinstance(step, int)
            if step < 0:  # the last element comes first
                starts[d] = as_dim(starts[d] + as_dim(size - 1) * step)
                g = c.slice(g, d, as_dim(size - 1), size, -1)
            if abs(step) > 1:
                shape = (*g.shape[: d + 1], 1, *g.shape[d + 1 :])
                pads = [0] * len(shape) + [abs(step) - 1 if k == d + 1 else 0 for k in range(len(shape))]
                sizes[d] = as_dim(size * abs(step))
                g = c.reshape(c.pad(c.reshape(g, shape), pads), (*g.shape[:d], sizes[d], *g.shape[d + 1 :]))
        # Of the zeros after the last element some may be beyond the end: a negative pad.
        after = [simplified(as_dim(n - start - size)) for n, start, size in zip(x.shape, starts, sizes)]
        return (c.pad(g, (*starts, *after)),)

    def reference(self, *arrays: Array | None) -> Array:
        (x,) = arrays
        assert x is not None
        for d, (start, size, step) in enumerate(zip(static(self.starts), static(self.sizes), static(self.all_steps))):
            x = np.take(x, start + step * np.arange(size), axis=d)
        return x

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        return compute(
            self.sizes,
            lambda *index: x[tuple(i * step + start for i, start, step in zip(index, self.starts, self.all_steps))],
            "slice",
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((0, 1), (2, 2)), (floats((2, 4)),), "unit")
        yield Sample(cls((1, 6), (2, 3), (2, -2)), (floats((4, 7)),), "steps")
        yield Sample(cls((0,), (0,)), (integers((3,)),), "empty")


@dataclass(frozen=True)
class Pad(Movement):
    """Elements added before and after: pads (begin…, end…) over all axes, negative to crop.

    mode "constant" takes the second input, a scalar (absent: zero); "edge", "reflect", "wrap" repeat elements as numpy
    does.
    """

    pads: tuple[Dim, ...]
    mode: PadMode = "constant"

    def pairs(self, rank: int) -> list[tuple[Dim, Dim]]:
        if len(self.pads) != 2 * rank:
            raise GraphError(f"pads: expected {2 * rank} numbers, got {show(self.pads)}")
        return list(zip(self.pads[:rank], self.pads[rank:]))

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for a number of pads that does not fit, another mode, a value of another dtype, or no
        elements to repeat."""
        assumed: list[Assumption] = []
        x, *value = operands([t for t in types if t is not None])
        if self.mode not in PAD_MODES:
            raise GraphError(f"mode: expected constant, edge, reflect or wrap, got '{self.mode}'")
        if value:
            one_dtype([x, *value])
            if value[0].rank and static([product(value[0].shape)]) != (1,):
                raise GraphError(f"padding value: expected a scalar, got {show(value[0].shape)}")
        pairs = self.pairs(x.rank)
        if self.mode != "constant":
            for k, (d, (lo, hi)) in enumerate(zip(x.shape, pairs)):
                expect_some(d, dim_max(lo, hi), f"dimension {k}, whose elements are repeated", assumed)
        return Inferred(TensorType(x.dtype, tuple(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape, pairs))), assumed)

    @property
    def commutes(self) -> Commutes:
        return "anything"

    @property
    def fill_operand(self) -> int | None:
        return 1 if self.mode == "constant" else None

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        return inputs[0] is not None and inputs[0].shape[axis] == output.shape[axis] and self.pads[axis] == 0

    def reference(self, *arrays: Array | None) -> Array:
        x, value = arrays if len(arrays) == 2 else (arrays[0], None)
        assert x is not None
        pads = [(static([lo])[0], static([hi])[0]) for lo, hi in self.pairs(x.ndim)]
        grow = [(max(lo, 0), max(hi, 0)) for lo, hi in pads]
        if self.mode == "constant":
            fill = np.zeros((), x.dtype) if value is None else value.reshape(())
            out = np.full([n + lo + hi for n, (lo, hi) in zip(x.shape, grow)], fill, x.dtype)
            out[tuple(slice(lo, lo + n) for n, (lo, _) in zip(x.shape, grow))] = x
        else:
            out = np.pad(x, grow, mode=self.mode)
        return out[tuple(slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(out.shape, pads))]

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """The part that the operand became; of repeated elements, what each became, added up."""
        (g,) = gradients
        x = node.inputs[0]
        assert x is not None and g is not None
        c, pairs = composer(builder), self.pairs(len(x.shape))
        if self.mode != "constant":
            wide = c.wide(g)
            for d, (lo, hi) in enumerate(pairs):
                wide = self._folded(c, wide, d, x.shape[d], lo, hi)
            return (c.cast(wide, g.dtype), *(None for _ in node.inputs[1:]))
        part = c.pad(g, [as_dim(-p) for p in self.pads])
        if len(node.inputs) == 1 or (value := node.inputs[1]) is None:
            return (part, *(None for _ in node.inputs[1:]))
        inside = c(Fill(dt.bool_, x.shape, 1))
        wide = c.wide(g)
        around = c(Where(), c(Pad(self.pads), inside, c.number(False, dt.bool_)), c.number(0, wide.dtype), wide)
        total = c.cast(c.sum(around, range(len(g.shape)), False), g.dtype)
        return part, c.reshape(total, value.shape)

    def _folded(self, c: Composer, g: Value, d: int, n: Dim, lo: Dim, hi: Dim) -> Value:
        """The gradient along axis `d`, of `n` elements, from that of the padded axis."""
        if lo == 0 and hi == 0:
            return g
        around: Callable[[int, Dim, Dim], Pad] = lambda rank, before, after: Pad(
            tuple(before if k == d else after if k == rank + d else 0 for k in range(2 * rank))
        )
        rank = len(g.shape)
        near = isinstance(n, int) and isinstance(lo, int) and isinstance(hi, int) and min(lo, hi) > -n
        most = n - 1 if self.mode == "reflect" else n
        if not near or (self.mode != "edge" and max(lo, hi) > most):
            line = c(Iota(dt.int64, (n,)))
            places = c(Pad((lo, hi), self.mode), line)
            order = (d, *(k for k in range(rank) if k != d))
            first = c.transpose(g, order)
            like = c(Fill(g.dtype, (n, *first.shape[1:]), 0))
            return c.transpose(added_rows(c.builder, like, places, first), [order.index(k) for k in range(rank)])
        assert isinstance(n, int) and isinstance(lo, int) and isinstance(hi, int)
        total = c(around(rank, -lo, -hi), g)
        for size, start, after in ((lo, 0, False), (hi, lo + n, True)):
            if size <= 0:
                continue
            if self.mode == "edge":
                part, at = c.sum(c.slice(g, d, start, size), (d,)), n - 1 if after else 0
            elif self.mode == "wrap":
                part, at = c.slice(g, d, start, size), 0 if after else n - size
            else:
                part, at = c.slice(g, d, start + size - 1, size, -1), n - 1 - size if after else 1
            total = c.add(total, c(around(rank, at, n - at - (1 if self.mode == "edge" else size)), part))
        return total

    def _repeated(self, k: Expr, n: Dim) -> Expr:
        """Which of `n` elements stands at `k` of an axis that goes on in both directions."""
        if self.mode == "edge":
            return e.minimum(e.maximum(k, 0), as_dim(n - 1))
        if self.mode == "wrap":
            return k % n
        period = dim_max(as_dim(n * 2 - 2), 1)
        k = k % period
        return select(k < n, k, e.wrap(period, dt.int64) - k)

    @algorithm("tensors")
    def direct(self, x: Tensor, value: Tensor | None = None) -> Tensor:
        pairs = self.pairs(x.rank)
        shape = tuple(as_dim(d + lo + hi) for d, (lo, hi) in zip(x.shape, pairs))

        def constant(*index: Expr) -> Expr:
            at = [i - lo for i, (lo, _) in zip(index, pairs)]
            tests: list[Expr] = []
            for i, n, (lo, hi) in zip(at, x.shape, pairs):
                tests += [] if isinstance(lo, int) and lo <= 0 else [i >= 0]
                tests += [] if isinstance(hi, int) and hi <= 0 else [i < n]
            fill = const(0, x.dtype) if value is None else value[(ZERO,) * value.rank]
            return select(all_of(tests), x[tuple(at)], fill)

        def repeat(*index: Expr) -> Expr:
            at: list[Expr] = []
            for i, n, (lo, hi) in zip(index, x.shape, pairs):
                k = i - lo
                tests = [] if isinstance(lo, int) and lo <= 0 else [k >= 0]
                tests += [] if isinstance(hi, int) and hi <= 0 else [k < n]
                if tests:  # loops are cut there: what is copied as it lies needs no more than that
                    k = select(all_of(tests), k, self._repeated(k, n))
                at.append(k)
            return x[tuple(at)]

        return compute(shape, constant if self.mode == "constant" else repeat, "pad")

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for mode in ("constant", "edge", "reflect", "wrap"):
            yield Sample(cls((1, 2, 2, 1), mode), (floats((3, 4)),), mode)
            yield Sample(cls((-1, 2, 0, -2), mode), (floats((4, 5)),), f"{mode}_crop")
            yield Sample(cls((4, 7), mode), (floats((3,)),), f"{mode}_far")
        yield Sample(cls((1, 0)), (integers((3,), "int32"), np.array(7, np.int32)), "value")
        yield Sample(cls((0, 0, 1, 0)), (booleans((2, 2)), None), "bool")


__all__ = ["Pad", "Slice", "slice_range"]
