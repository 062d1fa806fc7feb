"""The core's own contributions, through the same hooks as everybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.hooks import hookimpl

if TYPE_CHECKING:
    from weft.graph.operator import Operator


@hookimpl
def operators() -> Sequence[type[Operator]]:
    from weft.graph.control import If, Loop
    from weft.graph.host import HostIdentity
    from weft.graph.identity import Identity, Require

    return [Identity, Require, HostIdentity, If, Loop]
