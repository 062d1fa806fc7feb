"""Default layout offers per operator for vector machines: channels in blocks of vector lanes, packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, free_vars
from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import Node, TensorType, Value
from weft.graph.operator import Operator
from weft.passes.capabilities import Capabilities, DotProduct, LayoutOffer, LayoutRule
from weft.tensor.language import Dim

# Queries that make up for packing the keys that they all read.
QUERIES_TO_PACK = 8
# Input channels with those that pad the last block, over the channels: from there on rows are read as they are.
MOST_PADDED_WORK = 1.3
# Share of taps inside the picture below which weights lie tap by tap: what is skipped would leave gaps in a stream,
# which no prefetcher follows.
MOST_GAPS = 0.9
# Rows of one channel with a stride give no vector of neighbours: a convolution per channel or group runs about so many
# times as long as at stride 1.
STRIDED_ROWS = 8
# How many times as long a product of narrow operands runs without the instruction for it.
WITHOUT_DOTS = 8
# How many times as long as on blocks a convolution in groups runs on rows of single channels whose vectors are all
# full: as it is, with borders, with a stride.
GROUPED_ROWS, GROUPED_BORDERS, GROUPED_STRIDES = 1.2, 1.6, 5.0
# How many times as long as a multiply-add of other convolutions one of a depthwise convolution takes, each of which
# wants an element of its own; and how many times as long as on blocks on rows of single channels.
DEPTHWISE, DEPTHWISE_ROWS = 3, 1.6
# Bytes of a line of most caches.
LINE = 64


RuleFor: TypeAlias = "Callable[[Operator], LayoutRule | None]"


def default_rules(capabilities: Capabilities) -> RuleFor:
    """The rules for operators, by their `layout_role`, for the channel block and the panel of `capabilities`."""
    offers: dict[str, LayoutRule] = {}
    flop, preferred = capabilities.flop_seconds, -1 / capabilities.relayout_bytes_per_second
    if capabilities.channel_block is not None:
        lanes = capabilities.channel_block
        offers["convolution"] = lambda node: _conv(node, lanes, capabilities.dots, flop)
        offers["winograd"] = lambda node: winograd_offers(node, lanes, capabilities.panel or lanes, flop)
    if capabilities.panel is not None:
        width = capabilities.panel
        offers["product"] = lambda node: matmul_offers(node, width, preferred, dot_of(node, capabilities.dots))
        offers["attention"] = lambda node: attention_offers(node, width, flop)
        offers["recurrence"] = lambda node: recurrence_offers(node, width, preferred, flop)
    return lambda op: offers.get(op.layout_role)


def _conv(node: Node, lanes: int, dots: Sequence[DotProduct], flop_seconds: float) -> list[LayoutOffer]:
    dot = dot_of(node, dots)
    return conv_offers(node, lanes, flop_seconds) if dot is None else dot_conv_offers(node, lanes, dot, flop_seconds)


def conv_layout(rank: int, channels: int, groups: int, lanes: int) -> Layout:
    """[N, C, …] as N, C/v, …, C%v; where a group's channels are no whole blocks, each group has blocks of its own: N,
    G, (C/G)/v, …, (C/G)%v."""
    if groups == 1 or channels // groups % lanes == 0:
        return blocked(rank, 1, lanes)
    return Layout((Split(1, channels // groups), Split(2, lanes), Permute((0, 1, 2, *range(4, rank + 2), 3))))


def conv_weight_layout(
    rank: int, lanes: int, input_blocked: bool, depthwise: bool, taps_first: bool = False, group: int | None = None
) -> Layout:
    """[O, I, k…] as O/v, I/v, k…, I%v, O%v; I whole where the input is row-major; depthwise [C, 1, k…] as C/v, 1, k…,
    C%v.

    `taps_first`: O/v, k…, I/v, I%v, O%v. `group`: each so many output channels have blocks of their own, G, (O/G)/v, ….
    """
    if group is not None and group % lanes:
        inner = conv_weight_layout(rank, lanes, input_blocked, depthwise, taps_first)
        # The same one axis further in.
        steps = [
            Split(s.axis + 1, s.factor) if isinstance(s, Split) else Permute((0, *(k + 1 for k in s.order)))
            for s in inner.steps
        ]
        return Layout((Split(0, group), *steps))
    if depthwise or not input_blocked:
        return blocked(rank, 0, lanes)
    # After both splits the axes are O/v, O%v, I/v, I%v, k…
    if taps_first:
        return Layout((Split(0, lanes), Split(2, lanes), Permute((0, *range(4, rank + 2), 2, 3, 1))))
    return Layout((Split(0, lanes), Split(2, lanes), Permute((0, 2, *range(4, rank + 2), 3, 1))))


def conv_offers(node: Node, lanes: int, flop_seconds: float) -> list[LayoutOffer]:
    """Blocked output, of each group where its channels are no whole blocks, with blocked input or with rows as they
    are; weights packed to match, those that a run gives, as in training, by the run."""
    x, w = node.inputs[0], node.inputs[1]
    if x is None or w is None or not isinstance(x.type, TensorType):
        return []
    sizes = [d for d in w.shape if isinstance(d, int)]
    if len(sizes) < len(w.shape) or 0 in sizes:
        return []
    groups = node.op.attributes().get("groups", 1)
    oc, ic = sizes[0], x.shape[1]
    depthwise = groups == oc and ic == oc and sizes[1] == 1
    if not isinstance(ic, int):
        return []
    if depthwise:
        groups = 1
    rank, rest = x.tensor.rank, (None,) * (len(node.inputs) - 2)
    # What a convolution on rows of one channel loses of what it reaches on blocks of channels, in seconds.
    half = conv_flops(node.output, w) * flop_seconds
    rows = rows_cost(node, groups, lanes, depthwise)
    wider, longer = (-(-n // lanes) * lanes / n for n in (ic // groups, oc // groups))
    if rows + 1 - longer <= 0:
        return []
    output, group = conv_layout(rank, oc, groups, lanes), oc // groups if groups > 1 else None
    found = []
    if wider == 1 or depthwise or wider < MOST_PADDED_WORK:
        times = longer if depthwise else longer * wider if groups > 1 else longer + wider - 1
        taps_first = taps_inside(node) < MOST_GAPS
        weights = conv_weight_layout(rank, lanes, True, depthwise, taps_first, group)
        found.append(
            LayoutOffer((conv_layout(rank, ic, groups, lanes), weights, *rest), (output,), -half * (rows + 1 - times))
        )
    if not depthwise:
        # Few input channels (an image's three, a group's): rows are read as they are, blocks written.
        loss = half / 2 if wider < MOST_PADDED_WORK else 0.0
        weights = conv_weight_layout(rank, lanes, False, False, group=group)
        found.append(LayoutOffer((None, weights, *rest), (output,), loss - half * (rows + 1 - longer)))
    return found


def rows_cost(node: Node, groups: int, lanes: int, depthwise: bool = False) -> float:
    """How many times as long as on blocks a convolution runs on rows of single channels, beside the once that it takes
    on blocks."""
    attributes = node.op.attributes()
    strided, borders = any(n != 1 for n in attributes.get("strides", ())[-1:]), any(attributes.get("pads", ()))
    if groups > 1:
        times = GROUPED_STRIDES if strided else GROUPED_BORDERS if borders else GROUPED_ROWS
        return times * _partly_filled(node, lanes) - 1
    if depthwise and not strided:
        return DEPTHWISE * (DEPTHWISE_ROWS * _partly_filled(node, lanes) - 1)
    # Rows with a stride lose more than half, and so do many channels' rows with borders.
    return STRIDED_ROWS if strided or borders else 1


def _partly_filled(node: Node, lanes: int) -> float:
    """Lanes of the vectors along a convolution's rows over the elements that they compute."""
    attributes, w = node.op.attributes(), node.inputs[1]
    assert w is not None
    # One tap at stride 1 reads the rows of a picture as one long row.
    joined = not any(attributes.get("pads", ())) and all(n == 1 for n in (*attributes.get("strides", ()), *w.shape[2:]))
    sizes = node.output.shape[2:] if joined else node.output.shape[-1:]
    length = math.prod(n if isinstance(n, int) else lanes for n in sizes)
    return -(-length // lanes) * lanes / max(1, length)


def taps_inside(node: Node) -> float:
    """The share of a convolution's taps that do not fall into the padding; 1 where the picture's size is not known."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attributes, n, share = node.op.attributes(), x.tensor.rank - 2, 1.0
    strides, pads, dilations = (
        attributes.get("strides") or (1,) * n,
        attributes.get("pads") or (0,) * 2 * n,
        attributes.get("dilations") or (1,) * n,
    )
    for k, (size, taps, out) in enumerate(zip(x.shape[2:], w.shape[2:], node.output.shape[2:])):
        if not isinstance(size, int) or not isinstance(taps, int) or not isinstance(out, int) or not taps * out:
            return 1.0
        places = np.add.outer(np.arange(out) * strides[k], np.arange(taps) * dilations[k]) - pads[k]
        share *= float(np.mean((places >= 0) & (places < size)))
    return share


def conv_flops(output: Value, weights: Value) -> float:
    """Of a convolution; symbolic extents count as 64."""
    return 2.0 * math.prod(map(_size, weights.shape[1:])) * elements(output)


def winograd_offers(node: Node, lanes: int, panel: int, flop_seconds: float) -> list[LayoutOffer]:
    """Activations in blocks of channels; transformed weights in panels of output channels, of one block where panels do
    not divide them."""
    x, u = node.inputs
    if x is None or u is None or node.op.attributes()["block"] != lanes:
        return []
    inner, outputs = u.shape[1:]
    if not isinstance(inner, int) or not isinstance(outputs, int):
        return []
    activation = blocked(4, 1, lanes)
    weights = Layout((Split(2, panel if outputs % panel == 0 else lanes), Permute((2, 0, 1, 3))))
    taps = 9 * inner
    return [LayoutOffer((activation, weights), (activation,), -2.0 * taps * elements(node.output) * flop_seconds)]


def elements(value: Value) -> float:
    """How many elements a value has if each symbol is 64, as any number would do to compare."""
    total = 1.0
    for d in value.shape:
        total *= _size(d)
    return total


def _size(d: Dim) -> int:
    return d if isinstance(d, int) else _typical(d)


@lru_cache(maxsize=1 << 12)
def _typical(d: Expr) -> int:
    """A size if each symbol is 64."""
    return max(1, int(evaluate(d, dict.fromkeys(free_vars(d), 64))))


def panel_layout(panel: int) -> Layout:
    """[K, N] as N/p, K, p: a product reads p columns at a time, one row after another."""
    return Layout((Split(1, panel), Permute((1, 0, 2))))


def dot_of(node: Node, dots: Sequence[DotProduct]) -> DotProduct | None:
    """The dot product whose operands are those of a contraction with constant weights."""
    x, w = node.inputs[:2]
    if x is None or w is None or w.constant is None or not isinstance(x.type, TensorType):
        return None
    return next((d for d in dots if (x.dtype, w.dtype, node.output.dtype) == (d.left, d.right, d.result)), None)


def dot_block(channels: int, lanes: int, dot: DotProduct) -> int:
    """Channels of a block of the input of a convolution by dot products: the lanes, or fewer channels rounded up to
    whole dot products."""
    return min(lanes, -(-channels // dot.depth) * dot.depth)


def dot_panel_layout(panel: int, depth: int) -> Layout:
    """[K, N] as N/p, K/d, p, d: for each of p columns the d elements of one dot product side by side."""
    return Layout((Split(0, depth), Split(2, panel), Permute((2, 0, 3, 1))))


def dot_weight_layout(rank: int, block: int, lanes: int, depth: int) -> Layout:
    """[O, I, k…] as O/v, I/b, k…, (I%b)/d, O%v, I%d."""
    return Layout((Split(0, lanes), Split(2, block), Split(3, depth), Permute((0, 2, *range(5, rank + 3), 3, 1, 4))))


def dot_conv_offers(node: Node, lanes: int, dot: DotProduct, flop_seconds: float) -> list[LayoutOffer]:
    """Blocked input and output, weights packed for dot products over the input's channels."""
    x, w = node.inputs
    assert x is not None and w is not None
    channels, rank = x.shape[1], x.tensor.rank
    if (
        not isinstance(channels, int)
        or (channels < lanes and channels % dot.depth)
        or node.op.attributes()["groups"] != 1
        or any(node.op.attributes()["pads"])
    ):
        return []
    block = dot_block(channels, lanes, dot)
    weights = dot_weight_layout(rank, block, lanes, dot.depth)
    cost = -WITHOUT_DOTS * conv_flops(node.output, w) * flop_seconds
    return [LayoutOffer((blocked(rank, 1, block), weights), (blocked(rank, 1, lanes),), cost)]


def matmul_offers(node: Node, panel: int, preferred: float, dot: DotProduct | None = None) -> list[LayoutOffer]:
    """A constant right matrix packed in panels of columns, always better than not at a cost of `preferred` seconds."""
    a, b = node.inputs[0], node.inputs[1]
    if (
        a is None
        or b is None
        or b.constant is None
        or b.constant.ndim != 2
        or a.tensor.rank < 2
        or b.constant.shape[1] * 2 < panel
    ):
        return []
    layout = (
        panel_layout(panel) if dot is None or b.constant.shape[0] % dot.depth else dot_panel_layout(panel, dot.depth)
    )
    return [LayoutOffer((None, layout, *(None,) * (len(node.inputs) - 2)), (None,), preferred)]


def attention_offers(node: Node, panel: int, flop_seconds: float) -> list[LayoutOffer]:
    """Keys transposed in panels of keys, [..., t/p, d, p], and values in panels of columns, [..., e/p, t, p], where
    enough queries read them. Values of few columns are read as they are, unless they lie column by column."""
    q, k, v = node.inputs[:3]
    if q is None or k is None or v is None:
        return []
    rank, queries, columns = q.tensor.rank, q.shape[-2], v.shape[-1]
    if isinstance(queries, int) and queries < QUERIES_TO_PACK:
        return []
    before, last, inner = tuple(range(rank - 2)), rank - 1, rank
    keys = Layout((Split(last - 1, panel), Permute((*before, last - 1, inner, last))))
    values = None
    axes = v.producer.op.permutation(rank) if v.producer is not None else None
    turned = axes is not None and axes[-1] != last
    if isinstance(columns, int) and (turned or (columns % panel == 0 and columns > panel)):
        values = Layout((Split(last, panel), Permute((*before, last, last - 1, inner))))
    cost = -flop_seconds * elements(node.output) * elements(k)
    return [LayoutOffer((None, keys, values, *(None,) * (len(node.inputs) - 3)), (None,), cost)]


def recurrence_offers(node: Node, panel: int, preferred: float, flop_seconds: float) -> list[LayoutOffer]:
    """Recurrent weights [gates, hidden, hidden], read transposed step after step: panels of all gates of `panel` units,
    one after another, each gate by itself. With one row, whose steps read every weight once, a step of the sum has the
    gates side by side where its part of one gate is less than a line: one stream in place of a few. What a run gives,
    as in training, is packed where that is faster than to read it as it is: a vector of weights takes as many loads as
    it has elements then."""
    sums, weights = node.inputs[:2]
    if sums is None or weights is None:
        return []
    gates, part = weights.shape[0], panel * weights.dtype.bytes
    together = sums.shape[1] == 1 and part < LINE and isinstance(gates, int) and gates * part % LINE == 0
    layout = Layout((Split(1, panel), Permute((1, 3, 0, 2) if together else (1, 0, 3, 2))))
    inputs = tuple(layout if k == 1 else None for k in range(len(node.inputs)))
    products = node.op.multiply_adds(*([_size(d) for d in v.shape] for v in (sums, weights))) or 0.0
    cost = preferred if weights.constant is not None else -2.0 * panel * flop_seconds * products
    return [LayoutOffer(inputs, tuple(None for _ in node.outputs), cost)]
