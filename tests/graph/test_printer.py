"""Graphs print and parse back; wrong text says where."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from tests.graph.graphs import convolutional, graphs, numbers, reparsed, subclasses

from weft.errors import GraphError, ParseError
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, OptionalType, SequenceType, tensor_type
from weft.graph.parser import parse_graph
from weft.graph.printer import constant_data, print_attribute, print_graph
from weft.graph.relayout import Relayout
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.movement import Iota, Reshape


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_random_graphs_print_and_parse_back(case: tuple[Graph, list[np.ndarray]]) -> None:
    graph, inputs = case
    for a, b in zip(evaluate(graph, inputs), evaluate(reparsed(graph), inputs)):
        np.testing.assert_array_equal(a, b)


def test_text() -> None:
    b = GraphBuilder("small")
    x = b.input("x", tensor_type("float32", (Var("n"), 4)))
    s = b.input("s", tensor_type("int64", (2,)))
    with b.named("shape", 'odd "name"'):
        y = b.add(Reshape((b.symbol(s, 0), b.symbol(s, 1))), x)
    b.output(b.add(Add(), y, b.constant(np.float32(1.5)), name="a/b:c"), "result")
    assert print_graph(b.build()) == (
        "graph small(%x: float32[n, 4], %s: int64[2]) symbols(s.0 = %s[0], s.1 = %s[1]) {\n"
        "  %c: float32[] = const 1.5\n"
        '  %reshape: float32[s.0, s.1] = Reshape(shape=(s.0, s.1))(%x)  # "odd \\"name\\"", "shape"\n'
        '  %"a/b:c": float32[s.0, s.1] = Add()(%reshape, %c)\n'
        '  return %"a/b:c" as "result"\n'
        "}\n"
    )
    again = reparsed(b.build())
    assert again.nodes[0].names == {"shape", 'odd "name"'}
    assert again.symbols["s.1"].value is again.inputs[1]


def test_sub_graphs_layouts_and_types() -> None:
    inner = GraphBuilder("body")
    x = inner.input("x", tensor_type("float32", (Var("n"), 8), blocked(2, 1, 4)))
    inner.output(inner.add(Add(), x, inner.constant(numbers(8), "w")))
    b = GraphBuilder("outer")
    x = b.input("x", tensor_type("float32", (Var("n"), 8)))
    b.input("many", SequenceType(tensor_type("int8", (Var("odd name") + 1,))))
    b.input("perhaps", OptionalType(tensor_type("bool", ())))
    y = b.add(Relayout(blocked(2, 1, 4)), x)
    y = b.add(Group(inner.build()), y)
    b.output(b.add(Relu(), y, name="r"))
    graph = b.build()
    text = print_graph(graph)
    again = parse_graph(text, constant_data(graph), subclasses())
    assert print_graph(again) == text
    assert list(constant_data(graph)) == ["group/body/w"]
    assert "%w: float32[8] = const\n" in text and "@ split(1, 4) permute(0, 1, 2)" in text


def test_attributes() -> None:
    values = (
        None,
        True,
        -3,
        1e-05,
        float("-inf"),
        "a, (b)",
        Var("n") * 2 + 1,
        (),
        (Var("n"),),
        (1, (2.0, 3)),
        blocked(4, 1, 16),
    )
    for value in values:
        text = f"graph g() symbols() {{\n  %y: int64[2] = Probe(value={print_attribute(value)})()\n  return %y\n}}"
        parsed = parse_graph(text, {}, [_probe()]).nodes[0].op.attributes()["value"]
        assert parsed == value and type(parsed) is type(value)
    with pytest.raises(GraphError) as error:
        print_attribute({1, 2})
    assert "an attribute of type set has no text" in str(error.value) and "hint: numbers" in str(error.value)


@functools.cache
def _probe() -> type[Iota]:
    from dataclasses import dataclass
    from typing import Any

    @dataclass(frozen=True)
    class Probe(Iota):
        dtype: Any = None
        shape: Any = None
        value: Any = None

    return Probe


GOOD = "graph g(%x: float32[2]) symbols() {\n  %y: float32[2] = Relu()(%x)\n  return %y\n}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Relu", "Rellu", "line 2, column 20: there is no operator 'Rellu'"),
        ("(%x)\n", "(%z)\n", "value 'z' is used and not defined before"),
        ("%y: float32[2] =", "%x: float32[2] =", "value 'x' is defined twice"),
        ("Relu()", "Relu(alpha=1)", "'Relu' has no attribute 'alpha'"),
        ("float32[2] =", "float33[2] =", "unknown dtype 'float33'"),
        ("float32[2] =", "float32[2*] =", "'2*' is no formula"),
        ("float32[2] =", "float32[2] @ spilt(0, 2) =", "expected a layout"),
        ("float32[2] =", "float32[2 =", "formula"),
        ("%y: float32[2] = Relu()(%x)", "%y: float32[2] = const", "constant 'y' has no data"),
        ("%y: float32[2] = Relu()(%x)", "%y: float32[2] = const 1.0.0", "'1.0.0' is no constant's value"),
        ("symbols()", "symbols(s = %q[0])", "value 'q' is used and not defined before"),
        ("symbols()", "", "expected 'symbols'"),
        ("  return %y\n}", "", "expected a value, 'return' or '}'"),
        ("return %y\n}", "return %y\n} more", "text after the end of the graph"),
        ("Relu()(%x)", "Reshape()(%x)", "'Reshape' does not take these attributes"),
        ("%x: float32[2])", '%"x: float32[2])', "expected a string"),
    ],
)
def test_wrong_text_says_where(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ParseError) as error:
        parse_graph(GOOD.replace(old, new), {}, subclasses())
    assert message in str(error.value)
    assert "^" in str(error.value)


def test_a_misspelt_operator_has_a_hint() -> None:
    with pytest.raises(ParseError) as error:
        parse_graph(GOOD.replace("Relu", "Rellu"), {}, [Relu])
    assert "hint: did you mean 'Relu'?" in str(error.value)
    assert "  %y: float32[2] = Rellu()(%x)\n                     ^" in str(error.value)


def test_network_prints() -> None:
    reparsed(convolutional()[0])
