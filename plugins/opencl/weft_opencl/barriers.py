"""Loops around barriers as PoCL takes them: one that has another loop before its first barrier begins with a barrier.

Without, PoCL 3.1 finds no end of what work items do between two barriers and ends the process ("ParallelRegion::Create:
Assertion `exit != NULL' failed"). A barrier more orders no less. Where a loop ends with one, that is moved: in turn
after turn it stands between the same two things.
"""

from __future__ import annotations

from dataclasses import replace

from weft.loop.nodes import (
    Allocate,
    Evaluate,
    For,
    IntrinsicCall,
    Let,
    Program,
    Seq,
    Stmt,
    While,
    seq,
    stmt_children,
    transform_stmts,
    walk_stmts,
)

_BARRIER = Evaluate(IntrinsicCall("barrier", ()))


def begin_with_barriers(program: Program) -> Program:
    """A barrier at the beginning of each loop around barriers that has a loop before the first of them.

    for t in 8 { for r in 4 {A} @barrier() B @barrier() }
    →   for t in 8 { @barrier() for r in 4 {A} @barrier() B } @barrier()
    """
    return replace(program, body=transform_stmts(program.body, _begun))


def _begun(s: Stmt) -> Stmt | None:
    if isinstance(s, Seq):
        return seq(*s.stmts)  # of what a loop has become
    if not isinstance(s, (For, While)) or (isinstance(s, For) and s.kind.startswith(("blockIdx", "threadIdx"))):
        return None
    if not any(x == _BARRIER for x in walk_stmts(s.body)) or not _loops_first(s.body):
        return None
    rest = _without_last(s.body)
    return (
        replace(s, body=seq(_BARRIER, s.body)) if rest is None else seq(replace(s, body=seq(_BARRIER, rest)), _BARRIER)
    )


def _loops_first(s: Stmt) -> bool | None:
    """Whether a loop comes before the first barrier; None if neither is there."""
    if isinstance(s, (Seq, Let, Allocate)):
        return next((found for x in stmt_children(s) if (found := _loops_first(x)) is not None), None)
    return True if any(isinstance(x, (For, While)) for x in walk_stmts(s)) else False if s == _BARRIER else None


def _without_last(s: Stmt) -> Stmt | None:
    """A statement without the barrier that it ends with; None if it does not, or is nothing else."""
    if isinstance(s, Seq):
        if s.stmts[-1] == _BARRIER:
            return seq(*s.stmts[:-1])
        last = _without_last(s.stmts[-1])
        return None if last is None else seq(*s.stmts[:-1], last)
    if isinstance(s, (Let, Allocate)):
        body = _without_last(s.body)
        return None if body is None else replace(s, body=body)
    return None
