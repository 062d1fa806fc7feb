"""Assumptions of graph passes about a target. `weft.compilation` makes them from the hooks; passes call no hook."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.dtypes import DType
from weft.graph.layout import Layout, Split
from weft.graph.nodes import Node, TensorType
from weft.graph.operator import Operator
from weft.rates import Rates

# Stands in an offer for "as it comes": reading the operand costs the same in any layout.
ANY = Layout((Split(0, 1),))
"""In a LayoutOffer, "any layout": reading the operand costs the same in each."""


@dataclass(frozen=True)
class LayoutOffer:
    """One way in which a target computes a node: the layouts of its inputs and outputs.

    Args:
        inputs: one layout per operand (None: row-major, and absent operands; ANY: any layout).
        outputs: one layout per output.
        cost: seconds that the node takes longer in these layouts than row-major; negative if it is faster. Row-major
            costs 0 and is possible unless one of the offers states `only`. Conversions are added to it.
        only: the target cannot compute the node with all operands row-major: it gets one of its offers, whatever the
            cost of conversions.
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
"""Node → the combinations of layouts in which a target can compute it; none: row-major only."""


@dataclass(frozen=True)
class DotProduct:
    """A sum of `depth` products of neighbouring elements in every lane: c[j] + Σ_k a[k]·b[j,
    k].

    Args:
        left, right: dtypes of a and of b.
        result: of c, in which products and sums are taken; integers wrap.
    """

    left: DType
    right: DType
    result: DType
    depth: int


Claims: TypeAlias = "Collection[type[Operator] | str]"
"""Composites that a target computes itself, by class or, deprecated, by name."""

CLAIMED: frozenset[type[Operator] | str] = frozenset({Operator})
"""Composites whose whole decomposition becomes one Program, as schedule libraries take them: `Operator` stands for all
whose class says `stays_whole`."""


def is_claimed(kind: type[Operator], claims: Claims) -> bool:
    """Whether composites of a class stay whole."""
    return kind in claims or (kind.stays_whole and Operator in claims) or kind.operator_name in claims


def layout_rule(kind: type[Operator], layouts: Mapping[type[Operator] | str, LayoutRule] | None) -> LayoutRule | None:
    """What says how operators of a class may be laid out."""
    return (layouts or {}).get(kind) or (layouts or {}).get(kind.operator_name)


def warn_of_names(
    claims: Claims, layouts: Mapping[type[Operator] | str, LayoutRule] | None, stacklevel: int = 2
) -> None:
    """Says that operators are given by their names, which others may have as well."""
    names = sorted(n for n in (*claims, *(layouts or ())) if isinstance(n, str))
    if names:
        said = (
            f"operators are claimed, and have their layouts, by class: give the classes {', '.join(names)}, not their"
            " names"
        )
        warnings.warn(said, DeprecationWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class Capabilities:
    """See the module.

    Args:
        claims: classes of composites that stay whole. By default those that say `stays_whole`.
        channel_block: channels of a blocked activation layout (vector lanes); None: all row-major.
        panel: columns of a packed constant matrix; None: not packed.
        layouts: class of operators → the offers for a node of this class, best first; by default those of
            `layout_offers`, by `Operator.layout_role`.
        max_group: most nodes in a group.
        precision: the narrower float to which constant weights of contractions are rounded; None: as they are.
        dots: dot products that schedules know to use, the best first: products and convolutions of integers are put in
            terms of them, and with `precision` those of floats, whose activations are rounded, too. They are a MatMul
            or Conv of the dot product's dtypes, with constant weights, zero points outside of the sum, and a sum filled
            up with zeros to whole dot products, two at least. With `panel` and `channel_block` operands are packed for
            it; without they are row-major.
        winograd: of a 3×3 convolution, the tile and `skip` of a WinogradConv that beats the definition, or None; its
            channels stand together by `channel_block`, each alone if that is None. Height and width of the picture may
            be formulas: None where no schedule of the target takes those.
        store_cost: elements of a pool's window that are read in the time in which a result is stored and read again:
            tells whether a pool is computed along one axis after another.
        doubles: float64 takes no more than twice as long as float32: quantised sums are scaled in it.
        narrow_results: memory is what is short: what follows an anchor in its group ends where its result is narrowest,
            and conversions to wider types belong to what reads it.
        bytes_per_flop: bytes that are stored in another layout in the time of one FLOP
            (`Machine.bytes_per_flop`).
        relayout_bytes_per_second: bytes that are stored in another layout in a second (`Machine.rates`): what a
            conversion takes, which is weighed against the costs of layouts.
    """

    claims: frozenset[type[Operator] | str] = CLAIMED
    channel_block: int | None = None
    panel: int | None = None
    layouts: Mapping[type[Operator] | str, LayoutRule] | None = field(default=None, compare=False)
    max_group: int = 64
    precision: DType | None = None
    winograd: Callable[[Node], tuple[int, bool] | None] | None = field(default=None, compare=False)
    dots: tuple[DotProduct, ...] = ()
    store_cost: float = 4.0
    doubles: bool = False
    narrow_results: bool = False
    bytes_per_flop: float = 1 / 8
    relayout_bytes_per_second: float = Rates.relayout_bytes_per_second

    def __post_init__(self) -> None:
        warn_of_names(self.claims, self.layouts, stacklevel=3)

    @property
    def flop_seconds(self) -> float:
        """Seconds of one FLOP, as default layouts count it."""
        return self.bytes_per_flop / self.relayout_bytes_per_second
