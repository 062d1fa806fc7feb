"""Lowers Blocks: iterators become their bindings, predicates become If."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Expr, all_of, eq
from weft.loop.nodes import Block, Evaluate, Program, Stmt, seq, transform_stmts
from weft.loop.passes.copies import copy_stmt, if_stmt, rewrite


def lower_blocks(program: Program) -> Program:
    """Replaces every block by its body; the init of an undecomposed reduction runs where all reduce iterators are 0."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block):
            return None
        values: dict[str, Expr] = {i.var.name: b for i, b in zip(stmt.iters, stmt.bindings)}
        body = stmt.body
        init = stmt.init
        if (
            stmt.reads is not None
        ):  # what is begun and awaited, or works on memory that threads share, says where it stays in it
            if isinstance(body, Evaluate):
                body = replace(body, within=tuple(dict.fromkeys((*stmt.reads, *(stmt.writes or ())))))
            if isinstance(init, Evaluate):
                init = replace(init, within=stmt.writes or ())
        body = copy_stmt(body, values, None)
        if init is not None:
            first = all_of(eq(values[i.var.name], 0) for i in stmt.iters if i.kind == "reduce")
            body = seq(if_stmt(first, copy_stmt(init, values, None)), body)
        return if_stmt(rewrite(stmt.predicate, values, {}), body)

    return program.with_body(transform_stmts(program.body, rule))
