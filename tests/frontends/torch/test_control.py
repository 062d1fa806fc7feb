"""Branches, loops and quantised programs, compiled."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.needs import require

require("torch")
import torch
from torch import nn

import weft

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: torch.Tensor) -> Any:
        return self.function(*xs)


def agrees(function: Callable[..., Any], example: torch.Tensor, *others: torch.Tensor) -> None:
    """The function, exported for one input and compiled, gives what PyTorch gives, of others as well."""
    executable = weft.compile(Applied(function), "llvm", inputs=(example,))
    for x in (example, *others):
        got, wanted = executable(x.numpy()), function(x)
        got = got[0] if isinstance(got, (list, tuple)) else got
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_branch() -> None:
    x = torch.rand(4, 3)
    agrees(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)), x, -x)


def test_a_loop_with_a_test() -> None:
    from torch._higher_order_ops import while_loop

    def doubled(x: torch.Tensor) -> Any:
        return while_loop(lambda x: x.sum() < 100, lambda x: (x * 2,), (x,))[0]

    agrees(doubled, torch.rand(4, 3) + 0.1, torch.full((4, 3), 99.0))


def test_scan_and_map() -> None:
    from torch._higher_order_ops import scan
    from torch._higher_order_ops.map import map as mapped

    x = torch.randn(4, 3)
    agrees(lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(3), x)[1], x, x + 1)
    agrees(lambda x: mapped(lambda row: row.cumsum(0) + 1, x), x, x * 2)


def test_quantised_operators() -> None:
    import torch.ao.quantization.fx._decomposed

    q = torch.ops.quantized_decomposed
    scales, zeros = torch.tensor([0.1, 0.05, 0.02]), torch.zeros(3, dtype=torch.int64)

    def tensor(x: torch.Tensor) -> torch.Tensor:
        y = q.quantize_per_tensor(x, 0.05, 3, -100, 127, torch.int8)
        return q.dequantize_per_tensor(y, 0.05, 3, -100, 127, torch.int8)

    def channels(x: torch.Tensor) -> torch.Tensor:
        y = q.quantize_per_channel(x, scales, zeros, 1, -127, 127, torch.int8)
        return q.dequantize_per_channel(y, scales, zeros, 1, -127, 127, torch.int8)

    x = torch.randn(4, 3) * 5 + 0.003
    agrees(tensor, x)
    agrees(channels, x)
