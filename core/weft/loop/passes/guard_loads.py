"""Gives a Load that a Select keeps in bounds the condition as its predicate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.expr.nodes import Const, Expr, Select, Var, and_, has, not_, walk
from weft.expr.ranges import Range, range_of
from weft.loop.nodes import (
    AtomicUpdate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    map_stmt_exprs,
    stmt_children,
    with_stmt_children,
)
from weft.loop.passes.copies import Names
from weft.loop.passes.simplify import Scope, program_scope


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and repr(e.value) in ("0", "0.0", "False")


def guard_loads(program: Program) -> Program:
    """Gives a Load on a side of a Select the Select's condition as predicate, unless it is in bounds anyway.

    select(c, x[i], 0.0) becomes the predicated load alone, since lanes without predicate give zero. A condition that
    reads under a guard which itself reads memory is bound by a Let in front of the statement: written out, each level
    of selects would repeat the guards of all levels around it, twice.
    """
    names: list[Names] = []  # made at the first use: most kernels bind nothing

    def visit(stmt: Stmt, scope: Scope) -> Stmt:
        bound: dict[Expr, Var] = {}

        def bind(cond: Expr) -> Expr:
            if not _movable(cond, stmt):
                return cond
            if cond not in bound:
                if not names:
                    names.append(Names.of(program))
                bound[cond] = Var(names[0].fresh("chosen"), cond.dtype)
            return bound[cond]

        guarded = map_stmt_exprs(stmt, lambda e: guard_expr(e, scope, bind))
        if isinstance(guarded, For):
            hi = range_of(guarded.extent, scope.ranges).hi
            scope = scope.with_range(guarded.var.name, Range(0, None if hi is None else hi - 1))
        elif isinstance(guarded, Let) and guarded.var.dtype.is_integer and guarded.var.dtype.lanes == 1:
            scope = scope.with_range(guarded.var.name, range_of(guarded.value, scope.ranges))
        children = stmt_children(guarded)
        if children:
            new = tuple(visit(c, scope) for c in children)
            guarded = with_stmt_children(guarded, new) if any(n is not c for n, c in zip(new, children)) else guarded
        for cond, var in reversed(bound.items()):
            guarded = Let(var, cond, guarded)
        return guarded

    return program.with_body(visit(program.body, program_scope(program)))


def _movable(cond: Expr, stmt: Stmt) -> bool:
    """Whether `cond` may be computed in front of `stmt`: there it happens once, before all that the statement does."""
    if not isinstance(stmt, (Store, AtomicUpdate, Let, If)) or (isinstance(stmt, Store) and stmt.predicate is not None):
        return False  # a While asks again in every round; what a predicated store reads relies on its predicate
    own = (
        stmt.buffer.name if isinstance(stmt, (Store, AtomicUpdate)) else None
    )  # vectorize_loops tells by the value whether it is accumulated
    return not any(isinstance(n, IntrinsicCall) or (isinstance(n, Load) and n.buffer.name == own) for n in walk(cond))


def guard_expr(expr: Expr, scope: Scope, bind: Callable[[Expr], Expr]) -> Expr:
    """`expr` with its loads guarded; `bind` gives the name of a condition that should not be repeated, or the condition
    itself."""
    if not has(expr, Select):
        return expr
    certain = set(_unconditional(expr))

    def rule(e: Expr, cond: Expr | None) -> Expr:
        if isinstance(e, Select):
            c = rule(e.cond, cond)
            if c is not e.cond and _guards_nest(c):
                c = bind(c)
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


def _guards_nest(cond: Expr) -> bool:
    return any(isinstance(n, Load) and n.predicate is not None and has(n.predicate, Load) for n in walk(cond))


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
