"""Attention of com.microsoft: what optimisers of transformers write. Keys and values come as sequences, as states of
earlier calls, or both; masks come in several forms, all of which become one that is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.expr.nodes import maximum
from weft.graph.nodes import Value
from weft.tensor.language import Dim, as_dim
from weft_onnx.contrib import contrib_op, fixed
from weft_onnx.importer import Context
from weft_ops.shapes import dim_expr, dim_floordiv, dim_select, equals

ATTENTION = "num_heads unidirectional scale mask_filter_value"


@dataclass
class Heads:
    """Operands of one attention by heads, [b, heads, s, d], what is added to the products of queries and keys, and the
    states [b, heads, p, d] before the keys and values."""

    q: Value
    k: Value
    v: Value
    terms: list[Value] = field(default_factory=list)
    past: tuple[Value, Value] | None = None

    @property
    def total(self) -> Dim:
        """How many keys there are, with those before."""
        return self.k.shape[2] if self.past is None else as_dim(self.k.shape[2] + self.past[0].shape[2])


def by_heads(c: Context, x: Value, heads: int) -> Value:
    """[b, s, heads · d] as [b, heads, s, d]."""
    size = dim_floordiv(x.shape[2], heads)
    return c.transpose(c.reshape(x, (*x.shape[:2], heads, size)), (0, 2, 1, 3))


def parts(c: Context, x: Value, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    """Pieces of these sizes, one behind the other."""
    found, start = [], as_dim(0)
    for size in sizes:
        found.append(c.slice(x, axis, start, size))
        start = as_dim(dim_expr(start) + size)
    return found


def attend(c: Context, a: Heads, *, causal: bool, qk: int = 3, softcap: float = 0.0) -> tuple[Value, ...]:
    """The result [b, s, heads · d], the keys and values with those before, and the weights."""
    mask: Value | None = None
    for term in a.terms:
        mask = term if mask is None else c.add(mask, term)
    scale = c.real("scale") if c.has("scale") and c.real("scale") != 0 else None
    op = ops.Attention(scale, causal, softcap=softcap, qk_mode=qk)
    y, keys, values, weights = c.all(op, a.q, a.k, a.v, mask, *(a.past or (None, None)))
    b, heads, s, size = y.shape
    y = c.reshape(c.transpose(y, (0, 2, 1, 3)), (b, s, as_dim(heads * size)))
    return y, keys, values, weights


def padding_terms(c: Context, mask: Value | None, a: Heads) -> list[Value]:
    """What a mask of tokens adds to the products: 0 where there is a token, else `mask_filter_value`.

    Of the shapes [b] (how many tokens are there), [2·b] (where they end, and where they begin), [b, keys],
    [b, queries, keys] and [b, 1, most, most].
    """
    if mask is None:
        return []
    b, total = a.q.shape[0], a.total
    rank = len(mask.shape)
    if rank == 1:
        keep = _between(c, mask, b, total)
    elif rank in (2, 3):
        mask = c.sized(mask, mask.shape[-1], total, "a mask of {0} keys, there are {1}")
        shape = (b, *((1, 1) if rank == 2 else (1, mask.shape[1])), total)
        keep = c(ops.Greater(), c.reshape(mask, shape), 0)
    else:
        raise c.unsupported(f"a mask of {rank} dimensions")
    away = c.number(c.real("mask_filter_value", -10000.0), a.q.dtype)
    return [c(ops.Where(), keep, c.number(0.0, a.q.dtype), away)]


def _between(c: Context, mask: Value, b: Dim, total: Dim) -> Value:
    """[b, 1, 1, total]: keys before the end of each sequence, and from its beginning on where that is given."""
    position = c(ops.Iota(dt.int32, (1, 1, 1, total), 3))
    whole = mask.shape[0]
    ends = mask if whole == b else c.slice(mask, 0, 0, b)
    keep = c(ops.Less(), position, c.cast(c.reshape(ends, (b, 1, 1, 1)), dt.int32))
    if whole == b:
        return keep
    begins = c.slice(c.sized(mask, whole, as_dim(dim_expr(b) * 2), "a mask of {0} elements, expected {1}"), 0, b, b)
    return c(
        ops.LogicalAnd(),
        keep,
        c(ops.GreaterEqual(), position, c.cast(c.reshape(begins, (b, 1, 1, 1)), dt.int32)),
    )


# -- Attention --------------------------------------------------------------------------------------------------------


def _projected(c: Context, x: Value, sizes: Sequence[int], k: int) -> list[Value]:
    heads = c.integer("num_heads")
    return [by_heads(c, part, heads) for part in parts(c, x, 2, sizes)]


def _self_attention(c: Context, x: Value, sizes: Sequence[int], mask: int, past: int, bias: int | None) -> Any:
    """Attention over what a product gave, [b, s, q + k + v]; operands by their positions."""
    q, k, v = _projected(c, x, sizes, 0)
    before = c.optional(past) if past < c.count else None
    states = None if before is None else (c.pick(before, 0, 0), c.pick(before, 0, 1))
    a = Heads(q, k, v, past=states)
    a.terms = padding_terms(c, c.optional(mask) if mask < c.count else None, a)
    if bias is not None and bias < c.count and (added := c.optional(bias)) is not None:
        a.terms.append(added)
    y, keys, values, _ = attend(c, a, causal=c.flag("unidirectional"))
    if len(c.node.output) < 2 or not c.node.output[1]:
        return y
    return y, c.concat([c.reshape(s, (1, *s.shape)) for s in (keys, values)], 0)


@contrib_op(
    "Attention",
    attributes=f"{ATTENTION} qkv_hidden_sizes do_rotary past_present_share_buffer rotary_embedding_dim",
    outputs=(0, 1),
)
def attention(c: Context) -> Any:
    """Operands: x, the weights of all three projections, their bias, a mask, states, what is added to the products."""
    for name in ("do_rotary", "past_present_share_buffer", "rotary_embedding_dim"):
        fixed(c, name)
    if c.count > 6 and c.given(6):
        raise c.unsupported("past_sequence_length, of states that share a buffer")
    x, w, bias = c.value(0), c.value(1), c.optional(2)
    y = c(ops.MatMul(), x, w)
    return _self_attention(c, y if bias is None else c.add(y, bias), _widths(c, w), 3, 4, 5)


def _widths(c: Context, w: Value) -> tuple[int, ...]:
    given, width = c.integers("qkv_hidden_sizes"), w.shape[1]
    if given is not None:
        return given
    if not isinstance(width, int) or width % 3:
        raise c.error(f"weights of {width} columns are not those of three projections")
    return (width // 3,) * 3


@contrib_op("QAttention", attributes=f"{ATTENTION} do_rotary past_present_share_buffer", outputs=(0, 1))
def quantised_attention(c: Context) -> Any:
    """Operands: x and the weights of integers, a bias of floats, the scales of both, a mask, their zero points,
    states."""
    for name in ("do_rotary", "past_present_share_buffer"):
        fixed(c, name)
    w = c.value(1)
    total = c(ops.MatMulInteger(), c.value(0), w, c.optional(6), c.optional(7))
    scale = c.mul(c.reshape(c.value(3), ()), c.value(4))
    y = c.add(c.mul(c.cast(total, scale.dtype), scale), c.value(2))
    return _self_attention(c, y, _widths(c, w), 5, 8, None)


# -- MultiHeadAttention -----------------------------------------------------------------------------------------------


@contrib_op("MultiHeadAttention", attributes=ATTENTION, outputs=(0, 1, 2, 3))
def multi_head_attention(c: Context) -> Any:
    """Operands: q, k, v, a bias of all three, a mask of keys, what is added to the products, keys and values before."""
    if any(c.given(k) for k in (8, 9)):
        raise c.unsupported("states that share a buffer, or are of beams")
    q, k, v = _queries(c)
    past = None if not c.given(6) else (c.value(6), c.value(7))
    a = Heads(q, k, v, past=past)
    a.terms = padding_terms(c, c.optional(4), a)
    added = c.optional(5)
    if added is not None:
        a.terms.append(added)
    return attend(c, a, causal=c.flag("unidirectional"))


def _queries(c: Context) -> tuple[Value, Value, Value]:
    """q, k and v by heads: each of its own, packed by head, or as states by heads already."""
    heads, q, bias = c.integer("num_heads"), c.value(0), c.optional(3)
    if len(q.shape) == 5:
        if bias is not None:
            raise c.unsupported("a bias of packed queries, keys and values")
        x, y, z = (c.transpose(c.pick(q, 3, k), (0, 2, 1, 3)) for k in range(3))
        return x, y, z
    k = c.value(1)
    width = q.shape[2]
    if len(k.shape) == 5:
        if bias is not None:
            raise c.unsupported("a bias of packed keys and values")
        keys, values = (c.transpose(c.pick(k, 3, n), (0, 2, 1, 3)) for n in range(2))
        return by_heads(c, q, heads), keys, values
    v = c.value(2)
    by_head = len(k.shape) == 4
    if bias is not None:
        widths = (width, width, as_dim(dim_expr(bias.shape[0]) - dim_expr(width) * 2))
        added = parts(c, bias, 0, widths)
        q = c.add(q, added[0])
        if not by_head:
            k, v = c.add(k, added[1]), c.add(v, added[2])
    return by_heads(c, q, heads), *((k, v) if by_head else (by_heads(c, k, heads), by_heads(c, v, heads)))


# -- RotaryEmbedding --------------------------------------------------------------------------------------------------


@contrib_op("RotaryEmbedding", attributes="interleaved is_packed_batching num_heads rotary_embedding_dim scale")
def rotary_embedding(c: Context) -> Value:
    """Operands: x [b, s, heads · d] or [b, heads, s, d], positions [b, s] or that of the first, [1]; tables."""
    fixed(c, "is_packed_batching")
    if c.real("scale", 1.0) != 1:
        raise c.unsupported(f"attribute 'scale' = {c.real('scale')}")
    x, positions, cos, sin = (c.value(k) for k in range(4))
    dim, heads = c.integer("rotary_embedding_dim"), c.integer("num_heads")
    if len(x.shape) == 3 and not heads:
        # Without them, the tables tell how wide a head is.
        size = cos.shape[1]
        if dim or not isinstance(size, int) or not isinstance(x.shape[2], int):
            raise c.unsupported("no num_heads")
        heads = x.shape[2] // (2 * size)
    b, s = x.shape[0], x.shape[1 if len(x.shape) == 3 else 2]
    if len(positions.shape) == 1:
        positions = c.broadcast(c.add(c(ops.Iota(positions.dtype, (1, s), 1)), positions), (b, s))
    return _rotated(c, x, positions, cos, sin, dim, 0 if len(x.shape) == 4 else heads, c.flag("interleaved"))


def _rotated(
    c: Context, x: Value, positions: Value, cos: Value, sin: Value, dim: int, heads: int, interleaved: bool
) -> Value:
    positions = c.within(positions, 0, as_dim(dim_expr(cos.shape[0]) - 1), "position")
    return c(ops.RotaryEmbedding(interleaved, dim, heads), x, cos, sin, positions)


# -- GroupQueryAttention ----------------------------------------------------------------------------------------------


@contrib_op(
    "GroupQueryAttention",
    attributes="num_heads kv_num_heads scale softcap do_rotary rotary_interleaved local_window_size smooth_softmax"
    " causal qk_output kv_cache_bit_width k_quant_type v_quant_type qk_norm_epsilon q_norm_epsilon k_norm_epsilon"
    " sliding_window_cache",
    outputs=(0, 1, 2),
)
def group_query_attention(c: Context) -> Any:
    """Operands: q, k, v (or q with all three), keys and values before, how many keys each sequence has, less 1; how
    many the longest has; tables of rotations, positions, what is added to the products, … norms of q and k.

    The states before and those after may share a buffer, which is as long as sequences may become.
    """
    _refuse_what_is_new(c)
    heads, groups = c.integer("num_heads"), c.integer("kv_num_heads")
    q, k, v = _grouped(c, heads, groups)
    b, s = q.shape[0], q.shape[2]
    k, v = (c.sized(x, x.shape[2], s, "{0} keys or values, expected {1}, as many as queries") for x in (k, v))
    lengths = c.add(c.cast(c.reshape(c.value(5), (b, 1)), dt.int64), 1)
    (longest,) = c.sizes(c.reshape(c.cast(c.value(6), dt.int64), (1,)), "total_sequence_length")
    # The first call has nothing before; padding is behind the tokens then.
    first = c(ops.Cast(dt.bool_), c.dim(dim_select(equals(s, longest), 1, 0)))
    before = c(ops.Where(), first, c.number(0, dt.int64), c.sub(lengths, c.dim(s)))
    before = c.within(before, 0, None, "the number of keys before")
    q, k = _normed(c, q, k)
    if c.flag("do_rotary"):
        q, k = _turned(c, q, k, before)
    keys, values = (_stored(c, c.optional(n), x, before, longest) for n, x in ((3, k), (4, v)))
    a = Heads(q, keys, values, [_causal(c, before, lengths, s, keys.shape[2], q.dtype)])
    added = c.optional(10) if c.count > 10 else None
    if added is not None:
        total, wanted = added.shape[3], keys.shape[2]
        missing = as_dim(dim_expr(wanted) - total)
        a.terms.append(added if missing == 0 else c.pad(added, (0, 0, 0, 0, 0, 0, 0, missing)))
    y, *_ = attend(c, a, causal=False, softcap=c.real("softcap", 0.0))
    return y, keys, values


def _refuse_what_is_new(c: Context) -> None:
    for name, default in (("causal", 1), ("qk_output", 0), ("kv_cache_bit_width", 0), ("sliding_window_cache", 0)):
        fixed(c, name, default)
    if c.integer("smooth_softmax", -1) > 0:
        raise c.unsupported("attribute 'smooth_softmax' = 1")
    for name in ("k_quant_type", "v_quant_type"):
        if c.string(name, "NONE") != "NONE":
            raise c.unsupported(f"attribute '{name}' = {c.string(name)}")
    for k, what in ((11, "head_sink"), (12, "k_scale"), (13, "v_scale"), (16, "query_seqlens")):
        if c.given(k):
            raise c.unsupported(f"operand {k}, {what}")


def _grouped(c: Context, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """q, k and v by heads."""
    q = c.value(0)
    if c.given(1):
        return by_heads(c, q, heads), by_heads(c, c.value(1), groups), by_heads(c, c.value(2), groups)
    size = dim_floordiv(q.shape[2], heads + 2 * groups)
    x, y, z = parts(c, q, 2, [as_dim(dim_expr(size) * n) for n in (heads, groups, groups)])
    return by_heads(c, x, heads), by_heads(c, y, groups), by_heads(c, z, groups)


def _normed(c: Context, q: Value, k: Value) -> tuple[Value, Value]:
    found = []
    for x, operand, name in ((q, 14, "q_norm_epsilon"), (k, 15, "k_norm_epsilon")):
        scale = c.optional(operand) if operand < c.count else None
        epsilon = c.real(name) if c.has(name) else c.real("qk_norm_epsilon", 1e-6)
        found.append(x if scale is None else c(ops.RMSNorm(-1, epsilon), x, scale))
    return found[0], found[1]


def _turned(c: Context, q: Value, k: Value, before: Value) -> tuple[Value, Value]:
    """q and k turned by their positions: those given, or those behind what came before."""
    cos, sin = c.value(7), c.value(8)
    b, s, size = q.shape[0], q.shape[2], cos.shape[1]
    given = c.optional(9) if c.count > 9 else None
    positions = c.add(before, c(ops.Iota(dt.int64, (1, s), 1))) if given is None else given
    if not isinstance(size, int):
        raise c.unsupported("tables of rotations whose width is known only at run time")
    turned = [
        _rotated(c, x, c.broadcast(positions, (b, s)), cos, sin, 2 * size, 0, c.flag("rotary_interleaved"))
        for x in (q, k)
    ]
    return turned[0], turned[1]


def _stored(c: Context, past: Value | None, new: Value, before: Value, longest: Dim) -> Value:
    """The state after a call: `new` behind the keys `before` of each sequence, zeros behind that; as long as the
    longest, or as the state before if that is longer."""
    if past is None:
        return new
    b, groups, s, size = new.shape
    room = past.shape[2]
    length = as_dim(maximum(dim_expr(room), dim_expr(longest)))
    both = c.concat([past, new], 2)
    place = c(ops.Iota(dt.int64, (1, length), 1))
    behind = c.sub(place, before)  # [b, length]
    inside = c(ops.LogicalAnd(), c(ops.GreaterEqual(), behind, 0), c(ops.Less(), behind, c.dim(s)))
    here = c(ops.Where(), inside, c.add(behind, c.dim(room)), c(ops.Minimum(), place, c.dim(room)))
    index = c.broadcast(c.reshape(here, (b, 1, length, 1)), (b, groups, length, size))
    filled = c.reshape(c(ops.Less(), behind, c.dim(s)), (b, 1, length, 1))
    return c(ops.Where(), filled, c(ops.GatherElements(2), both, index), c.number(0.0, new.dtype))


def _causal(c: Context, before: Value, lengths: Value, s: Dim, total: Dim, dtype: dt.DType) -> Value:
    """[b, 1, s, total]: 0 for the keys that a query may see, else -∞."""
    b = before.shape[0]
    key = c(ops.Iota(dt.int64, (1, 1, 1, total), 3))
    query = c.add(c(ops.Iota(dt.int64, (1, 1, s, 1), 2)), c.reshape(before, (b, 1, 1, 1)))
    seen = c(ops.LessEqual(), key, query)
    window = c.integer("local_window_size", -1)
    if window >= 0:
        seen = c(ops.LogicalAnd(), seen, c(ops.Greater(), key, c.sub(query, window)))
    return c(ops.Where(), seen, c.number(0.0, dtype), c.number(-np.inf, dtype))
