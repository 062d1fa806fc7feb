"""choose_algorithms: convolutions become Winograd convolutions where they may and the target says so, pools of large
windows pools along one axis after another."""

from __future__ import annotations

from typing import Any

import pytest
from tests.graph.graphs import keeps_meaning, numbers

from weft.choices import Choices
from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft_ops.activation import Relu
from weft_ops.contraction import Conv
from weft_ops.passes.choose_algorithms import choose_algorithms
from weft_ops.window import AveragePool, MaxPool, MaxPoolWithIndices, Pool
from weft_ops.winograd import WinogradConv

ALWAYS_FOUR = Capabilities(channel_block=4, panel=8, winograd=lambda node: (4, False))


def net(
    op: Conv,
    x: tuple[Any, ...] = (2, 8, 7, 9),
    w: tuple[int, ...] = (16, 8, 3, 3),
    dtype: str = "float32",
    constant: bool = True,
) -> Graph:
    b = GraphBuilder()
    weights = b.constant(numbers(*w).astype(dtype), "w") if constant else b.input("w", tensor_type(dtype, w))
    y = b.add(Relu(), b.add(op, b.input("x", tensor_type(dtype, x)), weights, name="conv"))
    b.output(y)
    return b.build()


def operators(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


@pytest.mark.parametrize(("m", "skip"), [(2, False), (4, True)])
def test_a_convolution_becomes_winograd(m: int, skip: bool) -> None:
    before = net(Conv(pads=(1, 0, 2, 1)))
    after = choose_algorithms(before, Capabilities(channel_block=4, winograd=lambda node: (m, skip)))
    assert operators(after) == ["WinogradConv", "Relu"]
    node = after.nodes[0]
    assert node.op == WinogradConv(m, (1, 0, 2, 1), 4, skip)
    assert node.names == before.nodes[0].names
    keeps_meaning(before, after, [numbers(2, 8, 7, 9, seed=3)])


def test_tiles_that_do_not_exist_are_refused() -> None:
    said = (
        r"the target requests tiles of Winograd's algorithm of \(7, False\)(.|\n)*hint: `Capabilities.winograd` gives"
        r" one of 2, 4"
    )
    with pytest.raises(GraphError, match=said):
        choose_algorithms(net(Conv(pads=(1, 0, 2, 1))), Capabilities(channel_block=4, winograd=lambda node: (7, False)))


def test_without_blocks_any_number_of_channels() -> None:
    before = net(Conv(pads=(1, 1, 1, 1)), (2, 3, 7, 9), (5, 3, 3, 3))
    after = choose_algorithms(before, Capabilities(winograd=lambda node: (2, False)))
    assert after.nodes[0].op == WinogradConv(2, (1, 1, 1, 1))
    keeps_meaning(before, after, [numbers(2, 3, 7, 9, seed=3)])


def test_any_batch() -> None:
    before = net(Conv(pads=(1, 1, 1, 1)), (Var("n"), 8, 6, 6))
    after = choose_algorithms(before, ALWAYS_FOUR)
    assert operators(after) == ["WinogradConv", "Relu"]
    keeps_meaning(before, after, [numbers(3, 8, 6, 6)])


@pytest.mark.parametrize("size", [(Var("h"), Var("w")), (9, Var("w")), (Var("h"), 6)], ids=["both", "width", "height"])
def test_pictures_of_any_size(size: tuple[int | Var, int | Var]) -> None:
    before = net(Conv(pads=(1, 0, 1, 2)), (2, 8, *size))
    after = choose_algorithms(before, ALWAYS_FOUR)
    assert operators(after) == ["WinogradConv", "Relu"]
    for h, w in ((6, 6), (9, 13), (4, 3)):
        given = (h if isinstance(size[0], Var) else size[0], w if isinstance(size[1], Var) else size[1])
        keeps_meaning(before, after, [numbers(2, 8, *given)])


def test_a_record_gives_no_tiles_to_open_sizes_that_the_target_declines() -> None:
    before = net(Conv(pads=(1, 1, 1, 1)), (2, 8, Var("h"), 9))
    choices = Choices()
    after = choose_algorithms(before, Capabilities(winograd=lambda node: None, channel_block=8), choices)
    assert operators(after) == ["Conv", "Relu"] and not choices.made


def test_weights_used_twice_are_transformed_once() -> None:
    b = GraphBuilder()
    x, w = b.input("x", tensor_type("float32", (1, 8, 9, 9))), b.constant(numbers(8, 8, 3, 3))
    b.output(b.add(Conv(pads=(1,) * 4), b.add(Conv(pads=(1,) * 4), x, w), w))
    after = choose_algorithms(b.build(), ALWAYS_FOUR)
    first, second = after.nodes
    assert first.inputs[1] is second.inputs[1]


@pytest.mark.parametrize("m", [2, 4])
def test_weights_that_a_run_gives_are_transformed_by_the_run(m: int) -> None:
    b = GraphBuilder()
    x, w = b.input("x", tensor_type("float32", (2, 8, 9, 11))), b.input("w", tensor_type("float32", (16, 8, 3, 3)))
    b.output(b.add(Conv(pads=(1,) * 4), b.add(Conv(pads=(1,) * 4), x, b.constant(numbers(8, 8, 3, 3))), w))
    b.output(b.add(Conv(), x, w))
    before = b.build()
    after = choose_algorithms(before, Capabilities(winograd=lambda node: (m, False), channel_block=8))
    assert operators(after).count("WinogradConv") == 3 and operators(after).count("MatMul") == 1
    keeps_meaning(before, after, [numbers(2, 8, 9, 11), numbers(16, 8, 3, 3, seed=4)])


@pytest.mark.parametrize(
    "graph",
    [
        net(Conv(strides=(2, 2))), net(Conv(dilations=(2, 2))), net(Conv(groups=2), w=(16, 4, 3, 3)), net(Conv(), w=(16,
            8, 1, 1)),
        net(Conv(), w=(18, 8, 3, 3)), net(Conv(), (2, 6, 7, 9), (16, 6, 3, 3)),
        net(Conv(), dtype="float64"),
        net(Conv(), (2, 8, 9), (16, 8, 3)),
    ],
    ids=["stride", "dilation", "groups", "pointwise", "outputs", "channels", "float64", "one_axis"],
)  # fmt: skip
def test_others_stay(graph: Graph) -> None:
    assert operators(choose_algorithms(graph, ALWAYS_FOUR)) == ["Conv", "Relu"]


def test_a_target_that_says_nothing_or_no() -> None:
    graph = net(Conv())
    assert choose_algorithms(graph, Capabilities()) is graph
    assert operators(choose_algorithms(graph, Capabilities(channel_block=4, winograd=lambda node: None))) == [
        "Conv",
        "Relu",
    ]


def test_layouts_activations_in_blocks_weights_in_panels() -> None:
    graph = choose_layouts(choose_algorithms(net(Conv(pads=(1,) * 4)), ALWAYS_FOUR), ALWAYS_FOUR)
    (node,) = [n for n in graph.nodes if isinstance(n.op, WinogradConv)]
    x, u = node.inputs
    assert x is not None and u is not None and x.tensor.layout is not None and u.tensor.layout is not None
    assert x.tensor.layout.stored_shape(x.shape) == (2, 2, 7, 9, 4)
    assert u.tensor.layout.stored_shape(u.shape) == (2, 36, 8, 8)
    keeps_meaning(net(Conv(pads=(1,) * 4)), graph, [numbers(2, 8, 7, 9)])


# -- pools ------------------------------------------------------------------------------------------------------------

ONE = Capabilities(store_cost=1.0)
N = Var("n")


def pooled(pool: Pool, shape: tuple[Any, ...], dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    for k, y in enumerate(b.add_all(pool, b.input("x", tensor_type(dtype, shape)), name="pool")):
        b.output(y, f"y{k}")
    return b.build()


ROWS = [(5, 1), (1, 5)]
CUBE = [(3, 1, 1), (1, 3, 1), (1, 1, 3)]
LARGE = [(7, 1, 1), (1, 7, 1), (1, 1, 7)]


@pytest.mark.parametrize(
    ("pool", "shape", "near", "far"),
    [
        (MaxPool((5, 5), (1, 1), (2, 1, 0, 2)), (N, 2, 7, 6), ROWS, ROWS),
        (MaxPool((3, 3, 3)), (1, 2, 5, 4, 6), CUBE, CUBE),
        (MaxPool((9, 7), (2, 1), (1, 3, 2, 3), (1, 2), True), (1, 2, 12, 15), [(9, 1), (1, 7)], [(9, 1), (1, 7)]),
        (MaxPool((3, 3, 3), (2, 2, 2)), (1, 2, 7, 8, 9), CUBE, [(3, 3, 3)]),
        (MaxPool((5, 1, 5), (1, 2, 1)), (1, 2, 7, 8, 9), [(5, 1, 1), (1, 1, 5)], [(5, 1, 1), (1, 1, 5)]),
        (MaxPool((3, 3), (2, 2)), (1, 2, 7, 7), [(3, 3)], [(3, 3)]),  # neighbours share too little
        (MaxPool((2, 2), (2, 2)), (1, 2, 8, 8), [(2, 2)], [(2, 2)]),
        (MaxPool((25, 1)), (1, 1, 30, 2), [(25, 1)], [(25, 1)]),
        (AveragePool((7, 7), (2, 2), (3, 2, 3, 1)), (1, 2, 13, 12), [(7, 1), (1, 7)], [(7, 1), (1, 7)]),
        (AveragePool((5, 4), (1, 1), (2, 0, 2, 3), (), True), (1, 2, 9, 12), [(5, 1), (1, 4)], [(5, 1), (1, 4)]),
        (AveragePool((5, 5), (2, 3), (2, 2, 1, 2), (), True, True), (1, 2, 9, 12), ROWS, [(5, 5)]),
        (AveragePool((7, 7, 7), (1, 1, 1), (3, 1, 3, 3, 1, 3)), (1, 1, 9, 9, 8), LARGE, LARGE),
    ],
)
def test_pools_of_large_windows_go_along_one_axis_after_another(
    pool: Pool, shape: tuple[Any, ...], near: list[tuple[int, ...]], far: list[tuple[int, ...]]
) -> None:
    graph = pooled(pool, shape)
    for capabilities, kernels in ((ONE, near), (Capabilities(), far)):
        after = choose_algorithms(graph, capabilities)
        assert [n.op.attributes()["kernel"] for n in after.nodes] == kernels
        keeps_meaning(graph, after, [numbers(*(2 if not isinstance(d, int) else d for d in shape)) - 9])


def test_pools_that_stay_whole() -> None:
    """Where the place of the greatest element is wanted as well, and where means would be rounded twice."""
    mean = AveragePool((5, 5))
    for pool, dtype in ((MaxPoolWithIndices((5, 5)), "float32"), (mean, "float16"), (mean, "int32")):
        graph = pooled(pool, (1, 1, 7, 6), dtype)
        assert [type(n.op) for n in choose_algorithms(graph, ONE).nodes] == [type(pool)]


def test_a_record_says_how_a_pool_is_computed() -> None:
    for pool, kernels in ((MaxPool((5, 5)), [(5, 5)]), (MaxPool((2, 2), (2, 2)), [(2, 1), (1, 2)])):
        name = "definition" if len(kernels) == 1 else "by_axes"
        graph = pooled(pool, (1, 1, 8, 8))
        choices = Choices({f"algorithm.%{graph.nodes[0].output.name}": name}, "a test")
        after = choose_algorithms(graph, ONE, choices)
        assert [n.op.attributes()["kernel"] for n in after.nodes] == kernels
