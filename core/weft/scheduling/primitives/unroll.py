"""unroll: writes out the iterations of a loop."""

from __future__ import annotations

from weft.loop.nodes import Program
from weft.scheduling.loop_kinds import constant_extent, serial_loop, with_kind
from weft.scheduling.tree import Tree


def unroll(program: Program, loop: str) -> tuple[Program, None]:
    """Writes out every iteration.

    for i in 4 { … }  →  for i in 4 unrolled { … }
    """
    tree = Tree(program)
    constant_extent(tree, serial_loop(tree, loop, "unroll"), "unroll")
    return with_kind(tree, loop, "unroll", "unrolled"), None
