"""Rules of algebra: pattern → check → replacement.

A rule sees a node whose operator is one of its classes. It gives the replacement, or a reason why it does not act (kept
for whoever asks through `on_decline`), or None if the pattern is not there. Rules keep every result, the sign of a zero
and infinities included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from weft.graph.identity import Identity
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.graph.verify import same_dim, same_type
from weft_ops.activation import Gelu, Relu, Sigmoid, Swish
from weft_ops.arithmetic import Add, Cast, Divide, Multiply, Negative, Power, Reciprocal, Sqrt, Subtract, Where
from weft_ops.comparison import LogicalNot
from weft_ops.contraction import Conv
from weft_ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Transpose
from weft_ops.passes.unit_axes import (
    conv_of_reshape,
    elementwise_of_moves,
    negligible_term,
    of_ones,
    pad_of_reshape,
    reduction_of_transpose,
    sums_products,
    transpose_of_moves,
)
from weft_ops.reduction import Reduction
from weft_ops.transcendental import Erf

Inputs: TypeAlias = "tuple[Value | None, ...]"
# A Replacement, or the reason why there is none.
Outcome: TypeAlias = Any


PIECES = 16
"""Most pieces of a concatenation that is made of several."""


@dataclass(frozen=True)
class AlgebraRule:
    """One rule; see the module."""

    name: str
    operators: tuple[type[Operator], ...]
    apply: Callable[[Rewriter, Node, Inputs], Outcome]


def simplify_algebra(
    graph: Graph, rules: Sequence[AlgebraRule] | None = None, on_decline: Callable[[str, Node, str], None] | None = None
) -> Graph:
    """Afterwards no rule applies.

    Args:
        on_decline: called with the rule's name, the node, and the reason why a pattern that was there was not replaced.
    """
    rules = RULES if rules is None else rules

    def as_rule(item: AlgebraRule) -> Callable[[Rewriter, Node, Inputs], Replacement]:
        def act(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
            if not isinstance(node.op, item.operators):
                return None
            outcome = item.apply(r, node, inputs)
            if isinstance(outcome, str):
                if on_decline is not None:
                    on_decline(item.name, node, outcome)
                return None
            replacement: Replacement = outcome
            return replacement

        act.__name__ = item.name
        return act

    return rewrite(
        graph, *(as_rule(item) for item in rules), on=tuple({o: None for item in rules for o in item.operators})
    )


_FIRST = 64  # elements that are looked at before all are

# -- facts ------------------------------------------------------------------------------------------------------------


def all_equal(value: Value | None, number: float) -> bool:
    """Whether the value is a constant all of whose elements are `number`."""
    data = value.constant if value is not None else None
    if data is None or data.size == 0 or data.dtype == object:
        return False
    # Most weights differ at once, and rules ask of each of them again and again.
    return bool((data.flat[:_FIRST] == number).all() and (data.size <= _FIRST or (data == number).all()))


def scalar_of(value: Value | None) -> float | None:
    """The number that all elements of a real constant are, if they are one."""
    if (
        value is None
        or value.constant is None
        or value.constant.size == 0
        or value.dtype.kind not in ("int", "uint", "float")
    ):
        return None
    first = value.constant.reshape(-1)[0]
    return float(first) if all_equal(value, first) else None


def _if_same(value: Value | None, node: Node) -> Outcome:
    """`value` in place of the node's only output, if the types agree."""
    if value is None or not same_type(value.type, node.output.type, layouts=False):
        return "the result is broadcast to another shape"
    return value


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _neutral_summand(value: Value | None, number: float) -> bool:
    """Whether the value is a constant that a sum of floats may leave out: x + 0.0 is not x where x is -0.0, x + -0.0
    is.

    Args:
        number: the zero that is neutral, with its sign; integers have one zero.
    """
    if value is None or value.constant is None or not all_equal(value, 0):
        return False
    if not value.dtype.is_float:
        return value.dtype.kind != "complex"
    return bool((np.signbit(value.constant.astype(np.float64)) == (math.copysign(1.0, number) < 0)).all())


def _add_zero(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    for zero, other in (inputs[::-1], inputs):
        if all_equal(zero, 0):
            neutral = _neutral_summand(zero, -0.0) or sums_products(other)
            return _if_same(other, node) if neutral else "x + 0.0 is not x where x is -0.0"
    return None


def _subtract_zero(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    if not all_equal(inputs[1], 0):
        return None
    return _if_same(inputs[0], node) if _neutral_summand(inputs[1], 0.0) else "x - -0.0 is not x where x is -0.0"


def _neutral_right(number: float) -> Callable[[Rewriter, Node, Inputs], Outcome]:
    return lambda r, node, inputs: _if_same(inputs[0], node) if all_equal(inputs[1], number) else None


def _neutral_either(number: float) -> Callable[[Rewriter, Node, Inputs], Outcome]:
    def apply(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
        if all_equal(inputs[1], number):
            return _if_same(inputs[0], node)
        return _if_same(inputs[1], node) if all_equal(inputs[0], number) else None

    return apply


def _power(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    base, exponent = inputs[0], scalar_of(inputs[1])
    if base is None or exponent not in (1.0, 2.0, 3.0, 0.5, -1.0):
        return None
    if not same_type(base.type, node.output.type, layouts=False):
        return "the base is broadcast, or the exponent has another dtype"
    if exponent == 1.0:
        return base
    if exponent in (2.0, 3.0):
        square = r.add(Multiply(), base, base)
        return square if exponent == 2.0 else r.add(Multiply(), square, base)
    if not base.dtype.is_float:
        return "a root of integers"
    # The power ½ of numpy, and so of ONNX's reference, is the square root, of -0.0 and -∞ as well.
    return r.add(Sqrt() if exponent == 0.5 else Reciprocal(), base)


def _divide(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    a, b = inputs
    if b is None or b.constant is None or not b.dtype.is_float or b.constant.size == 0:
        return None
    wide = b.constant.astype(np.float64)
    mantissa, _ = np.frexp(wide)
    with np.errstate(all="ignore"):
        inverse = 1.0 / np.where(wide == 0, np.nan, wide)
        exact = (
            (np.abs(mantissa) == 0.5)
            & np.isfinite(inverse)
            & (inverse.astype(b.constant.dtype).astype(np.float64) == inverse)
        )
    if not exact.all():
        return "a divisor is no power of two, so its reciprocal rounds"
    return r.add(Multiply(), a, r.constant(inverse, like=b))


def _twice(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    before = r.producer(inputs[0], type(node.op))
    return before.inputs[0] if before is not None else None


def _again(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    return inputs[0] if r.producer(inputs[0], type(node.op)) is not None else None


def _same_dtype(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    return inputs[0] if inputs[0] is not None and inputs[0].type == node.output.type else None


def _where(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    cond = inputs[0]
    if (
        cond is None
        or cond.constant is None
        or cond.constant.size == 0
        or not (cond.constant.all() or not cond.constant.any())
    ):
        return None
    chosen = inputs[1] if cond.constant.all() else inputs[2]
    if chosen is not None and not same_type(chosen.type, node.output.type, layouts=False):
        return r.add(BroadcastTo(node.output.shape), chosen)
    return chosen


# -- movement ---------------------------------------------------------------------------------------------------------


def _transpose(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    x = inputs[0]
    assert x is not None and isinstance(node.op, Transpose)
    order = node.op.order(x.tensor.rank)
    if order == tuple(range(len(order))):
        return x
    before = r.producer(x, Transpose)
    if before is not None:
        source = before.inputs[0]
        assert source is not None and isinstance(before.op, Transpose)
        inner = before.op.order(x.tensor.rank)
        return r.add(Transpose(tuple(inner[k] for k in order)), source)
    moved = [k for k in order if x.shape[k] != 1]
    if moved == sorted(moved):
        return r.add(Reshape(node.output.shape), x)  # only axes of one element move: the memory is the same
    return transpose_of_moves(r, node, inputs)


def _reshape(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    x = inputs[0]
    assert x is not None and isinstance(node.op, Reshape)
    if same_type(x.type, node.output.type, layouts=False):
        return x
    if x.constant is not None and x.constant.flags.c_contiguous and node.output.tensor.is_static:
        # No new memory, so no budget is needed; other rules then see a constant.
        return r.constant(x.constant.reshape([d for d in node.output.shape if isinstance(d, int)]), x.name)
    before = r.producer(x, Reshape)
    if before is not None:
        return r.add(Reshape(node.output.shape), before.inputs[0])
    if node.op.shape != node.output.shape:
        return r.add(Reshape(node.output.shape), x)  # -1 written out, so that equal reshapes look equal
    return None


def _broadcast(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    x = inputs[0]
    if x is not None and same_type(x.type, node.output.type, layouts=False):
        return x
    before = r.producer(x, BroadcastTo)
    if (
        before is not None
        and before.inputs[0] is not None
        and _infers(node, BroadcastTo(node.output.shape), before.inputs)
    ):
        return r.add(BroadcastTo(node.output.shape), before.inputs[0])
    return None


def _elementwise_of_reshape(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    """A reshape after a product that keeps its rows, or adds and removes axes of one element only, moves behind what is
    computed element by element: that can then be part of the product."""
    if node.op.kind != "elementwise" or len(node.outputs) != 1 or any(v is None for v in inputs):
        return None
    shape = node.output.shape
    reshaped = [
        b
        for v in inputs
        if v is not None and v.shape == shape and (b := r.producer(v, Reshape)) is not None and _movable(b)
    ]
    if not reshaped:
        return None
    anchor = next((b.inputs[0] for b in reshaped if _contracts(b.inputs[0])), reshaped[0].inputs[0])
    assert anchor is not None
    rows = all(_keeps_rows(b) for b in reshaped)
    new: list[Value] = []
    to_reshape: dict[int, Value] = {}
    for v in inputs:
        assert v is not None
        before = r.producer(v, Reshape)
        if v.shape != shape:
            if v.constant is not None and v.constant.size == 1:
                v = r.constant(v.constant.reshape(()), v.name)
            elif v.tensor.rank > 1 or (v.tensor.rank and not rows):
                return "an operand is broadcast along rows"
            new.append(v)
        elif before is not None and before.inputs[0] is not None and before.inputs[0].shape == anchor.shape:
            new.append(before.inputs[0])
        elif not _contracts(anchor) or _contracts(v):
            return "the operands are not reshaped alike"
        else:
            # A stand-in until it is known whether the rule acts.
            new.append(Value(v.name, TensorType(v.dtype, anchor.shape)))
            to_reshape[id(new[-1])] = v
    if not _infers_shape(node.op, new, anchor.shape):
        return "the operands do not give the result its shape"
    given = [r.add(Reshape(anchor.shape), to_reshape[id(v)]) if id(v) in to_reshape else v for v in new]
    return r.add(Reshape(shape), r.add(node.op, *given))


def _movable(reshape: Node) -> bool:
    """Whether a reshape of something computed can come after what is computed of it element by element."""
    x = reshape.inputs[0]
    if x is None or x.producer is None or x.producer.op.kind not in ("contraction", "elementwise"):
        return False
    return _keeps_rows(reshape) or of_ones(reshape)


def _keeps_rows(reshape: Node) -> bool:
    """Whether a reshape leaves the last axis as it is."""
    x = reshape.inputs[0]
    if x is None or not x.tensor.rank or not reshape.output.tensor.rank:
        return False
    return same_dim(x.shape[-1], reshape.output.shape[-1])


def _contracts(value: Value | None) -> bool:
    return value is not None and value.producer is not None and value.producer.op.kind == "contraction"


def _infers_shape(op: Operator, inputs: Sequence[Value], shape: Sequence[object]) -> bool:
    from weft.errors import WeftError

    try:
        (found,) = op.infer_checked(inputs)
    except WeftError:
        return False
    return isinstance(found, TensorType) and found.shape == tuple(shape)


def _swish(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    for x, gate in (inputs, inputs[::-1]):
        before = r.producer(gate, Sigmoid)
        if before is not None and before.inputs[0] is x:
            return r.add(Swish(), x)
    return None


def _gelu(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    """x · ½ · (erf(x/√2) + 1), its factors in any order."""
    factors = _factors(r, inputs, 6)  # x and the gate, ½ in one number or a few
    if factors is None:
        return None
    numbers = [scalar_of(f) for f in factors]
    scale = math.prod(n for n in numbers if n is not None)
    others = [f for f, n in zip(factors, numbers) if n is None]
    if len(others) != 2 or not math.isclose(scale, 0.5, rel_tol=1e-6):
        return None
    for x, gate in (others, others[::-1]):
        added = r.producer(gate, Add)
        parts = [] if added is None else [(a, b) for a, b in (added.inputs, added.inputs[::-1]) if all_equal(b, 1)]
        erf = r.producer(parts[0][0], Erf) if parts else None
        inner = r.producer(erf.inputs[0], Divide, Multiply) if erf is not None else None
        if inner is None:
            continue
        a, b = inner.inputs
        number = scalar_of(b) if a is x else scalar_of(a) if b is x and isinstance(inner.op, Multiply) else None
        if number is not None and math.isclose(
            number, math.sqrt(2.0 if isinstance(inner.op, Divide) else 0.5), rel_tol=1e-6
        ):
            return _if_same(r.add(Gelu(), x), node)
    return None


def _factors(r: Rewriter, values: Inputs, most: int) -> list[Value] | None:
    """What a product of products multiplies; one that something else needs as well is a factor itself. None if there
    are more than `most`."""
    factors: list[Value] = []
    left = list(reversed(values))
    while left:
        value = left.pop()
        before = r.producer(value, Multiply) if value is not None and r.single_use(value) else None
        if before is not None:
            left += reversed(before.inputs)
        elif value is not None:
            factors.append(value)
        if len(factors) + len(left) > most:
            return None
    return factors


def _infers(node: Node, op: Operator, inputs: Sequence[Value | None]) -> bool:
    """Whether the results are of the node's types, and nothing is taken for granted about sizes that the node does
    not."""
    from weft.errors import WeftError

    try:
        found = op.inferred(inputs)
    except WeftError:
        return False
    known = {a.holds for a in node.op.inferred(node.inputs).assumes}
    return all(a.holds in known for a in found.assumes) and all(
        same_type(a, b.type, layouts=False) for a, b in zip(found.types, node.outputs)
    )


def _broadcast_operand(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    """An elementwise operator broadcasts by itself."""
    if node.op.kind != "elementwise" or len(inputs) < 2:
        return None
    for k, value in enumerate(inputs):
        before = r.producer(value, BroadcastTo)
        if before is not None:
            new = (*inputs[:k], before.inputs[0], *inputs[k + 1 :])
            if _infers(node, node.op, new):
                return r.add(node.op, *new)
            return "the other operands do not give the result its shape"
    return None


def _uniform_operand(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    """A constant of equal elements is one element, which elementwise operators broadcast: kernels hold it instead of
    reading it."""
    if node.op.kind != "elementwise" or len(inputs) < 2:
        return None
    for k, value in enumerate(inputs):
        if (
            value is None
            or (data := value.constant) is None
            or data.size <= 1
            or data.dtype == object
            or data.tobytes() != data.reshape(-1)[:1].tobytes() * data.size
        ):
            continue
        new = (*inputs[:k], r.constant(data.reshape(-1)[0].reshape(()), value.name), *inputs[k + 1 :])
        if _infers(node, node.op, new):
            return r.add(node.op, *new)
    return None


def _slice(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    x = inputs[0]
    assert x is not None and isinstance(node.op, Slice)
    whole = all(s == 0 for s in node.op.starts) and all(s == 1 for s in node.op.all_steps)
    return x if whole and all(same_dim(a, b) for a, b in zip(node.op.sizes, x.shape)) else None


def _concat(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    if len(inputs) == 1:
        return inputs[0]
    assert isinstance(node.op, Concat)
    axis = node.op.axis % node.output.tensor.rank
    kept = [v for v in inputs if v is not None and v.shape[axis] != 0]
    if len(kept) < len(inputs) and kept:
        return kept[0] if len(kept) == 1 else r.add(node.op, *kept)
    pieces: list[Value] = []
    for v in kept:
        before = r.producer(v, Concat) if r.single_use(v) else None
        if before is not None and isinstance(before.op, Concat) and before.op.axis % v.tensor.rank == axis:
            pieces += [piece for piece in before.inputs if piece is not None]
        else:
            pieces.append(v)
    return r.add(node.op, *pieces) if len(kept) < len(pieces) <= PIECES else None


def _pad(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    assert isinstance(node.op, Pad)
    return inputs[0] if all(isinstance(p, int) and p == 0 for p in node.op.pads) else None


def _pad_of_conv(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    before = r.producer(inputs[0], Pad, Transpose)
    order: tuple[int, ...] | None = None
    if before is not None and isinstance(before.op, Transpose):
        order = before.op.order(before.output.tensor.rank)
        before = r.producer(before.inputs[0], Pad)
    if before is None:
        return None
    assert isinstance(node.op, Conv) and isinstance(before.op, Pad)
    fill = before.inputs[1] if len(before.inputs) > 1 else None
    if before.op.mode != "constant" or (fill is not None and not all_equal(fill, 0)):
        return "the padding is not zero"
    pairs = before.op.pairs(before.output.tensor.rank)
    pairs = pairs if order is None else [pairs[k] for k in order]
    known = [(lo, hi) for lo, hi in pairs if isinstance(lo, int) and isinstance(hi, int) and lo >= 0 and hi >= 0]
    if len(known) < len(pairs) or any(known[k] != (0, 0) for k in (0, 1)):
        return "the padding crops, or is not known, or pads batch or channels"
    own = node.op.spatial(len(pairs) - 2)[1]
    edges = [(a + b, c + d) for (a, c), (b, d) in zip(own, known[2:])]
    op = replace(node.op, pads=(*(lo for lo, _ in edges), *(hi for _, hi in edges)))
    x = before.inputs[0]
    return r.add(op, x if order is None else r.add(Transpose(order), x), *inputs[1:])


def _reduce_nothing(r: Rewriter, node: Node, inputs: Inputs) -> Outcome:
    axes: Any = node.op.attributes().get("axes")
    return _if_same(inputs[0], node) if axes == () else None


RULES: tuple[AlgebraRule, ...] = (
    AlgebraRule("identity", (Identity,), lambda r, node, inputs: inputs[0]),
    AlgebraRule("add_zero", (Add,), _add_zero),
    AlgebraRule("subtract_zero", (Subtract,), _subtract_zero),
    AlgebraRule("multiply_one", (Multiply,), _neutral_either(1)),
    AlgebraRule("divide_by_one", (Divide,), _neutral_right(1)),
    AlgebraRule("divide_by_power_of_two", (Divide,), _divide),
    AlgebraRule("power", (Power,), _power),
    AlgebraRule("twice", (Negative, LogicalNot), _twice),
    AlgebraRule("again", (Relu,), _again),
    AlgebraRule("cast_to_same", (Cast,), _same_dtype),
    AlgebraRule("where_constant", (Where,), _where),
    AlgebraRule("transpose", (Transpose,), _transpose),
    AlgebraRule("reshape", (Reshape,), _reshape),
    AlgebraRule("broadcast", (BroadcastTo,), _broadcast),
    AlgebraRule("slice_all", (Slice,), _slice),
    AlgebraRule("concat", (Concat,), _concat),
    AlgebraRule("pad_nothing", (Pad,), _pad),
    AlgebraRule("pad_of_reshape", (Pad,), pad_of_reshape),
    AlgebraRule("pad_of_conv", (Conv,), _pad_of_conv),
    AlgebraRule("conv_of_reshape", (Conv,), conv_of_reshape),
    AlgebraRule("reduce_nothing", (Reduction,), _reduce_nothing),
    AlgebraRule("reduction_of_transpose", (Reduction,), reduction_of_transpose),
    AlgebraRule("swish", (Multiply,), _swish),
    AlgebraRule("gelu", (Multiply,), _gelu),
    AlgebraRule("negligible_term", (Add,), negligible_term),
    AlgebraRule("elementwise_of_moves", (Operator,), elementwise_of_moves),
    AlgebraRule("elementwise_of_reshape", (Operator,), _elementwise_of_reshape),
    AlgebraRule("broadcast_operand", (Operator,), _broadcast_operand),
    AlgebraRule("uniform_operand", (Operator,), _uniform_operand),
)
