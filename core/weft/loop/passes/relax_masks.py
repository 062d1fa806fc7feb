"""Removes the masks of stores to registers whose masked-out lanes are not read: every read has the same mask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.expr.nodes import Const, Div, Expr, FloorDiv, FloorMod, Ramp, TruncDiv, TruncMod, free_vars, has, walk
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    For,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
)
from weft.loop.passes.simplify import holds

_DIVISIONS = (Div, FloorDiv, FloorMod, TruncDiv, TruncMod)


def relax_masks(program: Program) -> Program:
    """Stores to vectors of floats in registers drop masks under which alone the vector is read.

    A tile's last vector is computed whole then, in plain multiply-adds, and only its result is stored under the mask:

        allocate c: float32[16] in register { c[ramp(0, 1, 16); m] = 0 … c[ramp(0, 1, 16); m] = c[ramp(0, 1, 16)] + …
            y[ramp(i, 1, 16); m] = c[ramp(0, 1, 16)] }
        → allocate c: float32[16] in register { c[ramp(0, 1, 16)] = 0 … c[ramp(0, 1, 16)] = c[ramp(0, 1, 16)] + …
            y[ramp(i, 1, 16); m] = c[ramp(0, 1, 16)] }

    Loads keep the masks of their own, so that nothing is read that was not read before. A condition that may change
    while the buffer lives stays.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Allocate) and stmt.buffer.scope == "register" and stmt.buffer.dtype.is_float:
            return _relax(stmt)
        return None

    body = transform_stmts(program.body, rule)
    return program if body is program.body else program.with_body(body)


def _relax(allocate: Allocate) -> Stmt | None:
    name = allocate.buffer.name
    size = int_const(allocate.buffer.shape[0]) if len(allocate.buffer.shape) == 1 else None
    if size is None or not any(
        isinstance(s, Store) and s.buffer.name == name and s.predicate is not None for s in walk_stmts(allocate.body)
    ):
        return None
    stored: dict[Expr, list[Store]] = {}
    read: dict[Expr, set[Expr]] = {}  # the conditions that all who read a vector have
    changing: set[str] = set()
    for s in walk_stmts(allocate.body):
        if isinstance(s, (For, Let)):
            changing.add(s.var.name)
        if isinstance(s, AtomicUpdate) and s.buffer.name == name:
            return None
        formulas = [e for whole in stmt_exprs(s) for e in walk(whole)]
        if any(isinstance(e, IntrinsicCall) and _places(e, name) for e in formulas):
            return None  # it may look at other lanes, or get an address
        # What leads to an element or says whether it is read counts in every lane: loads are made where their own
        # predicate says.
        for place in {
            p for e in formulas if isinstance(e, Load) for child in e.children() for p in _places(child, name)
        }:
            read[place] = set()
        places = {e.indices[0] for e in formulas if isinstance(e, Load) and e.buffer.name == name}
        conditions: set[Expr] = set()
        if isinstance(s, Store):
            conditions = set() if s.predicate is None else set(holds(s.predicate))
            if s.buffer.name == name:
                stored.setdefault(s.indices[0], []).append(s)
                places.discard(s.indices[0])  # lane by lane: what a lane is worth nobody else learns
        for place in places:
            read[place] = read[place] & conditions if place in read else conditions
    if not _apart({*stored, *read}, size):
        return None
    dropped = {
        place: {
            c
            for c in read.get(place, ())
            if c.dtype.lanes > 1 and not free_vars(c).keys() & changing and not has(c, (Load, IntrinsicCall))
        }
        for place, stores in stored.items()
        if all(_harmless(s.value) for s in stores)
    }

    def rule(s: Stmt) -> Stmt | None:
        # A mask of which a part must stay is best the one that the loads have.
        if (
            isinstance(s, Store)
            and s.buffer.name == name
            and s.predicate is not None
            and {*holds(s.predicate)} <= dropped.get(s.indices[0], set())
        ):
            return replace(s, predicate=None)
        return None

    body = transform_stmts(allocate.body, rule)
    return None if body is allocate.body else replace(allocate, body=body)


def _places(e: Expr, name: str) -> set[Expr]:
    """Where a formula reads a buffer."""
    return {x.indices[0] for x in walk(e) if isinstance(x, Load) and x.buffer.name == name}


def _apart(places: Iterable[Expr], size: int) -> bool:
    """Whether places are constant, whole vectors inside of the buffer, and no two of them share an element."""
    taken: set[int] = set()
    for place in places:
        base, lanes = (
            (place.base, place.lanes) if isinstance(place, Ramp) and int_const(place.stride) == 1 else (place, 1)
        )
        first = int_const(base) if base.dtype.lanes == 1 else None
        if first is None or not 0 <= first <= size - lanes or taken & {*range(first, first + lanes)}:
            return False
        taken |= {*range(first, first + lanes)}
    return True


def _harmless(value: Expr) -> bool:
    """Whether a formula may be computed in lanes where it was not: nothing in it can trap or act."""
    return not any(
        isinstance(e, IntrinsicCall)
        or (isinstance(e, _DIVISIONS) and e.dtype.is_integer and not isinstance(e.b, Const))
        for e in walk(value)
    )
