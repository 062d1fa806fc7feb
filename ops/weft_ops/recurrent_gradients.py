"""Gradients of recurrences, backward through time.

What a step does to its gradient depends on the sums that enter its gates. These follow from the states before all
steps, which the recurrence gives, by one product for all steps: nothing else is kept. Of an LSTM its cell states, too,
are computed again, in order but without products (`CellStates`). Thus the slopes of all gates are known, and only the
gradient by the state has to go from step to step (`RecurrenceGradient`); the gradients by weights are one product over
all steps. Werbos, Backpropagation through time, 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import GraphError
from weft.expr import nodes as e
from weft.expr.nodes import Expr, cast_to, const, eq, select
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, TensorType, Type, Value
from weft.graph.operator import Array, Operator, Sample, algorithm
from weft.tensor.language import Dim, Tensor, as_dim, compute, reduce_axis, scan
from weft.tensor.language import sum as sum_over
from weft_ops.arithmetic import Where
from weft_ops.cell_states import StepLoop, agree, live_steps
from weft_ops.cells import GATES, Cell
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul, reduction_tolerance
from weft_ops.examples import floats
from weft_ops.filling import Fill
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import expect_kind, expect_rank, one_dtype, operands, unify, widened


@dataclass(frozen=True)
class RecurrenceGradient(Operator):
    """The gradient of a recurrence by its state, from the last step to the first (`reverse`: from the first to the
    last), as far as the recurrence goes.

    Inputs: slopes [steps, batch, sums, hidden], what a sum that enters a gate does to the state, of the recurrence's
    gates in their order (gru with `linear_before_reset`: z, r, the product that the reset gate scales, and h); r
    [gates, hidden, hidden] (gate, unit, state); then, None if absent, the gradients by y [steps, batch, hidden], by the
    last h and by the last c [batch, hidden]; lengths [batch] int32 or int64; then, [steps, batch, hidden] each: of lstm
    what the new c does to h, and the c before to it; of gru what the state before passes on by itself, and without
    `linear_before_reset` the reset gate.

    Outputs: the gradients by the sums [steps, batch, sums, hidden], zero beyond a sequence's length; by the first h
    [batch, hidden]; of lstm also by the first c. All are linear in the gradients that are given.
    """

    cell: Cell
    linear_before_reset: bool = False
    reverse: bool = False
    kind = "opaque"

    @property
    def sums(self) -> int:
        """How many sums of a unit have a gradient."""
        return 4 if self.linear_before_reset else GATES[self.cell]

    @property
    def passes(self) -> int:
        """How many of the last operands there are."""
        return {"lstm": 2, "gru": 1 if self.linear_before_reset else 2, "rnn": 0}[self.cell]

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes or sizes that do not agree, or a wrong number of operands."""
        assumed: list[Assumption] = []
        if len(types) != 6 + self.passes or None in types[6:]:
            raise GraphError(f"expected {6 + self.passes} operands, the last {self.passes} of them present")
        slopes, r = operands(types[:2], 2)
        given = [slopes, widened(r, slopes), *operands([t for t in (*types[2:5], *types[6:]) if t is not None])]
        dtype = one_dtype(given)
        expect_kind(dtype, ("float",))
        expect_rank(slopes, 4, "slopes")
        steps, batch, sums, hidden = slopes.shape
        unify(self.sums, sums, "sums", assumed)
        whole, state = (steps, batch, hidden), (batch, hidden)
        agree(r, (GATES[self.cell], hidden, hidden), "r", assumed)
        shapes = (whole, state, state, (batch,), *(whole,) * self.passes)
        names = ("gradient by y", "gradient by h", "gradient by c", "lengths", *("factors",) * self.passes)
        for t, shape, name in zip(types[2:], shapes, names):
            if t is not None:
                agree(t, shape, name, assumed)
        last = TensorType(dtype, state)
        return Inferred((TensorType(dtype, slopes.shape), last, *((last,) if self.cell == "lstm" else ())), assumed)

    def reference(self, *arrays: Array | None) -> Any:
        slopes, r, gy, gh, gc, lengths, *rest = arrays
        assert slopes is not None and r is not None
        dtype, a, r = dt.dtype(slopes.dtype), widen(slopes), widen(r)
        zero = np.zeros((a.shape[1], a.shape[3]), a.dtype)
        s, sc = (zero if x is None else widen(x) for x in (gh, gc))
        passed = [widen(x) for x in rest if x is not None]
        by = np.zeros(a.shape, a.dtype)
        for t in range(a.shape[0]) if self.reverse else reversed(range(a.shape[0])):
            d = s + (0 if gy is None else widen(gy)[t])
            new_c = c = sc
            step = a[t] * d[:, None]
            if self.cell == "lstm":
                c = sc + d * passed[0][t]
                step = a[t] * np.stack([c, d, c, c], 1)
                new_c = c * passed[1][t]
            elif self.cell == "gru" and not self.linear_before_reset:
                kept = step[:, 2] @ r[2]
                step[:, 1] = a[t][:, 1] * kept
                d = d * passed[0][t] + kept * passed[1][t]
            elif self.cell == "gru":
                d = d * passed[0][t]
            count = min(GATES[self.cell], 2 if self.cell == "gru" and not self.linear_before_reset else 4)
            new = np.einsum("bgk,gkj->bj", step[:, :count], r[:count]) + (d if self.cell == "gru" else 0)
            live = np.ones((a.shape[1], 1), bool) if lengths is None else (t < lengths)[:, None]
            s, sc = np.where(live, new, s), np.where(live, new_c, sc)
            by[t] = np.where(live[:, None], step, 0)
        return tuple(rounded(v, dtype) for v in ((by, s, sc) if self.cell == "lstm" else (by, s)))

    @algorithm("tensors")
    def direct(
        self,
        slopes: Tensor,
        r: Tensor,
        gy: Tensor | None,
        gh: Tensor | None,
        gc: Tensor | None,
        lengths: Tensor | None,
        *passed: Tensor,
    ) -> tuple[Tensor, ...]:
        wide, dtype = compute_dtype(slopes.dtype), slopes.dtype
        steps, batch, sums, hidden = slopes.shape
        step = _Backward(self, slopes, r, gy, lengths, passed)

        def first(given: Tensor | None, name: str) -> Tensor:
            return compute(
                (batch, hidden), lambda b, j: const(0.0, wide) if given is None else cast_to(given[b, j], wide), name
            )

        init = [compute((batch, sums, hidden), lambda b, g, j: const(0.0, wide), "first_by"), first(gh, "first_h")]
        if self.cell == "lstm":
            init.append(first(gc, "first_c"))
        by, *states = scan(steps, init, step, name=f"{self.cell}_back", reverse=not self.reverse)
        end: Dim = as_dim(steps - 1) if self.reverse else 0

        def last(state: Tensor, name: str) -> Tensor:
            return compute((batch, hidden), lambda b, j: cast_to(state[e.wrap(end, dt.int64), b, j], dtype), name)

        whole = compute(slopes.shape, lambda t, b, g, j: cast_to(by[t, b, g, j], dtype), "by_sums")
        return (whole, *(last(s, f"by_{n}") for s, n in zip(states, "hc")))

    @algorithm("decompose")
    def loop(
        self,
        builder: GraphBuilder,
        slopes: Value,
        r: Value,
        gy: Value | None,
        gh: Value | None,
        gc: Value | None,
        lengths: Value | None,
        *passed: Value,
    ) -> tuple[Value, ...]:
        """Step by step: what a gradient of it is made of."""
        outer, (steps, batch, _, hidden) = Composer(builder), slopes.shape
        dtype, lstm = slopes.dtype, self.cell == "lstm"
        zero = outer(Fill(dtype, (batch, hidden), 0))
        body = StepLoop(builder, steps, not self.reverse)
        s, *cells = body.carries(*(zero if v is None else v for v in ((gh, gc) if lstm else (gh,))))
        a, f = body.item(slopes), [body.item(v) for v in passed]
        weights, c = body.captured(outer.cast(r, dtype)), body.composer
        d = s if gy is None else c.add(s, body.item(gy))
        slope = [c.pick(a, 1, g) for g in range(self.sums)]
        count, through = GATES[self.cell], d
        if lstm:
            cell = c.add(cells[0], c.mul(d, f[0]))
            parts, new_c = [c.mul(x, d if g == 1 else cell) for g, x in enumerate(slope)], c.mul(cell, f[1])
        else:
            parts = [c.mul(x, d) for x in slope]
            if f:
                through = c.mul(d, f[0])
            if self.passes == 2:
                kept, count = c(MatMul(), parts[2], c.pick(weights, 0, 2)), 2
                parts[1], through = c.mul(slope[1], kept), c.add(through, c.mul(kept, f[1]))
        weights = c.reshape(c.slice(weights, 0, 0, count), (as_dim(hidden * count), hidden))
        new = c(MatMul(), c.concat(parts[:count], 1), weights)
        states = [c.add(new, through) if self.cell == "gru" else new, *([new_c] if lstm else [])]
        by = c.concat([c.reshape(p, (batch, 1, hidden)) for p in parts], 1)
        if lengths is not None:
            live = body.item(live_steps(outer, steps, batch, lengths))
            states = [c(Where(), live, x, y) for x, y in zip(states, (s, *cells))]
            by = c(Where(), c.reshape(live, (batch, 1, 1)), by, 0.0)
        *states, whole = body.finished(states, [by])
        return (whole, *states)

    def tolerance(self, *types: TensorType) -> float:
        hidden, steps = types[1].shape[2], types[0].shape[0]
        return reduction_tolerance(as_dim(hidden * 4)) * (2 + (steps if isinstance(steps, int) else 16) / 2)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for cell, linear in (("lstm", False), ("gru", False), ("gru", True), ("rnn", False)):
            for reverse in (False, True):
                yield cls._sample(cls(cell, linear, reverse), reverse)  # type: ignore[arg-type]
        yield cls._sample(cls("rnn"), False, "float16")

    @staticmethod
    def _sample(op: RecurrenceGradient, everything: bool, dtype: str = "float32") -> Sample:
        make = partial(floats, dtype=dtype)
        gy, gh, gc, lengths = make((4, 2, 3), seed=2), make((2, 3), seed=3), make((2, 3), seed=4), np.array([4, 2])
        name = f"{op.cell}{'_linear' * op.linear_before_reset}{'_everything' * everything}"
        return Sample(
            op,
            (
                make((4, 2, op.sums, 3), lo=-1, hi=1),
                make((GATES[op.cell], 3, 3), seed=1),
                gy,
                gh if everything else None,
                gc if everything and op.cell == "lstm" else None,
                lengths if everything else None,
                *(make((4, 2, 3), seed=5 + k, lo=-1, hi=1) for k in range(op.passes)),
            ),
            name if dtype == "float32" else dtype,
        )


@dataclass(frozen=True)
class _Backward:
    """A step of the algorithm of `RecurrenceGradient`."""

    op: RecurrenceGradient
    slopes: Tensor
    r: Tensor
    gy: Tensor | None
    lengths: Tensor | None
    passed: tuple[Tensor, ...]

    def __call__(self, t: Expr, _: Tensor, s: Tensor, *cells: Tensor) -> tuple[Tensor, ...]:
        wide = s.dtype
        batch, hidden, sums = s.shape[0], s.shape[1], self.slopes.shape[2]
        gy, lengths, cell = self.gy, self.lengths, self.op.cell
        zero = const(0.0, wide)

        def live(b: Expr, new: Expr, old: Expr) -> Expr:
            return new if lengths is None else select(t < cast_to(lengths[b], dt.int64), new, old)

        def d(b: Expr, j: Expr) -> Expr:
            return s[b, j] if gy is None else s[b, j] + cast_to(gy[t, b, j], wide)

        def slope(b: Expr, g: Any, j: Expr) -> Expr:
            return cast_to(self.slopes[t, b, g, j], wide)

        def factor(k: int, b: Expr, j: Expr) -> Expr:
            return cast_to(self.passed[k][t, b, j], wide)

        if cell == "lstm":
            c = compute((batch, hidden), lambda b, j: cells[0][b, j] + d(b, j) * factor(0, b, j), "by_cell")
            new_c = compute((batch, hidden), lambda b, j: live(b, c[b, j] * factor(1, b, j), cells[0][b, j]), "next_c")
            by = compute(
                (batch, sums, hidden),
                lambda b, g, j: live(b, slope(b, g, j) * select(eq(g, 1), d(b, j), c[b, j]), zero),
                "by",
            )
            return by, self._next(by, s, live), new_c
        if self.op.passes == 2:
            new = compute((batch, hidden), lambda b, j: live(b, slope(b, 2, j) * d(b, j), zero), "by_new")
            kept = self._product(lambda b, g, k: new[b, k], 2, 1, "by_kept", s)
            by = compute(
                (batch, sums, hidden),
                lambda b, g, j: select(
                    eq(g, 2), new[b, j], live(b, slope(b, g, j) * select(eq(g, 1), kept[b, j], d(b, j)), zero)
                ),
                "by",
            )
            return by, self._next(
                by, s, live, lambda b, j: d(b, j) * factor(0, b, j) + kept[b, j] * factor(1, b, j), count=2
            )
        by = compute((batch, sums, hidden), lambda b, g, j: live(b, slope(b, g, j) * d(b, j), zero), "by")
        return by, self._next(by, s, live, (lambda b, j: d(b, j) * factor(0, b, j)) if cell == "gru" else None)

    def _product(self, of: Callable[..., Expr], gate: int | None, count: int, name: str, s: Tensor) -> Tensor:
        """The sum of gradients · weights [batch, hidden]: of one gate, or of the first `count`."""
        g, k = reduce_axis(count, f"{name}_g"), reduce_axis(s.shape[1], f"{name}_k")
        at: Any = g if gate is None else gate
        return compute(
            s.shape,
            lambda b, j: sum_over(of(b, at, k) * cast_to(self.r[at, k, j], s.dtype), (g, k) if gate is None else k),
            name,
        )

    def _next(
        self,
        by: Tensor,
        s: Tensor,
        live: Callable[..., Expr],
        rest: Callable[..., Expr] | None = None,
        count: int | None = None,
    ) -> Tensor:
        """The gradient by the state before the step; `rest`: what reaches it beside the product."""
        product = self._product(lambda b, g, k: by[b, g, k], None, count or GATES[self.op.cell], "by_state", s)
        if rest is None and self.lengths is None:
            return product
        return compute(
            s.shape,
            lambda b, j: live(b, product[b, j] if rest is None else product[b, j] + rest(b, j), s[b, j]),
            "next_h",
        )


__all__ = ["RecurrenceGradient"]
