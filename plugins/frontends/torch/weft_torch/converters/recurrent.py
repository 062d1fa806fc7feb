"""Recurrent networks, whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft_torch.context import Context
from weft_torch.registry import op

ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
"""Gates in the order of the operators here, by their place in PyTorch's."""


@op("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def recurrent(
    c: Context, x: Value, initial: Any, weights: Sequence[Value], biased: bool, layers: int, dropout: float,
    train: bool, both: bool, batch_first: bool,
) -> list[Value]:  # fmt: skip
    cell = c.op_type.split(".")[1]
    if train and dropout:
        raise c.unsupported("random numbers: dropout between layers; call eval() before the module is exported")
    states: list[Value] = list(initial) if cell == "lstm" else [initial]
    directions = 2 if both else 1
    per_layer = 4 if biased else 2
    if len(weights) != per_layer * layers * directions:
        raise c.unsupported("a projection of the state (proj_size)")
    alone = len(x.shape) == 2
    if alone:
        x = c.reshape(x, (x.shape[0], 1, x.shape[1]))
        states = [c.reshape(s, (s.shape[0], 1, s.shape[1])) for s in states]
    elif batch_first:
        x = c.transpose(x, (1, 0, 2))
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        parts = weights[layer * per_layer * directions : (layer + 1) * per_layer * directions]
        rows = [parts[d * per_layer : (d + 1) * per_layer] for d in range(directions)]
        first = [c.slice(s, 0, layer * directions, directions) for s in states]
        x, *ends = _layer(c, cell, x, rows, first, biased)
        for found, end in zip(last, ends):
            found.append(end)
    y = c.transpose(x, (1, 0, 2)) if batch_first and not alone else x
    results = [y, *(c.concat(found, 0) for found in last)]
    return [c.reshape(r, c.result_shape(k)) for k, r in enumerate(results)]


def _layer(
    c: Context, cell: str, x: Value, rows: Sequence[Sequence[Value]], states: Sequence[Value], biased: bool
) -> list[Value]:
    hidden = c.static(rows[0][1].shape[1], "the hidden size")
    order = ORDER[cell]
    w, r = (c.concat([_ahead(c, _ordered(c, row[k], order, hidden)) for row in rows], 0) for k in (0, 1))
    b = None
    if biased:
        pairs = [c.concat([_ordered(c, row[k], order, hidden) for k in (2, 3)], 0) for row in rows]
        b = c.concat([_ahead(c, p) for p in pairs], 0)
    direction: Any = "bidirectional" if len(rows) == 2 else "forward"
    made: Any
    if cell == "lstm":
        made = ops.LSTM(hidden, direction)
    elif cell == "gru":
        made = ops.GRU(hidden, direction, linear_before_reset=True)
    else:
        made = ops.RNN(hidden, direction, ("tanh" if cell == "rnn_tanh" else "relu",) * len(rows))
    y, *ends = c.all(made, x, w, r, b, None, *states)
    y = c.transpose(y, (0, 2, 1, 3))  # [steps, batch, directions, hidden]
    return [c.reshape(y, (*y.shape[:2], hidden * len(rows))), *ends[: len(states)]]


def _ordered(c: Context, w: Value, order: Sequence[int], hidden: int) -> Value:
    """Gates along the first axis in another order."""
    if len(order) == 1:
        return w
    if w.constant is not None:
        parts = [w.constant[k * hidden : (k + 1) * hidden] for k in order]
        return c.builder.constant(np.concatenate(parts), w.name)
    return c.concat([c.slice(w, 0, k * hidden, hidden) for k in order], 0)


def _ahead(c: Context, x: Value) -> Value:
    return c.reshape(x, (1, *x.shape))


__all__ = ["recurrent"]
