"""Expands calls of functions that the target lacks into formulas over its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.nodes import Call, Expr, cast_to, has, transform, walk
from weft.loop.math_tables import FORMULAS, Lets
from weft.loop.nodes import (
    Allocate,
    Buffer,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    int64,
    map_stmt_exprs,
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names

SIDE_BY_SIDE = 4
"""Stores whose formulas are computed in turn: enough to hide latency, few enough for sixteen registers."""


def expand_math(program: Program, functions: frozenset[str]) -> Program:
    """Replaces calls of functions that are not in `functions` by formulas; shared parts are Let in front of the
    statement.

    Runs after guard_loads: arguments of a call on the side of a Select are evaluated whatever the Select chooses.

    Raises:
        LoopError: a function that the target lacks and for which there is no formula.
    """

    def missing(e: Expr) -> bool:
        return has(e, Call) and any(isinstance(n, Call) and n.name not in functions for n in walk(e))

    if not any(missing(e) for s in walk_stmts(program.body) for e in stmt_exprs(s)):
        return program
    names = Names.of(program)

    def expand(e: Expr, lets: Lets) -> Expr:
        return transform(e, lambda n: _formula(n, lets) if isinstance(n, Call) and n.name not in functions else None)

    def interleaved(stores: Sequence[Store]) -> Stmt:
        """Stores that do not depend on one another, their formulas step by step side by side: each is a long chain on
        its own."""
        lets = [Lets(functions, names.fresh) for _ in stores]
        results = [map_stmt_exprs(x, partial(expand, lets=own)) for x, own in zip(stores, lets)]
        body: Stmt = seq(*results)
        for step in reversed(list(zip_longest(*(own.bound for own in lets)))):
            for pair in reversed(step):
                body = body if pair is None else Let(pair[0], pair[1], body)
        return body

    def visit_all(stmts: Sequence[Stmt]) -> Iterator[Stmt]:
        run: list[Store] = []
        for s in stmts:
            store = s if isinstance(s, Store) and any(missing(e) for e in stmt_exprs(s)) else None
            if run and (store is None or len(run) == SIDE_BY_SIDE or not _apart([*run, store])):
                yield interleaved(run)
                run = []
            if store is None:
                yield visit(s)
            else:
                run.append(store)
        if run:
            yield interleaved(run)

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Seq):
            return seq(*visit_all(stmt.stmts))
        children = stmt_children(stmt)
        if children:
            new = tuple(visit(c) for c in children)
            if any(n is not c for n, c in zip(new, children)):
                stmt = with_stmt_children(stmt, new)
        if not any(missing(e) for e in stmt_exprs(stmt)):
            return stmt
        lets = Lets(functions, names.fresh)
        if isinstance(stmt, While):
            # The condition is computed anew before each turn, so its parts cannot be bound in front of the loop.
            flag = Buffer(names.fresh("goes_on"), (int64(1),), dt.bool_, "register")
            test = bound(lets, Store(flag, (int64(0),), expand(stmt.cond, lets)))
            lets = Lets(functions, names.fresh)
            again = bound(lets, Store(flag, (int64(0),), expand(stmt.cond, lets)))
            return Allocate(flag, seq(test, While(Load(flag, (int64(0),)), seq(stmt.body, again))))
        result = map_stmt_exprs(stmt, lambda e: expand(e, lets))
        return bound(lets, result)

    return program.with_body(visit(program.body))


def _apart(stores: Sequence[Store]) -> bool:
    """Whether no store reads what another one of them writes."""
    written = {s.buffer.name for s in stores}
    return not any(
        isinstance(n, Load) and n.buffer.name in written for s in stores for e in stmt_exprs(s) for n in walk(e)
    )


def bound(lets: Lets, stmt: Stmt) -> Stmt:
    for var, value in reversed(lets.bound):
        stmt = Let(var, value, stmt)
    return stmt


def _formula(e: Call, lets: Lets) -> Expr:
    formula = FORMULAS.get(e.name)
    dtype = e.args[0].dtype.scalar
    integer = dtype.is_integer and e.name in ("abs", "popcount")
    if formula is None or not (integer or (dtype.is_float and e.name != "popcount")):
        raise LoopError(
            f"expand_math: the target has no function '{e.name}' of {dtype}",
            where=str(e),
            why=(
                "there is no formula for it either"
                if formula is None
                else f"its formula is for {'integers' if e.name == 'popcount' else 'floats'}"
            ),
            hint="let the target declare the function as its own",
        )
    if integer or dtype.bits >= 32:
        return lets.let(formula(lets, *e.args))
    # Narrow floats are computed in float32 and rounded.
    result = formula(lets, *(lets.let(cast_to(a, dt.float32)) for a in e.args))
    return lets.let(result if result.dtype.is_bool else cast_to(result, dtype))
