"""serpentine: traverses a loop forwards and backwards in turns."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Expr, eq, floormod, free_vars, select, substitute
from weft.loop.nodes import Block, Program, Stmt, int_const, map_stmt_exprs, stmt_children, with_stmt_children
from weft.scheduling.loop_kinds import independent
from weft.scheduling.tree import Tree, blocks_in


def serpentine(program: Program, loop: str, over: str, parts: int = 1) -> tuple[Program, None]:
    """Serpentine order: every second iteration of loop `over` runs `loop` backwards. It begins with the data that the
    iteration before used last, which is still in a cache.

        for t in 8 { for p in 6 { block A(u: scan 8 = t, v: 6 = p) { … } } }
        → serpentine("p", "t", 2)
        for t in 8 { for p in 6 { block A(u: scan 8 = t, v: 6 = select(t % 2 == 0, p, p + 2 - p % 3*2)) { … } } }

    The iterations of `loop` must be independent, and no block under it may have a condition on it.

    Args:
        parts: equal parts of `loop`, each of which is reversed by itself, so that it keeps its elements: one for each
            thread.
    """
    step = "serpentine"
    tree = Tree(program)
    path, f, outer = tree.loop_path(loop, step), tree.loop(loop, step), tree.loop(over, step)
    if not any(s is outer for s in path[:-1]):
        raise tree.error(step, f"loop '{loop}' is not under '{over}'", (loop, over))
    n = int_const(f.extent)
    if n is None:
        raise tree.error(step, f"the extent {f.extent} of '{loop}' is not constant", (loop,))
    if parts < 1 or n % parts:
        raise tree.error(step, f"'{loop}' has no {parts} equal parts", (loop,))
    independent(tree, loop, step)
    for b in blocks_in(f.body):
        if loop in free_vars(b.predicate):
            raise tree.error(
                step, f"'{b.name}' runs only where {b.predicate}", (loop, b.name), "pad_loop, or split into whole tiles"
            )
    size = n // parts
    there = select(eq(floormod(outer.var, 2), 0), f.var, f.var + (size - 1) - floormod(f.var, size) * 2)
    body = _substitute(f.body, {loop: there})
    return tree.replace(path, replace(f, body=body)), None


def _substitute(body: Stmt, values: dict[str, Expr]) -> Stmt:
    """`body` with loop variables replaced, which reach blocks through their bindings."""
    body = map_stmt_exprs(body, lambda e: substitute(e, values))
    children = () if isinstance(body, Block) else stmt_children(body)
    return with_stmt_children(body, tuple(_substitute(c, values) for c in children)) if children else body
