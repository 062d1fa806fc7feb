"""Recurrent layers against numpy, written after Darknet's C sources: several steps, with the state that is kept."""

# ruff: noqa: E501 - messages in tables

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.darknet.reference import ACTIVATIONS, cfg, sigmoid

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate

Apply = Callable[[Any], Any]


class File:
    """Draws the weights of a file in the order in which a program reads them."""

    def __init__(self, revision: int) -> None:
        self.rng, self.floats, self.revision = np.random.default_rng(4), list[Any](), revision

    @property
    def data(self) -> bytes:
        head = struct.pack("<3iQ", 0, 2, self.revision, 0)
        return head + b"".join(a.astype("<f4").tobytes() for a in self.floats)

    def draw(self, *shape: int, lo: float = -1, hi: float = 1) -> Any:
        self.floats.append(self.rng.uniform(lo, hi, shape).astype(np.float32))
        return self.floats[-1].astype(np.float64)

    def norm(self, n: int, norm: int) -> Apply:
        if not norm:
            return lambda y: y
        scale, mean, variance = (self.draw(n, lo=lo, hi=2).reshape(-1, 1, 1) for lo in (0.5, -1, 0.5))
        return lambda y: (y - mean) / np.sqrt(variance + 1e-5) * scale

    def connected(self, inputs: int, outputs: int, act: str = "linear", norm: int = 0) -> Apply:
        """forward_connected_layer."""
        bias, w = self.draw(outputs).reshape(-1, 1, 1), self.draw(outputs, inputs)
        scaled = self.norm(outputs, norm)
        return lambda x: ACTIVATIONS[act](scaled((x.reshape(len(x), -1) @ w.T)[:, :, None, None]) + bias)

    def filters(self, channels: int, n: int, act: str, norm: int = 0) -> Apply:
        """forward_convolutional_layer of kernels of 3 × 3, padded by 1."""
        bias = self.draw(n).reshape(-1, 1, 1)
        scaled = self.norm(n, norm)
        w = self.draw(n, channels, 3, 3)

        def apply(x: Any) -> Any:
            padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
            views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
            return ACTIVATIONS[act](scaled(np.einsum("bchwij,ncij->bnhw", views, w)) + bias)

        return apply


def simple(parts: list[Apply], shape: Any, shortcut: int = 0) -> Callable[[list[Any]], list[Any]]:
    """forward_rnn_layer and forward_crnn_layer."""

    def run(xs: list[Any]) -> list[Any]:
        of_input, of_state, of_output = parts
        state, done = np.zeros((2, *shape)), []
        for x in xs:
            state = (state if shortcut else 0) + of_input(x) + of_state(state)
            done.append(of_output(state))
        return [*done, state]

    return run


def rnn(file: File, o: dict[str, Any]) -> Any:
    act, norm, out = o.get("activation", "logistic"), o.get("batch_normalize", 0), o["output"]
    hidden = o.get("hidden", out)
    inner = "logistic" if o.get("logistic") else act
    parts = [file.connected(12, hidden, act, norm), file.connected(hidden, hidden, inner, norm)]
    return simple([*parts, file.connected(hidden, out, act, norm)], (hidden, 1, 1), o.get("shortcut", 0))


def crnn(file: File, o: dict[str, Any]) -> Any:
    act, norm = o.get("activation", "logistic"), o.get("batch_normalize", 0)
    out, hidden = o.get("output", o.get("output_filters")), o.get("hidden", o.get("hidden_filters"))
    parts = [file.filters(*sizes, act, norm) for sizes in ((3, hidden), (hidden, hidden), (hidden, out))]
    return simple(parts, (hidden, 2, 2), o.get("shortcut", 0))


def gru(file: File, o: dict[str, Any]) -> Any:
    """AlexeyAB reads the three of the input before those of the state, pjreddie the other way round."""
    n, norm = o["output"], o.get("batch_normalize", 0)
    of = {}
    for kind in ("input", "state") if file.revision else ("state", "input"):
        for gate in "zrh":
            of[kind, gate] = file.connected(12 if kind == "input" else n, n, "linear", norm)

    def run(xs: list[Any]) -> list[Any]:
        state, done = np.zeros((2, n, 1, 1)), []
        for x in xs:
            z = sigmoid(of["input", "z"](x) + of["state", "z"](state))
            r = sigmoid(of["input", "r"](x) + of["state", "r"](state))
            h = of["input", "h"](x) + of["state", "h"](r * state)
            h = np.tanh(h) if o.get("tanh") else sigmoid(h)
            state = z * state + (1 - z) * h
            done.append(state)
        return [*done, state]

    return run


def steps(of: dict[Any, Apply], shape: Any, constrain: float) -> Any:
    """forward_lstm_layer and forward_conv_lstm_layer; w are of the state, u of the input, v of the cell."""

    def run(xs: list[Any]) -> list[Any]:
        h, c, done = np.zeros((2, *shape)), np.zeros((2, *shape)), []
        for x in xs:
            f, i, g, o = (of["w", gate](h) + of["u", gate](x) for gate in "figo")
            if ("v", "f") in of:
                f, i = f + of["v", "f"](c), i + of["v", "i"](c)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            o = o + (of["v", "o"](c) if ("v", "o") in of else 0)
            h = np.tanh(c) * sigmoid(o)
            c = np.clip(c, -constrain, constrain)
            done.append(h)
        return [*done, c, h]

    return run


def lstm(file: File, o: dict[str, Any]) -> Any:
    n, norm = o["output"], o.get("batch_normalize", 0)
    order = "figo" if file.revision else "ifog"
    of = {(k, gate): file.connected(12 if k == "u" else n, n, "linear", norm) for k in "wu" for gate in order}
    return steps(of, (n, 1, 1), np.inf)


def conv_lstm(file: File, o: dict[str, Any]) -> Any:
    n, act, norm = o["output"], o.get("activation", "linear"), o.get("batch_normalize", 0)
    names = [("v", gate) for gate in "fio" if o.get("peephole")]
    names += [(k, gate) for k in "wu" for gate in "figo"]
    of = {name: file.filters(3 if name[0] == "u" else n, n, act, norm) for name in names}
    return steps(of, (n, 2, 2), o.get("state_constrain", 32))


CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "rnn": (5, "rnn", {"output": 4, "hidden": 6, "activation": "leaky", "batch_normalize": 1}),
    "rnn logistic": (5, "rnn", {"output": 4, "hidden": 6, "activation": "tanh", "logistic": 1, "shortcut": 1}),
    "rnn of pjreddie": (0, "rnn", {"output": 5}),
    "crnn": (5, "crnn", {"output": 4, "hidden": 6, "pad": 1, "activation": "leaky", "batch_normalize": 1}),
    "crnn shortcut": (5, "crnn", {"output": 4, "hidden": 2, "padding": 1, "shortcut": 1}),
    "crnn of pjreddie": (0, "crnn", {"output_filters": 4, "hidden_filters": 6}),
    "gru": (5, "gru", {"output": 5}),
    "gru of pjreddie": (0, "gru", {"output": 5, "tanh": 1, "batch_normalize": 1}),
    "lstm": (5, "lstm", {"output": 5, "batch_normalize": 1}),
    "lstm of pjreddie": (0, "lstm", {"output": 5}),
    "conv_lstm": (5, "conv_lstm", {"output": 4, "pad": 1}),
    "conv_lstm peephole": (
        5, "conv_lstm", {"output": 4, "pad": 1, "peephole": 1, "activation": "leaky", "batch_normalize": 1},
    ),
    "conv_lstm held": (5, "conv_lstm", {"output": 4, "pad": 1, "state_constrain": 1, "activation": "leaky"}),
}  # fmt: skip
X = np.random.default_rng(1).uniform(-2, 2, (3, 2, 3, 2, 2)).astype(np.float32)


def made(name: str) -> tuple[bytes, bytes, list[Any]]:
    """The text, the weights, and the outputs of three steps, then the last state."""
    revision, kind, options = CASES[name]
    file = File(revision)
    run = globals()[kind](file, options)
    return cfg((3, 2, 2), (kind, options)).encode(), file.data, run(list(X.astype(np.float64)))


@pytest.mark.parametrize("name", CASES)
def test_steps_with_the_state_that_is_kept(name: str) -> None:
    text, weights, wanted = made(name)
    graph = weft.load(text, weights=weights, state="inputs")
    states = [i.name for i in graph.inputs[1:]]
    assert sorted(f"{s}.after" for s in states) == sorted(graph.output_names[1:])
    kept = {i.name: np.zeros((2, *map(int, i.shape[1:])), np.float32) for i in graph.inputs[1:]}  # type: ignore[arg-type]
    for x, want in zip(X, wanted):
        found = dict(zip(graph.output_names, evaluate(graph, {"x": x, **kept})))
        np.testing.assert_allclose(found[graph.output_names[0]], want, rtol=2e-5, atol=2e-5)
        kept = {s: found[f"{s}.after"] for s in states}
    for state, want in zip(sorted(states), wanted[3:], strict=True):
        np.testing.assert_allclose(kept[state], want, rtol=2e-5, atol=2e-5)


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "conv_lstm peephole"])
def test_compiled_from_zeros(name: str) -> None:
    text, weights, wanted = made(name)
    exe = weft.compile(weft.load(text, weights=weights, state="fresh"), target="llvm -threads=1", cache=False)
    for _ in range(2):
        (found,) = exe.run({"x": X[0]}).values()
        np.testing.assert_allclose(found, wanted[0], rtol=1e-4, atol=1e-4)


REFUSED = {
    "state": ("lstm", {"output": 4}, {}, "line 7: [lstm] keeps a state between calls\n  hint: the option state: 'fresh'"),
    "unknown state": ("lstm", {"output": 4}, {"state": "kept"}, "state is 'kept', expected 'fresh' or 'inputs'"),
    "revision": ("lstm", {"output": 4}, {"revision": 3}, "the order of the weights of gates is not known where a header has the revision 3"),
    "bottleneck": ("conv_lstm", {"output": 4, "pad": 1, "bottleneck": 1}, {}, "bottleneck=1 in [conv_lstm]"),
    "shortcut": ("conv_lstm", {"output": 4, "pad": 1, "shortcut": 1}, {}, "shortcut=1 in [conv_lstm]"),
    "function": ("conv_lstm", {"output": 4, "pad": 1, "lstm_activation": "relu"}, {}, "[conv_lstm] with lstm_activation=relu"),
    "pads": ("conv_lstm", {"output": 4}, {}, "its kernels must keep height and width, see pad"),
    "strides": ("crnn", {"output": 4, "hidden": 2, "pad": 1, "stride": 2}, {}, "its kernels must keep height and width"),
    "loggy": ("rnn", {"output": 4, "logistic": 2}, {}, "logistic=2: 0 and 1 are supported"),
    "kernel": ("crnn", {"output_filters": 4, "size": 5}, {}, "with output_filters the kernel is 3 × 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_are_refused(name: str) -> None:
    kind, options, more, message = REFUSED[name]
    state = None if name == "state" else more.get("state", "fresh")
    weights = struct.pack("<3iQ", 0, 2, more.get("revision", 5), 0) + bytes(4 * 4096)
    with pytest.raises((FrontendError, UnsupportedError)) as caught:
        weft.load(cfg((3, 2, 2), (kind, options)).encode(), frontend="darknet", weights=weights, state=state)
    assert message in str(caught.value)
