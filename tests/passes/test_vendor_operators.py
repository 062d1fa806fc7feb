"""Operators of somebody else's, made with public names alone, go through the passes as the library's own do; a name
alone gives an operator nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from weft import dtypes as dt
from weft.expr.functions import call
from weft.expr.nodes import Expr
from weft.graph.group import Group
from weft.graph.layout import parse_layout
from weft.graph.nodes import Graph, GraphBuilder, Node, TensorType, Type, Value, tensor_type
from weft.graph.operator import CHEAP, Array, Commutes, Elementwise, Operator, Sample, algorithm
from weft.passes.capabilities import CLAIMED, Capabilities
from weft.passes.choose_layouts import choose_layouts
from weft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from weft.passes.fold_constants import fold_constants
from weft.passes.fuse import fuse
from weft.tensor.language import Tensor, compute
from weft_ops import (
    Add,
    Argmax,
    Conv,
    Dequantize,
    Exp,
    MatMul,
    Multiply,
    Quantize,
    Reciprocal,
    ReduceSum,
    Relu,
    Reshape,
    ScaledDotProductAttention,
    Slice,
    Softmax,
    Transpose,
)
from weft_ops.composing import Composer
from weft_ops.passes.fuse_quantization import fuse_quantization


class Foreign(Operator):
    """What the operators below share: no samples."""

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return ()


def first(types: tuple[Type | None, ...]) -> TensorType:
    assert isinstance(types[0], TensorType)
    return types[0]


@dataclass(frozen=True)
class Plus(Foreign, Elementwise):
    """Add, of equal shapes."""

    def infer(self, *types: Type | None) -> TensorType:
        return first(types)

    def formula(self, *args: Expr) -> Expr:
        return args[0] + args[1]

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0] + arrays[1]  # type: ignore[operator]


@dataclass(frozen=True)
class Grown(Foreign, Elementwise):
    """Exp."""

    def infer(self, *types: Type | None) -> TensorType:
        return first(types)

    def formula(self, *args: Expr) -> Expr:
        return call("exp", args[0])

    def reference(self, *arrays: Array | None) -> Any:
        return np.exp(arrays[0])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Turned(Foreign):
    """Transpose."""

    axes: tuple[int, ...]
    kind = "injective"

    def infer(self, *types: Type | None) -> TensorType:
        x = first(types)
        return TensorType(x.dtype, tuple(x.shape[k] for k in self.axes))

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0].transpose(self.axes)  # type: ignore[union-attr]

    def cost(self, *types: Type | None) -> float:
        return 1.0

    def permutation(self, rank: int) -> tuple[int, ...] | None:
        return self.axes

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        return compute(
            [x.shape[k] for k in self.axes], lambda *i: x[tuple(i[self.axes.index(k)] for k in range(x.rank))], "turned"
        )


@dataclass(frozen=True)
class Shares(Foreign):
    """Softmax."""

    kind = "composite"
    row_wise = True

    def infer(self, *types: Type | None) -> TensorType:
        return first(types)

    def reference(self, *arrays: Array | None) -> Any:
        return Softmax().reference(*arrays)

    @algorithm("decompose")
    def shifted(self, builder: GraphBuilder, x: Value) -> Value:
        c = Composer(builder)
        axes = (len(x.shape) - 1,)
        exps = c(Exp(), c.sub(x, c.max(x, axes)))
        return c.mul(exps, c(Reciprocal(), c.sum(exps, axes)))


@dataclass(frozen=True)
class Viewed(Foreign):
    """Reshape."""

    shape: tuple[int, ...]
    kind = "injective"
    is_view = True

    def infer(self, *types: Type | None) -> TensorType:
        return TensorType(first(types).dtype, self.shape)

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0].reshape(self.shape)  # type: ignore[union-attr]

    def cost(self, *types: Type | None) -> float:
        return 1.0

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        return Reshape(self.shape).direct(x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Noise(Foreign, Elementwise):
    """The operand and something random."""

    deterministic = False

    def infer(self, *types: Type | None) -> TensorType:
        return first(types)

    def formula(self, *args: Expr) -> Expr:
        return args[0]

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0]


@dataclass(frozen=True)
class Cut(Foreign):
    """The second half of an axis."""

    axis: int
    kind = "injective"

    def infer(self, *types: Type | None) -> TensorType:
        x = first(types)
        return TensorType(
            x.dtype, tuple(d // 2 if k == self.axis and isinstance(d, int) else d for k, d in enumerate(x.shape))
        )

    def reference(self, *arrays: Array | None) -> Any:
        assert arrays[0] is not None
        return np.split(arrays[0], 2, self.axis)[1]

    @property
    def commutes(self) -> Commutes:
        return "anything"

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        return axis != self.axis or output.shape[axis] % factor == 0  # type: ignore[operator]

    @algorithm("tensors")
    def direct(self, x: Tensor) -> Tensor:
        shape = self.infer(TensorType(x.dtype, x.shape)).shape
        return compute(
            shape, lambda *i: x[tuple(n + shape[k] if k == self.axis else n for k, n in enumerate(i))], "cut"
        )


@dataclass(frozen=True)
class Unknown(Cut):
    """The same, which states nothing."""

    @property
    def commutes(self) -> Commutes:
        return "nothing"

    def keeps_blocks(self, axis: int, factor: int, inputs: Sequence[TensorType | None], output: TensorType) -> bool:
        return False


TWINS: dict[str, type[Operator]] = {
    "Add": Plus,
    "Exp": Grown,
    "Transpose": Turned,
    "Softmax": Shares,
    "Reshape": Viewed,
}
OWN: dict[str, type[Operator]] = {
    "Add": Add,
    "Exp": Exp,
    "Transpose": Transpose,
    "Softmax": Softmax,
    "Reshape": Reshape,
}


def structure(graph: Graph, renamed: dict[str, str]) -> list[Any]:
    """What groups a graph has and what is in each, values numbered in order, so that names do not show.

    Args:
        renamed: operator name → the one that stands for it here.
    """
    numbers: dict[int, int] = {}

    def of(values: Iterable[Value | None]) -> list[Any]:
        return [None if v is None else (numbers.setdefault(id(v), len(numbers)), str(v.type)) for v in values]

    def node(n: Node) -> list[Any]:
        if isinstance(n.op, Group):
            return [
                n.op.view,
                of(n.inputs),
                of(n.outputs),
                of(n.op.body.inputs),
                [node(m) for m in n.op.body.nodes],
                of(n.op.body.outputs),
            ]
        attributes = {k: v for k, v in n.op.attributes().items() if k not in ("axis",)}
        return [renamed.get(n.op.operator_name, n.op.operator_name), attributes, of(n.inputs), of(n.outputs)]

    return [node(n) for n in graph.nodes]


def chain(ops: dict[str, type[Operator]]) -> Graph:
    """What is cheap and what moves, in front of rows, products, attention, and read more than once."""
    b = GraphBuilder("chain")
    x, y = b.input("x", tensor_type("float32", (2, 4, 8, 16))), b.input("y", tensor_type("float32", (2, 4, 8, 16)))
    total = b.add(ops["Add"](), x, y)
    b.output(b.add(ops["Softmax"](), total), "rows")
    b.output(b.add(MatMul(), x, b.add(ops["Transpose"]((0, 1, 3, 2)), y)), "product")
    q, k = b.add(ops["Transpose"]((0, 1, 2, 3)), b.add(ops["Add"](), x, x)), b.add(ops["Transpose"]((0, 1, 2, 3)), y)
    attended = b.add(ScaledDotProductAttention(0.25), q, k, b.add(ops["Exp"](), y))
    b.output(b.add(ops["Reshape"]((2, 8, 64)), b.add(ops["Transpose"]((0, 2, 1, 3)), attended)), "attended")
    grown = b.add(ops["Exp"](), x)
    repeated = b.add(
        Add(),
        b.add(ops["Transpose"]((1, 0, 2, 3)), grown),
        b.add(ops["Transpose"]((1, 0, 2, 3)), b.add(ops["Add"](), y, y)),
    )
    b.output(b.add(ReduceSum((3,)), repeated), "sums")
    return b.build()


def test_twins_are_fused_alike() -> None:
    capabilities = Capabilities(claims=CLAIMED | {Shares})
    theirs = {twin.operator_name: name for name, twin in TWINS.items()}
    assert structure(fuse(chain(TWINS), capabilities), theirs) == structure(fuse(chain(OWN), capabilities), {})


@pytest.mark.needs("weft_llvm")
def test_twins_compute_the_same() -> None:
    inputs = {n: np.random.default_rng(k).normal(0, 1, (2, 4, 8, 16)).astype(np.float32) for k, n in enumerate("xy")}
    ours, theirs = (weft.compile(chain(ops), target="llvm", cache=False).run(inputs) for ops in (OWN, TWINS))
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-5, atol=1e-5)


def test_formulas_tell_what_is_cheap() -> None:
    a = tensor_type("float32", (2,))
    assert Plus().cost(a, a) == Add().cost(a, a) == 1
    assert Grown().cost(a) == Exp().cost(a) > CHEAP
    assert Add().cost(*[tensor_type("bfloat16", (2,))] * 2) == 1  # conversions count nothing


def test_operators_say_what_their_axes_are() -> None:
    assert Argmax(-1).reduced_axes(3) == (2,)
    assert ReduceSum((-1, 0)).reduced_axes(3) in ((0, 2), (2, 0))
    assert Transpose((-1, 0)).permutation(2) == (1, 0)
    assert Relu().permutation(2) is None and MatMul().reduced_axes(2) is None


def constants_only(op: Operator) -> Graph:
    b = GraphBuilder("constants")
    b.output(
        b.add(op, *[b.constant(np.ones((2, 3), np.float32), f"c{k}") for k in range(2 if isinstance(op, Plus) else 1)]),
        "y",
    )
    return b.build()


@pytest.mark.parametrize("op", [Plus(), Grown(), Turned((1, 0)), Viewed((6,))], ids=lambda op: op.operator_name)
def test_twins_are_folded(op: Operator) -> None:
    assert not fold_constants(constants_only(op)).nodes


def test_what_is_random_is_neither_folded_nor_merged() -> None:
    assert len(fold_constants(constants_only(Noise())).nodes) == 1
    b = GraphBuilder("random")
    x = b.input("x", tensor_type("float32", (4,)))
    b.output(b.add(Multiply(), b.add(Noise(), x), b.add(Noise(), x)), "y")
    b.output(b.add(Multiply(), b.add(Grown(), x), b.add(Grown(), x)), "z")
    left = [n.op.operator_name for n in eliminate_common_subexpressions(b.build()).nodes]
    assert left.count("Noise") == 2 and left.count("Grown") == 1


def between_convolutions(op: Operator, channels: int) -> list[str]:
    """Operators of a graph of two convolutions, with `op` between them, once layouts are chosen for blocks of 8
    channels."""
    b = GraphBuilder("layouts")
    x = b.input("x", tensor_type("float32", (1, 16, 8, 8)))
    x = b.add(op, b.add(Conv(pads=(1, 1, 1, 1)), x, b.constant(np.ones((16, 16, 3, 3), np.float32), "w1")))
    b.output(b.add(Conv(pads=(1, 1, 1, 1)), x, b.constant(np.ones((16, channels, 3, 3), np.float32), "w2")), "y")
    return [n.op.operator_name for n in choose_layouts(b.build(), Capabilities(channel_block=8)).nodes]


def test_layouts_go_through_what_keeps_blocks_together() -> None:
    theirs, ours = between_convolutions(Cut(2), 16), between_convolutions(Slice((0, 0, 4, 0), (1, 16, 4, 8)), 16)
    assert [n.replace("Cut", "Slice") for n in theirs] == ours == ["Relayout", "Conv", "Slice", "Conv", "Relayout"]
    assert between_convolutions(Cut(1), 8).count("Relayout") == 2  # a whole block
    assert between_convolutions(Unknown(2), 16).count("Relayout") == 4


def test_blocks_of_a_layout_are_those_of_logical_axes() -> None:
    assert parse_layout("split(1, 8) permute(0, 1, 3, 4, 2)").blocks(4) == [(1, 8)]
    assert parse_layout("split(1, 20) split(2, 16) permute(0, 1, 2, 4, 5, 3)").blocks(4) == [(1, 20), (1, 16)]
    assert parse_layout("permute(0, 2, 3, 1)").blocks(4) == [(1, 1)]
    assert parse_layout("split(0, 8) split(2, 8) permute(0, 2, 1, 3)").blocks(2) == [(0, 8), (1, 8)]


def quantized_around(op: Operator) -> list[str]:
    """Operators of a graph that dequantises, does `op` and quantises again, once quantisation is fused."""
    b = GraphBuilder("quantized")
    scale, zero = b.constant(np.float32(0.5), "scale"), b.constant(np.uint8(3), "zero")
    x = b.add(Dequantize(), b.input("x", tensor_type("uint8", (4, 8))), scale, zero)
    b.output(b.add(Quantize(dt.uint8), b.add(op, x), scale, zero), "y")
    return [n.op.operator_name for n in fuse_quantization(b.build()).nodes]


def test_what_moves_moves_quantised_numbers() -> None:
    assert quantized_around(Cut(1)) == ["Cut"]
    assert quantized_around(Slice((0, 4), (4, 4))) == ["Slice"]
    assert quantized_around(Unknown(1)) == ["Dequantize", "Unknown", "Quantize"]


def named(name: str, base: type[Operator]) -> type[Operator]:
    """Another class of this name that does what `base` does."""
    made: type[Operator] = dataclass(frozen=True)(type(name, (base,), {"__module__": __name__}))
    return made


NAMES = [
    "Slice",
    "Transpose",
    "Reshape",
    "Add",
    "Argmax",
    "Entropy",
    "Dequantize",
    "MatMul",
    "ScaledDotProductAttention",
    "Other",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_gives_an_operator_nothing(name: str) -> None:
    """An expensive elementwise operator by the name of one that is cheap, moves, is random or packs is what it is."""

    def graph(op: Operator) -> Graph:
        b = GraphBuilder("named")
        x, y = b.input("x", tensor_type("float32", (8, 8))), b.input("y", tensor_type("float32", (8, 8)))
        b.output(b.add(MatMul(), x, b.add(op, y)), "product")
        b.output(
            b.add(Add(), b.add(Slice((0, 0), (4, 8)), b.add(op, x)), b.add(Slice((4, 0), (4, 8)), b.add(op, x))),
            "halves",
        )
        return b.build()

    made = named(name, Grown)()
    plain = fuse(eliminate_common_subexpressions(graph(named("Unnamed", Grown)())))
    found = fuse(eliminate_common_subexpressions(graph(made)))
    assert structure(found, {name: "one"}) == structure(plain, {"Unnamed": "one", name: "one"})
    assert not fold_constants(constants_only(made)).nodes


@pytest.mark.needs("weft_llvm")
def test_operators_of_one_name_have_kernels_of_their_own() -> None:
    """Kernels are found again by text, in which another's operator may look the same."""
    b = GraphBuilder("two")
    x = b.input("x", tensor_type("float32", (5,)))
    b.output(b.add(Exp(), x), "ours")
    b.output(b.add(named("Exp", Doubled)(), x), "theirs")
    found = weft.compile(b.build(), target="llvm", cache=False).run({"x": np.arange(5, dtype=np.float32)})
    np.testing.assert_allclose(found["ours"], np.exp(np.arange(5, dtype=np.float32)), rtol=1e-6)
    np.testing.assert_array_equal(found["theirs"], 2 * np.arange(5))


@dataclass(frozen=True)
class Doubled(Grown):
    """Twice the operand."""

    def formula(self, *args: Expr) -> Expr:
        return args[0] + args[0]

    def reference(self, *arrays: Array | None) -> Any:
        return arrays[0] + arrays[0]  # type: ignore[operator]
