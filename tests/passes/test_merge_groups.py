"""Groups that are no whole channel blocks become such: merged, or with blocks of their own, as costs less."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import keeps_meaning, numbers

from weft.expr.nodes import Var
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.relayout import Relayout
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft.passes.layout_offers import GROUPED_BORDERS, conv_layout, conv_weight_layout
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv
from weft_ops.passes.merge_groups import choose_groups, merge_groups

CAPABILITIES = Capabilities(channel_block=4)


def grouped(channels: int, outputs: int, groups: int, stride: int = 1) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (2, channels, 6, 6)))
    w = b.constant(numbers(outputs, channels // groups, 3, 3, seed=1), "w")
    b.output(b.add(Conv((stride, stride), (1, 1, 1, 1), groups=groups), x, w))
    return b.build()


def between(channels: int, outputs: int, groups: int) -> Graph:
    """The same between two convolutions without groups, which store blocks."""
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (2, 8, 6, 6)))
    x = b.add(Conv(), x, b.constant(numbers(channels, 8, 1, 1, seed=2), "before"))
    y = b.add(
        Conv((1, 1), (1, 1, 1, 1), groups=groups),
        x,
        b.constant(numbers(outputs, channels // groups, 3, 3, seed=1), "w"),
    )
    b.output(b.add(Conv(), y, b.constant(numbers(8, outputs, 1, 1, seed=3), "after")))
    return b.build()


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "after"),
    [
        (16, 16, 8, 4),
        (8, 16, 8, 2),
        (16, 16, 4, 4),
        (24, 24, 4, 2),
        (8, 8, 8, 8),
        (18, 18, 3, 3),
        (4, 4, 1, 1),
        (20, 20, 10, 5),
        (4, 8, 4, 1),
        (6, 10, 2, 1),
    ],
)
def test_groups(channels: int, outputs: int, groups: int, after: int) -> None:
    graph = between(channels, outputs, groups)
    merged = merge_groups(graph, CAPABILITIES)
    node = merged.nodes[1]
    assert isinstance(node.op, Conv) and node.op.groups == after
    assert str(merge_groups(merged, CAPABILITIES)) == str(merged)
    keeps_meaning(graph, merged, [numbers(2, 8, 6, 6)])


@pytest.mark.parametrize("outputs", [1, 2])
def test_few_channels_in_a_group_of_rows_to_rows_stay_there(outputs: int) -> None:
    """No padding multiplies their work, and nothing is converted."""
    graph = grouped(15, 3 * outputs, 3)
    after = choose_layouts(merge_groups(graph, CAPABILITIES), CAPABILITIES)
    assert str(after) == str(graph)


@pytest.mark.parametrize(("channels", "outputs", "groups"), [(95, 80, 5), (170, 170, 10), (80, 95, 5), (10, 95, 5)])
def test_groups_too_large_to_merge_get_blocks_of_their_own(channels: int, outputs: int, groups: int) -> None:
    graph = grouped(channels, outputs, groups, stride=2)
    assert str(merge_groups(graph, CAPABILITIES)) == str(graph)
    after = choose_layouts(graph, CAPABILITIES)
    (node,) = [n for n in after.nodes if isinstance(n.op, Conv)]
    x = node.inputs[0]
    assert x is not None and node.output.tensor.layout == conv_layout(4, outputs, groups, 4)
    assert x.tensor.layout in (None, conv_layout(4, channels, groups, 4))
    keeps_meaning(graph, after, [numbers(2, channels, 6, 6)])


def test_blocks_of_groups_of_any_number_of_pictures() -> None:
    b, batch = GraphBuilder(), Var("batch")
    x = b.input("x", tensor_type("float32", (batch, 85, 6, 6)))
    y = b.add(Conv((2, 2), (1, 1, 1, 1), groups=5), x, b.constant(numbers(95, 17, 3, 3, seed=1)))
    b.output(b.add(Relu(), b.add(Add(), y, b.constant(numbers(95, 1, 1, seed=2)))))
    graph = b.build()
    after = choose_layouts(graph, CAPABILITIES)
    assert [n.output.tensor.layout for n in after.nodes if not isinstance(n.op, Relayout)] == [
        conv_layout(4, 95, 5, 4)
    ] * 3
    keeps_meaning(graph, after, [numbers(3, 85, 6, 6)])


def test_the_cheapest_way_is_taken() -> None:
    def chosen(
        groups: int,
        inputs: int,
        outputs: int,
        lanes: int = 8,
        taps: int = 9,
        rows: float = GROUPED_BORDERS,
        alone: bool = False,
    ) -> int:
        positions = 28 * 28
        before, after = positions * inputs * groups, positions * outputs * groups
        moved = 2.0 * inputs * taps * after / 8
        return choose_groups(groups, inputs, outputs, lanes, moved, before, after, rows, alone, alone)

    assert chosen(32, 4, 4) == 2 and chosen(32, 4, 4, 16, taps=1) == 4 and chosen(16, 24, 24, 16, rows=2) == 2
    assert chosen(32, 8, 8) == 1  # whole blocks already
    assert chosen(3, 2, 2, rows=2) == 3  # one group pads its own blocks
    assert chosen(6, 50, 50) == 1  # twice the work is more than blocks that others do not share
    assert chosen(8, 1, 83) == 1 and chosen(32, 2, 27) == 1
    # Five channels of the model's own input are read where they lie; of another operator's blocks they would have to be
    # taken apart.
    assert choose_groups(32, 5, 16, 8, 1.3e6, 1.3e6, 1.04e6, 5) == 8
    assert choose_groups(32, 5, 16, 8, 1.3e6, 1.3e6, 1.04e6, 5, in_rows=True) == 1
    assert (
        chosen(32, 24, 24, taps=1, rows=2, alone=True) == 1 and chosen(32, 12, 12, taps=1, rows=2, alone=True) == 1
    )  # twice the work is no less
    assert chosen(32, 12, 12, taps=1, rows=2) == 2  # than conversions from and to the blocks around


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
    assert weights is not None and weights.tensor.layout == conv_weight_layout(4, 4, True, False, taps_first=True)
    keeps_meaning(b.build(), after, [np.asarray(numbers(1, 8, 12, 12))])


def test_long_chains_and_diamonds_behind_a_convolution() -> None:
    """Each value is looked at once, and by a loop: paths through twenty diamonds are a million, and a chain of a
    thousand is no recursion."""
    b = GraphBuilder()
    y = b.add(Conv(groups=8), b.input("x", tensor_type("float32", (1, 16, 4, 4))), b.constant(numbers(16, 2, 1, 1)))
    for k in range(1000):
        y = b.add(Add(), y, b.add(Relu(), y)) if k < 40 else b.add(Relu(), y)
    b.output(y)
    assert len(merge_groups(b.build(), CAPABILITIES).nodes) == 1041
