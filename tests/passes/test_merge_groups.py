"""Groups that are no whole channel blocks become such: merged, or with zeros between them, as costs less."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import keeps_meaning, numbers

from weft.expr.nodes import Var
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.ops.contraction import Conv
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft.passes.layout_offers import conv_weight_layout
from weft.passes.merge_groups import Groups, choose_groups, merge_groups

CAPABILITIES = Capabilities(channel_block=4)


def grouped(channels: int, outputs: int, groups: int, stride: int = 1) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (2, channels, 6, 6)))
    w = b.constant(numbers(outputs, channels // groups, 3, 3, seed=1), "w")
    b.output(b.add(Conv((stride, stride), (1, 1, 1, 1), groups=groups), x, w))
    return b.build()


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "after"),
    [(16, 16, 8, 4), (8, 16, 8, 2), (16, 16, 4, 4), (24, 24, 4, 2), (8, 8, 8, 8), (18, 18, 3, 1), (4, 4, 1, 1), (20, 20, 10, 5), (4, 8, 4, 1), (6, 10, 2, 1)],
)
def test_groups(channels: int, outputs: int, groups: int, after: int) -> None:
    graph = grouped(channels, outputs, groups)
    merged = merge_groups(graph, CAPABILITIES)
    (node,) = merged.nodes
    assert isinstance(node.op, Conv) and node.op.groups == after
    keeps_meaning(graph, merged, [numbers(2, channels, 6, 6)])


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "inside"),
    [(95, 80, 5, (100, 80)), (170, 170, 10, (200, 200)), (80, 95, 5, (80, 100))],
)
def test_groups_too_large_to_merge_get_zeros_between_them(channels: int, outputs: int, groups: int, inside: tuple[int, int]) -> None:
    graph = grouped(channels, outputs, groups, stride=2)
    padded = merge_groups(graph, CAPABILITIES)
    (convolution,) = [n for n in padded.nodes if isinstance(n.op, Conv)]
    assert convolution.op.attributes()["groups"] == groups and (convolution.inputs[0].shape[1], convolution.output.shape[1]) == inside  # type: ignore[union-attr]
    assert str(merge_groups(padded, CAPABILITIES)) == str(padded)
    keeps_meaning(graph, padded, [numbers(2, channels, 6, 6)])


def test_zeros_between_groups_of_any_number_of_pictures() -> None:
    b, batch = GraphBuilder(), Var("batch")
    x = b.input("x", tensor_type("float32", (batch, 85, 6, 6)))
    b.output(b.add(Conv((1, 1), (1, 1, 1, 1), groups=5), x, b.constant(numbers(95, 17, 3, 3, seed=1))))
    graph = b.build()
    padded = merge_groups(graph, CAPABILITIES)
    assert [type(n.op).__name__ for n in padded.nodes] == ["Reshape", "Pad", "Reshape", "Conv", "Reshape", "Slice", "Reshape"]
    keeps_meaning(graph, padded, [numbers(3, 85, 6, 6)])


def test_the_cheapest_way_is_taken() -> None:
    def chosen(groups: int, inputs: int, outputs: int, lanes: int = 8, size: int = 28, taps: int = 9) -> Groups | None:
        positions = size * size
        before, after = positions * inputs * groups, positions * outputs * groups
        return choose_groups(groups, inputs, outputs, lanes, 2.0 * inputs * taps * after, before, after)

    assert chosen(32, 4, 4) == Groups(2, 8, 8) and chosen(32, 4, 4, 16) == Groups(4, 16, 16) and chosen(16, 24, 24, 16) == Groups(2, 48, 48)
    assert chosen(32, 8, 8) is None  # whole blocks already
    assert chosen(3, 4, 4) == Groups(3, 12, 12)  # one group pads its own blocks
    assert chosen(6, 50, 50) == Groups(1, 56, 56)  # six times the work is more than two copies
    assert chosen(30, 5, 7) == Groups(1, 8, 8)
    assert chosen(64, 1, 1, taps=1) is not None and chosen(3, 4, 4, taps=1) == Groups(3, 12, 12)
    assert chosen(1021, 1, 3, taps=1) is None  # a prime number of groups, and copies cost more than so little work


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
