"""Fake quantisation becomes integers: the operators' results in real numbers, rounded once, to the bit; what is not
known to be so stays."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.passes.capabilities import Capabilities
from weft.passes.fold_constants import fold_constants
from weft_ops import (
    Add,
    AveragePool,
    Clip,
    Concat,
    Conv,
    Dequantize,
    Gather,
    MatMul,
    MaxPool,
    Multiply,
    Pad,
    QLinearConv,
    QLinearMatMul,
    Quantize,
    ReduceMean,
    Relu,
    Reshape,
    Resize,
    Sigmoid,
    Slice,
    Transpose,
)
from weft_ops.passes.fuse_quantization import fuse_quantization

Array = np.ndarray[Any, Any]
F = np.float32
EXACT = Capabilities(doubles=True)


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def fused(graph: Graph, capabilities: Capabilities = EXACT) -> Graph:
    return fuse_quantization(fold_constants(graph, early=True), capabilities)


def names(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


class Model:
    """A graph of quantised numbers in the making."""

    def __init__(self) -> None:
        self.b = GraphBuilder("quantised")

    def __call__(self, op: Any, *inputs: Any) -> Value:
        return self.b.add(op, *inputs)  # type: ignore[no-any-return]

    def constant(self, data: Any) -> Value:
        return self.b.constant(np.asarray(data))

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> Value:
        return self.b.input(name, tensor_type(dtype, shape))

    def dequantised(self, q: Any, scale: Any, zero: Any = None, axis: int = 1) -> Value:
        q = q if isinstance(q, Value) else self.constant(q)
        zero = None if zero is None else self.constant(np.asarray(zero, q.dtype.numpy))
        return self(Dequantize(axis), q, self.constant(np.asarray(scale, F)), zero)

    def quantised(self, value: Value, scale: float, zero: int = 0, to: Any = dt.uint8) -> Value:
        return self(Quantize(to), value, self.constant(F(scale)), self.constant(np.asarray(zero, to.numpy)))

    def graph(self, *outputs: Value) -> Graph:
        for v in outputs:
            self.b.output(v)
        return self.b.build()


def steps(
    total: Array,
    scale: Any,
    to_scale: Any,
    zero: int,
    to: Any,
    least: float | None = None,
    most: float | None = None,
    term: Any = 0,
) -> Array:
    """The quotient of real numbers, rounded once: rational arithmetic. `scale` and `term` broadcast against `total`,
    integers or fractions."""
    info = np.iinfo(to.numpy)
    at = Fraction(float(F(to_scale)))

    def one(n: Any, s: Any, t: Any) -> int:
        value = Fraction(n) * s + Fraction(float(t))
        value = value if least is None else max(value, Fraction(least))
        value = value if most is None else min(value, Fraction(most))
        return min(max(round(value / at) + zero, info.min), info.max)

    return np.asarray(np.frompyfunc(one, 3, 1)(total.astype(object), scale, term)).astype(to.numpy)


def exactly(scale: Any) -> Any:
    """float32 numbers as fractions."""
    return np.frompyfunc(lambda v: Fraction(float(F(v))), 1, 1)(scale)


def convolved(x: Array, w: Array, zero: int, op: Conv) -> Array:
    wide = Conv(op.strides, op.pads, op.dilations, op.groups)
    return wide.reference(x.astype(np.int64) - zero, w.astype(np.int64))


SCALES = st.sampled_from([0.5, 0.25, 2.0, 0.03, 0.0117, 1 / 3, 0.0078125, 0.1])


@settings(max_examples=60, deadline=None)
@given(
    SCALES, st.lists(SCALES, min_size=3, max_size=3), SCALES, st.sampled_from([1, 64, 3000]), st.sampled_from(["uint8",
        "int8"]),
    st.sampled_from([dt.uint8, dt.int8]), st.sampled_from(["none", "integers", "floats"]), st.sampled_from(["none",
        "relu", "clip"]),
    st.booleans(), st.integers(0, 1 << 16),
)  # fmt: skip
def test_convolutions_are_the_real_number_rounded_once(
    x_scale: float,
    w_scales: list[float],
    y_scale: float,
    larger: int,
    left: str,
    to: Any,
    bias: str,
    after: str,
    per_channel: bool,
    seed: int,
) -> None:
    """Scales of two make exact halves, which go to even."""
    m, op = Model(), Conv(pads=(1, 1, 1, 1))
    x, w = numbers((1, 2, 4, 4), left, seed), numbers((3, 2, 3, 3), "int8", seed + 1)
    zero, y_zero = (7 if left == "uint8" else -3), (11 if to == dt.uint8 else -5)
    scale: Any = np.array(w_scales, F) if per_channel else F(w_scales[0])
    value = m(op, m.dequantised(m.input("x", left, x.shape), x_scale, zero), m.dequantised(w, scale, axis=0))
    total, term = convolved(x, w, zero, op), np.zeros((1, 3, 1, 1), F)
    units = exactly(np.broadcast_to(scale, (3,)).reshape(1, 3, 1, 1)) * Fraction(float(F(x_scale)))
    b = np.random.default_rng(seed).integers(-999, 999, 3).astype(np.int32)
    if bias == "integers":
        own = m.dequantised(b, F(x_scale) * scale, axis=0)
        value = m(Add(), value, m(Reshape((1, 3, 1, 1)), own))
        total = total + b.reshape(1, 3, 1, 1)
    elif bias == "floats":
        term = (b * 0.37).astype(F).reshape(1, 3, 1, 1)
        value = m(Add(), value, m.constant(term))
    least, most = {"none": (None, None), "relu": (0.0, None), "clip": (-1.5, 6.0)}[after]
    if after != "none":
        value = m(Relu(), value) if after == "relu" else m(Clip(), value, m.constant(F(-1.5)), m.constant(F(6)))
    graph = m.graph(m.quantised(value, y_scale * larger, y_zero, to))
    new = fused(graph)
    assert (
        not {"Relu", "Dequantize", "Quantize", "Divide"} & set(names(new))
        and [n.op for n in new.nodes if n.op.kind == "contraction"] == []
    )
    want = steps(total, units, F(y_scale * larger), y_zero, to, least, most, term)
    np.testing.assert_array_equal(evaluate(new, [x])[0], want)
    # In float32 as spelled out the result may be a step away where the quotient is almost halfway: every operator
    # rounds.
    assert np.abs(evaluate(graph, [x])[0].astype(int) - want.astype(int)).max() <= 1
    narrow = fused(graph, Capabilities())
    assert np.abs(evaluate(narrow, [x])[0].astype(int) - want.astype(int)).max() <= 1


@settings(max_examples=40, deadline=None)
@given(SCALES, st.lists(SCALES, min_size=5, max_size=5), SCALES, st.booleans(), st.booleans(), st.integers(0, 1 << 16))
def test_products_are_the_real_number_rounded_once(
    x_scale: float, w_scales: list[float], y_scale: float, per_column: bool, transposed: bool, seed: int
) -> None:
    """Weights are transposed by exporters of linear layers; a bias has a rank of its own."""
    m = Model()
    x, w = numbers((2, 3, 8), "int8", seed), numbers((8, 5), "int8", seed + 1)
    scale: Any = np.array(w_scales, F) if per_column else F(w_scales[0])
    right = (
        m(Transpose((1, 0)), m.dequantised(np.ascontiguousarray(w.T), scale, axis=0))
        if transposed
        else m.dequantised(w, scale, axis=1)
    )
    b = numbers((5,), "int16", seed + 2).astype(np.int32)
    value = m(
        Add(),
        m.dequantised(b, F(x_scale) * scale, axis=0),
        m(MatMul(), m.dequantised(m.input("x", "int8", x.shape), x_scale, 4), right),
    )
    graph = m.graph(m.quantised(m(Reshape((6, 5)), value), y_scale * 200, -3, dt.int8))
    new = fused(graph)
    assert "MatMul" not in names(new) and "MatMulInteger" in names(new) and "Divide" not in names(new)
    total = (x.astype(np.int64) - 4) @ w.astype(np.int64) + b
    units = exactly(np.broadcast_to(scale, (5,))) * Fraction(float(F(x_scale)))
    np.testing.assert_array_equal(
        evaluate(new, [x])[0], steps(total, units, F(y_scale * 200), -3, dt.int8).reshape(6, 5)
    )


def test_two_activations_multiply_as_integers() -> None:
    m = Model()
    x, y = numbers((2, 4, 8), "uint8", 0), numbers((2, 8, 4), "uint8", 1)
    left, right = (
        m.dequantised(m.input("x", "uint8", x.shape), 0.1, 100),
        m.dequantised(m.input("y", "uint8", y.shape), 0.02, 128),
    )
    new = fused(m.graph(m.quantised(m(MatMul(), left, right), 0.7, 120)))
    total = (x.astype(np.int64) - 100) @ (y.astype(np.int64) - 128)
    np.testing.assert_array_equal(
        evaluate(new, [x, y])[0],
        steps(total, Fraction(float(F(0.1))) * Fraction(float(F(0.02))), F(0.7), 120, dt.uint8),
    )


def test_a_result_in_floats_is_a_scaled_sum() -> None:
    """The last product of a model, and one before a function that has no integers."""
    m = Model()
    x, w = numbers((2, 8), "uint8", 0), numbers((8, 5), "int8", 1)
    value = m(
        MatMul(), m.dequantised(m.input("x", "uint8", x.shape), 0.1, 3), m.dequantised(w, np.linspace(0.01, 0.02, 5))
    )
    graph = m.graph(value, m.quantised(m(Sigmoid(), value), 1 / 255))
    new = fused(graph)
    assert (
        names(new) == ["MatMulInteger", "Dequantize", "Sigmoid", "Quantize"]
        and new.nodes[1].inputs[1].dtype == dt.float32
    )  # type: ignore[union-attr]
    plain, quantised = evaluate(new, [x])
    np.testing.assert_allclose(plain, evaluate(graph, [x])[0], rtol=1e-5)
    assert np.abs(quantised.astype(int) - evaluate(graph, [x])[1].astype(int)).max() <= 1


MOVES: dict[str, Callable[[Model, Value], Value]] = {
    "reshape": lambda m, v: m(Reshape((2, 48)), v),
    "transpose": lambda m, v: m(Transpose((0, 2, 3, 1)), v),
    "slice": lambda m, v: m(Slice((0, 1, 0, 0), (2, 2, 4, 4), (1, 1, 1, 1)), v),
    "gather": lambda m, v: m(Gather(1), v, m.constant(np.array([2, 0]))),
    "pad": lambda m, v: m(Pad((0, 0, 1, 1, 0, 0, 1, 0)), v),
    "resize": lambda m, v: m(Resize((2, 3, 8, 8)), v),
    "max_pool": lambda m, v: m(MaxPool((3, 3), (2, 2), (1, 1, 1, 1)), v),
    "relu": lambda m, v: m(Relu(), v),
    "concat": lambda m, v: m(Concat(1), v, v),
}


@pytest.mark.parametrize("zero", [0, 9])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("move", MOVES)
def test_what_moves_or_orders_numbers_has_integers(move: str, dtype: str, zero: int) -> None:
    m, to = Model(), dt.dtype(np.dtype(dtype))
    x = numbers((2, 3, 4, 4), dtype, 0)
    value = MOVES[move](m, m.dequantised(m.input("x", dtype, x.shape), 0.3, zero))
    graph = m.graph(m.quantised(value, 0.3, zero, to), value)
    new = fused(graph)
    float_nodes = [n for n in new.nodes if n.op.kind not in ("composite",) and n.output.dtype.is_float]
    assert float_nodes == [] and names(new).count("Dequantize") == 1 and "Quantize" not in names(new)
    for got, want in zip(evaluate(new, [x]), evaluate(graph, [x])):
        np.testing.assert_array_equal(got, want)


def test_what_does_not_only_move_stays() -> None:
    """Another scale, linear interpolation, a fill that is not zero: floats, in one kernel between 8 bits and 8 bits."""
    for move in (
        lambda m, v: m(Resize((1, 2, 8, 8), "linear"), v),
        lambda m, v: m(Pad((0, 0, 1, 1, 0, 0, 1, 1)), v, m.constant(F(1))),
        lambda m, v: m(Concat(1), v, m.dequantised(m.input("y", "uint8", (1, 2, 4, 4)), 0.4, 9)),
        lambda m, v: m(Add(), v, v),
    ):
        m = Model()
        value = move(m, m.dequantised(m.input("x", "uint8", (1, 2, 4, 4)), 0.3, 9))
        new = fused(m.graph(m.quantised(value, 0.3, 9)))
        assert "Quantize" in names(new) and "Dequantize" in names(new)


@pytest.mark.parametrize("y_scale", [0.1, 0.07, 0.05])
@pytest.mark.parametrize(
    "op",
    [ReduceMean((2, 3), True), AveragePool((2, 2), (2, 2)), AveragePool((3, 2), (1, 1), (1, 1, 1, 1))],
    ids=["all", "even", "padded"],
)
def test_means_are_divided_once(op: Any, y_scale: float) -> None:
    """Windows of 4 and 6 elements with equal scales have exact halves; at the border a window counts what it covers."""
    m = Model()
    x = numbers((2, 3, 4, 6), "uint8", 0)
    graph = m.graph(m.quantised(m(op, m.dequantised(m.input("x", "uint8", x.shape), 0.1, 30)), y_scale, 20))
    new = fused(graph)
    assert "Dequantize" not in names(new)
    wide = x.astype(np.float64) - 30
    ones = np.ones_like(wide)
    if isinstance(op, ReduceMean):
        sums, counts = wide.sum((2, 3), keepdims=True), np.full((2, 3, 1, 1), 24.0)
    else:
        windows = [op.reference_windows(a, 0).sum((-1, -2)) for a in (wide, ones)]
        sums, counts = windows
    means = np.frompyfunc(lambda s, n: Fraction(int(s), int(n)), 2, 1)(sums, counts)
    np.testing.assert_array_equal(
        evaluate(new, [x])[0], steps(means, Fraction(float(F(0.1))), F(y_scale), 20, dt.uint8)
    )


@pytest.mark.parametrize("bias", [False, True])
def test_operators_of_integers_are_the_same(bias: bool) -> None:
    """QLinearConv and QLinearMatMul mean what is spelled out around Conv and MatMul."""
    m = Model()
    x, w, b = (
        numbers((1, 2, 4, 4), "uint8", 0),
        numbers((3, 2, 3, 3), "int8", 1),
        numbers((3,), "int16", 2).astype(np.int32),
    )
    scales = np.array([0.01, 0.02, 1 / 3], F)
    parts: Any = (F(0.1), np.uint8(4), w, scales, np.zeros(3, np.int8), F(40), np.uint8(99), *([b] if bias else []))
    conv = m(QLinearConv(pads=(1, 1, 1, 1)), m.input("x", "uint8", x.shape), *map(m.constant, parts))
    right = numbers((4, 5), "int8", 3)
    others = (F(0.1), np.uint8(4), right, F(0.3), np.int8(2), F(30), np.uint8(99))
    product = m(QLinearMatMul(), m.input("y", "uint8", (2, 4)), *map(m.constant, others))
    y = numbers((2, 4), "uint8", 4)
    got = evaluate(fused(m.graph(conv, product)), [x, y])
    total = convolved(x, w, 4, Conv(pads=(1, 1, 1, 1))) + (b.reshape(1, 3, 1, 1) if bias else 0)
    np.testing.assert_array_equal(
        got[0], steps(total, exactly(scales.reshape(1, 3, 1, 1)) * Fraction(float(F(0.1))), F(40), 99, dt.uint8)
    )
    total = (y.astype(np.int64) - 4) @ (right.astype(np.int64) - 2)
    np.testing.assert_array_equal(
        got[1], steps(total, Fraction(float(F(0.1))) * Fraction(float(F(0.3))), F(30), 99, dt.uint8)
    )


def test_what_is_not_known_stays() -> None:
    """Scales of run time, blocks, scales along the sum, sums beyond 32 bits, and sums that something else needs in
    floats."""

    def kinds(build: Callable[[Model], Value]) -> list[str]:
        m = Model()
        return names(fused(m.graph(build(m))))

    x: Callable[[Model], Value] = lambda m: m.dequantised(m.input("x", "uint8", (4, 8)), 0.1, 3)
    w = numbers((8, 6), "int8", 1)
    run_time = kinds(
        lambda m: m(
            MatMul(), m(Dequantize(), m.input("x", "uint8", (4, 8)), m.input("s", "float32", ())), m.dequantised(w, 0.1)
        )
    )
    assert run_time == ["Dequantize", "MatMul"]
    blocks = kinds(lambda m: m(MatMul(), x(m), m(Dequantize(0, 4), m.constant(w), m.constant(np.full((2, 6), 0.1, F)))))
    assert blocks == ["Dequantize", "MatMul"], "and their weights are constants in floats"
    rows = kinds(lambda m: m(MatMul(), x(m), m.dequantised(w, np.full(8, 0.1), axis=0)))
    assert rows == ["Dequantize", "MatMul"]
    wide = np.full((1 << 12, 2), 127, np.int8)
    long = kinds(
        lambda m: m(MatMul(), m.dequantised(m.input("x", "uint16", (1, 1 << 12)), 0.1), m.dequantised(wide, 0.1))
    )
    assert long == ["Dequantize", "MatMul"]

    def twice(m: Model) -> Value:
        value = m(MatMul(), x(m), m.dequantised(w, 0.1))
        return m(Multiply(), value, m.dequantised(m.quantised(value, 0.5), 0.5))

    assert "Quantize" in kinds(twice)


def test_a_bias_of_another_scale_is_a_float() -> None:
    m = Model()
    x, w, b = numbers((4, 8), "uint8", 0), numbers((8, 3), "int8", 1), np.array([100, -100, 5], np.int32)
    value = m(
        Add(),
        m(MatMul(), m.dequantised(m.input("x", "uint8", x.shape), 0.1), m.dequantised(w, 0.2)),
        m.dequantised(b, 0.03),
    )
    new = fused(m.graph(m.quantised(value, 20.0, 128)))
    term = np.array([float(F(n) * F(0.03)) for n in b])
    total = x.astype(np.int64) @ w.astype(np.int64)
    want = steps(total, Fraction(float(F(0.1))) * Fraction(float(F(0.2))), F(20), 128, dt.uint8, term=term)
    np.testing.assert_array_equal(evaluate(new, [x])[0], want)


def test_weights_of_four_bits() -> None:
    import ml_dtypes

    m = Model()
    x, w = numbers((4, 8), "uint8", 0), np.random.default_rng(1).integers(-8, 8, (8, 3)).astype(ml_dtypes.int4)
    value = m(MatMul(), m.dequantised(m.input("x", "uint8", x.shape), 0.1), m.dequantised(w, [0.1, 0.2, 0.3]))
    new = fused(m.graph(m.quantised(value, 2.0, 128)))
    units = exactly(np.array([0.1, 0.2, 0.3])) * Fraction(float(F(0.1)))
    np.testing.assert_array_equal(
        evaluate(new, [x])[0], steps(x.astype(np.int64) @ w.astype(np.int64), units, F(2), 128, dt.uint8)
    )


def network() -> tuple[Graph, Array]:
    """A residual block as quantizers write it: convolutions with biases, a depthwise one, an addition, a pool, a
    classifier."""
    m, random = Model(), np.random.default_rng(5)
    x = random.standard_normal((2, 3, 12, 12)).astype(F)
    value = m.dequantised(m.quantised(m.input("x", "float32", x.shape), 0.02, 128), 0.02, 128)

    def conv(value: Value, x_scale: float, outputs: int, groups: int = 1, y_scale: float = 0.05) -> Value:
        inputs = int(str(value.shape[1])) // groups
        scale = (0.005 + 0.01 * random.random(outputs)).astype(F)
        w, b = (
            random.integers(-127, 128, (outputs, inputs, 3, 3)).astype(np.int8),
            random.integers(-500, 500, outputs).astype(np.int32),
        )
        y = m(Conv(pads=(1, 1, 1, 1), groups=groups), value, m.dequantised(w, scale, axis=0))
        y = m(Relu(), m(Add(), y, m(Reshape((1, outputs, 1, 1)), m.dequantised(b, F(x_scale) * scale, axis=0))))
        return m.dequantised(m.quantised(y, y_scale), y_scale)

    first = conv(value, 0.02, 16)
    second = conv(conv(first, 0.05, 16, 16), 0.05, 16, y_scale=0.3)
    both = m.dequantised(m.quantised(m(Add(), first, second), 0.35), 0.35)
    pooled = m.dequantised(m.quantised(m(ReduceMean((2, 3), True), m(MaxPool((2, 2), (2, 2)), both)), 0.2), 0.2)
    w = m(Transpose((1, 0)), m.dequantised(random.integers(-127, 128, (10, 16)).astype(np.int8), 0.01))
    value = m(MatMul(), m(Reshape((2, 16)), pooled), w)
    return m.graph(m.dequantised(m.quantised(value, 0.1, 128), 0.1, 128)), x


@pytest.mark.needs("weft_llvm")
@pytest.mark.filterwarnings("error::weft.errors.ScheduleWarning")
def test_a_network_has_integers_from_end_to_end() -> None:
    graph, x = network()
    new = fused(graph)
    assert [type(n.op).__name__ for n in new.nodes if n.op.kind == "contraction"] == []
    exe = weft.compile(graph, "llvm -threads=2", cache=False)
    got, want = next(iter(exe.run({"x": x}).values())), evaluate(new, [x])[0]
    np.testing.assert_array_equal(got, want)
    # One step of 0.1, as float32 rounds in every operator of the definition, and a step in the middle becomes less than
    # one at the end.
    assert np.abs(want - evaluate(graph, [x])[0]).max() <= 0.1001
