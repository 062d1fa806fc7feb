"""The least work of a kernel: floating-point operations and bytes, counted on its naive program, independent of the
schedule; and the number of executions of each block of a program, scheduled or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.expr.evaluate import evaluate
from weft.expr.nodes import (
    Add,
    And,
    Call,
    Div,
    Expr,
    Max,
    Min,
    Mul,
    Sub,
    Var,
    all_of,
    free_vars,
    lt,
    not_,
    substitute,
    walk,
)
from weft.loop.nodes import (
    Block,
    Buffer,
    Evaluate,
    For,
    If,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    int_const,
    stmt_children,
    stmt_exprs,
)
from weft.loop.passes.expand_math import expand_math

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)
_MOST_POINTS = 1 << 22


@dataclass(frozen=True)
class Work:
    """Of one call of a kernel.

    Attributes:
        flop: additions, subtractions, multiplications, divisions, minima and maxima of floats; a function that the
            target lacks counts as what it expands to. Taps of a window that lie in the padding do not count.
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
        flop = sum(
            _flop(b.body, math.prod(_extents(b, size).values()), _extents(b, size), size)
            for b in _blocks(expanded.body)
        )
        moved = tuple(_moved(program, b, size) for b in program.params)
    except _Unknown:
        return None
    return Work(flop, moved)


@dataclass(frozen=True)
class Executed:
    """A block, how often it is executed, and how often each store of its body is; its init does not count."""

    block: Block
    times: float
    stores: tuple[tuple[Store, float], ...]
    steps: _Steps = field(repr=False)

    def mean(self, e: Expr) -> float | None:
        """Of a formula of the block over all its executions; None where it is not known."""
        return self.steps.mean(e)


def executions(program: Program, dims: Mapping[str, int]) -> list[Executed] | None:
    """How often the blocks of a program, before or after its schedule, are executed in one call, in program order.

    Conditions over variables of loops count for the share of the steps in which they hold; others, of data, as if they
    held.

    Args:
        dims: sizes of the program's dims.

    Returns:
        None where a size is not known.
    """
    try:
        return list(_executed(program.body, _Steps({}, (), dict(dims))))
    except _Unknown:
        return None


def statements(program: Program, dims: Mapping[str, int]) -> list[tuple[Store | Evaluate, float]] | None:
    """Stores and calls of a program without blocks, and how often each is executed in one call; as `executions`
    otherwise."""
    try:
        return list(_leaves(program.body, _Steps({}, (), dict(dims)), (Store, Evaluate)))
    except _Unknown:
        return None


@dataclass(frozen=True)
class _Steps:
    """A position in a program: the greatest extents of the loops around it, the conditions, and the values of names."""

    extents: Mapping[str, int]
    conditions: tuple[Expr, ...]
    values: Mapping[str, Any]

    def loop(self, loop: For) -> _Steps:
        extent = substitute(loop.extent, self.values)
        most = int_const(extent)
        if most is not None:
            return replace(self, extents={**self.extents, loop.var.name: most})
        names = sorted(free_vars(extent))
        data = any(isinstance(n, Load) for n in walk(extent))
        if (
            data
            or any(n not in self.extents for n in names)
            or math.prod(self.extents[n] for n in names) > _MOST_POINTS
        ):
            raise _Unknown
        grid = np.meshgrid(*(np.arange(self.extents[n]) for n in names), indexing="ij", sparse=True)
        most = int(np.max(evaluate(extent, dict(zip(names, grid))), initial=0))
        return replace(self, extents={**self.extents, loop.var.name: most}).given(
            lt(Var(loop.var.name, loop.var.dtype), extent)
        )

    def given(self, condition: Expr) -> _Steps:
        return replace(self, conditions=(*self.conditions, substitute(condition, self.values)))

    def named(self, name: str, value: Expr) -> _Steps:
        return replace(self, values={**self.values, name: substitute(value, self.values)})

    def mean(self, e: Expr) -> float | None:
        e = substitute(e, self.values)
        names = sorted(free_vars(e))
        if any(isinstance(n, Load) for n in walk(e)) or any(n not in self.extents for n in names):
            return None
        if math.prod(self.extents[n] for n in names) > _MOST_POINTS:
            return None
        values: dict[str, Any] = dict(
            zip(names, np.meshgrid(*(np.arange(self.extents[n]) for n in names), indexing="ij", sparse=True))
        )
        held = [
            evaluate(c, values)
            for part in self.conditions
            for c in _conjuncts(part)
            if free_vars(c).keys() <= values.keys()
        ]
        shape = [self.extents[n] for n in names]
        weights = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(True, *held)), shape)
        return float(np.average(np.broadcast_to(evaluate(e, values), shape), weights=weights)) if weights.any() else 0.0

    @property
    def times(self) -> float:
        steps = math.prod(self.extents.values())
        return steps * _share(all_of(list(self.conditions)), self.extents) if steps else 0.0


def _executed(stmt: Stmt, steps: _Steps) -> Iterator[Executed]:
    if isinstance(stmt, Block):
        inside = steps
        for i, binding in zip(stmt.iters, stmt.bindings):
            inside = inside.named(i.var.name, binding)
        inside = inside.given(stmt.predicate)
        yield Executed(stmt, inside.times, tuple(_leaves(stmt.body, inside, Store)), inside)
        return
    for child, within in _inside(stmt, steps):
        yield from _executed(child, within)


def _leaves(stmt: Stmt, steps: _Steps, kinds: Any) -> Iterator[tuple[Any, float]]:
    if isinstance(stmt, kinds):
        predicate = stmt.predicate if isinstance(stmt, Store) else None
        yield stmt, (steps.given(predicate) if predicate is not None and predicate.dtype.lanes == 1 else steps).times
    for child, within in _inside(stmt, steps):
        yield from _leaves(child, within, kinds)


def _inside(stmt: Stmt, steps: _Steps) -> list[tuple[Stmt, _Steps]]:
    """The statements directly inside another, each with its place."""
    if isinstance(stmt, For):
        return [(stmt.body, steps.loop(stmt))]
    if isinstance(stmt, If):
        branches = [(stmt.then, steps.given(stmt.cond))]
        return branches if stmt.orelse is None else [*branches, (stmt.orelse, steps.given(not_(stmt.cond)))]
    if isinstance(stmt, Let):
        return [(stmt.body, steps.named(stmt.var.name, stmt.value))]
    return [(child, steps) for child in stmt_children(stmt)]


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
    """Of all values of the loops' variables, the share for which a condition holds; 1 where it depends on more than
    they."""
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
    """Bytes of one parameter that are touched: at most all of it, at most one element per access (a table's rows that
    are looked up)."""
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
    total = sum(
        min(whole, math.prod(extents.get(v, whole) for v in {n for i in index for n in free_vars(i)}))
        for index in indices
    )
    return total + sum(_touched(child, buffer, extents, whole, size) for child in stmt_children(stmt))
