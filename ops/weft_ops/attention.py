"""Attention and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import GraphError
from weft.expr.nodes import Expr
from weft.graph.inferred import Assumption, Inferred
from weft.graph.nodes import GraphBuilder, Node, TensorType, Type, Value
from weft.graph.operator import Array, Gradients, Operator, Sample, algorithm
from weft.tensor.language import Dim, as_dim
from weft_ops.activation import Tanh
from weft_ops.arithmetic import Negative, Where
from weft_ops.comparison import Equal, GreaterEqual, IsNan, Less, LessEqual, LogicalAnd, LogicalOr
from weft_ops.composing import Composer
from weft_ops.contraction import MatMul, reduction_tolerance
from weft_ops.examples import booleans, floats
from weft_ops.gathering import added_rows
from weft_ops.movement import Iota, Pad
from weft_ops.normalization import Softmax
from weft_ops.precision import compute_dtype, rounded, widen
from weft_ops.shapes import (
    broadcast,
    dim_floordiv,
    expect_kind,
    one_dtype,
    operands,
    quotient,
    same,
    show,
    tensor,
    unify,
    unify_shapes,
)
from weft_ops.transcendental import Exp


@dataclass(frozen=True)
class Attention(Operator):
    """softmax(scale · q · kᵀ + bias) · v per head, as ONNX's Attention.

    Inputs: q, k, v [b, heads, s, d] or, with q_heads and kv_heads given, [b, s, heads·d]; then, None if absent: mask
    (bool: what may be attended; float: added; broadcasts to [b, heads, s, t], a shorter last axis masks the rest),
    past_key and past_value [b, kv_heads, p, d] put before k and v, lengths [b] of valid keys. Outputs: y, shaped as q;
    present_key, present_value; qk [b, heads, s, t] at stage `qk_mode`: 0 the product, 1 after softcap, 2 after bias, 3
    after softmax. A query that may attend to nothing gives zeros. Several query heads share one key head in order.
    `causal`: query i attends up to key i + p; `left`, `right`: at most so many keys before or after that (-1: any).
    """

    scale: float | None = None
    causal: bool = False
    q_heads: int = 0
    kv_heads: int = 0
    softcap: float = 0.0
    left: int = -1
    right: int = -1
    qk_mode: int = 0
    precision: DType | None = None
    kind = "composite"

    def head_shapes(self, q: TensorType, k: TensorType, v: TensorType) -> list[tuple[Dim, ...]]:
        """Shapes of q, k, v by heads."""
        if q.rank == 4:
            return [q.shape, k.shape, v.shape]
        if not self.q_heads or not self.kv_heads:
            raise GraphError("q_heads and kv_heads: expected both for inputs of three dimensions")
        result: list[tuple[Dim, ...]] = []
        for t, h in ((q, self.q_heads), (k, self.kv_heads), (v, self.kv_heads)):
            if isinstance(t.shape[2], int) and t.shape[2] % h:
                raise GraphError(f"features: expected a multiple of {h} heads, got {t.shape[2]}")
            result.append((t.shape[0], h, t.shape[1], dim_floordiv(t.shape[2], h)))
        return result

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes, heads or sizes that do not agree."""
        assumed: list[Assumption] = []
        q, k, v = operands(types[:3], 3)
        mask, past_key, past_value, lengths = (*types[3:], *[None] * 4)[:4]
        one_dtype([q, k])
        expect_kind(q.dtype, ("float",))
        if q.rank not in (3, 4) or k.rank != q.rank or v.rank != q.rank:
            raise GraphError(
                f"expected q, k and v of three or four dimensions, got {show(q.shape)}, {show(k.shape)},"
                f" {show(v.shape)}"
            )
        if (past_key is None) != (past_value is None):
            raise GraphError("past_key and past_value: expected both or neither")
        qs, ks, vs = self.head_shapes(q, k, v)
        unify(qs[3], ks[3], "head size", assumed)
        unify(ks[2], vs[2], "keys", assumed)
        for name, other in (("k", ks), ("v", vs)):
            unify(qs[0], other[0], f"batch of {name}", assumed)
        unify(ks[1], vs[1], "heads of v", assumed)
        for name, shape, state in (("past_key", ks, past_key), ("past_value", vs, past_value)):
            if state is not None:
                given = tensor(state).shape
                unify_shapes((*shape[:2], *shape[3:]), (*given[:2], *given[3:]), name, assumed)
        if isinstance(qs[1], int) and isinstance(ks[1], int) and qs[1] % ks[1]:
            raise GraphError(f"query heads: expected a multiple of {ks[1]} key heads, got {qs[1]}")
        past = tensor(past_key).shape[2] if past_key is not None else 0
        if past_value is not None:
            unify(past, tensor(past_value).shape[2], "past_value", assumed)
        total = as_dim(ks[2] + past)
        self._check_mask(mask, (*qs[:3], total), assumed)
        if lengths is not None:
            unify_shapes((qs[0],), tensor(lengths).shape, "lengths", assumed)
        y = qs[:3] + vs[3:] if q.rank == 4 else (q.shape[0], q.shape[1], as_dim(vs[3] * self.q_heads))
        return Inferred(
            (
                TensorType(q.dtype, y),
                TensorType(k.dtype, (*ks[:2], total, ks[3])),
                TensorType(v.dtype, (*vs[:2], total, vs[3])),
                TensorType(q.dtype, (*qs[:3], total)),
            ),
            assumed,
        )

    def _check_mask(self, given: Type | None, shape: Sequence[Dim], assumed: list[Assumption]) -> None:
        """A mask broadcasts to [b, heads, s, t]; its last axis may be shorter.

        Raises:
            GraphError: it does not.
        """
        if given is None:
            return
        mask = tensor(given).shape
        if not 0 < len(mask) <= 4:
            raise GraphError(f"mask: expected one to four dimensions, got {show(mask)}")
        rows = broadcast(mask[:-1], shape[:3], assumed=assumed)
        unify_shapes(shape[:3], rows, "mask", assumed)
        last, total = mask[-1], shape[3]
        if isinstance(last, int) and isinstance(total, int):
            if last > total:
                raise GraphError(f"mask: expected at most {total} keys, got {last}")
        elif same(last, total) is not True:
            assumed.append(Assumption.at_most(last, total, "keys of the mask"))

    def reference(self, *arrays: Array | None) -> Any:
        q, k, v, mask, past_key, past_value, lengths = (*arrays, *[None] * 4)[:7]
        assert q is not None and k is not None and v is not None
        dtype = dt.dtype(q.dtype)
        flat = q.ndim == 3
        if flat:
            q, k, v = (
                x.reshape(*x.shape[:2], h, -1).swapaxes(1, 2)
                for x, h in ((q, self.q_heads), (k, self.kv_heads), (v, self.kv_heads))
            )
        past = 0 if past_key is None else past_key.shape[2]
        if past_key is not None and past_value is not None:
            k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
        present = np.ascontiguousarray(k), np.ascontiguousarray(v)
        repeat = q.shape[1] // k.shape[1]
        wq, wk, wv = widen(q), np.repeat(widen(k), repeat, 1), np.repeat(widen(v), repeat, 1)
        s, t = q.shape[2], k.shape[2]
        with np.errstate(all="ignore"):
            stages = [wq @ wk.swapaxes(2, 3) * (self.scale if self.scale is not None else 1 / math.sqrt(q.shape[3]))]
            stages.append(self.softcap * np.tanh(stages[0] / self.softcap) if self.softcap > 0 else stages[0])
            bias = np.zeros((q.shape[0], 1, s, t), wq.dtype)
            if mask is not None:
                missing = [(0, 0)] * (mask.ndim - 1) + [(0, t - mask.shape[-1])]
                added = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else widen(mask)
                bias = bias + np.pad(added, missing, constant_values=-np.inf)
            offset = (
                np.full((q.shape[0], 1, 1, 1), past)
                if lengths is None or past_key is not None
                else lengths.reshape(-1, 1, 1, 1) - s
            )
            distance = np.arange(t) - (np.arange(s)[:, None] + offset)
            allowed = np.ones_like(distance, bool)
            allowed &= distance <= 0 if self.causal else True
            allowed &= -distance <= self.left if self.left >= 0 else True
            allowed &= distance <= self.right if self.right >= 0 else True
            if lengths is not None:
                allowed &= np.arange(t) < lengths.reshape(-1, 1, 1, 1)
            bias = np.where(allowed, bias, -np.inf)
            dead = np.isneginf(bias.max(-1, keepdims=True, initial=-np.inf))
            stages.append(stages[1] + bias)
            exps = np.exp(stages[2] - np.where(dead, 0, stages[2].max(-1, keepdims=True, initial=-np.inf)))
            total = exps.sum(-1, keepdims=True)
            stages.append(np.where(dead, 0, exps / np.where(total == 0, 1, total)))
        y = stages[3] @ wv
        if flat:
            y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
        return rounded(y, dtype), *present, rounded(np.broadcast_to(stages[self.qk_mode], (*q.shape[:3], t)), dtype)

    @algorithm("decompose")
    def plain(
        self, builder: GraphBuilder, q: Value, k: Value, v: Value, mask: Value | None = None,
        past_key: Value | None = None,
        past_value: Value | None = None, lengths: Value | None = None,
    ) -> tuple[Value, ...]:  # fmt: skip
        c = Composer(builder)
        flat, dtype = len(q.shape) == 3, q.dtype
        wide = compute_dtype(dtype)
        shapes = self.head_shapes(q.tensor, k.tensor, v.tensor)
        if flat:
            by_heads: Callable[..., Any] = lambda x, shape: c.transpose(
                c.reshape(x, (shape[0], shape[2], shape[1], shape[3])), (0, 2, 1, 3)
            )
            q, k, v = (by_heads(x, shape) for x, shape in zip((q, k, v), shapes))
        past: Dim = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[2]
            k, v = c.concat([past_key, k], 2), c.concat([past_value, v], 2)
        present = k, v
        b, heads, s, size = q.shape
        groups, t = k.shape[1], k.shape[2]
        scale = self.scale if self.scale is not None else 1 / math.sqrt(size) if isinstance(size, int) else None
        if scale is None:
            raise GraphError(f"head size: expected a number where no scale is given, got {size}")
        terms = self.terms(c, (b, heads, s, t), wide, mask, past, past_key is not None, lengths)
        stages = self.stages(c, q, k, scale, terms)
        if self.softcap > 0 or (self.precision is not None and self.precision.bits > wide.bits):
            weights, values = stages[3], c.cast(v, wide)
            if not same(heads, groups):
                weights = c.reshape(weights, (b, groups, quotient([heads], [groups]), s, t))
                values = c.reshape(values, (b, groups, 1, t, v.shape[3]))
            y = c.reshape(c(MatMul(), weights, values), (b, heads, s, v.shape[3]))
        else:
            y = c(ScaledDotProductAttention(scale, blank="empty" if terms else "nan"), q, k, v, *terms)
        if flat:
            y = c.reshape(c.transpose(y, (0, 2, 1, 3)), (b, s, as_dim(y.shape[3] * heads)))
        return c.cast(y, dtype), *present, c.cast(stages[self.qk_mode], dtype)

    def stages(self, c: Composer, q: Value, k: Value, scale: float, terms: Sequence[Value]) -> list[Value]:
        """What `qk` may be, by `qk_mode`."""
        (b, heads, s, size), groups, t = q.shape, k.shape[1], k.shape[2]
        wide = compute_dtype(q.dtype)
        grouped = not same(heads, groups)
        if grouped:
            # Query heads that share a key head: one more axis, over which keys broadcast.
            q = c.reshape(q, (b, groups, quotient([heads], [groups]), s, size))
            k = c.reshape(k, (b, groups, 1, t, size))
        rank = len(q.shape)
        keys = c.transpose(c.cast(k, wide), (*range(rank - 2), rank - 1, rank - 2))
        qk = c(MatMul(), c.mul(c.cast(q, wide), scale), keys)
        qk = c.reshape(qk, (b, heads, s, t)) if grouped else qk
        capped = c.mul(c(Tanh(), c.div(qk, self.softcap)), self.softcap) if self.softcap > 0 else qk
        biased = capped
        for term in terms:
            biased = (
                c(Where(), term, biased, c.number(-math.inf, wide))
                if term.dtype.is_bool
                else c.add(biased, c.cast(term, wide))
            )
        logits = (
            c.cast(biased, self.precision) if self.precision is not None and self.precision.bits > wide.bits else biased
        )
        if not terms:
            weights = c(Softmax(-1), logits)
        else:
            greatest = c.max(logits, (3,))
            nothing = c(Equal(), greatest, -math.inf)
            exps = c(Exp(), c.sub(logits, c(Where(), nothing, c.number(0.0, logits.dtype), greatest)))
            total = c.sum(exps, (3,))
            weights = c.div(exps, c(Where(), nothing, c.number(1.0, logits.dtype), total))
        return [qk, capped, biased, c.cast(weights, wide)]

    def terms(
        self, c: Composer, scores: tuple[Dim, ...], wide: DType, mask: Value | None, past: Dim, cached: bool,
        lengths: Value | None,
    ) -> list[Value]:  # fmt: skip
        """What is added to the scores [b, heads, s, t], then, of bool, what may be attended."""
        _, _, s, t = scores
        added: list[Value] = []
        if mask is not None:
            width = mask.shape[-1]
            if not same(width, t):
                pads = [0] * (2 * len(mask.shape) - 1) + [as_dim(t - width)]
                rest = c.number(False, dt.bool_) if mask.dtype.is_bool else c.number(-math.inf, mask.dtype)
                mask = c(Pad(tuple(pads)), mask, rest)
            if not mask.dtype.is_bool:
                added, mask = [mask], None
        conditions: list[Value] = [] if mask is None else [mask]
        columns = c(Iota(dt.int64, (1, t), 1))
        if self.causal or self.left >= 0 or self.right >= 0:
            rows: Value = c(Iota(dt.int64, (s, 1), 0))
            if lengths is not None and not cached:
                first = c.sub(c.reshape(c.cast(lengths, dt.int64), (-1, 1, 1, 1)), c.dim(s))
                rows = c.add(rows, first)
            elif isinstance(past, Expr) or past:
                rows = c.add(rows, c.dim(past))
            distance = c.sub(columns, rows)
            upper = min([0] * self.causal + ([self.right] if self.right >= 0 else []), default=None)
            if upper is not None:
                conditions.append(c(LessEqual(), distance, upper))
            if self.left >= 0:
                conditions.append(c(GreaterEqual(), distance, -self.left))
        if lengths is not None:
            conditions.append(c(Less(), columns, c.reshape(c.cast(lengths, dt.int64), (-1, 1, 1, 1))))
        if not conditions:
            return added
        allowed = conditions[0]
        for more in conditions[1:]:
            allowed = c(LogicalAnd(), allowed, more)
        return [*added, allowed]

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d for d in (*types[0].shape, *types[1].shape) if isinstance(d, int)]
        return 16 + reduction_tolerance(max(sizes, default=64))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        q, k, v = f((2, 4, 3, 8)), f((2, 4, 5, 8), seed=1), f((2, 4, 5, 6), seed=2)
        k2, v2 = f((2, 2, 5, 8), seed=1), f((2, 2, 5, 6), seed=2)
        yield Sample(cls(), (q, k, v), "plain")
        yield Sample(cls(0.3, causal=True), (q, k, v), "causal")
        yield Sample(cls(softcap=0.5, qk_mode=1), (q, k2, v2, booleans((3, 5))), "grouped")
        yield Sample(cls(qk_mode=2), (q, k, v, f((2, 1, 3, 5), seed=3)), "added_mask")
        yield Sample(
            cls(causal=True, qk_mode=3), (q, k2, v2, None, f((2, 2, 2, 8), seed=4), f((2, 2, 2, 6), seed=5)), "past"
        )
        yield Sample(cls(causal=True), (q, k, v, None, None, None, np.array([5, 3])), "lengths")
        yield Sample(cls(left=1, right=1), (q, k, v, booleans((4, 3, 4))), "window_short_mask")
        yield Sample(cls(q_heads=4, kv_heads=2), (f((2, 3, 16)), f((2, 5, 8), seed=1), f((2, 5, 6), seed=2)), "flat")
        nothing = np.zeros((3, 5), np.bool_)
        yield Sample(cls(), (q, k, v, nothing), "masked")
        h = [x.astype(np.float16) for x in (q, k, v)]
        yield Sample(cls(precision=dt.float32), tuple(h), "float16")


@dataclass(frozen=True)
class ScaledDotProductAttention(Operator):
    """softmax(scale · q · kᵀ, changed by terms) · v per head, as one operator: what `fuse_attention` makes of the
    operators that exporters write.

    Inputs: q [b…, h, s, d], k [b…, g, t, d], v [b…, g, t, e], then any number of terms that broadcast to the scores
    [b…, h, s, t], applied in order: one of floats, no wider than those in which scores are computed, is added; one of
    bool keeps the scores where it is true and puts `fill` elsewhere. Output: [b…, h, s, e]. Query heads share key heads
    in order, h / g each. `blank` says what a row gives whose weights are no numbers: "nan" what softmax gives, "zero"
    zeros, "empty" zeros if all its scores are -∞, else what softmax gives. The scores are not among the outputs, so
    that they need never be in memory as a whole.
    """

    scale: float = 1.0
    fill: float = -math.inf
    blank: str = "nan"
    kind = "composite"
    stays_whole = True
    layout_role = "attention"
    role = "attention"
    packs_operands = True
    read_often = (1, 2)

    def infer(self, *types: Type | None) -> Inferred:
        """Raises GraphError for ranks, dtypes, heads or sizes that do not agree, or terms that do not broadcast to the
        scores."""
        assumed: list[Assumption] = []
        q, k, v, *terms = operands(types)
        wide = compute_dtype(one_dtype([q, k, v]))
        expect_kind(q.dtype, ("float",))
        for t in terms:
            expect_kind(t.dtype, ("float", "bool"), "term")
            if t.dtype.bits > wide.bits:
                raise GraphError(f"term: expected floats of at most {wide.bits} bits, got {t.dtype.name}")
        if self.blank not in ("nan", "zero", "empty"):
            raise GraphError(f"blank: expected 'nan', 'zero' or 'empty', got {self.blank!r}")
        if q.rank < 3 or k.rank != q.rank or v.rank != q.rank:
            raise GraphError(
                f"expected q, k and v of one rank, three or more, got {show(q.shape)}, {show(k.shape)}, {show(v.shape)}"
            )
        unify_shapes(q.shape[:-3], k.shape[:-3], "batch of q and k", assumed)
        unify_shapes(k.shape[:-1], v.shape[:-1], "batch, heads and keys of k and v", assumed)
        unify(q.shape[-1], k.shape[-1], "head size", assumed)
        h, g = q.shape[-3], k.shape[-3]
        if isinstance(h, int) and isinstance(g, int) and (g == 0 or h % g):
            raise GraphError(f"query heads: expected a multiple of {g} key heads, got {h}")
        scores = (*q.shape[:-1], k.shape[-2])
        for t in terms:
            unify_shapes(
                broadcast(scores, t.shape, assumed=assumed), scores, "broadcast of a term to the scores", assumed
            )
        return Inferred(TensorType(q.dtype, (*q.shape[:-1], v.shape[-1])), assumed)

    def multiply_adds(self, *shapes: Sequence[float] | None) -> float | None:
        q, _, v = shapes[:3]
        return None if q is None or v is None else math.prod(q[:-1]) * v[-2] * (q[-1] + v[-1])

    def reference(self, *arrays: Array | None) -> Array:
        q, k, v, *terms = (a for a in arrays if a is not None)
        repeat = q.shape[-3] // max(1, k.shape[-3])
        wq, wk, wv = widen(q), np.repeat(widen(k), repeat, -3), np.repeat(widen(v), repeat, -3)
        with np.errstate(all="ignore"):
            scores = wq @ wk.swapaxes(-1, -2) * self.scale
            for t in terms:
                scores = np.where(t, scores, self.fill) if t.dtype == np.bool_ else scores + widen(t)
            greatest = scores.max(-1, keepdims=True, initial=-np.inf)
            exps = np.exp(scores - greatest)
            total = exps.sum(-1, keepdims=True)
            y = (exps @ wv) / total
            if self.blank != "nan":
                y = np.where(np.isnan(total) if self.blank == "zero" else np.isneginf(greatest), 0, y)
        return rounded(y, dt.dtype(q.dtype))

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """From q, k, v and the terms alone: the scores and weights are computed again, whole, so that nothing of their
        size is kept between the passes. Query heads that share a key head are rows of one matrix: their sums over
        queries are those of one product."""
        (g,) = gradients
        q, k, v, *terms = (x for x in node.inputs if x is not None)
        assert g is not None
        c, wide = Composer(builder), compute_dtype(q.dtype)
        lead, heads, groups, rank = q.shape[:-3], q.shape[-3], k.shape[-3], len(q.shape)
        scores = (*q.shape[:-1], k.shape[-2])
        rows = as_dim(quotient([heads], [groups]) * q.shape[-2])

        def together(x: Value) -> Value:
            """[b…, h, s, …] as [b…, g, (h / g)·s, …]."""
            return x if same(heads, groups) else c.reshape(x, (*lead, groups, rows, x.shape[-1]))

        def transposed(x: Value) -> Value:
            return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))

        query, key, value, given = (
            together(c.cast(q, wide)),
            c.cast(k, wide),
            c.cast(v, wide),
            together(c.cast(g, wide)),
        )
        scaled = query if self.scale == 1.0 else c.mul(query, self.scale)
        logits = c.reshape(c(MatMul(), scaled, transposed(key)), scores)
        for t in terms:
            logits = (
                c(Where(), t, logits, c.number(self.fill, wide)) if t.dtype.is_bool else c.add(logits, c.cast(t, wide))
            )
        if self.blank == "nan":
            weights = c(Softmax(-1), logits)
        else:
            greatest, zero = c.max(logits, (-1,)), c.number(0.0, wide)
            nothing = c(Equal(), greatest, -math.inf)
            if self.blank == "zero":
                nothing = c(LogicalOr(), nothing, c(LogicalOr(), c(IsNan(), greatest), c(Equal(), greatest, math.inf)))
            # Softmax of such a row would be NaN, which a gradient's gradient would multiply.
            weights = c(Where(), nothing, zero, c(Softmax(-1), c(Where(), nothing, zero, logits)))
        by_weights = c.reshape(c(MatMul(), given, transposed(value)), scores)
        change = c.mul(weights, c.sub(by_weights, c.sum(c.mul(weights, by_weights), (-1,))))
        by_terms: list[Value | None] = []
        for t in reversed(terms):
            if t.dtype.is_bool:
                change = c(Where(), t, change, c.number(0.0, wide))
            by_terms.insert(0, None if t.dtype.is_bool else c.cast(change, t.dtype))
        by_scores = together(change)
        by_query = c(MatMul(), by_scores, key if self.scale == 1.0 else c.mul(key, self.scale))
        found = (
            c.reshape(by_query, q.shape),
            c(MatMul(), transposed(by_scores), scaled),
            c(MatMul(), transposed(together(weights)), given),
        )
        by_operands: list[Value | None] = [c.cast(x, q.dtype) for x in found]
        return [*by_operands, *by_terms]

    @algorithm("decompose")
    def normalized_last(self, builder: GraphBuilder, q: Value, k: Value, v: Value, *terms: Value) -> Value:
        """The weights are divided by their sum after the second product, where there are fewer numbers to divide.

        Weights that are no normal numbers are zero, beside one weight of 1: processors take up to a hundred cycles for
        each, here and in the second product, and masks of -100 give nothing else.
        """
        c = Composer(builder)
        dtype, wide = q.dtype, compute_dtype(q.dtype)
        y_shape = (*q.shape[:-1], v.shape[-1])
        lead, heads, groups = q.shape[:-3], q.shape[-3], k.shape[-3]
        grouped = not same(heads, groups)
        if grouped:
            # Query heads that share a key head: one more axis, over which keys broadcast.
            repeat = quotient([heads], [groups])
            q = c.reshape(q, (*lead, groups, repeat, *q.shape[-2:]))
            k, v = (c.reshape(x, (*lead, groups, 1, *x.shape[-2:])) for x in (k, v))
            split: list[Value] = []
            for t in terms:
                t = c.reshape(t, (1,) * (len(lead) + 3 - len(t.shape)) + t.shape)
                h = t.shape[-3]
                parts = (1, 1) if same(h, 1) else (groups, repeat)
                split.append(c.reshape(t, (*t.shape[:-3], *parts, *t.shape[-2:])))
            terms = tuple(split)
        rank = len(q.shape)
        keys = c.transpose(c.cast(k, wide), (*range(rank - 2), rank - 1, rank - 2))
        scores = c(MatMul(), c.mul(c.cast(q, wide), self.scale) if self.scale != 1.0 else c.cast(q, wide), keys)
        for t in terms:
            scores = (
                c(Where(), t, scores, c.number(self.fill, wide)) if t.dtype.is_bool else c.add(scores, c.cast(t, wide))
            )
        greatest = c.max(scores, (-1,))
        below = c.sub(scores, greatest)
        least = (np.finfo(wide.numpy).minexp + 1) * math.log(2)
        exps = c(Exp(), c(Where(), c(Less(), below, least), c.number(-math.inf, wide), below))
        total = c.sum(exps, (-1,))
        y = c.mul(c.div(1.0, total), c(MatMul(), exps, c.cast(v, wide)))
        if self.blank != "nan":
            nothing = c(IsNan(), total) if self.blank == "zero" else c(Equal(), greatest, -math.inf)
            y = c(Where(), nothing, c.number(0.0, wide), y)
        y = c.cast(y, dtype)
        return c.reshape(y, y_shape) if grouped else y

    def tolerance(self, *types: TensorType) -> float:
        sizes = [d for d in (*types[0].shape, *types[1].shape) if isinstance(d, int)]
        return 16 + reduction_tolerance(max(sizes, default=64))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        q, k, v = f((2, 4, 3, 8)), f((2, 4, 5, 8), seed=1), f((2, 4, 5, 6), seed=2)
        yield Sample(cls(0.5), (q, k, v), "plain")
        yield Sample(cls(0.5), (q, k, v, f((2, 1, 1, 5), seed=3), f((4, 3, 5), seed=4)), "added")
        yield Sample(cls(0.5, -1e4), (q, k, v, booleans((3, 5))), "chosen")
        k2, v2 = f((2, 2, 5, 8), seed=1), f((2, 2, 5, 6), seed=2)
        yield Sample(cls(0.3), (q, k2, v2, f((2, 4, 3, 5), seed=3), f((3, 5), seed=4)), "grouped")
        yield Sample(cls(), (f((5, 7, 9)), f((5, 19, 9), seed=1), f((5, 19, 9), seed=2)), "odd")
        yield Sample(cls(), (f((2, 1, 16)), f((2, 33, 16), seed=1), f((2, 33, 16), seed=2)), "one_query")
        nothing = np.zeros((3, 5), np.bool_)
        nothing[1] = True
        yield Sample(cls(blank="zero"), (q, k, v, nothing), "masked_zero")
        yield Sample(cls(blank="empty"), (q, k, v, nothing), "masked_empty")
        yield Sample(cls(0.5), tuple(x.astype(np.float16) for x in (q, k, v)), "float16")


@dataclass(frozen=True)
class RotaryEmbedding(Operator):
    """Pairs of features turned by the angle of their position.

    Inputs: x [b, heads, s, d] or, with `heads` given, [b, s, heads·d]; cos, sin [positions, r/2] with position ids [b,
    s], or [b, s, r/2] without. The first r features (`dim`, 0 for all) turn: pairs are (k, k + r/2), or neighbours if
    `interleaved`.
    """

    interleaved: bool = False
    dim: int = 0
    heads: int = 0
    kind = "composite"

    def infer(self, *types: Type | None) -> Inferred:
        assumed: list[Assumption] = []
        x, cos, sin = operands(types[:3], 3)
        expect_kind(one_dtype([x, cos, sin]), ("float",))
        if x.rank not in (3, 4) or (x.rank == 3 and not self.heads):
            raise GraphError(f"expected x [b, heads, s, d], or [b, s, heads·d] with heads given, got {show(x.shape)}")
        ids = types[3] if len(types) > 3 else None
        if cos.rank != (3 if ids is None else 2):
            raise GraphError(f"cos: expected {3 if ids is None else 2} dimensions, got {show(cos.shape)}")
        size = x.shape[3] if x.rank == 4 else dim_floordiv(x.shape[2], self.heads)
        if not self.dim and isinstance(size, int) and size % 2:
            raise GraphError(f"features of a head: expected an even number, got {size}")
        unify(dim_floordiv(self.dim or size, 2), cos.shape[-1], "half of the features that turn", assumed)
        unify_shapes(cos.shape, sin.shape, "sin", assumed)
        if x.rank == 3 and isinstance(x.shape[2], int) and x.shape[2] % self.heads:
            raise GraphError(f"features: expected a multiple of {self.heads} heads, got {x.shape[2]}")
        steps = (x.shape[0], x.shape[2 if x.rank == 4 else 1])
        unify_shapes(steps, cos.shape[:2] if ids is None else tensor(ids).shape, "positions", assumed)
        return Inferred(TensorType(x.dtype, x.shape), assumed)

    def reference(self, *arrays: Array | None) -> Array:
        x, cos, sin, ids = (*arrays, None)[:4]
        assert x is not None and cos is not None and sin is not None
        y = widen(x).reshape(*x.shape[:2], self.heads, -1) if x.ndim == 3 else widen(x).swapaxes(1, 2)
        c, s = (widen(a if ids is None else a[ids])[:, :, None] for a in (cos, sin))
        r = self.dim or y.shape[-1]
        first, second = (slice(0, r, 2), slice(1, r, 2)) if self.interleaved else (slice(0, r // 2), slice(r // 2, r))
        out = y.copy()
        out[..., first] = c * y[..., first] - s * y[..., second]
        out[..., second] = s * y[..., first] + c * y[..., second]
        return np.ascontiguousarray(
            rounded(out.reshape(x.shape) if x.ndim == 3 else out.swapaxes(1, 2), dt.dtype(x.dtype))
        )

    def gradient(self, builder: GraphBuilder, node: Node, gradients: Gradients) -> Gradients:
        """Turned back; of the tables the products of both halves, over all heads."""
        (g,) = gradients
        x, cos, sin, ids = (*node.inputs, None)[:4]
        assert x is not None and cos is not None and sin is not None and g is not None
        c = Composer(builder)
        back = c(self, g, cos, c(Negative(), sin), *node.inputs[3:])
        (first, second), (real, imaginary) = (self._halves(c, self._by_heads(c, c.wide(v))) for v in (x, g))
        sums = [
            c.add(c.mul(real, first), c.mul(imaginary, second)),
            c.sub(c.mul(imaginary, first), c.mul(real, second)),
        ]
        tables: list[Value] = []
        for table, total in zip((cos, sin), sums):
            each = c.sum(total, (2 if len(x.shape) == 3 else 1,), False)
            rows = each if ids is None else added_rows(builder, c.wide(table), ids, each)
            tables.append(c.cast(rows, table.dtype))
        return (back, *tables, *(None for _ in node.inputs[3:]))

    def _by_heads(self, c: Composer, x: Value) -> Value:
        """x with four dimensions."""
        shape = x.shape
        return c.reshape(x, (*shape[:2], self.heads, dim_floordiv(shape[2], self.heads))) if len(shape) == 3 else x

    def _halves(self, c: Composer, y: Value) -> tuple[Value, Value]:
        """The first and second features of the pairs that turn."""
        r: Dim = self.dim or y.shape[3]
        half = dim_floordiv(r, 2)
        if self.interleaved:
            pairs = c.reshape(c.slice(y, 3, 0, r), (*y.shape[:3], half, 2))
            return c.pick(pairs, 4, 0), c.pick(pairs, 4, 1)
        return c.slice(y, 3, 0, half), c.slice(y, 3, half, half)

    @algorithm("decompose")
    def turned(self, builder: GraphBuilder, x: Value, cos: Value, sin: Value, ids: Value | None = None) -> Value:
        c = Composer(builder)
        shape, dtype = x.shape, x.dtype
        y = self._by_heads(c, c.wide(x))
        turns = []
        for table in (cos, sin):
            table = table if ids is None else c.gather(table, ids, 0)
            b, s, half = table.shape
            turns.append(c.reshape(c.cast(table, y.dtype), (b, s, 1, half) if len(shape) == 3 else (b, 1, s, half)))
        size = y.shape[3]
        r: Dim = self.dim or size
        first, second = self._halves(c, y)
        real = c.sub(c.mul(turns[0], first), c.mul(turns[1], second))
        imaginary = c.add(c.mul(turns[1], first), c.mul(turns[0], second))
        if self.interleaved:
            parts = [c.reshape(v, (*v.shape, 1)) for v in (real, imaginary)]
            turned = c.reshape(c.concat(parts, 4), (*y.shape[:3], r))
        else:
            turned = c.concat([real, imaginary], 3)
        if not same(r, size):
            turned = c.concat([turned, c.slice(y, 3, r, as_dim(size - r))], 3)
        return c.cast(c.reshape(turned, shape), dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = floats
        ids = np.array([[0, 3, 2], [1, 1, 4]])
        for interleaved in (False, True):
            yield Sample(
                cls(interleaved), (f((2, 4, 3, 8)), f((5, 4), seed=1), f((5, 4), seed=2), ids), f"heads_{interleaved}"
            )
            yield Sample(
                cls(interleaved, 4, 2),
                (f((2, 3, 16)), f((2, 3, 2), seed=1), f((2, 3, 2), seed=2)),
                f"flat_{interleaved}",
            )
        yield Sample(
            cls(),
            (f((1, 1, 2, 4), "float16"), f((1, 2, 2), "float16", seed=1), f((1, 2, 2), "float16", seed=2)),
            "float16",
        )


__all__ = ["Attention", "RotaryEmbedding", "ScaledDotProductAttention"]
