"""Ill-formed graphs are refused by messages that name the node and what it came from."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.group import Group
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, Node, SymbolSource, Value, tensor_type
from weft.graph.relayout import Relayout
from weft.graph.rewrite import sort_nodes
from weft.graph.verify import same_dim, verify
from weft_ops.activation import Relu, Tanh
from weft_ops.arithmetic import Add
from weft_ops.movement import Reshape


def chain() -> tuple[GraphBuilder, Value, Value, Value]:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (2, 3)))
    with b.named("first"):
        y = b.add(Relu(), x, name="y")
    with b.named("second"):
        z = b.add(Tanh(), y, name="z")
    b.output(z)
    return b, x, y, z


def refused(graph: Graph, *parts: str) -> None:
    with pytest.raises(GraphError) as error:
        verify(graph)
    for part in parts:
        assert part in str(error.value)


def test_good() -> None:
    verify(chain()[0].build())


def test_order() -> None:
    graph = chain()[0].build()
    graph.nodes.reverse()
    refused(graph, "'y' is used before it is computed", "from second", "from first", "hint: nodes stand in order")
    sort_nodes(graph)
    verify(graph)


def test_a_cycle_names_its_nodes() -> None:
    b, _, y, z = chain()
    y.producer.inputs = (z,)  # type: ignore[union-attr]
    refused(
        b.build(),
        "the graph has a cycle of 2 node(s)",
        "%y = Relu()(%z)  # first",
        "%z = Tanh()(%y)  # second",
        "why: each of these",
    )
    y.producer.inputs = (y,)  # type: ignore[union-attr]
    refused(b.build(), "a cycle of 1 node(s)")


def test_names_and_producers() -> None:
    b, x, y, _ = chain()
    y.name = "x"
    refused(b.build(), "two values are named 'x'")
    b, x, y, _ = chain()
    b.graph.nodes.append(Node(Relu(), [x], [y]))
    refused(b.build(), "value 'y' is produced by two nodes")
    b, x, y, _ = chain()
    y.producer = None
    refused(b.build(), "output 'y' does not belong to its node", "why: its producer is None")
    b, x, y, _ = chain()
    x.producer = y.producer
    refused(b.build(), "input 'x' is produced by a node")


def test_undefined() -> None:
    b, x, *_ = chain()
    b.graph.nodes[0].inputs = (Value("ghost", x.type),)
    refused(b.build(), "'ghost' is used but not defined in the graph 'g'", "hint: sub-graphs capture nothing")
    b, x, *_ = chain()
    b.graph.outputs = [Value("ghost", x.type)]
    refused(b.build(), "output 'ghost' is not defined")
    b, *_ = chain()
    b.graph.output_names = ["a", "b"]
    refused(b.build(), "graph 'g' has 1 output(s) and 2 output name(s)")


def test_types() -> None:
    b, _, _, z = chain()
    z.type = tensor_type("float32", (3, 2))
    refused(b.build(), "'z' is typed float32[3, 2], its operator gives float32[2, 3]", "from second")
    b, *_ = chain()
    b.graph.nodes[1].op = Add()
    refused(b.build(), "Add: expected 2 operand(s), got 1", "from second")
    b, _, y, z = chain()
    Node(b.graph.nodes[1].op, [y], [z, other := Value("other", z.type)])
    b.graph.nodes[1] = other.producer  # type: ignore[assignment]
    refused(b.build(), "the node has 2 output(s), its operator gives 1")
    b, _, y, _ = chain()
    y.type = y.tensor.with_layout(blocked(4, 1, 8))
    refused(b.build(), "does not fit a value of", "from first")


def test_constants() -> None:
    b = GraphBuilder("g")
    c = b.constant(np.zeros((2, 3), np.float32), "w")
    b.output(b.add(Relu(), c))
    c.constant = np.zeros((3, 2), np.float32)
    refused(b.build(), "constant 'w' holds float32[3, 2]", "why: its type says otherwise")


def test_symbols() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (6,)))
    b.output(b.add(Reshape((Var("a"), 2)), x))
    refused(b.build(), "symbol 'a' of node 'reshape' is not bound", "hint: bind it")
    b.graph.symbols["a"] = SymbolSource(x, 0)
    refused(b.build(), "symbol 'a' is bound to a value that is no integer tensor")
    late = Value("late", tensor_type("int64", (1,)))
    source = b.input("i", tensor_type("int64", (1,)))
    b.graph.nodes.append(Node(Relu(), [source], [late]))
    b.graph.symbols["a"] = SymbolSource(late, 0)
    refused(b.build(), "symbol 'a' of node 'reshape' is used before the value that gives it is computed")
    b.graph.nodes.pop()
    refused(b.build(), "symbol 'a' is bound to 'late', which is not in the graph 'g'")
    b = GraphBuilder("g")
    b.output(b.input("x", tensor_type("float32", (Var("n") * 2,))))
    refused(b.build(), "symbol 'n' of input 'x' is not bound")


def test_groups_check_their_bodies_and_their_types() -> None:
    inner, *_ = chain()
    b = GraphBuilder("outer")
    x = b.input("x", tensor_type("float32", (2, 3)))
    group = Group(inner.build())
    b.output(b.add(group, x))
    verify(b.build())
    with pytest.raises(GraphError) as error:
        b.add(group, b.input("w", tensor_type("float32", (3, 3))))
    assert "input 0 of the group 'g' is a float32[2, 3] inside, a float32[3, 3] outside" in str(error.value)
    with pytest.raises(GraphError) as error:
        b.add(group)
    assert "the group takes 1 inputs, got 0" in str(error.value)
    inner.graph.nodes.reverse()
    refused(b.build(), "'y' is used before it is computed")


def test_relayout_takes_tensors_only() -> None:
    from weft.graph.nodes import SequenceType

    b = GraphBuilder("g")
    with pytest.raises(GraphError) as error:
        b.add(Relayout(None), b.input("s", SequenceType(tensor_type("float32", ()))))
    assert "only tensors have a layout, got sequence(float32[])" in str(error.value)


def test_dimensions_compare_up_to_simplification() -> None:
    n = Var("n")
    assert same_dim(n + n, n * 2) and same_dim(4, 4) and not same_dim(n, n + 1) and not same_dim(n, 4)
