"""Resource variables and recurrent layers, which keep a state between calls."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft_tflite.context import FUSED, Context
from weft_tflite.registry import moving_op, tflite_op
from weft_tflite.state import Handle

ACTIVATIONS = {"linear": "Affine", "relu": "Relu", "tanh": "Tanh"}
"""Fused activations by the names that recurrent operators have."""


@moving_op("CALL_ONCE")
def call_once(c: Context) -> list[Any]:
    """A sub-graph that gives variables their first values."""
    c.importer.states.first += 1
    try:
        c.importer.put(c.integer("init_subgraph_index"), c, [])
    finally:
        c.importer.states.first -= 1
    return []


@moving_op("VAR_HANDLE")
def var_handle(c: Context) -> Any:
    return Handle(str(c.op.options["shared_name"]) or str(c.op.options["container"]))


def handle(c: Context) -> Handle:
    found = c.operands[0]
    if not isinstance(found, Handle):
        raise c.error("input 0 is no variable")
    return found


@moving_op("READ_VARIABLE")
def read_variable(c: Context) -> Any:
    return c.importer.states.read(c, handle(c).name)


@moving_op("ASSIGN_VARIABLE")
def assign_variable(c: Context) -> list[Any]:
    c.importer.states.write(c, handle(c).name, c.value(1))
    return []


def state(c: Context, k: int) -> tuple[str, Value]:
    """The name and the value of a tensor that is a variable."""
    info = c.input(k)
    if info is None or not info.variable:
        raise c.unsupported(f"input {k} that is no variable")
    return info.name, c.importer.as_value(c.importer.states.tensor(c, info))


def stacked(c: Context, parts: list[Value]) -> Value:
    """The weights of gates, one below the other, of one direction."""
    whole = c.concat(parts, 0)
    return c.reshape(whole, (1, *whole.shape))


def activation(c: Context) -> str:
    number = c.integer("fused_activation_function")
    found = ACTIVATIONS.get(FUSED[number]) if 0 <= number < len(FUSED) else None
    if found is None:
        raise c.unsupported(f"fused activation {number}")
    return found


def steps_first(c: Context, x: Value) -> Value:
    return x if c.flag("time_major") else c.transpose(x, (1, 0, 2))


@tflite_op("UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(c: Context) -> Value:
    """Gates are input, forget, cell, output; ours input, output, forget, cell."""
    if any(c.given(k) for k in (16, 17)):
        raise c.unsupported("a projection")
    if any(c.given(k) for k in range(20, 24)):
        raise c.unsupported("layer normalisation")
    if not all(c.given(k) for k in (1, 5, 12)):
        raise c.unsupported("a coupled input gate")
    if c.real("cell_clip") or c.real("proj_clip") or c.flag("diagonal_recurrent_tensors"):
        raise c.unsupported("clipped cells, or diagonal weights")
    (h_name, h), (c_name, cell) = state(c, 18), state(c, 19)
    order = (0, 3, 1, 2)
    w, r = (stacked(c, [c.value(first + k) for k in order]) for first in (1, 5))
    bias = c.concat([c.value(12 + k) for k in order], 0)
    both = c.concat([bias, c.broadcast(c.number(0.0, bias.dtype), bias.shape)], 0)
    peepholes = None
    if any(c.given(k) for k in (9, 10, 11)):
        peepholes = c.concat([c.value(9), c.value(11), c.value(10)], 0)
        peepholes = c.reshape(peepholes, (1, *peepholes.shape))
    hidden = h.shape[-1]
    assert isinstance(hidden, int)
    inner = activation(c)
    op = ops.LSTM(hidden, "forward", ("Sigmoid", inner, inner) if inner != "Tanh" else ())
    x = steps_first(c, c.value(0))
    b = c.reshape(both, (1, *both.shape))
    first = [c.reshape(v, (1, *v.shape)) for v in (h, cell)]
    y, last, last_cell = c.all(op, x, w, r, b, None, *first, peepholes)
    c.importer.states.write(c, h_name, c.reshape(last, h.shape))
    c.importer.states.write(c, c_name, c.reshape(last_cell, cell.shape))
    return steps_first(c, c.reshape(y, (*y.shape[:1], *y.shape[2:])))


@tflite_op("UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(c: Context) -> Value:
    name, h = state(c, 4)
    hidden = h.shape[-1]
    assert isinstance(hidden, int)
    w, r, bias = stacked(c, [c.value(1)]), stacked(c, [c.value(2)]), c.value(3)
    both = c.concat([bias, c.broadcast(c.number(0.0, bias.dtype), bias.shape)], 0)
    op = ops.RNN(hidden, "forward", (activation(c),))
    x = steps_first(c, c.value(0))
    y, last = c.all(op, x, w, r, c.reshape(both, (1, *both.shape)), None, c.reshape(h, (1, *h.shape)))
    c.importer.states.write(c, name, c.reshape(last, h.shape))
    return steps_first(c, c.reshape(y, (*y.shape[:1], *y.shape[2:])))


@tflite_op("RNN")
def one_step(c: Context) -> Value:
    """One step of a simple recurrent layer."""
    name, h = state(c, 4)
    x, w, r, bias = (c.value(k) for k in range(4))
    y = c.add(c.add(c(ops.MatMul(), x, c.transpose(w, (1, 0))), c(ops.MatMul(), h, c.transpose(r, (1, 0)))), bias)
    y = c.activated(y)
    c.importer.states.write(c, name, y)
    return y


@tflite_op("SVDF")
def svdf(c: Context) -> Value:
    """Features of the last inputs, of which each unit sums some filters over time."""
    name, kept = state(c, 4)
    x, features, time = c.value(0), c.value(1), c.value(2)
    rank = c.integer("rank")
    batch, filters, memory = x.shape[0], features.shape[0], time.shape[1]
    if not isinstance(filters, int) or not isinstance(memory, int) or rank < 1 or filters % rank:
        raise c.error(f"{filters} filters of rank {rank}")
    new = c.reshape(c(ops.MatMul(), x, c.transpose(features, (1, 0))), (batch, filters, 1))
    old = c.slice(c.reshape(kept, (batch, filters, memory)), 2, 1, memory - 1)
    held = c.concat([old, new], 2)
    c.importer.states.write(c, name, c.reshape(held, kept.shape))
    sums = c.sum(c.mul(held, time), (2,), False)
    y = c.sum(c.reshape(sums, (batch, filters // rank, rank)), (2,), False)
    bias = c.optional(3)
    return c.activated(y if bias is None else c.add(y, bias))
