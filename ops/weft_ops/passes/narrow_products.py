"""Products and convolutions of small integers in terms of the dot products that the target has.

A quantised product is Σ (a - z)·B with a of 8 bits, z its zero point, and B constant, its own zero point subtracted
already. Written in int32 it would be multiplied in 32 bits. Where the target multiplies 16 bits, a - z and B become
such: both fit. Where it multiplies 8 bits, with B = b + o, where o is 0 unless a column of B leaves the range of 8
bits,

    Σ (a - z)·B = Σ a·b + o·Σ a - z·Σ B

of which the last term is constant, or a scalar times constants, and the middle one is mostly absent. An `a` of the
other sign than the instruction takes is shifted by 128, and so is z. All of it is exact, as everything wraps at 32
bits. The form is that of Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018, section 2.3.

Borders of a convolution are stored around the picture (as z where z is not subtracted), channels and lengths of
products filled up with zeros to whole dot products: what remains is a sum without conditions.

Products that no instruction takes (convolutions in groups, two activations) are products of floats where no sum can
leave 24 bits: every one of them is an integer that float32 holds, so the result is the same to the bit, in any order.

Floats: where the target was asked for a precision and has dot products of it, weights and activations of products with
constant weights are rounded to it, to nearest, ties to even; sums are float32. Weights that do not fit, see
`reduce_precision`, leave a product as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities, DotProduct
from weft.passes.layout_offers import dot_block
from weft_ops.arithmetic import Add, Cast, Subtract
from weft_ops.composing import Composer
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Pad, Reshape
from weft_ops.passes.reduce_precision import round_weights
from weft_ops.quantization import integer_range
from weft_ops.reduction import ReduceSum
from weft_ops.shapes import is_one, product

Array: TypeAlias = "np.ndarray[Any, Any]"
EXACT = 1 << 24
"""Integers up to here are numbers of float32."""
DEPTH = 8
"""How many operators are looked through for the range of a zero point."""


def narrow_products(graph: Graph, capabilities: Capabilities) -> Graph:
    """Afterwards contractions with constant weights that fit a dot product of the target are in its form."""
    if not capabilities.dots:
        return graph

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        assert isinstance(node.op, (Conv, MatMul))
        if not _suits(node.op, inputs, capabilities):
            return _exact_in_floats(r, node.op, inputs) if node.output.dtype == dt.int32 else None
        x, w = inputs[:2]
        assert x is not None and w is not None and w.constant is not None
        lanes = capabilities.channel_block
        if node.output.dtype == dt.int32 and x.dtype.is_integer and w.dtype.is_integer:
            return _integers(r, node.op, x, w.constant, w.name, capabilities.dots, lanes)
        if (
            node.output.dtype == x.dtype == w.dtype == dt.float32
            and node.op.dtype is None
            and capabilities.precision is not None
        ):
            return _floats(r, node.op, x, w.constant, w.name, capabilities.dots, capabilities.precision, lanes)
        return None

    return rewrite(graph, rule, rounds=1, on=(Conv, MatMul))


def _suits(op: Conv | MatMul, inputs: Sequence[Value | None], capabilities: Capabilities) -> bool:
    """Whether a target may want such a product in terms of its dot products: constant weights, of a known length of the
    sum, of enough columns for its blocks and panels if it has these, without groups."""
    x, w = inputs[:2]
    if (
        x is None
        or w is None
        or w.constant is None
        or x.constant is not None
        or not isinstance(x.type, TensorType)
        or not w.constant.size
    ):
        return False
    if isinstance(op, Conv):
        block = capabilities.channel_block
        return op.groups == 1 and isinstance(x.shape[1], int) and (block is None or w.constant.shape[0] * 2 >= block)
    return (
        x.type.rank > 1
        and w.constant.ndim == 2
        and (capabilities.panel is None or w.constant.shape[1] * 2 >= capabilities.panel)
    )


# -- integers ---------------------------------------------------------------------------------------------------------


def _integers(
    r: Rewriter, op: Conv | MatMul, x: Value, weights: Array, name: str, dots: Sequence[DotProduct], lanes: int | None
) -> Replacement:
    core, zero = split_zero(r, x)
    wide = weights.astype(np.int64)
    found: list[tuple[tuple[int, int], DotProduct, Array]] = []
    for dot in (d for d in dots if d.result == dt.int32):
        offsets = _offsets(wide, op, dot.right)
        if offsets is None:
            continue
        if dot.left.bits == 16:
            if not offsets.any() and _fits(r, core, zero, dot.left):
                found.append(((16, 0), dot, offsets))
        elif core.dtype in (dt.int8, dt.uint8) and _subtracts_later(r, op, core, zero):
            found.append(((8, int(core.dtype != dot.left) + int(offsets.any())), dot, offsets))
    if not found:
        return None
    _, dot, offsets = min(found, key=lambda f: f[0])
    c = Composer(r.builder_for_rule())
    if dot.left.bits == 16:
        left = c.cast(core, dot.left)
        if zero is not None:
            left = c.sub(left, _constant_cast(c, zero, dot.left))
        return _narrow(c, op, left, weights.astype(dot.right.numpy), name, dot, lanes)[0]
    left = core
    if core.dtype != dot.left:
        shift = -128 if dot.left == dt.int8 else 128
        left = c.cast(c.add(c.cast(core, dt.int16), shift), dot.left)
        zero = c.number(shift, dt.int32) if zero is None else _plus(c, zero, shift)
    if zero is not None and zero.constant is not None and not zero.constant.any():
        zero = None
    axes = _summed(op, weights)
    per_output = (-1, *(1 for _ in weights.shape[2:])) if isinstance(op, Conv) else (-1,)
    total, padded = _narrow(c, op, left, (wide - offsets).astype(dot.right.numpy), name, dot, lanes, zero)
    if offsets.any():
        if isinstance(op, Conv):
            # As many equal sums as an instruction gives.
            ones = np.zeros((lanes or 1, *padded.shape[1:2], *weights.shape[2:]), dot.right.numpy)
            ones[:, : weights.shape[1]] = 1
            sums = c.slice(
                c(Conv(op.strides, (), op.dilations, 1, dt.int32), padded, c.builder.constant(ones, "ones")), 1, 0, 1
            )
        else:
            sums = c(ReduceSum((-1,), True), c.cast(left, dt.int32))
        total = c.add(total, c.mul(sums, c.builder.constant(_wrapped(offsets).reshape(per_output), "offsets")))
    if zero is not None:
        columns = _wrapped(wide.sum(axes)).reshape(per_output)
        if zero.constant is not None and zero.constant.size == 1:
            columns = _wrapped(columns.astype(np.int64) * int(zero.constant.reshape(-1)[0]))
            total = c.sub(total, c.builder.constant(columns, "columns"))
        else:
            factor = c.reshape(zero, ()) if isinstance(op, Conv) else zero
            total = c.sub(total, c.mul(factor, c.builder.constant(columns, "columns")))
    return total


def _narrow(
    c: Composer,
    op: Conv | MatMul,
    left: Value,
    weights: Array,
    name: str,
    dot: DotProduct,
    lanes: int | None,
    border: Value | None = None,
) -> tuple[Value, Value]:
    """The product of narrow operands, filled up to whole dot products, and its left operand then; `border` (None: 0) is
    around a convolution's picture."""
    # At least two steps: what remains of a reduction outside of the instruction is a loop.
    if isinstance(op, MatMul):
        extra = max(2 * dot.depth - weights.shape[0], -weights.shape[0] % dot.depth)
        if extra:
            left = c.pad(left, (*(0 for _ in left.shape), *(0 for _ in left.shape[1:]), extra))
            weights = np.pad(weights, [(0, extra), (0, 0)])
        return c(MatMul(dot.result), left, c.builder.constant(weights, name)), left
    channels, n = weights.shape[1], weights.ndim - 2
    filled = max(channels, 2 * dot.depth) if weights[0, 0].size == 1 else channels
    if lanes is None:
        filled = -(-filled // dot.depth) * dot.depth
    extra = (filled if lanes is None or filled >= lanes else dot_block(filled, lanes, dot)) - channels
    pads = op.spatial(n)[1]
    around = (0, 0, *(lo for lo, _ in pads), 0, extra, *(hi for _, hi in pads))
    if any(around):
        value = None if border is None else _constant_cast(c, border, left.dtype)
        left = c(Pad(around), left, *(() if value is None else (value,)))
        weights = np.pad(weights, [(0, 0), (0, extra), *((0, 0) for _ in pads)])
    return c(replace(op, pads=(), dtype=dot.result), left, c.builder.constant(weights, name)), left


def _exact_in_floats(r: Rewriter, op: Conv | MatMul, inputs: Sequence[Value | None]) -> Replacement:
    """The product in float32, if all its sums are integers below 2^24; zero points that are constants are outside of
    it, or subtracted."""
    x, w = inputs[:2]
    if (
        x is None
        or w is None
        or not x.dtype.is_integer
        or not w.dtype.is_integer
        or (x.constant is not None and w.constant is not None)
    ):
        return None
    core, zero = split_zero(r, x)
    if core.dtype.bits > 16 or (zero is not None and (zero.constant is None or zero.constant.size != 1)):
        return None
    z = 0 if zero is None or zero.constant is None else int(zero.constant.reshape(()))
    whole = bounds(r, core)
    if whole is None:
        return None
    c = Composer(r.builder_for_rule())
    if w.constant is not None:
        wide = w.constant.astype(np.int64)
        axes = _summed(op, wide) if isinstance(op, Conv) else (-2,)
        if (wide.ndim < 2) or bool((max(map(abs, (*whole, z))) * np.abs(wide).sum(axes) > EXACT).any()):
            return None
        if isinstance(op, Conv) and z and any(op.pads):
            pads = op.spatial(wide.ndim - 2)[1]
            around = (0, 0, *(lo for lo, _ in pads), 0, 0, *(hi for _, hi in pads))
            core, op = c(Pad(around), core, c.number(z, core.dtype)), replace(op, pads=())
        total = c.cast(
            c(replace(op, dtype=dt.float32), core, c.builder.constant(wide.astype(np.float32), w.name)), dt.int32
        )
        columns = z * wide.sum(axes)
        shape = (-1, *(1 for _ in wide.shape[2:])) if isinstance(op, Conv) else columns.shape
        return c.sub(total, c.builder.constant(_wrapped(columns).reshape(shape), "columns")) if columns.any() else total
    right, other = split_zero(r, w)
    y = 0 if other is None or other.constant is None else int(other.constant.reshape(-1)[0])
    reach, length = bounds(r, right), w.shape[-2] if w.tensor.rank > 1 else None
    if (
        isinstance(op, Conv)
        or reach is None
        or not isinstance(length, int)
        or (other is not None and (other.constant is None or other.constant.size != 1))
    ):
        return None
    if length * max(abs(n - z) for n in whole) * max(abs(n - y) for n in reach) > EXACT:
        return None
    left, right = (c.cast(v, dt.float32) for v in (core, right))
    left, right = (c.sub(v, float(n)) if n else v for v, n in ((left, z), (right, y)))
    return c.cast(c(MatMul(), left, right), dt.int32)


def split_zero(r: Rewriter, x: Value) -> tuple[Value, Value | None]:
    """`x`, of integers, as what it was widened from and what was subtracted since (int32; None: nothing)."""
    node = r.producer(x, Cast, Subtract, Add)
    if node is None or x.dtype != dt.int32:
        return x, None
    a, b = (*node.inputs, None)[:2]
    assert a is not None
    if isinstance(node.op, Cast):
        return (a, None) if a.dtype.is_integer and a.dtype.bits < 32 else (x, None)
    assert b is not None
    if isinstance(node.op, Add):
        a, b = (b, a) if a.constant is not None else (a, b)
        if b.constant is None:
            return x, None
        b = r.constant(np.negative(b.constant), b.name)
    widened = r.producer(a, Cast)
    if widened is None or a.shape != x.shape:
        return x, None
    (core,) = widened.inputs
    assert core is not None
    return (core, b) if core.dtype.is_integer and core.dtype.bits < 32 else (x, None)


def bounds(r: Rewriter, x: Value, depth: int = DEPTH) -> tuple[int, int] | None:
    """The least and greatest value that an integer may have, as far as dtypes and constants tell."""
    if x.constant is not None and x.dtype.is_integer:
        return (int(x.constant.min()), int(x.constant.max())) if x.constant.size else (0, 0)
    if x.dtype.is_integer and x.dtype.bits <= 16:
        return integer_range(x.dtype)
    node = r.producer(x, Cast, Reshape)
    if node is None or not depth or node.inputs[0] is None or not node.inputs[0].dtype.is_integer:
        return None
    known = bounds(r, node.inputs[0], depth - 1)
    if known is None:
        return None
    lo, hi = integer_range(x.dtype)
    return known if lo <= known[0] and known[1] <= hi else None


def _fits(r: Rewriter, core: Value, zero: Value | None, to: DType) -> bool:
    """Whether core, zero and core - zero certainly are of the dtype."""
    whole, shift, (lo, hi) = bounds(r, core), (0, 0) if zero is None else bounds(r, zero), integer_range(to)
    if whole is None or shift is None:
        return False
    return all(lo <= n <= hi for n in (*whole, *shift, whole[0] - shift[1], whole[1] - shift[0]))


def _subtracts_later(r: Rewriter, op: Conv | MatMul, core: Value, zero: Value | None) -> bool:
    """Whether a zero point may leave the operand: it is the same all along the sum, and for a convolution a value that
    may stand around the picture."""
    if zero is None:
        return True
    if isinstance(op, MatMul):
        return not zero.shape or zero.shape[-1] == 1
    known = bounds(r, zero)
    lo, hi = integer_range(core.dtype)
    return is_one(product(zero.shape)) and known is not None and lo <= known[0] and known[1] <= hi


def _offsets(weights: Array, op: Conv | MatMul, to: DType) -> Array | None:
    """What to subtract from each output's weights, in their shape broadcast, so that they are of the dtype; None if no
    number does it."""
    axes = _summed(op, weights)
    least, most = weights.min(axes, keepdims=True), weights.max(axes, keepdims=True)
    lo, hi = integer_range(to)
    if not (most - least <= hi - lo).all():
        return None
    return np.where((least >= lo) & (most <= hi), 0, least - lo)


def _summed(op: Conv | MatMul, weights: Array) -> tuple[int, ...]:
    return tuple(range(1, weights.ndim)) if isinstance(op, Conv) else (0,)


def _wrapped(data: Array) -> Array:
    return data.astype(np.int64).astype(np.int32)


def _constant_cast(c: Composer, x: Value, to: DType) -> Value:
    """`x`, whose values are of the dtype, in it."""
    return c.cast(x, to) if x.constant is None else c.builder.constant(x.constant.astype(to.numpy), x.name)


def _plus(c: Composer, zero: Value, shift: int) -> Value:
    if zero.constant is not None:
        return c.builder.constant(_wrapped(zero.constant.astype(np.int64) + shift), zero.name)
    return c.add(zero, shift)


# -- floats -----------------------------------------------------------------------------------------------------------


def _floats(
    r: Rewriter,
    op: Conv | MatMul,
    x: Value,
    weights: Array,
    name: str,
    dots: Sequence[DotProduct],
    precision: DType,
    lanes: int | None,
) -> Replacement:
    dot = next((d for d in dots if d.left == d.right == precision and d.result == dt.float32), None)
    rounded = None if dot is None or op.dtype is not None else round_weights(weights, precision)
    if dot is None or rounded is None:
        return None
    c = Composer(r.builder_for_rule())
    return _narrow(c, op, c.cast(x, precision), rounded.astype(precision.numpy), name, dot, lanes)[0]
