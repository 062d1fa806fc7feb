"""Attention in the forms that exporters of PyTorch, TensorFlow and JAX write is one kernel, and computes what numpy
computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from tests.frontends.onnx.models import model

from weft.compilation import Compilation
from weft.loading import load
from weft.resolve import resolve_target
from weft_ops.attention import ScaledDotProductAttention
from weft_ops.contraction import MatMul
from weft_ops.normalization import Softmax

B, H, S, T, D = 2, 4, 5, 7, 8
LOWEST = float(np.finfo(np.float32).min)


class Model:
    """An ONNX model of one attention on q [b, h, s, d], k [b, g, t, d] and v [b, g, t, d], and what it gives.

    `terms` are added to the scores; `scale` multiplies them.
    """

    def __init__(self, b: int = B, h: int = H, g: int = 0, s: int = S, t: int = T, d: int = D, dtype: Any = np.float32):
        self.b, self.h, self.g, self.s, self.t, self.d, self.dtype = b, h, g or h, s, t, d, np.dtype(dtype)
        self.random = np.random.default_rng(0)
        self.feeds: dict[str, Any] = {}
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        shapes = {"q": (b, h, s, d), "k": (b, self.g, t, d), "v": (b, self.g, t, d)}
        self.data = {n: self.random.standard_normal(x).astype(self.dtype) for n, x in shapes.items()}
        self.terms: list[Any] = []
        self.scale = 1.0
        self.blank = False  # rows of NaN are zeros

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [f"n{len(self.nodes)}"], **attributes))
        return f"n{len(self.nodes) - 1}"

    def input(self, data: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.ascontiguousarray(data)
        return name

    def const(self, data: Any, dtype: Any = None) -> str:
        self.stored.append(numpy_helper.from_array(np.array(data, dtype or self.dtype), f"c{len(self.stored)}"))
        return f"c{len(self.stored) - 1}"

    def operand(self, name: str, axes: str = "bhsd", *shape: int) -> str:
        """An operand as an input with its axes in this order, seen in this shape."""
        x = self.data[name].transpose(["bhsd".index(a) for a in axes])
        return self.input(x.reshape(shape) if shape else x)

    def operands(self, axes: str = "bhsd") -> list[str]:
        return [self.operand(n, axes) for n in "qkv"]

    def heads(self, name: str) -> str:
        """An operand by heads, as a view of what a linear layer gives."""
        h, n = (self.h, self.s) if name == "q" else (self.g, self.t)
        x = self.operand(name, "bshd", self.b, n, h * self.d)
        return self.transpose(self.reshape(x, self.b, n, h, self.d), 0, 2, 1, 3)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.const(shape, np.int64))

    def transpose(self, x: str, *axes: int) -> str:
        return self.op("Transpose", x, perm=list(axes))

    def slice(self, x: str, start: int, end: int, axis: int) -> str:
        return self.op("Slice", x, *(self.const([n], np.int64) for n in (start, end, axis)))

    def cast(self, x: str, to: int) -> str:
        return self.op("Cast", x, to=to)

    def number(self, x: float) -> str:
        return self.const(x)

    def times(self, x: str, factor: float) -> str:
        self.scale *= factor
        return self.op("Mul", x, self.number(factor))

    def noise(self, *shape: int) -> Any:
        return self.random.standard_normal(shape).astype(self.dtype)

    def allowed(self, *shape: int) -> Any:
        """What may be attended: at least one key of every query."""
        return (self.random.random(shape) < 0.7) | (np.arange(shape[-1]) == 1)

    def plus(self, x: str, term: Any, constant: bool = False) -> str:
        """One term added, which broadcasts to the scores [b, h, s, t]."""
        self.terms.append(term)
        return self.op("Add", x, self.const(term) if constant else self.input(term))

    def scores(self, q: str, k: str) -> str:
        return self.op("MatMul", q, self.transpose(k, 0, 1, 3, 2))

    def finish(self, scores: str, v: str) -> str:
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def proto(self, y: str, symbols: dict[int, str] | None = None) -> Any:
        """The model; `symbols` are names of sizes that are left open."""
        inputs = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(x.dtype), [(symbols or {}).get(d, d) for d in x.shape]
            )
            for n, x in self.feeds.items()
        ]
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        return model(self.nodes, inputs, [ValueInfoProto(name="y")], self.stored, opset=18)

    def expected(self) -> Any:
        """The result [b, h, s, d]."""
        q, k, v = (self.data[n].astype(np.float64) for n in "qkv")
        k, v = (np.repeat(x, self.h // self.g, 1) for x in (k, v))
        with np.errstate(all="ignore"):
            scores = q @ k.swapaxes(2, 3) * self.scale
            for t in self.terms:
                scores = scores + t
            exps = np.exp(scores - scores.max(-1, keepdims=True))
            weights = exps / exps.sum(-1, keepdims=True)
        return (np.nan_to_num(weights) if self.blank else weights) @ v


FORMS: dict[str, Callable[[], tuple[Model, str, str]]] = {}


def form(make: Callable[..., tuple[Model, str, str]]) -> Callable[..., tuple[Model, str, str]]:
    """Registers a function that makes a model: it, its output, and the order of that output's axes."""
    FORMS[make.__name__] = make
    return make


def by_heads(m: Model, change: Callable[[str], str] = lambda x: x) -> tuple[Model, str, str]:
    """The plain form, with something done to the scores."""
    q, k, v = m.operands()
    return m, m.finish(change(m.times(m.scores(q, k), 0.4)), v), "bhsd"


# -- terms ------------------------------------------------------------------------------------------------------------


def register_terms() -> None:
    shapes = {
        "scalar": (1,), "key": (B, 1, 1, T), "query": (B, 1, S, 1), "pair": (S, T), "batch": (B, 1, S, T),
        "head": (H, S, T), "distance": (H, 1, T), "every": (B, H, S, T), "one_batch": (1, 1, S, T),
    }  # fmt: skip

    def added(shape: tuple[int, ...], constant: bool) -> Callable[[], tuple[Model, str, str]]:
        def make() -> tuple[Model, str, str]:
            m = Model()
            return by_heads(m, lambda x: m.plus(x, m.noise(*shape), constant))

        return make

    def chosen(shape: tuple[int, ...], fill: float) -> Callable[[], tuple[Model, str, str]]:
        def make() -> tuple[Model, str, str]:
            m = Model()
            allowed = m.allowed(*shape)
            m.terms.append(np.where(allowed, 0.0, fill))
            return by_heads(m, lambda x: m.op("Where", m.input(allowed), x, m.number(fill)))

        return make

    for name, shape in shapes.items():
        FORMS[f"added_{name}"] = added(shape, False)
        FORMS[f"constant_{name}"] = added(shape, True)
        if shape[-1] > 1:
            FORMS[f"chosen_{name}"] = chosen(shape, -math.inf)
    FORMS["chosen_1e9"] = chosen((S, T), -1e9)


register_terms()


@form
def bias_and_mask() -> Any:
    m = Model()
    return by_heads(m, lambda x: m.plus(m.plus(x, m.noise(1, H, S, T)), m.noise(B, 1, S, T)))


@form
def subtracted_mask() -> Any:
    m = Model()
    term = m.noise(B, 1, 1, T)
    m.terms.append(-term)
    return by_heads(m, lambda x: m.op("Sub", x, m.input(term)))


@form
def mask_of_tokens() -> Any:
    """(1 - mask) · lowest, of integers, computed in the graph: BERT of any framework."""
    m = Model()
    tokens = m.allowed(B, T)
    m.terms.append(np.where(tokens, 0.0, LOWEST)[:, None, None])
    mask = m.op("Unsqueeze", m.input(tokens.astype(np.int64)), m.const([1, 2], np.int64))
    mask = m.op("Mul", m.op("Sub", m.number(1), m.cast(mask, TensorProto.FLOAT)), m.number(LOWEST))
    return by_heads(m, lambda x: m.op("Add", x, mask))


@form
def chosen_where_masked() -> Any:
    m = Model()
    masked = ~m.allowed(B, 1, 1, T)
    m.terms.append(np.where(masked, LOWEST, 0.0))
    return by_heads(m, lambda x: m.op("Where", m.input(masked), m.number(LOWEST), x))


@form
def mask_from_where() -> Any:
    """PyTorch's scaled_dot_product_attention with a boolean mask: both operands scaled, rows of NaN put to zero."""
    m = Model()
    allowed = m.allowed(B, 1, S, T)
    allowed[0, 0, 2] = False
    m.terms.append(np.where(allowed, 0.0, -math.inf))
    m.blank = True
    q, k, v = (m.heads(n) for n in "qkv")
    turned = m.reshape(m.transpose(m.reshape(k, -1, T, D), 0, 2, 1), B, H, D, T)
    scores = m.op("MatMul", m.times(q, 0.6), m.times(turned, 0.6))
    mask = m.op("Where", m.input(allowed), m.number(0), m.number(-math.inf))
    weights = m.op("Softmax", m.op("Add", scores, mask), axis=-1)
    weights = m.op("Where", m.op("IsNaN", weights), m.number(0), weights)
    return m, m.transpose(m.op("MatMul", weights, v), 0, 2, 1, 3), "bshd"


@form
def causal_and_sliding() -> Any:
    m = Model(s=T)
    distance = np.arange(T) - np.arange(T)[:, None]
    return by_heads(m, lambda x: m.plus(x, np.where((distance <= 0) & (distance > -3), 0, LOWEST), True))


@form
def temperature_of_heads() -> Any:
    """A factor for each head, as the cosine attention of Swin v2."""
    m = Model()
    factor = np.abs(m.noise(H, 1, 1)) + 0.5
    q, k, v = m.operands()
    scores = m.plus(m.op("Mul", m.scores(q, k), m.const(factor)), m.noise(1, H, S, T), True)
    m.data["q"] = m.data["q"] * factor
    return m, m.finish(scores, v), "bhsd"


@form
def mask_before_the_scale() -> Any:
    m = Model()
    q, k, v = m.operands()
    mask = m.noise(S, T)
    scores = m.op("Mul", m.op("Add", m.scores(q, k), m.input(mask)), m.number(0.5))
    m.scale, m.terms = 0.5, [mask * 0.5]
    return m, m.finish(scores, v), "bhsd"


# -- windows ----------------------------------------------------------------------------------------------------------


def windows(images: int, symbolic: bool = False) -> Any:
    """Swin: heads out of one product, a bias for each head, a mask for each window that scores are viewed for."""
    count, n = 3, T
    m = Model(b=images * count, s=n, t=n)
    packed = np.stack([m.data[x] for x in "qkv"]).transpose(1, 3, 0, 2, 4)  # [b, n, 3, h, d]
    x = m.reshape(m.input(packed.reshape(m.b, n, 3 * H * D)), -1, n, 3, H, D)
    turned = m.transpose(x, 2, 0, 3, 1, 4)
    q, k, v = (m.op("Gather", turned, m.const(j, np.int64), axis=0) for j in range(3))
    scores = m.plus(m.scores(m.times(q, D**-0.5), k), m.noise(1, H, n, n), True)
    mask = np.where(m.allowed(count, 1, n, n), 0, -100).astype(np.float32)
    m.terms.append(np.tile(mask, (images, 1, 1, 1)))
    viewed = m.op("Add", m.reshape(scores, -1, count, H, n, n), m.const(mask[None]))
    y = m.finish(m.reshape(viewed, -1, H, n, n), v)
    return m, m.transpose(y, 0, 2, 1, 3), "bshd"


@form
def windows_of_one_image() -> Any:
    return windows(1)


@form
def windows_of_images() -> Any:
    return windows(2)


# -- layouts and products ---------------------------------------------------------------------------------------------


@form
def heads_by_transposes() -> Any:
    m = Model()
    q, k, v = (m.heads(n) for n in "qkv")
    y = m.finish(m.op("Div", m.scores(q, k), m.number(2.0)), v)
    m.scale = 0.5
    return m, m.reshape(m.transpose(y, 0, 2, 1, 3), B, S, H * D), "bshd"


@form
def keys_turned_at_once() -> Any:
    m = Model()
    q, k, v = m.operands("bshd")
    scores = m.op("MatMul", m.transpose(q, 0, 2, 1, 3), m.transpose(k, 0, 2, 3, 1))
    return m, m.transpose(m.finish(scores, m.transpose(v, 0, 2, 1, 3)), 0, 2, 1, 3), "bshd"


@form
def heads_in_the_batch() -> Any:
    """bmm and baddbmm of nn.MultiheadAttention: positions first, heads joined with the batch."""
    m = Model()
    q, k, v = (
        m.transpose(m.reshape(m.operand(x, "sbhd"), n, B * H, D), 1, 0, 2) for x, n in (("q", S), ("k", T), ("v", T))
    )
    scores = m.op("MatMul", m.times(q, 0.3), m.transpose(k, 0, 2, 1))
    mask = m.noise(B, 1, 1, T)
    m.terms.append(mask)
    wide = m.reshape(m.op("Expand", m.input(mask), m.const([B, H, 1, T], np.int64)), B * H, 1, T)
    y = m.finish(m.op("Add", wide, scores), v)
    return m, m.reshape(m.transpose(y, 1, 0, 2), S, B, H, D), "sbhd"


@form
def masks_of_a_view() -> Any:
    m = Model()
    q, k, v = (m.reshape(x, B * H, n, D) for x, n in zip(m.operands(), (S, T, T)))
    scores = m.reshape(m.op("MatMul", q, m.transpose(k, 0, 2, 1)), B, H, S, T)
    scores = m.reshape(m.plus(scores, m.noise(B, 1, S, T)), B * H, S, T)
    return m, m.reshape(m.finish(scores, v), B, H, S, D), "bhsd"


def einsum(scores: str, result: str, axes: str, out: str) -> Callable[[], Any]:
    def make() -> Any:
        m = Model()
        q, k, v = m.operands(axes)
        s = m.op("Einsum", *((k, q) if scores.startswith("k:") else (q, k)), equation=scores.removeprefix("k:"))
        weights = m.op("Softmax", m.plus(m.times(s, 0.4), m.noise(B, 1, S, T)), axis=-1)
        return m, m.op("Einsum", weights, v, equation=result), out

    return make


FORMS["einsum_jax"] = einsum("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bshd", "bshd")
FORMS["einsum_keras"] = einsum("k:aecd,abcd->acbe", "acbe,aecd->abcd", "bshd", "bshd")
FORMS["einsum_heads"] = einsum("bhid,bhjd->bhij", "bhij,bhjd->bhid", "bhsd", "bhsd")


@form
def softmax_by_parts() -> Any:
    """Softmax as JAX lowers it."""
    m = Model()
    q, k, v = m.operands()
    scores = m.plus(m.times(m.scores(q, k), 0.4), m.noise(B, 1, S, T))
    axis = m.const([-1], np.int64)
    exps = m.op("Exp", m.op("Sub", scores, m.op("ReduceMax", scores, axis, keepdims=1)))
    weights = m.op("Div", exps, m.op("ReduceSum", exps, axis, keepdims=1))
    return m, m.op("MatMul", weights, v), "bhsd"


@form
def columns_of_positions() -> Any:
    """Channels before positions, the weights transposed: attention on feature maps."""
    m = Model(s=T)
    q, k, v = m.operands("bhds")
    weights = m.op("Softmax", m.times(m.op("MatMul", m.transpose(q, 0, 1, 3, 2), k), 0.4), axis=-1)
    return m, m.op("MatMul", v, m.transpose(weights, 0, 1, 3, 2)), "bhds"


@form
def keys_by_queries() -> Any:
    """Scores [b, h, t, s], softmax over keys, the second axis from the end."""
    m = Model()
    q, k, v = m.operands()
    weights = m.op("Softmax", m.op("MatMul", k, m.transpose(q, 0, 1, 3, 2)), axis=2)
    return m, m.op("MatMul", m.transpose(weights, 0, 1, 3, 2), v), "bhsd"


@form
def one_head_of_two_dimensions() -> Any:
    m = Model(b=1, h=1)
    q, k, v = (m.operand(n, "bhsd", x, D) for n, x in (("q", S), ("k", T), ("v", T)))
    scores = m.plus(m.times(m.op("MatMul", q, m.transpose(k, 1, 0)), 0.3), m.noise(S, T))
    return m, m.reshape(m.finish(scores, v), 1, 1, S, D), "bhsd"


@form
def two_batches_of_axes() -> Any:
    """Five dimensions, as attention along one axis of a video."""
    m = Model(b=6)
    q, k, v = (m.reshape(x, 2, 3, H, n, D) for x, n in zip(m.operands(), (S, T, T)))
    scores = m.op("MatMul", q, m.transpose(k, 0, 1, 2, 4, 3))
    term = m.noise(3, 1, S, T)
    m.terms.append(np.tile(term, (2, 1, 1, 1)))
    return m, m.reshape(m.finish(m.op("Add", scores, m.input(term)), v), 6, H, S, D), "bhsd"


# -- operands out of one product --------------------------------------------------------------------------------------


def packed(how: str) -> Callable[[], Any]:
    """Heads cut out of one product [b, s, 3·h·d]."""

    def make() -> Any:
        m = Model(s=T)
        if how == "heads_first":  # [b, s, h, 3, d], as GPT-NeoX and BLOOM
            data = np.stack([m.data[n] for n in "qkv"], 3).transpose(0, 2, 1, 3, 4)
        else:
            data = np.stack([m.data[n] for n in "qkv"]).transpose(1, 3, 0, 2, 4)
        x = m.input(data.reshape(B, T, 3 * H * D))
        if how == "split":
            m.nodes.append(helper.make_node("Split", [x], ["p0", "p1", "p2"], axis=2, num_outputs=3))
            parts = [m.transpose(m.reshape(f"p{j}", B, T, H, D), 0, 2, 1, 3) for j in range(3)]
        elif how == "slices":
            parts = [m.slice(x, j * H * D, (j + 1) * H * D, 2) for j in range(3)]
            parts = [m.transpose(m.reshape(p, B, T, H, D), 0, 2, 1, 3) for p in parts]
        elif how == "gather":
            turned = m.transpose(m.reshape(x, B, T, 3, H, D), 2, 0, 3, 1, 4)
            parts = [m.op("Gather", turned, m.const(j, np.int64), axis=0) for j in range(3)]
        elif how == "unbind":
            turned = m.transpose(m.reshape(x, B, T, 3, H, D), 2, 0, 3, 1, 4)
            m.nodes.append(helper.make_node("Split", [turned], ["p0", "p1", "p2"], axis=0, num_outputs=3))
            parts = [m.op("Squeeze", f"p{j}", m.const([0], np.int64)) for j in range(3)]
        else:
            turned = m.transpose(m.reshape(x, B, T, H, 3 * D), 0, 2, 1, 3)
            parts = [m.slice(turned, j * D, (j + 1) * D, 3) for j in range(3)]
        q, k, v = parts
        y = m.finish(m.times(m.scores(q, k), 0.4), v)
        return m, m.reshape(m.transpose(y, 0, 2, 1, 3), B, T, H * D), "bshd"

    return make


for kind in ("split", "slices", "gather", "unbind", "heads_first"):
    FORMS[f"packed_{kind}"] = packed(kind)


# -- heads that share keys --------------------------------------------------------------------------------------------


@form
def shared_keys_repeated() -> Any:
    m = Model(g=2)

    def repeated(x: str) -> str:
        x = m.op("Unsqueeze", x, m.const([2], np.int64))
        return m.reshape(m.op("Expand", x, m.const([B, 2, 2, T, D], np.int64)), B, H, T, D)

    q, k, v = m.operands()
    return m, m.finish(m.times(m.scores(q, repeated(k)), 0.4), repeated(v)), "bhsd"


@form
def shared_keys_broadcast() -> Any:
    """Queries [b, g, h/g, s, d], keys [b, g, 1, t, d]."""
    m = Model(g=2)
    q = m.operand("q", "bhsd", B, 2, 2, S, D)
    k, v = (m.operand(n, "bhsd", B, 2, 1, T, D) for n in "kv")
    scores = m.op("MatMul", m.times(q, 0.4), m.transpose(k, 0, 1, 2, 4, 3))
    mask = m.noise(B, 1, S, T)
    m.terms.append(mask)
    scores = m.op("Add", scores, m.input(mask[:, None]))
    return m, m.reshape(m.finish(scores, v), B, H, S, D), "bhsd"


@form
def one_key_head_broadcast() -> Any:
    m = Model(g=1)
    return by_heads(m, lambda x: m.plus(x, m.noise(B, 1, S, T)))


@form
def one_key_head_in_rows() -> Any:
    """Rows of all heads in one product with the one key head, as GPT-BigCode and Falcon."""
    m = Model(g=1)
    q = m.operand("q", "bhsd", B, H * S, D)
    k, v = (m.operand(n, "bhsd", B, T, D) for n in "kv")
    scores = m.reshape(m.op("MatMul", q, m.transpose(k, 0, 2, 1)), B, H, S, T)
    scores = m.reshape(m.plus(m.times(scores, 0.4), m.noise(B, 1, S, T)), B, H * S, T)
    return m, m.reshape(m.finish(scores, v), B, H, S, D), "bhsd"


@form
def keys_of_all_batches() -> Any:
    """Learned keys that every batch attends to."""
    m = Model()
    for n in "kv":
        m.data[n] = np.repeat(m.data[n][:1], B, 0)
    q, k, v = m.operand("q"), m.input(m.data["k"][:1]), m.input(m.data["v"][:1])
    return m, m.finish(m.times(m.scores(q, k), 0.4), v), "bhsd"


@form
def queries_of_all_batches() -> Any:
    m = Model()
    m.data["q"] = np.repeat(m.data["q"][:1], B, 0)
    q, k, v = m.input(m.data["q"][:1]), m.operand("k"), m.operand("v")
    return m, m.finish(m.plus(m.scores(q, k), m.noise(B, 1, 1, T)), v), "bhsd"


# -- lengths ----------------------------------------------------------------------------------------------------------


@form
def one_query_of_a_cache() -> Any:
    m = Model(s=1, t=21)
    q, k, v = m.operands()
    past = [m.slice(x, 0, 20, 2) for x in (k, v)]
    new = [m.slice(x, 20, 21, 2) for x in (k, v)]
    k, v = (m.op("Concat", a, b, axis=2) for a, b in zip(past, new))
    return m, m.finish(m.plus(m.times(m.scores(q, k), 0.4), m.noise(B, 1, 1, 21)), v), "bhsd"


# -- numbers of 16 bits -----------------------------------------------------------------------------------------------


def narrow(how: str) -> Callable[[], Any]:
    """Softmax in float32 with casts around, or all in float16."""

    def make() -> Any:
        m = Model(dtype=np.float16)
        q, k, v = (m.heads(n) for n in "qkv")
        scores = m.times(m.scores(q, k), 0.5)
        mask = m.noise(B, 1, S, T)
        m.terms.append(mask)
        if how == "mask_in_float32":
            scores = m.op("Add", m.cast(scores, TensorProto.FLOAT), m.input(mask.astype(np.float32)))
        else:
            scores = m.op("Add", scores, m.input(mask))
            scores = m.cast(scores, TensorProto.FLOAT) if how == "softmax_in_float32" else scores
        weights = m.op("Softmax", scores, axis=-1)
        if how != "all":
            weights = m.cast(weights, TensorProto.FLOAT16)
        return m, m.transpose(m.op("MatMul", weights, v), 0, 2, 1, 3), "bshd"

    return make


for kind in ("all", "softmax_in_float32", "mask_in_float32"):
    FORMS[f"float16_{kind}"] = narrow(kind)


@form
def storage_of_16_bits() -> Any:
    """float16 in memory, float32 from the products on."""
    m = Model(dtype=np.float16)
    q, k, v = (m.cast(m.heads(n), TensorProto.FLOAT) for n in "qkv")
    scores = m.op("MatMul", q, m.transpose(k, 0, 1, 3, 2))
    return m, m.finish(scores, v), "bhsd"


SIZES = {B: "b", S: "s", T: "t"}
OPEN: dict[str, dict[int, str]] = {
    "added_key": SIZES,
    "bias_and_mask": SIZES,
    "chosen_batch": SIZES,
    "mask_of_tokens": SIZES,
    "windows_of_images": {6: "windows"},
    "einsum_jax": SIZES,
    "columns_of_positions": {B: "b", T: "t"},
    "keys_by_queries": SIZES,
    "softmax_by_parts": SIZES,
    "one_key_head_broadcast": SIZES,
    "packed_gather": {B: "b"},
    "float16_softmax_in_float32": {B: "b"},
}
"""Forms in which sizes can be left open, and the names of these sizes."""


def check(m: Model, y: str, axes: str, symbols: dict[int, str] | None = None) -> None:
    """There is one kernel of attention, and the results are those of numpy."""
    compilation = Compilation(resolve_target("llvm"), cache=False)
    compilation.keep_graphs = True
    executable = compilation.run(load(m.proto(y, symbols).SerializeToString()))
    graph = compilation.graphs["fuse_attention"]
    assert sum(isinstance(n.op, ScaledDotProductAttention) for n in graph.nodes) == 1, graph
    assert not [n for n in graph.nodes if isinstance(n.op, (MatMul, Softmax))], graph
    assert [k.rule for k in compilation.kernels.values()].count("attention") == 1, compilation.kernels
    expected = m.expected().transpose(["bhsd".index(a) for a in axes])
    got = executable.run(m.feeds)["y"].astype(np.float64).reshape(expected.shape)
    bound = 2e-5 if m.dtype == np.float32 else 4e-3  # float16 has 11 bits
    np.testing.assert_allclose(got, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", FORMS)
def test_one_kernel(name: str) -> None:
    check(*FORMS[name]())


@pytest.mark.parametrize("name", OPEN)
def test_one_kernel_of_open_sizes(name: str) -> None:
    check(*FORMS[name](), symbols=OPEN[name])
