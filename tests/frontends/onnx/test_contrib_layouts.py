"""Operators of ONNX Runtime's domains over other layouts and weights of few bits, against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.contrib import contrib_model, feed, onnxruntime_results, same_as_onnxruntime

import weft
from weft.errors import UnsupportedError

F = np.float32
random = np.random.default_rng(11)
WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}


def floats(*shape: int) -> Any:
    return random.standard_normal(shape).astype(F)


def compiled(op: str, inputs: list[Any], **options: Any) -> Any:
    proto = contrib_model(op, inputs, **options)
    return weft.compile(proto).run(feed(inputs, options.get("constants", ())))["y0"]


def last(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv", "com.ms.internal.nhwc"])
def test_convolutions_with_channels_last(op: str) -> None:
    """ONNX Runtime has them on some processors only: as the convolution of channels that come first."""
    x, w, b = floats(2, 4, 6, 7), floats(6, 4, 3, 3), floats(6)
    options: dict[str, Any] = {} if op == "NhwcConv" else {"activation": "Relu"}
    z = [] if op == "NhwcConv" else [floats(2, 6, 3, 7)]
    (wanted,) = same_as_onnxruntime("FusedConv", [x, w, b, *z], **WINDOW, **options)
    domain = {"domain": op} if op.startswith("com") else {}
    name = "Conv" if domain else op
    got = compiled(name, [last(x), w, b, *map(last, z)], **WINDOW, **options, **domain)
    np.testing.assert_allclose(got, last(wanted), rtol=1e-5, atol=1e-5)


def test_pools_with_channels_last() -> None:
    x = random.integers(-100, 100, (2, 6, 7, 4)).astype(np.int8)
    same_as_onnxruntime("NhwcMaxPool", [x], kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1])
    y = compiled("AveragePool", [last(floats(1, 3, 4, 4))], domain="com.ms.internal.nhwc", kernel_shape=[2, 2])
    assert y.shape == (1, 3, 3, 3)


def test_quantised_convolution_with_channels_last() -> None:
    x = random.integers(0, 256, (2, 6, 7, 4)).astype(np.uint8)
    w = random.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8)
    rest = [np.array(0.02, F), np.array(128, np.uint8), w, np.array(0.01, F), np.array(0, np.int8)]
    inputs = [x, *rest, np.array(0.3, F), np.array(120, np.uint8), random.integers(-99, 99, 6).astype(np.int32)]
    same_as_onnxruntime("QLinearConv", inputs, constants=list(range(1, 9)), channels_last=1, **WINDOW)


def test_blocks_of_channels_are_refused() -> None:
    proto = contrib_model("ReorderInput", [floats(1, 8, 2, 2)], domain="com.microsoft.nchwc")
    with pytest.raises(UnsupportedError, match="written by ONNX Runtime at ORT_ENABLE_ALL: save the model at"):
        weft.load(proto)


# -- weights of few bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_of_packed_rows(bits: int, zeros: bool) -> None:
    rows, width, block = 7, 64, 16
    table = random.integers(0, 256, (rows, width * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (rows, width // block)).astype(F)
    points = random.integers(0, 256, (rows, width // block * bits // 8)).astype(np.uint8)
    indices = np.array([[1, 6, 0], [3, 3, 5]], np.int64)
    inputs = [table, indices, scales, *([points] if zeros else [])]
    same_as_onnxruntime(
        "GatherBlockQuantized", inputs, constants=[0, 2, 3], bits=bits, block_size=block, quantize_axis=1,
        dims={1: ["n", "s"]}, further=[[table, indices[:1], scales]],
    )  # fmt: skip


def test_gather_of_rows_of_bits_that_it_has_not() -> None:
    inputs = [np.zeros((2, 16), np.uint8), np.array([0]), np.ones((2, 1), F)]
    with pytest.raises(UnsupportedError, match="GatherBlockQuantized: a table of 2 bits in uint8"):
        weft.load(contrib_model("GatherBlockQuantized", inputs, bits=2, block_size=64))


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(bits, zeros) for bits in (2, 4, 8) for zeros in ("none", "packed", "floats") if (bits, zeros) != (8, "floats")],
)
def test_products_with_packed_weights(bits: int, zeros: str) -> None:
    n, k, block = 6, 64, 32
    blocks = k // block
    b = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (n, blocks)).astype(F)
    packed = random.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    points = {"none": None, "packed": packed, "floats": random.uniform(0, 3, (n, blocks)).astype(F)}[zeros]
    inputs = [floats(2, 3, k), b, scales, points, None, floats(n)]
    options = {"constants": [1, 2, 3, 5], "K": k, "N": n, "bits": bits, "block_size": block, "tolerance": 1e-4}
    same_as_onnxruntime("MatMulNBits", inputs, accuracy_level=1, **options)


def test_weights_in_another_order_are_refused() -> None:
    inputs = [floats(2, 32), np.zeros((1, 1, 16), np.uint8), np.ones((1, 1), F)]
    options = {"constants": [1, 2], "K": 32, "N": 1, "bits": 4, "block_size": 32}
    with pytest.raises(UnsupportedError, match="MatMulNBits: attribute 'weight_prepacked' = 1"):
        weft.load(contrib_model("MatMulNBits", inputs, weight_prepacked=1, **options))


# -- recurrent layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamically_quantised_lstm(direction: str, columns: bool) -> None:
    """ONNX Runtime rounds the operands of its products to 8 bits: to a hundredth; over weights that are exact in 8
    bits, the float layer gives the same here to the last digits."""
    d, inputs, hidden = 2 if direction == "bidirectional" else 1, 6, 5
    w = random.integers(-128, 128, (d, inputs, 4 * hidden)).astype(np.int8)
    r = random.integers(-128, 128, (d, hidden, 4 * hidden)).astype(np.int8)
    shape = (d, 4 * hidden) if columns else (d,)
    w_scale, r_scale = (random.uniform(0.002, 0.004, shape).astype(F) for _ in range(2))
    zero = np.zeros(shape, np.int8)
    x, b, h, c = floats(4, 3, inputs), floats(d, 8 * hidden) / 4, floats(d, 3, hidden) / 2, floats(d, 3, hidden) / 2
    arrays = [x, w, r, b, None, h, c, None, w_scale, zero, r_scale, zero]
    constants = [1, 2, 3, 8, 9, 10, 11]
    options = {"constants": constants, "outputs": 3, "hidden_size": hidden, "direction": direction}
    same_as_onnxruntime("DynamicQuantizeLSTM", arrays, tolerance=2e-2, **options)
    wide = [
        np.swapaxes(v * (s[:, None] if columns else s[:, None, None]), 1, 2).astype(F)
        for v, s in ((w, w_scale), (r, r_scale))
    ]
    plain = contrib_model("LSTM", [x, *wide, b, None, h, c], 3, domain="", hidden_size=hidden, direction=direction)
    wanted = onnxruntime_results(plain, feed([x, *wide, b, None, h, c]))
    proto = contrib_model("DynamicQuantizeLSTM", arrays, **options)
    found = weft.compile(proto).run(feed(arrays, constants))
    for name, want in zip(("y0", "y1", "y2"), wanted):
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5)
