"""Type rules refuse what does not fit, in the one form: what was expected and what was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft_ops as ops
from weft import dtypes as dt
from weft.errors import GraphError, TensorError
from weft.expr.nodes import Var
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, SequenceType, TensorType, tensor_type
from weft.graph.operator import Operator
from weft.tensor.evaluate import evaluate
from weft.tensor.language import compute, placeholder

N = Var("n", dt.int64)


def f32(*shape: Any) -> TensorType:
    return tensor_type("float32", shape)


def i64(*shape: Any) -> TensorType:
    return tensor_type("int64", shape)


REFUSED: list[tuple[Operator, tuple[Any, ...], str]] = [
    (ops.Add(), (f32(2), f32(3)), "shapes [2] and [3] do not broadcast: broadcast, dimension 0: expected 2, got 3"),
    (ops.Add(), (f32(2), i64(2)), "operand 1: expected dtype float32, got int64"),
    (ops.Add(), (f32(2),), "expected 2 operand(s), got 1"),
    (ops.Add(), (SequenceType(f32(2)), f32(2)), "operand 0: expected a tensor, got sequence(float32[2])"),
    (ops.Add(), (None, f32(2)), "operand 0: expected a tensor, got nothing"),
    (ops.Exp(), (i64(2),), "operand: expected float, got int64"),
    (ops.LogicalAnd(), (f32(2), f32(2)), "expected bool, got float32"),
    (ops.Where(), (f32(2), f32(2), f32(2)), "condition: expected bool, got float32"),
    (ops.Clip(), (f32(2), f32(), f32(), f32()), "expected x, lo and hi, got 4 operands"),
    (ops.Cast(dt.string), (f32(2),), "cannot cast float32 to string"),
    (ops.Bitcast(dt.int64), (f32(2),), "expected a dtype of 32 bits, got int64"),
    (ops.MatMul(), (f32(), f32(2)), "expected at least one dimension, got [] and [2]"),
    (ops.MatMul(), (f32(2, 3), f32(4, 2)), "length of the products: expected 3, got 4"),
    (ops.Conv(), (f32(1, 2), f32(1, 2)), "expected x [n, c, in…] and w [oc, c/groups, kernel…], got [1, 2] and [1, 2]"),
    (ops.Conv(), (f32(1, 3, 4, 4), f32(2, 2, 1, 1)), "channels: expected 2, got 3"),
    (ops.Conv(groups=2), (f32(1, 4, 4, 4), f32(3, 2, 1, 1)),
        "output channels: expected a multiple of groups = 2, got 3"),
    (ops.Conv(strides=(1,)), (f32(1, 2, 4, 4), f32(2, 2, 1, 1)), "expected 2 number(s), got (1,)"),
    (ops.ConvTranspose(), (f32(1, 2), f32(1, 2)), "w [c, oc/groups, kernel…]"),
    (ops.MaxPool((2, 2)), (f32(1, 2, 4),), "expected x [n, c, in…] with 2 spatial axes, got [1, 2, 4]"),
    (ops.LpPool((2,), p=0), (f32(1, 2, 4),), "p: expected at least 1, got 0"),
    (ops.MaxUnpool((4,)), (f32(1, 2), i64(1, 2)), "expected 2 dimensions, got shape [4]"),
    (ops.Col2Im((4, 4), (2,)), (f32(1, 4, 9),), "a block of 2 axes"),
    (ops.ReduceSum((2,)), (f32(2, 3),), "axis: expected -2 … 1, got 2"),
    (ops.ReduceSum((0, -2)), (f32(2, 3),), "axes: expected different ones, got (0, -2)"),
    (ops.Reshape((-1, -1)), (f32(2, 3),), "expected at most one -1, got shape [-1, -1]"),
    (ops.Reshape((4,)), (f32(2, 3),), "expected a shape of 6 elements, got [4]"),
    (ops.Transpose((0,)), (f32(2, 3),), "axes: expected a permutation of 2, got (0,)"),
    (ops.BroadcastTo((4,)), (f32(3),), "dimension 0: expected 3, got 4"),
    (ops.Concat(0), (), "expected at least one operand, got none"),
    (ops.Concat(0), (f32(2), f32(2, 2)), "operand 1: expected 1 dimension(s), got [2, 2]"),
    (ops.Concat(0), (f32(2, 3), f32(2, 4)), "operand 1, dimension 1: expected 3, got 4"),
    (ops.Slice((0,), (1,)), (f32(2, 3),), "starts: expected 2 number(s), got [0]"),
    (ops.Slice((1,), (2,)), (f32(2),), "dimension 0: expected elements 0 … 1, got 1 … 2"),
    (ops.Pad((1,)), (f32(2),), "pads: expected 2 numbers, got [1]"),
    (ops.Pad((1, 1), "odd"), (f32(2),),
        "mode: expected constant, edge, reflect or wrap, got 'odd'"),  # type: ignore[arg-type]
    (ops.Pad((1, 1)), (f32(2), f32(2)), "padding value: expected a scalar, got [2]"),
    (ops.Gather(), (f32(2), f32(2)), "indices: expected int or uint, got float32"),
    (ops.GatherElements(), (f32(2), i64(2, 1)), "indices: expected 1 dimension(s), got [2, 1]"),
    (ops.GatherND(), (f32(2), i64(2, N)), "indices: expected a known last dimension, got [2, n]"),
    (ops.GatherND(1), (f32(2), i64(2, 1)), "with 1 batch dimension(s) do not fit [2]"),
    (ops.ScatterElements(), (f32(2), i64(1, 1), f32(1)), "expected indices and updates of 1 dimension(s)"),
    (ops.ScatterND(), (f32(2), i64(1, 2), f32(1)), "indices: expected a last dimension 0 … 1, got [1, 2]"),
    (ops.ScatterND(), (f32(2, 2), i64(1, 1), f32(1)), "updates: expected shape [1, 2], got [1]"),
    (ops.OneHot(3), (i64(2), f32(3)), "values: expected [off, on], got shape [3]"),
    (ops.Trilu(), (f32(2),), "expected at least two dimensions, got [2]"),
    (ops.Tile((2, 2)), (f32(2),), "repeats: expected 1 number(s), got [2, 2]"),
    (ops.ReverseSequence(0, 0), (f32(2, 2), i64(2)),
        "expected different axes and a vector of lengths, got axes 0 and 0"),
    (ops.TopK(4), (f32(2, 3),), "k: expected 0 … 3, got 4"),
    (ops.NonMaxSuppression(1), (f32(1, 2, 4), f32(1, 1, 2), f32(2)), "threshold: expected one element, got shape [2]"),
    (ops.LayerNorm(), (f32(2, 3), f32(4)), "do not broadcast"),
    (ops.InstanceNorm(), (f32(2), f32(1), f32(1)), "expected x [n, c, …], got [2]"),
    (ops.GroupNorm(groups=2), (f32(1, 3, 2), f32(3), f32(3)), "channels: expected a multiple of groups = 2, got 3"),
    (ops.LRN(3), (f32(2),), "expected x [n, c, …], got [2]"),
    (ops.LpNorm(p=3), (f32(2),), "p: expected 1 or 2, got 3"),
    (ops.Einsum("ij->i"), (f32(2, 2), f32(2)), "equation 'ij->i': expected 1 operand(s), got 2"),
    (ops.Einsum("ij->i"), (f32(2),), "term 'ij' does not fit 1 dimension(s)"),
    (ops.Einsum("i->k"), (f32(2),), "'k' in the result must stand once there and in some term"),
    (ops.Einsum("i,i->"), (f32(2), f32(3)), "'i' of 'i,i->': expected 2, got 3"),
    (ops.Det(), (f32(2),), "expected square matrices, got [2]"),
    (ops.Quantize(dt.int8), (f32(2, 3), f32(2, 3)), "scale: expected one element or a vector, got shape [2, 3]"),
    (ops.Quantize(dt.int8, 1, 2), (f32(2, 4), f32(2, 3)), "scale: expected shape [2, 2], got [2, 3]"),
    (ops.Attention(), (f32(1, 2, 8), f32(1, 2, 8), f32(1, 2, 8)),
        "q_heads and kv_heads: expected both for inputs of three dimensions"),
    (ops.Attention(), (f32(1, 2), f32(1, 2), f32(1, 2)), "expected q, k and v of three or four dimensions"),
    (ops.Attention(), (f32(1, 3, 2, 8), f32(1, 2, 2, 8), f32(1, 2, 2, 8)),
        "query heads: expected a multiple of 2 key heads, got 3"),
    (ops.Attention(), (f32(1, 2, 2, 8),) * 3 + (None, f32(1, 2, 1, 8)),
        "past_key and past_value: expected both or neither"),
    (ops.RotaryEmbedding(), (f32(1, 2, 8), f32(4, 4), f32(4, 4), i64(1, 2)),
        "or [b, s, heads·d] with heads given, got [1, 2, 8]"),
    (ops.RotaryEmbedding(), (f32(1, 1, 2, 8), f32(4, 4), f32(4, 4)), "cos: expected 3 dimensions, got [4, 4]"),
    (ops.DFT(), (f32(4, 3),), "expected a last dimension of 1 or 2, got [4, 3]"),
    (ops.DFT(-1), (f32(4, 1),), "axis: expected one before the last, got -1"),
    (ops.STFT(1, 2), (f32(4, 1),), "expected x [b, n, 1 or 2], got [4, 1]"),
    (ops.Window("odd", 3), (), "name: expected hann, hamming or blackman, got 'odd'"),  # type: ignore[arg-type]
    (ops.Resize((1,)), (f32(1, 2),), "shape: expected 2 dimensions, got [1]"),
    (ops.Resize((2,), "odd"), (f32(2),),
        "mode: expected one of nearest, linear, cubic, got 'odd'"),  # type: ignore[arg-type]
    (ops.Resize((2,), scales=(1.0, 2.0)), (f32(2),), "scales: expected 1 number(s), got (1.0, 2.0)"),
    (ops.Resize((2,), "linear", "tf_crop_and_resize"), (f32(2),),
        "roi: expected an input for tf_crop_and_resize, got nothing"),
    (ops.Pad((1, 1), "wrap"), (f32(0),), "dimension 0, whose elements are repeated: expected 1 element or more, got 0"),
    (ops.Resize((2,)), (f32(0),), "dimension 0, which is resized: expected 1 element or more, got 0"),
    (ops.GridSample(), (f32(1, 1, 0), f32(1, 3, 1)), "an axis that is sampled: expected 1 element or more, got 0"),
    (ops.RoiAlign(1, 1), (f32(1, 1, 0, 2), f32(3, 4), f32(3)),
        "an axis that is sampled: expected 1 element or more, got 0"),
    (ops.Resize((2, 3), axes=(1,)), (f32(4, 2),), "dimension 0 is not resized: expected 4, got 2"),
    (ops.GridSample(), (f32(1, 1, 2), f32(1, 1)), "expected x [n, c, in…] and grid [n, out…, axes]"),
    (ops.DepthToSpace(2), (f32(1, 3, 2, 2),), "channels: expected a multiple of block² = 4, got 3"),
    (ops.SpaceToDepth(2), (f32(1, 3, 2, 3),), "width: expected a multiple of block = 2, got 3"),
    (ops.AffineGrid((2, 2)), (f32(1, 3, 4),), "theta: expected [n, 2, 3], got [1, 3, 4]"),
    (ops.NegativeLogLikelihood("odd"), (f32(2, 3), i64(2)),
        "reduction: expected none, sum or mean, got 'odd'"),  # type: ignore[arg-type]
    (ops.NegativeLogLikelihood(), (f32(2, 3), i64(2, 3)), "expected x [n, classes, …] and target [n, …]"),
    (ops.LSTM(2, "odd"), (f32(1, 1, 2), f32(1, 8, 2), f32(1, 8, 2)),
        "direction: expected forward, reverse or bidirectional, got 'odd'"),  # type: ignore[arg-type]
    (ops.LSTM(2), (f32(1, 1, 2), f32(1, 6, 2), f32(1, 8, 2)), "W: [1, 6, 2] for [1, 8, 2]: expected 8, got 6"),
    (ops.Recurrence("rnn", ("Odd",)), (f32(1, 1, 2), f32(1, 2, 2), f32(1, 2)),
        "activation: expected one of sigmoid, tanh, relu"),
    (ops.Recurrence("lstm", ("Tanh",)), (f32(1, 1, 8), f32(4, 2, 2), f32(1, 2)),
        "activations: expected 3 of them, got ('Tanh',)"),
    (ops.Recurrence("rnn"), (f32(1, 2), f32(1, 2, 2), f32(1, 2)), "xw: expected 3 dimension(s), got 2: [1, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "types", "message"), REFUSED, ids=lambda v: v.split(":")[0][:40] if isinstance(v, str) else None
)
def test_refused(op: Operator, types: tuple[Any, ...], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        op.infer(*types)
    assert message in str(caught.value)


def test_a_builder_says_which_operator_and_operands() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 3)), b.input("y", f32(2, 4))
    with pytest.raises(GraphError, match=r"Add: shapes \[2, 3\] and \[2, 4\] do not broadcast") as caught:
        b.add(ops.Add(), x, y)
    assert "%x: float32[2, 3], %y: float32[2, 4]" in str(caught.value)


def test_attention_without_a_scale_needs_a_known_head_size() -> None:
    b = GraphBuilder()
    q = b.input("q", f32(1, 2, 3, N))
    with pytest.raises(GraphError, match="head size: expected a number where no scale is given, got n"):
        ops.Attention().algorithms()["plain"].function(ops.Attention(), b, q, q, q)


def test_a_reference_needs_sizes() -> None:
    with pytest.raises(GraphError, match="dimension 'n' has no value here"):
        ops.Fill(dt.float32, (N,)).reference()


def test_symbols_broadcast_with_themselves_and_with_one() -> None:
    assert ops.Add().infer(f32(N, 1), f32(1, N * 2)) == Inferred(f32(N, N * 2))
    assert ops.Add().infer(f32(N + 1), f32(1 + N)) == Inferred(f32(N + 1))


def test_a_type_rule_returns_what_it_assumes() -> None:
    """Beside the types, and each time: nothing is told to anybody else."""
    m = Var("m", dt.int64)
    for _ in range(2):
        found = ops.Add().infer(f32(N), f32(m))
        assert found == Inferred(f32(N), [Assumption.equal(N, m, "broadcast, dimension 0")])
    b = GraphBuilder()
    x, y = b.input("x", f32(N)), b.input("y", f32(m))
    assert ops.Add().inferred([x, y]) == found and ops.Add().infer_checked([x, y]) == (f32(N),)
    assert Inferred.of(f32(N)) == Inferred((f32(N),)) and Inferred.of(found) is found
    product = ops.QLinearMatMul().inferred(
        [
            b.input(f"v{k}", tensor_type(d, s))
            for k, (d, s) in enumerate(
                [("uint8", (2, N)), ("float32", ()), ("uint8", ()), ("uint8", (m, 3)), ("float32", ()), ("uint8", ())]
                + [("float32", ()), ("uint8", ())]
            )
        ]
    )
    assert product.assumes == (Assumption.equal(N, m, "length of the products"),)


def test_evaluate_says_what_is_missing() -> None:
    x = placeholder((3,), "float32", "x")
    y = compute((3,), lambda i: x[i + 1], "y")
    with pytest.raises(TensorError, match="the placeholder 'x' has no data"):
        evaluate(y, {})
    with pytest.raises(TensorError, match=r"tensor 'x': expected float32\[3\], got float64\[2\]"):
        evaluate(y, {x: np.zeros(2)})
    with pytest.raises(TensorError, match=r"reads outside 'x'\n  why: index 0 takes 1 … 3, the extent is 3"):
        evaluate(y, {x: np.zeros(3, np.float32)})
    twice = compute((2, 2), lambda i, j: i + j, "z", axes=("a", "a"))
    with pytest.raises(TensorError, match="names an axis twice"):
        evaluate(twice, {})
