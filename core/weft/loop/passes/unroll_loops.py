"""Writes out unrolled loops: the body once per iteration."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Const, Expr
from weft.loop.nodes import For, Program, Seq, Stmt, int_const, seq, stmt_children, walk_stmts, with_stmt_children
from weft.loop.passes.copies import Names, copy_stmt
from weft.loop.passes.simplify import decide_conditions


def unroll_loops(program: Program) -> Program:
    """Copies the bodies of unrolled loops, binders renamed. A loop whose extent is not constant becomes serial and says
    so in its annotations."""
    if not any(isinstance(s, For) and s.kind == "unrolled" for s in walk_stmts(program.body)):
        return program
    names = Names.of(program)

    def outside(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind == "unrolled":
            if int_const(stmt.extent) is None:
                return outside(
                    replace(
                        stmt,
                        kind="serial",
                        annotations=(
                            *stmt.annotations,
                            ("unroll_declined", f"the extent {stmt.extent} is not constant"),
                        ),
                    )
                )
            return seq(*copies(stmt, {}, True))
        children = stmt_children(stmt)
        if not children:
            return stmt
        new = tuple(outside(c) for c in children)
        return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt

    def copies(loop: For, values: dict[str, Expr], first: bool) -> list[Stmt]:
        # Nested unrolled loops share one rewriting of each copy: a statement is rewritten once per copy, not once per
        # loop.
        n = int_const(loop.extent)
        assert n is not None
        parts = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
        nested = all(isinstance(s, For) and s.kind == "unrolled" and int_const(s.extent) is not None for s in parts)
        result: list[Stmt] = []
        for i in range(n):
            inside = {**values, loop.var.name: Const(i, loop.var.dtype)}
            keep = first and i == 0  # the very first copy keeps the names
            if nested:
                for part in parts:
                    assert isinstance(part, For)
                    result.extend(copies(part, inside, keep))
            else:
                result.append(outside(copy_stmt(loop.body, inside, None if keep else names)))
        return result

    # What was open while the variable ran may be decided in a copy: a pixel inside the image needs no guard.
    return decide_conditions(program.with_body(outside(program.body)))
