"""Finds again what StableHLO spells out: softmax, normalisation and GELU as the operators that they were, which have
kernels of their own. Attention is found from there by the compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft.graph.nodes import Graph, Node, Value
from weft.graph.operator import Operator
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.tensor.language import Dim

Inputs = tuple[Value | None, ...]
REPEATING = (ops.Divide, ops.Subtract, ops.Multiply, ops.Add, ops.Maximum, ops.Minimum, ops.Where)
"""Operators whose constant operands need not be repeated."""


def recognised(graph: Graph) -> Graph:
    """The graph with softmax, log-softmax, layer and RMS normalisation along one axis and GELU (by tanh) as operators.
    Results change by rounding only."""
    rules = (_softmax, _log_softmax, _normalised, _scaled, _shifted, _gelu, _turned, _aligned, _repeated)
    return rewrite(graph, *rules, on_subgraph=recognised, on=(*REPEATING, ops.MatMul))


# -- parts ------------------------------------------------------------------------------------------------------------


def squeezed(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The sizes other than 1."""
    return tuple(d for d in shape if d != 1)


def before(shape: Sequence[Dim], axis: int) -> int:
    """How many axes in front of one have sizes other than 1."""
    return len(squeezed(shape[:axis]))


def core(r: Rewriter, value: Value | None) -> Value | None:
    """A value without axes of one element being added, moved or dropped."""
    while (node := r.producer(value, ops.Reshape, ops.Transpose)) is not None:
        inner = node.inputs[0]
        if inner is None or value is None or squeezed(inner.shape) != squeezed(value.shape):
            return value
        if isinstance(node.op, ops.Transpose):
            moved = [a for a in node.op.axes if inner.shape[a] != 1]
            if moved != sorted(moved):
                return value
        value = inner
    return value


class Rows:
    """Values with one number for each row of `x` along an axis: with the axis, without, or repeated along it. Axes of
    one element count for nothing."""

    def __init__(self, r: Rewriter, x: Value, axis: int) -> None:
        self.r, self.x, self.axis = r, x, axis
        self.root, self.sizes, self.place = core(r, x), squeezed(x.shape), before(x.shape, axis)

    def is_x(self, value: Value | None) -> bool:
        return core(self.r, value) is self.root

    def along(self, shape: Sequence[Dim], axis: int) -> bool:
        """Whether an axis of another shape of x is the one."""
        return squeezed(shape) == self.sizes and shape[axis] != 1 and before(shape, axis) == self.place

    def plain(self, value: Value | None) -> Value | None:
        """The value without repetition along the axis; None if it is no value of rows."""
        value = core(self.r, value)
        node = self.r.producer(value, ops.BroadcastTo)
        if node is not None and value is not None:
            inner, shape = node.inputs[0], value.shape
            if inner is None or len(inner.shape) != len(shape):
                return None
            wider = [k for k, (a, b) in enumerate(zip(inner.shape, shape)) if a == 1 and b != 1]
            if len(wider) != 1 or not self.along(shape, wider[0]):
                return None
            value = core(self.r, inner)
        if value is None:
            return None
        rest = (*self.sizes[: self.place], *self.sizes[self.place + 1 :])
        return value if squeezed(value.shape) == rest else None

    def made(self, value: Value | None, *classes: type[Operator]) -> Node | None:
        """What makes the value, one of these operators."""
        return self.r.producer(self.plain(value), *classes)

    def reduces(self, value: Value | None, kind: type[Operator], of: Any = None) -> bool:
        """Whether a value is a reduction of x along the axis, or of what `of` accepts."""
        node = self.made(value, kind)
        axes = () if node is None else tuple(getattr(node.op, "axes", None) or ())
        given = None if node is None else node.inputs[0]
        if given is None or len(axes) != 1 or not self.along(given.shape, axes[0]):
            return False
        return self.is_x(given) if of is None else bool(of(given))

    def mean(self, value: Value | None, of: Any = None) -> bool:
        """Whether a value is the mean of x, or of what `of` accepts."""
        size = self.x.shape[self.axis]
        node = self.made(value, ops.Divide, ops.Multiply)
        if node is None:
            return False
        a, b = node.inputs
        count, total = number(self.r, b), a
        if count is None and isinstance(node.op, ops.Multiply):
            count, total = number(self.r, a), b
        if count is None or not isinstance(size, int):
            return False
        wanted = size if isinstance(node.op, ops.Divide) else 1.0 / size
        return math.isclose(count, wanted, rel_tol=1e-6) and self.reduces(total, ops.ReduceSum, of)

    def centered(self, value: Value | None) -> bool:
        """Whether a value is x - mean."""
        node = self.r.producer(core(self.r, value), ops.Subtract)
        return node is not None and self.is_x(node.inputs[0]) and self.mean(node.inputs[1])

    def square(self, value: Value | None, centered: bool) -> bool:
        """Whether a value is the square of x, or of x - mean."""
        node = self.r.producer(core(self.r, value), ops.Multiply)
        return node is not None and all(map(self.centered if centered else self.is_x, node.inputs))

    def variance(self, value: Value | None) -> bool:
        """Whether a value is the mean of (x - mean)², or that of x² less mean²."""
        if self.mean(value, lambda v: self.square(v, True)):
            return True
        node = self.made(value, ops.Maximum)
        if node is not None:
            a, b = node.inputs
            value = b if number(self.r, a) == 0 else a if number(self.r, b) == 0 else None
        node = self.made(value, ops.Subtract)
        if node is None or not self.mean(node.inputs[0], lambda v: self.square(v, False)):
            return False
        squared = self.made(node.inputs[1], ops.Multiply)
        return squared is not None and all(map(self.mean, squared.inputs))

    def inverse_root(self, value: Value | None) -> Value | None:
        """Of 1 / √(v + epsilon) the sum under the root."""
        node = self.made(value, ops.Reciprocal)
        root = None if node is None else self.made(node.inputs[0], ops.Sqrt)
        return None if root is None else root.inputs[0]

    def with_epsilon(self, value: Value | None) -> tuple[Value | None, float]:
        """A sum as what is summed and the small number that is added."""
        node = self.made(value, ops.Add)
        for k in (0, 1) if node is not None else ():
            assert node is not None
            epsilon = number(self.r, node.inputs[k])
            if epsilon is not None:
                return node.inputs[1 - k], epsilon
        return None, 0.0


def number(r: Rewriter, value: Value | None) -> float | None:
    """The number that all elements of a value are, if it is a constant, perhaps repeated."""
    while value is not None and value.constant is None:
        node = r.producer(value, ops.BroadcastTo, ops.Reshape)
        value = None if node is None else node.inputs[0]
    if value is None or value.constant is None or value.constant.size == 0 or not value.dtype.is_float:
        return None
    data = value.constant.reshape(-1)
    return float(data[0]) if bool((data == data[0]).all()) else None


def constant_and(r: Rewriter, inputs: Sequence[Value | None], wanted: float) -> Value | None:
    """The other operand, if one is this number."""
    for k in (0, 1):
        found = number(r, inputs[k])
        if found is not None and math.isclose(found, wanted, rel_tol=1e-3):
            return inputs[1 - k]
    return None


# -- softmax ----------------------------------------------------------------------------------------------------------


def _largest(rows: Rows, value: Value | None) -> bool:
    """Whether a value is the maximum of x along the axis, perhaps at least -inf."""
    node = rows.made(value, ops.Maximum)
    if node is not None:
        a, b = node.inputs
        value = b if number(rows.r, a) == -math.inf else a if number(rows.r, b) == -math.inf else None
    return rows.reduces(value, ops.ReduceMax)


def _summed(r: Rewriter, value: Value | None) -> tuple[Value, int] | None:
    """What a value sums along one axis, and the axis; it may be repeated, and under a logarithm."""
    while (node := r.producer(value, ops.BroadcastTo, ops.Reshape, ops.Transpose, ops.Log)) is not None:
        value = node.inputs[0]
    node = r.producer(value, ops.ReduceSum)
    axes = () if node is None else tuple(getattr(node.op, "axes", None) or ())
    if node is None or node.inputs[0] is None or len(axes) != 1 or not isinstance(axes[0], int):
        return None
    return (node.inputs[0], axes[0]) if node.inputs[0].shape[axes[0]] != 1 else None


def _of_shifted(r: Rewriter, rows: Rows, low: Value | None, op: type[ops.Softmax], node: Node) -> Replacement:
    """`op` of x, where `low` is x less its greatest element along the axis of rows."""
    shifted = r.producer(core(r, low), ops.Subtract)
    x = None if shifted is None else core(r, shifted.inputs[0])
    if shifted is None or x is None or squeezed(x.shape) != rows.sizes:
        return None
    axis = [k for k, d in enumerate(x.shape) if d != 1][rows.place]
    if not _largest(Rows(r, x, axis), shifted.inputs[1]):
        return None
    y: Value = r.add(op(axis), x)
    return y if y.shape == node.output.shape else r.add(ops.Reshape(node.output.shape), y)


def _softmax(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    if not isinstance(node.op, ops.Divide):
        return None
    powers, total = inputs
    summed = _summed(r, total)
    power = r.producer(core(r, powers), ops.Exp)
    if summed is None or power is None or squeezed(node.output.shape) != squeezed(power.output.shape):
        return None
    rows = Rows(r, *summed)
    if not rows.is_x(powers) or not rows.reduces(total, ops.ReduceSum):
        return None
    return _of_shifted(r, rows, power.inputs[0], ops.Softmax, node)


def _log_softmax(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    if not isinstance(node.op, ops.Subtract):
        return None
    low, logarithm = inputs
    summed = _summed(r, logarithm)
    if summed is None or low is None or squeezed(low.shape) != squeezed(node.output.shape):
        return None
    rows = Rows(r, *summed)
    power, log = r.producer(rows.root, ops.Exp), rows.made(logarithm, ops.Log)
    if power is None or log is None or not rows.reduces(log.inputs[0], ops.ReduceSum):
        return None
    if core(r, power.inputs[0]) is not core(r, low):
        return None
    return _of_shifted(r, rows, low, ops.LogSoftmax, node)


# -- attention --------------------------------------------------------------------------------------------------------


def _turned(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """A product by transposed weights, as that of the weights, transposed: it is attention's second one."""
    if not isinstance(node.op, ops.MatMul) or node.op.dtype is not None:
        return None
    a, b = inputs
    if a is None or b is None:
        return None
    rank = len(b.shape)
    value, order = b, [k for k, d in enumerate(b.shape) if d != 1]
    if rank < 3 or len(a.shape) != rank or len(order) < 2 or order[-2:] != [rank - 2, rank - 1]:
        return None
    places = list(range(len(order)))
    while (found := r.producer(value, ops.Reshape, ops.Transpose)) is not None:
        inner = found.inputs[0]
        if inner is None:
            return None
        if isinstance(found.op, ops.Transpose):
            own = [k for k, d in enumerate(inner.shape) if d != 1]
            moved = [own.index(k) for k in found.op.axes if inner.shape[k] != 1]
            places = [moved[p] for p in places]
        elif squeezed(inner.shape) != squeezed(value.shape):
            return None
        value = inner
    count = len(places)
    if places != [*range(count - 2), count - 1, count - 2] or r.producer(value, ops.Softmax) is None:
        return None
    swap = (*range(rank - 2), rank - 1, rank - 2)
    weights = r.add(ops.Reshape((*b.shape[:-2], b.shape[-1], b.shape[-2])), value)
    return r.add(ops.Transpose(swap), r.add(ops.MatMul(), weights, r.add(ops.Transpose(swap), a)))


def _aligned(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """Weights of a product that have other axes of one element than their softmax: the softmax has the product's."""
    if not isinstance(node.op, ops.MatMul):
        return None
    a, b = inputs
    if a is None or r.producer(a, ops.Reshape) is None:
        return None
    softmax = r.producer(core(r, a), ops.Softmax)
    x = None if softmax is None else softmax.inputs[0]
    if softmax is None or x is None or type(softmax.op) is not ops.Softmax or a.shape[-1] == 1:
        return None
    if x.shape[-1] == 1 or softmax.op.axis != len(x.shape) - 1 or squeezed(a.shape) != squeezed(x.shape):
        return None
    return r.add(node.op, r.add(ops.Softmax(len(a.shape) - 1), r.add(ops.Reshape(a.shape), x)), b)


def _repeated(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """A number that is repeated in the shape of another operand: operators do so themselves."""
    if not isinstance(node.op, REPEATING):
        return None
    given = list(inputs)
    for k, value in enumerate(inputs):
        found = r.producer(value, ops.BroadcastTo)
        inner = None if found is None else found.inputs[0]
        others = [v for m, v in enumerate(given) if m != k and v is not None]
        if inner is None or inner.constant is None or inner.constant.size != 1 or (not inner.shape and not others):
            continue
        if any(tuple(v.shape) == tuple(node.output.shape) for v in others):
            given[k] = inner if not inner.shape else r.constant(inner.constant.reshape(()), "c", like=inner)
    return None if given == list(inputs) else r.add(node.op, *given)


# -- normalisation ----------------------------------------------------------------------------------------------------


def _normalised(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """(x - mean) · 1/√(variance + epsilon) along the last axis, or x · 1/√(mean of x² + epsilon); also where a scale is
    a factor of the second."""
    if not isinstance(node.op, (ops.Multiply, ops.Divide)):
        return None
    for k in (0, 1) if isinstance(node.op, ops.Multiply) else (0,):
        x, factor = inputs[k], inputs[1 - k]
        if x is None or factor is None or not x.shape or x.shape != node.output.shape or not x.dtype.is_float:
            continue
        scaled = r.producer(factor, ops.Multiply) if isinstance(node.op, ops.Multiply) else None
        choices = [(factor, None)] if scaled is None else [(scaled.inputs[0], scaled.inputs[1]), scaled.inputs[::-1]]
        for deviation, scale in choices:
            found = _norm_of(r, x, deviation, isinstance(node.op, ops.Divide))
            if found is not None:
                op, given = found
                y = r.add(op, given)
                return y if scale is None else r.add(ops.Multiply(), y, scale)
    return None


def _norm_of(r: Rewriter, x: Value, deviation: Value | None, divided: bool) -> tuple[Operator, Value] | None:
    """The normalisation that x times (or by) a deviation is, and its operand."""
    last = len(x.shape) - 1
    centered = r.producer(x, ops.Subtract)
    given = centered.inputs[0] if centered is not None and centered.inputs[0] is not None else None
    for layer, operand in ((True, given), (False, x)):
        if operand is None or operand.shape != x.shape:
            continue
        rows = Rows(r, operand, last)
        if divided:
            root = rows.made(deviation, ops.Sqrt)
            under = None if root is None else root.inputs[0]
        else:
            under = rows.inverse_root(deviation)
        spread, epsilon = rows.with_epsilon(under)
        if spread is None:
            continue
        if layer and rows.centered(x) and rows.variance(spread):
            return ops.LayerNorm(last, epsilon), operand
        if not layer and rows.mean(spread, lambda v: rows.square(v, False)):  # noqa: B023
            return ops.RMSNorm(last, epsilon), operand
    return None


def _along_last(r: Rewriter, value: Value | None, like: Value) -> Value | None:
    """A value that differs along the last axis only, as that vector."""
    node = r.producer(value, ops.BroadcastTo)
    inner = value if node is None else node.inputs[0]
    if inner is None or (inner.constant is None and node is None):
        return None
    size = like.shape[-1]
    if not inner.shape or inner.shape[-1] != size or any(d != 1 for d in inner.shape[:-1]):
        return None
    return inner


def _with_operand(r: Rewriter, node: Node, inputs: Inputs, kinds: tuple[type[Operator], ...], have: int) -> Replacement:
    """A normalisation with `have` operands that takes the other operand of the node as a further one."""
    for y, other in (inputs, inputs[::-1]):
        norm = r.producer(y, *kinds)
        if norm is None or y is None or len([v for v in norm.inputs if v is not None]) != have:
            continue
        vector = _along_last(r, other, node.output)
        if vector is None or not r.single_use(y) or node.output.shape != y.shape:
            continue
        if vector.shape != vector.shape[-1:]:
            vector = r.add(ops.Reshape(vector.shape[-1:]), vector)
        return r.add(norm.op, *[v for v in norm.inputs if v is not None], vector)
    return None


def _scaled(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    if not isinstance(node.op, ops.Multiply):
        return None
    return _with_operand(r, node, inputs, (ops.LayerNorm, ops.RMSNorm), 1)


def _shifted(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    return _with_operand(r, node, inputs, (ops.LayerNorm,), 2) if isinstance(node.op, ops.Add) else None


# -- activations ------------------------------------------------------------------------------------------------------


def _gelu(r: Rewriter, node: Node, inputs: Inputs) -> Replacement:
    """x · ½ · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
    if not isinstance(node.op, ops.Multiply):
        return None
    for k in (0, 1):
        x, half = inputs[k], r.producer(inputs[1 - k], ops.Multiply)
        one = None if half is None else r.producer(constant_and(r, half.inputs, 0.5), ops.Add)
        tanh = None if one is None else r.producer(constant_and(r, one.inputs, 1.0), ops.Tanh)
        scaled = None if tanh is None else r.producer(tanh.inputs[0], ops.Multiply)
        total = None if scaled is None else r.producer(constant_and(r, scaled.inputs, 0.7978845608), ops.Add)
        if x is None or total is None or x not in total.inputs:
            continue
        other = total.inputs[1] if total.inputs[0] is x else total.inputs[0]
        weighed = r.producer(other, ops.Multiply)
        cube = None if weighed is None else r.producer(constant_and(r, weighed.inputs, 0.044715), ops.Multiply)
        if cube is None or x not in cube.inputs:
            continue
        square = r.producer(cube.inputs[1] if cube.inputs[0] is x else cube.inputs[0], ops.Multiply)
        if square is not None and all(v is x for v in square.inputs):
            return r.add(ops.Gelu(True), x)
    return None


__all__ = ["recognised"]
