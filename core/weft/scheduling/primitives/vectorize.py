"""vectorize: makes iterations the lanes of vectors."""

from __future__ import annotations

from weft.loop.nodes import Program
from weft.scheduling.loop_kinds import constant_extent, independent, serial_loop, with_kind
from weft.scheduling.tree import Tree


def vectorize(program: Program, loop: str) -> tuple[Program, None]:
    """Runs the iterations as lanes of vectors; they must be independent, and their number constant.

    for j in 16 { … }  →  for j in 16 vectorized { … }
    """
    tree = Tree(program)
    constant_extent(tree, serial_loop(tree, loop, "vectorize"), "vectorize")
    independent(tree, loop, "vectorize")
    return with_kind(tree, loop, "vectorize", "vectorized"), None
