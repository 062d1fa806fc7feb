"""Models that are trained, as modules of PyTorch with random weights, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, np.ndarray[Any, Any]]
"""`x` and `targets`."""
CLASSES, WORDS = 1000, 4096


class Block(nn.Module):
    """Two 3×3 convolutions, or with `bottleneck` a 1×1, a 3×3 and a 1×1 convolution, beside a residual."""

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        after = 4 * width if bottleneck else width
        sizes = [(before, width, 1), (width, width, 3), (width, after, 1)] if bottleneck else []
        sizes = sizes or [(before, width, 3), (width, after, 3)]
        at = 1 if bottleneck else 0
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, k, stride if n == at else 1, k // 2, bias=False) for n, (a, b, k) in enumerate(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in sizes)
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            y = norm(layer(y))
            if k + 1 < len(self.layers):
                y = functional.relu(y)
        return functional.relu(y + self.short(x))


class ResNet(nn.Module):
    """A residual network of He et al. 2015 with `blocks` in each of four stages."""

    def __init__(self, blocks: list[int], bottleneck: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64))
        stages, before = [], 64
        for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512))):
            for k in range(count):
                stages.append(Block(before, width, 2 if stage and not k else 1, bottleneck))
                before = 4 * width if bottleneck else width
        self.blocks = nn.ModuleList(stages)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def deep(depth: int) -> ResNet:
    """A bottleneck network of about `depth` layers, its blocks in the proportions of ResNet-50."""
    total = (depth - 2) // 3
    blocks = [max(1, round(total * part / 16)) for part in (3, 4, 6, 3)]
    blocks[2] += total - sum(blocks)
    return ResNet(blocks, True)


class Bert(nn.Module):
    """Two encoder layers of BERT's base size over words, without dropout, and a classifier of the first."""

    def __init__(self, layers: int = 2, width: int = 768, heads: int = 12, length: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.ModuleList([layer, *(type(layer)(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
                                              for _ in range(layers - 1))])  # fmt: skip
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, 0])


class Recurrent(nn.Module):
    """An LSTM over vectors, and a classifier of its last state."""

    def __init__(self, inputs: int = 128, width: int = 256) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet([2, 2, 2, 2], False),
    "bert": Bert,
    "lstm": Recurrent,
}
BATCH = 8


def made(name: str) -> nn.Module:
    """The model with weights that are the same in every process; resnet of a number of layers by "deep50"."""
    torch.manual_seed(0)
    return (deep(int(name.removeprefix("deep"))) if name.startswith("deep") else MODELS[name]()).train()


def batch(name: str, number: int, size: int = BATCH) -> Batch:
    """The batch of a step, the same in every process."""
    rng = np.random.default_rng(number)
    targets = rng.integers(0, CLASSES, size)
    if name == "bert":
        return {"x": rng.integers(0, WORDS, (size, 128)), "targets": targets}
    shape = (size, 64, 128) if name == "lstm" else (size, 3, 224, 224)
    return {"x": rng.normal(size=shape).astype(np.float32), "targets": targets}
