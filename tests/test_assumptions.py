"""What type rules take for granted about sizes of a run is checked by the compiled segment, before it computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft
from weft import dtypes as dt
from weft.errors import ExecutionError, GraphError
from weft.expr.nodes import Expr, Var
from weft.graph.assumptions import assumptions, limits
from weft.graph.identity import Require
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.verify import verify
from weft_ops import Add, Argmax, Conv, Fill, GridSample, MatMul, Pad, Reshape, Resize, Slice, Tile, TopK
from weft_runtime.arrays import aligned_empty


def dim(name: str) -> Var:
    return Var(name, dt.int64)


def graph_of(op: Any, *shapes: tuple[Any, ...]) -> Graph:
    b = GraphBuilder("g")
    inputs = [
        b.input(f"x{k}", tensor_type("float32", tuple(dim(d) if isinstance(d, str) else d for d in shape)))
        for k, shape in enumerate(shapes)
    ]
    with b.named("node"):
        results = b.add_all(op, *inputs)
    b.output(results[0] if isinstance(results, (list, tuple)) else results, "y")
    return b.build()


CASES = [
    (
        Add(),
        [("a",), ("b",)],
        [(3,), (5,)],
        "Add 'node': broadcast, dimension 0: expected 3, got 5\n  g\n  hint: a and b must be equal",
    ),
    (
        Add(),
        [("a",), (3,)],
        [(1,), (3,)],
        "Add 'node': broadcast, dimension 0: expected 1, got 3\n  g\n  hint: a and 3 must be equal",
    ),
    (
        MatMul(),
        [("a", "b"), (4, "d")],
        [(2, 3), (4, 3)],
        "MatMul 'node': length of the products: expected 3, got 4\n  g\n  hint: b and 4 must be equal",
    ),
    (
        MatMul(),
        [("a", "b"), ("c", "d")],
        [(2, 3), (2, 3)],
        "MatMul 'node': length of the products: expected 3, got 2\n  g\n  hint: b and c must be equal",
    ),
    (
        Reshape((dim("a"), 50)),
        [("a", "b")],
        [(2, 3)],
        "Reshape 'node': number of elements: expected 6, got 100\n  g\n  hint: b*a and a*50 must be equal",
    ),
    (
        TopK(dim("a")),
        [("a", "b")],
        [(4, 3)],
        "TopK 'node': k: expected at most 3, got 4\n  g\n  hint: a must not exceed b",
    ),
    (
        Slice((0,), (9,)),
        [("a",)],
        [(5,)],
        "Slice 'node': dimension 0: expected elements below 5, got 0 … 8\n  g\n  hint: slice inside the operand",
    ),
    (
        Pad((1, 0), "edge"),
        [("a",)],
        [(0,)],
        (
            "Pad 'node': dimension 0, whose elements are repeated: expected 1 element or more, got 0\n  g\n  hint: a"
            " must be"
        ),
    ),
    (
        Resize((4,)),
        [("a",)],
        [(0,)],
        (
            "Resize 'node': dimension 0, which is resized: expected 1 element or more, got 0\n  g\n  hint: a must be at"
            " least 1"
        ),
    ),
    (
        GridSample(),
        [(1, 1, "h"), (1, 2, 1)],
        [(1, 1, 0), (1, 2, 1)],
        "GridSample 'node': an axis that is sampled: expected 1 element or more, got 0",
    ),
    (
        Conv(),
        [(1, 4, "h", 9), (4, 4, 3, 3)],
        [(1, 4, 1, 9), (4, 4, 3, 3)],
        "Conv 'node': its output would have size -1 on axis 2",
    ),
]


@pytest.mark.parametrize(
    ("op", "shapes", "sizes", "message"),
    CASES,
    ids=lambda c: type(c).__name__ if not isinstance(c, (str, list)) else "",
)
def test_sizes_that_do_not_fit_each_other_are_refused_before_anything_is_read(
    op: Any, shapes: Any, sizes: Any, message: str
) -> None:
    exe = weft.compile(graph_of(op, *shapes), cache=False)
    with pytest.raises(ExecutionError) as caught:
        exe(*(np.ones(s, np.float32) for s in sizes))
    assert str(caught.value).startswith(message)


def test_sizes_that_fit_run() -> None:
    exe = weft.compile(graph_of(Add(), ("a",), ("b",)), cache=False)
    np.testing.assert_array_equal(exe(np.ones(3, np.float32), np.ones(3, np.float32)), np.full(3, 2, np.float32))


def test_a_size_left_open_may_turn_out_as_a_number() -> None:
    exe = weft.compile(graph_of(MatMul(), ("a", "b"), (4, 2)), cache=False)
    np.testing.assert_array_equal(
        exe(np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)), np.full((3, 2), 4, np.float32)
    )


def test_what_is_certain_is_not_checked() -> None:
    assert assumptions(graph_of(Add(), ("a", 4), ("a", 4))) == []
    assert assumptions(graph_of(Slice((0,), (dim("a"),)), ("a",))) == []
    assert [a.hint for a in assumptions(graph_of(Add(), ("a",), ("b",)))] == ["a and b must be equal"]


def test_a_size_that_is_certainly_negative_is_no_type() -> None:
    with pytest.raises(GraphError, match="has size -1 on axis 2\n"):
        verify(graph_of(Conv(), (1, 4, 1, 9), (4, 4, 3, 3)))


def filled(b: GraphBuilder, count: int) -> tuple[Any, ...]:
    """Sizes that an input's data say."""
    shape = b.input("shape", tensor_type("int64", (count,)))
    return tuple(b.symbol(shape, k) for k in range(count))


def test_symbols_of_kernels_and_bytes_of_values_are_bounded() -> None:
    b = GraphBuilder("g")
    rows, columns, start, seen = filled(b, 4)
    x = b.input("x", tensor_type("float32", (dim("n"), 3)))
    x = b.add(Require(seen, None, 5, "{0} is too much", (seen,)), x)
    with b.named("part"):
        b.output(b.add(Slice((start, 0), (rows, 3)), x), "y")
    b.output(b.add(Fill(dt.float32, (rows, columns, 8), 1.0)), "z")
    told = [a.what for a in limits(b.build())]
    assert [t for t in told if "element 2 of 'shape' is {0}, expected 0 … 140737488355328" in t], "a position"
    assert [t for t in told if "{0} × {1} × 8 elements of float32 are more than memory can hold" in t], (
        "a product of sizes"
    )
    assert [t for t in told if t == "input 'x': {0} × 3 elements of float32 are more than memory can hold"], (
        "a size of an input"
    )
    assert not [t for t in told if "element 3" in t], "what is there for a condition alone may be anything"


@pytest.mark.parametrize("target", ["llvm -threads=1", "c"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2**33, 2**33), f"{2**33} × {2**33} elements of float32 are more than memory can hold"),
        ((2**32, 2**32), "elements of float32 are more than memory can hold"),  # 0 in 64 bits
        ((0, 2**62), f"element 1 of 'shape' is {2**62}, expected 0 …"),
        ((2**63 - 1, 2**63 - 1), f"element 0 of 'shape' is {2**63 - 1}, expected 0 …"),
        ((-(2**63), 1), f"would have size {-(2**63)} on axis 0"),
        ((2**41, 32), "elements of float32 are more than memory can hold"),
    ],
)
def test_sizes_whose_product_wraps_are_refused_before_memory_is_asked_for(
    target: str, sizes: tuple[int, ...], message: str
) -> None:
    b = GraphBuilder("g")
    b.output(b.add(Fill(dt.float32, filled(b, 2), 1.0)), "y")
    exe = weft.compile(b.build(), target, cache=False)
    with pytest.raises(ExecutionError) as caught:
        exe(np.array(sizes, np.int64))
    assert message in str(caught.value)
    np.testing.assert_array_equal(exe(np.array([2, 3])), np.ones((2, 3), np.float32))


@pytest.mark.parametrize("target", ["llvm -threads=1", "c"])
def test_an_empty_array_that_is_too_large_without_its_zeros_is_refused_with_numbers_that_say_so(target: str) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (dim("n"), dim("m"))))
    b.output(b.add(Tile(filled(b, 2)), x), "y")
    exe = weft.compile(b.build(), target, cache=False)
    with pytest.raises(ExecutionError) as caught:
        exe(np.ones((0, 3), np.float32), np.array([2**45, 2]))
    text = (
        f"Tile: {2**45} × 6 elements of float32 are more than memory can hold\n  g\n  hint: give smaller sizes; one of"
        " 0 counts as 1 here"
    )
    assert str(caught.value) == text
    assert exe(np.ones((0, 3), np.float32), np.array([2**40, 2])).shape == (0, 6)


def test_the_error_of_a_size_beyond_64_bits_is_short_and_contradicts_nothing() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor_type("float32", (dim("n"),)))
    (times,) = filled(b, 1)
    for _ in range(40):
        x = b.add(Tile((times,)), x)
    b.output(x, "y")
    exe = weft.compile(b.build(), "llvm -threads=1", cache=False)
    with pytest.raises(ExecutionError) as caught:
        exe(np.ones(1, np.float32), np.array([8]))
    what, where, hint = str(caught.value).split("\n")
    found = re.fullmatch(r"Tile: its output would have size (\d+) on axis 0, expected 0 … 140737488355328", what)
    assert found and int(found[1]) >= 2**63 - 1 and where == "  g"
    assert hint.startswith("  hint: it is n*shape.0*") and len(hint) < 80


def test_formulas_in_hints_are_short() -> None:
    long: Expr = dim("a")
    for k in range(40):
        long = (long * dim("a") + 3) // (2 + k)
    hints = [a.hint for a in assumptions(graph_of(Add(), (long,), ("b",)))]
    assert [h for h in hints if "…" in h and h.endswith(" and b must be equal")] and all(len(h) < 90 for h in hints)


def test_memory_that_there_is_not_is_an_error() -> None:
    b = GraphBuilder("g")
    b.output(b.add(Fill(dt.float32, filled(b, 1), 1.0)), "y")
    exe = weft.compile(b.build(), "llvm -threads=1", cache=False)
    with pytest.raises(ExecutionError, match=r"no memory for output 'y' of 'g'"):
        exe(np.array([2**45 - 1]))
    with pytest.raises(MemoryError, match=r"\[2, 9223372036854775807\] elements of float32 take"):
        aligned_empty((2, 2**63 - 1), np.dtype(np.float32))


@pytest.mark.parametrize("n", [0, "n"])
def test_the_place_of_the_greatest_of_nothing_is_none(n: Any) -> None:
    exe = weft.compile(graph_of(Argmax(0), (n, 3)), cache=False)
    np.testing.assert_array_equal(exe(np.ones((0, 3), np.float32)), [-1, -1, -1])
