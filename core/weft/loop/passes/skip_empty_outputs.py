"""A program whose outputs have no element does nothing, whatever its loops around them would count to."""

from __future__ import annotations

from weft.expr.nodes import Const, Expr, all_of, any_of, const
from weft.loop.nodes import Allocate, Buffer, For, If, Let, Program, Stmt, walk_stmts


def skip_empty_outputs(program: Program) -> Program:
    """Puts the statements behind the question whether any output has an element, where the time of a program without one is not bounded by its memory:
    of two open sizes one may be 0 and the other 2⁴⁰.

    (y: float32[n, m])   for i in n { for j in m {…} }  →  if n > 0 and m > 0 { for i in n { for j in m {…} } }

    Grids stay as they are: a launch of no group is none.
    """
    open_sizes = [_open_sizes(b) for b in program.outputs]
    if not open_sizes or min(map(len, open_sizes)) < 2:
        return program
    if any(isinstance(s, For) and s.kind.startswith(("blockIdx", "threadIdx", "unit.")) for s in walk_stmts(program.body)):
        return program
    some = any_of(all_of(n > const(0, n.dtype) for n in sizes) for sizes in open_sizes)
    return program.with_body(_within(program.body, some))


def _open_sizes(buffer: Buffer) -> list[Expr]:
    return [n for n in dict.fromkeys(buffer.shape) if not isinstance(n, Const)]


def _within(stmt: Stmt, condition: Expr) -> Stmt:
    """What a program allocates and defines first stays in front."""
    if isinstance(stmt, Allocate):
        return Allocate(stmt.buffer, _within(stmt.body, condition))
    if isinstance(stmt, Let):
        return Let(stmt.var, stmt.value, _within(stmt.body, condition))
    return If(condition, stmt)
