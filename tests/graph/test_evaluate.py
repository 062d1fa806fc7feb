"""The meaning of graphs: symbols, data symbols, groups; wrong inputs are named."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graph.graphs import numbers

from weft.errors import GraphError, InputError
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, OptionalType, SequenceType, tensor_type
from weft.graph.relayout import Relayout
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Multiply
from weft_ops.movement import BroadcastTo, Reshape


def shaped() -> Graph:
    """x reshaped to what s + s says."""
    b = GraphBuilder("shaped")
    n = Var("n")
    x = b.input("x", tensor_type("float32", (n, 4)))
    b.input("y", tensor_type("float32", (n * 2,)))
    s = b.input("s", tensor_type("int64", (2,)))
    t = b.add(Add(), s, s, name="t")
    b.output(b.add(Reshape((b.symbol(t, 0), b.symbol(t, 1))), x))
    return b.build()


def test_data_symbols() -> None:
    x = numbers(3, 4)
    (y,) = evaluate(shaped(), [x, numbers(6), np.array([1, 3])])
    np.testing.assert_array_equal(y, x.reshape(2, 6))
    (y,) = evaluate(shaped(), {"s": np.array([3, 1]), "x": x, "y": numbers(6)})
    assert y.shape == (6, 2)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([numbers(3, 4)], "the graph takes 3 input(s), got 1"),
        ({"x": numbers(3, 4), "y": numbers(6)}, "input 's' is missing"),
        ({"x": numbers(3, 4), "y": numbers(6), "s": np.array([1, 3]), "xx": 1}, "there is no input 'xx'"),
        ([numbers(3, 5), numbers(6), np.array([1, 3])], "input 'x' takes 4 at dimension 1, got 5"),
        ([numbers(3), numbers(6), np.array([1, 3])], "input 'x' takes 2 dimension(s), got 1: [3]"),
        ([numbers(3, 4).astype("float64"), numbers(6), np.array([1, 3])], "input 'x' takes float32, got float64"),
        ([numbers(3, 4), numbers(7), np.array([1, 3])], "input 'y' has 7 at dimension 0, n*2 = 6 is needed"),
    ],
)
def test_wrong_inputs(inputs: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        evaluate(shaped(), inputs)  # type: ignore[arg-type]
    assert message in str(error.value) and "shaped(" in str(error.value)


def test_inputs_that_disagree() -> None:
    b = GraphBuilder("g")
    n = Var("n")
    x, y = b.input("x", tensor_type("float32", (n,))), b.input("y", tensor_type("float32", (n,)))
    b.output(b.add(Add(), x, y))
    with pytest.raises(InputError, match="input 'y' has n = 3, another has n = 2"):
        evaluate(b.build(), [numbers(2), numbers(3)])
    b = GraphBuilder("g")
    x, s = b.input("x", tensor_type("float32", (6,))), b.input("s", tensor_type("int64", (n,)))
    b.output(b.add(BroadcastTo((b.symbol(s, 2), 6)), x))
    with pytest.raises(InputError, match=r"input 's' has 1 element\(s\), element 2 is needed as a size"):
        evaluate(b.build(), [numbers(6), np.array([1])])


def test_sequences_and_optionals() -> None:
    b = GraphBuilder("g")
    b.output(b.input("s", SequenceType(tensor_type("float32", (2,)))))
    b.output(b.input("o", OptionalType(tensor_type("float32", (2,)))))
    (sequence, nothing) = evaluate(b.build(), [[numbers(2)], None])
    assert len(sequence) == 1 and nothing is None
    with pytest.raises(InputError, match=r"input 's' takes a sequence\(float32\[2\]\), got a int"):
        evaluate(b.build(), [1, None])


def test_groups_use_the_symbols_of_their_graph() -> None:
    """A body's input may have a formula as its size: it is no graph of its own."""
    n = Var("n")
    inner = GraphBuilder("body")
    x = inner.input("x", tensor_type("float32", (n * 2,)))
    y = inner.add(Relayout(None), inner.add(BroadcastTo((n, n * 2)), x))
    inner.output(y)
    b = GraphBuilder("g")
    b.input("a", tensor_type("float32", (n,)))
    x = b.input("x", tensor_type("float32", (n * 2,)))
    b.output(b.add(Group(inner.build()), x))
    data = numbers(6)
    (y,) = evaluate(b.build(), [numbers(3), data])
    np.testing.assert_array_equal(y, np.broadcast_to(data, (3, 6)))


def test_values_are_seen_and_dropped() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (2,)))
    y = b.add(Relu(), x, name="y")
    b.output(b.add(Multiply(), y, y, name="z"))
    seen: dict[str, np.ndarray] = {}
    evaluate(b.build(), [numbers(2)], on_value=lambda v, a: seen.update({v.name: a}))
    assert list(seen) == ["y", "z"]


def test_a_reference_that_contradicts_its_type_rule() -> None:
    class Wrong(Relu):
        def reference(self, *arrays: object) -> object:
            return np.zeros((1, 2), np.float32)

    class Failing(Relu):
        def reference(self, *arrays: object) -> object:
            raise ValueError("no")

    class Two(Relu):
        def reference(self, *arrays: object) -> object:
            return 1, 2

    for op, message in (
        (Wrong(), "the reference of Wrong gives float32[1, 2], its type rule float32[n]"),
        (Failing(), "the reference of Failing failed: no"),
        (Two(), "gives 2 result(s), its type rule 1"),
    ):
        b = GraphBuilder("g")
        with b.named("layer"):
            b.output(b.add(op, b.input("x", tensor_type("float32", (Var("n"),)))))
        with pytest.raises(GraphError) as error:
            evaluate(b.build(), [numbers(2)])
        assert message in str(error.value)
