"""Computes costly formulas that do not vary in a loop once, before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

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
    return program.with_body(_Hoisting(program).visit(program.body, _Place(0, {}, [])))


@dataclass
class _Place:
    """Where a statement stands.

    Args:
        depth: how many loops are around it.
        levels: at which depth of loops each variable is bound.
        pending: by depth, what goes in front of the loop there.
    """

    depth: int
    levels: dict[str, int]
    pending: list[dict[Expr, Var]]

    def inside(self, variable: str, deeper: int) -> _Place:
        """The place in what binds a variable."""
        depth = self.depth + deeper
        return _Place(depth, {**self.levels, variable: depth}, self.pending)


class _Measure(NamedTuple):
    """Of a formula: its size, whether it cannot fault, whether it is costly, its variables."""

    size: int
    safe: bool
    costly: bool
    variables: frozenset[str]


class _Hoisting:
    """The pass over one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # By identity: to hash a formula takes as long as to measure it. What is measured is kept, so that no other
        # takes its place in memory.
        self.known: dict[int, _Measure] = {}
        self.kept: list[Expr] = []
        self.names: Names | None = None  # made at the first use: most kernels hoist nothing

    def fresh(self, base: str) -> str:
        if self.names is None:
            self.names = Names.of(self.program)
        return self.names.fresh(base)

    def visit(self, stmt: Stmt, at: _Place) -> Stmt:
        if at.depth:
            stmt = map_stmt_exprs(stmt, lambda e: self.move(e, at))
        if isinstance(stmt, For) and stmt.kind in ("serial", "parallel", "vectorized", "unrolled"):
            at.pending.append({})
            body = self.visit(stmt.body, at.inside(stmt.var.name, 1))
            result: Stmt = stmt if body is stmt.body else replace(stmt, body=body)
            for value, var in reversed(at.pending.pop().items()):
                result = Let(var, value, result)
            return result
        # Nothing moves out of a loop over hardware indices: it is where the kernel begins.
        if isinstance(stmt, (For, Let)):
            body = self.visit(stmt.body, at.inside(stmt.var.name, 0))
            return stmt if body is stmt.body else replace(stmt, body=body)
        children = stmt_children(stmt)
        if not children:
            return stmt
        new = tuple(self.visit(c, at) for c in children)
        return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt

    def measure(self, e: Expr) -> _Measure:
        found = self.known.get(id(e))
        if found is None:
            parts = [self.measure(c) for c in e.children()]
            size, safe, costly, variables = 1, not isinstance(e, (Load, IntrinsicCall)), False, NONE
            if isinstance(e, (Add, Sub)) and isinstance(e.b, Const):
                size = -1  # a constant summand is no work
            for p in parts:
                size, safe, costly = size + p.size, safe and p.safe, costly or p.costly
                variables = variables | p.variables if variables else p.variables
            if isinstance(e, Var):
                variables = frozenset((e.name,))
            elif isinstance(e, (Call, Div, *_DIVISIONS)) or (size >= BIG and e.dtype.is_integer):
                costly = True
                if isinstance(e, _DIVISIONS) and e.dtype.is_integer and not (isinstance(e.b, Const) and e.b.value):
                    safe = False
            found = self.known[id(e)] = _Measure(size, safe, costly, variables)
            self.kept.append(e)
        return found

    def level_of(self, e: Expr, at: _Place) -> int:
        return max((at.levels.get(v, 0) for v in self.measure(e).variables), default=0)

    def named(self, e: Expr, level: int, at: _Place) -> Expr:
        """The name of a formula that is computed in front of the loop at depth `level`."""
        table = at.pending[level]
        var = table.get(e)
        if var is None:
            var = table[e] = Var(self.fresh("hoisted"), e.dtype)
            at.levels[var.name] = level
        return var

    def move_sum(self, e: Expr, at: _Place) -> Expr:
        """The invariant summands under one name; the constant stays, for instructions add it to an address for
        nothing."""
        terms, constant = summands(e)
        fixed: list[tuple[Expr, bool]] = []
        varying: list[tuple[Expr, bool]] = []
        for term, plus in terms:
            still = self.measure(term).safe and self.level_of(term, at) < at.depth
            (fixed if still else varying).append((term, plus))
        moved = [(self.move(term, at), plus) for term, plus in varying]
        if fixed:
            base = total(fixed)
            if self.measure(base).costly:
                return add(total([(self.named(base, self.level_of(base, at), at), True), *moved]), constant)
        if all(new is old for (new, _), (old, _) in zip(moved, varying)):
            return e
        return add(total([*fixed, *moved]), constant)

    def move(self, e: Expr, at: _Place) -> Expr:
        """The formula with names in the place of what moves out of loops."""
        found = self.measure(e)
        if not found.costly:
            return e
        if isinstance(e, (Add, Sub)) and e.dtype == dt.int64:
            return self.move_sum(e, at)
        # A ramp must be seen where it is used: a load over a named vector of indices is a gather.
        if found.safe and not isinstance(e, (Const, Var, Ramp)) and (level := self.level_of(e, at)) < at.depth:
            return self.named(e, level, at)
        children = e.children()
        if isinstance(e, Select) and not found.safe:
            # The condition of a select guards the loads on its sides; it stays readable where it stands.
            new = (e.cond, *(self.move(c, at) for c in children[1:]))
        else:
            new = tuple(self.move(c, at) for c in children)
        return e.with_children(new) if any(n is not c for n, c in zip(new, children)) else e
