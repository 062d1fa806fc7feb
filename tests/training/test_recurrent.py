"""Gradients of recurrent networks, compiled: against torch.autograd at sizes as models have them, and at sizes that
only a run knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft_ops as ops
from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.verify import verify
from weft_training import vjp

STEPS, BATCH, INPUT, HIDDEN = 24, 16, 48, 96
# Per cell the gates in torch's order, which are those of ONNX: i, o, f, c and z, r, h.
ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def network(cell: str, direction: str, d: int, dtype: dt.DType) -> Graph:
    n = len(ORDER[cell])
    b = GraphBuilder(cell)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (STEPS, BATCH, INPUT),
        "w": (d, n * HIDDEN, INPUT),
        "r": (d, n * HIDDEN, HIDDEN),
        "b": (d, 2 * n * HIDDEN),
        "h": (d, BATCH, HIDDEN),
        **({"c": (d, BATCH, HIDDEN)} if cell == "lstm" else {}),
    }
    v = {k: b.input(k, tensor_type(dtype, s)) for k, s in shapes.items()}
    made: dict[str, Any] = {"lstm": ops.LSTM, "gru": ops.GRU, "rnn": ops.RNN}
    extra = {"linear_before_reset": True} if cell == "gru" else {}  # torch's
    op = made[cell](HIDDEN, direction, **extra)
    for y in b.add_all(op, v["x"], v["w"], v["r"], v["b"], None, v["h"], v.get("c")):
        b.output(y)
    return b.build()


def by_torch(cell: str, d: int, given: dict[str, Any], seeds: list[Any]) -> dict[str, Any]:
    import torch

    class_ = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    module = class_(INPUT, HIDDEN, bidirectional=d == 2).double()
    order = ORDER[cell]
    n = len(order)

    def gates(a: Any) -> Any:
        return np.concatenate([np.split(a, n)[g] for g in _inverse(order)])

    for k in range(d):
        suffix = "_l0" + ("_reverse" if k else "")
        parts = {
            "weight_ih": given["w"][k],
            "weight_hh": given["r"][k],
            "bias_ih": np.split(given["b"][k], 2)[0],
            "bias_hh": np.split(given["b"][k], 2)[1],
        }
        for name, value in parts.items():
            getattr(module, name + suffix).data = torch.tensor(gates(value.astype(np.float64)))
    x, *states = (torch.tensor(given[k].astype(np.float64), requires_grad=True) for k in ("x", "h", "c") if k in given)
    y, last = module(x, tuple(states) if cell == "lstm" else states[0])
    whole = y.reshape(STEPS, BATCH, d, HIDDEN).transpose(1, 2)
    results = [whole, *(last if cell == "lstm" else (last,))]
    sum(torch.sum(r * torch.tensor(s.astype(np.float64))) for r, s in zip(results, seeds)).backward()

    def stacked(name: str) -> Any:
        found = [getattr(module, f"{name}_l0" + ("_reverse" if k else "")).grad.numpy() for k in range(d)]
        return np.stack([np.concatenate([np.split(a, n)[g] for g in order]) for a in found])

    bias = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], 1)
    found = {"x": x.grad.numpy(), "w": stacked("weight_ih"), "r": stacked("weight_hh"), "b": bias}
    return found | {k: s.grad.numpy() for k, s in zip(("h", "c"), states)}


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(k) for k in range(len(order))]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_gradients_are_those_of_torch(cell: str, direction: str, dtype: str) -> None:
    d = 2 if direction == "bidirectional" else 1
    graph = network(cell, direction, d, dt.dtype(dtype))
    backward = weft.compile(vjp(graph), "llvm")
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.uniform(-1, 1, [int(n) for n in i.shape]) / (1 if i.name in "xhc" else np.sqrt(HIDDEN))
        for i in backward.inputs
    }
    inputs = {k: v.astype(dtype) for k, v in inputs.items()}
    names = [v.name for v in graph.inputs]
    wanted = by_torch(cell, d, {k: inputs[k] for k in names}, [inputs[i.name] for i in backward.inputs[len(names) :]])
    for name, got in zip(names, backward.run(inputs).values(), strict=True):
        want = wanted[name]
        error = np.max(np.abs(got - want)) / np.max(np.abs(want))
        assert error < (1e-12 if dtype == "float64" else 1e-5), (name, error)


def everything(cell: str, linear: bool, steps: Any, batch: Any) -> Graph:
    """A network of both directions with all that a cell has."""
    n, hidden = len(ORDER[cell]), 13
    b = GraphBuilder(cell)
    shapes: dict[str, tuple[Any, ...]] = {
        "x": (steps, batch, 7),
        "w": (2, n * hidden, 7),
        "r": (2, n * hidden, hidden),
        "b": (2, 2 * n * hidden),
        "h": (2, batch, hidden),
        **({"c": (2, batch, hidden), "p": (2, 3 * hidden)} if cell == "lstm" else {}),
    }
    v = {k: b.input(k, tensor_type(dt.float32, s)) for k, s in shapes.items()}
    lengths = b.input("lengths", tensor_type(dt.int32, (batch,)))
    extra: dict[str, Any] = {"input_forget": linear} if cell == "lstm" else {"linear_before_reset": linear}
    made: dict[str, Any] = {"lstm": ops.LSTM, "gru": ops.GRU}
    op = made[cell](hidden, "bidirectional", clip=1.5, **extra)
    rest = (v["c"], v["p"]) if cell == "lstm" else ()
    for y in b.add_all(op, v["x"], v["w"], v["r"], v["b"], lengths, v["h"], *rest):
        b.output(y)
    return vjp(b.build())


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_at_sizes_that_a_run_gives(cell: str, other: bool) -> None:
    graph = everything(cell, other, "t", "n")
    verify(graph)
    executable = weft.compile(graph, "llvm")
    rng = np.random.default_rng(0)
    for steps, batch in ((1, 1), (6, 3)):
        known = everything(cell, other, steps, batch)
        inputs = {
            v.name: rng.uniform(-1, 1, v.shape).astype(np.float32)  # type: ignore[arg-type]  # they are numbers
            if v.dtype.is_float
            else rng.integers(0, steps + 1, batch).astype(np.int32)
            for v in known.inputs
        }
        for want, got in zip(evaluate(known, inputs), executable.run(inputs).values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.max(np.abs(want), initial=0)))
