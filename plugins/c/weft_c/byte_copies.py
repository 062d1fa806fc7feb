"""Loop passes of the profiles that write a model as C.

`byte_copies`: loops that widen neighbouring bytes to int16, or set such to 0, become calls of functions that do so word
by word (`weft_c/mcu`). Nests whose rows follow one another, on both sides, count as one loop.

    for i in n { y[a + i] = int16(x[b + i]) - z }      @widen(x[b], z, y[a], n)
    for i in n { y[a + i] = 0 }                        @clear(y[a], n)

`share_buffers`: buffers that are not used at the same time, as those of the copies of a divided loop, are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft import dtypes as dt
from weft.expr.linear import linear
from weft.expr.nodes import Cast, Const, Expr, Select, Sub, free_vars, transform
from weft.loop.nodes import (
    Allocate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    map_exprs,
    replace_buffers,
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

    return program.with_body(_with_calls(program.body, {}))


def _with_calls(s: Stmt, known: Mapping[Expr, bool]) -> Stmt:
    """The outermost loops that are copies, where the conditions in `known` hold or do not, become calls."""
    if isinstance(s, If):
        then, orelse = ({**known, s.cond: value} for value in (True, False))
        return If(s.cond, _with_calls(s.then, then), None if s.orelse is None else _with_calls(s.orelse, orelse))
    if isinstance(s, (For, Store)) and known:
        s = map_exprs(s, lambda e: transform(e, lambda n: _decided(n, known)))
    found = copy_of(s) if isinstance(s, For) else None
    if found is not None and found.count >= SHORTEST:
        count = int64(found.count)
        if found.source is None:
            return Evaluate(IntrinsicCall("clear", (found.to, count)))
        return Evaluate(IntrinsicCall("widen", (found.source, found.zero, found.to, count)))
    children = stmt_children(s)
    return with_stmt_children(s, tuple(_with_calls(c, known) for c in children)) if children else s


def _decided(e: Expr, known: Mapping[Expr, bool]) -> Expr | None:
    """What a formula is where its condition is known; None: itself."""
    if isinstance(e, Select) and e.cond in known:
        return e.a if known[e.cond] else e.b
    if isinstance(e, Load) and e.predicate is not None and known.get(e.predicate):
        return Load(e.buffer, e.indices)
    return None


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
    to, zero = Load(s.buffer, s.indices), Const(0, dt.int16)
    value: Expr = s.value
    if isinstance(value, Const) and value.value == 0:
        return Copy(to, None, zero, 1)
    if isinstance(value, Sub) and isinstance(value.b, Const):
        zero = value.b
        value = value.a
    if not isinstance(value, Cast) or not isinstance(value.value, Load) or value.value.predicate is not None:
        return None
    source = value.value
    return Copy(to, source, zero, 1) if source.buffer.dtype == dt.int8 and len(source.indices) == 1 else None


def share_buffers(program: Program) -> Program:
    """Afterwards buffers of constant size are allocated at the top, and those of one kind that no statement has both of
    are one."""
    pool: list[Buffer] = []

    def rule(s: Stmt, held: frozenset[str]) -> Stmt:
        if isinstance(s, Allocate) and all(int_const(d) is not None for d in s.buffer.shape):
            kind = replace(s.buffer, name="")
            one = next((b for b in pool if b.name not in held and replace(b, name="") == kind), None)
            if one is None:
                one = s.buffer
                pool.append(one)
            body = s.body if one is s.buffer else replace_buffers(s.body, {s.buffer.name: one})
            return rule(body, held | {one.name})
        children = stmt_children(s)
        return with_stmt_children(s, tuple(rule(c, held) for c in children)) if children else s

    body = rule(program.body, frozenset())
    for b in reversed(pool):
        body = Allocate(b, body)
    return program.with_body(body)


__all__ = ["share_buffers", "byte_copies"]
