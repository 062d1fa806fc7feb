"""Names of values while a graph is built: each given once, always the first that is free."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import GraphError
from weft.expr.nodes import Var
from weft.graph.nodes import GraphBuilder, tensor_type
from weft_ops.activation import Relu

STEMS = ("a", "a_1", "a_2", "a_01", "a_1_1", "b", "_", "")


def first_free(taken: set[str], stem: str) -> str:
    return next(n for k in range(len(taken) + 1) if (n := f"{stem}_{k}" if k else stem) not in taken)


@given(st.lists(st.tuples(st.sampled_from(STEMS), st.sampled_from(STEMS), st.integers(0, 9))))
def test_the_first_that_is_free(steps: list[tuple[str, str, int]]) -> None:
    builder, taken, values = GraphBuilder(), set[str](), list[Any]()
    for stem, other, at in steps:
        values.append(builder.input(stem, tensor_type("float32", ())))
        assert values[-1].name == first_free(taken, stem)
        taken.add(values[-1].name)
        value = values[at % len(values)]
        expected = value.name if other in taken else other
        taken = taken - {value.name} | {expected}
        builder.rename(value, other)
        assert value.name == expected
    assert len({v.name for v in values}) == len(values)


def test_names_of_one_stem_are_not_searched_one_by_one() -> None:
    """Lines run per name: a count of steps, which no busy machine changes."""
    builder = GraphBuilder()
    x = builder.input("x", tensor_type("float32", (1,)))

    def lines() -> int:
        count = 0

        def trace(frame: Any, event: str, argument: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            builder.unique("relu")
        finally:
            sys.settrace(before)
        return count

    few = [lines() for _ in range(5)][-1]
    for _ in range(500):
        builder.add(Relu(), x)
    assert lines() <= few


def test_dimensions_by_name() -> None:
    assert tensor_type("float32", ("n", 4)) == tensor_type("float32", (Var("n"), 4))
    with pytest.raises(GraphError) as caught:
        tensor_type("float32", ("n + 1",))
    assert (
        str(caught.value)
        == "a dimension is called 'n + 1', which is no name\n  hint: a size is an int, a formula is made of symbols:"
        ' Var("n") + 1'
    )
