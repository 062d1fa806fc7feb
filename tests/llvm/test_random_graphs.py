"""Random small graphs of what networks for images are made of: laid out, fused and compiled they compute what their
operators say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.passes.library import run_passes

from weft.compilation import Compilation
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.resolve import resolve_target
from weft_ops.activation import HardSwish, Relu, Sigmoid
from weft_ops.arithmetic import Add, Multiply
from weft_ops.contraction import Conv
from weft_ops.image import Resize
from weft_ops.movement import Concat, Pad, Slice, Transpose
from weft_ops.normalization import LayerNorm, Softmax
from weft_ops.reduction import ReduceMean
from weft_ops.window import AveragePool, MaxPool

CHANNELS = (8, 16, 24, 12)
MOST_VALUES = 200_000


class Network:
    """A graph that grows by one random operator at a time."""

    def __init__(self, draw: Callable[..., int]) -> None:
        self.draw, self.builder = draw, GraphBuilder()
        self.random = np.random.default_rng(self.pick(range(1000)))
        self.values: list[Value] = [self.builder.input("x", tensor_type("float32", (1, 8, 10, 9)))]

    def pick(self, choices: range | tuple[int, ...]) -> int:
        return self.draw(st.sampled_from(choices))

    def constant(self, *shape: int) -> Value:
        return self.builder.constant((self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def shape(self, x: Value) -> tuple[int, int, int, int]:
        return tuple(x.shape)  # type: ignore[return-value]

    def step(self) -> None:
        x = self.values[self.pick(range(len(self.values)))]
        grow = (
            self.conv,
            self.conv,
            self.depthwise,
            self.gate,
            self.join,
            self.concat,
            self.pool,
            self.resize,
            self.cut,
            self.pad,
            self.norm,
            self.softmax,
        )
        y = grow[self.pick(range(len(grow)))](x)
        if y is not None and np.prod(self.shape(y)) <= MOST_VALUES and min(self.shape(y)) > 0:
            self.values.append(y)

    def conv(self, x: Value) -> Value:
        inputs, outputs = self.shape(x)[1], self.pick(CHANNELS)
        groups = self.pick(tuple(g for g in (1, 2, 4) if inputs % g == 0 and outputs % g == 0))
        kernel, stride, dilation = self.pick((1, 3)), self.pick((1, 2)), self.pick((1, 2))
        op = Conv((stride, stride), (kernel // 2 * dilation,) * 4, (dilation, dilation), groups)
        y = self.builder.add(op, x, self.constant(outputs, inputs // groups, kernel, kernel))
        y = self.builder.add(Add(), y, self.constant(outputs, 1, 1))
        return self.activation(y)

    def depthwise(self, x: Value) -> Value:
        channels, kernel, stride = self.shape(x)[1], self.pick((3, 5)), self.pick((1, 2))
        op = Conv((stride, stride), (kernel // 2,) * 4, groups=channels)
        return self.activation(self.builder.add(op, x, self.constant(channels, 1, kernel, kernel)))

    def activation(self, y: Value) -> Value:
        match self.pick((0, 1, 2, 3)):
            case 0:
                return self.builder.add(Relu(), y)  # type: ignore[no-any-return]
            case 1:
                return self.builder.add(HardSwish(), y)  # type: ignore[no-any-return]
            case 2:
                return self.builder.add(Multiply(), y, self.builder.add(Sigmoid(), y))  # type: ignore[no-any-return]
        return y

    def gate(self, x: Value) -> Value:
        mean = self.builder.add(ReduceMean((2, 3), True), x)
        channels = self.shape(x)[1]
        y = self.builder.add(Conv(), mean, self.constant(channels, channels, 1, 1))
        return self.builder.add(Multiply(), x, self.builder.add(Sigmoid(), y))  # type: ignore[no-any-return]

    def join(self, x: Value) -> Value | None:
        others = [v for v in self.values if v is not x and v.shape == x.shape]
        return self.builder.add(Add(), x, others[self.pick(range(len(others)))]) if others else None

    def concat(self, x: Value) -> Value:
        others = [v for v in self.values if self.shape(v)[2:] == self.shape(x)[2:]]
        return self.builder.add(Concat(1), x, others[self.pick(range(len(others)))])  # type: ignore[no-any-return]

    def pool(self, x: Value) -> Value:
        pool = (MaxPool, AveragePool)[self.pick((0, 1))]
        return self.builder.add(pool((3, 3), (2, 2), (1, 1, 1, 1)), x)  # type: ignore[no-any-return]

    def resize(self, x: Value) -> Value:
        n, c, h, w = self.shape(x)
        op = Resize((n, c, self.pick((2 * h, h + 1)), 2 * w))
        return self.builder.add(replace(op, mode="linear") if self.pick((0, 1)) else op, x)  # type: ignore[no-any-return]

    def cut(self, x: Value) -> Value:
        n, c, h, w = self.shape(x)
        first = self.pick((0, 4, 8))
        first = first if first < c - 4 else 0
        return self.builder.add(Slice((0, first, h // 3, 0), (n, c - first, h - h // 3, w)), x)  # type: ignore[no-any-return]

    def pad(self, x: Value) -> Value:
        return self.builder.add(Pad((0, self.pick((0, 0, 8)), 1, 0, 0, 0, 0, 2)), x)  # type: ignore[no-any-return]

    def norm(self, x: Value) -> Value:
        channels = self.shape(x)[1]
        y = self.builder.add(Transpose((0, 2, 3, 1)), x)
        y = self.builder.add(LayerNorm(), y, self.constant(channels), self.constant(channels))
        return self.builder.add(Transpose((0, 3, 1, 2)), y)  # type: ignore[no-any-return]

    def softmax(self, x: Value) -> Value:
        return self.builder.add(Softmax(self.pick((1, 3))), x)  # type: ignore[no-any-return]

    def graph(self) -> Graph:
        used = {id(v) for n in self.builder.graph.nodes for v in n.inputs}
        ends = [v for v in self.values[1:] if id(v) not in used] or self.values[1:2]
        for v in ends or [self.builder.add(Relu(), self.values[0])]:
            self.builder.output(v)
        return self.builder.build()


@st.composite
def networks(draw: Callable[..., int]) -> Graph:
    network = Network(draw)
    for _ in range(network.pick(range(1, 10))):
        network.step()
    return network.graph()


def check(graph: Graph, compiled: bool) -> None:
    x = np.random.default_rng(1).normal(size=(1, 8, 10, 9)).astype(np.float32)
    want = evaluate(graph, [x])
    target = resolve_target("llvm")
    if compiled:
        results = list(Compilation(target, cache=False).run(graph).run({"x": x}).values())
    else:
        results = evaluate(run_passes(graph, target.capabilities), [x])
    for expected, got in zip(want, results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_laid_out_and_fused(graph: Graph) -> None:
    check(graph, compiled=False)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_compiled(graph: Graph) -> None:
    check(graph, compiled=True)
