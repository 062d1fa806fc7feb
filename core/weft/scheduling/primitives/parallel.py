"""parallel: runs iterations on threads."""

from __future__ import annotations

from weft.loop.nodes import Program
from weft.scheduling.loop_kinds import independent, serial_loop, with_kind
from weft.scheduling.tree import Tree


def parallel(program: Program, loop: str) -> tuple[Program, None]:
    """Runs the iterations on threads; they must be independent.

    for i in n { … }  →  for i in n parallel { … }
    """
    tree = Tree(program)
    serial_loop(tree, loop, "parallel")
    independent(tree, loop, "parallel")
    return with_kind(tree, loop, "parallel", "parallel"), None
