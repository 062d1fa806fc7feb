"""Stores the start value of reductions without iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.expr.nodes import And, Const, Expr, Var, all_of, any_of, const, eq, free_vars, substitute
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    TRUE,
    Allocate,
    Block,
    For,
    If,
    Let,
    Program,
    Stmt,
    Store,
    seq,
    stmt_children,
    stmt_exprs,
    substitute_stmt,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names


def start_empty_reductions(program: Program) -> Program:
    """Stores the start value of every undecomposed reduction whose extent may be 0 where it is: the first step, which
    would store it, never comes.

    for i in n { for k in m { block S(si: n = i, sk: reduce m = k) init { s[si] = 0.0f32 } { … } } }
    → if m == 0 { for i_1 in n { block S_empty(si_1: n = i_1) { s[si_1] = 0.0f32 } } }   before the loop `k`, under the
        loops around it
    """
    names = Names.of(program)

    def visit(stmt: Stmt, around: tuple[For, ...]) -> tuple[Stmt, list[tuple[str, Stmt]]]:
        """The statement, and what must stand before the loop of each name around it."""
        if isinstance(stmt, Block):
            return stmt, _start(stmt, around, names)
        children, before = [], []
        for c in stmt_children(stmt):
            child, found = visit(c, (*around, stmt) if isinstance(stmt, For) else around)
            children.append(child)
            before += found
        stmt = with_stmt_children(stmt, tuple(children)) if children else stmt
        if isinstance(stmt, (Allocate, Let)):
            # A definition that the start needs holds only inside; what stands here comes before its loop all the same.
            defined = stmt.buffer.name if isinstance(stmt, Allocate) else stmt.var.name
            before = [(loop, s) for loop, s in before if not _uses(s, defined)]
        if isinstance(stmt, For):
            mine = [s for loop, s in before if loop == stmt.var.name]
            return seq(*mine, stmt), [(loop, s) for loop, s in before if loop != stmt.var.name]
        return stmt, before

    body, _ = visit(program.body, ())
    return program.with_body(body)


def _uses(stmt: Stmt, name: str) -> bool:
    for s in walk_stmts(stmt):
        if isinstance(s, Store) and s.buffer.name == name:
            return True
        if any(name in free_vars(x) for x in stmt_exprs(s)):
            return True
    return False


def _start(block: Block, around: Sequence[For], names: Names) -> list[tuple[str, Stmt]]:
    if block.init is None:
        return []
    extents = [i.extent for i in block.iters if i.kind == "reduce"]
    if all(isinstance(x, Const) and x.value > 0 for x in extents):
        return []
    loops = {f.var.name for f in around}
    reduced = {v for i, b in zip(block.iters, block.bindings) if i.kind == "reduce" for v in free_vars(b)} & loops
    spatial = {v for i, b in zip(block.iters, block.bindings) if i.kind != "reduce" for v in free_vars(b)} & loops
    first = next((k for k, f in enumerate(around) if f.var.name in reduced), None)
    if first is None or spatial & reduced:
        return []
    kept = [f for f in around[first:] if f.var.name in spatial]
    fresh = {f.var.name: Var(names.fresh(f.var.name), f.var.dtype) for f in kept}
    gone: dict[str, Expr] = {f.var.name: const(0, f.var.dtype) for f in around[first:] if f.var.name not in spatial}
    keep = [(i, b) for i, b in zip(block.iters, block.bindings) if i.kind != "reduce"]
    iters = {i.var.name: Var(names.fresh(i.var.name), i.var.dtype) for i, _ in keep}
    # What the condition says of the reduction's steps does not hold back the start.
    parts = [] if block.predicate == TRUE else [c for c in _parts(block.predicate) if not free_vars(c).keys() & reduced]
    init: Stmt = Block(
        names.fresh(f"{block.name}_empty"),
        tuple(replace(i, var=iters[i.var.name]) for i, _ in keep),
        tuple(substitute(substitute(b, gone), fresh) for _, b in keep),
        substitute_stmt(block.init, dict(iters)),
        predicate=all_of(substitute(substitute(c, gone), fresh) for c in parts),
        annotations=block.annotations,
    )
    for f in reversed(kept):
        init = For(fresh[f.var.name], substitute(f.extent, fresh), init, f.kind)
    empty = simplify(any_of(eq(x, 0) for x in extents), {})
    return [(around[first].var.name, init if empty == TRUE else If(empty, init))]


def _parts(e: Expr) -> list[Expr]:
    return [*_parts(e.a), *_parts(e.b)] if isinstance(e, And) else [e]
