"""Puts the thread first in the indices of a group's buffers that belong to its threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.errors import LoopError
from weft.expr.evaluate import evaluate
from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import BitXor, Expr, add, floordiv, floormod, free_vars, has, mul, substitute, transform
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import simplify
from weft.loop.grids import THREAD_AXES, private
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Buffer,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int64,
    int_const,
    map_stmt_exprs,
    stmt_children,
    stmt_exprs,
    transform_stmts,
)
from weft.loop.passes.simplify import holds
from weft.loop.printer import excerpt
from weft_gpu.grids import Phase, has_threads, map_groups, phase_of


def private_buffers(program: Program) -> Program:
    """Gives buffers of a group that each thread has a part of the threads as their first dimensions.

    A buffer that is allocated outside all loops over threads, in a scope that is neither global nor shared (`register`,
    say), lives from phase to phase. Every element must be one thread's: in every dimension the index is a sum of
    digits, some of which are formulas of the thread alone, and those tell the threads apart. What a phase loads may be
    another thread's, at `t ^ bit`, which its warp hands over: join_threads says so.

    allocate acc: float32[64, 64] in register … acc[ty*4 + i, j*16 + tx]   →   allocate acc: float32[16, 16, 4, 4] in
                                                                           register … acc[ty, tx, i, j]

    Raises:
        LoopError: threads share a buffer of such a scope, or it is not certain that they do not; says by which access.
    """
    if not has_threads(program.body):
        return program
    return map_groups(program, lambda group: _Group(program, group).change() if has_threads(group) else group)


@dataclass(frozen=True)
class _Access:
    """`phase` None: outside the loops over threads. `active`: which of its threads may be here. `address`: an
    instruction gets its address. `load`: it is only read."""

    stmt: Stmt
    indices: tuple[Expr, ...]
    phase: Phase | None
    active: Any
    address: bool = False
    load: bool = False


@dataclass(frozen=True)
class _Digit:
    """A formula of the thread in an index: factor, values by the thread's number, how many there may be, the
    formula."""

    factor: int
    values: Any
    count: int
    term: Expr


class _Group:
    """One group: finds who uses its buffers how, and rewrites them."""

    def __init__(self, program: Program, group: Stmt) -> None:
        self.program, self.group = program, group
        self.ranges: dict[str, Range] = {d.name: Range(0, None) for d in program.dims}
        self.lets: dict[str, Expr] = {}
        self.allocated: dict[str, Buffer] = {}
        self.accesses: dict[str, list[_Access]] = {}
        self.numbers: dict[str, Any] = {}  # loops over threads → their values by the thread's number
        self._collect(group, None, None)

    def change(self) -> Stmt:
        changed: dict[str, tuple[Buffer, Mapping[tuple[Expr, ...], tuple[Expr, ...]]]] = {}
        for name, b in self.allocated.items():
            uses = self.accesses.get(name, [])
            if any(u.phase is not None for u in uses):
                found = self._digits_first(b, uses)
                if found is not None:
                    changed[name] = found
        if not changed:
            return self.group

        done: dict[int, Load] = {}  # by identity: a new buffer may look as the old one did

        def load(e: Expr) -> Expr | None:
            if (
                isinstance(e, Load) and e.buffer.name in changed and id(e) not in done
            ):  # 1*acc[t] becomes acc[t], and is met again
                b, indices = changed[e.buffer.name]
                new = Load(b, indices[self._plain(e.indices)], e.predicate)
                done[id(new)] = new
                return new
            return None

        def rule(s: Stmt) -> Stmt | None:
            s = map_stmt_exprs(s, lambda e: transform(e, load))
            if isinstance(s, (Store, AtomicUpdate)) and s.buffer.name in changed:
                b, indices = changed[s.buffer.name]
                return replace(s, buffer=b, indices=indices[self._plain(s.indices)])
            if isinstance(s, Allocate) and s.buffer.name in changed:
                return replace(s, buffer=changed[s.buffer.name][0])
            return s

        return transform_stmts(self.group, rule)

    # -- who uses what

    def _plain(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(substitute(i, self.lets) for i in indices) if self.lets else tuple(indices)

    def _collect(self, s: Stmt, phase: Phase | None, active: Any) -> None:
        if isinstance(s, For) and s.kind in THREAD_AXES and phase is None:
            phase = phase_of(self.program, s)
            number, active = np.arange(phase.threads), np.ones(phase.threads, bool)
            for var, extent in zip(phase.vars, phase.shape):
                if var is not None:
                    self.numbers[var.name] = number % extent
                number = number // extent
        if isinstance(s, Allocate) and phase is None and private(s.buffer.scope):
            self.allocated[s.buffer.name] = s.buffer
        for e in stmt_exprs(s):
            self._loads(e, s, phase, active)
        if isinstance(s, (Store, AtomicUpdate)) and s.buffer.name in self.allocated:
            self.accesses.setdefault(s.buffer.name, []).append(_Access(s, self._plain(s.indices), phase, active))
        if isinstance(s, For):
            hi = range_of(s.extent, self.ranges).hi
            self.ranges[s.var.name] = Range(0, None if hi is None else max(0, hi - 1))
        elif isinstance(s, Let) and s.var.dtype.is_integer and s.var.dtype.lanes == 1:
            self.ranges[s.var.name] = range_of(s.value, self.ranges)
            if not has(s.value, (Load, IntrinsicCall)):
                self.lets[s.var.name] = substitute(s.value, self.lets)
        for c in stmt_children(s):
            if isinstance(s, If) and c is s.then and phase is not None:
                self._collect(c, phase, self._where(s.cond, active))
            else:
                self._collect(c, phase, active)

    def _where(self, cond: Expr, active: Any) -> Any:
        """The threads of `active` for which a condition may hold: of those, an index may say less than of all."""
        for part in holds(cond):
            part = substitute(part, self.lets)
            names = free_vars(part).keys()
            if names and names <= self.numbers.keys() and not has(part, (Load, IntrinsicCall)):
                active = active & np.broadcast_to(evaluate(part, self.numbers), active.shape)
        return active

    def _loads(self, e: Expr, s: Stmt, phase: Phase | None, active: Any, address: bool = False) -> None:
        if isinstance(e, Load) and e.buffer.name in self.allocated:
            self.accesses.setdefault(e.buffer.name, []).append(
                _Access(s, self._plain(e.indices), phase, active, address, not address)
            )
        for c in e.children():
            self._loads(c, s, phase, active, isinstance(e, IntrinsicCall))

    # -- digits

    def _digits_first(
        self, b: Buffer, uses: list[_Access]
    ) -> tuple[Buffer, dict[tuple[Expr, ...], tuple[Expr, ...]]] | None:
        """The buffer with the threads' digits as its first dimensions, and what its indices become; None if it has them
        there."""
        for u in uses:
            if u.phase is None:
                raise self._shared(b, u, "code outside the loops over threads uses it, and they do, too")
        splits: list[list[tuple[list[_Digit], Polynomial]]] = [[] for _ in uses]
        open_: LoopError | None = None
        for k in range(len(b.shape)):
            try:
                found = [self._split(b, u, u.indices[k]) for u in uses]
            except LoopError as error:  # within a thread's part, if the other dimensions tell threads apart
                open_, found = open_ or error, [([], linear(u.indices[k])) for u in uses]
            for split, part in zip(splits, found):
                split.append(part)
        try:
            dims = self._digits(b, uses, splits)
        except LoopError as error:
            if not self._without_parts(uses, splits):
                raise
            open_, dims = open_ or error, self._digits(b, uses, splits)
        for u, split in zip(uses, splits):
            assert u.phase is not None
            columns = [d.values for own, _ in split for d in own]
            told = len(np.unique(np.stack(columns, 1)[u.active], axis=0)) if columns else 1
            if told < int(u.active.sum()):
                if open_ is not None:
                    raise open_
                raise self._shared(
                    b,
                    u,
                    (
                        f"its indices distinguish {told} of {u.active.sum()} threads"
                        if columns
                        else "no thread is among its indices"
                    ),
                )
        met = next(self._meeting(uses, splits), None)
        if met is not None:
            raise self._shared(b, met, "its indices distinguish its own threads, but not those of other accesses")
        pieces = [self._pieces(b, k, digits) for k, digits in enumerate(dims)]
        threads = [int64(d.count) for digits in dims for d in reversed(digits)]
        result = replace(b, shape=(*threads, *(n for dim in pieces for n in dim if n is not None)))
        there = sum(bool(digits) for digits in dims)  # dimensions that the threads have
        first = all(dims[:there]) and len(threads) == there and all(n is None for dim in pieces[:there] for n in dim)
        if first:
            return None
        indices: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}
        for u, split in zip(uses, splits):
            if u.address:
                raise self._shared(
                    b, u, "an instruction gets its address, and its threads are not its first dimensions"
                )
            own = [x for digits, (mine, _) in zip(dims, split) for x in _as_digits(mine, digits)]
            rest = [x for k, (_, left) in enumerate(split) for x in self._rest(b, u, k, dims[k], left, pieces[k])]
            indices[u.indices] = (*own, *rest)
        return result, indices

    def _split(self, b: Buffer, u: _Access, index: Expr) -> tuple[list[_Digit], Polynomial]:
        """The digits that a thread has in an index, least first, and what is left of it."""
        assert u.phase is not None
        mine = {v.name for v in u.phase.vars if v is not None}
        form = linear(index)
        digits: list[_Digit] = []
        for term, factor in sorted(form.atoms.items(), key=lambda t: t[1]):
            names = free_vars(term).keys()
            if not names & mine:
                continue
            if names - mine or has(term, (Load, IntrinsicCall)) or factor < 1:
                raise self._shared(b, u, f"the part {term} of index {index} is no formula of the thread alone")
            values = np.broadcast_to(evaluate(term, self.numbers), (u.phase.threads,))
            if int(values[u.active].min(initial=0)) < 0:
                raise self._shared(b, u, f"the part {term} of index {index} may be below 0")
            last = digits[-1] if digits else None
            if last is not None and factor == last.factor * last.count:  # two digits with nothing between are one
                joined = last.values + last.count * values
                digits[-1] = _Digit(last.factor, joined, int(joined.max()) + 1, add(last.term, mul(term, last.count)))
            else:
                digits.append(_Digit(factor, values, int(values.max()) + 1, term))
        return digits, Polynomial.linear(
            {t: k for t, k in form.atoms.items() if not free_vars(t).keys() & mine}, form.constant
        )

    @staticmethod
    def _meeting(uses: list[_Access], splits: list[list[tuple[list[_Digit], Polynomial]]]) -> Iterator[_Access]:
        """Accesses whose threads have elements that other threads have elsewhere."""
        owner: dict[tuple[int, ...], int] = {}
        for u, split in zip(uses, splits):
            if u.phase is None or (u.load and any(has(i, BitXor) for i in u.indices)):
                continue  # what a warp hands over is another thread's
            whole = np.stack([_whole(digits, u.phase.threads) for digits, _ in split], 1)
            if any(owner.setdefault(tuple(whole[t].tolist()), int(t)) != t for t in np.flatnonzero(u.active)):
                yield u

    def _without_parts(self, uses: list[_Access], splits: list[list[tuple[list[_Digit], Polynomial]]]) -> bool:
        """Makes dimensions whose accesses have different formulas of the thread, as halves of a loop that begin where
        the thread says, ones within a thread's part; whether there are such."""
        most, changed = splits[_most(uses)], False
        for k, (digits, _) in enumerate(most):
            parts = [
                (_whole(split[k][0], u.phase.threads), _whole(digits, u.phase.threads), u.active)
                for u, split in zip(uses, splits)
                if u.phase is not None
            ]
            if any(bit_between(mine, whole, active) is None for mine, whole, active in parts):
                changed = True
                for u, split in zip(uses, splits):
                    split[k] = [], linear(u.indices[k])
        return changed

    def _digits(
        self, b: Buffer, uses: list[_Access], splits: list[list[tuple[list[_Digit], Polynomial]]]
    ) -> list[list[_Digit]]:
        """The digits of every dimension: those of the most threads that store, which others agree with, or whose warps
        hand over what they load."""
        dims = [digits for digits, _ in splits[_most(uses)]]
        for u, split in zip(uses, splits):
            assert u.phase is not None
            n = u.phase.threads
            mine = np.stack([_whole(digits, n) for digits, _ in split])
            whole = np.stack([_whole(digits, n) for digits in dims])
            bit = bit_between(mine, whole, u.active)
            if bit is None or (bit and not (u.load and any(has(i, BitXor) for i in u.indices))):
                raise self._shared(b, u, "accesses give its elements to different threads")
        return dims

    def _pieces(self, b: Buffer, k: int, digits: list[_Digit]) -> list[Expr | None]:
        """Extents of what dimension `k` holds above, between and below its digits, greatest first; None where nothing
        is."""
        if not digits:
            return [b.shape[k]]
        n = int_const(simplify(b.shape[k]))
        if n is None:
            raise LoopError(
                f"private_buffers: dimension {k} of buffer '{b.name}' is {b.shape[k]}, no constant",
                where=excerpt(self.program, (b.name,)),
            )
        units = [1, *(d.factor * d.count for d in digits)]
        limits = [*(d.factor for d in digits), -(-n // units[-1]) * units[-1]]
        counts = [limit // unit for limit, unit in zip(limits, units)]
        return [int64(c) if c > 1 else None for c in reversed(counts)]

    def _rest(
        self, b: Buffer, u: _Access, k: int, digits: list[_Digit], left: Polynomial, pieces: list[Expr | None]
    ) -> list[Expr]:
        """Indices of the pieces."""
        units = [1, *(d.factor * d.count for d in digits)]
        limits: list[int | None] = [*(d.factor for d in digits), None]
        atoms: list[dict[Expr, int]] = [{} for _ in units]
        for term, factor in left.atoms.items():
            j = max(j for j, unit in enumerate(units) if factor % unit == 0)
            atoms[j][term] = factor // units[j]
        parts: list[Polynomial] = []
        constant = left.constant
        for own, unit in zip(reversed(atoms), reversed(units)):
            parts.insert(0, Polynomial.linear(own, constant // unit))
            constant %= unit
        found = []
        for j, (part, unit, limit) in enumerate(zip(parts, units, limits)):
            reach = range_of(part.expr(), self.ranges)
            if digits and (
                reach.lo is None
                or reach.lo < 0
                or (limit is not None and (reach.hi is None or reach.hi * unit >= limit))
            ):
                raise self._shared(b, u, f"the part {part.expr()} of index {k} may reach another thread's elements")
            if pieces[len(units) - 1 - j] is not None:
                found.append(part.expr())
        return found[::-1]

    def _shared(self, b: Buffer, u: _Access, why: str) -> LoopError:
        return LoopError(
            f"private_buffers: threads share buffer '{b.name}' of scope {b.scope},"
            " or it is not certain that they do not",
            where=excerpt(self.program, at=u.stmt), why=why,
            hint="allocate it in scope shared, or inside the loops over threads",
        )  # fmt: skip


def _most(uses: Sequence[_Access]) -> int:
    """The access of the most threads that store."""
    return max(range(len(uses)), key=lambda j: (not uses[j].load, int(uses[j].active.sum())))


def bit_between(mine: Any, others: Any, active: Any) -> int | None:
    """The bit in which the number of each thread differs from that of the thread whose element it uses; 0: each uses
    its own; None: there is no such bit.

    Args:
        mine, others: by the thread's number, in the last axis: what tells apart the elements that it uses, and those
            that it has.
        active: which threads use any.
    """
    numbers = np.flatnonzero(active)
    for bit in (0, *(1 << k for k in range(len(active).bit_length()))):
        if (numbers ^ bit).max(initial=0) < len(active) and np.array_equal(
            mine[..., numbers], others[..., numbers ^ bit]
        ):
            return bit
    return None


def _whole(digits: list[_Digit], threads: int) -> Any:
    """What the digits of the first so many threads add up to; -1 of threads beyond those that have digits."""
    total = np.zeros(threads, np.int64)
    for d in digits:
        total[: len(d.values)] += d.factor * d.values[:threads]
    if digits:
        total[len(digits[0].values) :] = -1
    return total


def _as_digits(own: list[_Digit], digits: list[_Digit]) -> list[Expr]:
    """The digits, greatest first, as formulas of an access that has written their sum in its own way."""
    if [d.factor for d in own] == [d.factor for d in digits]:
        return [d.term for d in reversed(own)]
    total: Expr = int64(0)
    for d in own:
        total = add(total, mul(d.term, d.factor))
    return [floormod(floordiv(total, d.factor), d.count) for d in reversed(digits)]
