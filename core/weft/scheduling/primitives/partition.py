"""partition: divides the iterations of a loop into consecutive parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from weft import dtypes as dt
from weft.expr.nodes import Const, Expr, Var, const, substitute
from weft.loop.nodes import Allocate, Block, For, If, Program, Stmt, int_const, seq, stmt_children, with_stmt_children
from weft.loop.passes.copies import Names, copy_stmt
from weft.scheduling.loop_kinds import constant_extent, serial_loop
from weft.scheduling.rewrite import clean, domain, rewrite_loops
from weft.scheduling.tree import Tree, conjuncts


def partition(program: Program, loop: str, points: Sequence[int]) -> tuple[Program, list[str]]:
    """Divides a loop into consecutive loops that begin at 0 and at each of the points. Returns their names.

        for i in 58 { block C(bi: 58 = i) where 1 <= i { … } }
        → partition("i", [1]) → ["i_1"]
        for i_1 in 57 { block C(bi: 58 = i_1 + 1) { … } }

    In each part, conditions that are always true are removed, and so are blocks without iterations; an empty part has
    no loop. A border is thereby separated from the interior, which needs no condition. The first remaining part keeps
    the names of blocks and buffers, the others get new ones.
    """
    step = "partition"
    tree = Tree(program)
    f = serial_loop(tree, loop, step)
    constant_extent(tree, f, step)
    size, path = int_const(f.extent) or 0, tree.loop_path(loop, step)
    ends = [0, *points, size]
    if not points or any(a >= b for a, b in pairwise(ends)):
        raise tree.error(
            step,
            f"the points {list(points)} do not cut {size} iterations into parts",
            {loop: f"{size} iterations"},
            "give rising points inside",
        )
    outer = domain(path[:-1])
    parts: list[Stmt] = []
    names: list[str] = []
    taken = Names(tree.names)
    for first, end in pairwise(ends):
        v = Var(tree.fresh(loop), dt.int64)
        loops: dict[str, Expr] = {**outer, v.name: const(end - first)}
        body = rewrite_loops(f.body, {loop: clean(v + first, loops)}, loops)
        left = _pruned(body, loops)
        if left is None:
            tree.names.discard(v.name)
            continue
        if parts:
            taken.used |= tree.names
            left = copy_stmt(left, {}, taken)
            tree.names |= taken.used
        parts.append(replace(f, var=v, extent=const(end - first), body=left))
        names.append(v.name)
    if not parts:
        raise tree.error(step, f"no block in loop '{loop}' has an iteration", (loop,))
    return tree.replace(path, seq(*parts)), names


def _pruned(s: Stmt, loops: dict[str, Expr]) -> Stmt | None:
    """The statement without blocks that do nothing, and without what held them alone."""
    if isinstance(s, Block):
        return None if _idle(s, loops) else s
    if isinstance(s, For):
        loops = {**loops, s.var.name: s.extent}
    if isinstance(s, If) and isinstance(s.cond, Const) and not s.cond.value and s.orelse is None:
        return None
    children = stmt_children(s)
    if not children:
        return s
    new = [_pruned(c, loops) for c in children]
    kept = [c for c in new if c is not None]
    if not kept:
        return None
    if len(children) > 1 and not isinstance(s, If):
        return seq(*kept)
    if any(c is None for c in new):
        return s  # an If with one side
    if isinstance(s, Allocate) and not any(s.buffer.name in str(c) for c in kept):
        return kept[0]
    return with_stmt_children(s, tuple(kept))


def _idle(b: Block, loops: dict[str, Expr]) -> bool:
    """Whether a block's conditions fail in every iteration for certain."""
    values = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    asked = conjuncts(b.predicate)
    if b.init is None and b.writes is None and isinstance(b.body, If) and b.body.orelse is None:
        asked += conjuncts(b.body.cond)
    return any(clean(substitute(c, values), loops) == Const(False, dt.bool_) for c in asked)
