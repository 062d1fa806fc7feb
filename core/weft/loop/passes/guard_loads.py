"""No Load relies on a Select around it to stay in bounds: it carries the condition as its predicate."""

from __future__ import annotations

from collections.abc import Mapping

from weft.expr.nodes import Const, Expr, Select, and_, has, not_
from weft.expr.ranges import Range, range_of
from weft.loop.nodes import For, Let, Load, Program, Stmt, int_const, map_stmt_exprs, stmt_children, with_stmt_children
from weft.loop.passes.simplify import Scope, program_scope


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and repr(e.value) in ("0", "0.0", "False")


def guard_loads(program: Program) -> Program:
    """Gives a Load on a side of a Select the Select's condition as predicate, unless it is in bounds anyway.

    select(c, x[i], 0.0) becomes the predicated load alone, since lanes without predicate give zero.
    """

    def visit(stmt: Stmt, scope: Scope) -> Stmt:
        stmt = map_stmt_exprs(stmt, lambda e: guard_expr(e, scope))
        if isinstance(stmt, For):
            hi = range_of(stmt.extent, scope.ranges).hi
            scope = scope.with_range(stmt.var.name, Range(0, None if hi is None else hi - 1))
        elif isinstance(stmt, Let) and stmt.var.dtype.is_integer and stmt.var.dtype.lanes == 1:
            scope = scope.with_range(stmt.var.name, range_of(stmt.value, scope.ranges))
        children = stmt_children(stmt)
        if not children:
            return stmt
        new = tuple(visit(c, scope) for c in children)
        return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt

    return program.with_body(visit(program.body, program_scope(program)))


def guard_expr(expr: Expr, scope: Scope) -> Expr:
    if not has(expr, Select):
        return expr
    certain = set(_unconditional(expr))

    def rule(e: Expr, cond: Expr | None) -> Expr:
        if isinstance(e, Select):
            c = rule(e.cond, cond)
            a = rule(e.a, c if cond is None else and_(cond, c))
            b = rule(e.b, not_(c) if cond is None else and_(cond, not_(c)))
            if isinstance(a, Load) and a.predicate == c and _is_zero(b):
                return a
            return Select(c, a, b) if c is not e.cond or a is not e.a or b is not e.b else e
        children = e.children()
        if children:
            new = tuple(rule(x, cond) for x in children)
            if any(n is not x for n, x in zip(new, children)):
                e = e.with_children(new)
        if isinstance(e, Load) and cond is not None and e not in certain and not in_bounds(e, scope.ranges):
            return Load(e.buffer, e.indices, cond if e.predicate is None else and_(e.predicate, cond))
        return e

    return rule(expr, None)


def in_bounds(load: Load, ranges: Mapping[str, Range]) -> bool:
    """Whether the load is certain to read an element of its buffer."""
    for index, size in zip(load.indices, load.buffer.shape):
        known, count = range_of(index, ranges), int_const(size)
        if known.lo is None or known.lo < 0 or known.hi is None or count is None or known.hi >= count:
            return False
    return True


def _unconditional(expr: Expr) -> list[Load]:
    """The loads that happen whatever the selects choose."""
    found: list[Load] = []
    stack = [expr]
    while stack:
        e = stack.pop()
        if isinstance(e, Load):
            found.append(e)
        stack.extend((e.cond,) if isinstance(e, Select) else e.children())
    return found
