"""Quantised operators, equal to the bit to LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite.models import Scale, one_op
from tests.frontends.tflite.oracle import ONLY_BUILT_IN, answered

from weft_testing.frontend import FrontendCase, check_frontend

pytestmark = pytest.mark.needs("ai_edge_litert")
RNG = np.random.default_rng(11)


def q(*shape: int, dtype: Any = np.int8) -> Any:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(*shape: int) -> list[Any]:
    return [RNG.integers(-127, 128, shape).astype(np.int8)]


def bias(count: int, dtype: Any = np.int32) -> list[Any]:
    return [RNG.integers(-3000, 3000, count).astype(dtype)]


def some(count: int) -> Any:
    return RNG.uniform(0.005, 0.05, count).astype(np.float32)


def out(*shape: int, scale: Scale, type: str = "int8") -> dict[str, Any]:
    return {"shape": shape, "type": type, "scale": scale}


CONV = {"padding": 0, "stride_w": 1, "stride_h": 1}
POOL = {"padding": 0, "stride_w": 2, "stride_h": 2, "filter_width": 3, "filter_height": 3}
X = Scale(0.04, 3)
CHANNELS = np.float32([0.01, 0.021, 0.034, 0.009, 0.05])
Case = tuple[str, Sequence[Any], Sequence[Any], Mapping[int, Scale], dict[str, Any]]


def conv(name: str, channels: int, activation: int, kernel: tuple[int, ...], axis: int, **more: Any) -> Case:
    scales = some(channels)
    x, w = q(2, 7, 8, 6), weights(*kernel)
    s = {0: X, 1: Scale(scales, 0, axis), 2: Scale(0.04 * scales, 0)}
    result = out(2, 7, 8, channels, scale=Scale(0.3, -7))
    return name, [x, w, bias(channels)], [result], s, {**CONV, "fused_activation_function": activation, **more}


def dense(activation: int, per_channel: bool) -> Case:
    scales = some(9) if per_channel else some(1)
    s = {0: X, 1: Scale(scales, 0, 0), 2: Scale(0.04 * scales, 0)}
    result = out(4, 9, scale=Scale(0.3, 5))
    return (
        "FULLY_CONNECTED",
        [q(4, 21), weights(9, 21), bias(9)],
        [result],
        s,
        {"fused_activation_function": activation},
    )


CASES: list[Case] = [
    *(conv("CONV_2D", 5, activation, (5, 3, 3, 6), 0) for activation in range(4)),
    conv("CONV_2D", 5, 0, (5, 3, 3, 6), 0, stride_w=2, stride_h=3),
    conv("CONV_2D", 8, 1, (8, 3, 3, 6), 0, dilation_w_factor=2),
    conv("DEPTHWISE_CONV_2D", 6, 3, (1, 3, 3, 6), 3, depth_multiplier=1),
    conv("DEPTHWISE_CONV_2D", 12, 0, (1, 3, 3, 12), 3, depth_multiplier=2),
    *(dense(activation, channels) for activation in (0, 1) for channels in (False, True)),
    *(
        (name, [q(2, 5, 6), q(5, 1)], [out(2, 5, 6, scale=Scale(y, -9))], {0: X, 1: Scale(0.011, -20)}, fused)
        for name in ("ADD", "SUB", "MUL")
        for y in (0.013, 0.07)
        for fused in ({"fused_activation_function": 0}, {"fused_activation_function": 1})
    ),
    ("MAX_POOL_2D", [q(1, 7, 8, 3)], [out(1, 4, 4, 3, scale=X)], {0: X}, {**POOL, "fused_activation_function": 1}),
    ("AVERAGE_POOL_2D", [q(1, 7, 8, 3)], [out(1, 4, 4, 3, scale=X)], {0: X}, POOL),
    (
        "AVERAGE_POOL_2D", [q(1, 7, 8, 3)], [out(1, 1, 1, 3, scale=X)], {0: X},
        {"padding": 1, "stride_w": 8, "stride_h": 7, "filter_width": 8, "filter_height": 7},
    ),
    *((name, [q(256)], [out(256, scale=Scale(1 / 256, -128))], {0: Scale(0.09, 17)}, {}) for name in ("LOGISTIC",)),
    ("TANH", [q(256)], [out(256, scale=Scale(1 / 128, 0))], {0: Scale(0.03, -5)}, {}),
    ("ELU", [q(256)], [out(256, scale=Scale(0.03, -90))], {0: Scale(0.03, -5)}, {}),
    ("EXP", [q(256)], [out(256, scale=Scale(0.3, -128))], {0: Scale(0.03, -5)}, {}),
    *(
        (name, [q(256)], [out(256, scale=Scale(0.05, -100))], {0: Scale(0.07, -5)}, {})
        for name in ("RELU", "RELU6", "RELU_N1_TO_1")
    ),
    ("LEAKY_RELU", [q(256)], [out(256, scale=Scale(0.05, -10))], {0: Scale(0.07, -5)}, {"alpha": 0.3}),
    ("SOFTMAX", [q(40, 13)], [out(40, 13, scale=Scale(1 / 256, -128))], {0: Scale(0.06, 9)}, {"beta": 1.0}),
    ("PAD", [q(2, 3), [np.int32([[1, 2], [0, 1]])]], [out(5, 4, scale=X)], {0: X}, {}),
    ("SPACE_TO_BATCH_ND", [q(1, 4, 5, 2), [np.int32([2, 3])], [np.int32([[0, 0], [0, 1]])]],
     [out(6, 2, 2, 2, scale=X)], {0: X}, {}),
    ("CONCATENATION", [q(2, 3), q(2, 2)], [out(2, 5, scale=X)], {0: X, 1: X}, {"axis": 1}),
    ("RESHAPE", [q(2, 3), [np.int32([3, 2])]], [out(3, 2, scale=X)], {0: X}, {}),
    ("TRANSPOSE", [q(2, 3), [np.int32([1, 0])]], [out(3, 2, scale=X)], {0: X}, {}),
    ("QUANTIZE", [RNG.normal(0, 3, 500).astype(np.float32)], [out(500, scale=X)], {}, {}),
    ("QUANTIZE", [q(256)], [out(256, scale=Scale(0.071, -4))], {0: X}, {}),
    ("QUANTIZE", [q(256)], [out(256, scale=Scale(0.04, 128), type="uint8")], {0: Scale(0.04, 0)}, {}),
    ("DEQUANTIZE", [q(256)], [{"shape": (256,), "type": "float32"}], {0: X}, {}),
    *(
        (name, [q(2, 5, 6, 3), [np.int32([1, 2])]], [out(2, 3, scale=Scale(y, -9))], {0: X}, {"keep_dims": keep})
        for name, y in (("MEAN", 0.02), ("MEAN", 0.09))
        for keep in (False, True)
    ),
    *(
        ("HARD_SWISH", [q(256)], [out(256, scale=Scale(y, -100))], {0: Scale(x, -5)}, {})
        for x, y in ((0.07, 0.05), (0.02, 0.01), (0.4, 0.3))
    ),
    *(
        ("RESIZE_BILINEAR", [q(1, 3, 4, 2), [np.int32([5, 7])]], [out(1, 5, 7, 2, scale=X)], {0: X},
         {"align_corners": align, "half_pixel_centers": half})
        for align, half in ((False, False), (True, False), (False, True))
    ),
    *(
        ("TRANSPOSE_CONV", [[np.int32(shape)], weights(5, 3, 3, 6), q(1, 3, 4, 6), bias(5)],
         [out(*shape, scale=Scale(0.3, -7))],
         {1: Scale(CHANNELS, 0, 0), 2: X, 3: Scale(0.04 * CHANNELS, 0)}, {"padding": k, "stride_w": 2, "stride_h": 2})
        for k, shape in enumerate(((1, 6, 8, 5), (1, 7, 9, 5)))
    ),
    *(
        ("SQUARED_DIFFERENCE", [q(2, 5, 6), q(5, 1)], [out(2, 5, 6, scale=Scale(y, -9))],
         {0: X, 1: Scale(0.011, -20)}, {})
        for y in (0.02, 0.2)
    ),
    ("PRELU", [q(2, 5, 6), weights(1, 6)], [out(2, 5, 6, scale=Scale(0.05, -9))], {0: X, 1: Scale(0.011, 3)}, {}),
    *(
        ("GELU", [q(256)], [out(256, scale=Scale(0.03, -100))], {0: Scale(0.04, 7)}, {"approximate": a})
        for a in (False, True)
    ),
    # uint8, as the first quantised models are, and int16
    (
        "CONV_2D", [q(1, 5, 6, 3, dtype=np.uint8), [q(4, 3, 3, 3, dtype=np.uint8)], bias(4)],
        [out(1, 5, 6, 4, scale=Scale(0.5, 120), type="uint8")],
        {0: Scale(0.03, 120), 1: Scale(0.02, 131), 2: Scale(0.03 * 0.02)}, {**CONV, "fused_activation_function": 3},
    ),
    (
        "DEPTHWISE_CONV_2D", [q(1, 5, 6, 3, dtype=np.uint8), [q(1, 3, 3, 3, dtype=np.uint8)], bias(3)],
        [out(1, 5, 6, 3, scale=Scale(0.5, 120), type="uint8")],
        {0: Scale(0.03, 120), 1: Scale(0.02, 131), 2: Scale(0.03 * 0.02)}, {**CONV, "depth_multiplier": 1},
    ),
    (
        "FULLY_CONNECTED", [q(3, 21, dtype=np.uint8), [q(4, 21, dtype=np.uint8)], bias(4)],
        [out(3, 4, scale=Scale(0.5, 120), type="uint8")],
        {0: Scale(0.03, 120), 1: Scale(0.02, 131), 2: Scale(0.03 * 0.02)}, {},
    ),
    (
        "CONV_2D", [q(1, 5, 6, 3, dtype=np.int16), weights(4, 3, 3, 3), bias(4, np.int64)],
        [out(1, 5, 6, 4, scale=Scale(0.002), type="int16")],
        {0: Scale(0.0003), 1: Scale(CHANNELS[:4], 0, 0), 2: Scale(0.0003 * CHANNELS[:4], 0)}, CONV,
    ),
    *(
        (name, [q(2, 5, dtype=np.int16), q(5, dtype=np.int16)], [out(2, 5, scale=Scale(0.0007), type="int16")],
         {0: Scale(0.0003), 1: Scale(0.0005)}, {})
        for name in ("ADD", "SUB", "MUL")
    ),
    ("QUANTIZE", [q(256, dtype=np.int16)], [out(256, scale=X)], {0: Scale(0.0003)}, {}),
    ("DEQUANTIZE", [q(256, dtype=np.int16)], [{"shape": (256,), "type": "float32"}], {0: Scale(0.0003)}, {}),
]  # fmt: skip


FURTHER: list[Case] = [
    ("BATCH_MATMUL", [q(2, 4, 6), q(2, 6, 5)], [out(2, 4, 5, scale=Scale(0.2, -3))], {0: X, 1: Scale(0.02, 4)}, {}),
    (
        "BATCH_MATMUL",
        [q(2, 4, 6), q(2, 5, 6)],
        [out(2, 4, 5, scale=Scale(0.2, -3))],
        {0: X, 1: Scale(0.02, 0)},
        {"adj_y": True},
    ),
    (
        "AVERAGE_POOL_2D",
        [q(1, 7, 8, 3, dtype=np.int16)],
        [out(1, 4, 4, 3, scale=Scale(0.001), type="int16")],
        {0: Scale(0.001)},
        POOL,
    ),
    (
        "MAX_POOL_2D",
        [q(1, 7, 8, 3, dtype=np.int16)],
        [out(1, 4, 4, 3, scale=Scale(0.001), type="int16")],
        {0: Scale(0.001)},
        POOL,
    ),
    (
        "FULLY_CONNECTED",
        [q(3, 21, dtype=np.int16), weights(4, 21), bias(4, np.int64)],
        [out(3, 4, scale=Scale(0.002), type="int16")],
        {0: Scale(0.0003), 1: Scale(0.02), 2: Scale(0.0003 * 0.02)},
        {},
    ),
    (
        "DEPTHWISE_CONV_2D",
        [q(1, 5, 6, 3, dtype=np.int16), weights(1, 3, 3, 3), bias(3, np.int64)],
        [out(1, 5, 6, 3, scale=Scale(0.002), type="int16")],
        {0: Scale(0.0003), 1: Scale(CHANNELS[:3], 0, 3), 2: Scale(0.0003 * CHANNELS[:3], 0)},
        {**CONV, "depth_multiplier": 1},
    ),
    ("MEAN", [q(2, 5, 6, 3), [np.int32([3])]], [out(2, 5, 6, scale=Scale(0.02, 3))], {0: X}, {"keep_dims": False}),
    (
        "MEAN",
        [q(2, 5, 6, 3, dtype=np.uint8), [np.int32([1])]],
        [out(2, 6, 3, scale=Scale(0.02, 3), type="uint8")],
        {0: X},
        {"keep_dims": False},
    ),
    (
        "CONCATENATION",
        [q(2, 3, dtype=np.uint8), q(2, 2, dtype=np.uint8)],
        [out(2, 5, scale=X, type="uint8")],
        {0: X, 1: X},
        {"axis": 1},
    ),
    (
        "LOGISTIC",
        [q(256, dtype=np.uint8)],
        [out(256, scale=Scale(1 / 256, 0), type="uint8")],
        {0: Scale(0.09, 120)},
        {},
    ),
    (
        "SOFTMAX",
        [q(40, 13, dtype=np.uint8)],
        [out(40, 13, scale=Scale(1 / 256, 0), type="uint8")],
        {0: Scale(0.06, 120)},
        {"beta": 1.0},
    ),
    (
        "ADD",
        [q(2, 3, dtype=np.uint8), q(2, 3, dtype=np.uint8)],
        [out(2, 3, scale=Scale(0.05, 120), type="uint8")],
        {0: X, 1: Scale(0.03, 100)},
        {},
    ),
    (
        "MUL",
        [q(2, 3, dtype=np.uint8), q(2, 3, dtype=np.uint8)],
        [out(2, 3, scale=Scale(0.05, 120), type="uint8")],
        {0: X, 1: Scale(0.03, 100)},
        {},
    ),
    ("AVERAGE_POOL_2D", [q(1, 7, 8, 3, dtype=np.uint8)], [out(1, 4, 4, 3, scale=X, type="uint8")], {0: X}, POOL),
    ("TANH", [q(256, dtype=np.uint8)], [out(256, scale=Scale(1 / 128, 128), type="uint8")], {0: Scale(0.03, 120)}, {}),
    ("RELU", [q(256, dtype=np.uint8)], [out(256, scale=Scale(0.03, 100), type="uint8")], {0: Scale(0.05, 120)}, {}),
    (
        "HARD_SWISH",
        [q(256, dtype=np.uint8)],
        [out(256, scale=Scale(0.03, 10), type="uint8")],
        {0: Scale(0.05, 120)},
        {},
    ),
    (
        "PRELU",
        [q(2, 5, 6, dtype=np.uint8), [q(1, 6, dtype=np.uint8)]],
        [out(2, 5, 6, scale=Scale(0.05, 90), type="uint8")],
        {0: X, 1: Scale(0.011, 30)},
        {},
    ),
    (
        "LEAKY_RELU",
        [q(256, dtype=np.uint8)],
        [out(256, scale=Scale(0.05, 100), type="uint8")],
        {0: Scale(0.07, 120)},
        {"alpha": 0.3},
    ),
    ("QUANTIZE", [q(256, dtype=np.uint8)], [out(256, scale=Scale(0.04, 0))], {0: Scale(0.04, 128)}, {}),
    (
        "TRANSPOSE_CONV",
        [[np.int32((1, 6, 8, 5))], [q(5, 3, 3, 6, dtype=np.uint8)], q(1, 3, 4, 6, dtype=np.uint8), bias(5)],
        [out(1, 6, 8, 5, scale=Scale(0.3, 120), type="uint8")],
        {1: Scale(0.02, 120), 2: X, 3: Scale(0.04 * 0.02)},
        {"padding": 0, "stride_w": 2, "stride_h": 2},
    ),
    (
        "SUB",
        [q(2, 3, dtype=np.uint8), q(2, 3, dtype=np.uint8)],
        [out(2, 3, scale=Scale(0.05, 120), type="uint8")],
        {0: X, 1: Scale(0.03, 100)},
        {},
    ),
    ("MAXIMUM", [q(2, 3), q(2, 3)], [out(2, 3, scale=X)], {0: X, 1: X}, {}),
    (
        "BATCH_TO_SPACE_ND",
        [q(6, 2, 2, 2), [np.int32([2, 3])], [np.int32([[0, 0], [0, 1]])]],
        [out(1, 4, 5, 2, scale=X)],
        {0: X},
        {},
    ),
    ("GATHER", [q(4, 5), [np.int32([1, 3])]], [out(2, 5, scale=X)], {0: X}, {"axis": 0}),
    ("ARG_MAX", [q(4, 5), [np.int32(1)]], [{"shape": (4,), "type": "int32"}], {0: X}, {"output_type": 2}),
    ("REDUCE_MAX", [q(4, 5), [np.int32([1])]], [out(4, scale=X)], {0: X}, {"keep_dims": False}),
    (
        "STRIDED_SLICE",
        [q(4, 5), [np.int32([1, 0])], [np.int32([4, 5])], [np.int32([2, 2])]],
        [out(2, 3, scale=X)],
        {0: X},
        {},
    ),
    ("PACK", [q(4, 5), q(4, 5)], [out(2, 4, 5, scale=X)], {0: X, 1: X}, {"axis": 0, "values_count": 2}),
    ("MIRROR_PAD", [q(4, 5), [np.int32([[1, 1], [2, 2]])]], [out(6, 9, scale=X)], {0: X}, {"mode": 0}),
    ("RESIZE_NEAREST_NEIGHBOR", [q(1, 3, 4, 2), [np.int32([5, 7])]], [out(1, 5, 7, 2, scale=X)], {0: X}, {}),
    ("SPLIT", [[np.int32(1)], q(4, 6)], [out(4, 3, scale=X), out(4, 3, scale=X)], {1: X}, {"num_splits": 2}),
]


@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=lambda case: case[0].lower())
def test_one_operator(case: Case) -> None:
    check(case, 0.0)


def check(case: Case, tolerance: float) -> None:
    """Against the reference kernels."""
    name, inputs, results, scales, options = case

    def make(version: int) -> bytes:
        return one_op(name, inputs, results, scales, version, **options)

    model, answer = answered(make, name in ONLY_BUILT_IN)
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if isinstance(x, np.ndarray)}
    given = FrontendCase(model, feeds, answer, "tflite", rtol=tolerance, atol=tolerance)
    check_frontend(given, target=None)


F32 = {"type": "float32"}


def reals(*shape: int) -> Any:
    return RNG.normal(0.5, 2, shape).astype(np.float32)


HYBRID: list[Case] = [
    *(
        (
            "CONV_2D",
            [reals(2, 7, 8, 6), weights(5, 3, 3, 6), [np.float32(range(5))]],
            [{"shape": (2, 7, 8, 5), **F32}],
            {1: scale},
            {**CONV, "fused_activation_function": 1},
        )
        for scale in (Scale(some(5), 0, 0), Scale(0.02))
    ),
    (
        "DEPTHWISE_CONV_2D",
        [reals(2, 7, 8, 6), weights(1, 3, 3, 6), [np.float32(range(6))]],
        [{"shape": (2, 7, 8, 6), **F32}],
        {1: Scale(some(6), 0, 3)},
        {**CONV, "depth_multiplier": 1},
    ),
    (
        "FULLY_CONNECTED",
        [reals(4, 21), weights(9, 21), [np.float32(range(9))]],
        [{"shape": (4, 9), **F32}],
        {1: Scale(0.02)},
        {"fused_activation_function": 1},
    ),
    (
        "FULLY_CONNECTED",
        [reals(4, 21), weights(9, 21), [np.float32(range(9))]],
        [{"shape": (4, 9), **F32}],
        {1: Scale(some(9), 0, 0)},
        {},
    ),
    (
        "FULLY_CONNECTED",
        [np.zeros((4, 21), np.float32), weights(9, 21), [np.float32(range(9))]],
        [{"shape": (4, 9), **F32}],
        {1: Scale(0.02)},
        {},
    ),
    (
        "CONV_2D",
        [np.zeros((2, 7, 8, 6), np.float32), weights(5, 3, 3, 6), [np.float32(range(5))]],
        [{"shape": (2, 7, 8, 5), **F32}],
        {1: Scale(some(5), 0, 0)},
        CONV,
    ),
]


@pytest.mark.parametrize("case", HYBRID, ids=lambda case: case[0].lower())
def test_floats_with_quantised_weights(case: Case) -> None:
    """What rounds in float32 in another order is within 1e-6."""
    check(case, 1e-6)
