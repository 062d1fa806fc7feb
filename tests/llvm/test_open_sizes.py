"""Pictures of any size: one executable means at each what the graph means, and kernels have the loops of fixed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import numbers

import weft
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.loop.nodes import Block, walk_stmts
from weft.lower.lower import lower_group
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv
from weft_ops.window import AveragePool, MaxPool


def conv(b: GraphBuilder, x: Value, outputs: int, kernel: int, stride: int, groups: int, seed: int) -> Value:
    channels = x.shape[1]
    assert isinstance(channels, int)
    w = numbers(outputs, channels // groups, kernel, kernel, seed=seed)
    w, half = w / np.float32(np.sqrt(channels // groups) * kernel), kernel // 2
    op = Conv(strides=(stride, stride), pads=(half,) * 4, groups=groups)
    return b.add(op, x, b.constant(w.astype(np.float32), f"w{seed}"))


def network(seed: int) -> Graph:
    """A few layers of a vision model, at random, of a batch, height and width that are open."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("net")
    channels = int(rng.choice([3, 16, 32]))
    sizes: list[Any] = [Var(s) if rng.random() < 0.8 else n for s, n in zip("nhw", (2, 21, 34))]
    x = b.input("x", tensor_type("float32", (sizes[0], channels, *sizes[1:])))
    for k in range(4):
        kind = rng.choice(["window", "strided", "pixel", "depthwise", "residual", "pool", "mean"])
        channels = x.shape[1]  # type: ignore[assignment]
        wide = int(rng.choice([16, 32, 48]))
        if kind == "window":
            x = conv(b, x, wide, 3, 1, 1, k)
        elif kind == "strided":
            x = conv(b, x, wide, int(rng.choice([1, 3, 5])), 2, 1, k)
        elif kind == "pixel":
            x = conv(b, x, wide, 1, 1, 1, k)
        elif kind == "depthwise":
            x = conv(b, x, channels, int(rng.choice([3, 5])), int(rng.choice([1, 2])), channels, k)
        elif kind == "residual":
            x = b.add(Add(), conv(b, x, channels, 3, 1, 1, k), x)
        else:
            pool = MaxPool if kind == "pool" else AveragePool
            x = b.add(pool((3, 3), strides=(2, 2), pads=(1,) * 4), x)
        x = b.add(Relu(), x)
    b.output(x, "y")
    return b.build()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(60 if metafunc.config.getoption("--full") else 5))


def test_random_networks_at_random_sizes(seed: int) -> None:
    graph = network(seed)
    executable = weft.compile(graph, f"llvm -threads={1 + seed % 2}", cache=False)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        drawn = (int(rng.integers(1, 4)), 0, int(rng.integers(1, 70)), int(rng.integers(1, 70)))
        shape = [d if isinstance(d, int) else drawn[k] for k, d in enumerate(graph.inputs[0].shape)]
        x = rng.standard_normal(shape).astype(np.float32)
        (got,) = executable.run({"x": x}).values()
        (want,) = evaluate(graph, {"x": x})
        assert got.shape == want.shape
        allowed = 3e-5 * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed, err_msg=str(shape))


def test_a_convolution_of_pixels_has_one_loop_over_them() -> None:
    """As with fixed sizes: rows of the picture follow one another."""
    b = GraphBuilder("group")
    x = b.input("x", tensor_type("float32", (1, 16, Var("h"), Var("w"))))
    y = b.add(Conv(), x, b.input("w", tensor_type("float32", (32, 16, 1, 1))))
    b.output(b.add(Relu(), y), "y")
    program = lower_group(b.build())
    blocks = [s for s in walk_stmts(program.body) if isinstance(s, Block)]
    assert [sum(i.kind == "spatial" for i in block.iters) for block in blocks] == [2, 2]  # channels and pixels
