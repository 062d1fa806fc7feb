"""Graphs of operators that a test makes itself: the core needs no operator library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import GraphError
from weft.expr.nodes import Expr, Var
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, TensorType, Type, Value, tensor_type
from weft.graph.operator import Array, Elementwise, Operator, Sample
from weft.graph.parser import parse_graph
from weft.graph.printer import constant_data, print_graph
from weft.graph.verify import verify
from weft.lower.lower import lower_group
from weft.passes.pipeline import run_passes
from weft_interpreter.interpret import interpret


class Own(Elementwise):
    """Of operands of one type."""

    def infer(self, *types: Type | None) -> TensorType:
        first = types[0]
        assert isinstance(first, TensorType)
        if any(t != first for t in types):
            raise GraphError("the operands have different types")
        return first

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return ()


@dataclass(frozen=True)
class Plus(Own):
    def formula(self, *args: Expr) -> Expr:
        return args[0] + args[1]

    def reference(self, *arrays: Array | None) -> Any:
        a, b = arrays
        assert a is not None and b is not None
        return a + b


@dataclass(frozen=True)
class Scaled(Own):
    """operand · factor + offset."""

    factor: int = 2
    offset: int = 0

    def formula(self, *args: Expr) -> Expr:
        return args[0] * self.factor + self.offset

    def reference(self, *arrays: Array | None) -> Any:
        (a,) = arrays
        assert a is not None
        return (a * a.dtype.type(self.factor) + a.dtype.type(self.offset)).astype(a.dtype)


OPERATORS: tuple[type[Operator], ...] = (Plus, Scaled)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99), st.integers(-3, 3)), max_size=8)


def made(steps: list[tuple[bool, int, int, int]]) -> Graph:
    """Of x: int32[n, 3], y and a constant of the same row, by steps (whether a sum, two operands, a factor)."""
    b = GraphBuilder("own")
    rows = tensor_type("int32", (Var("n"), 3))
    values: list[Value] = [b.input("x", rows), b.input("y", rows)]
    for total, one, two, factor in steps:
        first, second = values[one % len(values)], values[two % len(values)]
        values.append(b.add(Plus(), first, second) if total else b.add(Scaled(factor, one % 5), first))
    b.output(b.add(Scaled(1), values[-1]), "z")
    return b.build()


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(0).integers
    return {name: numbers(-9, 9, (4, 3)).astype(np.int32) for name in ("x", "y")}


@given(STEPS)
def test_text_is_read_back(steps: list[tuple[bool, int, int, int]]) -> None:
    graph = made(steps)
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text, constant_data(graph), OPERATORS)
    verify(again)
    assert print_graph(again) == text
    np.testing.assert_array_equal(evaluate(again, inputs())[0], evaluate(graph, inputs())[0])


@given(STEPS)
def test_passes_keep_the_meaning(steps: list[tuple[bool, int, int, int]]) -> None:
    graph = made(steps)
    after = run_passes(graph)
    verify(after)
    assert all(isinstance(n.op, Group) for n in after.nodes)
    np.testing.assert_array_equal(evaluate(after, inputs())[0], evaluate(graph, inputs())[0])


def test_operators_of_ones_own_are_fused_and_lowered() -> None:
    graph = made([(True, 0, 1, 0), (False, 2, 0, 3), (True, 3, 0, 0)])
    (node,) = run_passes(graph).nodes
    assert isinstance(node.op, Group) and len(node.op.body.nodes) == 4
    program = lower_group(node.op.body, "kernel")
    given_ = inputs()
    arrays = [given_[v.name].reshape(-1) for v in node.inputs if v is not None]  # its axes are one loop
    (found,) = interpret(program, arrays, {d.name: 4 for d in program.dims}).values()
    np.testing.assert_array_equal(found, evaluate(graph, given_)[0].reshape(-1))


def test_errors_name_the_operator() -> None:
    b = GraphBuilder()
    x, y = (b.input(name, tensor_type("int32", (size,))) for name, size in (("x", 3), ("y", 4)))
    with pytest.raises(GraphError, match=r"^Plus: the operands have different types"):
        b.add(Plus(), x, y)
