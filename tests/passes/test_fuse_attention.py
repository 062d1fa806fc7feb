"""Attention is found in the operators that exporters write, and only where it is one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import keeps_meaning, numbers

from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.passes.capabilities import Capabilities
from weft.passes.fuse import fuse
from weft_ops.activation import Tanh
from weft_ops.arithmetic import Add, Divide, Multiply, Subtract, Where
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.comparison import IsNan, Less
from weft_ops.contraction import MatMul
from weft_ops.movement import BroadcastTo, Reshape, Slice, Transpose
from weft_ops.normalization import Softmax
from weft_ops.passes.fuse_attention import fuse_attention

B, H, S, T, D = 2, 4, 3, 5, 8
CAUSAL = np.where(np.arange(T) <= np.arange(S)[:, None], 0, np.finfo(np.float32).min).astype(np.float32)


def found(graph: Graph) -> list[ScaledDotProductAttention]:
    """The attentions that the pass finds; the graph means the same."""
    after = fuse_attention(graph)
    keeps_meaning(graph, after, [numbers(*v.shape, seed=k) for k, v in enumerate(graph.inputs)])
    return [n.op for n in after.nodes if isinstance(n.op, ScaledDotProductAttention)]


def fused(graph: Graph) -> Any:
    """The node of the one attention, after the pass."""
    (node,) = [n for n in fuse_attention(graph).nodes if isinstance(n.op, ScaledDotProductAttention)]
    return node


class Model:
    """q, k, v as [batch, positions, heads, size], and the pieces from which exporters put attention together."""

    def __init__(self, kv_heads: int = H, keys: int = T) -> None:
        self.b = GraphBuilder("model")
        self.q = self.heads(self.b.input("q", tensor_type("float32", (B, S, H, D))))
        self.k = self.heads(self.b.input("k", tensor_type("float32", (B, keys, kv_heads, D))))
        self.v = self.heads(self.b.input("v", tensor_type("float32", (B, keys, kv_heads, D))))

    def heads(self, x: Value) -> Value:
        return self.b.add(Transpose((0, 2, 1, 3)), x)  # type: ignore[no-any-return]

    def number(self, value: float) -> Value:
        return self.b.constant(np.float32(value))

    def times(self, x: Value, factor: float) -> Value:
        return self.b.add(Multiply(), x, self.number(factor))  # type: ignore[no-any-return]

    def scores(self) -> Value:
        return self.b.add(MatMul(), self.q, self.b.add(Transpose((0, 1, 3, 2)), self.k))  # type: ignore[no-any-return]

    def build(self, weights: Value) -> Graph:
        self.b.output(self.heads(self.b.add(MatMul(), weights, self.v)), "y")
        return self.b.build()

    def finish(self, scores: Value) -> Graph:
        return self.build(self.b.add(Softmax(-1), scores))


def test_plain() -> None:
    m = Model()
    (op,) = found(m.finish(m.scores()))
    assert op == ScaledDotProductAttention(1.0)


def test_divided_scores_and_an_added_mask() -> None:
    m = Model()
    scaled = m.b.add(Divide(), m.scores(), m.number(math.sqrt(D)))
    graph = m.finish(m.b.add(Add(), m.b.constant(CAUSAL), scaled))
    (op,) = found(graph)
    assert op.scale == pytest.approx(1 / math.sqrt(D))
    assert [v.shape for v in fused(graph).inputs] == [(B, H, S, D), (B, H, T, D), (B, H, T, D), (S, T)]


def test_a_scale_on_both_sides_keys_transposed_by_views_and_nan_rows_to_zero() -> None:
    """As torch exports its scaled_dot_product_attention."""
    m = Model()
    flat = m.b.add(Transpose((0, 2, 1)), m.b.add(Reshape((B * H, T, D)), m.k))
    turned = m.times(m.b.add(Reshape((B, H, D, T)), flat), 0.5)
    weights = m.b.add(Softmax(-1), m.b.add(MatMul(), m.times(m.q, 0.5), turned))
    graph = m.build(m.b.add(Where(), m.b.add(IsNan(), weights), m.number(0), weights))
    (op,) = found(graph)
    assert op == ScaledDotProductAttention(0.25, blank="zero")
    operands = [v.producer.op for v in fused(graph).inputs]
    assert operands == [Transpose((0, 2, 1, 3))] * 3  # keys as they were before they were turned


def test_keys_transposed_at_once() -> None:
    b = GraphBuilder("model")
    q, k, v = (b.input(n, tensor_type("float32", (B, T, H, D))) for n in "qkv")
    turned = [b.add(Transpose(axes), x) for axes, x in (((0, 2, 1, 3), q), ((0, 2, 3, 1), k), ((0, 2, 1, 3), v))]
    b.output(b.add(MatMul(), b.add(Softmax(3), b.add(MatMul(), turned[0], turned[1])), turned[2]))
    assert len(found(b.build())) == 1
    assert fused(b.graph).inputs[1].producer.op == Transpose((0, 2, 1, 3))


@pytest.mark.parametrize("inverted", [False, True])
def test_chosen_masks(inverted: bool) -> None:
    m = Model()
    allowed = m.b.constant(CAUSAL != 0 if inverted else CAUSAL == 0)
    scores, fill = m.scores(), m.number(-1e4)
    graph = m.finish(m.b.add(Where(), allowed, *((fill, scores) if inverted else (scores, fill))))
    (op,) = found(graph)
    assert op.fill == -1e4
    assert fused(graph).inputs[3].dtype.is_bool


def test_masks_that_fill_differently_stay() -> None:
    m = Model()
    allowed = m.b.constant(CAUSAL == 0)
    once = m.b.add(Where(), allowed, m.scores(), m.number(-1e4))
    assert found(m.finish(m.b.add(Where(), allowed, once, m.number(-2e4)))) == []


def test_grouped_queries_read_their_keys_once() -> None:
    m = Model(kv_heads=2)

    def repeated(x: Value) -> Value:
        wide = m.b.add(BroadcastTo((B, 2, 2, T, D)), m.b.add(Reshape((B, 2, 1, T, D)), x))
        return m.b.add(Reshape((B, H, T, D)), wide)  # type: ignore[no-any-return]

    m.k, m.v = repeated(m.k), repeated(m.v)
    graph = m.finish(m.times(m.scores(), 0.3))
    assert len(found(graph)) == 1
    assert [v.shape for v in fused(graph).inputs] == [(B, H, S, D), (B, 2, T, D), (B, 2, T, D)]


def test_heads_joined_with_the_batch() -> None:
    """As OPT and Whisper are written by hand: three dimensions for the products, four for the mask."""
    m = Model()
    mask = m.b.input("mask", tensor_type("float32", (B, 1, S, T)))
    q, k, v = (m.b.add(Reshape((B * H, n, D)), x) for n, x in ((S, m.q), (T, m.k), (T, m.v)))
    scores = m.b.add(Reshape((B, H, S, T)), m.b.add(MatMul(), q, m.b.add(Transpose((0, 2, 1)), k)))
    weights = m.b.add(Reshape((B * H, S, T)), m.b.add(Softmax(-1), m.b.add(Add(), scores, mask)))
    m.b.output(m.b.add(MatMul(), weights, v), "y")
    graph = m.b.build()
    assert len(found(graph)) == 1
    assert [v.shape for v in fused(graph).inputs] == [(B, H, S, D), (B, H, T, D), (B, H, T, D), (B, 1, S, T)]


def test_windows_with_a_bias_and_a_mask() -> None:
    """As Swin: the bias per head on [windows, heads, n, n], the mask per window on [1, windows, heads, n, n]."""
    m = Model()
    bias, mask = m.b.constant(numbers(1, H, S, T, seed=7)), m.b.constant(numbers(1, B, 1, S, T, seed=8))
    biased = m.b.add(Reshape((1, B, H, S, T)), m.b.add(Add(), m.scores(), bias))
    graph = m.finish(m.b.add(Reshape((B, H, S, T)), m.b.add(Add(), biased, mask)))
    assert len(found(graph)) == 1
    assert [v.shape for v in fused(graph).inputs[3:]] == [(1, H, S, T), (B, 1, S, T)]


def test_heads_are_cut_out_of_one_product_after_its_view() -> None:
    b = GraphBuilder("model")
    x = b.input("x", tensor_type("float32", (B, T, 3 * H * D)))
    parts = [b.add(Slice((0, 0, n * H * D), (B, T, H * D), (1, 1, 1)), x) for n in range(3)]
    q, k, v = (b.add(Transpose((0, 2, 1, 3)), b.add(Reshape((B, T, H, D)), p)) for p in parts)
    weights = b.add(Softmax(-1), b.add(MatMul(), q, b.add(Transpose((0, 1, 3, 2)), k)))
    b.output(b.add(Transpose((0, 2, 1, 3)), b.add(MatMul(), weights, v)), "y")
    graph = b.build()
    assert len(found(graph)) == 1
    groups = [n for n in fuse(fuse_attention(graph)).nodes if not n.op.view]  # type: ignore[attr-defined]
    assert len(groups) == 1  # one kernel, which reads the product as it is and stores heads side by side


@pytest.mark.parametrize("case", ["scores used", "other axis", "tanh between", "nan to one", "larger than the scores"])
def test_what_is_no_attention_stays(case: str) -> None:
    m = Model()
    scores = m.scores()
    if case == "scores used":
        m.b.output(scores, "scores")
        graph = m.finish(scores)
    elif case == "other axis":
        graph = m.build(m.b.add(Softmax(-2), scores))
    elif case == "tanh between":
        graph = m.finish(m.b.add(Tanh(), scores))
    elif case == "nan to one":
        weights = m.b.add(Softmax(-1), scores)
        graph = m.build(m.b.add(Where(), m.b.add(IsNan(), weights), m.number(1), weights))
    else:
        wide = m.b.add(Add(), scores, m.b.input("mask", tensor_type("float32", (3, B, H, S, T))))
        m.v = m.b.add(BroadcastTo((3, B, H, T, D)), m.v)
        m.b.output(m.b.add(MatMul(), m.b.add(Softmax(-1), wide), m.v), "y")
        graph = m.b.build()
    assert found(graph) == []


def test_a_target_that_does_not_claim_it_gets_the_graph_as_it_is() -> None:
    m = Model()
    graph = m.finish(m.scores())
    assert fuse_attention(graph, Capabilities(claims=frozenset({Softmax}))) is graph


@pytest.mark.parametrize("many", [12, 3000])
def test_terms_that_are_added_to_scores(many: int) -> None:
    """So many as no attention has are left to loops; they do not end the interpreter's stack."""
    m = Model()
    scores = m.scores()
    for number in range(many):
        scores = m.b.add(Add(), scores, m.b.input(f"mask{number}", tensor_type("float32", (S, T))))
    after = fuse_attention(m.finish(scores))
    assert sum(isinstance(n.op, ScaledDotProductAttention) for n in after.nodes) == (many == 12)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_scores_in_any_views(data: st.DataObject) -> None:
    """Scores viewed again and again, with terms and factors in every view: always one attention, and the same."""
    fine = [data.draw(st.sampled_from([1, 2, 3])) for _ in range(data.draw(st.integers(1, 3)))]

    def view() -> tuple[int, ...]:
        """Neighbouring axes joined, and axes of one element between."""
        shape: list[int] = []
        for d in fine:
            if shape and data.draw(st.booleans()):
                shape[-1] *= d
            else:
                shape += [1] * data.draw(st.integers(0, 1)) + [d]
        return tuple(shape)

    b = GraphBuilder("model")
    lead = view()
    q, k, v = (b.input(n, tensor_type("float32", (*lead, x, D))) for n, x in (("q", S), ("k", T), ("v", T)))
    scores = b.add(MatMul(), q, b.add(Transpose((*range(len(lead)), len(lead) + 1, len(lead))), k))
    for number in range(data.draw(st.integers(1, 4))):
        at = view()
        scores = b.add(Reshape((*at, S, T)), scores)
        shape = [d if data.draw(st.booleans()) else 1 for d in (*at, S, T)]
        step = data.draw(st.sampled_from(["add", "subtract", "scale", "choose"]))
        term = b.input(f"term{number}", tensor_type("float32", shape))
        if step == "add":
            scores = b.add(Add(), scores, term)
        elif step == "subtract":
            scores = b.add(Subtract(), scores, term)
        elif step == "scale":
            scores = b.add(Multiply(), scores, b.constant(np.float32(0.5)))
        else:
            scores = b.add(Where(), b.add(Less(), term, b.constant(np.float32(1))), scores, b.constant(np.float32(-9)))
    weights = b.add(Reshape((*lead, S, T)), b.add(Softmax(-1), scores))
    b.output(b.add(MatMul(), weights, v), "y")
    graph = b.build()
    chosen = sum(isinstance(n.op, Where) for n in graph.nodes)
    assert len(found(graph)) == 1 or chosen > 1  # masks that fill differently after a scale stay
