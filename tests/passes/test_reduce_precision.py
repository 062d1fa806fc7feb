"""Reduced precision means: constant weights of contractions are rounded once, everything else stays as it was. How
weights are stored changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import numbers, reparsed

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.passes.capabilities import Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft.passes.decompose import decompose
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv, ConvTranspose, MatMul
from weft_ops.passes.narrow_weights import narrow_weights
from weft_ops.passes.reduce_precision import reduce_precision, round_weights
from weft_ops.recurrent import GATES, Recurrence
from weft_ops.signal import DFT

Array = np.ndarray[Any, Any]
NARROW = [dt.float16, dt.bfloat16]


def reduced(graph: Graph, narrow: DType) -> Graph:
    return reduce_precision(graph, Capabilities(precision=narrow))


def stored(graph: Graph, narrow: DType, block: int | None = 2) -> Graph:
    """Rounded, laid out for vectors of `block` channels, and stored."""
    capabilities = Capabilities(channel_block=block, panel=block, precision=narrow)
    return narrow_weights(choose_layouts(reduce_precision(graph, capabilities), capabilities), capabilities)


def matmul(weights: Callable[..., Array]) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (2, 5, 7)))
    y = b.add(Add(), b.add(MatMul(), x, b.constant(weights(7, 6), "w")), b.constant(numbers(6), "bias"))
    b.output(b.add(MatMul(), y, b.constant(weights(2, 6, 3, seed=1), "batched")))
    return b.build()


def convolution(weights: Callable[..., Array]) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 4, 6, 5)))
    y = b.add(Conv(pads=(1, 1, 1, 1), groups=2), x, b.constant(weights(6, 2, 3, 3), "w"))
    b.output(b.add(ConvTranspose((2, 2)), y, b.constant(weights(6, 3, 2, 2, seed=1), "up")))
    return b.build()


def recurrence(weights: Callable[..., Array]) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (3, 2, GATES["gru"] * 4)))
    start = b.constant(numbers(2, 4), "start")
    y, last = b.add_all(
        Recurrence("gru"), x, b.constant(weights(GATES["gru"], 4, 4), "r"), start, None, None, None, None
    )
    b.output(y)
    b.output(last)
    return b.build()


GRAPHS = [matmul, convolution, recurrence]


def by_hand(value: float, narrow: DType) -> float:
    """`value` (a float32) rounded to nearest, ties to even, without numpy's conversions."""
    if narrow is dt.float16:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@settings(deadline=None)
@given(st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=8))
def test_rounds_to_nearest_even(narrow: DType, values: list[float]) -> None:
    got = round_weights(np.array(values, np.float32), narrow)
    assert got is not None and got.dtype == np.float32
    assert got.astype(np.float64).tolist() == [by_hand(v, narrow) for v in values]


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_meaning(make: Callable[..., Graph], narrow: DType, seed: int) -> None:
    """The reference is the model itself with other weights: so activations, biases, states and sums are not rounded."""

    def weights(*shape: int, seed: int = seed) -> Array:
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def rounded(*shape: int, seed: int = seed) -> Array:
        return weights(*shape, seed=seed).astype(narrow.numpy).astype(np.float32)

    before = make(weights)
    x = np.random.default_rng(seed + 1).standard_normal(before.inputs[0].shape).astype(np.float32)  # type: ignore[arg-type]
    for after in (reduced(before, narrow), stored(before, narrow)):
        for got, want in zip(evaluate(reparsed(after), [x]), evaluate(make(rounded), [x]), strict=True):
            np.testing.assert_array_equal(got, want)


def weights_of(graph: Graph) -> list[tuple[str, str]]:
    return [
        (type(n.op).__name__, str(n.inputs[1].dtype))
        for n in graph.nodes
        if len(n.inputs) > 1 and n.inputs[1] is not None and n.inputs[1].constant is not None
    ]


def test_weights_that_are_read_in_vectors_are_stored_narrow() -> None:
    assert weights_of(stored(matmul(numbers), dt.float16)) == [
        ("MatMul", "float16"),
        ("Add", "float32"),
        ("MatMul", "float16"),
    ]
    assert weights_of(stored(recurrence(numbers), dt.bfloat16)) == [("Recurrence", "bfloat16")]
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 64, 9, 9)))
    b.output(b.add(Conv(), x, b.constant(numbers(64, 64, 3, 3), "w")))
    for block, stored_as in ((8, "float16"), (None, "float32")):  # packed, and row by row
        after = stored(b.build(), dt.float16, block)
        assert [str(n.inputs[1].dtype) for n in after.nodes if isinstance(n.op, Conv)] == [stored_as]  # type: ignore[union-attr]
    column = GraphBuilder()
    column.output(product(column.input("x", tensor_type("float32", (4, 8))), numbers(8, 1), column))
    assert weights_of(stored(column.build(), dt.float16, 8)) == [("MatMul", "float32")]


def test_without_the_option_nothing_happens() -> None:
    graph = matmul(numbers)
    assert reduce_precision(graph, Capabilities()) is graph and narrow_weights(graph, Capabilities()) is graph


def test_without_rounding_nothing_is_stored_narrow() -> None:
    """Such as Winograd's transformed weights: they are no numbers of the narrow type."""
    before = matmul(numbers)
    assert str(narrow_weights(before, Capabilities(precision=dt.float16))) == str(before)


def product(left: Value | Array, right: Value | Array, b: GraphBuilder) -> Value:
    operands = [b.constant(v) if isinstance(v, np.ndarray) else v for v in (left, right)]
    return b.add(MatMul(), *operands)  # type: ignore[no-any-return]


@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_what_is_no_float32_weight_stays(narrow: DType) -> None:
    b = GraphBuilder()
    x, double, short = (
        b.input(n, tensor_type(d, (4, 4))) for n, d in (("x", "float32"), ("d", "float64"), ("s", "int8"))
    )
    b.output(product(x, x, b))  # no operand is constant, as in attention
    b.output(product(numbers(4, 4), x, b))
    b.output(product(double, numbers(4, 4).astype(np.float64), b))
    b.output(product(short, np.ones((4, 4), np.int8), b))
    b.output(b.add(MatMul(dt.float64), x, b.constant(numbers(4, 4), "w")))
    before = b.build()
    assert str(reduced(before, narrow)) == str(before) == str(stored(before, narrow, None))


def test_weights_that_would_overflow_stay() -> None:
    for value, narrow, kept in (
        (65519.0, dt.float16, False),
        (65520.0, dt.float16, True),
        (-3.4e38, dt.bfloat16, True),
        (1e5, dt.bfloat16, False),
    ):
        b = GraphBuilder()
        x = b.input("x", tensor_type("float32", (1, 2)))
        b.output(product(x, np.array([[1.0, 2.0], [value, 3.0]], np.float32), b))
        assert weights_of(stored(b.build(), narrow)) == [("MatMul", "float32" if kept else str(narrow))]


def test_what_is_infinite_or_no_number_stays_that() -> None:
    got = round_weights(np.array([np.inf, -np.inf, np.nan, 1e-9], np.float32), dt.float16)
    assert got is not None
    np.testing.assert_array_equal(got, np.array([np.inf, -np.inf, np.nan, 0], np.float32))


def test_tied_weights_are_rounded_once() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 4)))
    w = b.constant(numbers(4, 4), "w")
    b.output(b.add(MatMul(), b.add(MatMul(), x, w), w))
    first, second = stored(b.build(), dt.float16).nodes
    assert first.inputs[1] is second.inputs[1] and str(first.inputs[1].dtype) == "float16"  # type: ignore[union-attr]


def test_names_and_outputs_stay() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (4, 4)))
    with b.named("dense"):
        b.output(b.add(MatMul(), x, b.constant(numbers(4, 4), "w")), "y")
    after = stored(b.build(), dt.float16)
    node: Node = after.nodes[0]
    assert str(node.inputs[1].dtype) == "float16"  # type: ignore[union-attr]
    assert node.names == {"dense"} and after.output_names == ["y"]


def test_the_matrices_of_a_transform_are_no_weights() -> None:
    b = GraphBuilder()
    b.output(b.add(DFT(), b.input("x", tensor_type("float32", (2, 24, 1)))))
    graph = decompose(b.build())
    constants = {v.name: v.constant for v in graph.values() if v.constant is not None}
    after = {v.name: v.constant for v in reduced(graph, dt.bfloat16).values() if v.constant is not None}
    assert constants and all(after[name] is constants[name] for name in constants)
