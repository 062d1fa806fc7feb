"""Common parts of the primitives that set the kind of a loop: find the loop, check its iterations, set the kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.loop.nodes import For, LoopKind, Program, int_const
from weft.scheduling.dependence import carried
from weft.scheduling.tree import Tree


def serial_loop(tree: Tree, loop: str, step: str) -> For:
    """The loop, if nothing was decided about it yet."""
    f = tree.loop(loop, step)
    if f.kind != "serial":
        raise tree.error(step, f"loop '{loop}' is {f.kind} already", {loop: f.kind})
    return f


def constant_extent(tree: Tree, f: For, step: str) -> None:
    if int_const(f.extent) is None:
        name = f.var.name
        raise tree.error(
            step,
            f"the extent {f.extent} of loop '{name}' is not a constant",
            (name,),
            f"split it first: split('{name}', [None, 8])",
        )


def independent(tree: Tree, loop: str, step: str, ignore_scopes: Iterable[str] = ()) -> None:
    reason = carried(tree, loop, step, ignore_scopes)
    if reason is not None:
        hint = (
            "rfactor the reduction, or choose a spatial loop"
            if "reduce" in reason[0]
            else "compact_buffer gives each iteration a buffer of its own"
        )
        raise tree.error(step, f"the iterations of '{loop}' are not independent: {reason[0]}", (loop, reason[1]), hint)


def with_kind(tree: Tree, loop: str, step: str, kind: LoopKind) -> Program:
    path = tree.loop_path(loop, step)
    f = path[-1]
    assert isinstance(f, For)
    return tree.replace(path, replace(f, kind=kind))


def still_independent(program: Program, block: str, step: str) -> None:
    """Checks the loops around `block` whose iterations run at once, after it moved under them."""
    tree = Tree(program)
    for f in tree.loops_around(block):
        if f.kind in ("serial", "unrolled"):
            continue
        reason = carried(tree, f.var.name, step, ("shared",) if f.kind.startswith("threadIdx") else ())
        if reason is not None:
            why = f"the iterations of {f.kind} loop '{f.var.name}' would not be independent: {reason[0]}"
            raise tree.error(
                step,
                why,
                (f.var.name, reason[1]),
                f"move '{block}' first, compact_buffer next, and decide about '{f.var.name}' last",
            )
