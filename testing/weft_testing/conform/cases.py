"""Graphs of several operators and small models, each with inputs and the error that its results may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops.activation import Gelu, Relu, Sigmoid
from weft_ops.arithmetic import Add, Multiply, Subtract
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Concat, Reshape, Transpose
from weft_ops.normalization import BatchNorm, Softmax
from weft_ops.reduction import ReduceMean, ReduceSum
from weft_ops.window import MaxPool
from weft_testing import models

Array: TypeAlias = np.ndarray[Any, Any]

GRAPH_ULPS = 256.0
"""Error of a small graph's float32 results: sums of up to a hundred terms one after another, each rounded as it
likes."""
MODEL_ULPS = 4096.0
"""Of a whole model's: tens of layers. 5e-4 of the greatest result."""


@dataclass(frozen=True)
class GraphCase:
    """A graph, the shapes of its inputs for each run, and the largest error in units in the last place of the greatest
    element."""

    build: Callable[[], Graph]
    shapes: Sequence[Mapping[str, tuple[int, ...]]]
    ulps: float = GRAPH_ULPS

    @property
    def name(self) -> str:
        """In `GRAPHS`, `LARGE` or `MODELS`."""
        return next(name for cases in (GRAPHS, LARGE, MODELS) for name, case in cases.items() if case is self)

    def inputs(self) -> list[dict[str, Array]]:
        """For each run; at the end the first shapes again, with other values."""
        rng = np.random.default_rng(7)
        runs = (*self.shapes, self.shapes[0])
        return [
            {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for shapes in runs
        ]


class _Draft:
    """A graph in the making, with constants from a seed."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.rng = np.random.default_rng(3)

    def input(self, *shape: int | str, name: str = "x") -> Value:
        dims = tuple(Var(d, dt.int64) if isinstance(d, str) else d for d in shape)
        return self.builder.input(name, tensor_type("float32", dims))

    def constant(self, *shape: int) -> Value:
        return self.builder.constant(
            self.rng.standard_normal(shape).astype(np.float32),
            f"c{len(self.builder.graph.nodes)}_{self.rng.integers(1 << 30)}",
        )

    def __call__(self, op: Any, *values: Value) -> Any:
        return self.builder.add(op, *values)

    def build(self, *outputs: Value) -> Graph:
        for k, v in enumerate(outputs):
            self.builder.output(v, f"y{k}")
        return self.builder.build()


def dense() -> Graph:
    d = _Draft("dense")
    x = d.input("n", 12)
    y = d(Gelu(), d(Add(), d(MatMul(), x, d.constant(12, 9)), d.constant(9)))
    return d.build(d(MatMul(), y, d.constant(9, 5)))


def convolution(channels: int, groups: int = 1, stride: int = 1) -> Graph:
    """Convolution, batch normalisation, ReLU, a residual, and pooling."""
    d = _Draft("convolution")
    x = d.input(1, channels, 7, 6)
    y = d(
        Conv(strides=(stride, stride), pads=(1, 1, 1, 1), groups=groups),
        x,
        d.constant(channels, channels // groups, 3, 3),
    )
    scale, bias, mean = (d.constant(channels) for _ in range(3))
    variance = d.builder.constant(np.linspace(0.5, 2, channels, dtype=np.float32), "variance")
    y = d(Relu(), d(BatchNorm(), y, scale, bias, mean, variance))
    y = d(Add(), y, x) if stride == 1 else y
    return d.build(d(MaxPool(kernel=(2, 2), strides=(2, 2)), y), y)


def picture(channels: int, size: int) -> Graph:
    """A convolution as large as those of classifiers."""
    d = _Draft("picture")
    x = d.input(1, channels, size, size)
    weights = d.builder.constant(d.rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) * 0.1, "weights")
    return d.build(d(Relu(), d(Conv(pads=(1, 1, 1, 1)), x, weights)))


def two_convolutions(channels: int) -> Graph:
    """`channels` between them: where layouts have blocks that these do not fill, the second reads what the first left
    in the rest."""
    d = _Draft("two_convolutions")
    x = d.input(1, 5, 6, 6)
    y = d(Relu(), d(Conv(pads=(1, 1, 1, 1)), x, d.constant(channels, 5, 3, 3)))
    return d.build(d(Conv(), y, d.constant(7, channels, 3, 3)))


def attention() -> Graph:
    d = _Draft("attention")
    q, k, v = (d.input(2, 5, 8, name=n) for n in "qkv")
    scores = d(MatMul(), q, d(Transpose((0, 2, 1)), k))
    return d.build(
        d(MatMul(), d(Softmax(), d(Multiply(), scores, d.builder.constant(np.float32(8**-0.5), "scale"))), v)
    )


def fork() -> Graph:
    """One value that three others need, and that is a result itself."""
    d = _Draft("fork")
    x = d.input(4, 10)
    y = d(Relu(), x)
    z = d(Multiply(), y, d(Sigmoid(), y))
    return d.build(y, d(ReduceSum(axes=(1,)), y), d(Subtract(), z, y))


def movement() -> Graph:
    d = _Draft("movement")
    x = d.input(3, 4, 5)
    y = d(Reshape((5, 12)), d(Transpose((2, 0, 1)), x))
    y = d(Concat(1), y, d(Relu(), y))
    return d.build(d(Add(), y, d.constant(24)))


def normalised() -> Graph:
    d = _Draft("normalised")
    x = d.input("n", 7)
    low = d(Subtract(), x, d(ReduceMean(axes=(1,), keepdims=True), x))
    return d.build(d(Softmax(), low), d(Multiply(), low, low))


GRAPHS: Mapping[str, GraphCase] = MappingProxyType(
    {
        "dense": GraphCase(dense, [{"x": (4, 12)}, {"x": (1, 12)}, {"x": (9, 12)}]),
        "convolution": GraphCase(lambda: convolution(8), [{"x": (1, 8, 7, 6)}]),
        "odd channels": GraphCase(lambda: convolution(5), [{"x": (1, 5, 7, 6)}]),
        "strided": GraphCase(lambda: convolution(4, 1, 2), [{"x": (1, 4, 7, 6)}]),
        "depthwise": GraphCase(lambda: convolution(6, 6), [{"x": (1, 6, 7, 6)}]),
        "two convolutions": GraphCase(lambda: two_convolutions(16), [{"x": (1, 5, 6, 6)}]),
        "odd channels between": GraphCase(lambda: two_convolutions(15), [{"x": (1, 5, 6, 6)}]),
        "attention": GraphCase(attention, [dict.fromkeys("qkv", (2, 5, 8))]),
        "fork": GraphCase(fork, [{"x": (4, 10)}]),
        "movement": GraphCase(movement, [{"x": (3, 4, 5)}]),
        "normalised": GraphCase(normalised, [{"x": (3, 7)}, {"x": (1, 7)}]),
    }
)

LARGE: Mapping[str, GraphCase] = MappingProxyType(
    {"picture": GraphCase(lambda: picture(64, 56), [{"x": (1, 64, 56, 56)}], MODEL_ULPS)}
)
"""For rules that gain nothing where kernels are small: tried for those that nothing else has used."""

MODELS: Mapping[str, GraphCase] = MappingProxyType(
    {
        "mlp": GraphCase(
            lambda: models.mlp(features=(16, 24, 20, 28, 12, 30, 8), batch=3), [{"x": (3, 16)}], MODEL_ULPS
        ),
        "mlp of any batch": GraphCase(
            lambda: models.mlp(features=(16, 24, 20, 28, 12, 30, 8)), [{"x": (3, 16)}, {"x": (1, 16)}], MODEL_ULPS
        ),
        "resnet18": GraphCase(
            lambda: models.resnet18(size=32, width=8, classes=10), [{"picture": (1, 3, 32, 32)}], MODEL_ULPS
        ),
        "mobilenet_v2": GraphCase(
            lambda: models.mobilenet_v2(size=32, width=8, classes=10, blocks=3),
            [{"picture": (1, 3, 32, 32)}],
            MODEL_ULPS,
        ),
        "transformer": GraphCase(lambda: models.transformer(features=32, steps=7), [{"x": (1, 7, 32)}], MODEL_ULPS),
        "transformer of any length": GraphCase(
            lambda: models.transformer(features=32, steps="steps"), [{"x": (1, 7, 32)}, {"x": (1, 4, 32)}], MODEL_ULPS
        ),
        "lstm": GraphCase(models.lstm, [{"x": (6, 2, 12)}], MODEL_ULPS),
    }
)
