"""The operator library as a plugin: its operators, and the graph passes that know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.operator import Operator
    from weft.passes.pipeline import GraphPass


@hookimpl
def operators() -> Sequence[type[Operator]]:
    from weft_ops import HOST_OPERATORS, NUMERIC_OPERATORS

    return [*NUMERIC_OPERATORS, *HOST_OPERATORS]


@hookimpl
def graph_passes() -> Sequence[GraphPass]:
    from weft_ops.passes.order import PASSES

    return PASSES
