"""Whole models that torchao has quantised, compiled."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch", "torchao")
import torch
from torch import nn

import weft
from weft.graph.nodes import Graph

pytestmark = [pytest.mark.needs("torch", "torchao"), pytest.mark.filterwarnings("ignore")]


def kinds(graph: Graph) -> Counter[str]:
    return Counter(type(n.op).__name__ for n in graph.nodes)


class Net(nn.Module):
    """Convolutions with batch normalisation, a residual, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.point, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.point(self.depth(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def converted(module: nn.Module, *samples: torch.Tensor, quantizer: Any) -> torch.fx.GraphModule:
    """The module as pt2e quantises it, its ranges those of the samples."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(torch.export.export(module.eval(), samples[:1]).module(), quantizer)
    for x in samples:
        prepared(x)
    return convert_pt2e(prepared)


def x86(dynamic: bool = False) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86_quantizer

    config = x86_quantizer.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    return x86_quantizer.X86InductorQuantizer().set_global(config)


def symmetric() -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))


def steps(got: np.ndarray[Any, Any], wanted: torch.Tensor, plain: torch.Tensor) -> None:
    """As close to PyTorch's own answer as a few roundings that fall to the other side, and no worse than it."""
    want = wanted.numpy()
    assert got.shape == want.shape and got.dtype == want.dtype
    error = np.abs(want - plain.numpy()).max()
    assert np.abs(got - want).max() <= error, (np.abs(got - want).max(), error)
    assert np.abs(got - plain.numpy()).max() <= 2 * error


@pytest.mark.parametrize("quantizer", [x86, symmetric])
def test_a_net_as_pt2e_quantises_it(quantizer: Any) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        model = converted(net, x[:1], x[1:2], quantizer=quantizer())
        wanted, plain = model(x[:1]), net(x[:1])
        program = torch.export.export(model, (x[:1],))
    found = kinds(weft.load(program))
    assert found["Conv"] == 3 and found["Quantize"] >= 4 and found["Dequantize"] >= 7
    steps(weft.compile(program, "llvm")(x[:1].numpy()), wanted, plain)


class Block(nn.Module):
    """Attention and a perceptron with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 4, d // 4).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(x)


def configurations() -> dict[str, Any]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig

    return {"weights": Int8WeightOnlyConfig(), "activations": Int8DynamicActivationInt8WeightConfig()}


@pytest.mark.parametrize("kind", ["weights", "activations"])
def test_a_block_as_torchao_quantises_it(kind: str) -> None:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(2, 7, 64)
    with torch.no_grad():
        plain = block(x)
        quantize_(block, configurations()[kind])
        wanted = block(x)
        program = torch.export.export(block, (x,))
    assert kinds(weft.load(program))["MatMulInteger"] == (4 if kind == "activations" else 0)
    steps(weft.compile(program, "llvm")(x.numpy()), wanted, plain)
    fast = torch.compile(block, backend="weft")
    with torch.no_grad():
        steps(fast(x).numpy(), wanted, plain)
