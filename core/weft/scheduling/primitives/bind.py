"""bind: runs iterations on the groups and threads of a grid, or on the units of a level of the machine."""

from __future__ import annotations

from weft.loop.nodes import UNIT, For, LoopKind, Program, level_of, walk_stmts
from weft.scheduling.loop_kinds import constant_extent, independent, serial_loop, with_kind
from weft.scheduling.tree import Tree

AXES: tuple[LoopKind, ...] = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")


def bind(program: Program, loop: str, axis: LoopKind) -> tuple[Program, None]:
    """Each iteration is one block or thread of the grid; threads may communicate through buffers of scope "shared".
    With `unit.NAME`, each is one unit of the machine's level NAME, for example one of several matrix arrays: the number
    of iterations is a constant.

    for i in 64 { … }  →  for i in 64 threadIdx.x { … }

    The iterations of a parallel loop are proved independent: its parts may be bound although their formulas no longer
    show it.
    """
    tree = Tree(program)
    if axis not in AXES and level_of(axis) is None:
        raise tree.error("bind", f"there is no axis '{axis}'", (loop,), "one of " + ", ".join([*AXES, f"{UNIT}NAME"]))
    proved = tree.loop(loop, "bind").kind == "parallel"
    f = tree.loop(loop, "bind") if proved else serial_loop(tree, loop, "bind")
    others = [
        s for s in (*tree.loop_path(loop, "bind")[:-1], *walk_stmts(f.body)) if isinstance(s, For) and s.kind == axis
    ]
    if others:
        other = others[0].var.name
        raise tree.error(
            "bind",
            f"{axis} is taken by loop '{other}' of the same nest",
            {loop: "here", other: axis},
            "fuse the two, or choose another axis",
        )
    if level_of(axis) is not None:
        constant_extent(tree, f, "bind")
    if not proved:
        independent(tree, loop, "bind", ("shared",) if axis.startswith("threadIdx") else ())
    return with_kind(tree, loop, "bind", axis), None
