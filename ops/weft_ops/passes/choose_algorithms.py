"""Decides which algorithm computes an operator, where another than its definition may be faster on the target."""

from __future__ import annotations

import numpy as np

from weft.choices import Choices
from weft.dtypes import float32
from weft.errors import GraphError
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.capabilities import Capabilities
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Reshape, Transpose
from weft_ops.shapes import product
from weft_ops.winograd import POINTS, TAPS, WinogradConv, taps_matrix, transform_weights

DEFINITION = "definition"


def choose_algorithms(graph: Graph, capabilities: Capabilities, choices: Choices | None = None) -> Graph:
    """Afterwards a convolution that the target computes faster by Winograd's algorithm is a WinogradConv with its
    weights transformed.

    Its channels stand together by the target's `channel_block`; without one each stands alone.
    """
    choose, block = capabilities.winograd, capabilities.channel_block or 1
    if choose is None:
        return graph
    made = Choices() if choices is None else choices
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

    return rewrite(graph, rule, rounds=1, on=(Conv,))


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
