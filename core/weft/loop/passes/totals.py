"""Finds stores that add up, and makes the compensated totals of blocks of sums: what both kinds of blocks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.dtypes import DType
from weft.expr.nodes import Add, Const, Expr, Sub, Var, const, eq, not_, select, walk
from weft.loop.nodes import AtomicUpdate, Buffer, Evaluate, If, Let, Load, Stmt, Store, seq, stmt_children, stmt_exprs
from weft.loop.passes.copies import Names


def accumulated(store: Store) -> bool:
    """Whether it adds to a float what does not depend on it: `acc[i] = acc[i] + value`, `acc[i] - value`, `(acc[i] +
    value) + other`."""
    return store.predicate is None and adds_to(store.value, Load(store.buffer, store.indices))


def adds_to(value: Expr, own: Load) -> bool:
    """Whether a value is that of a float element plus or minus what does not read its buffer."""
    if own.dtype.kind not in ("float", "complex"):
        return False
    if isinstance(value, (Add, Sub)):
        sides = ((value.a, value.b), (value.b, value.a)) if isinstance(value, Add) else ((value.a, value.b),)
        return any((a == own or adds_to(a, own)) and not loads_of(b, own.buffer.name) for a, b in sides)
    return False


def loads_of(expr: Expr, name: str) -> bool:
    """Whether an expression reads the buffer."""
    return any(isinstance(e, Load) and e.buffer.name == name for e in walk(expr))


@dataclass
class Access:
    """How one statement uses a buffer: what it is under, innermost last."""

    stmt: Stmt
    path: tuple[Stmt, ...]
    conditions: tuple[Expr, ...] = field(default=())


def accesses_of(
    stmt: Stmt, name: str, conditions: tuple[Expr, ...] = (), path: tuple[Stmt, ...] = ()
) -> Iterator[Access]:
    """Whatever in `stmt` reads or changes the buffer."""
    uses = isinstance(stmt, (Store, AtomicUpdate)) and stmt.buffer.name == name
    uses = uses or (isinstance(stmt, Evaluate) and any(r.buffer.name == name for r in stmt.within))
    if uses or any(loads_of(e, name) for e in stmt_exprs(stmt)):
        yield Access(stmt, path, conditions)
    inside = (*path, stmt)
    if isinstance(stmt, If):
        yield from accesses_of(stmt.then, name, (*conditions, stmt.cond), inside)
        if stmt.orelse is not None:
            yield from accesses_of(stmt.orelse, name, (*conditions, not_(stmt.cond)), inside)
        return
    for c in stmt_children(stmt):
        yield from accesses_of(c, name, conditions, inside)


def nothing(dtype: DType) -> Const:
    """What changes no number that is added to it: 0 would make -0 positive."""
    return Const(complex(-0.0, -0.0) if dtype.kind == "complex" else -0.0, dtype)


def total_stmt(make: str, part: Load, total: Load, lost: Load, held: Sequence[Buffer], names: Names) -> Stmt:
    """What starts the total of an element ("start"), puts a block's part into it ("flush"), or makes the whole of both
    ("finish").

    Args:
        held: buffers that hold the part at its place; that of `part` comes last.
    """
    zero = const(0, part.dtype)
    clear = (Store(total.buffer, total.indices, nothing(part.dtype)), Store(lost.buffer, lost.indices, zero))
    if make == "start":
        return seq(*clear)
    if make == "finish":
        # A second sum into the same element must not find the total again.
        return seq(*(Store(b, part.indices, Add(total, part - lost)) for b in held), *clear)
    y, t = (Var(names.fresh(f"{part.buffer.name}_{what}"), part.dtype) for what in ("part", "sum"))
    # Of a total that is not finite nothing is lost: ∞ - ∞ would make it NaN.
    error = select(eq(t - t, zero), (t - total) - y, zero)
    again = (Store(b, part.indices, nothing(part.dtype)) for b in held)
    return Let(
        y,
        part - lost,
        Let(
            t,
            Add(total, y),
            seq(Store(lost.buffer, lost.indices, error), Store(total.buffer, total.indices, t), *again),
        ),
    )
