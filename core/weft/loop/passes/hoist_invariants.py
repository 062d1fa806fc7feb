"""Computes costly formulas that do not vary in a loop once, before it."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import (
    Add,
    Call,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    add,
    sub,
)
from weft.loop.nodes import (
    For,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    map_stmt_exprs,
    stmt_children,
    with_stmt_children,
)
from weft.loop.passes.copies import Names

# An index sum of this many nodes is worth a name; LLVM moves smaller ones by itself.
BIG = 12
NONE: frozenset[str] = frozenset()
_DIVISIONS = (FloorDiv, FloorMod, TruncDiv, TruncMod)


def summands(e: Expr) -> tuple[list[tuple[Expr, bool]], int]:
    """The terms of a sum, each with whether it is added, and the constant among them."""
    if isinstance(e, Const):
        return [], int(e.value)
    if not isinstance(e, (Add, Sub)):
        return [(e, True)], 0
    (terms, constant), (more, other) = summands(e.a), summands(e.b)
    if isinstance(e, Sub):
        return terms + [(t, not plus) for t, plus in more], constant - other
    return terms + more, constant + other


def total(terms: list[tuple[Expr, bool]]) -> Expr:
    """The sum of terms, those that are added first."""
    result: Expr = Const(0, dt.int64)
    for term, plus in sorted(terms, key=lambda t: not t[1]):
        result = add(result, term) if plus else sub(result, term)
    return result


def hoist_invariants(program: Program) -> Program:
    """Binds calls, divisions and big index sums that are free of a loop's variables by a Let outside that loop.

    Only formulas that cannot fault move, since they may move out of a condition: no loads, integer division by
    constants only.
    """
    # By identity: to hash a formula takes as long as to measure it. What is measured is kept, so that no other takes
    # its place in memory.
    known: dict[int, tuple[int, bool, bool, frozenset[str]]] = {}
    kept: list[Expr] = []
    names: list[Names] = []  # made at the first use: most kernels hoist nothing

    def fresh(base: str) -> str:
        if not names:
            names.append(Names.of(program))
        return names[0].fresh(base)

    def visit(stmt: Stmt, depth: int, levels: dict[str, int], pending: list[dict[Expr, Var]]) -> Stmt:
        # levels: at which depth of loops each variable is bound. pending[d]: what goes in front of the loop at depth d.
        if depth:
            stmt = map_stmt_exprs(stmt, lambda e: hoist(e, depth, levels, pending))
        if isinstance(stmt, For) and stmt.kind in ("serial", "parallel", "vectorized", "unrolled"):
            pending.append({})
            body = visit(stmt.body, depth + 1, {**levels, stmt.var.name: depth + 1}, pending)
            result: Stmt = stmt if body is stmt.body else replace(stmt, body=body)
            for value, var in reversed(pending.pop().items()):
                result = Let(var, value, result)
            return result
        if isinstance(
            stmt, (For, Let)
        ):  # nothing moves out of a loop over hardware indices: it is where the kernel begins
            body = visit(stmt.body, depth, {**levels, stmt.var.name: depth}, pending)
            return stmt if body is stmt.body else replace(stmt, body=body)
        children = stmt_children(stmt)
        if not children:
            return stmt
        new = tuple(visit(c, depth, levels, pending) for c in children)
        return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt

    def hoist(expr: Expr, depth: int, levels: dict[str, int], pending: list[dict[Expr, Var]]) -> Expr:
        def measure(e: Expr) -> tuple[int, bool, bool, frozenset[str]]:
            """Size of e, whether it cannot fault, whether it is costly, its variables."""
            found = known.get(id(e))
            if found is None:
                parts = [measure(c) for c in e.children()]
                size, safe, costly, variables = 1, not isinstance(e, (Load, IntrinsicCall)), False, NONE
                if isinstance(e, (Add, Sub)) and isinstance(e.b, Const):
                    size = -1  # a constant summand is no work
                for p in parts:
                    size, safe, costly = size + p[0], safe and p[1], costly or p[2]
                    variables = variables | p[3] if variables else p[3]
                if isinstance(e, Var):
                    variables = frozenset((e.name,))
                elif isinstance(e, (Call, Div, *_DIVISIONS)) or (size >= BIG and e.dtype.is_integer):
                    costly = True
                    if isinstance(e, _DIVISIONS) and e.dtype.is_integer and not (isinstance(e.b, Const) and e.b.value):
                        safe = False
                found = known[id(e)] = (size, safe, costly, variables)
                kept.append(e)
            return found

        def level_of(e: Expr) -> int:
            return max((levels.get(v, 0) for v in measure(e)[3]), default=0)

        def named(e: Expr, level: int) -> Expr:
            table = pending[level]
            var = table.get(e)
            if var is None:
                var = table[e] = Var(fresh("hoisted"), e.dtype)
                levels[var.name] = level
            return var

        def move_sum(e: Expr) -> Expr:
            """The invariant summands under one name; the constant stays, for instructions add it to an address for
            nothing."""
            terms, constant = summands(e)
            fixed: list[tuple[Expr, bool]] = []
            varying: list[tuple[Expr, bool]] = []
            for term, plus in terms:
                (fixed if measure(term)[1] and level_of(term) < depth else varying).append((term, plus))
            moved = [(move(term), plus) for term, plus in varying]
            if fixed:
                base = total(fixed)
                if measure(base)[2]:
                    return add(total([(named(base, level_of(base)), True), *moved]), constant)
            if all(new is old for (new, _), (old, _) in zip(moved, varying)):
                return e
            return add(total([*fixed, *moved]), constant)

        def move(e: Expr) -> Expr:
            _, safe, costly, _ = measure(e)
            if not costly:
                return e
            if isinstance(e, (Add, Sub)) and e.dtype == dt.int64:
                return move_sum(e)
            # A ramp must be seen where it is used: a load over a named vector of indices is a gather.
            if safe and not isinstance(e, (Const, Var, Ramp)) and (level := level_of(e)) < depth:
                return named(e, level)
            children = e.children()
            if isinstance(e, Select) and not safe:
                # The condition of a select guards the loads on its sides; it stays readable where it stands.
                new = (e.cond, *(move(c) for c in children[1:]))
            else:
                new = tuple(move(c) for c in children)
            return e.with_children(new) if any(n is not c for n, c in zip(new, children)) else e

        return move(expr)

    return program.with_body(visit(program.body, 0, {}, []))
