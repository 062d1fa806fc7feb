"""Results of a graph that lie in the same memory: a write to one of them is a write to the others, as when they are
views of one tensor, and a function goes on behind a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import FrontendError

Bindings = dict[Any, int]
"""The symbols of sizes, and what they are in this call."""


def owners(graph: torch.fx.Graph, results: Sequence[Any]) -> dict[torch.fx.Node, torch.fx.Node]:
    """The results that share memory with others → the node that makes this memory. Those in the memory of an input are
    left out: PyTorch makes them itself."""
    made: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        place = _place(node)
        if place is not None:
            made.setdefault(place, node)
    places = Counter(place for r in results if (place := _place(r)) is not None)
    found = {}
    for r in results:
        place = _place(r)
        if place is not None and places[place] > 1 and made[place].op != "placeholder":
            found[r] = made[place]
    return found


def _place(node: Any) -> int | None:
    """The memory of what a node makes, by number."""
    fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (
        int(fake.untyped_storage()._cdata) if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else None
    )


def bound(nodes: Sequence[torch.fx.Node], values: Sequence[Any]) -> Bindings:
    """The symbols that stand for sizes of these nodes' tensors, or for numbers."""
    found: Bindings = {}
    for node, value in zip(nodes, values):
        fake = node.meta.get("val")
        pairs = [(fake, value)] if isinstance(fake, torch.SymInt) else []
        if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip(fake.shape, value.shape))
        found |= {s.node.expr: int(n) for s, n in pairs if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol}
    return found


def seen_in(owner: torch.Tensor, node: torch.fx.Node, sizes: Bindings) -> torch.Tensor:
    """What a node makes of the memory of another's tensor.

    Raises:
        FrontendError: a size or stride of it is not known.
    """
    fake = node.meta["val"]
    shape, strides = ([number(d, sizes, node) for d in given] for given in (fake.shape, fake.stride()))
    whole = _elements(
        owner.as_strided((owner.untyped_storage().nbytes() // owner.element_size(),), (1,), 0), fake.dtype
    )
    found = whole.as_strided(shape, strides, number(fake.storage_offset(), sizes, node))
    found = found.conj() if fake.is_conj() else found
    return torch._neg_view(found) if fake.is_neg() else found


def _elements(line: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same memory as elements of a dtype."""
    if line.dtype == dtype:
        return line
    if line.dtype.is_complex:
        line = torch.view_as_real(line).flatten()
    if dtype.is_complex:
        return torch.view_as_complex(line.view(dtype.to_real()).unflatten(0, (-1, 2)))
    return line if line.dtype == dtype else line.view(dtype)


def number(d: Any, sizes: Bindings, node: torch.fx.Node) -> int:
    """A size or stride in this call.

    Raises:
        FrontendError: no input says what it is.
    """
    if not isinstance(d, torch.SymInt):
        return int(d)
    found = d.node.expr.subs(sizes)
    if not found.is_Integer:
        raise FrontendError(
            f"'{node.name}' shares memory with other results or is drawn at random, and its size {d.node.expr} is not"
            " known",
            hint="return a clone of it, or call the model with torch.compile(dynamic=False)",
        )
    return int(found)


__all__ = ["Bindings", "bound", "number", "owners", "seen_in"]
