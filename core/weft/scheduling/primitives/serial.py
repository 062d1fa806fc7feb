"""serial: makes a parallel loop serial again."""

from __future__ import annotations

from weft.loop.nodes import Program
from weft.scheduling.loop_kinds import with_kind
from weft.scheduling.tree import Tree


def serial(program: Program, loop: str) -> tuple[Program, None]:
    """The iterations run in order, for example those of one thread of a grid after the other parts of a parallel loop
    are bound.

    for i_0 in 8 threadIdx.x { for i_1 in 4 parallel { … } }  →  for i_0 in 8 threadIdx.x { for i_1 in 4 { … } }
    """
    tree = Tree(program)
    f = tree.loop(loop, "serial")
    if f.kind not in ("serial", "parallel"):
        raise tree.error("serial", f"loop '{loop}' is {f.kind} already", {loop: f.kind})
    return with_kind(tree, loop, "serial", "serial"), None
