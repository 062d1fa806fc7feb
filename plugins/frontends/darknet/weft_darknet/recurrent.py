"""Recurrent layers. A call is one step, as Darknet's programs run a network that was trained over several
(`time_steps`); what the layers keep from step to step is the state.

A graph of Weft keeps nothing: the option `state` says what becomes of it. "fresh", every call begins with zeros, as
Darknet's first one; "inputs", it is an input, and what it is after the call an output NAME.after, which the caller
gives to the next call.

AlexeyAB/darknet and pjreddie/darknet store the weights of the gates of [gru] and [lstm] in another order. The header of
the .weights tells them apart: its revision is 0 in pjreddie's, 5 in AlexeyAB's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import weft_ops as ops
from weft.errors import UnsupportedError
from weft.graph.nodes import Value, tensor_type
from weft_darknet.layers import LARGEST, Count, Function, Kinds, Size, size_of

ALEXEY = 5
"""The revision of AlexeyAB's files since October 2018."""


STATE = "the option state: 'fresh' begins every call with zeros, 'inputs' makes the state inputs and outputs"


class Recurrent(Kinds):
    """As `Kinds`."""

    def rnn(
        self, output: Size = 1, hidden: Count = 0, activation: str = "logistic", batch_normalize: Count = 0,
        logistic: Count = 0, shortcut: Count = 0,
    ) -> Value:  # fmt: skip
        """Without `hidden` (pjreddie's) the state has `output` elements."""
        hidden, norm, inputs = hidden or output, bool(batch_normalize), math.prod(size_of(self.x))
        self.need(logistic < 2, f"logistic={logistic}: 0 and 1 are supported")
        parts = (
            self._matrix(inputs, hidden, activation, norm),
            self._matrix(hidden, hidden, "logistic" if logistic else activation, norm),
            self._matrix(hidden, output, activation, norm),
        )
        return self._simple((hidden, 1, 1), parts, shortcut)

    def crnn(
        self, output: Size = 1, hidden: Size = 1, output_filters: Count = 0, hidden_filters: Count = 0, size: Size = 3,
        stride: Size = 1, dilation: Size = 1, groups: Size = 1, pad: Count = 0, padding: Count = 0,
        activation: str = "logistic", batch_normalize: Count = 0, shortcut: Count = 0,
    ) -> Value:  # fmt: skip
        """pjreddie's names its filters `output_filters` and `hidden_filters`, and pads its kernels of 3 × 3 by 1."""
        if output_filters or hidden_filters:
            self.need((size, stride, dilation, groups) == (3, 1, 1, 1), "with output_filters the kernel is 3 × 3")
            output, hidden, pad = output_filters or 1, hidden_filters or 1, 1
        c, h, w = size_of(self.x)
        made = self._alike(size, stride, dilation, groups, pad, padding, activation, batch_normalize)
        return self._simple((hidden, h, w), (made(c, hidden), made(hidden, hidden), made(hidden, output)), shortcut)

    def gru(self, output: Size = 1, batch_normalize: Count = 0, tanh: Count = 0) -> Value:
        """`tanh` (pjreddie's): of the candidate, whose function is logistic otherwise."""
        inputs, norm = math.prod(size_of(self.x)), bool(batch_normalize)
        order = ("uz", "ur", "uh", "wz", "wr", "wh") if self._alexey() else ("wz", "wr", "wh", "uz", "ur", "uh")
        apply = {name: self._matrix(inputs if name[0] == "u" else output, output, "linear", norm) for name in order}
        old = self._before("state", output, 1, 1)
        z, r = (self.activate(self._sum(apply[f"u{g}"](self.x), apply[f"w{g}"](old)), "logistic") for g in "zr")
        forgot = self.add(ops.Multiply(), old, r)
        h = self.activate(self._sum(apply["uh"](self.x), apply["wh"](forgot)), "tanh" if tanh else "logistic")
        rest = self.add(ops.Multiply(), self.add(ops.Subtract(), 1.0, z), h)
        return self._keep("state", self._sum(self.add(ops.Multiply(), z, old), rest))

    def lstm(self, output: Size = 1, batch_normalize: Count = 0) -> Value:
        inputs, norm = math.prod(size_of(self.x)), bool(batch_normalize)
        order = "figo" if self._alexey() else "ifog"
        names = [*(f"w{gate}" for gate in order), *(f"u{gate}" for gate in order)]
        apply = {name: self._matrix(inputs if name[0] == "u" else output, output, "linear", norm) for name in names}
        old, cell = self._before("h", output, 1, 1), self._before("c", output, 1, 1)
        f, i, g, o = (self._sum(apply[f"w{gate}"](old), apply[f"u{gate}"](self.x)) for gate in "figo")
        new = self._cell(f, i, g, cell)
        self._keep("c", new)
        return self._keep("h", self._hidden(new, o))

    def conv_lstm(
        self, output: Size = 1, size: Size = 3, stride: Size = 1, dilation: Size = 1, groups: Size = 1, pad: Count = 0,
        padding: Count = 0, activation: str = "linear", batch_normalize: Count = 0, peephole: Count = 0,
        state_constrain: Count = 32, lstm_activation: str = "tanh",
    ) -> Value:  # fmt: skip
        """`state_constrain`: how far the cell that is kept may be from 0; by default 32 for each step."""
        c, h, w = size_of(self.x)
        made = self._alike(size, stride, dilation, groups, pad, padding, activation, batch_normalize)
        names = [*(f"v{gate}" for gate in "fio" if peephole), *(f"w{gate}" for gate in "figo")]
        apply = {name: made(output, output) for name in names} | {f"u{gate}": made(c, output) for gate in "figo"}
        if lstm_activation != "tanh":
            raise UnsupportedError(f"[conv_lstm] with lstm_activation={lstm_activation[:60]}", where=self.weights.place)
        old, cell = self._before("h", output, h, w), self._before("c", output, h, w)
        self.need(size_of(apply["uf"](self.x)) == (output, h, w), "its kernels must keep height and width, see pad")

        def gate(name: str, peep: Value | None) -> Value:
            y = self._sum(apply[f"w{name}"](old), apply[f"u{name}"](self.x))
            return y if peep is None or not peephole else self._sum(y, apply[f"v{name}"](peep))

        new = self._cell(gate("f", cell), gate("i", cell), gate("g", None), cell)
        hidden = self._hidden(new, gate("o", new))
        if state_constrain:
            new = self.add(ops.Clip(), new, -float(state_constrain), float(state_constrain))
        self._keep("c", new)
        return self._keep("h", hidden)

    # -- what they share
    def _alexey(self) -> bool:
        """Whether weights are in AlexeyAB's order.

        Raises:
            UnsupportedError: the header does not say.
        """
        if self.weights.revision not in (0, ALEXEY):
            raise UnsupportedError(
                "the order of the weights of gates is not known where a header has the revision"
                f" {self.weights.revision}",
                where=self.weights.place,
                hint="0 is pjreddie's, 5 AlexeyAB's: save the weights with one of them",
            )
        return bool(self.weights.revision == ALEXEY)

    def _alike(
        self, size: int, stride: int, dilation: int, groups: int, pad: int, padding: int, activation: str, norm: int
    ) -> Callable[[int, int], Function]:
        """Makes the convolutions of a layer, which differ in channels and filters."""
        pads = size // 2 if pad else padding
        return lambda channels, filters: self._filters(
            channels, filters, size, (stride, stride), dilation, groups, pads, activation, bool(norm)
        )

    def _simple(self, shape: Sequence[int], parts: Sequence[Function], shortcut: int) -> Value:
        """The state becomes what the input and the old state give (`shortcut`: plus the old state); the output is made
        of it."""
        of_input, of_state, of_output = parts
        old = self._before("state", *shape)
        found, inner = of_input(self.x), of_state(old)
        self.need(
            size_of(found) == size_of(inner) == size_of(old),
            "its kernels must keep height and width, see pad and stride",
        )
        new = self._sum(self._sum(old, found) if shortcut else found, inner)
        return of_output(self._keep("state", new))

    def _cell(self, f: Value, i: Value, g: Value, cell: Value) -> Value:
        f, i, g = (self.activate(x, name) for x, name in ((f, "logistic"), (i, "logistic"), (g, "tanh")))
        return self._sum(self.add(ops.Multiply(), f, cell), self.add(ops.Multiply(), i, g))

    def _hidden(self, cell: Value, o: Value) -> Value:
        return self.add(ops.Multiply(), self.activate(cell, "tanh"), self.activate(o, "logistic"))

    def _sum(self, x: Value, y: Value) -> Value:
        return self.add(ops.Add(), x, y)

    def _before(self, part: str, *shape: int) -> Value:
        """What the layer kept of the call before."""
        self.need(math.prod(shape) <= LARGEST, f"its state has the size {shape}; Darknet counts to {LARGEST}")
        batch = self.x.shape[0]
        if self.state == "inputs":
            return self.builder.input(f"{self.name}.{part}", tensor_type("float32", (batch, *shape)))
        return self.add(ops.BroadcastTo((batch, *shape)), np.zeros((1, 1, 1, 1), np.float32))

    def _keep(self, part: str, value: Value) -> Value:
        """Notes what the layer keeps."""
        if self.state == "inputs":
            self.after.append((f"{self.name}.{part}.after", value))
        return value
