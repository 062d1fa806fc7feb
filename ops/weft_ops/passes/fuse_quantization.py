"""Fake quantization becomes integers: what stands between DequantizeLinear and QuantizeLinear is computed on the
integers themselves.

A quantised number is s·(q - z). A product or convolution of two such is s_x·s_w·Σ (q_x - z_x)(q_w - z_w), a sum of
integers, which is exact; so is the bias, an integer in units of s_x·s_w. What follows is one requantisation, q_y =
clip(round(s_x·s_w/s_y·Σ) + z_y), in which ReLU and Clip are the bounds of the clip. This is how Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018, section 2.2, read
such a graph; its scales are converted here exactly.

Which result is defined: that of the operators in real numbers, rounded once, halves to even. Evaluated in float32 every
operator rounds, so that the last step may differ where the quotient is almost halfway between two; engines differ among
each other there. The factor and its product are taken in float64 where the target has it (`Capabilities.doubles`): a
quotient that is halfway is so there, too, as s_x·s_w is exact, the factor is rounded once, and an error of half a unit
in the last place leaves a half what it is; one that is not is told from it down to a distance of 2^-52 of itself. In
float32 that is 2^-22. A mean is the sum of the integers, exact, divided once.

What only moves or orders numbers (reshape, transpose, concatenation of equal scales, nearest neighbours, maxima, ReLU)
acts on the integers: the result is the same to the bit. Everything else (additions, functions) keeps its floats, which
live in a kernel's registers between 8 bits and 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.graph.identity import Identity
from weft.graph.nodes import Graph, Node, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities
from weft.passes.fold_constants import Budget, fold_constants
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Clip, Maximum, Round
from weft_ops.composing import Composer
from weft_ops.contraction import Conv, MatMul
from weft_ops.quantization import (
    ConvInteger,
    Dequantize,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    Quantization,
    Quantize,
    integer_range,
)
from weft_ops.reduction import ReduceMean
from weft_ops.shapes import axis_of, product
from weft_ops.window import AveragePool

Array: TypeAlias = "np.ndarray[Any, Any]"
Inputs: TypeAlias = "tuple[Value | None, ...]"

MOST = 1 << 30
"""Sums of products, and biases, are below: together they fit int32."""
CLOSE = 2.0**-22
"""How far a bias's scale may be from the product of the operands' scales, relative to it: it was rounded to float32,
perhaps twice."""


def fuse_quantization(graph: Graph, capabilities: Capabilities | None = None, budget: Budget | None = None) -> Graph:
    """Afterwards no product, convolution or mean between quantised numbers with constant scales is computed in floats;
    no constant is dequantised at run time."""
    if not any(isinstance(n.op, Quantization) or n.op.kind == "control" for n in graph.nodes):
        return graph
    wide = dt.float64 if capabilities is not None and capabilities.doubles else dt.float32
    rules = (_products, _biases, _moves, _ordered, partial(_requantise, wide=wide), partial(_linear, wide=wide))
    graph = rewrite(graph, *rules, rounds=1)
    return fold_constants(rewrite(graph, _narrow_scale, rounds=1), budget=budget)


# -- quantised numbers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantized:
    """Numbers scale·(data - zero) with a constant scale: float64, exact, and zero: int64; one each or, along `axis`,
    vectors."""

    data: Value
    scale: Array
    zero: Array
    axis: int

    @property
    def single(self) -> bool:
        """Whether there is one scale and one zero point."""
        return not self.scale.ndim and not self.zero.ndim


def quantized_of(r: Rewriter, value: Value | None) -> Quantized | None:
    """What `value` was dequantised from, if its scale is constant, positive and not by blocks."""
    node = r.producer(value, Dequantize)
    if node is None or not isinstance(node.op, Dequantize) or node.op.block:
        return None
    data, scale, zero = (*node.inputs, None)[:3]
    assert data is not None and scale is not None
    return parts(data, scale, zero, node.op.axis)


def parts(data: Value, scale: Value, zero: Value | None, axis: int) -> Quantized | None:
    """The operands of a dequantisation, if they are of integers and constant."""
    if (
        not data.dtype.is_integer
        or scale.constant is None
        or (zero is not None and (zero.constant is None or not zero.dtype.is_integer))
    ):
        return None
    factor: Array = scale.constant.astype(np.float64)
    shift: Array = np.zeros((), np.int64) if zero is None or zero.constant is None else zero.constant.astype(np.int64)
    factor, shift = (a.reshape(()) if a.size == 1 else a for a in (factor, shift))
    if factor.ndim > 1 or shift.ndim > 1 or not np.isfinite(factor).all() or not (factor > 0).all():
        return None
    if not shift.any():
        shift = np.zeros((), np.int64)
    single = not factor.ndim and not shift.ndim
    return Quantized(data, factor, shift, 0 if single else axis_of(axis, data.tensor.rank))


def like_before(r: Rewriter, node: Node, data: Value) -> Value:
    """`data` dequantised by the scale and zero point, one each, of another dequantisation."""
    assert isinstance(node.op, Dequantize)
    return r.add(replace(node.op, axis=0), data, *node.inputs[1:])


# -- products ---------------------------------------------------------------------------------------------------------


def _products(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """A product or convolution of two quantised numbers is an integer one, dequantised; its scale is the exact product
    of theirs."""
    if (
        not isinstance(node.op, (Conv, MatMul))
        or node.op.dtype is not None
        or not node.output.dtype.is_float
        or len(inputs) != 2
    ):
        return None
    x, w = (quantized_of(r, v) for v in inputs)
    if x is None or w is None or not fits(node.op, x, w):
        return None
    scale = x.scale * w.scale
    total = integer_product(Composer(r.builder_for_rule()), node.op, x, w)
    op = Dequantize(channel_axis(node.op, total), to=node.output.dtype)
    return r.add(op, total, r.constant(scale, "scale"))


def fits(op: Conv | MatMul, x: Quantized, w: Quantized) -> bool:
    """Whether Σ (x - z_x)(w - z_w) stays below `MOST`, and w's scale and zero point are the same all along the sum."""
    if (
        not x.single
        or x.data.dtype.bits > 16
        or w.data.dtype.bits > 16
        or (x.data.constant is not None and w.data.constant is not None)
    ):
        return False
    rank = w.data.tensor.rank
    if not w.single and w.axis != (0 if isinstance(op, Conv) else rank - 1):
        return False
    if isinstance(op, MatMul) and (rank < 2 or x.data.tensor.rank < 2):
        return False
    largest = most(x)
    if w.data.constant is not None:
        axes = tuple(range(1, rank)) if isinstance(op, Conv) else (-2,)
        return bool((largest * np.abs(w.data.constant.astype(np.int64) - spread(w, rank)).sum(axes) < MOST).all())
    length = product(w.data.shape[1:]) if isinstance(op, Conv) else w.data.shape[-2]
    return isinstance(length, int) and largest * most(w) * length < MOST


def most(x: Quantized) -> int:
    """The greatest distance from the zero point."""
    lo, hi = integer_range(x.data.dtype)
    return int(max((x.zero - lo).max(), (hi - x.zero).max()))


def spread(x: Quantized, rank: int) -> Array:
    """The zero points, to broadcast against data of the rank."""
    return x.zero.reshape(-1, *(1 for _ in range(rank - x.axis - 1))) if x.zero.ndim else x.zero


def integer_product(c: Composer, op: Conv | MatMul, x: Quantized, w: Quantized) -> Value:
    """Σ (x - z_x)(w - z_w), int32."""
    weights = w.data
    if weights.dtype.bits < 8:
        to = dt.int8 if weights.dtype.kind == "int" else dt.uint8
        weights = (
            c.cast(weights, to)
            if weights.constant is None
            else c.builder.constant(weights.constant.astype(to.numpy), weights.name)
        )
    zeros = [None if not q.zero.any() else c.builder.constant(q.zero.astype(np.int32), "zero") for q in (x, w)]
    product: Operator = (
        MatMulInteger() if isinstance(op, MatMul) else ConvInteger(op.strides, op.pads, op.dilations, op.groups)
    )
    return c(product, x.data, weights, *zeros)


def channel_axis(op: Conv | MatMul, total: Value) -> int:
    """The axis of a result along which the weights' scales vary."""
    return 1 if isinstance(op, Conv) else total.tensor.rank - 1


def _biases(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """A constant bias in units of a sum's scale is added to the sum."""
    if not isinstance(node.op, Add):
        return None
    for a, b in (inputs, inputs[::-1]):
        before = r.producer(a, Dequantize)
        total, bias = quantized_of(r, a), quantized_of(r, b)
        if (
            before is None
            or a is None
            or total is None
            or bias is None
            or total.data.dtype != dt.int32
            or a.type != node.output.type
            or total.zero.any()
        ):
            continue
        data, rank = bias.data.constant, a.tensor.rank
        if data is None or total.data.constant is not None or bias.data.tensor.rank > rank:
            continue
        numbers = data.astype(np.int64) - spread(bias, data.ndim)
        axis = bias.axis + rank - data.ndim
        if (bias.scale.ndim and total.scale.ndim and axis != total.axis) or (
            bias.scale.ndim and bias.scale.size != 1 and not total.scale.ndim
        ):
            continue
        if bool((np.abs(bias.scale - total.scale) > CLOSE * total.scale).any()) or bool(
            (np.abs(numbers) >= MOST).any()
        ):
            continue
        return r.add(
            before.op, r.add(Add(), total.data, r.constant(numbers.astype(np.int32), "bias")), *before.inputs[1:]
        )
    return None


# -- what moves and orders --------------------------------------------------------------------------------------------


def _moves(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """What moves or compares numbers of one scale does so with the integers."""
    op = node.op
    if op.commutes == "nothing" or len(node.outputs) != 1 or not inputs:
        return None
    own = op.elements_of(len(inputs))
    before = r.producer(inputs[own[0]], Dequantize) if own else None
    if before is None or not isinstance(before.op, Dequantize) or before.op.block:
        return None
    data = before.inputs[0]
    assert data is not None
    if data.constant is not None and _keeps_axes(node):
        return _constant_moved(r, node, before)
    x = quantized_of(r, inputs[own[0]])
    if x is None or not x.single or data.dtype.bits > 16 or data.dtype.bits < 8:
        return None
    operands = list(inputs)
    for k in own:
        other = quantized_of(r, inputs[k])
        if (
            other is None
            or not other.single
            or (other.scale, other.zero, other.data.dtype) != (x.scale, x.zero, data.dtype)
        ):
            return None
        operands[k] = other.data
    if (at := op.fill_operand) is not None:
        fill = inputs[at] if at < len(inputs) else None
        if fill is not None and (fill.constant is None or fill.constant.any()):
            return None
        operands += [None] * (at + 1 - len(operands))
        operands[at] = r.constant(x.zero, "zero", like=data) if x.zero.any() else None
        while operands[-1] is None:
            operands.pop()
    return like_before(r, before, r.add(op, *operands))


def _keeps_axes(node: Node) -> bool:
    """Whether a node of one operand changes the shape of memory or the order of axes and nothing else."""
    x, op = node.inputs[0] if len(node.inputs) == 1 else None, node.op
    return x is not None and op.commutes == "anything" and (op.is_view or op.permutation(x.tensor.rank) is not None)


def _constant_moved(r: Rewriter, node: Node, before: Node) -> Replacement:
    """Reshaped or transposed weights, whose scales follow them."""
    data, scale, zero = (*before.inputs, None)[:3]
    assert data is not None and scale is not None and data.constant is not None and isinstance(before.op, Dequantize)
    axis = 0
    if any(v is not None and product(v.shape) != 1 for v in (scale, zero)):
        axis = axis_of(before.op.axis, data.tensor.rank)
        order = node.op.permutation(data.tensor.rank)
        if order is not None:
            axis = order.index(axis)
        else:
            kept = [k for k, n in enumerate(node.output.shape) if n != 1]
            if [n for n in data.constant.shape if n != 1] != [node.output.shape[k] for k in kept]:
                return None
            axis = kept[sum(n != 1 for n in data.constant.shape[:axis])]
    moved = r.constant(np.ascontiguousarray(node.op.reference(data.constant)), data.name)
    return r.add(replace(before.op, axis=axis), moved, scale, zero)


def _ordered(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """ReLU of a quantised number is the greater of it and its zero point; what is never below that stays."""
    before = r.producer(inputs[0], Dequantize) if isinstance(node.op, Relu) else None
    x = quantized_of(r, inputs[0]) if before is not None else None
    if x is None or before is None or not x.single or x.data.dtype.bits not in (8, 16):
        return None
    if x.zero <= integer_range(x.data.dtype)[0]:
        return inputs[0]
    return like_before(r, before, r.add(Maximum(), x.data, r.constant(x.zero, "zero", like=x.data)))


# -- requantisation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What numbers are quantised to: scale, zero point, and the least and greatest result."""

    dtype: DType
    scale: float
    zero: int
    lo: int
    hi: int

    def within(self, least: float | None, most: float | None) -> Target:
        """The same where the numbers were clipped before."""
        clip: Callable[[int], int] = lambda n: min(max(n, self.lo), self.hi)
        at: Callable[[float], int] = lambda v: round(Fraction(v) / Fraction(self.scale)) + self.zero
        return replace(
            self, lo=self.lo if least is None else clip(at(least)), hi=self.hi if most is None else clip(at(most))
        )


def target_of(to: DType, scale: Value | None, zero: Value | None) -> Target | None:
    """The target of a quantisation by one constant scale and zero point."""
    if scale is None or scale.constant is None or scale.constant.size != 1 or not to.is_integer or to.bits > 16:
        return None
    number = float(scale.constant.reshape(()))
    if (
        not np.isfinite(number)
        or number <= 0
        or (zero is not None and (zero.constant is None or zero.constant.size != 1))
    ):
        return None
    return Target(
        to, number, 0 if zero is None or zero.constant is None else int(zero.constant.reshape(())), *integer_range(to)
    )


def _requantise(r: Rewriter, node: Node, inputs: Inputs, wide: DType) -> Replacement:
    """The quantisation of a dequantised sum, or of a mean, clipped perhaps, is one step from integers to integers; of
    what is quantised alike, nothing."""
    if not isinstance(node.op, Quantize) or node.op.block:
        return None
    value, scale, zero = (*inputs, None)[:3]
    to = target_of(node.op.to, scale, zero)
    if value is None or to is None:
        return None
    same = quantized_of(r, value)
    if (
        same is not None
        and same.single
        and same.data.dtype == to.dtype
        and (float(same.scale), int(same.zero)) == (to.scale, to.zero)
    ):
        return same.data
    moved: list[Operator] = []
    while (before := r.producer(value)) is not None and r.single_use(value):
        if _keeps_axes(before):
            moved.append(before.op)
        elif not isinstance(before.op, (Relu, Clip, Identity)):
            break
        else:
            bounds = _bounds(before)
            if bounds is None:
                return None
            to = to.within(*bounds)
        value = before.inputs[0]
        assert value is not None
    made = _steps(r, value, to, wide)
    for op in reversed(moved):
        made = None if made is None else r.add(op, made)
    return made


def _bounds(node: Node) -> tuple[float | None, float | None] | None:
    """The bounds of a Relu, Clip or Identity; None if they are not known."""
    if isinstance(node.op, Identity):
        return None, None
    if isinstance(node.op, Relu):
        return 0.0, None
    found: list[float | None] = []
    for v in (*node.inputs[1:], None, None)[:2]:
        if v is not None and (v.constant is None or v.constant.size != 1 or np.isnan(v.constant).any()):
            return None
        number = None if v is None or v.constant is None else float(v.constant.reshape(()))
        found.append(None if number is None or np.isinf(number) else number)
    lo, hi = found
    return None if lo is not None and hi is not None and lo > hi else (lo, hi)


def _steps(r: Rewriter, value: Value, to: Target, wide: DType) -> Value | None:
    """A float value in steps of the target: from the sum, or the mean, of integers that it is; None if it is
    neither."""
    if not r.single_use(value):
        return None
    term: Value | None = None
    added = r.producer(value, Add)
    source = value
    if added is not None:
        pairs = [
            (a, b)
            for a, b in (added.inputs, added.inputs[::-1])
            if a is not None and b is not None and b.constant is not None and a.type == value.type
        ]
        if not pairs or not r.single_use(pairs[0][0]):
            return None
        source, term = pairs[0]
    total = quantized_of(r, source)
    if total is not None and total.data.dtype == dt.int32 and not total.zero.any():
        c = Composer(r.builder_for_rule())
        return requantised(
            c, c.cast(total.data, wide), total.scale, total.axis, to, None if term is None else term.constant
        )
    mean = r.producer(source, ReduceMean, AveragePool) if term is None else None
    x = quantized_of(r, mean.inputs[0]) if mean is not None else None
    if mean is None or x is None or not x.single or x.data.dtype.bits > 16 or x.data.constant is not None:
        return None
    c = Composer(r.builder_for_rule())
    floats = dt.float32 if x.scale == to.scale and x.data.dtype.bits == 8 and _few(mean) else wide
    numbers = c.cast(x.data, dt.int32)
    numbers = c.cast(c.sub(numbers, int(x.zero)) if x.zero.any() else numbers, floats)
    return requantised(c, c(mean.op, numbers), x.scale, 0, to, None, float(most(x)))


def _few(mean: Node) -> bool:
    """Whether a mean is over so few integers of 8 bits that in float32 their sum is exact, and the quotient not closer
    to halfway than it rounds."""
    x = mean.inputs[0]
    assert x is not None
    count = (
        product(mean.op.kernel)
        if isinstance(mean.op, AveragePool)
        else mean.op.length(x.shape)
        if isinstance(mean.op, ReduceMean)
        else None
    )
    return isinstance(count, int) and count <= 1 << 14


def requantised(
    c: Composer, value: Value, scale: Array, axis: int, to: Target, term: Array | None, reach: float = 2.0**31
) -> Value:
    """round((value·scale + term) / to.scale) + to.zero within the bounds, in the dtype of `value`, floats of at most
    `reach`."""
    ratio = scale / to.scale
    bound = reach * float(ratio.max())
    if not (ratio == 1).all():
        behind = (1,) * (value.tensor.rank - axis - 1)
        value = c.mul(
            value,
            c.builder.constant(ratio.astype(value.dtype.numpy).reshape((-1, *behind) if ratio.ndim else ()), "factor"),
        )
    if term is not None:
        more = term.astype(np.float64) / to.scale
        bound += float(np.abs(more).max(initial=0))
        value = c.add(value, c.builder.constant(more.astype(value.dtype.numpy), "term"))
    lo, hi = to.lo - to.zero, to.hi - to.zero
    whole = c(Round(), value)
    # As integers they are clipped by fewer instructions; none may be beyond int32 then.
    steps = (
        c(Clip(), c.cast(whole, dt.int32), lo, hi)
        if bound <= 2.0**30
        else c.cast(c(Clip(), whole, float(lo), float(hi)), dt.int32)
    )
    return c.cast(c.add(steps, to.zero) if to.zero else steps, to.dtype)


def _linear(r: Rewriter, node: Node, inputs: Inputs, wide: DType) -> Replacement:
    """QLinearConv and QLinearMatMul, which are the same spelled in one operator."""
    if not isinstance(node.op, (QLinearConv, QLinearMatMul)):
        return None
    conv = isinstance(node.op, QLinearConv)
    data, data_scale, data_zero, weights, weights_scale, weights_zero, scale, zero, bias = (*inputs, None)[:9]
    assert (
        data is not None
        and data_scale is not None
        and weights is not None
        and weights_scale is not None
        and zero is not None
    )
    x, w = parts(data, data_scale, data_zero, 0), parts(weights, weights_scale, weights_zero, 0 if conv else -1)
    to = target_of(zero.dtype, scale, zero)
    op = node.op.conv().conv() if isinstance(node.op, QLinearConv) else MatMul()
    if x is None or w is None or to is None or not fits(op, x, w):
        return None
    c = Composer(r.builder_for_rule())
    total = integer_product(c, op, x, w)
    if bias is not None:
        total = c.add(total, c.reshape(bias, (-1, *(1 for _ in total.shape[2:]))))
    return requantised(c, c.cast(total, wide), x.scale * w.scale, channel_axis(op, total), to, None)


def _narrow_scale(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """What is dequantised to a narrow float has a scale of float32: its exact one was for those who go on from the
    integers."""
    if not isinstance(node.op, Dequantize) or node.op.to is None or node.op.to.bits > 32:
        return None
    data, scale = inputs[:2]
    if scale is None or scale.constant is None or scale.dtype != dt.float64:
        return None
    return r.add(node.op, data, r.constant(scale.constant.astype(np.float32), scale.name), *inputs[2:])
