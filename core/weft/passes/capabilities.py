"""What graph passes may assume of a target. compile.py builds it from the hooks; passes call no hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.dtypes import DType
from weft.graph.layout import Layout, Split
from weft.graph.nodes import Node, TensorType

# Stands in an offer for "as it comes": reading the operand costs the same in any layout.
ANY = Layout((Split(0, 1),))


@dataclass(frozen=True)
class LayoutOffer:
    """One way in which a target computes a node: how it wants the inputs stored and how it stores the outputs.

    Args:
        inputs: one layout per operand (None: row-major, and absent operands; ANY: as it comes).
        outputs: one layout per output.
        cost: of the node computed this way, in bytes of memory moved meanwhile; row-major everywhere is possible at 0, unless one of the offers says `only`.
        only: the target cannot compute the node row-major everywhere: it gets one of its offers, whatever conversions cost.
    """

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout | None, ...]
    cost: float = 0.0
    only: bool = False

    def fits(self, node: Node) -> bool:
        """Whether values of a node are stored as the offer has it."""
        return all(
            w is ANY or v is None or not isinstance(v.type, TensorType) or v.type.layout == w
            for v, w in zip((*node.inputs, *node.outputs), (*self.inputs, *self.outputs))
        )


LayoutRule: TypeAlias = "Callable[[Node], list[LayoutOffer]]"


@dataclass(frozen=True)
class DotProduct:
    """A sum of `depth` products of neighbouring elements, which a target computes in every lane: c[j] + Σ_k a[k]·b[j, k].

    Args:
        left, right: dtypes of a and of b.
        result: of c, in which products and sums are taken; integers wrap.
    """

    left: DType
    right: DType
    result: DType
    depth: int


# Composites whose whole decomposition becomes one Program: a schedule library takes them as one kernel.
CLAIMED = frozenset({"Softmax", "LogSoftmax", "LayerNorm", "RMSNorm", "ScaledDotProductAttention"})


@dataclass(frozen=True)
class Capabilities:
    """See the module.

    Args:
        claims: composites that stay whole, by `Operator.operator_name`.
        channel_block: channels of a blocked activation layout (vector lanes); None: all row-major.
        panel: columns of a packed constant matrix; None: not packed.
        layouts: `Operator.operator_name` → its offers, best first; by default those of `layout_offers`.
        max_group: most nodes in a group.
        precision: the narrower float to which constant weights of contractions are rounded; None: as they are.
        dots: dot products that schedules know to use, the best first: products and convolutions of integers are put in terms of them, and with
            `precision` those of floats, whose activations are rounded, too. They are a MatMul or Conv of the dot product's dtypes, with constant weights,
            zero points outside of the sum, and a sum filled up with zeros to whole dot products, two at least. With `panel` and `channel_block` operands
            are packed for it; without they are row-major.
        winograd: of a 3×3 convolution, the tile and `skip` of a WinogradConv that beats the definition, or None; its channels stand together by
            `channel_block`, each alone if that is None.
        doubles: float64 takes no more than twice as long as float32: quantised sums are scaled in it.
        bytes_per_flop: bytes that are stored in another layout in the time of one FLOP
            (`Machine.bytes_per_flop`): layouts are weighed by it.
    """

    claims: frozenset[str] = CLAIMED
    channel_block: int | None = None
    panel: int | None = None
    layouts: Mapping[str, LayoutRule] | None = field(default=None, compare=False)
    max_group: int = 64
    precision: DType | None = None
    winograd: Callable[[Node], tuple[int, bool] | None] | None = field(default=None, compare=False)
    dots: tuple[DotProduct, ...] = ()
    doubles: bool = False
    bytes_per_flop: float = 1 / 8
