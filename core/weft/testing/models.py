"""Models built from operators alone, with weights from a seed: nothing to download, no framework needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.ops.activation import Relu
from weft.ops.arithmetic import Add
from weft.ops.contraction import Conv, MatMul
from weft.ops.normalization import BatchNorm
from weft.ops.reduction import ReduceMean
from weft.ops.window import MaxPool


def resnet18(seed: int = 0, *, size: int = 224, classes: int = 1000, width: int = 64, batch: int | str = 1) -> Graph:
    """ResNet-18 (He and others, 2015), `picture` float32[batch, 3, size, size] → `scores` float32[batch, classes].

    Args:
        width: channels of the first stage; 64 in the paper, less gives a small model of the same structure.
        batch: a number, or the name of a symbol.
    """
    net = _Network(seed, "resnet18")
    b = net.builder
    x = b.input("picture", tensor_type("float32", (Var(batch, dt.int64) if isinstance(batch, str) else batch, 3, size, size)))
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


def picture(size: int = 224, seed: int = 0) -> np.ndarray[Any, Any]:
    """float32[1, 3, size, size] with mean 0 and deviation about 1: smooth colour waves with a little noise, as photographs have."""
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

    def convolution(self, x: Value, channels: int, kernel: int, stride: int, name: str) -> Value:
        """Convolution and batch normalisation."""
        inner = x.shape[1]
        assert isinstance(inner, int)
        weight = self.normal((channels, inner, kernel, kernel), (2 / (inner * kernel * kernel)) ** 0.5)
        pads = (kernel // 2,) * 4
        b = self.builder
        with b.named(name):
            y = b.add(Conv(strides=(stride, stride), pads=pads), x, b.constant(weight, f"{name}.weight"), name=name)
            scale, mean = 1 + self.normal((channels,), 0.1), self.normal((channels,), 0.1)
            bias, variance = self.normal((channels,), 0.1), np.exp(self.normal((channels,), 0.1))
            vectors = [b.constant(v, f"{name}.{n}") for n, v in (("scale", scale), ("bias", bias), ("mean", mean), ("variance", variance))]
            return b.add(BatchNorm(), y, *vectors, name=f"{name}.norm")  # type: ignore[no-any-return]

    def residual_block(self, x: Value, channels: int, stride: int, name: str) -> Value:
        b = self.builder
        y = b.add(Relu(), self.convolution(x, channels, 3, stride, f"{name}.conv1"), name=f"{name}.relu1")
        y = self.convolution(y, channels, 3, 1, f"{name}.conv2")
        if stride != 1 or x.shape[1] != channels:
            x = self.convolution(x, channels, 1, stride, f"{name}.shortcut")
        return b.add(Relu(), b.add(Add(), y, x, name=f"{name}.add"), name=f"{name}.relu2")  # type: ignore[no-any-return]

    def dense(self, x: Value, features: int, name: str) -> Value:
        b = self.builder
        inner = x.shape[-1]
        assert isinstance(inner, int)
        with b.named(name):
            y = b.add(MatMul(), x, b.constant(self.normal((inner, features), inner**-0.5), f"{name}.weight"), name=name)
            return b.add(Add(), y, b.constant(self.normal((features,), 0.1), f"{name}.bias"), name=f"{name}.bias_add")  # type: ignore[no-any-return]

    def normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray[Any, Any]:
        return self.random.normal(0, deviation, shape).astype(np.float32)
