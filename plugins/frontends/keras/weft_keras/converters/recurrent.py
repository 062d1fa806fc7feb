"""Recurrent layers, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import wrap
from weft.graph.nodes import Value
from weft.tensor.language import as_dim
from weft_keras.call import of_keras
from weft_keras.converters.steps import stepped
from weft_keras.registry import layer

if TYPE_CHECKING:
    from weft_keras.call import Call

ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "tanh": ("tanh", None, None), "sigmoid": ("sigmoid", None, None), "relu": ("relu", None, None),
    "softplus": ("softplus", None, None), "softsign": ("softsign", None, None), "linear": ("affine", 1.0, 0.0),
    "hard_sigmoid": ("hardsigmoid", 1 / 6, 0.5), "elu": ("elu", 1.0, None), "leaky_relu": ("leakyrelu", 0.2, None),
}  # fmt: skip
"""By the name of Keras' function: Weft's name, alpha and beta."""
CELLS = {"LSTMCell": 4, "GRUCell": 3, "SimpleRNNCell": 1}
"""The cells, with how many gates they have."""


def activations(*functions: Any) -> dict[str, Any]:
    names, alphas, betas = [], [], []
    for function in functions:
        name = "linear" if function is None else getattr(function, "__name__", "")
        known = ACTIVATIONS[name]
        names.append(known[0])
        alphas += [v for v in known[1:2] if v is not None]
        betas += [v for v in known[2:3] if v is not None]
    return {"activations": tuple(names), "activation_alpha": tuple(alphas), "activation_beta": tuple(betas)}


def gates(array: Any, count: int) -> Any:
    """Columns by gates as rows in Weft's order, [1, gates · hidden, …]: an LSTM's are i, f, c, o in Keras."""
    parts = np.split(np.asarray(array), count, axis=-1)
    if count == 4:
        parts = [parts[k] for k in (0, 3, 1, 2)]
    joined = np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined.T if joined.ndim == 2 else joined)[None]


def weights(c: Call, cell: Any, count: int) -> list[Value]:
    """W, R and B of a cell."""
    arrays = [c.importer.array(cell.kernel), c.importer.array(cell.recurrent_kernel)]
    hidden = int(cell.units)
    result = [gates(a, count) for a in arrays]
    bias = np.zeros((2, count * hidden), arrays[0].dtype)
    if cell.use_bias:
        given = c.importer.array(cell.bias)
        bias[: 1 if given.ndim == 1 else 2] = given
    result.append(np.concatenate([gates(row, count) for row in bias], axis=1))
    dtype = dt.dtype(cell.compute_dtype)
    return [c.builder.constant(a.astype(dtype.numpy), n) for a, n in zip(result, ("W", "R", "B"))]


def network(c: Call, cell: Any, kind: str, reverse: bool) -> Any:
    """The operator of a cell."""
    direction: Any = "reverse" if reverse else "forward"
    hidden = int(cell.units)
    if kind == "LSTMCell":
        names = activations(cell.recurrent_activation, cell.activation, cell.activation)
        return ops.LSTM(hidden, direction, layout=1, **names)
    if kind == "GRUCell":
        names = activations(cell.recurrent_activation, cell.activation)
        return ops.GRU(hidden, direction, layout=1, linear_before_reset=bool(cell.reset_after), **names)
    return ops.RNN(hidden, direction, layout=1, **activations(cell.activation))


def reversed_time(c: Call, y: Value) -> Value:
    return c.slice(y, 1, as_dim(wrap(y.shape[1], dt.int64) - 1), y.shape[1], -1)


def recurrent(c: Call, layer: Any, x: Value, initial: Any, mask: Any) -> list[Value]:
    """The results of a recurrent layer: its outputs [b, t, units], or the last of them, then its states if it returns
    them. Steps that go backwards come in the order in which they were computed. Cells that Weft does not have, and
    masks, make a loop."""
    if layer.stateful:
        raise c.unsupported("states that are kept from one call to the next (stateful)")
    if mask is not None or not whole(layer.cell):
        return [c.cast(v, dt.dtype(layer.compute_dtype)) for v in stepped(c, layer, x, initial, mask)]
    kind = type(layer.cell).__name__
    dtype = dt.dtype(layer.cell.compute_dtype)
    states = [] if initial is None else list(initial) if isinstance(initial, (tuple, list)) else [initial]
    given = [c.as_tensor(s, dtype) for s in states]
    begin = [c.reshape(s, (s.shape[0], 1, s.shape[1])) for s in given]
    operands = [c.cast(x, dtype), *weights(c, layer.cell, CELLS[kind]), None, *begin]
    y, *last = c.all(network(c, layer.cell, kind, bool(layer.go_backwards)), *operands)
    last = [c.reshape(s, (s.shape[0], s.shape[2])) for s in last]
    if layer.return_sequences:
        y = c.reshape(y, (y.shape[0], y.shape[1], y.shape[3]))
        y = reversed_time(c, y) if layer.go_backwards else y
    else:
        y = last[0]
    return [y, *last] if layer.return_state else [y]


def whole(cell: Any) -> bool:
    """Whether Weft has an operator for layers of a cell."""
    if type(cell).__name__ not in CELLS or not of_keras(type(cell)) or getattr(cell, "quantization_mode", None):
        return False
    functions = [cell.activation, getattr(cell, "recurrent_activation", None)]
    return all(
        f is None or (getattr(f, "__name__", "") in ACTIVATIONS and f.__module__.split(".", 1)[0] == "keras")
        for f in functions
    )


def mask_of(c: Call) -> Any:
    """The mask of the steps; None: there is none."""
    given = c.importer.keras.tree.flatten(c.arg("mask"))
    return next((m for m in given if m is not None), None)


@layer("LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
def rnn(c: Call) -> list[Value]:
    return recurrent(c, c.operation, c.tensor("sequences"), c.arg("initial_state"), mask_of(c))


@layer("Bidirectional")
def bidirectional(c: Call) -> list[Value]:
    x, initial, mode = c.tensor("sequences"), c.arg("initial_state"), c.attribute("merge_mode")
    pair = c.attribute("forward_layer"), c.attribute("backward_layer")
    if any(type(one).__name__ not in ("LSTM", "GRU", "SimpleRNN", "RNN") for one in pair):
        raise c.unsupported(f"of {type(pair[0]).__name__}")
    half = 0 if initial is None else len(initial) // 2
    begin = (None, None) if initial is None else (initial[:half], initial[half:])
    (y, *states), (z, *others) = (recurrent(c, one, x, s, mask_of(c)) for one, s in zip(pair, begin, strict=True))
    y, z = c.cast(y, c.out), c.cast(z, c.out)
    if c.attribute("return_sequences"):
        z = reversed_time(c, z)
    if mode is None:
        return [y, z, *states, *others]
    if mode == "concat":
        y = c.concat([y, z], len(y.shape) - 1)
    elif mode == "mul":
        y = c.mul(y, z)
    else:
        y = c.add(y, z)
        y = c.mul(y, 0.5) if mode == "ave" else y
    return [y, *states, *others]
