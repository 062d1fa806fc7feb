"""Removes barriers that order no accesses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.expr.evaluate import evaluate
from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import Expr, Var, add, free_vars, has, sub, substitute
from weft.expr.ranges import Range, range_of
from weft.loop.grids import THREAD_AXES, private
from weft.loop.nodes import (
    PREFETCH,
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
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.distances import MOST_VALUES, distances, reach
from weft.loop.passes.simplify import holds
from weft_gpu.grids import has_threads, map_groups

MOST_OF_ONE = 1 << 18
"""So many elements of one thread are written out, of several threads MOST_VALUES."""


def remove_barriers(program: Program) -> Program:
    """Removes every barrier without which no two threads meet at an element that one of them writes, innermost first.

    Two accesses meet if different threads may be at them without a barrier between, in this turn of the loops around
    them or a later one. Threads are numbers here: where an index depends on the thread alone, its values are compared
    thread by thread.

    Barriers that a program has had before `join_threads` are looked at, too: what they order they go on ordering.
    """
    if not has_threads(program.body) or not any(is_barrier(s) for s in walk_stmts(program.body)):
        return program
    return map_groups(
        program,
        lambda group: _Group(program, group).cleared() if any(is_barrier(s) for s in walk_stmts(group)) else group,
    )


def deferrable_stores(
    program: Program, group: Stmt, stores: Sequence[Store], alone: Sequence[Store] = ()
) -> tuple[set[int], set[int]]:
    """Which of the stores of a group, lowered to one nest of threads with its barriers, may be done any time until the
    next barrier: by `id`; and which barriers, by their numbers in program order, are the next of one.

    Nobody touches what they write before, the storing thread included, and no two of them write one element. Those of
    `alone` are done by the group's first thread, and no other, and behind each there is a next barrier: the group does
    not end before it.
    """
    found = _Group(program, group, late={id(s) for s in stores})
    body = found.collected()
    if body is None:
        return set(), set()

    def fit(late: set[int]) -> bool:
        found.late = late
        found.memo.clear()
        found.waits.clear()
        left = found.run(body, frozenset(), set(range(len(found.sites))))
        return left is not None and not any(found.accesses[a].store in late & first for a, _ in left)

    first = {id(s) for s in alone}
    each = [id(s) for s in stores if found.once(s) and (id(s) not in first or found.by_first(s))]
    if fit(set(each)):
        return set(each), found.waits
    good: set[int] = set()
    for store in each:  # one of them is to blame
        if fit(good | {store}):
            good.add(store)
    return (good, found.waits) if fit(good) else (set(), set())


def is_barrier(s: Stmt) -> bool:
    """Whether a statement is the barrier of a group."""
    return isinstance(s, Evaluate) and s.call.name == "barrier"


# -- what is done between barriers -----------------------------------------------------------------------------------

When: TypeAlias = frozenset[tuple[str, str]]
"""Loop around barriers → of which turn an access is, if not of this one: the one before ("last"), an earlier one
("earlier"), any ("any")."""
Pending: TypeAlias = frozenset[tuple[int, When]]


@dataclass(frozen=True)
class _Access:
    buffer: str
    indices: tuple[Expr, ...] | None  # None: all of the buffer
    kind: str  # "load", "store", or the operation of an atomic update
    active: Any  # which threads may be here
    store: int = 0  # the identity of the store that it is


@dataclass(frozen=True)
class _Work:
    """Statements without a barrier."""

    accesses: tuple[int, ...]


@dataclass(frozen=True)
class _Site:
    number: int


@dataclass(frozen=True)
class _Loop:
    var: str
    certain: bool  # whether it has a turn at least
    body: tuple[_Node, ...]


@dataclass(frozen=True)
class _Branch:
    sides: tuple[tuple[_Node, ...], ...]


_Node: TypeAlias = "_Work | _Site | _Loop | _Branch"


@dataclass
class _Group:
    """One group: loops over threads around statements and barriers."""

    program: Program
    group: Stmt
    accesses: list[_Access] = field(default_factory=list)
    ranges: dict[str, Range] = field(default_factory=dict)
    lets: dict[str, Expr] = field(default_factory=dict)
    sites: list[int] = field(default_factory=list)  # of every barrier, in program order, the depth
    outer: set[str] = field(default_factory=set)  # loops around barriers
    numbers: dict[str, Any] = field(default_factory=dict)  # loops over threads → values by the thread's number
    memo: dict[tuple[int, When, int], bool] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # stores that may be done by the next barrier, as if by another thread
    waits: set[int] = field(default_factory=set)  # barriers before which one of `late` may have been begun
    places: dict[int, tuple[tuple[Expr, ...], tuple[For, ...], Any]] = field(
        default_factory=dict
    )  # of `late`: indices, loops without barriers around, threads

    def cleared(self) -> Stmt:
        body = self.collected()
        if body is None:
            return self.group
        kept = set(range(len(self.sites)))
        if not self.ordered(body, kept):
            return self.group  # phases that meet in any case: what is there stays
        for k in sorted(kept, key=lambda k: -self.sites[k]):
            if self.ordered(body, kept - {k}):
                kept.discard(k)
        count = itertools.count()
        return _only(self.group, lambda: next(count) in kept)

    def collected(self) -> tuple[_Node, ...] | None:
        """What is done between barriers; None if the group is no nest of threads around its barriers."""
        self.ranges = {d.name: Range(0, None) for d in self.program.dims}
        self.names = {self.program.outputs[o].name: self.program.inputs[i].name for o, i in self.program.aliases}
        shape: list[tuple[str, int]] = []
        inside = self.group
        while not any(is_barrier(s) for s in _parts(inside)):
            if isinstance(inside, For) and inside.kind in THREAD_AXES:
                shape.append((inside.var.name, int_const(inside.extent) or 1))
            elif isinstance(inside, Let):
                self._let(inside)
            elif isinstance(inside, For):
                break
            if isinstance(inside, Seq) or len(stmt_children(inside)) != 1:
                break
            (inside,) = stmt_children(inside)
        if not shape or has_threads(inside):
            return None
        self.threads = math.prod(n for _, n in shape)
        self.others = ~np.eye(self.threads, dtype=bool)
        number = np.arange(self.threads)
        for name, n in reversed(shape):
            self.numbers[name] = number % n
            number = number // n
        return tuple(self._nodes(inside, np.ones(self.threads, bool), 0))

    def once(self, s: Store) -> bool:
        """Whether no element is stored twice between two barriers by a store of `late`."""
        indices, loops, active = self.places.get(id(s), ((), (), None))
        if active is None:
            return False
        extents, who = [int_const(f.extent) for f in loops], np.flatnonzero(active)
        if None in extents or len(who) * math.prod(n or 1 for n in extents) > (
            MOST_OF_ONE if len(who) == 1 else MOST_VALUES
        ):
            return False
        shape = [len(who), *(n or 1 for n in extents)]
        grid = np.indices(shape).reshape(len(shape), -1)
        env = {f.var.name: grid[k + 1] for k, f in enumerate(loops)} | {
            name: v[who[grid[0]]] for name, v in self.numbers.items()
        }
        fixed = {v for i in indices for v in free_vars(i)} - env.keys()
        if any(has(i, (Load, IntrinsicCall)) for i in indices):
            return False
        env |= {v: np.zeros(1, np.int64) for v in fixed}  # they are the same for all that is done between two barriers
        at = np.stack([np.broadcast_to(evaluate(i, env), grid.shape[1:]) for i in indices])
        return bool(np.unique(at, axis=1).shape == at.shape)

    def by_first(self, s: Store) -> bool:
        """Whether a store of `late` is done by the first thread alone."""
        _, _, active = self.places.get(id(s), ((), (), None))
        return active is not None and bool(active[0]) and int(active.sum()) == 1

    # -- collecting

    def _let(self, s: Let) -> None:
        if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
            self.ranges[s.var.name] = range_of(s.value, self.ranges)
        if not has(s.value, (Load, IntrinsicCall)):
            self.lets[s.var.name] = substitute(s.value, self.lets)

    def _nodes(self, s: Stmt, active: Any, depth: int) -> Iterator[_Node]:
        if is_barrier(s):
            self.sites.append(depth)
            yield _Site(len(self.sites) - 1)
            return
        if not any(is_barrier(x) for x in walk_stmts(s)):
            found: list[int] = []
            self._work(s, active, found)
            yield _Work(tuple(dict.fromkeys(found)))
            return
        own: list[int] = []
        for e in stmt_exprs(s):
            self._loads(e, active, own)
        if own:
            yield _Work(tuple(dict.fromkeys(own)))
        match s:
            case For() if s.kind not in THREAD_AXES:
                self._range(s)
                self.outer.add(s.var.name)
                known = range_of(s.extent, self.ranges)
                yield _Loop(
                    s.var.name, known.lo is not None and known.lo > 0, tuple(self._nodes(s.body, active, depth + 1))
                )
            case While():
                yield _Loop("", False, (*self._nodes(s.body, active, depth + 1), *([_Work(tuple(own))] if own else [])))
            case If():
                then = tuple(self._nodes(s.then, self._where(s.cond, active), depth))
                yield _Branch((then, () if s.orelse is None else tuple(self._nodes(s.orelse, active, depth))))
            case Let():
                self._let(s)
                yield from self._nodes(s.body, active, depth)
            case _:
                for c in stmt_children(s):
                    yield from self._nodes(c, active, depth)

    def _range(self, s: For) -> None:
        hi = range_of(s.extent, self.ranges).hi
        self.ranges[s.var.name] = Range(0, None if hi is None else max(0, hi - 1))

    def _where(self, cond: Expr, active: Any) -> Any:
        """The threads of `active` for which a condition may hold."""
        for part in holds(cond):
            part = substitute(part, self.lets)
            names = free_vars(part).keys()
            if names and names <= self.numbers.keys() and not has(part, (Load, IntrinsicCall)):
                active = active & np.broadcast_to(evaluate(part, self.numbers), (self.threads,))
        return active

    def _work(self, s: Stmt, active: Any, found: list[int], around: tuple[For, ...] = ()) -> None:
        for e in stmt_exprs(s):
            self._loads(e, active, found, isinstance(s, Evaluate), s.within if isinstance(s, Evaluate) else ())
        match s:
            case Store():
                where = (
                    active if s.predicate is None or s.predicate.dtype.lanes > 1 else self._where(s.predicate, active)
                )
                self._note(s.buffer.name, s.buffer.scope, s.indices, "store", where, found, id(s))
                if id(s) in self.late:
                    self.places[id(s)] = tuple(substitute(i, self.lets) for i in s.indices), around, where
            case AtomicUpdate():
                self._note(s.buffer.name, s.buffer.scope, s.indices, s.op, active, found)
            case If():
                self._work(s.then, self._where(s.cond, active), found, around)
                if s.orelse is not None:
                    self._work(s.orelse, active, found, around)
                return
            case For():
                self._range(s)
                around = (*around, s)
            case Let():
                self._let(s)
        for c in stmt_children(s):
            self._work(c, active, found, around)

    def _loads(
        self, e: Expr, active: Any, found: list[int], effects: bool = False, within: tuple[Region, ...] = ()
    ) -> None:
        if isinstance(e, Load):
            self._note(e.buffer.name, e.buffer.scope, e.indices, "load", active, found)
        if (
            isinstance(e, IntrinsicCall)
            and e.name != PREFETCH
            and (effects or any(isinstance(a, Load) for a in e.args))
        ):
            # An instruction may read and write whatever it is given the address of, but for what it says.
            for a in e.args:
                if isinstance(a, Load):
                    boxes = [r for r in within if r.buffer.name == a.buffer.name]
                    for at in [self._anywhere(r) for r in boxes] or [None]:
                        self._note(a.buffer.name, a.buffer.scope, at, "store" if effects else "load", active, found)
        for c in e.children():
            self._loads(c, active, found)

    def _anywhere(self, box: Region) -> tuple[Expr, ...] | None:
        """Indices that may be any of a box; None if its extents are no numbers."""
        indices = []
        for k, (lo, n) in enumerate(box.ranges):
            extent = int_const(n)
            if extent is None:
                return None
            v = Var(f"{box.buffer.name} box {k} {extent}", lo.dtype)
            self.ranges[v.name] = Range(0, extent - 1)
            indices.append(lo if extent == 1 else add(lo, v))
        return tuple(indices)

    def _note(
        self,
        name: str,
        scope: str,
        indices: tuple[Expr, ...] | None,
        kind: str,
        active: Any,
        found: list[int],
        store: int = 0,
    ) -> None:
        if private(scope):
            return
        plain = (
            None
            if indices is None or any(i.dtype.lanes > 1 for i in indices)
            else tuple(substitute(i, self.lets) for i in indices)
        )
        self.accesses.append(_Access(self.names.get(name, name), plain, kind, active, store))
        found.append(len(self.accesses) - 1)

    # -- what may meet

    def ordered(self, body: tuple[_Node, ...], kept: set[int]) -> bool:
        return self.run(body, frozenset(), kept) is not None

    def run(self, nodes: tuple[_Node, ...], pending: Pending | None, kept: set[int]) -> Pending | None:
        """What is pending behind the nodes, if so much is before them; None if two accesses may meet."""
        for node in nodes:
            if pending is None:
                return None
            match node:
                case _Site():
                    if self.late and any(self.accesses[a].store in self.late for a, _ in pending):
                        self.waits.add(node.number)
                    pending = frozenset() if node.number in kept else pending
                case _Work():
                    if any(self._meet(a, when, b) for a, when in pending for b in node.accesses):
                        return None
                    late = [a for a in node.accesses if self.accesses[a].store in self.late] if self.late else []
                    if any(self._meet(a, frozenset(), b) for a in late for b in node.accesses if a != b):
                        return None
                    pending |= {(b, frozenset()) for b in node.accesses}
                case _Branch():
                    sides = [self.run(side, pending, kept) for side in node.sides]
                    pending = None if None in sides else frozenset().union(*(p for p in sides if p is not None))
                case _Loop():
                    pending = self._loop(node, pending, kept)
        return pending

    def _loop(self, loop: _Loop, pending: Pending, kept: set[int]) -> Pending | None:
        inside = set(_accesses(loop.body))
        seen: set[tuple[int, When]] = set()
        entering = pending
        leaving: Pending = frozenset() if loop.certain else pending
        while True:
            seen |= entering
            out = self.run(loop.body, entering, kept)
            if out is None:
                return None
            leaving |= {(a, _set(when, loop.var, "any") if a in inside else when) for a, when in out}
            entering = frozenset((a, _later(when, loop.var) if a in inside else when) for a, when in out)
            if entering <= seen:
                return leaving

    def _meet(self, a: int, when: When, b: int) -> bool:
        key = (a, when, b)
        if key not in self.memo:
            self.memo[key] = self._may_meet(self.accesses[a], dict(when), self.accesses[b])
        return self.memo[key]

    def _may_meet(self, a: _Access, when: Mapping[str, str], b: _Access) -> bool:
        """Whether different threads may touch one element, one of them writing."""
        if a.buffer != b.buffer or (a.kind == b.kind and a.kind != "store"):
            return False
        pairs = a.active[:, None] & b.active[None, :]
        if not {a.store, b.store} & self.late:
            pairs &= self.others
        if not pairs.any():
            return False
        if a.indices is None or b.indices is None or len(a.indices) != len(b.indices):
            return True
        earlier, ranges = self._renamed(a.indices, when)
        for i, j in zip(earlier, b.indices):
            apart = self._apart(i, j, ranges)
            if apart is not None:
                pairs = pairs & apart
                if not pairs.any():
                    return False
        return True

    def _renamed(self, indices: tuple[Expr, ...], when: Mapping[str, str]) -> tuple[list[Expr], dict[str, Range]]:
        """The indices of the access before, its variables apart from those of the one after; loops around barriers as
        they stood."""
        values: dict[str, Expr] = {}
        ranges = dict(self.ranges)
        for i in indices:
            for name, v in free_vars(i).items():
                if name in self.numbers:
                    values[name] = Var(f"{name} before", v.dtype)
                elif name in self.outer or name not in self.ranges or any(d.name == name for d in self.program.dims):
                    state = when.get(name)
                    known = self.ranges.get(name, Range())
                    if state == "last":
                        values[name] = sub(v, 1)
                    elif state == "earlier":
                        values[name] = sub(v, Var(f"{name} turns", v.dtype))
                        ranges[f"{name} turns"] = Range(1, known.hi)
                    elif state == "any":
                        values[name] = Var(f"{name} before", v.dtype)
                        ranges[f"{name} before"] = known
                else:
                    values[name] = Var(f"{name} before", v.dtype)
                    ranges[f"{name} before"] = self.ranges[name]
        return [substitute(i, values) for i in indices], ranges

    def _apart(self, i: Expr, j: Expr, ranges: Mapping[str, Range]) -> Any | None:
        """Of which pairs of threads the two indices may be the same; None if of any."""
        mine, before = self.numbers, {f"{n} before": v for n, v in self.numbers.items()}
        rows, columns = np.zeros(self.threads, np.int64), np.zeros(self.threads, np.int64)
        rest: dict[Expr, int] = {}
        difference = linear(i) - linear(j)
        for term, factor in difference.atoms.items():
            names = free_vars(term).keys()
            opaque = has(term, (Load, IntrinsicCall))
            if names and names <= before.keys() and not opaque:
                rows = rows + factor * evaluate(term, before)
            elif names and names <= mine.keys() and not opaque:
                columns = columns + factor * evaluate(term, mine)
            elif names & (before.keys() | mine.keys()) and reach(term, ranges) is None:
                return None
            else:
                rest[term] = factor
        values, step = distances(Polynomial.linear(rest, difference.constant), ranges)
        if step == 1:
            return None
        total = rows[:, None] + columns[None, :]  # plus one of the values must be 0
        wanted = np.unique(-values)
        if step:
            return np.isin(total % step, np.unique(wanted % step))
        return np.isin(total, wanted)


def _parts(s: Stmt) -> tuple[Stmt, ...]:
    return s.stmts if isinstance(s, Seq) else (s,)


def _accesses(nodes: tuple[_Node, ...]) -> Iterator[int]:
    for node in nodes:
        match node:
            case _Work():
                yield from node.accesses
            case _Loop():
                yield from _accesses(node.body)
            case _Branch():
                for side in node.sides:
                    yield from _accesses(side)


def _set(when: When, var: str, state: str) -> When:
    return frozenset((*((v, s) for v, s in when if v != var), *([(var, state)] if var else [])))


def _later(when: When, var: str) -> When:
    """One turn of a loop later."""
    before = dict(when).get(var)
    return when if before == "any" else _set(when, var, "last" if before is None else "earlier")


def _only(s: Stmt, stays: Callable[[], bool]) -> Stmt:
    """The statement with those of its barriers, in program order, for which `stays` says so."""
    if isinstance(s, Seq):
        return seq(*(_only(c, stays) for c in s.stmts))
    if is_barrier(s):
        return s if stays() else Seq(())
    children = stmt_children(s)
    return with_stmt_children(s, tuple(_only(c, stays) for c in children)) if children else s
