"""Grouped convolutions get groups of whole channel blocks: channels are stored and computed in blocks of vector lanes.

A block that spans several groups would need its input channels group by group in the lanes of one vector. Two ways lead out. Neighbouring groups
become one, with weights of zero between them: more multiplications, nothing moved. Or channels of zero are put between groups: fewer
multiplications in vain, but both operands are copied. The cheaper one is taken, or both together, or neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.ops.contraction import Conv
from weft.ops.movement import Pad, Reshape, Slice
from weft.passes.capabilities import Capabilities
from weft.passes.layout_offers import BYTES_PER_FLOP, elements

# How many times as long as on blocks a convolution runs on rows of single channels, where groups share no operand.
ROWS = 20
# Bytes for each element that is put in or taken out between groups: to its new place, and into blocks or out of them.
MOVED_BYTES = 16


@dataclass(frozen=True)
class Groups:
    """How many groups become one, and the input and output channels of a merged group with those that pad it."""

    count: int
    inputs: int
    outputs: int


def merge_groups(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards a grouped convolution with constant weights has whole channel blocks per group, unless that costs more than it gains.

    Finite results stay the same; a NaN or an infinity reaches all channels of its merged group.
    """
    lanes = (capabilities or Capabilities()).channel_block
    if lanes is None:
        return graph

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        return _merge(r, node, inputs, lanes)

    return rewrite(graph, rule, on_subgraph=lambda g: merge_groups(g, capabilities))


def choose_groups(groups: int, inputs: int, outputs: int, lanes: int, flops: float, before: float, after: float) -> Groups | None:
    """The cheapest way to whole blocks for groups of so many input and output channels; None if they are whole, or leaving them is cheapest.

    Args:
        flops: of the convolution as it is.
        before, after: elements of its input and its output.
    """

    def blocks(n: int) -> int:
        return -(-n // lanes) * lanes

    if inputs % lanes == 0 and outputs % lanes == 0:
        return None
    best, least = None, ROWS * flops * BYTES_PER_FLOP
    for count in (c for c in range(1, groups + 1) if groups % c == 0):
        found = Groups(count, blocks(count * inputs), blocks(count * outputs))
        wider, longer = found.inputs / (count * inputs), found.outputs / (count * outputs)
        cost = count * wider * longer * flops * BYTES_PER_FLOP
        if count == groups:  # a convolution without groups pads its own blocks
            found = Groups(count, count * inputs, count * outputs)
        elif wider > 1 or longer > 1:
            cost += MOVED_BYTES * (before * wider * (wider > 1) + after * longer * (longer > 1))
        if cost < least:
            best, least = found, cost
    return best


def _merge(r: Rewriter, node: Node, inputs: tuple[Value | None, ...], lanes: int) -> Replacement:
    if not isinstance(node.op, Conv) or node.op.groups == 1:
        return None
    x, weights = inputs[:2]
    if x is None or weights is None or weights.constant is None or not weights.dtype.is_float:
        return None
    w, groups = weights.constant, node.op.groups
    ic, oc = w.shape[1], w.shape[0] // groups
    if ic == 1 and oc == 1:
        return None
    chosen = choose_groups(groups, ic, oc, lanes, 2.0 * float(np.prod(w.shape[1:])) * elements(node.output), elements(x), elements(node.output))
    if chosen is None:
        return None
    count, left = chosen.count, groups // chosen.count
    new = np.zeros((left, chosen.outputs, chosen.inputs, *w.shape[2:]), w.dtype)
    for k in range(count):
        new[:, k * oc : (k + 1) * oc, k * ic : (k + 1) * ic] = w.reshape(left, count, oc, *w.shape[1:])[:, k]
    merged = r.constant(new.reshape(left * chosen.outputs, chosen.inputs, *w.shape[2:]), weights.name, like=weights)
    y = r.add(replace(node.op, groups=left), _between(r, x, left, chosen.inputs), merged, *inputs[2:])
    return _without(r, y, left, count * oc)


def _between(r: Rewriter, x: Value, groups: int, channels: int) -> Value:
    """`x` with zeros after each group's channels, so that there are so many."""
    n, own, *rest = x.shape
    assert isinstance(own, int)
    if own == groups * channels:
        return x
    apart = r.add(Reshape((n, groups, own // groups, *rest)), x)
    zeros = (0,) * len(rest)
    padded = r.add(Pad((0, 0, 0, *zeros, 0, 0, channels - own // groups, *zeros)), apart)
    return r.add(Reshape((n, groups * channels, *rest)), padded)  # type: ignore[no-any-return]


def _without(r: Rewriter, y: Value, groups: int, channels: int) -> Value:
    """The first so many channels of each group of `y`."""
    n, padded, *rest = y.shape
    assert isinstance(padded, int)
    if padded == groups * channels:
        return y
    apart = r.add(Reshape((n, groups, padded // groups, *rest)), y)
    kept = r.add(Slice((0,) * (3 + len(rest)), (n, groups, channels, *rest)), apart)
    return r.add(Reshape((n, groups * channels, *rest)), kept)  # type: ignore[no-any-return]
