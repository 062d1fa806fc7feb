"""What a kernel has to do at least: floating-point operations and bytes, counted on its naive program, whatever the schedule made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.expr.evaluate import evaluate
from weft.expr.nodes import Add, And, Call, Div, Expr, Max, Min, Mul, Sub, free_vars, substitute, walk
from weft.loop.nodes import Block, Buffer, For, If, Let, Load, Program, Stmt, Store, int_const, stmt_children, stmt_exprs
from weft.loop.passes.expand_math import expand_math

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)
_MOST_POINTS = 1 << 22


@dataclass(frozen=True)
class Work:
    """Of one call of a kernel.

    Attributes:
        flop: additions, subtractions, multiplications, divisions, minima and maxima of floats; a function that the target lacks counts as
            what it expands to. Taps of a window that lie in the padding do not count.
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
        flop = sum(_flop(b.body, math.prod(_extents(b, size).values()), _extents(b, size), size) for b in _blocks(expanded.body))
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


def _extents(block: Block, size: Callable[[Expr], int]) -> dict[str, int]:
    # The loops around a block reach it through its iterators alone, steps of a recurrence among them.
    return {i.var.name: size(i.extent) for i in block.iters}


def _flop(stmt: Stmt, times: float, extents: Mapping[str, int], size: Callable[[Expr], int]) -> float:
    if isinstance(stmt, For):
        times *= size(stmt.extent)
        extents = {**extents, stmt.var.name: size(stmt.extent)}
    # Equal formulas of one statement are computed once.
    nodes = {n for e in stmt_exprs(stmt) for n in walk(e)}
    own = times * sum(_operations(n) for n in nodes)
    if isinstance(stmt, If):
        held = _share(stmt.cond, extents)
        own += _flop(stmt.then, times * held, extents, size)
        return own + (_flop(stmt.orelse, times * (1 - held), extents, size) if stmt.orelse is not None else 0)
    return own + sum(_flop(child, times, extents, size) for child in stmt_children(stmt))


def _share(condition: Expr, extents: Mapping[str, int]) -> float:
    """Of all values of the loops' variables, the share for which a condition holds; 1 where it depends on more than they."""
    parts: list[tuple[set[str], list[Expr]]] = []
    for term in _conjuncts(condition):
        names, terms = set(free_vars(term)), [term]
        # Terms without a common variable hold independently of each other.
        for group in [g for g in parts if g[0] & names]:
            parts.remove(group)
            names, terms = names | group[0], [*group[1], *terms]
        parts.append((names, terms))
    share = 1.0
    for names, terms in parts:
        order = sorted(names)
        if any(n not in extents for n in order) or any(isinstance(n, Load) for t in terms for n in walk(t)):
            continue
        if math.prod(extents[n] for n in order) > _MOST_POINTS:
            continue
        grid = np.meshgrid(*(np.arange(extents[n]) for n in order), indexing="ij", sparse=True)
        values: dict[str, Any] = dict(zip(order, grid))
        held: Any = True
        for term in terms:
            held = np.logical_and(held, evaluate(term, values))
        share *= float(np.mean(np.broadcast_to(held, [extents[n] for n in order])))
    return share


def _conjuncts(e: Expr) -> list[Expr]:
    return [*_conjuncts(e.a), *_conjuncts(e.b)] if isinstance(e, And) else [e]


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
        touched += _touched(block.body, buffer, _extents(block, size), whole, size)
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
