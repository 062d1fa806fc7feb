"""Simplifies formulas by the ranges and conditions at their position; removes statements without effect."""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import (
    And,
    Const,
    Eq,
    Expr,
    Le,
    Lt,
    Ne,
    Not,
    Or,
    Select,
    Var,
    eq,
    has,
    le,
    lt,
    ne,
    select,
    transform,
)
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify as simplify_expr
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    While,
    int_const,
    level_of,
    seq,
)
from weft.loop.nodes import Block as BlockStmt
from weft.loop.passes.copies import EMPTY, if_stmt, is_empty, plain_load, rewrite

_LEAVES = (Const, Var)


class Scope:
    """Facts at a statement: ranges of variables and formulas that are true."""

    def __init__(
        self, ranges: dict[str, Range], facts: tuple[Expr, ...] = (), values: dict[str, Expr] | None = None
    ) -> None:
        self.ranges, self.facts, self.values = ranges, facts, values or {}
        self._memo: dict[Expr, Expr] = {}

    def simplify(self, expr: Expr) -> Expr:
        if self.values:
            expr = rewrite(expr, self.values, {})
        if isinstance(expr, _LEAVES):
            return expr
        found = self._memo.get(expr)
        if found is None:
            found = self._memo[expr] = transform(simplify_expr(expr, self.ranges, self.facts), plain_load)
        return found

    def with_range(self, name: str, known: Range, *facts: Expr) -> Scope:
        return type(self)({**self.ranges, name: known}, (*self.facts, *facts), self.values)

    def with_facts(self, facts: tuple[Expr, ...]) -> Scope:
        # A fact about data holds only until the next store: keep those about indices.
        facts = tuple(f for f in facts if f.dtype.lanes == 1 and not has(f, Load))
        return type(self)(self.ranges, (*self.facts, *facts), self.values) if facts else self

    def with_value(self, name: str, value: Expr) -> Scope:
        return type(self)(self.ranges, self.facts, {**self.values, name: value})


class ConditionScope(Scope):
    """Simplifies conditions only, at any position in a formula."""

    def simplify(self, expr: Expr) -> Expr:
        if expr.dtype.is_bool:
            return super().simplify(expr)
        if self.values:
            expr = rewrite(expr, self.values, {})
        if not _has_condition(expr):
            return expr

        def rule(node: Expr) -> Expr | None:
            if isinstance(node, Select):
                return select(super(ConditionScope, self).simplify(node.cond), node.a, node.b)
            if isinstance(node, Load) and node.predicate is not None:
                return plain_load(Load(node.buffer, node.indices, super(ConditionScope, self).simplify(node.predicate)))
            return None

        return transform(expr, rule)


def _has_condition(expr: Expr) -> bool:
    stack = [expr]
    while stack:
        e = stack.pop()
        if isinstance(e, Select) or (isinstance(e, Load) and e.predicate is not None):
            return True
        children = e.children()
        if children:
            stack.extend(children)
    return False


def holds(cond: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction."""
    return (*holds(cond.a), *holds(cond.b)) if isinstance(cond, And) else (cond,)


def fails(cond: Expr) -> tuple[Expr, ...]:
    """What is true where `cond` is false."""
    match cond:
        case Or():
            return (*fails(cond.a), *fails(cond.b))
        case Not():
            return holds(cond.a)
        case Lt() if not cond.a.dtype.is_float:
            return (le(cond.b, cond.a),)
        case Le() if not cond.a.dtype.is_float:
            return (lt(cond.b, cond.a),)
        case Eq():
            return (ne(cond.a, cond.b),)
        case Ne():
            return (eq(cond.a, cond.b),)
    return (Not(cond),)


def program_scope(program: Program) -> Scope:
    return Scope({d.name: Range(0, None) for d in program.dims})


def simplify(program: Program) -> Program:
    """Simplifies every formula by loop extents, conditions and let values; drops loops of no or one iteration, decided
    Ifs, unused names, empty statements."""
    return program.with_body(simplify_stmt(program.body, program_scope(program)))


def decide_conditions(program: Program) -> Program:
    """As simplify, but touches conditions only: cheap where formulas are simple already."""
    scope = ConditionScope({d.name: Range(0, None) for d in program.dims})
    return program.with_body(simplify_stmt(program.body, scope))


def simplify_stmt(stmt: Stmt, scope: Scope) -> Stmt:
    match stmt:
        case Seq():
            return seq(*(simplify_stmt(s, scope) for s in stmt.stmts))
        case For():
            return _simplify_loop(stmt, scope)
        case While():
            return replace(stmt, cond=scope.simplify(stmt.cond), body=simplify_stmt(stmt.body, scope))
        case If():
            cond = scope.simplify(stmt.cond)
            if isinstance(cond, Const):
                return (
                    simplify_stmt(stmt.then, scope)
                    if cond.value
                    else EMPTY
                    if stmt.orelse is None
                    else simplify_stmt(stmt.orelse, scope)
                )
            then = simplify_stmt(stmt.then, scope.with_facts(holds(cond)))
            orelse = None if stmt.orelse is None else simplify_stmt(stmt.orelse, scope.with_facts(fails(cond)))
            return if_stmt(cond, then, orelse)
        case Let():
            return _simplify_let(stmt, scope)
        case Allocate():
            body = simplify_stmt(stmt.body, scope)
            return EMPTY if is_empty(body) else replace(stmt, body=body)
        case Store():
            predicate = None if stmt.predicate is None else scope.simplify(stmt.predicate)
            if isinstance(predicate, Const):
                if not predicate.value:
                    return EMPTY
                predicate = None
            inner = scope if predicate is None or predicate.dtype.lanes > 1 else scope.with_facts(holds(predicate))
            return replace(
                stmt,
                indices=tuple(inner.simplify(i) for i in stmt.indices),
                value=inner.simplify(stmt.value),
                predicate=predicate,
            )
        case AtomicUpdate():
            return replace(
                stmt, indices=tuple(scope.simplify(i) for i in stmt.indices), value=scope.simplify(stmt.value)
            )
        case Evaluate():
            call = scope.simplify(stmt.call)
            assert isinstance(call, IntrinsicCall)
            within = tuple(
                Region(r.buffer, tuple((scope.simplify(lo), scope.simplify(n)) for lo, n in r.ranges))
                for r in stmt.within
            )
            return Evaluate(call, within)
        case BlockStmt():
            return stmt
    return stmt


def _simplify_loop(loop: For, scope: Scope) -> Stmt:
    extent = scope.simplify(loop.extent)
    hardware = "Idx" in loop.kind or level_of(loop.kind) is not None
    trips = int_const(extent)
    known = range_of(extent, scope.ranges)
    if known.hi is not None and known.hi <= 0:
        return EMPTY
    if trips == 1 and not hardware:
        return simplify_stmt(loop.body, scope.with_value(loop.var.name, Const(0, loop.var.dtype)))
    inner = scope.with_range(
        loop.var.name,
        Range(0, None if known.hi is None else known.hi - 1),
        *(() if trips else (lt(loop.var, extent),)),
    )
    body = simplify_stmt(loop.body, inner)
    return EMPTY if is_empty(body) else replace(loop, extent=extent, body=body)


def _simplify_let(let: Let, scope: Scope) -> Stmt:
    value = scope.simplify(let.value)
    if isinstance(value, _LEAVES):
        return simplify_stmt(let.body, scope.with_value(let.var.name, value))
    inner = (
        scope.with_range(let.var.name, range_of(value, scope.ranges))
        if let.var.dtype.is_integer and let.var.dtype.lanes == 1
        else scope
    )
    body = simplify_stmt(let.body, inner)
    # A call for its effect must stay.
    return body if is_empty(body) and not has(value, IntrinsicCall) else replace(let, value=value, body=body)
