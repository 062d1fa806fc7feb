"""Each rule of algebra on its pattern, and where it must not act."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import keeps_meaning, numbers

from weft.expr.nodes import Var
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft_ops.activation import Relu, Sigmoid, Tanh
from weft_ops.arithmetic import Add, Cast, Divide, Multiply, Negative, Power, Subtract, Where
from weft_ops.comparison import Less, LogicalNot
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from weft_ops.passes.simplify_algebra import scalar_of, simplify_algebra
from weft_ops.reduction import ReduceSum
from weft_ops.transcendental import Erf

N = Var("n")
Build = Callable[[GraphBuilder, Value], Value]


def k(b: GraphBuilder, value: Any, dtype: str = "float32") -> Value:
    return b.constant(np.asarray(value, dtype))


def simplified(build: Build, shape: tuple[Any, ...] = (N, 2, 3, 4), dtype: str = "float32") -> list[str]:
    """The operators left, as text, of `build` applied to an input that a Tanh made."""
    b = GraphBuilder()
    x = b.input("x", tensor_type(dtype, shape))
    with b.named("first"):
        x = b.add(Tanh(), x) if dtype == "float32" else x
    with b.named("rest"):
        b.output(build(b, x), "y")
    graph = b.build()
    after = simplify_algebra(graph)
    data = numbers(*(5 if not isinstance(d, int) else d for d in shape))
    keeps_meaning(graph, after, [(data * 9).astype(dtype) if dtype != "bool" else data > 0])
    assert {x for n in after.nodes for x in n.names} in ({"first", "rest"}, {"rest"}, set())
    return [str(n.op) for n in after.nodes if not isinstance(n.op, Tanh)]


GONE: dict[str, Build] = {
    "identity": lambda b, x: b.add(Identity(), x),
    "add_minus_zero": lambda b, x: b.add(Add(), k(b, [-0.0, -0.0, -0.0, -0.0]), x),
    "subtract_zero": lambda b, x: b.add(Subtract(), x, k(b, 0)),
    "multiply_one": lambda b, x: b.add(Multiply(), b.add(Multiply(), x, k(b, 1)), k(b, [[1]])),
    "divide_by_one": lambda b, x: b.add(Divide(), x, k(b, 1)),
    "power_one": lambda b, x: b.add(Power(), x, k(b, 1)),
    "twice": lambda b, x: b.add(Negative(), b.add(Negative(), x)),
    "cast": lambda b, x: b.add(Cast(x.dtype), x),
    "transposes": lambda b, x: b.add(Transpose((0, 3, 1, 2)), b.add(Transpose((0, 2, 3, 1)), x)),
    "reshape": lambda b, x: b.add(Reshape((-1, 2, 3, 4)), b.add(Reshape((-1, 24)), x)),
    "broadcast": lambda b, x: b.add(BroadcastTo((1, 3, 4)), x),
    "slice": lambda b, x: b.add(Slice((0, 0, 0, 0), (N, 2, 3, 4)), x),
    "concat": lambda b, x: b.add(Concat(1), b.add(Slice((0, 0, 0, 0), (N, 0, 3, 4)), x), x),
    "pad": lambda b, x: b.add(Pad((0,) * 8), x, None),
    "where": lambda b, x: b.add(Where(), k(b, [True], "bool"), x, b.add(Negative(), x)),
    "reduce_nothing": lambda b, x: b.add(ReduceSum(()), x),
}


@pytest.mark.parametrize("name", GONE)
def test_gone(name: str) -> None:
    assert simplified(GONE[name]) == []


def test_gone_on_bools() -> None:
    assert simplified(lambda b, x: b.add(LogicalNot(), b.add(LogicalNot(), x)), dtype="bool") == []


LEFT: dict[str, tuple[Build, list[str]]] = {
    "relu_of_relu": (lambda b, x: b.add(Relu(), b.add(Relu(), x)), ["Relu()"]),
    "square": (lambda b, x: b.add(Power(), x, k(b, 2)), ["Multiply()"]),
    "cube": (lambda b, x: b.add(Power(), x, k(b, 3)), ["Multiply()", "Multiply()"]),
    "root": (lambda b, x: b.add(Power(), b.add(Multiply(), x, x), k(b, 0.5)), ["Multiply()", "Sqrt()"]),
    "add_zero": (lambda b, x: b.add(Add(), k(b, 0), x), ["Add()"]),
    "add_zeros_of_both_signs": (lambda b, x: b.add(Add(), x, k(b, [0.0, -0.0, -0.0, -0.0])), ["Add()"]),
    "subtract_minus_zero": (lambda b, x: b.add(Subtract(), x, k(b, -0.0)), ["Subtract()"]),
    "inverse": (lambda b, x: b.add(Power(), x, k(b, -1)), ["Reciprocal()"]),
    "quarter": (lambda b, x: b.add(Divide(), x, k(b, [4, 0.5, -1, 2])), ["Multiply()"]),
    "third": (lambda b, x: b.add(Divide(), x, k(b, [4, 3, 1, 1])), ["Divide()"]),
    "by_zero": (lambda b, x: b.add(Divide(), x, k(b, 0)), ["Divide()"]),
    "tiny": (lambda b, x: b.add(Divide(), x, k(b, 2.0**-140)), ["Divide()"]),
    "broadcasting_zero": (lambda b, x: b.add(Add(), x, k(b, np.zeros((2, 1, 2, 3, 4)))), ["Add()"]),
    "transposes": (
        lambda b, x: b.add(Transpose((0, 1, 3, 2)), b.add(Transpose((0, 2, 3, 1)), x)),
        ["Transpose(axes=(0, 2, 1, 3))"],
    ),
    "unit_axes": (
        lambda b, x: b.add(Transpose((1, 0, 2)), b.add(Reshape((1, N, 24)), x)),
        ["Reshape(shape=(n, 1, 24))"],
    ),
    "reshapes": (lambda b, x: b.add(Reshape((N * 2, 12)), b.add(Reshape((-1, 24)), x)), ["Reshape(shape=(n*2, 12))"]),
    "part": (
        lambda b, x: b.add(Slice((0, 0, 0, 1), (N, 2, 3, 3)), x),
        ["Slice(starts=(0, 0, 0, 1), sizes=(n, 2, 3, 3), steps=())"],
    ),
    "broadcast_operand": (
        lambda b, x: b.add(Add(), b.add(BroadcastTo((N, 2, 3, 4)), b.add(ReduceSum((3,), True), x)), x),
        ["ReduceSum(axes=(3,), keepdims=true)", "Add()"],
    ),
    "broadcast_needed": (
        lambda b, x: b.add(Add(), b.add(BroadcastTo((2, N, 2, 3, 4)), x), x),
        ["BroadcastTo(shape=(2, n, 2, 3, 4))", "Add()"],
    ),
    "where_broadcast": (
        lambda b, x: b.add(Where(), k(b, np.zeros((2, 1, 1, 1, 1)), "bool"), b.add(Negative(), x), x),
        ["BroadcastTo(shape=(2, n, 2, 3, 4))"],
    ),
    "pad_of_conv": (
        lambda b, x: b.add(
            Conv(pads=(1, 0, 0, 1)), b.add(Pad((0, 0, 1, 1, 0, 0, 0, 2)), x, k(b, 0)), b.constant(numbers(2, 2, 2, 2))
        ),
        ["Conv(strides=(), pads=(2, 1, 0, 3), dilations=(), groups=1, dtype=none)"],
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    build, expected = LEFT[name]
    assert simplified(build) == expected


def test_a_broadcast_stays_where_without_it_more_would_be_taken_for_granted() -> None:
    """Whether x has one row or two is known only at run time: added to y as it is it would have to have two."""
    b = GraphBuilder("graph")
    x, y = b.input("x", tensor_type("float32", (N, 3))), b.input("y", tensor_type("float32", (2, 3)))
    b.output(b.add(Add(), b.add(BroadcastTo((2, 3)), x), y))
    assert [str(n.op) for n in simplify_algebra(b.build()).nodes] == ["BroadcastTo(shape=(2, 3))", "Add()"]


def test_uniform_constants_are_scalars() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (N, 3)))
    y = b.add(Multiply(), x, k(b, [3, 3, 3]))
    y = b.add(Add(), y, k(b, [0.0, -0.0, 0.0]))
    b.output(b.add(Multiply(), y, k(b, np.full((2, 1, 3), 2))))  # gives the result its shape
    after = simplify_algebra(b.build())
    assert [v.shape for v in after.constants()] == [
        (),
        (3,),
        (2, 1, 3),
    ]  # zeros of both signs are not the same everywhere
    keeps_meaning(b.build(), after, [numbers(2, 3)])


def test_integers_divide_as_they_are() -> None:
    assert simplified(lambda b, x: b.add(Divide(), x, k(b, 2, "int32")), dtype="int32") == ["Divide()"]
    assert simplified(lambda b, x: b.add(Power(), x, k(b, 2, "int32")), dtype="int32") == ["Multiply()"]


def test_a_rule_that_declines_says_why() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (N, 2)))
    b.output(b.add(Divide(), x, k(b, 3)))
    x4 = b.input("z", tensor_type("float32", (1, 2, 4, 4)))
    b.output(b.add(Conv(), b.add(Pad((0, 0, 1, 1, 0, 0, 1, 1)), x4, k(b, 7)), b.constant(numbers(1, 2, 2, 2))))
    reasons: list[tuple[str, str]] = []

    def note(rule: str, node: Node, why: str) -> None:
        reasons.append((rule, why))

    graph: Graph = simplify_algebra(b.build(), on_decline=note)
    assert len(graph.nodes) == 3
    assert ("divide_by_power_of_two", "a divisor is no power of two, so its reciprocal rounds") in reasons
    assert ("pad_of_conv", "the padding is not zero") in reasons


def test_elementwise_operators_come_before_a_reshape_that_keeps_rows() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 3, 4)))
    y = b.add(Reshape((1, 3, 5)), b.add(MatMul(), b.add(Reshape((3, 4)), x), b.constant(numbers(4, 5))))
    y = b.add(Add(), y, b.constant(numbers(5)))
    y = b.add(Multiply(), b.add(Tanh(), y), y)
    z = b.add(Tanh(), b.input("z", tensor_type("float32", (1, 3, 5))))
    b.output(b.add(Add(), z, y))
    after = simplify_algebra(b.build())
    keeps_meaning(b.build(), after, [numbers(1, 3, 4), numbers(1, 3, 5, seed=1)])
    assert [str(n.op).split("(")[0] for n in after.nodes] == [
        "Reshape",
        "MatMul",
        "Add",
        "Tanh",
        "Multiply",
        "Reshape",
        "Tanh",
        "Add",
    ]
    assert str(simplify_algebra(after)) == str(after)


def test_a_residual_joins_the_rows_of_a_product() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (1, 3, 4)))
    y = b.add(Reshape((1, 3, 4)), b.add(MatMul(), b.add(Reshape((3, 4)), x), b.constant(numbers(4, 4))))
    b.output(b.add(Relu(), b.add(Add(), x, y)))
    after = simplify_algebra(b.build())
    keeps_meaning(b.build(), after, [numbers(1, 3, 4)])
    assert [str(n.op) for n in after.nodes if not isinstance(n.op, MatMul)] == [
        "Reshape(shape=(3, 4))",
        "Reshape(shape=(3, 4))",
        "Add()",
        "Relu()",
        "Reshape(shape=(1, 3, 4))",
    ]


@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (2, 2, 3), (3, 1, 4)])
def test_reshapes_that_matter_stay(shape: tuple[int, ...]) -> None:
    """Rows of another length, or rows that broadcast, keep the reshape where it is."""
    b = GraphBuilder()
    y = b.add(Reshape(shape), b.add(MatMul(), b.input("x", tensor_type("float32", (3, 4))), b.constant(numbers(4, 4))))
    b.output(b.add(Add(), y, b.input("c", tensor_type("float32", (shape[-2], 1)))))
    after = simplify_algebra(b.build())
    keeps_meaning(b.build(), after, [numbers(3, 4), numbers(shape[-2], 1)])
    assert [str(n.op).split("(")[0] for n in after.nodes] == ["MatMul", "Reshape", "Add"]


def test_two_products_of_other_shapes_do_not_change_places_for_ever() -> None:
    b = GraphBuilder()
    x, y = b.input("x", tensor_type("float32", (3, 4))), b.input("y", tensor_type("float32", (1, 3, 4)))
    w = b.constant(numbers(4, 4))
    b.output(b.add(Add(), b.add(Reshape((1, 3, 4)), b.add(MatMul(), x, w)), b.add(MatMul(), y, w)))
    after = simplify_algebra(b.build())
    keeps_meaning(b.build(), after, [numbers(3, 4), numbers(1, 3, 4)])


def test_a_product_among_three_operands_keeps_the_reshape_of_another() -> None:
    """What is known of the last operand only decides about all: nothing is built for the first before."""
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", (3, 4)))
    y = b.add(Reshape((1, 3, 4)), b.add(MatMul(), x, b.constant(numbers(4, 4))))
    condition = b.add(Less(), b.input("z", tensor_type("float32", (1, 3, 4))), k(b, 0))
    b.output(b.add(Where(), condition, y, b.add(MatMul(), y, b.constant(numbers(4, 4, seed=1)))))
    after = simplify_algebra(b.build())
    keeps_meaning(b.build(), after, [numbers(3, 4), numbers(1, 3, 4, seed=2)])
    assert [type(n.op).__name__ for n in after.nodes].count("Reshape") == 1


def test_swish() -> None:
    assert simplified(lambda b, x: b.add(Multiply(), b.add(Sigmoid(), x), x)) == ["Swish(alpha=1.0)"]
    assert len(simplified(lambda b, x: b.add(Multiply(), b.add(Sigmoid(), x), b.add(Relu(), x)))) == 3


GELUS: dict[str, Build] = {
    "as exported": lambda b, x: b.add(
        Multiply(),
        b.add(Multiply(), x, b.add(Add(), b.add(Erf(), b.add(Divide(), x, k(b, 2**0.5))), k(b, 1))),
        k(b, 0.5),
    ),
    "half first": lambda b, x: b.add(
        Multiply(),
        b.add(Multiply(), k(b, 0.5), x),
        b.add(Add(), k(b, 1), b.add(Erf(), b.add(Multiply(), x, k(b, 0.5**0.5)))),
    ),
}


@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str) -> None:
    assert simplified(GELUS[name]) == ["Gelu(approximate=false)"]


def test_nearly_gelu() -> None:
    def other(b: GraphBuilder, x: Value, scale: float = 0.5, inner: float = 2**0.5) -> Value:
        return b.add(
            Multiply(),
            b.add(Multiply(), x, b.add(Add(), b.add(Erf(), b.add(Divide(), x, k(b, inner))), k(b, 1))),
            k(b, scale),
        )

    assert len(simplified(lambda b, x: other(b, x, scale=0.6))) == 5
    assert len(simplified(lambda b, x: other(b, x, inner=1.5))) == 5


def test_a_product_of_many_factors_is_no_gelu() -> None:
    """Nor one that takes the interpreter's whole stack, or a look at every factor for every product."""
    b = GraphBuilder()
    x, y = b.input("x", tensor_type("float32", (4,))), b.input("y", tensor_type("float32", (4,)))
    for _ in range(3000):
        x = b.add(Multiply(), x, y)
    b.output(x)
    begun = time.process_time()
    assert len(simplify_algebra(b.build()).nodes) == 3000
    assert time.process_time() - begun < 2


def test_weights_that_differ_are_not_compared_whole() -> None:
    weights = GraphBuilder().constant(numbers(1000, 1000))
    tracemalloc.start()
    assert scalar_of(weights) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000  # a comparison takes a byte per element
    assert scalar_of(GraphBuilder().constant(np.full((100, 3), 0.5, np.float32).T)) == 0.5
    late = np.full(1000, 0.5, np.float32)
    late[-1] = 1
    assert scalar_of(GraphBuilder().constant(late)) is None
