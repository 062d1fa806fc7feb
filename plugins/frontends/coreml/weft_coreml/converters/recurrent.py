"""Recurrent layers, whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Value
from weft_coreml.context import Context
from weft_coreml.converters.movement import turned
from weft_coreml.registry import op

ACTIVATIONS = {
    "sigmoid": ("sigmoid", 0.0, 0.0), "tanh": ("tanh", 0.0, 0.0), "relu": ("relu", 0.0, 0.0),
    "hard_sigmoid": ("hardsigmoid", 0.2, 0.5), "sigmoid_hard": ("hardsigmoid", 0.2, 0.5),
    "linear": ("affine", 1.0, 0.0), "scaled_tanh": ("scaledtanh", 1.7159, 0.6666667),
}  # fmt: skip
"""By Core ML's names: the operator library's, and their two parameters."""


def activation(c: Context, name: str, default: str) -> tuple[str, float, float]:
    """The operator library's name of an activation; of a layer's with parameters of its own."""
    found = ACTIVATIONS[c.word(name, default, tuple(ACTIVATIONS))]
    own = c.array(f"{name}_parameters")
    return found if own is None else (found[0], float(str(own[0])), float(str(own[1])))


def parameters(
    names: Sequence[tuple[str, float, float]],
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Names of activations, and the parameters of those that have some."""
    some = [n for n in names if n[0] in ("hardsigmoid", "affine", "scaledtanh")]
    return tuple(n[0] for n in names), tuple(n[1] for n in some), tuple(n[2] for n in some)


def ordered(c: Context, w: Value, order: Sequence[int]) -> Value:
    """Parts along the first axis in another order."""
    (rows,) = c.static(w.shape[:1], "the size of a state")
    size = rows // len(order)
    if rows % len(order):
        raise c.error(f"{rows} rows of weights for {len(order)} gates")
    return w if len(order) == 1 else c.concat([c.slice(w, 0, k * size, size) for k in order], 0)


def ahead(c: Context, v: Value) -> Value:
    return c.reshape(v, (1, *v.shape))


def biases(c: Context, w: Value, given: Sequence[Value | None], order: Sequence[int]) -> Value:
    """[1, 2·gates·hidden]: those of the input, and of the state."""
    parts = [
        c(ops.Fill(w.dtype, (w.shape[0],), 0)) if v is None else c.cast(ordered(c, v, order), w.dtype) for v in given
    ]
    return ahead(c, c.concat(parts, 0))


def results(c: Context, y: Value, *ends: Value) -> list[Value]:
    """The states of every step [steps, batch, directions·hidden], or of the last one, and the last ones."""
    steps, directions, batch, hidden = y.shape
    last = [c.reshape(c.transpose(e, (1, 0, 2)), (batch, _times(directions, hidden))) for e in ends]
    if not c.flag("output_sequence"):
        return [ahead(c, last[0]), *last]
    whole = c.reshape(c.transpose(y, (0, 2, 1, 3)), (steps, batch, _times(directions, hidden)))
    return [whole, *last]


def steps_of(c: Context, *more: str) -> tuple[Value, Any]:
    """The steps in the order in which they are taken, and the direction: "reverse" turns them around, and the results
    stay in that order."""
    x, direction = c.of("x"), c.word("direction", "forward", ("forward", "reverse", *more))
    return (turned(c, x, 0), "forward") if direction == "reverse" else (x, direction)


def _times(directions: Any, hidden: Any) -> Any:
    return directions * hidden


@op("lstm")
def lstm(c: Context) -> list[Value]:
    x, direction = steps_of(c, "bidirectional")
    sides = ("", "_back") if direction == "bidirectional" else ("",)
    hidden = c.integer_of(c.of("weight_hh").shape[1])
    order = (0, 2, 1, 3)  # Core ML: input, forget, output, cell
    w, r, b, p = [], [], [], []
    for side in sides:
        w.append(ahead(c, ordered(c, c.cast(c.of(f"weight_ih{side}"), x.dtype), order)))
        r.append(ahead(c, ordered(c, c.cast(c.of(f"weight_hh{side}"), x.dtype), order)))
        b.append(biases(c, c.pick(w[-1], 0, 0), (c.maybe(f"bias{side}"), None), order))
        peephole = c.maybe(f"peephole{side}")
        if peephole is not None:
            p.append(ahead(c, ordered(c, c.cast(peephole, x.dtype), (0, 2, 1))))
    if p and len(p) < len(sides):
        raise c.unsupported("peepholes in one direction alone")
    names = [activation(c, n, d) for n, d in
             (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))]  # fmt: skip
    names = names * len(sides)
    made = ops.LSTM(
        hidden, direction, *parameters(names),
        c.real("clip") if c.has("clip") else None,
    )  # fmt: skip
    states = [_states(c, name, len(sides), hidden) for name in ("initial_h", "initial_c")]
    peepholes = c.concat(p, 0) if p else None
    y, *ends = c.all(made, x, *(c.concat(v, 0) for v in (w, r, b)), None, *states, peepholes)
    return results(c, y, *ends)


def _states(c: Context, name: str, directions: int, hidden: int) -> Value:
    """[batch, directions·hidden] → [directions, batch, hidden]."""
    h = c.cast(c.of(name), c.of("x").dtype)
    return c.transpose(c.reshape(h, (h.shape[0], directions, hidden)), (1, 0, 2))


@op("gru")
def gru(c: Context) -> list[Value]:
    x, direction = steps_of(c)
    order = (2, 0, 1)  # Core ML: reset, output, update
    w, r = (ahead(c, ordered(c, c.cast(c.of(n), x.dtype), order)) for n in ("weight_ih", "weight_hh"))
    given = (
        (c.maybe("input_bias"), c.maybe("bias")) if c.flag("reset_after") else (c.maybe("bias"), c.maybe("input_bias"))
    )
    b = biases(c, c.pick(w, 0, 0), given, order)
    names = [activation(c, "recurrent_activation", "sigmoid"), activation(c, "activation", "tanh")]
    hidden = c.integer_of(r.shape[2])
    made = ops.GRU(
        hidden, direction, *parameters(names),
        linear_before_reset=c.flag("reset_after"),
    )  # fmt: skip
    y, *ends = c.all(made, x, w, r, b, None, _states(c, "initial_h", 1, hidden))
    return results(c, y, *ends)


@op("rnn")
def rnn(c: Context) -> list[Value]:
    x, direction = steps_of(c)
    w, r = (ahead(c, c.cast(c.of(n), x.dtype)) for n in ("weight_ih", "weight_hh"))
    b = biases(c, c.pick(w, 0, 0), (c.maybe("bias"), None), (0,))
    name = activation(c, "activation", "tanh")
    hidden = c.integer_of(r.shape[2])
    made = ops.RNN(hidden, direction, *parameters([name]))
    y, *ends = c.all(made, x, w, r, b, None, _states(c, "initial_h", 1, hidden))
    return results(c, y, *ends)


__all__ = ["ACTIVATIONS", "ahead", "biases", "ordered"]
