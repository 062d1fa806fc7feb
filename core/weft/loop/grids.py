"""The shape of programs for grids of groups of threads, as docs/architecture.md has it under "Grids".

    program := (Allocate of scope global | Let | If | launch)*
    launch  := blockIdx loops around a group, or a group alone
    group   := serial loops, conditions, Lets, Allocates and phases
    phase   := nested threadIdx loops, with serial code inside
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from weft.errors import LoopError
from weft.loop.nodes import Allocate, For, If, Let, Program, Seq, Stmt, seq, stmt_children, walk_stmts, with_stmt_children
from weft.loop.printer import excerpt

BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def has_blocks(stmt: Stmt) -> bool:
    """Whether a loop over the groups of a grid is in `stmt`."""
    return any(isinstance(s, For) and s.kind in BLOCK_AXES for s in walk_stmts(stmt))


def has_threads(stmt: Stmt) -> bool:
    """Whether a loop over the threads of a group is in `stmt`."""
    return any(isinstance(s, For) and s.kind in THREAD_AXES for s in walk_stmts(stmt))


def launches(program: Program) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """Every launch, in order, with the Lets, Ifs and Allocates around it, outermost first. Of an If around it only the side that it is on is left."""

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
                    f"grids: a group of program '{program.name}' is not all that its block loops hold", where=excerpt(program, at=stmt),
                    why="loops over groups stand beside other statements in a loop over groups", hint="bind loops to blocks that hold everything of a launch",
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
        why="a launch is a whole grid: the host would have to launch it again and again", hint="bind the outermost loops to blocks",
    )  # fmt: skip
