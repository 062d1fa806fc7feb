"""Small models in 8 bits with the operators of MLPerf Tiny's: convolutions of all kinds, a sum of two branches, a pool,
a dense layer, a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.frontends.tflite.models import Graph, ModelWriter, Scale

STEP = 0.05
"""The scale of values between operators."""
Pair = int | tuple[int, int]
"""A number for rows and columns of a picture, or one for each."""


def both(pair: Pair) -> tuple[int, int]:
    return pair if isinstance(pair, tuple) else (pair, pair)


class Network:
    """A model that is being built, layer by layer; sizes are those of the value that the last layer gave."""

    def __init__(self, shape: Sequence[int], zero: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.model = ModelWriter()
        self.graph: Graph = self.model.graph()
        self.scale = Scale(STEP, zero)
        self.shape = tuple(shape)
        self.value = self.graph.input("int8", shape, name="x", scale=self.scale)

    def add(self, name: str, inputs: Sequence[int], shape: Sequence[int], scale: Scale, **options: Any) -> int:
        self.shape, self.scale = tuple(shape), scale
        (self.value,) = self.graph.op(name, inputs, [{"shape": shape, "type": "int8", "scale": scale}], **options)
        return self.value

    def weights(self, *shape: int, axis: int, bias: int) -> tuple[int, int]:
        scales = self.random.uniform(0.004, 0.02, bias).astype(np.float32)
        data = self.random.integers(-127, 128, shape).astype(np.int8)
        w = self.graph.constant(data, scale=Scale(scales, 0, axis))
        terms = self.random.integers(-2000, 2000, bias).astype(np.int32)
        return w, self.graph.constant(terms, scale=Scale(STEP * scales, 0))

    def conv(
        self, outputs: int, kernel: Pair, stride: Pair = 1, zero: int = -128, padding: int = 0, **more: Any
    ) -> int:
        """`padding`: 0 is TensorFlow's SAME, 1 its VALID. More: `dilation`, `activation`."""
        operands = (self.value, *self.weights(outputs, *both(kernel), self.shape[3], axis=0, bias=outputs))
        shape, options = self.windows(kernel, stride, padding, **{"activation": int(zero == -128), **more})
        return self.add("CONV_2D", operands, (*shape, outputs), Scale(STEP, zero), **options)

    def depthwise(self, kernel: Pair, stride: Pair = 1, zero: int = -128, padding: int = 0, **more: Any) -> int:
        c = self.shape[3]
        operands = (self.value, *self.weights(1, *both(kernel), c, axis=3, bias=c))
        shape, options = self.windows(kernel, stride, padding, depth_multiplier=1, **more)
        return self.add("DEPTHWISE_CONV_2D", operands, (*shape, c), Scale(STEP, zero), **options)

    def windows(
        self, kernel: Pair, stride: Pair, padding: int, dilation: Pair = 1, activation: int = 1, **more: int
    ) -> tuple[tuple[int, int, int], dict[str, int]]:
        """The picture that a convolution gives, and its options."""
        n, h, w, _ = self.shape
        steps, apart = both(stride), both(dilation)
        spans = [(k - 1) * d + 1 for k, d in zip(both(kernel), apart)]
        rows, columns = (-(-(d if padding == 0 else d - k + 1) // s) for d, k, s in zip((h, w), spans, steps))
        options = {
            "padding": padding,
            "stride_h": steps[0],
            "stride_w": steps[1],
            "dilation_h_factor": apart[0],
            "dilation_w_factor": apart[1],
            "fused_activation_function": activation,
        }
        return (n, rows, columns), {**options, **more}

    def sum(self, other: int) -> int:
        return self.add("ADD", [other, self.value], self.shape, Scale(STEP * 1.3, -9), fused_activation_function=0)

    def pool(self) -> int:
        n, h, w, c = self.shape
        options = {"padding": 1, "stride_w": w, "stride_h": h, "filter_width": w, "filter_height": h}
        return self.add(
            "AVERAGE_POOL_2D", [self.value], (n, 1, 1, c), self.scale, fused_activation_function=0, **options
        )

    def dense(self, outputs: int) -> int:
        n, length = self.shape[0], int(np.prod(self.shape[1:]))
        if len(self.shape) > 2:
            shape = self.graph.constant(np.array([n, length], np.int32))
            self.add("RESHAPE", [self.value, shape], (n, length), self.scale)
        w, b = self.weights(outputs, length, axis=0, bias=outputs)
        return self.add("FULLY_CONNECTED", [self.value, w, b], (n, outputs), Scale(0.2, 3), fused_activation_function=0)

    def softmax(self) -> int:
        return self.add("SOFTMAX", [self.value], self.shape, Scale(1 / 256, -128), beta=1.0)

    def bytes(self) -> bytes:
        self.graph.outputs = [self.value]
        return self.model.bytes()


def keywords() -> bytes:
    """As keyword spotting: one channel, a large window, convolutions by channel and by pixel, sizes that are odd."""
    n = Network((1, 11, 7, 1), 83, 1)
    n.conv(8, 4, 2)
    n.depthwise(3)
    n.conv(7, 1)
    n.pool()
    n.dense(5)
    n.softmax()
    return n.bytes()


def residual() -> bytes:
    """As ResNet: three channels, two branches that are added, strides."""
    n = Network((1, 8, 8, 3), -128, 2)
    first = n.conv(8, 3)
    n.conv(8, 3)
    n.conv(8, 3, zero=4)
    branch = n.sum(first)
    n.conv(12, 3, 2, zero=7)
    rest = n.value
    n.value, n.shape = branch, (1, 8, 8, 8)
    n.conv(12, 1, 2, zero=-5)
    n.sum(rest)
    n.pool()
    n.dense(4)
    n.softmax()
    return n.bytes()


def dense() -> bytes:
    """As an autoencoder: products only, one of a single result."""
    n = Network((1, 22), 5, 3)
    n.dense(9)
    n.dense(1)
    n.dense(6)
    return n.bytes()


def by_channel() -> bytes:
    """Convolutions by channel with strides and channels that are no whole words."""
    n = Network((1, 9, 6, 6), 11, 4)
    n.depthwise(3, 2)
    n.depthwise(5)
    n.conv(4, 3, padding=1)
    return n.bytes()


MODELS = {"keywords": keywords, "residual": residual, "dense": dense, "by_channel": by_channel}
