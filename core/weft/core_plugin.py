"""The core's own contributions, through the same hooks as everybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.operator import Operator


@hookimpl
def operators() -> Sequence[type[Operator]]:
    from weft.ops import ALL_OPERATORS, HOST_OPERATORS

    return [*ALL_OPERATORS, *HOST_OPERATORS]
