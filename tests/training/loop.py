"""Small trainings, each in a process of its own when tests kill it:
`python -m tests.training.loop NAME CHECKPOINT STEPS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import weft
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops import LSTM, Add, Conv, Gather, MatMul, MaxPool, Relu, Reshape, Tanh, Transpose

BATCH, WIDTH, LENGTH = 32, 64, 32
RATE = 0.01


def rate(number: int) -> float:
    return RATE / (1 + number / 100)


def _weights(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def classifier() -> Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder("classifier")
    h = b.input("x", tensor_type("float32", [32, 8]))
    for k, (rows, columns) in enumerate([(8, 32), (32, 32), (32, 4)]):
        weights = (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
        h = b.add(MatMul(), h if k == 0 else b.add(Tanh(), h), b.constant(weights, f"w{k}"))
    b.output(h, "scores")
    return b.build()


def batch(number: int) -> dict[str, Any]:
    """Four classes by the signs of two coordinates."""
    x = np.random.default_rng(number).normal(size=(32, 8)).astype(np.float32)
    return {"x": x, "targets": (x[:, 0] > 0).astype(np.int64) * 2 + (x[:, 1] > 0)}


# -- digits of scikit-learn --------------------------------------------------------------------------------------------


def digits() -> Graph:
    """Two convolutions with pooling, and a linear layer: [32, 1, 8, 8] to scores of ten digits."""
    return digits_of(BATCH)


def digits_of(size: int) -> Graph:
    rng = np.random.default_rng(1)
    b = GraphBuilder("digits")
    h: Value = b.input("x", tensor_type("float32", [size, 1, 8, 8]))
    for k, (before, after) in enumerate([(1, 16), (16, 32)]):
        h = b.add(Conv(pads=(1, 1, 1, 1)), h, b.constant(_weights(rng, after, before, 3, 3), f"w{k}"))
        h = b.add(Relu(), b.add(Add(), h, b.constant(np.zeros((after, 1, 1), "f4"), f"b{k}")))
        h = b.add(MaxPool((2, 2), (2, 2)), h)
    h = b.add(MatMul(), b.add(Reshape((size, 128)), h), b.constant(_weights(rng, 10, 128).T.copy(), "w2"))
    b.output(b.add(Add(), h, b.constant(np.zeros(10, "f4"), "b2")), "scores")
    return b.build()


@cache
def pictures() -> tuple[Any, Any]:
    """Pictures [1797, 1, 8, 8] of values from 0 to 1, and their digits; the last 297 are for judging."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images[:, None] / 16).astype(np.float32), found.target.astype(np.int64)


def digits_batch(number: int) -> dict[str, Any]:
    x, targets = pictures()
    chosen = np.random.default_rng(number).integers(0, 1500, BATCH)
    return {"x": x[chosen], "targets": targets[chosen]}


# -- characters of a text ----------------------------------------------------------------------------------------------


@cache
def text() -> tuple[Any, str]:
    """Sentences of a small grammar as numbers of characters, and the characters."""
    rng = np.random.default_rng(2)
    kinds = ["old", "small", "quiet", "young"], ["king", "sailor", "miller", "child"], ["sees", "finds", "follows"]
    sentences = []
    for _ in range(2000):
        first, subject, verb = (str(rng.choice(k)) for k in kinds)
        second, thing = str(rng.choice(kinds[0])), str(rng.choice(["boat", "horse", "house", "river"]))
        sentences.append(f"the {first} {subject} {verb} the {second} {thing}. ")
    whole = "".join(sentences)
    alphabet = "".join(sorted(set(whole)))
    return np.array([alphabet.index(ch) for ch in whole], np.int64), alphabet


def characters() -> Graph:
    """An embedding, an LSTM and a linear layer: [16, 32] characters to scores [16, characters, 32] of the next ones."""
    rng = np.random.default_rng(3)
    count, size = len(text()[1]), BATCH // 2
    b = GraphBuilder("characters")
    x = b.input("x", tensor_type("int64", [size, LENGTH]))
    h = b.add(Gather(), b.constant(_weights(rng, count, WIDTH), "words"), b.add(Transpose((1, 0)), x))
    cell = [_weights(rng, 1, 4 * WIDTH, WIDTH) * 8 for _ in range(2)]
    bias = np.zeros((1, 8 * WIDTH), np.float32)
    bias[:, 2 * WIDTH : 3 * WIDTH] = 1  # of the gate that forgets: Jozefowicz et al., 2015
    h = b.add_all(LSTM(WIDTH), h, *(b.constant(a, n) for a, n in zip((*cell, bias), ("w", "r", "b"))))[0]
    h = b.add(Reshape((LENGTH, size, WIDTH)), h)
    h = b.add(MatMul(), h, b.constant(_weights(rng, count, WIDTH).T.copy(), "head"))
    b.output(b.add(Transpose((1, 2, 0)), h), "scores")
    return b.build()


def characters_batch(number: int) -> dict[str, Any]:
    symbols, _ = text()
    starts = np.random.default_rng(number).integers(0, len(symbols) - LENGTH - 1, BATCH // 2)
    rows = np.stack([symbols[s : s + LENGTH + 1] for s in starts])
    return {"x": rows[:, :-1], "targets": rows[:, 1:]}


@dataclass(frozen=True)
class Training:
    graph: Callable[[], Graph]
    batches: Callable[[int], dict[str, Any]]

    def step(self) -> weft.TrainingStep:
        return weft.compile_training(self.graph(), "cross_entropy", weft.AdamW())

    def trainer(self, checkpoint: str | None = None, every: int = 5) -> weft.Trainer:
        return weft.Trainer(self.step(), self.batches, rate, checkpoint, every)


TRAININGS = {
    "classifier": Training(classifier, batch),
    "digits": Training(digits, digits_batch),
    "characters": Training(characters, characters_batch),
}


if __name__ == "__main__":
    print("ready", flush=True)
    TRAININGS[sys.argv[1]].trainer(sys.argv[2]).run(int(sys.argv[3]))
