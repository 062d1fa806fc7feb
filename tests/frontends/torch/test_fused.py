"""PyTorch's fused operators by other operators, against the operators themselves."""

# ruff: noqa: E402 - without PyTorch the module is skipped

from __future__ import annotations

from typing import Any

import pytest
from tests.needs import require

require("torch")
import torch

from weft_torch.fused import FUSED

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]
B, L, E, H = 2, 5, 8, 2
PAIRS = torch.ones(L, L, dtype=torch.bool).triu(1)
KEYS = torch.tensor([[False] * L, [False] * 3 + [True] * (L - 3)])
MASKS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "of pairs": (PAIRS, 0),
    "of keys": (KEYS, 1),
    "of heads": (PAIRS[None, None].expand(B, H, L, L), 2),
    "of numbers": (torch.zeros(L, L).masked_fill(PAIRS, float("-inf")), 0),
    "of everything": (torch.ones(B, L, dtype=torch.bool), 1),
}
aten = torch.ops.aten


def agree(operator: Any, *arguments: Any) -> None:
    torch.testing.assert_close(FUSED[operator](*arguments), operator(*arguments), equal_nan=True)


def weights(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_attention(mask: str, wanted: tuple[bool, bool]) -> None:
    x, y, *given = weights((B, L, E), (B, L, E), (3 * E, E), (3 * E,), (E, E), (E,))
    for operands in ((x, x, x), (x, y, y)):
        agree(
            aten._native_multi_head_attention.default, *operands, E, H, *given, MASKS[mask][0], *wanted, MASKS[mask][1]
        )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("first", [False, True])
def test_a_layer_of_an_encoder(mask: str, first: bool) -> None:
    shapes = ((3 * E, E), (3 * E,), (E, E), (E,), *((E,) for _ in range(4)), (16, E), (16,), (E, 16), (E,))
    x, *given = weights((B, L, E), *shapes)
    with torch.no_grad():
        for gelu in (False, True):
            operands = (x, E, H, *given[:4], gelu, first, 1e-5, *given[4:], *MASKS[mask])
            agree(aten._transformer_encoder_layer_fwd.default, *operands)
