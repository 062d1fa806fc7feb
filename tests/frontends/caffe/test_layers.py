"""Every layer, against OpenCV's reader of Caffe models where it agrees with Caffe, and against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.caffe.nets import Net, one, opencv

import weft
from weft.graph.evaluate import evaluate
from weft_caffe.registry import REGISTRY
from weft_testing.frontend import FrontendCase, check_frontend

R = np.random.default_rng(7)


def r(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def conv(**given: Any) -> str:
    return "convolution_param { " + " ".join(f"{k}: {v}" for k, v in given.items()) + " }"


def param(name: str, text: str) -> str:
    return f"{name}_param {{ {text} }}"


def swapped(parameters: str) -> Net:
    """Two parts in the other order."""
    return Net(
        f'layer {{ name: "s" type: "Slice" bottom: "x" top: "a" top: "b" {parameters} }}\n'
        'layer { name: "y" type: "Concat" bottom: "b" bottom: "a" top: "y" }',
        {"x": (2, 4, 7, 6)},
        {},
    )


CASES: dict[str, Net] = {
    "Convolution": one("Convolution", conv(num_output=6, kernel_size=3, pad=1, stride=2), [r(6, 4, 3, 3), r(6)]),
    "Convolution no bias": one("Convolution", conv(num_output=6, kernel_size=3, bias_term="false"), [r(6, 4, 3, 3)]),
    "Convolution groups": one("Convolution", conv(num_output=8, kernel_size=3, group=2), [r(8, 2, 3, 3), r(8)]),
    "Convolution sides": one(
        "Convolution",
        conv(num_output=2, kernel_h=3, kernel_w=1, pad_h=1, pad_w=0, stride_h=2, stride_w=1),
        [r(2, 4, 3, 1), r(2)],
    ),
    "Convolution dilated": one(
        "Convolution", conv(num_output=2, kernel_size=3, dilation=2, pad=2), [r(2, 4, 3, 3), r(2)]
    ),
    "Deconvolution": one("Deconvolution", conv(num_output=3, kernel_size=4, stride=2, pad=1), [r(4, 3, 4, 4), r(3)]),
    "Deconvolution groups": one(
        "Deconvolution", conv(num_output=4, kernel_size=4, stride=2, pad=1, group=4, bias_term="false"), [r(4, 1, 4, 4)]
    ),
    "InnerProduct": one("InnerProduct", param("inner_product", "num_output: 5"), [r(5, 168), r(5)]),
    "InnerProduct axis": one(
        "InnerProduct", param("inner_product", "num_output: 5 axis: 2 bias_term: false"), [r(5, 42)]
    ),
    "Pooling max": one("Pooling", param("pooling", "pool: MAX kernel_size: 3 stride: 2")),
    "Pooling max padded": one("Pooling", param("pooling", "pool: MAX kernel_size: 3 stride: 2 pad: 1")),
    "Pooling average": one("Pooling", param("pooling", "pool: AVE kernel_size: 3 stride: 2 pad: 1")),
    "Pooling average sides": one(
        "Pooling", param("pooling", "pool: AVE kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0")
    ),
    "Pooling global": one("Pooling", param("pooling", "pool: AVE global_pooling: true")),
    "Pooling global max": one("Pooling", param("pooling", "pool: MAX global_pooling: true")),
    "BatchNorm": one("BatchNorm", param("batch_norm", "eps: 0.001"), [r(4), abs(r(4)) + 1, [2.0]]),
    "Scale": one("Scale", param("scale", "bias_term: true"), [r(4), r(4)]),
    "Scale without bias": one("Scale", "", [r(4)]),
    "LRN": one("LRN", param("lrn", "local_size: 3 alpha: 0.1 beta: 0.75"), x=(2, 6, 3, 3)),
    "LRN within": one("LRN", param("lrn", "local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL")),
    "MVN": one("MVN"),
    "MVN mean": one("MVN", param("mvn", "normalize_variance: false across_channels: true")),
    "Normalize": one("Normalize", param("norm", "across_spatial: false channel_shared: false"), [r(4)]),
    "Softmax": one("Softmax"),
    "ReLU": one("ReLU"),
    "ReLU slope": one("ReLU", param("relu", "negative_slope: 0.1")),
    "PReLU": one("PReLU", "", [r(4)]),
    "PReLU shared": one("PReLU", param("prelu", "channel_shared: true"), [r(1)]),
    "ELU": one("ELU", param("elu", "alpha: 1")),
    "Sigmoid": one("Sigmoid"),
    "TanH": one("TanH"),
    "AbsVal": one("AbsVal"),
    "BNLL": one("BNLL"),
    "Power": one("Power", param("power", "power: 2 scale: 0.5 shift: 1")),
    "Exp": one("Exp", param("exp", "base: 2 scale: 0.5 shift: 0.25")),
    "Dropout": one("Dropout", param("dropout", "dropout_ratio: 0.3")),
    "Eltwise sum": one("Eltwise", param("eltwise", "operation: SUM coeff: 0.5 coeff: -2"), more=[(2, 4, 7, 6)]),
    "Eltwise product": one("Eltwise", param("eltwise", "operation: PROD"), more=[(2, 4, 7, 6)]),
    "Eltwise max": one("Eltwise", param("eltwise", "operation: MAX"), more=[(2, 4, 7, 6)]),
    "Concat": one("Concat", more=[(2, 3, 7, 6)]),
    "Concat axis": one("Concat", param("concat", "axis: 2"), more=[(2, 4, 2, 6)]),
    "Slice": swapped(param("slice", "axis: 1 slice_point: 1")),
    "Slice even": swapped(""),
    "Flatten": one("Flatten", param("flatten", "axis: 1")),
    "Flatten part": one("Flatten", param("flatten", "axis: 2 end_axis: 3")),
    "Reshape": one("Reshape", param("reshape", "shape { dim: 0 dim: -1 dim: 3 }")),
    "Reshape part": one("Reshape", param("reshape", "shape { dim: 2 dim: 2 } axis: 1 num_axes: 1")),
    "Permute": one("Permute", param("permute", "order: 0 order: 2 order: 3 order: 1")),
    "Crop": one("Crop", param("crop", "axis: 2 offset: 1 offset: 2"), more=[(2, 4, 4, 3)]),
}


def inputs(net: Net) -> dict[str, Any]:
    generator = np.random.default_rng(3)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in net.inputs.items()}


def outputs(net: Net) -> list[str]:
    return [f"y{k or ''}" for k in range(net.layers.count('top: "y'))]


@pytest.mark.needs("cv2")
@pytest.mark.parametrize("name", CASES)
def test_layers_agree_with_opencv(name: str, tmp_path: Path) -> None:
    net = CASES[name]
    path = net.save(tmp_path)
    graph = weft.load(path)
    given = inputs(net)
    wanted = opencv(path, given, ["y"])
    for found, want in zip(evaluate(graph, given), wanted, strict=True):
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def reference(name: str) -> Callable[..., Any]:
    x4 = (slice(None), slice(None))
    return {
        "LRN k": lambda x: (
            x / (2 + 0.1 / 3 * sum(np.pad(x * x, ((0, 0), (1, 1)))[:, k : k + 6] for k in range(3))) ** 0.75
        ),
        "Log": lambda x: np.log(0.5 * np.abs(x) + 2) / np.log(3.0),
        "Threshold": lambda x: (x > 0.5).astype(np.float32),
        "Clip": lambda x: np.clip(x, -0.5, 0.75),
        "Swish": lambda x: x / (1 + np.exp(-2 * x)),
        "ReLU6": lambda x: np.clip(x * 1, 0, 6),
        "Dropout unscaled": lambda x: x * 0.75,
        "Bias": lambda x: x + BIAS[:, None, None],
        "Bias of a blob": lambda x, b: x + b[None, :, :, None],
        "Scale of a blob": lambda x, s: x * s[:, :, None, None] + BIAS24[:, :, None, None],
        "Scale of all": lambda x: x * SCALE[0],
        "Tile": lambda x: np.tile(x, (1, 1, 3, 1)),
        "Reduction": lambda x: 0.5 * np.abs(x).sum(axis=(2, 3)),
        "Reduction squares": lambda x: (x * x).sum(),
        "Reduction mean": lambda x: x.mean(axis=(1, 2, 3)),
        "ArgMax": lambda x: x.reshape(2, 1, -1).argmax(-1)[..., None].astype(np.float32),
        "ArgMax pairs": lambda x: np.stack(
            [np.argsort(-x.reshape(2, -1))[:, :2], -np.sort(-x.reshape(2, -1))[:, :2]], 1
        ),
        "ArgMax axis": lambda x: np.argsort(-x, axis=1)[x4][:, :2].astype(np.float32),
        "ArgMax values": lambda x: -np.sort(-x, axis=1)[:, :1],
        "Split": lambda x: x,
        "Embed": lambda x: WORDS[x.astype(int)] + BIAS5,
    }[name]


BIAS, BIAS5, BIAS24, SCALE, WORDS = r(4), r(5), r(2, 4), r(1), r(6, 5)
OWN: dict[str, Net] = {
    "LRN k": one("LRN", param("lrn", "local_size: 3 alpha: 0.1 beta: 0.75 k: 2"), x=(2, 6)),
    "Log": Net(
        'layer { name: "a" type: "AbsVal" bottom: "x" top: "a" }\n'
        'layer { name: "l" type: "Log" bottom: "a" top: "y" log_param { base: 3 scale: 0.5 shift: 2 } }',
        {"x": (2, 4, 7, 6)},
        {},
    ),
    "Threshold": one("Threshold", param("threshold", "threshold: 0.5")),
    "Clip": one("Clip", param("clip", "min: -0.5 max: 0.75")),
    "Swish": one("Swish", param("swish", "beta: 2")),
    "ReLU6": one("ReLU6"),
    "Dropout unscaled": one("Dropout", param("dropout", "dropout_ratio: 0.25 scale_train: false")),
    "Bias": one("Bias", "", [BIAS]),
    "Bias of a blob": one("Bias", "", more=[(4, 7)]),
    "Scale of a blob": one("Scale", param("scale", "axis: 0 bias_term: true"), [BIAS24], more=[(2, 4)]),
    "Scale of all": one("Scale", param("scale", "num_axes: 0"), [SCALE]),
    "Tile": one("Tile", param("tile", "axis: 2 tiles: 3")),
    "Reduction": one("Reduction", param("reduction", "operation: ASUM axis: 2 coeff: 0.5")),
    "Reduction squares": one("Reduction", param("reduction", "operation: SUMSQ")),
    "Reduction mean": one("Reduction", param("reduction", "operation: MEAN axis: 1")),
    "ArgMax": one("ArgMax"),
    "ArgMax pairs": one("ArgMax", param("argmax", "out_max_val: true top_k: 2")),
    "ArgMax axis": one("ArgMax", param("argmax", "axis: 1 top_k: 2")),
    "ArgMax values": one("ArgMax", param("argmax", "axis: 1 out_max_val: true")),
    "Split": one("Split", tops=2),
    "Embed": one("Embed", param("embed", "num_output: 5 input_dim: 6"), [WORDS, BIAS5], x=(2, 3)),
}


@pytest.mark.needs("weft_llvm")
@pytest.mark.parametrize("name", OWN)
def test_layers_agree_with_what_caffe_documents(name: str, tmp_path: Path) -> None:
    net = OWN[name]
    given = inputs(net)
    if name == "Embed":
        given = {"x": np.array([[0, 5, 2], [1, 1, 4]], np.float32)}
    want = np.asarray(reference(name)(*given.values()), np.float32)
    case = FrontendCase(net.save(tmp_path), given, lambda _: dict.fromkeys(outputs(net), want))
    check_frontend(case)


def test_every_layer_is_tested() -> None:
    tested = {name.split()[0] for name in (*CASES, *OWN)} | {"Silence", "ConvolutionDepthwise", "DepthwiseConvolution"}
    assert {name for _, name in REGISTRY.supported()} <= tested


def test_depthwise_convolutions_of_forks_and_silence(tmp_path: Path) -> None:
    w = r(4, 1, 3, 3)
    text = conv(num_output=4, kernel_size=3, bias_term="false")
    like = evaluate(weft.load(one("Convolution", text[:-1] + "group: 4 }", [w]).save(tmp_path)), inputs(one("ReLU")))
    for kind in ("ConvolutionDepthwise", "DepthwiseConvolution"):
        found = evaluate(weft.load(one(kind, text, [w]).save(tmp_path)), inputs(one("ReLU")))
        np.testing.assert_array_equal(found[0], like[0])
    net = Net(
        'layer { name: "s" type: "Slice" bottom: "x" top: "y" top: "z" }\n'
        'layer { name: "n" type: "Silence" bottom: "z" }',
        {"x": (2, 4)}, {},
    )  # fmt: skip
    assert weft.load(net.save(tmp_path)).output_names == ["y"]
