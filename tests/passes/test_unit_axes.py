"""Rules for axes of one element, and for what only moves elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import keeps_meaning, numbers

from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops import (
    Add,
    Clip,
    Concat,
    Conv,
    Log,
    MatMul,
    Multiply,
    Negative,
    Pad,
    ReduceMean,
    ReduceSum,
    Relu,
    Reshape,
    Sigmoid,
    Sqrt,
    Subtract,
    Tanh,
    Transpose,
)
from weft_ops.passes.cancel_transposes import cancel_transposes
from weft_ops.passes.fold_scale import fold_scale
from weft_ops.passes.simplify_algebra import simplify_algebra
from weft_ops.passes.unit_axes import same_but_ones

N = Var("n")
LAST = (0, 2, 3, 1)
Build = Callable[[GraphBuilder, Value], Value]


def k(b: GraphBuilder, value: Any) -> Value:
    return b.constant(np.asarray(value, np.float32))


def graph_of(build: Build, shape: Sequence[Any] = (N, 2, 5, 6)) -> Graph:
    b = GraphBuilder()
    b.output(build(b, b.input("x", tensor_type("float32", tuple(shape)))), "y")
    return b.build()


def after(build: Build, shape: Sequence[Any] = (N, 2, 5, 6)) -> list[str]:
    """The operators left, which must compute the same."""
    graph = graph_of(build, shape)
    simple = simplify_algebra(graph)
    keeps_meaning(graph, simple, [numbers(*(3 if not isinstance(d, int) else d for d in shape))])
    assert str(simplify_algebra(simple)) == str(simple)
    return [type(n.op).__name__ for n in simple.nodes]


def conv(b: GraphBuilder, x: Value, channels: int = 4, **options: Any) -> Value:
    kernel = [1 if d == 1 else 3 for d in x.shape[2:]]
    return b.add(Conv(**options), x, b.constant(numbers(channels, x.shape[1], *kernel)))


def last(b: GraphBuilder, x: Value) -> Value:
    return b.add(Transpose(LAST), conv(b, x))


def test_shapes_that_differ_in_ones() -> None:
    assert same_but_ones((1, N, 3), (N, 1, 1, 3)) and same_but_ones((), (1, 1))
    assert not same_but_ones((2, 3), (3, 2)) and not same_but_ones((N, 3), (3,))


# -- what is computed element by element ------------------------------------------------------------------------------

AFTER_MOVES: dict[str, tuple[Build, list[str]]] = {
    "activation": (
        lambda b, x: b.add(Sigmoid(), b.add(Transpose(LAST), conv(b, x))),
        ["Conv", "Sigmoid", "Transpose"],
    ),
    "bias of channels last": (
        lambda b, x: b.add(Relu(), b.add(Add(), b.add(Transpose(LAST), conv(b, x)), k(b, [1, 2, 3, 4]))),
        ["Conv", "Add", "Relu", "Transpose"],
    ),
    "rows and columns": (
        lambda b, x: b.add(Multiply(), b.add(Transpose(LAST), conv(b, x)), k(b, numbers(3, 4, 1))),
        ["Conv", "Multiply", "Transpose"],
    ),
    "through a reshape of ones": (
        lambda b, x: b.add(
            Negative(), b.add(Reshape((N, 1, 3, 1, 4, 4)), b.add(Transpose(LAST), conv(b, x)))
        ),
        ["Conv", "Negative", "Transpose", "Reshape"],
    ),
    "numbers on both sides": (
        lambda b, x: b.add(Clip(), b.add(Transpose(LAST), conv(b, x)), k(b, 0), k(b, 6)),
        ["Conv", "Clip", "Transpose"],
    ),
    "a product": (
        lambda b, x: b.add(
            Tanh(), b.add(Transpose((1, 0)), b.add(MatMul(), b.add(Reshape((N, 60)), x), k(b, numbers(60, 3))))
        ),
        ["Reshape", "MatMul", "Tanh", "Transpose"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER_MOVES)
def test_elementwise_operators_follow_the_contraction(name: str) -> None:
    build, expected = AFTER_MOVES[name]
    assert after(build) == expected


STAYS: dict[str, tuple[Build, list[str]]] = {
    "a result that is used twice": (
        lambda b, x: b.add(Concat(3), y := b.add(Transpose(LAST), conv(b, x)), b.add(Relu(), y)),
        ["Conv", "Transpose", "Relu", "Concat"],
    ),
    "no contraction": (
        lambda b, x: b.add(Relu(), b.add(Transpose(LAST), x)),
        ["Transpose", "Relu"],
    ),
    "two that are computed": (
        lambda b, x: b.add(Add(), last(b, x), b.add(Relu(), last(b, x))),
        ["Conv", "Transpose", "Conv", "Relu", "Transpose", "Add"],
    ),
    "a constant that gives the shape": (
        lambda b, x: b.add(
            Add(), b.add(Transpose((1, 0)), b.add(ReduceSum((2, 3)), conv(b, x))), k(b, numbers(2, 1, 1))
        ),
        ["Conv", "ReduceSum", "Transpose", "Add"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    build, expected = STAYS[name]
    assert after(build) == expected


# -- transpositions, padding ------------------------------------------------------------------------------------------


def test_transpositions_with_a_reshape_of_ones_between_them() -> None:
    def moved(order: tuple[int, ...]) -> Build:
        return lambda b, x: b.add(
            Transpose(order), b.add(Reshape((N, 1, 5, 6, 2)), b.add(Transpose(LAST), b.add(Tanh(), x)))
        )

    assert after(moved((0, 4, 2, 1, 3))) == ["Tanh", "Reshape"]
    assert after(moved((0, 1, 2, 4, 3))) == ["Tanh", "Transpose", "Reshape"]


@pytest.mark.parametrize("keep", [False, True])
def test_means_of_pictures_with_channels_last(keep: bool) -> None:
    mean = lambda b, x: b.add(ReduceMean((1, 2), keep), b.add(Transpose(LAST), b.add(Tanh(), x)))
    assert after(mean) == ["Tanh", "ReduceMean"] + ["Reshape"] * keep
    of_channels = lambda b, x: b.add(ReduceMean((-1,), keep), b.add(Transpose(LAST), b.add(Tanh(), x)))
    assert after(of_channels) == ["Tanh", "ReduceMean"] + ["Reshape"] * keep
    columns = lambda b, x: b.add(ReduceMean((1,), keep), b.add(Transpose(LAST), b.add(Tanh(), x)))
    assert after(columns) == ["Tanh", "Transpose", "ReduceMean"]


def test_means_of_rows_that_are_needed_as_well() -> None:
    """As in a normalisation, which is one kernel."""

    def centred(b: GraphBuilder, x: Value) -> Value:
        rows = b.add(Transpose(LAST), b.add(Tanh(), x))
        return b.add(Subtract(), rows, b.add(ReduceMean((-1,), True), rows))

    assert after(centred) == ["Tanh", "Transpose", "ReduceMean", "Subtract"]


def test_regions_behind_a_reshape_of_ones() -> None:
    """As ONNX files of TensorFlow have it: each part is transposed, gets an axis, and all of them are concatenated."""
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (N, 4, 6)))
    parts = [b.add(Tanh(), x), b.add(Relu(), x)]
    last = [b.add(Reshape((N, 6, 4, 1)), b.add(Transpose((0, 2, 1)), p)) for p in parts]
    b.output(b.add(Transpose((0, 2, 1, 3)), b.add(Concat(3), *last)), "y")
    graph = b.build()
    done = cancel_transposes(simplify_algebra(graph))
    keeps_meaning(graph, done, [numbers(2, 4, 6)])
    assert sorted(type(n.op).__name__ for n in done.nodes) == ["Concat", "Relu", "Reshape", "Reshape", "Tanh"]


def test_padding_goes_into_a_convolution_behind_a_transposition() -> None:
    def build(mode: Any, *fill: float) -> Build:
        pads = (0, 1, 2, 0, 0, 0, 1, 0)
        return lambda b, x: conv(
            b, b.add(Transpose((0, 3, 1, 2)), b.add(Pad(pads, mode), x, *(k(b, f) for f in fill))), pads=(0, 1, 0, 0)
        )

    assert after(build("constant", 0.0), (N, 5, 6, 2)) == ["Transpose", "Conv"]
    assert after(build("constant"), (N, 5, 6, 2)) == ["Transpose", "Conv"]
    assert after(build("constant", 1.0), (N, 5, 6, 2)) == ["Pad", "Transpose", "Conv"]
    assert after(build("edge"), (N, 5, 6, 2)) == ["Pad", "Transpose", "Conv"]


def test_padding_that_repeats_elements_follows_what_makes_them() -> None:
    def build(b: GraphBuilder, x: Value) -> Value:
        return b.add(Pad((0, 0, 2, 0, 0, 1), "reflect"), b.add(Reshape((N, 1, 9)), b.add(Reshape((N, 9, 1)), x)))

    assert after(lambda b, x: build(b, b.add(Tanh(), x)), (N, 1, 9, 1)) == ["Tanh", "Pad", "Reshape"]


# -- convolutions -----------------------------------------------------------------------------------------------------


def test_convolutions_along_one_axis() -> None:
    def row(b: GraphBuilder, x: Value) -> Value:
        return b.add(Reshape((N, 4, -1)), conv(b, b.add(Reshape((N, 3, 1, 12)), x), strides=(1, 2), pads=(0, 1, 0, 2)))

    assert after(row, (N, 3, 12)) == ["Conv"]
    column = lambda b, x: conv(b, b.add(Reshape((N, 3, 12, 1)), x), strides=(2, 1))
    assert after(column, (N, 3, 12)) == ["Conv", "Reshape"]
    rows = lambda b, x: conv(b, b.add(Transpose((0, 3, 1, 2)), b.add(Reshape((N, 1, 12, 3)), x)))
    assert after(rows, (N, 12, 3)) == ["Transpose", "Conv", "Reshape"]


def test_convolutions_of_which_no_axis_goes() -> None:
    """Nobody has added the axis; or the result is the gate of a picture, which has it as well."""
    assert after(lambda b, x: conv(b, x), (N, 3, 1, 12)) == ["Conv"]
    pixel = lambda b, x: conv(b, b.add(Reshape((N, 3, 1, 1)), x))
    assert after(pixel, (N, 3)) == ["Reshape", "Conv"]
    padded = lambda b, x: conv(b, b.add(Reshape((N, 3, 1, 12)), x), pads=(1, 0, 1, 0))
    assert after(padded, (N, 3, 12)) == ["Reshape", "Conv"]


# -- terms ------------------------------------------------------------------------------------------------------------


def test_a_bias_of_zeros() -> None:
    zeros = np.zeros(4)
    assert after(lambda b, x: b.add(Add(), conv(b, x), k(b, zeros.reshape(4, 1, 1)))) == ["Conv"]
    moved = lambda b, x: b.add(Add(), b.add(Transpose(LAST), conv(b, x)), k(b, zeros))
    assert after(moved) == ["Conv", "Transpose"]
    assert after(lambda b, x: b.add(Add(), x, k(b, 0.0))) == ["Add"]  # x may be -0.0
    wider = lambda b, x: b.add(Add(), conv(b, x), k(b, np.zeros((2, 1, 4, 1, 1))))
    assert "Add" in after(wider)


@pytest.mark.parametrize("first, second, left", [(1e-10, 1e-45, 1), (1.0, 5e-8, 2), (1.0, 2e-8, 1), (0.0, 1e-45, 2)])
def test_terms_too_small_to_count(first: float, second: float, left: int) -> None:
    def build(b: GraphBuilder, x: Value) -> Value:
        squares = b.add(ReduceSum((1,)), b.add(Multiply(), x, x))
        return b.add(Log(), b.add(Add(), b.add(Add(), squares, k(b, first)), k(b, second)))

    assert after(build).count("Add") == left
    graph = graph_of(build)
    for x in (np.zeros((1, 2, 5, 6)), np.full((1, 2, 5, 6), 1e-23), np.full((1, 2, 5, 6), 0.70710677)):
        inputs = [x.astype(np.float32)]
        np.testing.assert_array_equal(evaluate(simplify_algebra(graph), inputs)[0], evaluate(graph, inputs)[0])


def test_terms_that_count() -> None:
    def build(make: Build) -> Build:
        return lambda b, x: b.add(Add(), b.add(Add(), make(b, x), k(b, 1e-3)), k(b, 1e-20))

    assert after(build(lambda b, x: b.add(Sqrt(), b.add(Multiply(), x, x)))).count("Add") == 1
    assert after(build(lambda b, x: x)).count("Add") == 2  # -1e-3, say
    assert after(build(lambda b, x: b.add(Subtract(), b.add(Relu(), x), k(b, 1)))).count("Add") == 2


# -- factors ----------------------------------------------------------------------------------------------------------


def scaled(build: Build) -> list[str]:
    graph = graph_of(build)
    done = fold_scale(simplify_algebra(graph))
    keeps_meaning(graph, done, [numbers(3, 2, 5, 6)])
    return [type(n.op).__name__ for n in done.nodes]


def test_negations_are_factors() -> None:
    assert scaled(lambda b, x: b.add(Negative(), conv(b, x))) == ["Conv"]
    biased = lambda b, x: b.add(Negative(), b.add(Add(), conv(b, x), k(b, 2.0)))
    assert scaled(biased) == ["Conv", "Add"]
    assert scaled(lambda b, x: b.add(Negative(), x)) == ["Negative"]


def test_factors_in_a_row() -> None:
    from weft_ops import Divide

    tanh: Build = lambda b, x: b.add(Tanh(), x)
    assert scaled(lambda b, x: b.add(Multiply(), k(b, 10), b.add(Divide(), tanh(b, x), k(b, 2.3)))) == [
        "Tanh",
        "Multiply",
    ]
    assert scaled(lambda b, x: b.add(Divide(), b.add(Multiply(), tanh(b, x), k(b, 3)), k(b, 7))) == ["Tanh", "Multiply"]
    twice = lambda b, x: b.add(Divide(), b.add(Divide(), tanh(b, x), k(b, 3)), k(b, 7))
    assert scaled(twice) == ["Tanh", "Divide", "Divide"]
    for a, c in ((1e30, 1e30), (1e-30, 1e-30), (0.0, 3.0), (np.inf, 3.0)):
        build = lambda b, x: b.add(Multiply(), b.add(Multiply(), tanh(b, x), k(b, a)), k(b, c))  # noqa: B023
        assert [type(n.op).__name__ for n in fold_scale(graph_of(build)).nodes] == ["Tanh", "Multiply", "Multiply"]


# -- any net ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_chain_of_moves_computes_the_same(data: st.DataObject) -> None:
    """Convolutions along one or two axes, reshapes of ones, transpositions, padding, terms and activations."""
    b = GraphBuilder()
    b_input = b.input("x", tensor_type("float32", (2, 3, 5)))
    x = b_input
    for _ in range(data.draw(st.integers(3, 12))):
        rank = x.tensor.rank
        kind = data.draw(
            st.sampled_from(["ones", "ones", "transpose", "transpose", "unary", "term", "conv", "conv", "pad", "mean"])
        )
        if kind == "ones":
            wide = [d for d in x.shape if d != 1]
            at = sorted(data.draw(st.lists(st.integers(0, len(wide)), max_size=2)), reverse=True)
            for place in at:
                wide.insert(place, 1)
            x = b.add(Reshape(tuple(wide)), x)
        elif kind == "transpose":
            x = b.add(Transpose(tuple(data.draw(st.permutations(range(rank))))), x)
        elif kind == "unary":
            x = b.add(data.draw(st.sampled_from([Tanh(), Negative(), Relu()])), x)
        elif kind == "term":
            shape = [data.draw(st.sampled_from([1, d])) for d in x.shape][data.draw(st.integers(0, rank)) :]
            data_ = numbers(*shape) if data.draw(st.booleans()) else np.zeros(shape, np.float32)
            x = b.add(data.draw(st.sampled_from([Add(), Multiply()])), x, b.constant(data_))
        elif kind == "pad" and rank:
            edges = [data.draw(st.integers(0, 1)) if isinstance(d, int) and d > 1 else 0 for d in x.shape]
            x = b.add(Pad((*edges, *[0] * rank), data.draw(st.sampled_from(["constant", "edge"]))), x)
        elif kind == "mean" and rank:
            axes = tuple(data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
            x = b.add(ReduceMean(axes, data.draw(st.booleans())), x)
        elif kind == "conv" and rank >= 3:
            kernel = [data.draw(st.integers(1, min(2, int(d)))) for d in x.shape[2:] if isinstance(d, int)]
            x = b.add(Conv(), x, b.constant(numbers(3, x.shape[1], *kernel)))
    b.output(b.add(Tanh(), x))
    graph = b.build()
    done = fold_scale(cancel_transposes(simplify_algebra(graph)))
    keeps_meaning(graph, done, [numbers(2, 3, 5, seed=3)])
    count = [sum(isinstance(n.op, Transpose) for n in g.nodes) for g in (graph, done)]
    assert count[1] <= count[0]
