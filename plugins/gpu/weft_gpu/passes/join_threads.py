"""Puts one nest of loops over threads around the body of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import (
    BitXor,
    Const,
    Expr,
    Var,
    all_of,
    eq,
    floordiv,
    floormod,
    free_vars,
    has,
    lt,
    mul,
    not_,
    walk,
)
from weft.expr.nodes import transform as transform_expr
from weft.loop.grids import FRAGMENT, SHUFFLE, THREAD_AXES, WHOLE_WARP, private
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    int64,
    int_const,
    map_stmt_exprs,
    replace_buffers,
    seq,
    stmt_children,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
)
from weft.loop.passes.copies import EMPTY, Names, copy_stmt, if_stmt, is_empty
from weft.loop.printer import excerpt
from weft_gpu.grids import Phase, has_threads, map_groups, phase_of, phases, widest
from weft_gpu.passes.private_buffers import bit_between


def barrier() -> Evaluate:
    """Threads of a group wait here for each other."""
    return Evaluate(IntrinsicCall("barrier", ()))


def join_threads(program: Program) -> Program:
    """Puts one nest of loops over threads around each group, as wide as its widest phase, and a barrier behind every
    phase.

    Narrower phases stand under a condition; threads keep their numbers where a phase has another shape. What no phase
    holds is done by thread 0. Of a buffer that threads have parts of (`private_buffers`) each allocates its own; shared
    buffers are allocated around the nest, in one another's place where they do not live at the same time. What a phase
    loads of another thread's part, at `t ^ bit`, that thread hands over: all threads of the group shuffle, also those
    that the phase has not or that a condition in it leaves out.

    allocate s in shared { for t in 64 threadIdx.x {A} for u in 8 threadIdx.x {B} }
    →   allocate s in shared { for t in 64 threadIdx.x { A @barrier() if t < 8 {B} @barrier() } }

    Raises:
        LoopError: a condition, an extent or a Let around phases depends on what threads write; a barrier stands in a
            phase of some of the threads; or not all threads would come to a shuffle.
    """
    if not has_threads(program.body):
        return program
    return map_groups(program, lambda group: _Group(program, group).joined() if has_threads(group) else group)


class _Group:
    def __init__(self, program: Program, group: Stmt) -> None:
        self.program, self.group = program, group
        found = phases(program, group)
        widest_ = widest(found)
        assert widest_ is not None
        self.base: Phase = widest_
        self.written = _written(group)
        # The loops of the widest phase go: their names are free for the nest.
        self.vars = [v if n > 1 or self.base.threads == 1 else None for v, n in zip(self.base.vars, self.base.shape)]
        self.names: Names | None = None  # made where one is wanted
        self.used = {name for name, _ in _accesses(group)}  # a last step that brings nothing ahead needs no room for it
        self.parts = {name: n for name, n in self._parts(found).items() if n}
        self.whole = {
            s.buffer.name: s.buffer
            for s in walk_stmts(group)
            if isinstance(s, Allocate) and s.buffer.name in self.parts
        }

    def joined(self) -> Stmt:
        body = self._stmt(self.group)
        allocated: list[Buffer] = []
        body = self._without_shared(body, allocated)
        for var, extent, axis in zip(self.vars, self.base.shape, THREAD_AXES):
            if var is not None:
                body = For(var, int64(extent), body, axis)
        for b in reversed(allocated):
            body = Allocate(b, body)
        return body

    # -- statements of the group

    def _stmt(self, s: Stmt) -> Stmt:
        if not has_threads(s):
            return seq(self._alone(s), barrier())
        match s:
            case Seq():
                return self._seq(s)
            case For() if s.kind in THREAD_AXES:
                return seq(self._phase(s), barrier())
            case For():
                self._uniform(s, f"the extent of loop '{s.var.name}'")
                return seq(replace(s, body=self._stmt(s.body)), barrier())
            case While():
                self._uniform(s, "the condition of a while")
                return seq(replace(s, body=self._stmt(s.body)), barrier())
            case If():
                self._uniform(s, "a condition")
                then = EMPTY if is_empty(s.then) else self._stmt(s.then)
                return seq(If(s.cond, then, None if s.orelse is None else self._stmt(s.orelse)), barrier())
            case Let():
                self._uniform(s, f"'{s.var.name}'")
                return replace(s, body=self._stmt(s.body))
            case Allocate() if s.buffer.name not in self.used:
                return self._stmt(s.body)
            case Allocate():
                n = self.parts.get(s.buffer.name, 0)
                return Allocate(replace(s.buffer, shape=s.buffer.shape[n:]), self._stmt(s.body))
        raise LoopError(
            f"join_threads: a {type(s).__name__} around loops over threads", where=excerpt(self.program, at=s)
        )

    def _seq(self, s: Seq) -> Stmt:
        done: list[Stmt] = []
        alone: list[Stmt] = []
        for c in (*s.stmts, None):
            if c is not None and not has_threads(c):
                alone.append(c)
                continue
            if alone:
                done.append(self._stmt(seq(*alone)))
                alone = []
            if c is not None:
                done.append(self._stmt(c))
        return seq(*done)

    def _alone(self, s: Stmt) -> Stmt:
        """By thread 0."""
        return (
            if_stmt(all_of(eq(v, 0) for v in self.vars if v is not None), self._own(s))
            if self.base.threads > 1
            else self._own(s)
        )

    def _phase(self, loop: For) -> Stmt:
        phase = phase_of(self.program, loop)
        conditions, values = self._warps(phase) if works_in_warps(phase) else self._numbers(phase)
        if conditions and any(isinstance(s, Evaluate) and s.call.name == "barrier" for s in walk_stmts(phase.body)):
            raise LoopError(
                f"join_threads: a barrier in loop '{loop.var.name}' is not reached by all threads of the group",
                where=excerpt(self.program, at=loop),
                why=f"the loop has {phase.threads} threads, the group {self.base.threads}",
                hint="end the loop where the barrier is, and begin another",
            )  # fmt: skip
        body, shuffles = phase.body, self._shuffles(phase)
        if shuffles:
            body, conditions = self._shuffled(phase, body, shuffles, conditions), []
        body = self._own(body)
        known = {name: v for name, v in values.items() if isinstance(v, Var) or int_const(v) is not None}
        body = copy_stmt(body, known, None)
        for v in phase.vars:
            if v is not None and v.name not in known:
                body = Let(v, values[v.name], body)
        return if_stmt(all_of(conditions), body)

    # -- what threads of a warp hand each other

    def _shuffles(self, phase: Phase) -> dict[Load, IntrinsicCall]:
        """What a phase loads of other threads' parts of buffers → how they hand it over."""
        found: dict[Load, IntrinsicCall] = {}
        stored = {s.buffer.name for s in walk_stmts(phase.body) if isinstance(s, (Store, AtomicUpdate))}
        for s in walk_stmts(phase.body):
            for e in (x for root in stmt_exprs(s) for x in walk(root)):
                n = self.parts.get(e.buffer.name, 0) if isinstance(e, Load) else 0
                if isinstance(e, Load) and e not in found and any(has(i, BitXor) for i in e.indices[:n]):
                    if e.buffer.name in stored:
                        raise self._refused(
                            s,
                            f"the phase changes '{e.buffer.name}', which others load in it",
                            "store to another buffer",
                        )
                    own = (
                        *(transform_expr(i, lambda x: x.a if isinstance(x, BitXor) else None) for i in e.indices[:n]),
                        *e.indices[n:],
                    )
                    there, here = (self._values(phase, at[:n]) for at in (e.indices, own))
                    bit = bit_between(there, here, np.ones(phase.threads, bool))
                    if not bit:
                        raise self._refused(
                            s,
                            f"the thread that has {e} does not differ in one bit of its number",
                            "t ^ bit is another thread of the warp",
                        )
                    if self.base.shape[0] % (2 * bit):
                        why = f"{self.base.shape[0]} threads along x are not whole pairs of {bit}"
                        raise self._refused(s, why, "bind as many threads as are in a warp to threadIdx.x")
                    found[e] = IntrinsicCall(SHUFFLE, (Load(e.buffer, own), Const(bit, dt.int32)), e.dtype)
        return found

    def _values(self, phase: Phase, indices: tuple[Expr, ...]) -> Any:
        """Indices by the thread's number."""
        number = np.arange(phase.threads)
        values: dict[str, Any] = {}
        for var, extent in zip(phase.vars, phase.shape):
            if var is not None:
                values[var.name] = number % extent
            number = number // extent
        for name, value in _lets(phase.body, set(values)).items():
            values[name] = evaluate(value, values)
        return np.stack([np.broadcast_to(evaluate(i, values), (phase.threads,)) for i in indices])

    def _shuffled(self, phase: Phase, s: Stmt, shuffles: Mapping[Load, IntrinsicCall], conditions: list[Expr]) -> Stmt:
        """The statement with its shuffles in front of each store, out of all conditions: what is under conditions is
        the store."""
        threads = {v.name for v in phase.vars if v is not None}
        threads |= _lets(phase.body, threads).keys()

        def visit(s: Stmt, conditions: list[Expr]) -> Stmt:
            match s:
                case Seq():
                    return seq(*(visit(c, conditions) for c in s.stmts))
                case Allocate():
                    return replace(s, body=visit(s.body, conditions))
                case For() if not (free_vars(s.extent).keys() & threads or has(s.extent, Load)):
                    return replace(s, body=visit(s.body, conditions))
                case Let() if not has(s.value, Load):
                    return replace(s, body=visit(s.body, conditions))
                case If() if not has(s.cond, Load):
                    then = visit(s.then, [*conditions, s.cond])
                    return then if s.orelse is None else seq(then, visit(s.orelse, [*conditions, not_(s.cond)]))
                case Store() | AtomicUpdate():
                    used = {
                        e: Var(self._fresh(e.buffer.name), e.dtype)
                        for root in stmt_exprs(s)
                        for e in walk(root)
                        if isinstance(e, Load) and e in shuffles
                    }
                    result = if_stmt(
                        all_of(conditions),
                        map_stmt_exprs(
                            s, lambda x: transform_expr(x, lambda e: used.get(e) if isinstance(e, Load) else None)
                        ),
                    )
                    for e, v in used.items():
                        result = Let(v, shuffles[e], result)
                    return result
            raise self._refused(
                s,
                "a statement around a shuffle is not the same for all threads",
                "let loops around be as long for all threads",
            )

        return visit(s, conditions)

    def _fresh(self, stem: str) -> str:
        if self.names is None:
            self.names = Names.of(self.program)
        return self.names.fresh(f"{stem}_other")

    def _refused(self, s: Stmt, why: str, hint: str) -> LoopError:
        return LoopError(
            "join_threads: not all threads of the warp would come to a shuffle",
            where=excerpt(self.program, at=s),
            why=why,
            hint=hint,
        )

    def _warps(self, phase: Phase) -> tuple[list[Expr], dict[str, Expr]]:
        """As `_numbers`, of a phase whose threads are warps, each of all threads along x: its instructions are reached
        by all of them."""
        x, *_ = self.vars
        if phase.vars[0] is not None or x is None or phase.shape[1:] != self.base.shape[1:]:
            raise LoopError(
                f"join_threads: loop '{phase.loop.var.name}' is not one of warps", where=excerpt(self.program,
                    at=phase.loop),
                why=f"it uses fragments and has the threads {phase.shape}, the group {self.base.shape}",
                hint="bind warps to threadIdx.y, and in other phases their lanes to threadIdx.x",
            )  # fmt: skip
        values: dict[str, Expr] = {
            v.name: mine if mine is not None else int64(0) for v, mine in zip(phase.vars, self.vars) if v is not None
        }
        return [IntrinsicCall(WHOLE_WARP, (x,), dt.bool_)], values

    def _numbers(self, phase: Phase) -> tuple[list[Expr], dict[str, Expr]]:
        """Which threads of the group the phase has, and its variables in terms of the nest's."""
        mine = [v if v is not None else int64(0) for v in self.vars]
        last = max((k for k in range(3) if phase.shape[k] > 1), default=0)
        if (
            all(phase.shape[k] == self.base.shape[k] for k in range(last))
            and phase.shape[last] <= self.base.shape[last]
        ):
            conditions = [lt(mine[last], phase.shape[last])] if phase.shape[last] < self.base.shape[last] else []
            conditions += [eq(mine[k], 0) for k in range(last + 1, 3) if self.base.shape[k] > 1]
            return conditions, {
                v.name: mine[k] if phase.shape[k] > 1 else int64(0) for k, v in enumerate(phase.vars) if v is not None
            }
        number: Expr = int64(0)
        below = 1
        for v, n in zip(mine, self.base.shape):
            number, below = number + mul(v, below), below * n
        values: dict[str, Expr] = {}
        below = 1
        for k, (var, n) in enumerate(zip(phase.vars, phase.shape)):
            if var is not None:
                digit = floordiv(number, below)
                values[var.name] = digit if k == last else floormod(digit, n)
            below *= n
        return [lt(number, phase.threads)] if phase.threads < self.base.threads else [], values

    def _uniform(self, s: Stmt, what: str) -> None:
        for e in stmt_exprs(s):
            name = _read(e, self.written)
            if name is not None:
                raise LoopError(
                    f"join_threads: {what} around loops over threads may differ from thread to thread",
                    where=excerpt(self.program, at=s),
                    why=f"it depends on buffer '{name}', which the group writes",
                    hint="put it into the loops over threads, or into a launch of its own",
                )  # fmt: skip

    # -- buffers

    def _parts(self, found: list[Phase]) -> dict[str, int]:
        """Buffers of the group that threads have parts of → how many first dimensions are the threads'."""
        inside = {s.buffer.name for p in found for s in walk_stmts(p.body) if isinstance(s, Allocate)}
        mine = {
            s.buffer.name for s in walk_stmts(self.group) if isinstance(s, Allocate) and private(s.buffer.scope)
        } - inside
        parts: dict[str, int] = {}
        for p in found:
            threads = {v.name for v in p.vars if v is not None}
            lets = dict(_lets(p.body, threads))
            for name, indices in _accesses(p.body):
                if name in mine:
                    n = 0
                    while n < len(indices) and _told(indices[n], threads | lets.keys()):
                        n += 1
                    parts[name] = max(
                        n, parts.get(name, 0)
                    )  # where a phase has few threads, their index may be a number
        return parts

    def _own(self, s: Stmt) -> Stmt:
        """Accesses to a thread's part of a buffer, without the thread."""
        parts = self.parts
        if not parts:
            return s

        def part(b: Buffer) -> Buffer:
            return replace(b, shape=b.shape[parts[b.name] :])

        def load(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer == self.whole.get(
                e.buffer.name
            ):  # 1*acc[t] becomes acc[t], and is met again
                return Load(part(e.buffer), e.indices[parts[e.buffer.name] :], e.predicate)
            return None

        def rule(x: Stmt) -> Stmt | None:
            x = map_stmt_exprs(x, lambda e: transform_expr(e, load))
            if isinstance(x, (Store, AtomicUpdate)) and x.buffer.name in parts:
                return replace(x, buffer=part(x.buffer), indices=x.indices[parts[x.buffer.name] :])
            return x

        return transform_stmts(s, rule)

    def _without_shared(self, body: Stmt, allocated: list[Buffer]) -> Stmt:
        """The body without its allocations of memory that threads share; `allocated` gets what must be allocated around
        it."""
        free: list[Buffer] = []
        moved: dict[str, Buffer] = {}

        def visit(s: Stmt) -> None:
            if not isinstance(s, Allocate) or private(s.buffer.scope):
                for c in stmt_children(s):
                    visit(c)
                return
            b = s.buffer
            unknown = sorted(_sized_by(b) - {d.name for d in self.program.dims})
            if unknown:
                raise LoopError(
                    f"join_threads: the size of buffer '{b.name}' of scope {b.scope} depends on '{unknown[0]}'",
                    where=excerpt(self.program, (b.name,)),
                    why="it is allocated around the threads, where that has no value", hint="allocate the upper bound",
                )  # fmt: skip
            same = next((f for f in free if (f.shape, f.dtype, f.scope) == (b.shape, b.dtype, b.scope)), None)
            if same is None:
                allocated.append(b)
                mine = b
            else:
                free.remove(same)
                mine = moved[b.name] = same
            visit(s.body)
            free.append(mine)

        visit(body)
        body = transform_stmts(
            body, lambda s: s.body if isinstance(s, Allocate) and not private(s.buffer.scope) else None
        )
        return replace_buffers(body, moved) if moved else body


def works_in_warps(phase: Phase) -> bool:
    """Whether a phase uses fragments, which the threads of a warp hold together."""
    loads = (e for s in walk_stmts(phase.body) for x in stmt_exprs(s) for e in walk(x) if isinstance(e, Load))
    return any(e.buffer.scope.partition(".")[0] == FRAGMENT for e in loads)


def _told(index: Expr, threads: set[str]) -> bool:
    """Whether an index is a formula of the thread alone."""
    names = free_vars(index).keys()
    return bool(names) and names <= threads and not has(index, (Load, IntrinsicCall))


def _sized_by(b: Buffer) -> set[str]:
    return {v for d in b.shape for v in free_vars(d)}


def _lets(body: Stmt, threads: set[str]) -> Mapping[str, Expr]:
    """Lets that depend on the thread alone."""
    found: dict[str, Expr] = {}
    for s in walk_stmts(body):
        if isinstance(s, Let) and not has(s.value, (Load, IntrinsicCall)):
            names = free_vars(s.value).keys()
            if names and names <= threads | found.keys():
                found[s.var.name] = s.value
    return found


def _accesses(s: Stmt) -> list[tuple[str, tuple[Expr, ...]]]:
    found: list[tuple[str, tuple[Expr, ...]]] = []
    for x in walk_stmts(s):
        if isinstance(x, (Store, AtomicUpdate)):
            found.append((x.buffer.name, x.indices))
        stack = list(stmt_exprs(x))
        while stack:
            e = stack.pop()
            if isinstance(e, Load):
                found.append((e.buffer.name, e.indices))
            stack += e.children()
    return found


def _written(group: Stmt) -> set[str]:
    """Buffers that a group may write: an instruction may write through any address that it is given."""
    names: set[str] = set()
    for s in walk_stmts(group):
        if isinstance(s, (Store, AtomicUpdate)):
            names.add(s.buffer.name)
        elif isinstance(s, Evaluate):
            names |= {a.buffer.name for a in s.call.args if isinstance(a, Load)}
    return names


def _read(e: Expr, names: set[str]) -> str | None:
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Load) and x.buffer.name in names:
            return x.buffer.name
        stack += x.children()
    return None
