"""Loop pass of the profile for microcontrollers: loops that widen neighbouring bytes to int16, or set such to 0, become
calls of functions that do so word by word (`weft_c/mcu`).

    for i in n { y[a + i] = int16(x[b + i]) - z }      @widen(x[b], z, y[a], n)
    for i in n { y[a + i] = 0 }                        @clear(y[a], n)

Nests whose rows follow one another, on both sides, count as one loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes as dt
from weft.expr.linear import linear
from weft.expr.nodes import Cast, Const, Expr, Sub, free_vars
from weft.loop.nodes import (
    Evaluate,
    For,
    IntrinsicCall,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    stmt_children,
    with_stmt_children,
)

SHORTEST = 8
"""Elements from which on a call takes less time than the loop."""


@dataclass(frozen=True)
class Copy:
    """What a nest of loops writes: elements from `to` on, those from `source` (None: zeros) on without `zero`."""

    to: Load
    source: Load | None
    zero: Expr
    count: int


def byte_copies(program: Program) -> Program:
    """Afterwards no loop of `SHORTEST` iterations or more only widens neighbouring bytes, or clears such."""

    return program.with_body(_with_calls(program.body))


def _with_calls(s: Stmt) -> Stmt:
    """The outermost loops that are copies become calls."""
    found = copy_of(s) if isinstance(s, For) else None
    if found is not None and found.count >= SHORTEST:
        count = int64(found.count)
        if found.source is None:
            return Evaluate(IntrinsicCall("clear", (found.to, count)))
        return Evaluate(IntrinsicCall("widen", (found.source, found.zero, found.to, count)))
    children = stmt_children(s)
    return with_stmt_children(s, tuple(map(_with_calls, children))) if children else s


def copy_of(s: Stmt) -> Copy | None:
    """A nest of loops as a copy; None if it is none."""
    if isinstance(s, Store):
        return _single(s)
    if not isinstance(s, For) or s.kind != "serial":
        return None
    inner, n = copy_of(s.body), int_const(s.extent)
    if inner is None or n is None:
        return None
    ends = [moved(x, s.var.name, inner.count) for x in (inner.to, inner.source) if x is not None]
    if None in ends or s.var.name in free_vars(inner.zero):
        return None
    to, *source = ends
    assert to is not None
    return Copy(to, source[0] if source else None, inner.zero, n * inner.count)


def moved(x: Load, loop: str, step: int) -> Load | None:
    """The element of a loop's first iteration; None if an iteration does not begin `step` elements behind the one
    before."""
    parts = linear(x.indices[0]).split_variables({loop})
    if parts is None:
        return None
    rest, factors = parts
    factor = factors.get(loop)
    return Load(x.buffer, (rest.expr(),)) if factor is not None and factor.value == step else None


def _single(s: Store) -> Copy | None:
    if s.buffer.dtype != dt.int16 or s.predicate is not None or len(s.indices) != 1:
        return None
    to, value, zero = Load(s.buffer, s.indices), s.value, Const(0, dt.int16)
    if isinstance(value, Const) and value.value == 0:
        return Copy(to, None, zero, 1)
    if isinstance(value, Sub) and isinstance(value.b, Const):
        value, zero = value.a, value.b
    if not isinstance(value, Cast) or not isinstance(value.value, Load) or value.value.predicate is not None:
        return None
    source = value.value
    return Copy(to, source, zero, 1) if source.buffer.dtype == dt.int8 and len(source.indices) == 1 else None


__all__ = ["byte_copies"]
