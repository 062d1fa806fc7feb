"""Divides sums that their loops read on the way (prefix sums) into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.expr.nodes import Add, Expr, Var, floordiv, free_vars, lt, minimum, substitute, transform, walk
from weft.loop.nodes import (
    Allocate,
    Buffer,
    For,
    If,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    int64,
    int_const,
    map_stmt_exprs,
    seq,
    stmt_exprs,
    substitute_stmt,
    transform_stmts,
    walk_stmts,
)
from weft.loop.passes.copies import Names
from weft.loop.passes.simplify import simplify
from weft.loop.passes.totals import accesses_of, accumulated, adds_to, loads_of, total_stmt

PREFIX = 128
"""Steps of a block of a sum that is read on the way: each block starts at 0, so that neighbours do not wait for one
another, and its few steps are exact."""


@dataclass(frozen=True)
class _Prefix:
    """A loop whose steps add to the elements of `state`; `sum` holds them from the step's addition on, and may be
    `state` itself."""

    loop: For
    state: Buffer
    sum: Buffer
    indices: tuple[Expr, ...]
    around: tuple[Stmt, ...]
    """The loops and conditions, outermost first, around the statement that stores an element of `state`."""

    @property
    def variables(self) -> frozenset[str]:
        """Of the loops around the store: what its element varies with."""
        return frozenset(s.var.name for s in self.around if isinstance(s, For))

    def covers_reads(self) -> bool:
        """Whether all that its loop reads of `state` and `sum` are elements that its steps add to."""
        varies = [bool(free_vars(i).keys() & self.variables) for i in self.indices]
        names = (self.state.name, self.sum.name)
        return all(
            v or i == own
            for s in walk_stmts(self.loop.body)
            for x in stmt_exprs(s)
            for e in walk(x)
            if isinstance(e, Load) and e.buffer.name in names
            for i, own, v in zip(e.indices, self.indices, varies)
        )

    def like(self, what: str, names: Names) -> Buffer:
        """A buffer for the totals of its elements: where it has one element, of one."""
        name = names.fresh(f"{self.state.name}_{what}")
        if self.variables:
            return replace(self.state, name=name)
        scope = self.state.scope if self.state.scope == "register" else "local"
        return Buffer(name, (), self.state.dtype, scope)

    def at(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where the buffers of `like` hold the total of this element of `state`."""
        return indices if self.variables else ()


def block_prefixes(program: Program, longest: int, block: int) -> Program:
    """Prefix sums that may have more than `longest` steps are added up in blocks of `block`."""
    loops = [
        s
        for s in walk_stmts(program.body)
        if isinstance(s, For) and s.kind == "serial" and ((n := int_const(s.extent)) is None or n > longest)
    ]
    found = [
        p
        for loop in loops
        for s in walk_stmts(loop.body)
        if isinstance(s, Store) and (p := _prefix_of(s, loop, program)) is not None and p.covers_reads()
    ]
    if not found:
        return program
    names = Names.of(program)

    def visit(stmt: Stmt) -> Stmt | None:
        mine = [p for p in found if isinstance(stmt, For) and p.loop.var.name == stmt.var.name]
        return _prefix_blocks(stmt, mine, block, names) if isinstance(stmt, For) and mine else None

    return simplify(program.with_body(transform_stmts(program.body, visit)))


def _prefix_of(store: Store, loop: For, program: Program) -> _Prefix | None:
    """The prefix sum that the loop makes by this store into its state: `sum = state + value … state = sum`, or `state =
    state + value`."""
    state, value = store.buffer, store.value
    if store.predicate is not None or state.dtype.kind != "float":
        return None
    uses = list(accesses_of(loop.body, state.name)) if isinstance(value, Load) or accumulated(store) else []
    around = next((_nest(a.path, loop, store.indices) for a in uses if a.stmt is store), None)
    if around is None:
        return None
    if not isinstance(value, Load):
        # Other statements read the elements that their own step has added to, under the same loops, and only where
        # there is something to add: of other elements there are no totals.
        others = [a for a in uses if a.stmt is not store]
        own, mine = Load(state, store.indices), next(a for a in uses if a.stmt is store)
        at = [s for s in mine.path if isinstance(s, For)]
        plain = all(
            _only_reads(a.stmt, (own,), state)
            and [s for s in a.path if isinstance(s, For)] == at
            and set(mine.conditions) <= set(a.conditions)
            for a in others
        )
        return _Prefix(loop, state, state, store.indices, around) if others and plain else None
    total = value.buffer
    if (
        total.name == state.name
        or total.dtype != state.dtype
        or value.indices != store.indices
        or value.predicate is not None
    ):
        return None
    stores = [a for a in accesses_of(program.body, total.name) if not _only_reads(a.stmt, None, total)]
    # Where no step has stored it the sum is undefined, before as after; the state need not be.
    if len(stores) != 1 or len(uses) != 2 or stores[0].stmt is not uses[0].stmt or uses[1].stmt is not store:
        return None
    addition = uses[0].stmt
    if (
        not isinstance(addition, Store)
        or addition.predicate is not None
        or not adds_to(addition.value, Load(state, addition.indices))
    ):
        return None
    other = _nest(uses[0].path, loop, addition.indices)
    same = (
        other is not None
        and _same_nest(around, store.indices, other, addition.indices)
        and not loads_of(addition.value, total.name)
    )
    return _Prefix(loop, state, total, store.indices, around) if same else None


def _only_reads(stmt: Stmt, elements: Sequence[Load] | None, buffer: Buffer) -> bool:
    """Whether a statement stores elsewhere what it reads of the buffer: only these elements, if given."""
    if not isinstance(stmt, Store) or stmt.buffer.name == buffer.name:
        return False
    read = [e for x in stmt_exprs(stmt) for e in walk(x) if isinstance(e, Load) and e.buffer.name == buffer.name]
    return elements is None or all(e in elements for e in read)


def _nest(path: Sequence[Stmt], loop: For, element: Sequence[Expr]) -> tuple[Stmt, ...] | None:
    """The loops and conditions of a path inside the loop; None where they are not the same in each of its steps, or an
    element's statement runs twice."""
    used = {v for i in element for v in free_vars(i)}
    found: list[Stmt] = []
    for s in path:
        if isinstance(s, For):
            same = s.var.name in used and loop.var.name not in free_vars(s.extent)
        elif isinstance(s, If):
            same = (
                s.orelse is None
                and loop.var.name not in free_vars(s.cond)
                and not any(isinstance(e, Load) for e in walk(s.cond))
            )
        else:
            same = isinstance(s, Seq)
        if not same:
            return None
        if not isinstance(s, Seq):
            found.append(s)
    return None if loop.var.name in used else tuple(found)


def _same_nest(one: Sequence[Stmt], at: Sequence[Expr], other: Sequence[Stmt], there: Sequence[Expr]) -> bool:
    """Whether two statements, at these elements, run for the same elements."""
    loops = [[s for s in nest if isinstance(s, For)] for nest in (one, other)]
    names = {b.var.name: a.var for a, b in zip(*loops)}
    shape = [[s.extent for s in part] for part in loops]
    conditions = [[s.cond for s in nest if isinstance(s, If)] for nest in (one, other)]
    return shape[0] == shape[1] and (list(at), conditions[0]) == (
        [substitute(i, names) for i in there],
        [substitute(c, names) for c in conditions[1]],
    )


def _prefix_blocks(loop: For, prefixes: Sequence[_Prefix], block: int, names: Names) -> Stmt:
    """The loop in blocks of a part each: what reads a sum takes its total and its part."""
    kept = [(p, p.like("total", names), p.like("lost", names)) for p in prefixes]
    outer, inner = (Var(names.fresh(f"{loop.var.name}_{what}"), loop.var.dtype) for what in ("block", "step"))
    read = {name: (p, total) for p, total, _ in kept for name in (p.state.name, p.sum.name)}

    def whole(e: Expr) -> Expr | None:
        # What the total has lost is less than a unit in its last place: reads do without.
        if not isinstance(e, Load) or e.buffer.name not in read:
            return None
        p, total = read[e.buffer.name]
        return Add(Load(total, p.at(e.indices), e.predicate), e)

    def reads(stmt: Stmt) -> Stmt | None:
        own = isinstance(stmt, Store) and stmt.buffer.name in read
        return None if own else map_stmt_exprs(stmt, lambda x: transform(x, whole))

    start, flush, finish = (seq(*(_everywhere(*k, make, names) for k in kept)) for make in ("start", "flush", "finish"))
    body = substitute_stmt(transform_stmts(loop.body, reads), {loop.var.name: outer * block + inner})
    steps = For(inner, minimum(int64(block), loop.extent - outer * block), body, loop.kind, loop.annotations)
    blocks = For(
        outer, floordiv(loop.extent + (block - 1), block), seq(steps, If(lt((outer + 1) * block, loop.extent), flush))
    )
    result = seq(start, blocks, finish)
    for _, total, lost in kept:
        result = Allocate(total, Allocate(lost, result))
    return result


def _everywhere(p: _Prefix, total: Buffer, lost: Buffer, make: str, names: Names) -> Stmt:
    """What begins, carries on or ends the totals, for each element of the state."""
    fresh = {s.var.name: Var(names.fresh(s.var.name), s.var.dtype) for s in p.around if isinstance(s, For)}
    at = tuple(substitute(i, fresh) for i in p.indices)
    held = (p.state,) if p.sum is p.state else (p.sum, p.state)
    body = total_stmt(make, Load(p.state, at), Load(total, p.at(at)), Load(lost, p.at(at)), held, names)
    for s in reversed(p.around):
        if isinstance(s, For):
            body = For(fresh[s.var.name], s.extent, body, s.kind, s.annotations)
        elif isinstance(s, If):
            body = If(substitute(s.cond, fresh), body)
    return body
