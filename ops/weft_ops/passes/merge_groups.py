"""Grouped convolutions get groups of whole channel blocks: channels are stored and computed in blocks of vector lanes.

A block that spans several groups would need its input channels group by group in the lanes of one vector. Two ways lead
out. Neighbouring groups become one, with weights of zero between them: more multiplications, but all operators may
store channels in blocks alike. Or each group has blocks of its own, the last one padded: a layout, see `layout_offers`,
which those around do not share. The cheaper one is taken, or both together, or neither.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.graph.nodes import Graph, Node, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities
from weft.passes.layout_offers import MOST_PADDED_WORK, elements, rows_cost
from weft_ops.contraction import Conv

# Bytes for each element that is read from or written to blocks that are a group's own: those around store it in another
# way.
MOVED_BYTES = 8


def merge_groups(graph: Graph, capabilities: Capabilities | None = None) -> Graph:
    """Afterwards a grouped convolution with constant weights has whole channel blocks per group, unless padded ones or
    rows cost less.

    Finite results stay the same; a NaN or an infinity reaches all channels of its merged group.
    """
    capabilities = capabilities or Capabilities()
    lanes, bytes_per_flop = capabilities.channel_block, capabilities.bytes_per_flop
    if lanes is None:
        return graph

    ends = {
        id(v) for v in graph.outputs
    }  # in rows: outputs of the graph, and what they are computed of element by element
    for node in reversed(graph.nodes):
        if node.op.kind == "elementwise" and any(id(o) in ends for o in node.outputs):
            ends.update(id(v) for v in node.inputs if v is not None)

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        return _merge(r, node, inputs, lanes, bytes_per_flop, id(node.outputs[0]) in ends)

    return rewrite(graph, rule, rounds=1, on=(Conv,))


def choose_groups(
    groups: int,
    inputs: int,
    outputs: int,
    lanes: int,
    moved: float,
    before: float,
    after: float,
    rows: float,
    in_rows: bool = False,
    out_rows: bool = False,
) -> int:
    """How many groups of so many input and output channels should become one.

    Args:
        moved: bytes that are stored in another order in the time that the convolution takes as it is.
        before, after: elements of its input and its output.
        rows: how many times as long as on blocks it runs on rows of single channels.
        in_rows, out_rows: its input lies in rows already, as the model's inputs do, and its output is wanted in rows;
            blocks are converted else.
    """

    def padded(n: int) -> float:
        return -(-n // lanes) * lanes / n

    best, least = 1, rows * moved + MOVED_BYTES * (before * (not in_rows) + after * (not out_rows))
    for count in (c for c in range(1, groups + 1) if groups % c == 0):
        wider, longer = padded(count * inputs), padded(count * outputs)
        cost = count * min(wider, MOST_PADDED_WORK) * longer * moved
        if count < groups:  # a convolution without groups pads its own blocks
            read = wider == 1 or (in_rows and wider >= MOST_PADDED_WORK)  # as it lies
            cost += MOVED_BYTES * (before * (not read) + after * (longer > 1))
        if cost < least:
            best, least = count, cost
    return best


def _merge(
    r: Rewriter, node: Node, inputs: tuple[Value | None, ...], lanes: int, bytes_per_flop: float, out_rows: bool
) -> Replacement:
    assert isinstance(node.op, Conv)
    if node.op.groups == 1:
        return None
    x, weights = inputs[:2]
    if x is None or weights is None or weights.constant is None or not weights.dtype.is_float:
        return None
    w, groups = weights.constant, node.op.groups
    ic, oc = w.shape[1], w.shape[0] // groups
    if ic == 1 and oc == 1:
        return None
    before, after = elements(x), elements(node.output)
    moved, rows = 2.0 * float(np.prod(w.shape[1:])) * after * bytes_per_flop, 1 + rows_cost(node, groups, lanes)
    count = choose_groups(groups, ic, oc, lanes, moved, before, after, rows, x.producer is None, out_rows)
    if count == 1:
        return None
    left = groups // count
    new = np.zeros((left, count, oc, count, *w.shape[1:]), w.dtype)
    for k in range(count):
        new[:, k, :, k] = w.reshape(left, count, oc, *w.shape[1:])[:, k]
    merged = r.constant(new.reshape(left * count * oc, count * ic, *w.shape[2:]), weights.name, like=weights)
    return r.add(replace(node.op, groups=left), x, merged, *inputs[2:])
