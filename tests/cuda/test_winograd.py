"""Convolutions by Winograd's algorithm as CUDA has them: NVRTC takes their texts, and float32 stays float32 unless TF32
is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cuda.fake import FakeApi

import weft
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft_ops import Add, Conv, Relu
from weft_ops.winograd import WinogradConv, transform_weights


def layer(batch: int, channels: int, size: int) -> Graph:
    rng = np.random.default_rng(0)
    g = GraphBuilder("layer")
    x = g.input("x", tensor_type("float32", (batch, channels, size, size)))
    y = g.add(
        Conv(pads=(1, 1, 1, 1)), x, g.constant(rng.standard_normal((channels, channels, 3, 3)).astype(np.float32), "w")
    )
    g.output(g.add(Relu(), g.add(Add(), y, x)), "y")
    return g.build()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_takes_large_ones(arch: str) -> None:
    for batch, channels, size in ((1, 64, 56), (8, 256, 14)):
        exe = weft.compile(layer(batch, channels, size), target=f"cuda -arch={arch}", cache=False)
        (section,) = exe.manifest.sections
        assert exe._code[section].count(b"\x7fELF") == 3  # both transforms and the product


@pytest.mark.parametrize("tf32", [False, True])
def test_products_are_rounded_only_where_it_is_asked_for(api: FakeApi, tf32: bool) -> None:
    rng = np.random.default_rng(0)
    taps, x = (
        rng.standard_normal((32, 48, 3, 3)).astype(np.float32),
        rng.standard_normal((2, 48, 7, 9)).astype(np.float32),
    )
    g = GraphBuilder("transformed")
    pads = (1, 1, 1, 1)
    g.output(
        g.add(
            WinogradConv(2, pads),
            g.input("x", tensor_type("float32", x.shape)),
            g.constant(transform_weights(taps, 2), "u"),
        ),
        "y",
    )
    exe = weft.compile(g.build(), target=f"cuda -arch=sm_90{' -tf32' if tf32 else ''}", cache=False)
    got, want = (
        exe.run({"x": x})["y"],
        np.asarray(Conv(pads=pads).reference(x.astype(np.float64), taps.astype(np.float64))),
    )
    assert any("weft_mma_tf32(" in text for text in api.modules) == tf32
    assert np.abs(got - want).max() <= (2e-3 if tf32 else 5e-6) * np.abs(want).max()
