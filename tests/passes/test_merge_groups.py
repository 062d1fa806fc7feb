"""Groups of few channels become groups of whole channel blocks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import keeps_meaning, numbers

from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.ops.contraction import Conv
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft.passes.layout_offers import conv_weight_layout
from weft.passes.merge_groups import merge_groups, merged_count

CAPABILITIES = Capabilities(channel_block=4)


def grouped(channels: int, outputs: int, groups: int, stride: int = 1) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (2, channels, 6, 6)))
    w = b.constant(numbers(outputs, channels // groups, 3, 3, seed=1), "w")
    b.output(b.add(Conv((stride, stride), (1, 1, 1, 1), groups=groups), x, w))
    return b.build()


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "after"),
    [(16, 16, 8, 4), (8, 16, 8, 2), (16, 16, 4, 4), (24, 24, 4, 2), (8, 8, 8, 8), (18, 18, 3, 3), (4, 4, 1, 1), (20, 20, 10, 5)],
)
def test_groups(channels: int, outputs: int, groups: int, after: int) -> None:
    graph = grouped(channels, outputs, groups)
    merged = merge_groups(graph, CAPABILITIES)
    (node,) = merged.nodes
    assert isinstance(node.op, Conv) and node.op.groups == after
    keeps_meaning(graph, merged, [numbers(2, channels, 6, 6)])


def test_counts() -> None:
    assert merged_count(32, 4, 4, 8) == 2 and merged_count(32, 4, 4, 16) == 4 and merged_count(16, 24, 24, 16) == 2
    assert merged_count(32, 8, 8, 8) is None  # whole blocks already
    assert merged_count(32, 1, 2, 8) is None  # eight times the work
    assert merged_count(3, 4, 4, 8) is None  # an odd number of groups


def test_without_blocks_and_without_constants_nothing_changes() -> None:
    assert str(merge_groups(grouped(16, 16, 8))) == str(grouped(16, 16, 8))
    b = GraphBuilder()
    x, w = b.input("x", tensor_type("float32", (1, 8, 6, 6))), b.input("w", tensor_type("float32", (8, 2, 3, 3)))
    b.output(b.add(Conv(groups=4), x, w))
    assert str(merge_groups(b.build(), CAPABILITIES)) == str(b.build())


@pytest.mark.parametrize("stride", [1, 2])
def test_groups_of_whole_blocks_are_stored_in_blocks(stride: int) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 8, 12, 12)))
    y = b.add(Conv((1, 1), (2, 2, 2, 2)), x, b.constant(numbers(16, 8, 5, 5)))
    b.output(b.add(Conv((stride, stride), (1, 1, 1, 1), groups=2), y, b.constant(numbers(16, 8, 3, 3, seed=2))))
    after = choose_layouts(b.build(), CAPABILITIES)
    convolutions = [n for n in after.nodes if isinstance(n.op, Conv)]
    assert [n.output.tensor.layout for n in convolutions] == [blocked(4, 1, 4)] * 2
    weights = convolutions[1].inputs[1]
    assert weights is not None and weights.tensor.layout == conv_weight_layout(4, 4, True, False)
    keeps_meaning(b.build(), after, [np.asarray(numbers(1, 8, 12, 12))])
