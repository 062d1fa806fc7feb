"""Convolutions as models have them, whole on a device: computed by Winograd's algorithm where the target chooses it,
never where it is told not to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.mixed import MixedCompilation
from weft.resolve import resolve_targets
from weft_ops import Add, Conv, Relu
from weft_ops.winograd import WinogradConv


def layer(batch: int | str, size: tuple[int, int], channels: tuple[int, int], pads: tuple[int, ...]) -> Graph:
    rng = np.random.default_rng(0)
    g = GraphBuilder("layer")
    x = g.input("x", tensor_type("float32", (Var(batch) if isinstance(batch, str) else batch, channels[0], *size)))
    y = g.add(
        Conv(pads=pads), x, g.constant(rng.standard_normal((channels[1], channels[0], 3, 3)).astype(np.float32), "w")
    )
    g.output(
        g.add(Relu(), g.add(Add(), y, g.constant(rng.standard_normal((channels[1], 1, 1)).astype(np.float32), "bias"))),
        "y",
    )
    return g.build()


def compiled(graph: Graph, options: str = "") -> tuple[Any, set[str]]:
    """The executable, and the rules of its kernels."""
    mixed = MixedCompilation(resolve_targets(f"opencl{options}"), cache=False, strict=True)
    return mixed.run(graph), {k.rule for one in mixed.regions for k in one.kernels.values()}


@pytest.mark.parametrize(
    ("batch", "size", "pads"),
    [
        (1, (7, 7), (1, 1, 1, 1)), (3, (7, 7), (1, 1, 1, 1)), (1, (14, 14), (1, 1, 1, 1)), ("n", (14, 14), (1, 1, 1,
            1)), (3, (5, 9), (0, 2, 1, 0)),
        ("n", (5, 9), (2, 0, 1, 3)),
    ],
    ids=str,
)  # fmt: skip
def test_a_layer_is_the_definitions(batch: int | str, size: tuple[int, int], pads: tuple[int, ...]) -> None:
    graph = layer(batch, size, (64, 48), pads)
    executable, rules = compiled(graph)
    assert rules == {"winograd"}
    taps, bias = (np.asarray(v.constant, np.float64) for v in graph.constants())
    types = tensor_type("float32", (1, 64, *size)), tensor_type("float32", (36, 64, 48))
    allowed = WinogradConv(4, pads).tolerance(*types) * np.finfo(np.float32).eps
    for n in (1, 3, 5) if batch == "n" else (int(batch),):
        x = np.random.default_rng(n).standard_normal((n, 64, *size)).astype(np.float32)
        want = np.maximum(np.asarray(Conv(pads=pads).reference(x.astype(np.float64), taps)) + bias, 0)
        np.testing.assert_allclose(executable.run({"x": x})["y"], want, rtol=0, atol=allowed * np.abs(want).max())


def test_off_is_off() -> None:
    _, rules = compiled(layer(1, (14, 14), (64, 48), (1, 1, 1, 1)), " -winograd=off")
    assert rules == {"contraction"}
