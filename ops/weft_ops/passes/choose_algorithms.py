"""Decides which algorithm computes an operator, where another than its definition may be faster on the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from weft.choices import Choices
from weft.dtypes import float32, float64
from weft.errors import GraphError
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, Rule, rewrite
from weft.passes.capabilities import Capabilities
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Reshape, Transpose
from weft_ops.shapes import product
from weft_ops.window import AveragePool, MaxPool, Pool
from weft_ops.winograd import POINTS, TAPS, WinogradConv, taps_matrix, transform_weights

DEFINITION = "definition"
BY_AXES = "by_axes"
STRIDED = 2.0
"""What an element costs that is read with a stride along the contiguous axis, of one that is not."""
GAIN = 0.7
"""Part of the cost of whole windows below which windows of one axis at a time are taken, if they cost no more either
where channels are contiguous."""


def choose_algorithms(graph: Graph, capabilities: Capabilities, choices: Choices | None = None) -> Graph:
    """Afterwards a convolution that the target computes faster by Winograd's algorithm is a WinogradConv with its
    weights transformed, and a pool of large windows is one pool for each axis.

    The channels of a WinogradConv stand together by the target's `channel_block`; without one each stands alone.
    """
    made = Choices() if choices is None else choices
    if capabilities.winograd is not None:
        graph = rewrite(
            graph, _winograd(capabilities.winograd, capabilities.channel_block or 1, made), rounds=1, on=(Conv,)
        )
    by_axes = _by_axes(capabilities.store_cost, made)
    return rewrite(graph, by_axes, rounds=1, on=(MaxPool, AveragePool))


def _by_axes(store_cost: float, made: Choices) -> Rule:
    """The rule for pools: neighbouring windows share the greatest elements, or means, of their columns. Greatest
    elements are the same, means of means but for rounding, since a window has as many elements along one axis wherever
    it is along the others. The outermost axis comes first: along it no vector has a stride."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        op, (x,) = node.op, inputs
        assert isinstance(op, Pool) and x is not None
        if type(op) is not MaxPool and (type(op) is not AveragePool or x.dtype not in (float32, float64)):
            return None  # the place of the greatest element is wanted as well, or means would be rounded twice
        wide = [k for k, n in enumerate(op.kernel) if n > 1]
        if len(wide) < 2:
            return None
        thin = [k for k, n in enumerate(op.kernel) if n == 1]
        groups = [(wide[0], *thin), *((k,) for k in wide[1:])]
        strided_cost, plain_cost = (
            _cost_of_groups(op, groups, strided, store_cost) / _cost_of_windows(op, strided)
            for strided in (STRIDED, 1.0)
        )
        default = BY_AXES if strided_cost <= GAIN and plain_cost <= 1 else DEFINITION
        if made.choose(f"algorithm.%{node.output.name}", [DEFINITION, BY_AXES], default) == DEFINITION:
            return None
        value = x
        for axes in groups:
            value = r.add(op.along(axes), value)
        return value

    return rule


def _cost_of_windows(op: Pool, strided: float) -> float:
    """Elements that are read for one result. `strided`: the cost of one with a stride along the last axis."""
    return prod(op.kernel) * (strided if op.spatial()[0][-1] > 1 else 1.0)


def _cost_of_groups(op: Pool, groups: Sequence[tuple[int, ...]], strided: float, store_cost: float) -> float:
    """The same of one pool along each group of axes, for one result of the last of them."""
    strides, total, results = op.spatial()[0], 0.0, 1
    for k, axes in enumerate(reversed(groups)):
        last = len(strides) - 1
        read = prod(op.kernel[a] for a in axes) * (strided if last in axes and strides[last] > 1 else 1.0)
        total += results * (read + (store_cost if k else 0.0))
        results *= prod(strides[a] for a in axes)
    return total


def _winograd(choose: Callable[[Node], tuple[int, bool] | None], block: int, made: Choices) -> Rule:
    """The rule for convolutions."""
    transformed: dict[tuple[int, int], Value] = {}

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if not may_be_winograd(node, block):
            return None
        best = choose(node)
        if best is None and not all(isinstance(d, int) for d in node.output.shape[2:]):
            return None  # whether the target has a schedule for tiles of open sizes is its own to say, not a record's
        chosen = _chosen(node, best, made)
        if chosen is None:
            return None
        m, skip = chosen
        x, w = inputs
        assert x is not None and w is not None and isinstance(node.op, Conv)
        key = id(w if w.constant is None else w.constant), m
        if key not in transformed:
            transformed[key] = (
                _transformed(r, w, m) if w.constant is None else r.constant(transform_weights(w.constant, m), w.name)
            )
        return r.add(WinogradConv(m, node.op.pads, block, skip), x, transformed[key])

    return rule


def _transformed(r: Rewriter, w: Value, m: int) -> Value:
    """What `transform_weights` gives, of weights that a run gives: a product with a constant matrix, in float32."""
    out, inner = w.shape[:2]
    taps = r.add(Reshape((product((out, inner)), TAPS * TAPS)), w)
    matrix = r.constant(np.ascontiguousarray(taps_matrix(m).T.astype(w.dtype.numpy)), "taps")
    points = r.add(MatMul(), taps, matrix)
    return r.add(Transpose((2, 1, 0)), r.add(Reshape((out, inner, matrix.shape[1])), points), name=w.name)


def _chosen(node: Node, best: tuple[int, bool] | None, choices: Choices) -> tuple[int, bool] | None:
    """Tile and `skip` of the WinogradConv that computes a convolution, None for its definition: what the target
    prefers, or a record."""
    options: dict[str, tuple[int, bool] | None] = {DEFINITION: None}
    for m in POINTS:
        options |= {f"winograd_{m}": (m, False), f"winograd_{m}_skip": (m, True)}
    if best not in options.values():
        sizes = ", ".join(map(str, POINTS))
        what = f"the target requests tiles of Winograd's algorithm of {best}"
        hint = f"`Capabilities.winograd` gives one of {sizes} and whether to skip products, or None"
        raise GraphError(what, where=repr(node), hint=hint)
    default = next(name for name, option in options.items() if option == best)

    def refuse(name: str) -> str | None:
        option = options[name]
        if option is None or not option[1] or name == default:  # what the target wants is computed as it wants it
            return None
        sizes = [d for d in node.output.shape[2:] if isinstance(d, int)]
        if any(WinogradConv(option[0], skip=True).spared(*sizes)):
            return None
        return "no row or column of tiles reaches so far beyond the result that products could be skipped"

    return options[choices.choose(f"algorithm.%{node.output.name}", list(options), default, refuse)]


def may_be_winograd(node: Node, block: int) -> bool:
    """Whether a node is a float32 convolution with 3×3 taps, stride 1 and whole channel blocks."""
    op = node.op
    if not isinstance(op, Conv) or op.groups != 1 or op.dtype is not None:
        return False
    x, w = node.inputs
    if x is None or w is None or not isinstance(x.type, TensorType) or x.dtype != float32 or w.dtype != float32:
        return False
    if w.shape[2:] != (TAPS, TAPS) or any(not isinstance(n, int) or not n or n % block for n in w.shape[:2]):
        return False
    strides, pads, dilations = op.spatial(2)
    return bool(np.all(np.array([*strides, *dilations]) == 1)) and all(p >= 0 for pair in pads for p in pair)
