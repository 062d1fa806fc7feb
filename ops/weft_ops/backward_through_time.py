"""The gradient of `Recurrence` by each of its operands, as `recurrent_gradients` describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft import dtypes as dt
from weft.graph.nodes import GraphBuilder, Node, Value
from weft.graph.operator import Gradients
from weft.tensor.language import as_dim
from weft_ops.arithmetic import Where
from weft_ops.cell_states import CellFunction, CellStates
from weft_ops.cells import GATES
from weft_ops.comparison import Less
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul
from weft_ops.derivatives import elementwise_gradient
from weft_ops.filling import Fill, Iota
from weft_ops.precision import compute_dtype
from weft_ops.recurrent_gradients import RecurrenceGradient

if TYPE_CHECKING:
    from weft_ops.recurrent import Recurrence


def recurrence_gradient(op: Recurrence, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
    """As `Operator.gradient`."""
    return _Backward(op, builder, node).gradients(gradients)


@dataclass(frozen=True)
class _Factors:
    """What `RecurrenceGradient` takes of a cell. Values are [steps, batch, hidden]."""

    slopes: list[Value]
    passed: list[Value]
    kept: Value | None = None
    """Of a gru whose reset gate is applied before the product: the state as the reset gate leaves it."""
    cells: tuple[Value, Value] | None = None
    """Of lstm: the cell states before and after each step."""


class _Backward:
    """A recurrence as it is differentiated: its operands and the states before all steps, wide."""

    def __init__(self, op: Recurrence, builder: GraphBuilder, node: Node) -> None:
        self.op, self.builder, self.node = op, builder, node
        self.c = c = Composer(builder)
        xw, r, h0, c0, self.lengths, peep, rb = (*node.inputs, *[None] * 4)[:7]
        assert xw is not None and r is not None and h0 is not None
        self.wide = compute_dtype(xw.dtype)
        self.xw, self.r, self.h0 = (c.cast(v, self.wide) for v in (xw, r, h0))
        self.c0, self.peep, self.rb = (None if v is None else c.cast(v, self.wide) for v in (c0, peep, rb))
        self.steps, self.batch, _ = xw.shape
        self.hidden = r.shape[2]
        self.rows = as_dim(self.steps * self.batch)
        self.whole = (self.steps, self.batch, self.hidden)
        self.before = self._before(c.cast(node.outputs[0], self.wide), self.h0)
        if self.op.reverse and self.lengths is not None:
            # y is zero beyond a sequence's length, where the state is still the first one.
            at = c(Iota(dt.int64, (self.steps, 1, 1), 0))
            lengths = c.reshape(c.cast(self.lengths, dt.int64), (1, self.batch, 1))
            self.before = c(Where(), c(Less(), c.add(at, 1), lengths), self.before, self.h0)

    def gradients(self, given: Gradients) -> Gradients:
        c, op, wide = self.c, self.op, self.wide
        factors = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[op.cell]()
        backward = RecurrenceGradient(op.cell, op.linear_before_reset and op.cell == "gru", op.reverse)
        slopes = c.concat([c.reshape(s, (self.steps, self.batch, 1, self.hidden)) for s in factors.slopes], 2)
        by_y, by_h, by_c = (None if g is None else c.cast(g, wide) for g in (*given, None)[:3])
        by, *states = c.all(backward, slopes, self.r, by_y, by_h, by_c, self.lengths, *factors.passed)
        by_x, by_r = by, self._by_weights(by, factors)
        by_rb = by_peep = None
        if backward.linear_before_reset:  # what enters the candidate has no weights by itself
            by_x = c.concat([c.slice(by, 2, 0, 2), c.slice(by, 2, 3, 1)], 2)
            by_rb = c.reshape(c.sum(self._gate(by, 2), (0, 1)), (self.hidden,))
        if self.peep is not None and factors.cells is not None:
            before, after = factors.cells
            parts = [c.mul(self._gate(by, g), state) for g, state in ((0, before), (1, after), (2, before))]
            by_peep = c.concat([c.reshape(c.sum(p, (0, 1)), (self.hidden,)) for p in parts], 0)
        by_xw = c.reshape(by_x, (self.steps, self.batch, as_dim(self.hidden * GATES[op.cell])))
        found = (by_xw, by_r, states[0], states[1] if len(states) > 1 else None, None, by_peep, by_rb)
        return [
            None if v is None or g is None else c.cast(g, v.dtype)
            for v, g in zip(self.node.inputs, found[: len(self.node.inputs)])
        ]

    # -- cells
    def _lstm(self) -> _Factors:
        c, functions = self.c, self.op.gate_functions()
        sums = c.add(self.xw, self._product(self.before, 0, 4))
        after = c(CellStates(functions[0], functions[1], self.op.input_forget, self.op.reverse), sums, self.c0,
                  self.lengths, self.peep)  # fmt: skip
        start = self.c0 if self.c0 is not None else c(Fill(self.wide, (self.batch, self.hidden), 0))
        before = self._before(after, start)
        peep = [None if self.peep is None else c.slice(self.peep, 0, self.hidden * k, self.hidden) for k in range(3)]

        def entering(g: int, peephole: Value | None, state: Value) -> Value:
            x = self._part(sums, g)
            return x if peephole is None else c.add(x, c.mul(state, peephole))

        at_i, at_g = entering(0, peep[0], before), self._part(sums, 3)
        at_o = entering(1, peep[1], after)
        i, o, g = c(functions[0], at_i), c(functions[0], at_o), c(functions[1], at_g)
        new_h = c(functions[2], after)
        by_o = self._slope(functions[0], at_o, o, new_h)
        by_g = self._slope(functions[1], at_g, g, i)
        if self.op.input_forget:
            forget = c.sub(1.0, i)
            by_i, by_f = self._slope(functions[0], at_i, i, c.sub(g, before)), c(Fill(self.wide, self.whole, 0))
            keep = forget
        else:
            at_f = entering(2, peep[2], before)
            keep = forget = c(functions[0], at_f)
            by_i, by_f = self._slope(functions[0], at_i, i, g), self._slope(functions[0], at_f, forget, before)
            if peep[2] is not None:
                keep = c.add(keep, c.mul(by_f, peep[2]))
        to_h = self._slope(functions[2], after, new_h, o)
        if peep[0] is not None and peep[1] is not None:
            keep, to_h = c.add(keep, c.mul(by_i, peep[0])), c.add(to_h, c.mul(by_o, peep[1]))
        return _Factors([by_i, by_o, by_f, by_g], [to_h, keep], cells=(before, after))

    def _gru(self) -> _Factors:
        c, (gate, candidate) = self.c, self.op.gate_functions()
        linear = self.op.linear_before_reset
        products = self._product(self.before, 0, 3 if linear else 2)
        at_z, at_r = (c.add(self._part(self.xw, g), self._part(products, g)) for g in (0, 1))
        z, reset = c(gate, at_z), c(gate, at_r)
        kept = None
        if linear:
            inner = self._part(products, 2)
            scaled = inner if self.rb is None else c.add(inner, self.rb)
            entering = c.mul(reset, scaled)
        else:
            kept = c.mul(reset, self.before)
            scaled, entering = self.before, self._product(kept, 2, 1)
        at_n = c.add(self._part(self.xw, 2), entering)
        n = c(candidate, at_n)
        by_z = self._slope(gate, at_z, z, c.sub(self.before, n))
        by_n = self._slope(candidate, at_n, n, c.sub(1.0, z))
        by_r = self._slope(gate, at_r, reset, scaled)
        if linear:
            return _Factors([by_z, c.mul(by_r, by_n), c.mul(by_n, reset), by_n], [z])
        return _Factors([by_z, by_r, by_n], [z, reset], kept=kept)

    def _rnn(self) -> _Factors:
        c, (function,) = self.c, self.op.gate_functions()
        sums = c.add(self.xw, self._product(self.before, 0, 1))
        ones = c(Fill(self.wide, self.whole, 1))
        return _Factors([self._slope(function, sums, c(function, sums), ones)], [])

    # -- parts
    def _before(self, states: Value, first: Value) -> Value:
        """The states before all steps, of those after them."""
        c = self.c
        start = c.reshape(first, (1, self.batch, self.hidden))
        together = c.concat([states, start] if self.op.reverse else [start, states], 0)
        return c.slice(together, 0, 1 if self.op.reverse else 0, self.steps)

    def _product(self, states: Value, first: int, count: int) -> Value:
        """States · weights of `count` gates from `first`, of all steps: [steps, batch, count·hidden]."""
        c = self.c
        weights = c.slice(self.r, 0, first, count) if count < GATES[self.op.cell] else self.r
        flat = c.reshape(weights, (as_dim(self.hidden * count), self.hidden))
        found = c(MatMul(), c.reshape(states, (self.rows, self.hidden)), c.transpose(flat, (1, 0)))
        return c.reshape(found, (self.steps, self.batch, as_dim(self.hidden * count)))

    def _part(self, values: Value, g: int) -> Value:
        return self.c.slice(values, 2, self.hidden * g, self.hidden)

    def _gate(self, by: Value, g: int) -> Value:
        return self.c.pick(by, 2, g)

    def _by_weights(self, by: Value, factors: _Factors) -> Value:
        """One product for all steps; of the candidate's gate of a gru another one, as its operand is another."""
        c, gates = self.c, GATES[self.op.cell]

        def weights(gradients: Value, states: Value, count: int) -> Value:
            rows = c.reshape(gradients, (self.rows, as_dim(self.hidden * count)))
            found = c(MatMul(), c.transpose(rows, (1, 0)), c.reshape(states, (self.rows, self.hidden)))
            return c.reshape(found, (count, self.hidden, self.hidden))

        if factors.kept is None:
            return weights(by if by.shape[2] == gates else c.slice(by, 2, 0, gates), self.before, gates)
        return c.concat(
            [weights(c.slice(by, 2, 0, 2), self.before, 2), weights(c.slice(by, 2, 2, 1), factors.kept, 1)], 0
        )

    def _slope(self, function: CellFunction, x: Value, y: Value, times: Value) -> Value:
        """`times` · the derivative of y = function(x)."""
        found = elementwise_gradient(self.builder, function, (x,), y, times, 0)
        return self.c(Fill(self.wide, self.whole, 0)) if found is None else found
