"""Grouped convolutions of few channels become convolutions of fewer, larger groups: channels are stored and computed in blocks of vector lanes.

A block that spans several groups would need its input channels group by group in the lanes of one vector. With weights of zero between groups
the whole block is one group, and a broadcast serves all lanes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.ops.contraction import Conv
from weft.passes.capabilities import Capabilities

# Neighbouring groups that become one, at most: as many times more multiplications, on blocks that run several times as fast as rows do.
MOST_MERGED = 4


def merge_groups(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards a grouped convolution with constant weights has whole channel blocks per group, or would need too many groups for that.

    Finite results stay the same; a NaN or an infinity reaches all channels of its merged group.
    """
    lanes = (capabilities or Capabilities()).channel_block
    if lanes is None:
        return graph

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        return _merge(r, node, inputs, lanes)

    return rewrite(graph, rule, on_subgraph=lambda g: merge_groups(g, capabilities))


def merged_count(groups: int, inputs: int, outputs: int, lanes: int) -> int | None:
    """How many groups of so many input and output channels make whole blocks; None if none of them do, or one does already."""
    count = math.lcm(lanes // math.gcd(inputs, lanes), lanes // math.gcd(outputs, lanes))
    return count if 1 < count <= MOST_MERGED and groups % count == 0 else None


def _merge(r: Rewriter, node: Node, inputs: tuple[Value | None, ...], lanes: int) -> Replacement:
    if not isinstance(node.op, Conv) or node.op.groups == 1:
        return None
    weights = inputs[1]
    if weights is None or weights.constant is None or not weights.dtype.is_float:
        return None
    w, groups = weights.constant, node.op.groups
    per_group = w.shape[0] // groups
    count = merged_count(groups, w.shape[1], per_group, lanes)
    if count is None or (w.shape[1] == 1 and per_group == 1):
        return None
    new = np.zeros((groups // count, count, per_group, count, *w.shape[1:]), w.dtype)
    for k in range(count):
        new[:, k, :, k] = w.reshape(groups // count, count, per_group, *w.shape[1:])[:, k]
    merged = r.constant(new.reshape(w.shape[0], count * w.shape[1], *w.shape[2:]), weights.name, like=weights)
    return r.add(replace(node.op, groups=groups // count), inputs[0], merged, *inputs[2:])  # type: ignore[no-any-return]
