"""The fused operator of recurrent layers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft.graph.operator import Array
from weft_mxnet.registry import op
from weft_mxnet.symbol import Node

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
"""The gates of MXNet (lstm: i, f, c, o; gru: r, z, n) in the order of `weft_ops` (i, o, f, c; z, r, h)."""


@op("RNN")
def rnn(c: Node) -> Any:
    """x [time, batch, size], all weights as one vector, the first states [layers · directions, batch, hidden]."""
    mode = c.choice("mode", "", tuple(GATES))
    if c.flag("use_sequence_length") or c.integer("projection_size") or c.text("lstm_state_clip_min"):
        raise c.unsupported("use_sequence_length, projection_size and lstm_state_clip_min")
    x, data = c.value(0), c.constant(1)
    if data is None:
        raise c.unsupported("weights that are no parameters")
    hidden, layers, directions = c.integer("state_size"), c.integer("num_layers"), 1 + c.flag("bidirectional")
    (size,) = c.fixed(x.shape[2:3], "the size of a step")
    if hidden < 1 or not 1 <= layers <= 64:
        raise c.error(f"state_size {hidden}, num_layers {layers}")
    weights, biases = _divided(c, np.asarray(data).reshape(-1), mode, size, hidden, layers, directions)
    last: list[list[Value]] = [[], []]
    for k in range(layers):
        own = slice(k * directions, (k + 1) * directions)
        first = c.slice(c.value(2), 0, own.start, directions)
        arrays = [np.stack(part) for part in (*zip(*weights[own]), [np.concatenate(b) for b in biases[own]])]
        w, r, b = (c.builder.constant(a, n) for a, n in zip(arrays, ("weights", "recurrent", "bias")))
        direction: Literal["bidirectional", "forward"] = "bidirectional" if directions == 2 else "forward"
        if mode == "lstm":
            cell = c.slice(c.value(3), 0, own.start, directions)
            results = c.all(ops.LSTM(hidden, direction), x, w, r, b, None, first, cell)
        elif mode == "gru":
            results = c.all(ops.GRU(hidden, direction, linear_before_reset=True), x, w, r, b, None, first)
        else:
            activation = ("Tanh" if mode == "rnn_tanh" else "Relu",) * directions
            results = c.all(ops.RNN(hidden, direction, activations=activation), x, w, r, b, None, first)
        for found, result in zip(last, results[1:]):
            found.append(result)
        y = c.transpose(results[0], (0, 2, 1, 3))  # [time, directions, batch, hidden]
        x = c.reshape(y, (*y.shape[:2], directions * hidden))
    if not c.flag("state_outputs"):
        return x
    return [x, *(c.concat(found, 0) for found in last if found)]


def _divided(
    c: Node, data: Array, mode: str, size: int, hidden: int, layers: int, directions: int
) -> tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]]:
    """The weights (of the operand and of the state) of each layer and direction, then their biases."""
    gates, order = GATES[mode], list(ORDERS[mode])
    at = 0

    def take(*shape: int) -> Array:
        nonlocal at
        count = int(np.prod(shape))
        if at + count > data.size:
            raise c.error(f"the weights have {data.size} elements, too few for {layers} layers of {hidden}")
        part = data[at : at + count].reshape(gates, hidden, *shape[1:])[order].reshape(shape)
        at += count
        return part

    weights, biases = [], []
    for k in range(layers):
        for _ in range(directions):
            width = size if k == 0 else hidden * directions
            weights.append((take(gates * hidden, width), take(gates * hidden, hidden)))
    for _ in range(layers * directions):
        biases.append((take(gates * hidden), take(gates * hidden)))
    if at != data.size:
        raise c.error(f"the weights have {data.size} elements, {layers} layers of {hidden} need {at}")
    return weights, biases
