"""Graphs for tests: a hypothesis strategy of random ones, a small network, and what every rewritten graph must
satisfy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.graph.operator import Operator
from weft.graph.parser import parse_graph
from weft.graph.printer import constant_data, print_graph
from weft.graph.verify import verify
from weft_ops.activation import Relu, Sigmoid, Tanh
from weft_ops.arithmetic import Add, Divide, Maximum, Multiply, Negative, Power, Subtract, Where
from weft_ops.comparison import Less
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from weft_ops.reduction import ReduceMax, ReduceMean, ReduceSum
from weft_ops.window import AveragePool, MaxPool

Array = np.ndarray[Any, Any]


def subclasses(base: type[Operator] = Operator) -> set[type[Operator]]:
    """Every operator class of the library, and of these tests, imported so far; others may have names of these."""
    found = {base} | {c for b in base.__subclasses__() for c in subclasses(b)}
    return {c for c in found if c.__module__.startswith(("weft.", "weft_ops.", "tests.graph."))}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def reparsed(graph: Graph) -> Graph:
    """The graph verified, printed, parsed and verified again; its text must not change."""
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text, constant_data(graph), subclasses())
    assert print_graph(again) == text
    verify(again)
    return again


def close(got: Iterable[Any], expected: Iterable[Any]) -> None:
    """Equal up to a few roundings of the largest element."""
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        finite = np.abs(b[np.isfinite(b)])
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + float(finite.max(initial=0))))


def keeps_meaning(before: Graph, after: Graph, inputs: Any) -> None:
    close(evaluate(reparsed(after), inputs), evaluate(before, inputs))


def convolutional() -> tuple[Graph, dict[str, Array]]:
    """Convolutions with batch-norm-like factors, a residual, pooling, a classifier with a softmax written out; batch is
    symbolic."""
    b = GraphBuilder("network")
    n = Var("n")

    def conv(x: Value, channels: int, kernel: int, name: str, relu: bool = True) -> Value:
        with b.named(name):
            w = b.constant(numbers(channels, x.shape[1], kernel, kernel, seed=channels + kernel), f"{name}.w")
            y = b.add(Conv(pads=(kernel // 2,) * 4), x, w)
            y = b.add(Multiply(), y, b.constant(numbers(1, channels, 1, 1, seed=1)))
            y = b.add(Add(), y, b.constant(numbers(channels, 1, 1, seed=2)))
        with b.named(f"{name}.relu"):
            return b.add(Relu(), y) if relu else y

    x = b.input("x", tensor_type("float32", (n, 3, 8, 8)))
    stem = conv(x, 8, 3, "stem")
    y = conv(conv(stem, 8, 3, "left"), 8, 1, "right", relu=False)
    y = b.add(Relu(), b.add(Add(), y, stem))
    y = b.add(MaxPool((2, 2), (2, 2)), y)
    y = conv(y, 12, 1, "wide")
    y = b.add(Reshape((-1, 12)), b.add(ReduceMean(axes=(2, 3), keepdims=True), y))
    y = b.add(Add(), b.add(MatMul(), y, b.constant(numbers(12, 5), "fc.w")), b.constant(numbers(5), "fc.b"))
    e = b.add(Subtract(), y, b.add(ReduceMax(axes=(-1,), keepdims=True), y))
    e = b.add(Power(), b.constant(np.float32(2.5)), e)
    b.output(b.add(Divide(), e, b.add(ReduceSum(axes=(1,), keepdims=True), e)), "prob")
    return b.build(), {"x": numbers(2, 3, 8, 8, seed=9)}


@st.composite
def graphs(draw: st.DrawFn, steps: int = 12) -> tuple[Graph, list[Array]]:
    """A random graph over float32 with a symbolic or constant batch, and inputs for it."""
    b = GraphBuilder("random")
    batch: Any = draw(st.sampled_from([2, Var("n")]))
    values: list[Value] = [
        b.input("x", tensor_type("float32", (batch, 4, 4, 4))),
        b.input("y", tensor_type("float32", (batch, 4))),
    ]
    inputs = [numbers(2, 4, 4, 4, seed=1), numbers(2, 4, seed=2)]
    seed = draw(st.integers(0, 99))

    def pick(rank: int | None = None) -> Value:
        return draw(st.sampled_from([v for v in values if rank is None or v.tensor.rank == rank]))

    def constant(*shape: int) -> Value:
        return b.constant(numbers(*shape, seed=seed + len(values)))

    for step in range(draw(st.integers(2, steps))):
        kind = draw(st.integers(0, 15))
        x = pick()
        rank, last = x.tensor.rank, x.shape[-1]
        with b.named(f"step{step}"):
            if kind == 0:
                new = b.add(draw(st.sampled_from([Relu(), Tanh(), Negative(), Identity(), Sigmoid()])), x)
            elif kind == 1:
                other = draw(st.sampled_from([v for v in values if v.shape == x.shape]))
                new = b.add(draw(st.sampled_from([Add(), Subtract(), Multiply(), Maximum()])), x, other)
            elif kind == 2:
                k = b.constant(np.float32(draw(st.sampled_from([0, 1, 2, 3, 0.5]))), "k")
                new = b.add(Tanh(), b.add(draw(st.sampled_from([Add(), Multiply(), Divide(), Subtract()])), x, k))
            elif kind == 3:
                new = b.add(
                    draw(st.sampled_from([Add(), Multiply()])),
                    x,
                    constant(last) if isinstance(last, int) else constant(),
                )
            elif kind == 4:
                order = draw(st.permutations(range(1, rank)))
                new = b.add(Transpose((0, *order)), x)
            elif kind == 5 and rank == 4:
                new = b.add(Reshape((x.shape[0], -1)), x)
            elif kind == 5:
                new = b.add(Reshape((*x.shape, 1)), x) if rank < 4 else x
            elif kind == 6:
                new = b.add(draw(st.sampled_from([ReduceSum, ReduceMax, ReduceMean]))((-1,), True), x)
            elif kind == 7:
                new = b.add(ReduceMean((2, 3)), pick(4))
            elif kind == 8 and isinstance(last, int):
                new = b.add(MatMul(), x, constant(last, 4))
            elif kind in (9, 10):
                x = pick(4)
                channels = x.shape[1]
                assert isinstance(channels, int)
                new = b.add(Conv(pads=(1, 1, 1, 1)), x, constant(draw(st.sampled_from([4, 8, 3])), channels, 3, 3))
                if kind == 10:
                    new = b.add(Multiply(), new, constant(new.shape[1], 1, 1))
                    new = b.add(Add(), new, constant(1, new.shape[1], 1, 1))
            elif kind == 11:
                new = b.add(draw(st.sampled_from([MaxPool, AveragePool]))((3, 3), (), (1, 1, 1, 1)), pick(4))
            elif kind == 12:
                axis = draw(st.integers(1, rank - 1))
                new = b.add(Concat(axis), x, b.add(Negative(), x))
            elif kind == 13:
                starts = (0,) * (rank - 1) + (0 if draw(st.booleans()) else 1,)
                size = last - starts[-1] if isinstance(last, int) else last
                new = b.add(Slice(starts, (*x.shape[:-1], size)), x) if size != 0 else x
            elif kind == 14:
                new = b.add(
                    Where(),
                    b.add(Less(), x, b.constant(np.float32(0))),
                    b.add(Tanh(), x),
                    b.add(BroadcastTo((1,) * rank), x),
                )
            else:
                new = b.add(Pad((0,) * rank + (0,) * (rank - 1) + (draw(st.integers(0, 1)),)), x, None)
        size = np.prod([d for d in new.shape if isinstance(d, int)])
        if size <= 2048:
            values.append(new)
    for index, value in enumerate({id(v): v for v in (values[-1], pick())}.values()):
        b.output(value, f"out{index}")
    return b.build(), inputs
