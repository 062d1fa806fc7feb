"""What a kernel has to do at least: floating-point operations and bytes, counted on its naive program, whatever the schedule made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from weft.expr.nodes import Add, Call, Div, Expr, Max, Min, Mul, Sub, free_vars, substitute, walk
from weft.loop.nodes import Block, Buffer, For, Let, Load, Program, Stmt, Store, int_const, stmt_children, stmt_exprs
from weft.loop.passes.expand_math import expand_math

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)


@dataclass(frozen=True)
class Work:
    """Of one call of a kernel.

    Attributes:
        flop: additions, subtractions, multiplications, divisions, minima, maxima and square roots of floats; other functions count as
            what they expand to. Padded taps count.
        bytes: of each input and output, by position, what is read or written, each element once.
    """

    flop: float
    bytes: tuple[float, ...]


def count_work(program: Program, functions: frozenset[str], dims: Mapping[str, int]) -> Work | None:
    """The work of a naive program.

    Args:
        functions: those that the target has; the others are counted as their formulas.
        dims: sizes of the program's dims.

    Returns:
        None where a size is not known.
    """
    values = dict(dims)

    def size(e: Expr) -> int:
        found = int_const(substitute(e, values))
        if found is None:
            raise _Unknown
        return found

    expanded = expand_math(program, functions)
    try:
        flop = sum(_flop(block.body, _points(block, size), size) for block in _blocks(expanded.body))
        moved = tuple(_moved(program, b, size) for b in program.params)
    except _Unknown:
        return None
    return Work(flop, moved)


class _Unknown(Exception):
    pass


def _blocks(stmt: Stmt) -> Iterator[Block]:
    if isinstance(stmt, Block):
        yield stmt
    else:
        for child in stmt_children(stmt):
            yield from _blocks(child)


def _points(block: Block, size: Callable[[Expr], int]) -> int:
    # The loops around a block reach it through its iterators alone, steps of a recurrence among them.
    return math.prod(size(i.extent) for i in block.iters)


def _flop(stmt: Stmt, times: float, size: Callable[[Expr], int]) -> float:
    if isinstance(stmt, For):
        times *= size(stmt.extent)
    # Equal formulas of one statement are computed once.
    nodes = {n for e in stmt_exprs(stmt) for n in walk(e)}
    own = sum(_operations(n) for n in nodes)
    return times * own + sum(_flop(child, times, size) for child in stmt_children(stmt))


def _operations(e: Expr) -> int:
    if not e.dtype.is_float:
        return 0
    if isinstance(e, Call):
        return 2 if e.name == "fma" else 1
    return int(isinstance(e, _ARITHMETIC))


def _moved(program: Program, buffer: Buffer, size: Callable[[Expr], int]) -> float:
    """Bytes of one parameter that are touched: at most all of it, at most one element per access (a table's rows that are looked up)."""
    whole = math.prod(size(d) for d in buffer.shape)
    touched = 0
    for block in _blocks(program.body):
        extents = {i.var.name: size(i.extent) for i in block.iters}
        touched += _touched(block.body, buffer, extents, whole, size)
    return min(whole, touched) * buffer.dtype.bytes


def _touched(stmt: Stmt, buffer: Buffer, extents: Mapping[str, int], whole: int, size: Callable[[Expr], int]) -> int:
    if isinstance(stmt, For):
        extents = {**extents, stmt.var.name: size(stmt.extent)}
    if isinstance(stmt, Let):
        # What a let depends on varies with anything around it.
        extents = {**extents, stmt.var.name: whole}
    accesses = {n for e in stmt_exprs(stmt) for n in walk(e) if isinstance(n, Load) and n.buffer == buffer}
    indices = [a.indices for a in accesses]
    if isinstance(stmt, Store) and stmt.buffer == buffer:
        indices.append(stmt.indices)
    total = sum(min(whole, math.prod(extents.get(v, whole) for v in {n for i in index for n in free_vars(i)})) for index in indices)
    return total + sum(_touched(child, buffer, extents, whole, size) for child in stmt_children(stmt))
