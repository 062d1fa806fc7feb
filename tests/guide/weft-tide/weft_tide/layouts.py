"""How operands have to lie: weights in panels of 32 columns, which an instruction reads as they are; pictures with
channels innermost."""

from __future__ import annotations

from collections.abc import Mapping

from weft.graph.layout import Layout, Permute, Split, blocked
from weft.graph.nodes import Node, Value
from weft.graph.operator import Operator
from weft.passes.capabilities import LayoutOffer, LayoutRule
from weft_ops import Conv, MatMul

from weft_tide.instructions import COLUMNS, PAIRS, STEP

PANELS = Layout((Split(0, STEP), Split(2, COLUMNS), Permute((2, 0, 3, 1))))
"""[terms, columns] as [columns / 32, terms / 8, 32, 8]."""
CHANNELS = blocked(4, 1, STEP)
"""[pictures, channels, height, width] as [pictures, channels / 8, height, width, 8]."""
CHANNELS_LAST = Layout((Permute((0, 2, 3, 1)),))


def of_matmul(node: Node) -> list[LayoutOffer]:
    """Constant weights of whole steps lie in panels."""
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None and right is not None
    if right.constant is None or len(right.shape) != 2 or len(left.shape) < 2:
        return []
    terms = right.shape[0]
    if not isinstance(terms, int) or terms % STEP or left.shape[-2] == 1 or right.dtype not in [p[1] for p in PAIRS.values()]:
        return []
    if all(terms // STEP % n for n in range(3, 17)) and terms // STEP > 16:
        return []  # no tile of whole steps
    return [LayoutOffer((None, PANELS), (None,), cost=-1e-9)]


def of_conv(node: Node) -> list[LayoutOffer]:
    """The arrays take pictures with channels innermost, and no others: row-major is impossible."""
    picture, weights = node.inputs[0], node.inputs[1]
    assert picture is not None and weights is not None
    if len(picture.shape) != 4 or getattr(node.op, "groups", 1) != 1:
        return []  # one value in a step: the scalar core's, or gathered as it comes
    return [LayoutOffer((_innermost(picture), *(None for _ in node.inputs[1:])), (_innermost(node.output),), only=True)]


def _innermost(picture: Value) -> Layout:
    """Eights of channels, or all of them where the last eight is not whole: padding would be a condition in every
    sum."""
    channels = picture.shape[1]
    return CHANNELS if isinstance(channels, int) and channels % STEP == 0 else CHANNELS_LAST


LAYOUTS: Mapping[type[Operator] | str, LayoutRule] = {MatMul: of_matmul, Conv: of_conv}
