"""Every kind of layer against the numpy reference: the graph's meaning, and a network of all of them compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.darknet.reference import ACTIVATIONS, Layer, Network, cfg

import weft
from weft.graph.evaluate import evaluate
from weft_darknet.kinds import LAYERS
from weft_darknet.layers import ACTIVATIONS as KNOWN_ACTIVATIONS

CONV: Layer = ("convolutional", {"filters": 6, "size": 1, "activation": "linear"})

CASES: dict[str, tuple[Any, ...]] = {
    "conv": ((3, 7, 6), ("convolutional", {"filters": 4, "size": 3, "pad": 1, "activation": "leaky"})),
    "conv_defaults": ((3, 4, 4), ("convolutional", {})),
    "conv_padding": (
        (3, 7, 6),
        ("convolutional", {"filters": 2, "size": 3, "padding": 2, "stride": 2, "activation": "linear"}),
    ),
    "conv_pad_wins": ((2, 7, 7), ("convolutional", {"filters": 2, "size": 5, "padding": 1, "pad": 1})),
    "conv_even_kernel": ((2, 7, 7), ("convolutional", {"filters": 2, "size": 4, "pad": 1})),
    "conv_strides": ((2, 9, 8), ("convolutional", {"filters": 3, "size": 3, "stride_x": 2, "stride_y": 3, "pad": 1})),
    "conv_one_stride": ((2, 9, 8), ("convolutional", {"filters": 3, "size": 3, "stride": 2, "stride_x": 1, "pad": 1})),
    "conv_groups": (
        (6, 5, 5),
        ("convolutional", {"filters": 4, "size": 3, "groups": 2, "pad": 1, "batch_normalize": 1}),
    ),
    "conv_depthwise": ((5, 6, 6), ("convolutional", {"filters": 5, "size": 3, "groups": 5, "stride": 2, "pad": 1})),
    "conv_dilation": ((2, 9, 9), ("convolutional", {"filters": 3, "size": 3, "dilation": 2, "pad": 1})),
    "conv_dilation_strided": (
        (2, 9, 9),
        ("convolutional", {"filters": 3, "size": 3, "dilation": 2, "stride": 2, "pad": 1}),
    ),
    "conv_dilated_points": ((2, 4, 4), ("convolutional", {"filters": 3, "size": 1, "dilation": 3, "padding": 1})),
    "conv_cross_norm": ((3, 5, 5), ("convolutional", {"filters": 4, "size": 3, "cbn": 1})),
    "conv_norm": (
        (3, 5, 5),
        ("convolutional", {"filters": 4, "size": 3, "pad": 1, "batch_normalize": 1, "activation": "mish"}),
    ),
    "connected": ((3, 2, 4), ("connected", {"output": 7, "activation": "relu"})),
    "connected_norm": (
        (3, 2, 4),
        ("connected", {"output": 7, "batch_normalize": 1, "activation": "linear"}),
        ("connected", {"output": 2}),
    ),
    "local": ((3, 6, 5), ("local", {"filters": 4, "size": 3, "pad": 1, "activation": "leaky"})),
    "local_strided": ((2, 7, 9), ("local", {"filters": 3, "size": 3, "stride": 2, "activation": "linear"})),
    "batchnorm": ((4, 3, 5), ("batchnorm", {})),
    "activation": (
        (4, 3, 5),
        ("activation", {"activation": "tanh"}),
        ("dropout", {"probability": 0.9}),
        ("cost", {"type": "sse", "scale": 2}),
    ),
    "maxpool": ((3, 8, 8), ("maxpool", {"size": 2, "stride": 2})),
    "maxpool_odd": ((3, 7, 9), ("maxpool", {"size": 2, "stride": 2})),
    "maxpool_same": ((3, 7, 6), ("maxpool", {"size": 2, "stride": 1})),
    "maxpool_spp": ((3, 7, 6), ("maxpool", {"size": 5, "stride": 1})),
    "maxpool_size_is_stride": ((3, 8, 9), ("maxpool", {"stride": 3})),
    "maxpool_padding": ((3, 8, 9), ("maxpool", {"size": 3, "stride": 2, "padding": 0})),
    "maxpool_strides": ((3, 8, 9), ("maxpool", {"size": 3, "stride_x": 2, "stride_y": 1, "padding": 3})),
    "local_avgpool": ((3, 8, 9), ("local_avgpool", {"size": 3, "stride": 2})),
    "avgpool": ((5, 3, 4), ("avgpool", {})),
    "softmax": ((6, 2, 2), ("softmax", {"groups": 3, "temperature": 0.5})),
    "softmax_defaults": ((6, 1, 1), ("softmax", {})),
    "upsample": ((3, 4, 5), ("upsample", {"stride": 3, "scale": 0.5})),
    "upsample_defaults": ((3, 4, 5), ("upsample", {})),
    "reorg": ((8, 4, 6), ("reorg", {"stride": 2})),
    "reorg_thrice": ((9, 6, 9), ("reorg", {"stride": 3})),
    "reorg_reverse": ((8, 4, 6), ("reorg", {"stride": 2, "reverse": 1})),
    "reorg3d": ((3, 4, 6), ("reorg3d", {"stride": 2})),
    "route": ((4, 3, 3), CONV, CONV, ("route", {"layers": [-1, 0]})),
    "route_one": ((4, 3, 3), CONV, CONV, ("route", {"layers": [-2]})),
    "route_groups": (
        (4, 3, 3),
        CONV,
        ("route", {"layers": [-1], "groups": 2, "group_id": 1}),
        ("route", {"layers": [0, -1], "groups": 3, "group_id": 1}),
    ),
    "shortcut": ((6, 3, 3), CONV, CONV, CONV, ("shortcut", {"from": [-2, 0], "activation": "leaky"})),
    "shortcut_fewer": ((6, 3, 3), ("convolutional", {"filters": 4}), CONV, ("shortcut", {"from": [-2]})),
    "shortcut_more": ((6, 3, 3), ("convolutional", {"filters": 9}), CONV, ("shortcut", {"from": [0]})),
    "shortcut_strided": (
        (6, 8, 4),
        CONV,
        ("convolutional", {"filters": 8, "stride": 2, "size": 3, "pad": 1}),
        ("shortcut", {"from": [-2]}),
    ),
    "scale_channels": ((4, 3, 5), CONV, ("avgpool", {}), ("scale_channels", {"from": [-2], "activation": "relu6"})),
    "scale_places": (
        (4, 3, 5),
        CONV,
        ("convolutional", {"filters": 1}),
        ("scale_channels", {"from": [0], "scale_wh": 1}),
    ),
    "sam": ((6, 3, 5), CONV, CONV, ("sam", {"from": [-2], "activation": "linear"})),
    "yolo": (
        (3, 4, 5),
        ("convolutional", {"filters": 16, "activation": "linear"}),
        ("yolo", {"mask": [0, 2], "num": 3, "classes": 3, "anchors": [1, 2, 3]}),
    ),
    "yolo_scaled": ((14, 4, 5), ("yolo", {"num": 2, "classes": 2, "scale_x_y": 1.1})),
    "yolo_new_coords": ((14, 4, 5), ("yolo", {"num": 2, "classes": 2, "scale_x_y": 2.0, "new_coords": 1})),
    "region": ((16, 3, 3), ("region", {"num": 2, "classes": 3, "softmax": 1})),
    "region_logistic": ((27, 3, 3), ("region", {"num": 3, "classes": 2, "coords": 6})),
    "region_points": ((10, 3, 3), ("region", {"num": 2, "classes": 2, "coords": 2})),
}


def case(name: str) -> tuple[str, Network, np.ndarray[Any, Any]]:
    size, *layers = CASES[name]
    x = np.random.default_rng(len(name)).uniform(-3, 3, (2, *size)).astype(np.float32)
    return cfg(size, *layers), Network(x, *layers), x


@pytest.mark.parametrize("name", CASES)
def test_layer_means_what_darknet_computes(name: str) -> None:
    text, network, x = case(name)
    graph = weft.load(text.encode(), weights=network.weights)
    assert str(graph.inputs[0].type) == f"float32[batch, {x.shape[1]}, {x.shape[2]}, {x.shape[3]}]"
    (found,) = evaluate(graph, [x])
    np.testing.assert_allclose(found, network.outputs[-1], rtol=2e-5, atol=2e-5)


def test_every_kind_has_a_case() -> None:
    kinds = {kind for _, *layers in CASES.values() for kind, _ in layers}
    aliases = {"conv", "conn", "max", "local_avg", "avg", "soft", "empty"}
    recurrent = {"rnn", "crnn", "gru", "lstm", "conv_lstm"}  # in test_recurrent.py
    assert kinds | aliases | recurrent | {"net", "network"} == set(LAYERS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    x = np.linspace(-8, 8, 2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    layer = ("activation", {"activation": name})
    graph = weft.load(cfg(x.shape[1:], layer).encode(), weights=Network(x, layer).weights)
    np.testing.assert_allclose(evaluate(graph, [x])[0], Network(x, layer).x, rtol=1e-5, atol=1e-5)


def test_every_activation_has_a_formula() -> None:
    assert set(ACTIVATIONS) == set(KNOWN_ACTIVATIONS)


@pytest.mark.parametrize(
    "alias,kind",
    [("conv", "convolutional"), ("max", "maxpool"), ("avg", "avgpool"), ("soft", "softmax"), ("conn", "connected")],
)
def test_short_names(alias: str, kind: str) -> None:
    assert LAYERS[alias] is LAYERS[kind]


# Compiled: those that bring an operator, or a way of calling one, of their own.
COMPILED = [
    "conv_padding", "conv_dilation_strided", "conv_groups", "connected_norm", "local", "batchnorm", "maxpool_strides",
    "local_avgpool", "softmax", "reorg",
    "reorg_reverse", "reorg3d", "route_groups", "shortcut_fewer", "shortcut_strided", "scale_channels", "yolo_scaled",
    "region", "region_logistic",
]  # fmt: skip


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layer(name: str) -> None:
    text, network, x = case(name)
    exe = weft.compile(weft.load(text.encode(), weights=network.weights), target="llvm -threads=1", cache=False)
    (found,) = exe.run({"x": x}).values()
    np.testing.assert_allclose(found, network.outputs[-1], rtol=1e-4, atol=1e-4)
    (one,) = exe.run({"x": x[:1]}).values()  # the batch is symbolic
    np.testing.assert_array_equal(one.shape, (1, *found.shape[1:]))
    np.testing.assert_allclose(one, network.outputs[-1][:1], rtol=1e-4, atol=1e-4)
