"""The form of programs for grids of groups of threads, defined in docs/architecture.md under "Grids".

program := (Allocate of scope global | Let | If | launch)*
launch  := blockIdx loops around a group, or a group alone
group   := serial loops, conditions, Lets, Allocates and phases
phase   := nested threadIdx loops, with serial code inside
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from weft import dtypes as dt
from weft.errors import LoopError
from weft.expr.nodes import Var, walk
from weft.loop.grids import BLOCK_AXES, COPY_ASYNC, COPY_BOX, THREAD_AXES
from weft.loop.nodes import (
    PREFETCH,
    Allocate,
    AtomicUpdate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    int_const,
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.printer import excerpt


def has_blocks(stmt: Stmt) -> bool:
    """Whether a loop over the groups of a grid is in `stmt`."""
    return any(isinstance(s, For) and s.kind in BLOCK_AXES for s in walk_stmts(stmt))


def has_threads(stmt: Stmt) -> bool:
    """Whether a loop over the threads of a group is in `stmt`."""
    return any(isinstance(s, For) and s.kind in THREAD_AXES for s in walk_stmts(stmt))


@dataclass(frozen=True)
class Phase:
    """Threads of a group, each with serial code; all end before the next statement begins.

    Args:
        shape: threads along x, y and z.
        vars: the loops' variables; None of an axis without a loop.
        body: what each thread does.
        loop: the outermost of the loops.
    """

    shape: tuple[int, int, int]
    vars: tuple[Var | None, Var | None, Var | None]
    body: Stmt
    loop: For

    @property
    def threads(self) -> int:
        return math.prod(self.shape)


def phase_of(program: Program, loop: For) -> Phase:
    """The phase that a loop over threads begins.

    Raises:
        LoopError: its loops over threads are no nest, one for each axis at most, of constant extents.
    """
    found: dict[str, For] = {}

    def refuse(at: Stmt, why: str, hint: str) -> LoopError:
        return LoopError(
            f"grids: the loops over threads of program '{program.name}' are no nest",
            where=excerpt(program, at=at),
            why=why,
            hint=hint,
        )

    def strip(s: Stmt) -> Stmt:
        if not has_threads(s):
            return s
        match s:
            case For() if s.kind in THREAD_AXES:
                if s.kind in found:
                    raise refuse(
                        s,
                        f"{s.kind} is taken by loop '{found[s.kind].var.name}' around it",
                        "fuse the two, or choose another axis",
                    )
                if (int_const(s.extent) or 0) < 1:
                    raise refuse(
                        s,
                        f"the extent {s.extent} of loop '{s.var.name}' is no constant",
                        "split it by a number of threads",
                    )
                found[s.kind] = s
                return strip(s.body)
            case Let():
                return replace(s, body=strip(s.body))
            case If() if s.orelse is None:
                return replace(s, then=strip(s.then))
        why = f"a {type(s).__name__} stands between loop '{loop.var.name}' and another over threads"
        raise refuse(s, why, "bring loops over threads together, around all that a thread does at a time")

    body = strip(loop)
    loops = [found.get(axis) for axis in THREAD_AXES]
    x, y, z = (1 if f is None else int_const(f.extent) or 1 for f in loops)
    a, b, c = (None if f is None else f.var for f in loops)
    return Phase((x, y, z), (a, b, c), body, loop)


def phases(program: Program, group: Stmt) -> list[Phase]:
    """The phases of a group, in program order."""
    if isinstance(group, For) and group.kind in THREAD_AXES:
        return [phase_of(program, group)]
    return [p for c in stmt_children(group) for p in phases(program, c)]


def widest(found: list[Phase]) -> Phase | None:
    """The phase that gives a group its shape: the one of most threads, of those the one of most axes, of those the
    first; None if there is none."""
    return max(found, key=lambda p: (p.threads, sum(n > 1 for n in p.shape)), default=None)


def launches(program: Program) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """Every launch, in order, with the Lets, Ifs and Allocates around it, outermost first. Of an If around it only the
    side that it is on is left."""

    def visit(stmt: Stmt, around: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
        if not has_blocks(stmt) or (isinstance(stmt, For) and stmt.kind in BLOCK_AXES):
            yield stmt, around
            return
        match stmt:
            case Seq():
                for part in _runs(stmt):
                    yield from visit(part, around)
            case Let() | Allocate():
                yield from visit(stmt.body, (*around, stmt))
            case If():
                yield from visit(stmt.then, (*around, replace(stmt, orelse=None)))
                if stmt.orelse is not None:
                    yield from visit(stmt.orelse, (*around, replace(stmt, then=Seq(()))))
            case _:
                raise _inside_a_loop(program, stmt)

    yield from visit(program.body, ())


def map_groups(program: Program, change: Callable[[Stmt], Stmt]) -> Program:
    """`program` with every group replaced by what `change` makes of it.

    Raises:
        LoopError: loops over groups stand in a loop of another kind, or side by side under one.
    """

    def visit(stmt: Stmt, inside: bool) -> Stmt:
        if not has_blocks(stmt):
            return change(stmt)
        match stmt:
            case Seq() if inside:
                raise LoopError(
                    f"grids: a group of program '{program.name}' is not all that its block loops hold",
                    where=excerpt(program, at=stmt),
                    why="loops over groups stand beside other statements in a loop over groups",
                    hint="bind loops to blocks that hold everything of a launch",
                )  # fmt: skip
            case Seq():
                return seq(*(visit(part, False) for part in _runs(stmt)))
            case For() if stmt.kind in BLOCK_AXES:
                return replace(stmt, body=visit(stmt.body, True))
            case Let() | Allocate() | If():
                return with_stmt_children(stmt, tuple(visit(c, inside) for c in stmt_children(stmt)))
        raise _inside_a_loop(program, stmt)

    return program.with_body(visit(program.body, False))


def _runs(stmt: Seq) -> list[Stmt]:
    """The statements of a sequence, those beside each other that need no grid as one."""
    runs: list[Stmt] = []
    plain: list[Stmt] = []
    for s in stmt.stmts:
        if has_blocks(s):
            runs += [seq(*plain), s] if plain else [s]
            plain = []
        else:
            plain.append(s)
    return [*runs, seq(*plain)] if plain else runs


def _inside_a_loop(program: Program, stmt: Stmt) -> LoopError:
    return LoopError(
        f"grids: program '{program.name}' has loops over groups in another loop", where=excerpt(program, at=stmt),
        why="a launch is a whole grid: the host would have to launch it again and again",
        hint="bind the outermost loops to blocks",
    )  # fmt: skip


def written_in(stmt: Stmt) -> set[str]:
    """Names of the buffers that a statement may write: an intrinsic may write through any address that it is given, a
    copy where it goes to."""
    written: set[str] = set()
    for s in walk_stmts(stmt):
        if isinstance(s, (Store, AtomicUpdate)):
            written.add(s.buffer.name)
        for e in stmt_exprs(s):
            for n in walk(e):
                if isinstance(n, IntrinsicCall) and n.dtype == dt.handle and n.name != PREFETCH:
                    changed = n.args[:1] if n.name in (COPY_ASYNC, COPY_BOX) else n.args
                    written |= {a.buffer.name for a in changed if isinstance(a, Load)}
    return written
