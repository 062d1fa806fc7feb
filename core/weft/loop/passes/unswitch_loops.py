"""Duplicates a loop with an invariant condition, so that the condition is evaluated once, around both copies."""

from __future__ import annotations

from weft.expr.nodes import Expr, all_of, free_vars, has
from weft.loop.nodes import TRUE, For, If, Let, Load, Program, Stmt, stmt_children, walk_stmts, with_stmt_children
from weft.loop.passes.copies import Names, copy_stmt
from weft.loop.passes.partition_loops import atoms_of, conditions_in, decide
from weft.loop.passes.simplify import simplify


def unswitch_loops(program: Program) -> Program:
    """Of a loop annotated unswitch=1 the comparisons that neither vary in it nor read memory become one If around it:
    the loop without them, else as it was.

    for i in n { if k < m {…} } @ unswitch=1  →  if k < m { for i in n {…} } else { for i_1 in n { if k < m {…} } }
    """
    if not any(isinstance(s, For) and dict(s.annotations).get("unswitch") for s in walk_stmts(program.body)):
        return program
    names = Names.of(program)

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and dict(stmt.annotations).get("unswitch"):
            asked = invariant(stmt)
            if asked:
                return If(all_of(asked), decide(stmt, dict.fromkeys(asked, TRUE)), copy_stmt(stmt, {}, names))
            return stmt
        children = stmt_children(stmt)
        return with_stmt_children(stmt, tuple(visit(c) for c in children)) if children else stmt

    return simplify(program.with_body(visit(program.body)))


def invariant(loop: For) -> list[Expr]:
    """The comparisons in the loop that are the same in all its iterations, each once."""
    inside = {s.var.name for s in walk_stmts(loop) if isinstance(s, (For, Let))}
    found: dict[Expr, None] = {}
    for condition, _ in conditions_in(loop.body):
        for atom in atoms_of(condition):
            if not inside & free_vars(atom).keys() and not has(atom, Load):
                found[atom] = None
    return list(found)
