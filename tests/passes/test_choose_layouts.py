"""Layouts: chains of convolutions are blocked, conversions stand where they pay, constants are packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import convolutional, keeps_meaning, numbers
from tests.passes.library import run_passes

from weft.errors import GraphError, ScheduleWarning
from weft.expr.nodes import Var
from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.graph.operator import Operator
from weft.graph.relayout import Relayout
from weft.passes.capabilities import Capabilities, LayoutOffer, LayoutRule
from weft.passes.choose_layouts import choose_layouts, impossible_layout, strip_layouts
from weft.passes.layout_offers import conv_weight_layout, panel_layout, recurrence_offers
from weft.passes.pipeline import GraphPass
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Multiply
from weft_ops.cells import GATES, Cell
from weft_ops.contraction import Conv, MatMul
from weft_ops.image import Resize
from weft_ops.movement import Concat, Pad, Reshape, Slice
from weft_ops.recurrent import Recurrence
from weft_ops.reduction import ReduceMean
from weft_ops.window import MaxPool

N = Var("n")
NC4 = blocked(4, 1, 4)
CAPABILITIES = Capabilities(channel_block=4, panel=4)


def conv(b: GraphBuilder, x: Value, channels: int, kernel: int = 3, groups: int = 1) -> Value:
    w = b.constant(numbers(channels, x.shape[1] // groups, kernel, kernel, seed=channels), "w")  # type: ignore[operator]
    return b.add(Conv(pads=(kernel // 2,) * 4, groups=groups), x, w)  # type: ignore[no-any-return]


def chosen(graph: Graph, *inputs: Any, capabilities: Capabilities = CAPABILITIES) -> list[tuple[str, Layout | None]]:
    after = choose_layouts(graph, capabilities)
    keeps_meaning(graph, after, inputs)
    assert all(v.tensor.layout is None for v in (*after.inputs, *after.outputs))
    assert str(choose_layouts(after, capabilities)) == str(after)
    return [(type(n.op).__name__, n.output.tensor.layout) for n in after.nodes]


def test_a_chain_is_blocked_from_the_first_convolution_on() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (N, 3, 8, 8)))
    first = b.add(Relu(), b.add(Add(), conv(b, x, 8), b.constant(numbers(8, 1, 1))))
    y = b.add(MaxPool((2, 2), (2, 2)), b.add(Add(), conv(b, first, 8), first))
    y = b.add(Concat(1), conv(b, y, 4), conv(b, y, 8, groups=8))
    b.output(b.add(ReduceMean((2, 3)), y))
    assert chosen(b.build(), numbers(2, 3, 8, 8)) == [
        ("Conv", NC4), ("Add", NC4), ("Relu", NC4), ("Conv", NC4), ("Add", NC4), ("MaxPool", NC4), ("Conv", NC4),
        ("Conv", NC4), ("Concat", NC4),
        ("ReduceMean", None),
    ]  # fmt: skip
    weights = [n.inputs[1] for n in choose_layouts(b.build(), CAPABILITIES).nodes if isinstance(n.op, Conv)]
    assert [w.tensor.layout for w in weights] == [  # type: ignore[union-attr]
        conv_weight_layout(4, 4, input_blocked, depthwise, True)
        for input_blocked, depthwise in ((False, False), (True, False), (True, False), (True, True))
    ]
    assert conv_weight_layout(4, 4, True, False).stored_shape((8, 12, 3, 5)) == (2, 3, 3, 5, 4, 4)
    w = np.arange(8 * 12 * 15).reshape(8, 12, 3, 5)
    assert conv_weight_layout(4, 4, True, False).pack(w)[1, 2, 0, 3, 1, 2] == w[4 + 2, 8 + 1, 0, 3]
    assert conv_weight_layout(4, 4, True, True).stored_shape((8, 1, 3, 5)) == (2, 1, 3, 5, 4)


@pytest.mark.parametrize(("size", "dilation", "gaps"), [(5, 1, True), (40, 1, False), (40, 9, True), (N, 9, False)])
def test_where_many_taps_are_outside_weights_lie_tap_by_tap(size: int | Var, dilation: int, gaps: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 8, 40, size)))
    b.output(b.add(Conv((1, 1), (dilation,) * 4, (dilation, dilation)), x, b.constant(numbers(8, 8, 3, 3, seed=1))))
    (node,) = [n for n in choose_layouts(b.build(), CAPABILITIES).nodes if isinstance(n.op, Conv)]
    weights = node.inputs[1]
    assert weights is not None and weights.tensor.layout == conv_weight_layout(4, 4, True, False, taps_first=gaps)
    keeps_meaning(
        b.build(), choose_layouts(b.build(), CAPABILITIES), [numbers(1, 8, 40, 12 if isinstance(size, Var) else size)]
    )


def test_weights_tap_by_tap() -> None:
    w = np.arange(8 * 12 * 15).reshape(8, 12, 3, 5)
    layout = conv_weight_layout(4, 4, True, False, taps_first=True)
    assert (
        layout.stored_shape(w.shape) == (2, 3, 5, 3, 4, 4) and layout.pack(w)[1, 0, 3, 2, 1, 2] == w[4 + 2, 8 + 1, 0, 3]
    )


def test_outputs_and_others_get_conversions_once() -> None:
    b = GraphBuilder()
    y = conv(b, b.input("x", tensor_type("float32", (2, 4, 8, 8))), 8, 7)
    b.output(y, "y")
    b.output(b.add(Reshape((2, -1)), y))
    b.output(b.add(Reshape((-1,)), y))
    graph = choose_layouts(b.build(), CAPABILITIES)
    assert [type(n.op) for n in graph.nodes].count(Relayout) == 2  # one in, one out, though three use it
    keeps_meaning(b.build(), graph, [numbers(2, 4, 8, 8)])


def test_channels_that_do_not_divide_are_padded() -> None:
    b = GraphBuilder()
    y = conv(b, b.add(Relu(), conv(b, b.input("x", tensor_type("float32", (2, 3, 8, 8))), 11)), 6)
    b.output(y)
    assert chosen(b.build(), numbers(2, 3, 8, 8)) == [("Conv", NC4), ("Relu", NC4), ("Conv", NC4), ("Relayout", None)]
    assert not choose_layouts(b.build(), CAPABILITIES).outputs[0].tensor.layout


def test_what_would_be_computed_in_vain_stays_row_major_and_so_do_computed_weights() -> None:
    b = GraphBuilder()
    y = b.add(Conv(), b.input("x", tensor_type("float32", (2, 3, 8, 8))), b.constant(numbers(1, 3, 3, 3)))
    b.output(b.add(Relu(), y))
    w = b.input("w", tensor_type("float32", (4, 3, 3, 3)))
    b.output(b.add(Conv(), y := b.input("z", tensor_type("float32", (2, 3, 8, 8))), w))
    b.output(conv(b, conv(b, y, 8, 1, 1), 8, groups=2))
    assert [layout for _, layout in chosen(b.build(), numbers(2, 3, 8, 8), numbers(4, 3, 3, 3), numbers(2, 3, 8, 8))][
        :3
    ] == [None, None, None]


def test_a_conversion_that_costs_more_than_it_gains_is_not_made() -> None:
    b = GraphBuilder()
    y = conv(b, b.input("x", tensor_type("float32", (1, 4, 4, 4))), 4, 1)
    b.output(b.add(Multiply(), b.add(Relu(), y), y))
    for gain, expected in ((-4e-9, None), (-4e-5, NC4)):
        offer = LayoutOffer((NC4, None), (NC4,), gain)
        rules: dict[type[Operator] | str, LayoutRule] = {Conv: lambda node, offer=offer: [offer]}  # type: ignore[misc]
        found = dict(chosen(b.build(), numbers(1, 4, 4, 4), capabilities=Capabilities(layouts=rules)))
        assert found["Conv"] == found["Multiply"] == expected


@pytest.mark.parametrize("cost", [-1e6, 1e6, float("nan")])
def test_costs_that_are_no_seconds_are_said(cost: float) -> None:
    b = GraphBuilder()
    b.output(conv(b, b.input("x", tensor_type("float32", (1, 4, 4, 4))), 4, 1))
    said = (
        "layouts of Conv are offered at costs that are no seconds (more than 600 for one node), and may be preferred"
        " wrongly: LayoutOffer.cost was in bytes before 0.2"
    )
    with pytest.warns(ScheduleWarning) as caught:
        choose_layouts(b.build(), Capabilities(layouts={Conv: lambda node: [LayoutOffer((NC4, None), (NC4,), cost)]}))
    assert {str(w.message) for w in caught} == {said}


def test_the_faster_values_are_stored_anew_the_more_conversions_pay() -> None:
    b = GraphBuilder()
    y = conv(b, b.input("x", tensor_type("float32", (1, 4, 64, 64))), 4, 1)
    b.output(y)
    rules: dict[type[Operator] | str, LayoutRule] = {Conv: lambda node: [LayoutOffer((NC4, None), (NC4,), -1e-5)]}
    for rate, expected in ((1e9, None), (1e12, NC4)):
        after = choose_layouts(b.build(), Capabilities(layouts=rules, relayout_bytes_per_second=rate))
        assert next(n for n in after.nodes if isinstance(n.op, Conv)).output.tensor.layout == expected


def test_products_pack_their_constant() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (N, 3, 6)))
    w = b.constant(numbers(6, 10), "w")
    b.output(b.add(MatMul(), x, w))
    b.output(
        b.add(
            Add(),
            b.add(MatMul(), x, b.input("v", tensor_type("float32", (6, 10)))),
            b.add(MatMul(), b.constant(numbers(3, 6)), w),
        )
    )
    graph = choose_layouts(b.build(), CAPABILITIES)
    packed = [v for v in graph.constants() if v.tensor.layout is not None]
    assert [v.tensor.layout for v in packed] == [panel_layout(4)]
    assert packed[0].tensor.layout.stored_shape((6, 10)) == (3, 6, 4)  # type: ignore[union-attr]
    keeps_meaning(b.build(), graph, [numbers(2, 3, 6), numbers(6, 10)])


def test_a_constant_with_two_users_is_two_constants() -> None:
    b = GraphBuilder()
    w = b.constant(numbers(8, 8), "w")
    b.output(b.add(Relu(), b.add(MatMul(), b.input("x", tensor_type("float32", (3, 8))), w)))
    b.output(b.add(Relu(), w))
    graph = choose_layouts(b.build(), CAPABILITIES)
    assert sorted(str(v.tensor.layout) for v in graph.constants()) == ["None", str(panel_layout(4))]


def test_no_offers_no_layouts() -> None:
    graph, inputs = convolutional()
    assert str(choose_layouts(graph, Capabilities())) == str(strip_layouts(choose_layouts(graph, Capabilities())))
    keeps_meaning(graph, strip_layouts(choose_layouts(graph, CAPABILITIES)), inputs)


def test_what_moves_whole_blocks_follows() -> None:
    b = GraphBuilder()
    y = conv(b, b.input("x", tensor_type("float32", (1, 3, 8, 8))), 16)
    y = b.add(Resize((1, 16, 16, 12)), y)
    y = b.add(Pad((0, 0, 1, 0, 0, 0, 0, 1), "edge"), y)
    y = b.add(Slice((0, 4, 1, 0), (1, 8, 9, 13)), y)
    b.output(b.add(ReduceMean((2, 3)), conv(b, y, 8)))
    assert [layout for _, layout in chosen(b.build(), numbers(1, 3, 8, 8))] == [NC4] * 5 + [None]


def test_what_moves_parts_of_blocks_does_not() -> None:
    for op in (
        Resize((1, 24, 8, 8)),
        Pad((0, 4, 0, 0, 0, 4, 0, 0)),
        Slice((0, 2, 0, 0), (1, 8, 8, 8)),
        Slice((0, 0, 0, 0), (1, 8, 8, 8), (1, 2, 1, 1)),
    ):
        b = GraphBuilder()
        y = b.add(op, conv(b, b.input("x", tensor_type("float32", (1, 4, 8, 8))), 16))
        b.output(b.add(Relu(), y))
        assert dict(chosen(b.build(), numbers(1, 4, 8, 8)))[type(op).__name__] is None


def only_blocked(node: Node) -> list[LayoutOffer]:
    """A product of a chip that knows tiles of 4 × 4 alone, a bad bargain as far as costs go."""
    tiles = Layout((Split(0, 4), Split(2, 4), Permute((0, 2, 1, 3))))
    return [
        LayoutOffer((tiles, tiles), (tiles,), 100.0, only=True),
        LayoutOffer((tiles, None), (tiles,), 200.0, only=True),
    ]


@pytest.mark.parametrize("constant", [True, False])
def test_what_cannot_be_row_major_never_is(constant: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (8, 12)))
    w = b.constant(numbers(12, 8), "w") if constant else b.input("w", tensor_type("float32", (12, 8)))
    b.output(b.add(Relu(), b.add(MatMul(), b.add(Relu(), x), w)))
    graph = b.build()
    arrays = (numbers(8, 12), *(() if constant else (numbers(12, 8, seed=3),)))
    dear = Capabilities(layouts={MatMul: lambda node: [replace(o, only=False) for o in only_blocked(node)]})
    assert {layout for _, layout in chosen(graph, *arrays, capabilities=dear)} == {None}
    capabilities = Capabilities(layouts={MatMul: only_blocked})
    after = choose_layouts(graph, capabilities)
    keeps_meaning(graph, after, arrays)
    (product,) = [n for n in after.nodes if isinstance(n.op, MatMul)]
    assert only_blocked(product)[0].fits(product)
    assert all(v.tensor.layout is None for v in (*after.inputs, *after.outputs))
    assert sum(isinstance(n.op, Relayout) for n in after.nodes) >= (2 if constant else 3)
    assert impossible_layout(after, capabilities) is None


def test_a_pass_may_not_take_layouts_from_what_exists_in_them_only() -> None:
    b = GraphBuilder()
    x, w = b.input("x", tensor_type("float32", (8, 12))), b.input("w", tensor_type("float32", (12, 8)))
    b.output(b.add(MatMul(), x, w))
    strip = GraphPass("strip", strip_layouts, after="choose_layouts")
    with pytest.raises(GraphError) as caught:
        run_passes(b.build(), Capabilities(layouts={MatMul: only_blocked}), [strip])
    assert str(caught.value).startswith(
        "after the pass 'strip': "
    ) and "is stored as the target cannot compute it" in str(caught.value)
    assert "why: a LayoutOffer of its operator says `only`" in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "rows", "panel", "together"),
    [("lstm", 1, 8, True), ("lstm", 2, 8, False), ("lstm", 1, 16, False), ("gru", 1, 8, False), ("rnn", 1, 8, False)],
)
def test_gates_of_one_row_share_a_stream_where_each_is_less_than_a_line(
    cell: Cell, rows: int, panel: int, together: bool
) -> None:
    gates, hidden = GATES[cell], 32
    b = GraphBuilder("g")
    weights = b.constant(np.arange(gates * hidden * hidden, dtype=np.float32).reshape(gates, hidden, hidden), "r")
    x, h = (b.input(n, tensor_type("float32", s)) for n, s in (("x", (5, rows, gates * hidden)), ("h", (rows, hidden))))
    node = b.add_all(Recurrence(cell), x, weights, h, None, None, None)[0].producer
    assert node is not None
    (offer,) = recurrence_offers(node, panel, -1.0, 1e-10)
    layout = offer.inputs[1]
    assert layout is not None and weights.constant is not None
    stored = layout.pack(weights.constant)
    want = weights.constant.reshape(gates, hidden // panel, panel, hidden)  # gate, panel, unit, state
    np.testing.assert_array_equal(stored, want.transpose((1, 3, 0, 2) if together else (1, 0, 3, 2)))
