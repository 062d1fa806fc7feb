"""A small training in a process of its own, which tests kill: `python -m tests.training.loop CHECKPOINT STEPS`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import weft
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import MatMul, Tanh


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


def trainer(checkpoint: str | None, every: int = 5) -> weft.Trainer:
    step = weft.compile_training(classifier(), optimizer=weft.AdamW())
    return weft.Trainer(step, batch, rate=lambda k: 0.01 / (1 + k / 100), checkpoint=checkpoint, every=every)


if __name__ == "__main__":
    print("ready", flush=True)
    trainer(sys.argv[1]).run(int(sys.argv[2]))
