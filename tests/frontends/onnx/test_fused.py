"""Fused operators of com.microsoft, against ONNX Runtime; those that it has on GPUs only, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.contrib import contrib_model, feed, same_as_onnxruntime

import weft
from weft.errors import FrontendError, UnsupportedError

F = np.float32
random = np.random.default_rng(5)


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(F)


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (((2, 3, 4), (2, 4, 5)), {}),
        (((2, 4, 3), (2, 4, 5)), {"transA": 1, "alpha": 0.125}),
        (((3, 4), (5, 4)), {"transB": 1, "alpha": 2.0}),
        (((2, 3, 4), (2, 5, 4)), {"transA": 0, "transB": 1}),
        (((3, 2, 4), (2, 4, 5)), {"transBatchA": 1}),
        (((2, 3, 6, 4), (3, 6, 4, 5)), {"transBatchA": 1}),
        (((3, 6, 2, 4), (5, 3, 6, 4)), {"transB": 1, "transBatchB": 1}),
        (((2, 5, 3, 4), (5, 3, 2, 6)), {"transBatchA": 1, "transA": 1, "transBatchB": 0}),
        (((4,), (4, 5)), {}),
    ],
)
def test_fused_matmul(shapes: Any, attributes: Any) -> None:
    same_as_onnxruntime("FusedMatMul", [floats(*s) for s in shapes], **attributes)


def test_fused_matmul_of_an_open_batch() -> None:
    w = floats(5, 4)
    same_as_onnxruntime(
        "FusedMatMul", [floats(2, 3, 4), w], constants=[1], dims={0: ["n", "s", 4]}, transB=1, alpha=0.5,
        further=[[floats(1, 7, 4), w]],
    )  # fmt: skip


ACTIVATIONS: list[tuple[str, tuple[float, ...]]] = [
    ("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("LeakyRelu", (0.3,)), ("Clip", (-0.5, 0.75)),
    ("HardSigmoid", (0.3, 0.4)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), ACTIVATIONS[:4] + ACTIVATIONS[5:])
def test_fused_gemm(name: str, given: tuple[float, ...]) -> None:
    attributes: dict[str, Any] = dict(zip(("activation_alpha", "activation_beta"), given))
    same_as_onnxruntime(
        "FusedGemm", [floats(3, 4), floats(5, 4), floats(5)], transB=1, alpha=0.5, beta=2.0, activation=name,
        **attributes,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "given"), ACTIVATIONS)
def test_fused_conv(name: str, given: tuple[float, ...]) -> None:
    attributes: dict[str, Any] = {"activation_params": list(given)} if given else {}
    same_as_onnxruntime(
        "FusedConv", [floats(2, 4, 6, 7), floats(6, 2, 3, 3), floats(6)], pads=[1, 1, 1, 1], strides=[2, 1], group=2,
        kernel_shape=[3, 3], activation=name, **attributes,
    )  # fmt: skip


def test_fused_conv_with_a_sum() -> None:
    inputs = [floats(2, 4, 6, 7), floats(6, 4, 3, 3), floats(6), floats(2, 6, 4, 5)]
    same_as_onnxruntime("FusedConv", inputs, kernel_shape=[3, 3], activation="Relu")


def test_fused_conv_with_an_activation_that_it_has_not() -> None:
    proto = contrib_model("FusedConv", [floats(1, 1, 3, 3), floats(1, 1, 1, 1)], activation="Mish")
    with pytest.raises(UnsupportedError, match="FusedConv: activation 'Mish': 'n'"):
        weft.load(proto)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Gelu", [(3, 5)], {}),
        ("BiasGelu", [(2, 3, 5), (5,)], {}),
        ("FastGelu", [(2, 3, 5)], {}),
        ("FastGelu", [(2, 3, 5), (5,)], {}),
        ("QuickGelu", [(3, 5)], {}),
        ("QuickGelu", [(3, 5)], {"alpha": 1.0}),
        ("SimplifiedLayerNormalization", [(2, 3, 8), (8,)], {"epsilon": 1e-3}),
        ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,)], {}),
        ("SkipLayerNormalization", [(2, 3, 8), (1, 3, 8), (8,)], {"epsilon": 1e-2}),
        ("SkipLayerNormalization", [(2, 3, 8), (3, 8), (8,), (8,), (8,)], {}),
        ("SkipSimplifiedLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,)], {}),
    ],
)
def test_one_operator(op: str, shapes: Any, attributes: Any) -> None:
    domain = "" if op.startswith("Simplified") else "com.microsoft"
    same_as_onnxruntime(op, [floats(*s) for s in shapes], domain=domain, tolerance=1e-4, **attributes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_before_a_normalisation(op: str, bias: bool) -> None:
    inputs = [floats(2, 3, 8), floats(2, 3, 8), floats(8)]
    inputs += [floats(8)] if op == "SkipLayerNormalization" else []
    inputs += [floats(8)] if bias else []
    dims = {0: ["n", "s", 8], 1: ["n", "s", 8]}
    more = [floats(1, 5, 8), floats(1, 5, 8), *inputs[2:]]
    same_as_onnxruntime(op, inputs, outputs=4, asked=[0, 3], dims=dims, further=[more], tolerance=1e-4)


@pytest.mark.parametrize("k", [1, 2])
def test_moments_of_a_normalisation_are_refused(k: int) -> None:
    inputs = [floats(2, 3, 8), floats(2, 3, 8), floats(8)]
    proto = contrib_model("SkipLayerNormalization", inputs, outputs=4, asked=[0, k])
    with pytest.raises(UnsupportedError, match=f"SkipLayerNormalization: output {k}, 'y{k}': 'n'"):
        weft.load(proto)


def test_attributes_that_are_not_known_are_refused() -> None:
    proto = contrib_model("QuickGelu", [floats(2)], beta=2.0)
    with pytest.raises(UnsupportedError, match="QuickGelu: attribute 'beta': 'n'"):
        weft.load(proto)


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int) -> None:
    same_as_onnxruntime("Trilu", [floats(2, 4, 5), np.array(1, np.int64)], upper=upper)


IDS, SEGMENTS = np.array([[1, 4, 0], [2, 2, 5]], np.int32), np.array([[0, 0, 1], [1, 0, 1]], np.int32)
TABLES = [floats(6, 8), floats(5, 8), floats(2, 8), floats(8), floats(8)]


@pytest.mark.parametrize(
    "inputs",
    [
        [IDS, SEGMENTS, *TABLES],
        [IDS, None, TABLES[0], TABLES[1], None, *TABLES[3:]],
        [IDS, SEGMENTS, *TABLES, np.array([[1, 1, 0], [1, 1, 1]], np.int32)],
        [IDS, SEGMENTS, *TABLES, None, np.array([[2, 1, 4], [0, 0, 3]], np.int32)],
        [IDS, SEGMENTS, *TABLES, None, np.array([[2, 1, 4]], np.int32)],
    ],
)
def test_embed_layer_normalization(inputs: Any) -> None:
    same_as_onnxruntime("EmbedLayerNormalization", inputs, outputs=2, tolerance=1e-4)
    same_as_onnxruntime("EmbedLayerNormalization", inputs, outputs=3, tolerance=1e-4)


@pytest.mark.parametrize("mask", [False, True])
def test_quantised_embed_layer_normalization(mask: bool) -> None:
    tables = [random.integers(0, 256, t.shape).astype(np.uint8) for t in TABLES]
    scales = [np.array(s, F) for s in (0.02, 0.03, 0.01, 0.02, 0.005)]
    zeros = [np.array(z, np.uint8) for z in (128, 120, 3, 100, 127)]
    given = np.array([[1, 1, 0], [1, 1, 1]], np.int32) if mask else None
    inputs = [IDS, SEGMENTS, *tables, given, *scales, *zeros]
    same_as_onnxruntime("QEmbedLayerNormalization", inputs, outputs=2, tolerance=1e-4)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric: str) -> None:
    a, b = floats(5, 4), floats(7, 4)
    more = [floats(2, 4), b]
    same_as_onnxruntime("CDist", [a, b], metric=metric, dims={0: ["m", 4]}, further=[more], tolerance=1e-4)


def test_a_distance_that_it_has_not() -> None:
    proto = contrib_model("CDist", [floats(2, 3), floats(2, 3)], metric="cosine")
    with pytest.raises(FrontendError, match="attribute 'metric' is 'cosine', expected one of euclidean, sqeuclidean"):
        weft.load(proto)


def test_older_names() -> None:
    same_as_onnxruntime("GatherND", [floats(3, 4), np.array([[1, 2], [0, 3]], np.int64)])
    grid = random.uniform(-1, 1, (2, 3, 5, 2)).astype(F)
    for mode in ("bilinear", "nearest", "bicubic"):
        same_as_onnxruntime("GridSample", [floats(2, 3, 6, 6), grid], mode=mode, align_corners=1, tolerance=1e-4)
    a, b = (random.integers(-300, 300, s).astype(np.int16) for s in ((3, 4), (4, 2)))
    same_as_onnxruntime("MatMulInteger16", [a, b])


# -- what ONNX Runtime has on GPUs only -------------------------------------------------------------------------------


def computed(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> list[Any]:
    proto = contrib_model(op, inputs, outputs=outputs, **attributes)
    found = weft.compile(proto).run(feed(inputs))
    return [found[o.name] for o in proto.graph.output]


def gelu(x: Any) -> Any:
    import math

    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def test_bias_split_gelu() -> None:
    x, bias = floats(2, 3, 8), floats(8)
    left, right = np.split((x + bias).astype(np.float64), 2, -1)
    np.testing.assert_allclose(computed("BiasSplitGelu", [x, bias])[0], left * gelu(right), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "shape"), [(3, (2, 1, 1, 5)), (2, (4, 5))])
def test_bias_softmax(axis: int, shape: tuple[int, ...]) -> None:
    x, bias = floats(2, 3, 4, 5), floats(*shape)
    exps = np.exp((x + bias).astype(np.float64)).reshape(*x.shape[:axis], -1)
    wanted = (exps / exps.sum(-1, keepdims=True)).reshape(x.shape)
    (y,) = computed("BiasSoftmax", [x, bias], axis=axis, is_inner_broadcast=int(axis == 3))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-7)


def test_bias_add() -> None:
    x, bias, skip = floats(2, 3, 8), floats(8), floats(2, 3, 8)
    np.testing.assert_allclose(computed("BiasAdd", [x, bias, skip])[0], x + bias + skip, rtol=1e-6)


def normalised(x: Any, groups: int, scale: Any, bias: Any, silu: bool) -> Any:
    """Group normalisation of x [n, h, w, c]."""
    n, h, w, channels = x.shape
    y = x.astype(np.float64).reshape(n, h * w, groups, channels // groups)
    y = (y - y.mean((1, 3), keepdims=True)) / np.sqrt(y.var((1, 3), keepdims=True) + 1e-5)
    y = y.reshape(x.shape) * scale + bias
    return y / (1 + np.exp(-y)) if silu else y


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_group_norm(last: int, silu: int) -> None:
    x, scale, bias = floats(2, 3, 5, 8), floats(8), floats(8)
    given = x if last else x.transpose(0, 3, 1, 2).copy()
    (y,) = computed("GroupNorm", [given, scale, bias], groups=4, activation=silu, channels_last=last)
    y = y if last else y.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(y, normalised(x, 4, scale, bias, bool(silu)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("skip", [(2, 3, 5, 8), (2, 1, 1, 8), (2, 8)])
def test_skip_group_norm(skip: tuple[int, ...]) -> None:
    x, scale, shift, added, bias = floats(2, 3, 5, 8), floats(8), floats(8), floats(*skip), floats(8)
    y, total = computed("SkipGroupNorm", [x, scale, shift, added, bias], 2, groups=2, activation=1)
    wanted = x + bias + (added[:, None, None] if added.ndim == 2 else added)
    np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, normalised(wanted, 2, scale, shift, True), rtol=1e-4, atol=1e-5)


def test_group_norm_with_an_activation_of_another_number() -> None:
    proto = contrib_model("GroupNorm", [floats(1, 2, 2, 4), floats(4), floats(4)], groups=2, activation=3)
    with pytest.raises(UnsupportedError, match="GroupNorm: attribute 'activation' = 3"):
        weft.load(proto)


def test_bias_dropout_of_inference() -> None:
    x, bias, residual = floats(2, 3, 8), floats(8), floats(2, 3, 8)
    (y,) = computed("BiasDropout", [x, bias, residual, np.array(0.5, F)])
    np.testing.assert_allclose(y, x + bias + residual, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="BiasDropout: training_mode"):
        weft.load(contrib_model("BiasDropout", [x, bias, None, None, np.array(True)], constants=[4]))
