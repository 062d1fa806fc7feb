"""Random numbers of a graph: PyTorch draws them at every call, from its own generator and in the order of the graph,
and they are inputs of the executable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft_torch.sharing import Bindings, number

aten = torch.ops.aten


def _bernoulli(x: torch.Tensor, p: float, **given: Any) -> torch.Tensor:
    """As dropout draws in eager mode: in the order of the operand's memory."""
    return torch.empty_like(x).bernoulli_(p, **given)


DRAWN: Mapping[Any, Callable[..., torch.Tensor]] = {
    aten.bernoulli.p: _bernoulli,
    **{
        op: op
        for op in (
            aten.normal.float_float, aten.rand.default, aten.rand_like.default, aten.randint.default, aten.randint.low,
            aten.randn.default, aten.randn_like.default, aten.randperm.default,
        )
    },
}  # fmt: skip
"""Operators whose results follow from sizes, numbers and the generator alone, and what draws them. PyTorch's passes
over graphs know all of them as random, and do not make one of two that look the same."""


def drawn(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes of a graph that PyTorch computes at every call."""
    return [n for n in graph.nodes if n.op == "call_function" and n.target in DRAWN]


def draws(node: torch.fx.Node) -> bool:
    """Whether a node goes on with a generator of random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def draw(node: torch.fx.Node, sizes: Bindings) -> torch.Tensor:
    """The random numbers of a node in one call.

    Raises:
        FrontendError: a size of it is not known before the call.
    """

    def given(operand: torch.fx.Node) -> Any:
        """A number, or a tensor of which only the layout and the dtype count."""
        fake = operand.meta["val"]
        if not isinstance(fake, torch.Tensor):
            return number(fake, sizes, operand)
        shape, strides = ([number(d, sizes, operand) for d in ds] for ds in (fake.shape, fake.stride()))
        return torch.empty_strided(shape, strides, dtype=fake.dtype)

    return DRAWN[node.target](*torch.fx.map_arg(node.args, given), **torch.fx.map_arg(node.kwargs, given))


def dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Instead of PyTorch's own decomposition of native_dropout: the numbers that eager mode draws on the CPU, so that
    the same seed gives the same mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = aten.bernoulli.p(x, 1 - p)
    return x * kept * (1 / (1 - p)), kept.to(torch.bool)


__all__ = ["DRAWN", "draw", "drawn", "draws", "dropout"]
