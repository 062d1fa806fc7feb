"""Makes copies from global to shared memory asynchronous: threads wait for them at the next barrier."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import count

from weft import dtypes as dt
from weft.errors import ScheduleWarning
from weft.expr.linear import linear
from weft.expr.nodes import (
    Add,
    Cast,
    Const,
    Expr,
    FloorMod,
    Mul,
    Select,
    Sub,
    Var,
    add,
    const,
    free_vars,
    mul,
    substitute,
)
from weft.loop.grids import AWAIT_COPIES, COPY_ASYNC
from weft.loop.nodes import (
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    replace_buffers,
    seq,
    stmt_children,
    walk_stmts,
    with_stmt_children,
)
from weft_gpu.bulk_copies import ALIGNED
from weft_gpu.grids import has_threads, map_groups, written_in
from weft_gpu.passes.bulk_copies import box_nest, is_box
from weft_gpu.passes.remove_barriers import deferrable_stores, is_barrier

WIDTHS = (4, 8, 16)
"""Bytes that one copy may have; it begins at a multiple of them in both memories."""


def copy_async(program: Program) -> Program:
    """Stores to shared memory of what lies in global memory become copies that a thread begins and waits for at the
    next barrier, for targets that have such.

    It follows `remove_barriers`. A store becomes one if nobody, the thread itself included, may touch the element
    before the next barrier, or copy to it a second time; if nobody writes where it comes from; and if it has 4, 8 or 16
    bytes, neighbours in a vectorized loop together. A zero in the place of what lies beyond a border is stored as
    before.

        for l in 4 vectorized { s[h, t, l] = select(t < n, x[t, l], 0.0f32) } … @barrier()
        → if t < n { @copy_async(s[h, t, 0], x[t, 0], 16) } else { for l in 4 vectorized { s[h, t, l] = 0.0f32 } } …
            @await_copies() @barrier()

    Loops that say that they copy a box (`bulk_copies`) become one copy, zeros beyond the borders included, if the
    group's first thread does them alone:

        if t == 0 { for r in 64 @box=1 { for k in 32 @box=1 { s[h, r, k] = select(i*64 + r < 1000, x[i*64 + r, j*32 +
            k], 0.0f16) } } }
        → if t == 0 { @copy_box(s[h, 0, 0], x[0, 0], j*32, i*64, …) }
    """
    if not has_threads(program.body):
        return program
    return map_groups(program, lambda group: _Group(program, group).changed())


@dataclass(frozen=True)
class _Copy:
    """A store that may become a copy: `place` is the statement in whose place `begin` does; `box`: of a whole box."""

    store: Store
    place: Stmt
    begin: Stmt
    box: bool


class _Group:
    def __init__(self, program: Program, group: Stmt) -> None:
        self.program, self.group = program, group
        self.lets: dict[str, Expr] = {}
        for s in walk_stmts(group):
            if isinstance(s, Let):
                self.lets[s.var.name] = substitute(s.value, self.lets)
        written = written_in(group)
        shared = {program.inputs[i].name for o, i in program.aliases if program.outputs[o].name in written}
        self.changing = written | shared

    def changed(self) -> Stmt:
        copies: list[_Copy] = []
        if any(is_barrier(s) for s in walk_stmts(self.group)):
            self._collect(self.group, copies)
        stores = [c.store for c in copies]
        fit, awaited = (
            deferrable_stores(self.program, self.group, stores, [c.store for c in copies if c.box])
            if copies
            else (set(), set())
        )
        done = {id(c.place): c for c in copies if id(c.store) in fit}
        self._tell(self.group, done.keys())
        if not done:
            return self.group
        boxes = any(c.box for c in done.values())  # to wait for nothing costs nothing, but where all threads wait
        number = count()

        def visit(s: Stmt) -> Stmt:
            if id(s) in done:
                return done[id(s)].begin
            if is_barrier(s):
                if next(number) not in awaited and boxes:
                    return s
                return seq(Evaluate(IntrinsicCall(AWAIT_COPIES, ())), s)
            children = stmt_children(s)
            return with_stmt_children(s, tuple(visit(c) for c in children)) if children else s

        aligned = {
            c.store.buffer.name: replace(c.store.buffer, align=max(c.store.buffer.align, ALIGNED))
            for c in done.values()
            if c.box
        }
        body = visit(self.group)
        return replace_buffers(body, aligned) if aligned else body

    def _tell(self, s: Stmt, done: Container[int]) -> None:
        """Warns of boxes that one thread will copy element by element."""
        if not is_box(s):
            for c in stmt_children(s):
                self._tell(c, done)
        elif id(s) not in done:
            found = box_nest(s, self.lets)
            why = (
                found
                if isinstance(found, str)
                else "another thread may access it before the next barrier, or writes its source"
            )
            what = (
                f"a box in program '{self.program.name}' is copied element by element, by one thread, which takes long:"
                f" {why}"
            )
            warnings.warn(ScheduleWarning(what), stacklevel=2)

    def _collect(self, s: Stmt, copies: list[_Copy]) -> None:
        if is_box(s):
            found = box_nest(s, self.lets)
            if not isinstance(found, str) and found.box.tensor.buffer.name not in self.changing:
                copies.append(_Copy(found.store, s, found.stmt(), True))
            return  # element by element, if it is no box: by one thread that is no haste
        lane = s if isinstance(s, For) and s.kind == "vectorized" else None
        inner = lane.body if lane is not None else s
        if isinstance(inner, Store):
            new = self._copy(inner, lane)
            if new is not None:
                copies.append(_Copy(inner, s, new, False))
            return
        if lane is None:
            for c in stmt_children(s):
                self._collect(c, copies)

    def _copy(self, s: Store, lane: For | None) -> Stmt | None:
        """What begins the copy, in place of a store and the loop over its lanes; None if it is no such copy."""
        cond, source, other = (
            (s.value.cond, s.value.a, s.value.b) if isinstance(s.value, Select) else (None, s.value, None)
        )
        if (
            s.predicate is not None
            or s.buffer.scope != "shared"
            or not isinstance(source, Load)
            or source.predicate is not None
        ):
            return None
        if (
            source.buffer.scope != "global"
            or source.buffer.name in self.changing
            or not isinstance(other, (Const, type(None)))
        ):
            return None
        lanes = 1 if lane is None else int_const(lane.extent)
        if lanes is None or lanes * s.buffer.dtype.bytes not in WIDTHS or s.buffer.dtype.lanes > 1:
            return None
        places = [Load(s.buffer, s.indices), source]
        if lane is not None:
            if cond is not None and lane.var.name in free_vars(cond):
                return None
            starts = [_first(x, lane.var, lanes, self.lets) for x in places]
            if None in starts:
                return None
            places = [x for x in starts if x is not None]
        new: Stmt = Evaluate(IntrinsicCall(COPY_ASYNC, (*places, Const(lanes * s.buffer.dtype.bytes, dt.int32))))
        if cond is not None:
            assert other is not None
            rest: Stmt = Store(s.buffer, s.indices, other)
            new = If(cond, new, rest if lane is None else For(lane.var, lane.extent, rest, lane.kind, lane.annotations))
        return new


def _first(x: Load, lane: Var, lanes: int, lets: Mapping[str, Expr]) -> Load | None:
    """The first of the elements that a loop walks, if they lie side by side from a multiple of their number on."""
    *others, last = x.indices
    if any(lane.name in free_vars(i) for i in others) or linear(last).terms.get((lane,)) != 1:
        return None
    first = substitute(last, {lane.name: const(0)})
    if lane.name in free_vars(first) or x.buffer.align % (lanes * x.buffer.dtype.bytes):
        return None
    at: Expr = const(0)
    for i, d in zip((*others, first), x.buffer.shape):
        at = add(mul(at, d), i)
    return Load(x.buffer, (*others, first)) if divisible(at, lanes, lets) else None


def divisible(e: Expr, by: int, lets: Mapping[str, Expr]) -> bool:
    """Whether an index is certainly a multiple of a number."""
    match e:
        case Const():
            return int(e.value) % by == 0
        case Var():
            return e.name in lets and divisible(lets[e.name], by, lets)
        case Cast():
            return divisible(e.value, by, lets)
        case Add() | Sub():
            return divisible(e.a, by, lets) and divisible(e.b, by, lets)
        case Mul():
            return divisible(e.a, by, lets) or divisible(e.b, by, lets) or _factor(e) % by == 0
        case FloorMod():
            return divisible(e.a, by, lets) and divisible(e.b, by, lets)
    return False


def _factor(e: Expr) -> int:
    """A number that a product is certainly a multiple of."""
    match e:
        case Const():
            return int(e.value)
        case Mul():
            return _factor(e.a) * _factor(e.b)
    return 1
