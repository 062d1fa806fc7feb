"""A graph pass: convolutions read pictures that have their border already, so that strips need no conditions."""

from __future__ import annotations

from dataclasses import replace

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft_ops import Conv, Pad


def pad_first(graph: Graph) -> Graph:
    """Conv(x, pads) → Conv(Pad(x))."""
    return rewrite(graph, _pad)


def _pad(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    x = inputs[0]
    if not isinstance(node.op, Conv) or x is None or x.dtype.name != "float32" or x.tensor.layout is not None:
        return None
    _, pads, _ = node.op.spatial(len(x.shape) - 2)
    if not any(n for pair in pads for n in pair):
        return None
    before, after = ((0, 0, *(pair[k] for pair in pads)) for k in (0, 1))
    padded = r.add(Pad(pads=(*before, *after)), x)
    result: Value = r.add(replace(node.op, pads=()), padded, *inputs[1:])
    return result
