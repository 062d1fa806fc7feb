"""What the npu asks of graphs: convolutions without borders, whole blocks of channels, and layouts in blocks of
channels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from weft.errors import ScheduleError, WeftError
from weft.graph.group import Group, kernel_text
from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.passes.capabilities import Capabilities, LayoutOffer
from weft.passes.choose_layouts import choose_layouts
from weft.passes.fuse import fuse
from weft.passes.place import Offers, Refuse, Take
from weft.scheduling.rule import Offer, Rule, select_rule
from weft_npu.isa import TILE
from weft_npu.schedules import rules
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Pad, Slice
from weft_ops.winograd import WinogradConv

WORTH = -1.0
"""Seconds, more than any conversion takes: the matrix unit takes blocks of channels only."""


def legalize(graph: Graph) -> Graph:
    """Afterwards no convolution has borders, and sums of convolutions and products with constant weights have whole
    tiles: zeros are added before.

    Depthwise convolutions keep their channels.
    """
    return rewrite(graph, _rule)


def _rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
    if isinstance(node.op, Conv):
        return _conv(r, node, node.op, inputs)
    if isinstance(node.op, MatMul):
        return _matmul(r, node.op, inputs)
    return None


def _conv(r: Rewriter, node: Node, op: Conv, inputs: tuple[Value | None, ...]) -> Replacement:
    x, w, *rest = inputs
    if (
        x is None
        or w is None
        or w.constant is None
        or not isinstance(x.type, TensorType)
        or not all(isinstance(d, int) for d in x.shape)
    ):
        return None
    n = x.tensor.rank - 2
    pads = op.pads or (0,) * 2 * n
    missing = -int(w.constant.shape[1]) % TILE if op.groups == 1 else 0
    if all(d == 1 for d in w.shape[2:]) and any(d != 1 for d in op.strides) and not any(pads) and op.groups == 1:
        # What a window of one element skips need not be read.
        sizes = (*x.shape[:2], *node.output.shape[2:])
        x, op = r.add(Slice((0,) * len(sizes), sizes, (1, 1, *op.strides)), x), replace(op, strides=())
    if not any(pads) and not missing:
        return None if op is node.op else r.add(op, x, w, *rest)
    padded = r.add(Pad((0, 0, *pads[:n], 0, missing, *pads[n:])), x)
    weights = w
    if missing:
        more = np.pad(w.constant, [(0, 0), (0, missing), *((0, 0),) * n])
        weights = r.constant(more, w.name, like=w)
    return r.add(replace(op, pads=()), padded, weights, *rest)  # type: ignore[no-any-return]


def _matmul(r: Rewriter, op: MatMul, inputs: tuple[Value | None, ...]) -> Replacement:
    a, b, *rest = inputs
    if (
        a is None
        or b is None
        or a.tensor.rank < 2
        or b.tensor.rank < 2
        or not isinstance(a.shape[-1], int)
        or a.shape[-1] % TILE == 0
    ):
        return None
    missing = -int(a.shape[-1]) % TILE

    def longer(v: Value, axis: int) -> Value:
        pads = [missing if k == axis else 0 for k in range(v.tensor.rank)]
        if v.constant is not None:
            return r.constant(np.pad(v.constant, [(0, p) for p in pads]), v.name, like=v)
        return r.add(Pad((*(0 for _ in pads), *pads)), v)  # type: ignore[no-any-return]

    return r.add(op, longer(a, a.tensor.rank - 1), longer(b, b.tensor.rank - 2), *rest)  # type: ignore[no-any-return]


# -- layouts
# --------------------------------------------------------------------------------------------------------------


def _conv_layouts(node: Node) -> list[LayoutOffer]:
    """Channels in blocks of eight; weights as O/8, I/8, k…, I%8, O%8, those of depthwise convolutions as C/8, 1, k…,
    C%8."""
    x, w = node.inputs[:2]
    if x is None or w is None or w.constant is None or not isinstance(x.type, TensorType):
        return []
    rank, groups = x.tensor.rank, node.op.attributes()["groups"]
    channels = blocked(rank, 1, TILE)
    rest = (None,) * (len(node.inputs) - 2)
    if groups == 1:
        weights = Layout((Split(0, TILE), Split(2, TILE), Permute((0, 2, *range(4, rank + 2), 3, 1))))
    elif groups == x.shape[1] == w.shape[0]:
        weights = blocked(rank, 0, TILE)
    else:
        return []
    return [LayoutOffer((channels, weights, *rest), (channels,), WORTH)]


def _pad_layouts(node: Node) -> list[LayoutOffer]:
    """Borders and pieces of pictures in blocks of channels cost as much as in rows."""
    x = node.inputs[0]
    if x is None or x.tensor.rank < 3 or (isinstance(node.op, Pad) and node.op.mode != "constant"):
        return []
    if isinstance(node.op, Slice) and (
        node.op.starts[1] or node.op.sizes[1] != x.shape[1] or (node.op.steps or (1, 1))[1] != 1
    ):
        return []
    channels = blocked(x.tensor.rank, 1, TILE)
    return [LayoutOffer((channels, *(None,) * (len(node.inputs) - 1)), (channels,), 0.0)]


def capabilities() -> Capabilities:
    return Capabilities(claims=frozenset(), layouts={Conv: _conv_layouts, Pad: _pad_layouts, Slice: _pad_layouts})


# -- placement
# ------------------------------------------------------------------------------------------------------------


def offers(graph: Graph, machine: Machine, clock: int = 0) -> Offers:
    """Each node by itself, as the npu would compile it: taken where a rule takes every kernel that comes of it.

    `clock`: that of the npu in MHz; 0: the npu's own time costs nothing.
    """
    known: dict[str, tuple[str, str] | float] = {}
    found: list[Take | Refuse] = []
    for node in graph.nodes:
        body = _alone(node)
        text = kernel_text(body)
        if text not in known:
            known[text] = _answer(body, node, machine)
        answer = known[text]
        found.append(Refuse(node, *answer) if isinstance(answer, tuple) else Take((node,), answer if clock else 0.0))
    return found


def _answer(body: Graph, node: Node, machine: Machine) -> tuple[str, str] | float:
    """The seconds that a node takes, or code and reason why not to compute it."""
    if node.op.kind in ("composite", "control", "opaque"):
        return node.op.kind, f"{type(node.op).__name__} is no formula of its operands' elements"
    if isinstance(node.op, WinogradConv):
        return (
            "algorithm",
            (
                "the matrix unit takes convolutions by their definition; its vectors would take thousands of"
                " instructions for the transforms"
            ),
        )
    if not all(
        isinstance(v.type, TensorType) and v.dtype.name == "float32"
        for v in (*node.inputs, *node.outputs)
        if v is not None
    ):
        return "dtype", "the npu computes in float32"
    if not all(isinstance(d, int) for v in (*node.inputs, *node.outputs) if v is not None for d in v.shape):
        return "symbolic", "sizes known only at run time"
    seconds = 0.0
    try:
        grouped = fuse(choose_layouts(legalize(body), capabilities()), capabilities())
        for n in grouped.nodes:
            assert isinstance(n.op, Group)
            if not n.op.view:
                program = lower_group(n.op.body, "kernel")
                rule, _ = select_rule(_rules(), program, machine)
                offer = rule.offer(program, machine)
                assert isinstance(offer, Offer)
                seconds += offer.cost
    except ScheduleError as error:
        return "no_rule", error.why or error.what
    except WeftError as error:
        return "not_lowered", error.what
    return seconds


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(rules())


def _alone(node: Node) -> Graph:
    """A graph of one node; constants stay, as zeros: only their sizes matter."""
    inputs: dict[int, Value] = {}
    for v in node.inputs:
        if v is not None:
            data = v.constant
            if data is not None and data.size > 1:
                data = np.broadcast_to(np.zeros((), data.dtype), data.shape)
            inputs[id(v)] = Value(v.name, v.type, constant=data)
    outputs = [Value(v.name, v.type) for v in node.outputs]
    copy = Node(node.op, [None if v is None else inputs[id(v)] for v in node.inputs], outputs, node.names)
    given = [v for v in inputs.values() if v.constant is None]
    return Graph("node", given, outputs, [copy], output_names=[v.name for v in outputs])
