"""Models built from operators alone, with weights from a seed: nothing to download, no framework needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops.activation import Gelu, Relu
from weft_ops.arithmetic import Add, Clip, Multiply
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Reshape, Transpose
from weft_ops.normalization import BatchNorm, LayerNorm, Softmax
from weft_ops.recurrent import LSTM
from weft_ops.reduction import ReduceMean
from weft_ops.window import MaxPool


def resnet18(seed: int = 0, *, size: int = 224, classes: int = 1000, width: int = 64, batch: int | str = 1) -> Graph:
    """ResNet-18 (He and others, 2015), `picture` float32[batch, 3, size, size] → `scores` float32[batch, classes].

    Args:
        width: channels of the first stage; 64 in the paper, less gives a small model of the same structure.
        batch: a number, or the name of a symbol.
    """
    net = _Network(seed, "resnet18")
    b = net.builder
    x = b.input(
        "picture", tensor_type("float32", (Var(batch, dt.int64) if isinstance(batch, str) else batch, 3, size, size))
    )
    x = net.convolution(x, width, 7, 2, "stem")
    x = b.add(Relu(), x, name="stem.relu")
    x = b.add(MaxPool(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), x, name="stem.pool")
    for stage in range(4):
        for block in range(2):
            x = net.residual_block(x, width << stage, 2 if stage and not block else 1, f"stage{stage + 1}.{block}")
    x = b.add(ReduceMean(axes=(2, 3)), x, name="pool")
    x = net.dense(x, classes, "classifier")
    b.output(x, "scores")
    return b.build()


def mlp(seed: int = 0, *, features: tuple[int, ...] = (64, 96, 32), batch: int | str = "batch") -> Graph:
    """Dense layers with ReLU between, `x` float32[batch, features[0]] → `y` float32[batch, features[-1]]."""
    net = _Network(seed, "mlp")
    b = net.builder
    x = b.input("x", tensor_type("float32", (Var(batch, dt.int64) if isinstance(batch, str) else batch, features[0])))
    for k, n in enumerate(features[1:]):
        x = net.dense(x, n, f"dense{k}")
        if k < len(features) - 2:
            x = b.add(Relu(), x)
    b.output(x, "y")
    return b.build()


def mobilenet_v2(
    seed: int = 0, *, size: int = 224, classes: int = 1000, width: int = 32, blocks: int = 7, batch: int | str = 1
) -> Graph:
    """MobileNetV2 (Sandler and others, 2018), `picture` float32[batch, 3, size, size] → `scores` float32[batch,
    classes].

    Args:
        width: channels of the stem; 32 in the paper.
        blocks: how many of the seven rows of the paper's table 2 are built.
        batch: a number, or the name of a symbol.
    """
    net = _Network(seed, "mobilenet_v2")
    b = net.builder
    x = b.input(
        "picture", tensor_type("float32", (Var(batch, dt.int64) if isinstance(batch, str) else batch, 3, size, size))
    )
    x = net.clipped(net.convolution(x, width, 3, 2, "stem"), "stem.relu6")
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for row, (expansion, channels, repeats, stride) in enumerate(rows[:blocks]):
        for k in range(repeats):
            x = net.inverted_residual(
                x, expansion, max(1, channels * width // 32), stride if k == 0 else 1, f"row{row}.{k}"
            )
    x = net.clipped(net.convolution(x, 1280 * width // 32, 1, 1, "last"), "last.relu6")
    x = b.add(ReduceMean(axes=(2, 3)), x, name="pool")
    b.output(net.dense(x, classes, "classifier"), "scores")
    return b.build()


def transformer(
    seed: int = 0, *, blocks: int = 1, features: int = 64, heads: int = 4, steps: int | str = 16, batch: int | str = 1
) -> Graph:
    """Encoder blocks (Vaswani and others, 2017; normalisation first), `x` float32[batch, steps, features] → `y` of the
    same shape.

    Args:
        steps, batch: numbers, or names of symbols.
    """
    net = _Network(seed, "transformer")
    b = net.builder
    dims = tuple(Var(d, dt.int64) if isinstance(d, str) else d for d in (batch, steps))
    x = b.input("x", tensor_type("float32", (*dims, features)))
    head = features // heads
    for block in range(blocks):
        y = net.normalized(x, f"block{block}.norm1")
        q, k, v = (
            b.add(
                Transpose((0, 2, 1, 3)),
                b.add(Reshape((*dims, heads, head)), net.dense(y, features, f"block{block}.{n}")),
            )
            for n in ("query", "key", "value")
        )
        scores = b.add(MatMul(), q, b.add(Transpose((0, 1, 3, 2)), k))
        scores = b.add(Multiply(), scores, b.constant(np.float32(head**-0.5), f"block{block}.scale"))
        y = b.add(MatMul(), b.add(Softmax(), scores), v)
        y = b.add(Reshape((*dims, features)), b.add(Transpose((0, 2, 1, 3)), y))
        x = b.add(Add(), x, net.dense(y, features, f"block{block}.projection"))
        y = net.dense(net.normalized(x, f"block{block}.norm2"), 4 * features, f"block{block}.up")
        x = b.add(Add(), x, net.dense(b.add(Gelu(), y), features, f"block{block}.down"))
    b.output(net.normalized(x, "norm"), "y")
    return b.build()


def lstm(seed: int = 0, *, features: int = 12, hidden: int = 16, steps: int | str = 6, batch: int | str = 2) -> Graph:
    """One LSTM layer in both directions, `x` float32[steps, batch, features] → `y` float32[steps, 2, batch, hidden].

    Args:
        steps, batch: numbers, or names of symbols.
    """
    net = _Network(seed, "lstm")
    b = net.builder
    dims = tuple(Var(d, dt.int64) if isinstance(d, str) else d for d in (steps, batch))
    x = b.input("x", tensor_type("float32", (*dims, features)))
    shapes = {"w": (2, 4 * hidden, features), "r": (2, 4 * hidden, hidden), "b": (2, 8 * hidden)}
    weights = [b.constant(net.normal(shape, shape[-1] ** -0.5), name) for name, shape in shapes.items()]
    b.output(b.add_all(LSTM(hidden, "bidirectional"), x, *weights)[0], "y")
    return b.build()


def picture(size: int = 224, seed: int = 0) -> np.ndarray[Any, Any]:
    """float32[1, 3, size, size] with mean 0 and deviation about 1: smooth colour waves with a little noise, as
    photographs have."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    channels = []
    for _ in range(3):
        waves = sum(np.sin(2 * np.pi * (u * x + v * y + phase)) for u, v, phase in random.uniform(-6, 6, (5, 3)))
        channels.append(waves / np.std(waves) + random.normal(0, 0.1, (size, size)))
    return np.asarray(channels, np.float32)[None]


class _Network:
    """Adds layers with random weights; He's initialisation keeps activations of one size through all of them."""

    def __init__(self, seed: int, name: str) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = GraphBuilder(name)

    def convolution(self, x: Value, channels: int, kernel: int, stride: int, name: str, groups: int = 1) -> Value:
        """Convolution and batch normalisation."""
        inner = x.shape[1]
        assert isinstance(inner, int)
        inner //= groups
        weight = self.normal((channels, inner, kernel, kernel), (2 / (inner * kernel * kernel)) ** 0.5)
        pads = (kernel // 2,) * 4
        b = self.builder
        with b.named(name):
            y = b.add(
                Conv(strides=(stride, stride), pads=pads, groups=groups),
                x,
                b.constant(weight, f"{name}.weight"),
                name=name,
            )
            scale, mean = 1 + self.normal((channels,), 0.1), self.normal((channels,), 0.1)
            bias, variance = self.normal((channels,), 0.1), np.exp(self.normal((channels,), 0.1))
            vectors = [
                b.constant(v, f"{name}.{n}")
                for n, v in (("scale", scale), ("bias", bias), ("mean", mean), ("variance", variance))
            ]
            return b.add(BatchNorm(), y, *vectors, name=f"{name}.norm")

    def residual_block(self, x: Value, channels: int, stride: int, name: str) -> Value:
        b = self.builder
        y = b.add(Relu(), self.convolution(x, channels, 3, stride, f"{name}.conv1"), name=f"{name}.relu1")
        y = self.convolution(y, channels, 3, 1, f"{name}.conv2")
        if stride != 1 or x.shape[1] != channels:
            x = self.convolution(x, channels, 1, stride, f"{name}.shortcut")
        return b.add(Relu(), b.add(Add(), y, x, name=f"{name}.add"), name=f"{name}.relu2")

    def inverted_residual(self, x: Value, expansion: int, channels: int, stride: int, name: str) -> Value:
        inner = x.shape[1]
        assert isinstance(inner, int)
        y = x
        if expansion != 1:
            y = self.clipped(self.convolution(y, inner * expansion, 1, 1, f"{name}.expand"), f"{name}.relu6_1")
        y = self.clipped(
            self.convolution(y, inner * expansion, 3, stride, f"{name}.depthwise", groups=inner * expansion),
            f"{name}.relu6_2",
        )
        y = self.convolution(y, channels, 1, 1, f"{name}.project")
        return self.builder.add(Add(), y, x, name=f"{name}.add") if stride == 1 and inner == channels else y

    def clipped(self, x: Value, name: str) -> Value:
        """ReLU6."""
        b = self.builder
        return b.add(
            Clip(), x, b.constant(np.float32(0), f"{name}.low"), b.constant(np.float32(6), f"{name}.high"), name=name
        )

    def normalized(self, x: Value, name: str) -> Value:
        b = self.builder
        inner = x.shape[-1]
        assert isinstance(inner, int)
        vectors = [
            b.constant(v, f"{name}.{n}")
            for n, v in (("scale", 1 + self.normal((inner,), 0.1)), ("bias", self.normal((inner,), 0.1)))
        ]
        return b.add(LayerNorm(), x, *vectors, name=name)

    def dense(self, x: Value, features: int, name: str) -> Value:
        b = self.builder
        inner = x.shape[-1]
        assert isinstance(inner, int)
        with b.named(name):
            y = b.add(MatMul(), x, b.constant(self.normal((inner, features), inner**-0.5), f"{name}.weight"), name=name)
            return b.add(Add(), y, b.constant(self.normal((features,), 0.1), f"{name}.bias"), name=f"{name}.bias_add")

    def normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray[Any, Any]:
        return self.random.normal(0, deviation, shape).astype(np.float32)
