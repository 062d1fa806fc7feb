"""Replaces a register tile of an open size, which asks for each of its rows whether it is there, by a tile that asks
once and, for what is left of a row, by shorter ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.expr.linear import Polynomial, linear
from weft.expr.nodes import (
    And,
    Call,
    Expr,
    FloorDiv,
    FloorMod,
    TruncDiv,
    TruncMod,
    Var,
    add,
    free_vars,
    le,
    walk,
)
from weft.loop.nodes import (
    PREFETCH,
    TRUE,
    Allocate,
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
    int64,
    int_const,
    map_stmt_exprs,
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import EMPTY, Names, copy_stmt, if_stmt, rewrite
from weft.loop.passes.partition_loops import atoms_of, conditions_in, decide, not_negative
from weft.loop.passes.simplify import simplify

MOST_EXACT = 7
"""Most rows for each number of which there is a tile: their code grows with the square of it."""


def shorter_tiles(program: Program) -> Program:
    """A register tile whose rows are there only below a bound that a run knows becomes a whole tile where all rows are
    there, else one of as many rows as there are:

        allocate c: float32[3] in register { for q in 3 unrolled { if i*3 + q < n { c[q] = … y[i*3 + q] = c[q] } } }
        → if i*3 + 2 < n { allocate c … for q in 3 unrolled { c[q] = … y[i*3 + q] = c[q] } }
          else { if i*3 + 1 < n { allocate c_1 … for q_1 in 2 unrolled { c_1[q_1] = … y[i*3 + q_1] = c_1[q_1] } }
                 else { if i*3 < n { allocate c_2 … { c_2[0] = … y[i*3] = c_2[0] } } } }

    Of more than MOST_EXACT rows that are left, a tile of half of them comes first, where there are as many, and the
    rest is treated likewise, if what one of these tiles stores no other reads or stores. Every row is computed once, by
    the same operations. A tile is left as it is if something is stored outside of it without asking for a row, if its
    rows are summed, or if it calls something. Programs of fixed sizes are left as they are.
    """
    if not program.dims:
        return program
    aliases = {program.outputs[o].name: program.inputs[i].name for o, i in program.aliases}
    tiles = _Tiles(Names.of(program), aliases)
    body = tiles.visit(program.body)
    return simplify(program.with_body(body)) if tiles.changed else program


@dataclass(frozen=True)
class _Row:
    """The condition 0 <= rest + step·q, step < 0, on the rows q < extent of a tile: if it holds for one it holds for
    those before."""

    rest: Polynomial
    step: int
    extent: int

    def holds(self, row: Expr) -> Expr:
        return le(int64(0), self.rest.plus(linear(row), self.step).expr())


@dataclass(frozen=True)
class _Tile:
    """The loops over rows by the names of their variables, the dimensions of the tile's buffers that are rows, and the
    comparisons that ask for a row."""

    row: _Row
    loops: frozenset[str]
    dims: frozenset[tuple[str, int]]
    asked: frozenset[Expr]
    apart: bool
    """Whether parts of it may be computed one after another: what one stores no other reads or stores again."""


@dataclass
class _Tiles:
    """The pass: `names` of the program, and its outputs that lie in inputs, with these."""

    names: Names
    aliases: dict[str, str]
    changed: bool = False

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Allocate) and stmt.buffer.scope == "register":
            tile = _tile(stmt, self.aliases)
            if tile is None or (tile.row.extent > MOST_EXACT + 1 and not tile.apart):
                return stmt
            self.changed = True
            return self.rows(stmt, tile, tile.row.extent, 0)
        children = stmt_children(stmt)
        return with_stmt_children(stmt, tuple(self.visit(c) for c in children)) if children else stmt

    def rows(self, stmt: Stmt, tile: _Tile, most: int, first: int) -> Stmt:
        """The rows that are there from row `first` on, at most so many."""
        if not most:
            return EMPTY
        if most == tile.row.extent or most <= MOST_EXACT:
            height, left = most, 0
        else:
            height = (most + 1) // 2
            left = most - height
        here = self.part(stmt, tile, height, first)
        return if_stmt(
            tile.row.holds(int64(first + height - 1)),
            seq(here, self.rows(stmt, tile, left, first + height)) if left else here,
            self.rows(stmt, tile, height - 1, first),
        )

    def part(self, stmt: Stmt, tile: _Tile, height: int, first: int) -> Stmt:
        """The tile with `height` rows from row `first` on, all of which are there."""
        decided = decide(stmt, dict.fromkeys(tile.asked, TRUE))
        return copy_stmt(_shifted(decided, tile, height, first), {}, self.names)


def _conjuncts(cond: Expr) -> Iterator[Expr]:
    if isinstance(cond, And):
        yield from _conjuncts(cond.a)
        yield from _conjuncts(cond.b)
    else:
        yield cond


def _row(cond: Expr, binders: Sequence[Stmt], bound: frozenset[str]) -> tuple[_Row, str] | None:
    """The row that a comparison asks for, and the variable of its loop. `bound`: variables that exist inside the tile
    only."""
    form = not_negative(cond)
    if form is None or not all(_anywhere(n) for n in walk(cond)):
        return None
    for binder in binders:
        if not isinstance(binder, For) or binder.kind != "unrolled":
            continue
        extent, step = int_const(binder.extent), form.terms.get((binder.var,), 0)
        rest = form.without((binder.var,))
        if extent is not None and extent > 1 and step < 0 and not rest.names() & bound:
            return _Row(rest, step, extent), binder.var.name
    return None


def _anywhere(e: Expr) -> bool:
    """Whether a formula may be evaluated before the tile, without the conditions that it stands under: it reads
    nothing, calls nothing and divides by no zero."""
    if isinstance(e, (FloorDiv, FloorMod, TruncDiv, TruncMod)):
        return bool(int_const(e.b))
    return not isinstance(e, (Load, Call, IntrinsicCall))


@dataclass(frozen=True)
class _Statement:
    """A statement that does something; the loops and lets around it inside the tile; the conditions that hold there,
    each with the loops and lets around it."""

    stmt: Stmt
    binders: tuple[For | Let, ...]
    asked: tuple[tuple[Expr, tuple[For | Let, ...]], ...]


def _statements(
    stmt: Stmt, binders: tuple[For | Let, ...] = (), asked: tuple[tuple[Expr, tuple[For | Let, ...]], ...] = ()
) -> Iterator[_Statement]:
    match stmt:
        case If():
            holds = tuple((c, binders) for c in _conjuncts(stmt.cond))
            yield from _statements(stmt.then, binders, (*asked, *holds))
            if stmt.orelse is not None:
                yield from _statements(stmt.orelse, binders, asked)
        case For() | Let():
            yield from _statements(stmt.body, (*binders, stmt), asked)
        case Allocate() | Seq():
            for child in stmt_children(stmt):
                yield from _statements(child, binders, asked)
        case Store() if stmt.predicate is not None:
            yield _Statement(stmt, binders, (*asked, *((c, binders) for c in _conjuncts(stmt.predicate))))
        case _:
            yield _Statement(stmt, binders, asked)


def _tile(stmt: Allocate, aliases: Mapping[str, str]) -> _Tile | None:
    """The tile that an allocation begins; None if it is left as it is."""
    inside = [s for s in walk_stmts(stmt) if not (isinstance(s, Evaluate) and s.call.name == PREFETCH)]
    if any(isinstance(n, IntrinsicCall) for s in inside for n in _nodes(s)):
        return None  # it may do something again
    local = frozenset(s.buffer.name for s in inside if isinstance(s, Allocate))
    statements = list(_statements(stmt))
    loops = {b.var.name: b for s in statements for b in s.binders}
    row = _common_row(statements, local, frozenset(loops))
    if row is None:
        return None
    asked: set[Expr] = set()
    variables: set[str] = set()
    for cond, binders in conditions_in(stmt):
        for atom in atoms_of(cond):
            found = _row(atom, binders, frozenset(loops))
            if found is not None and found[0] == row:
                asked.add(atom)
                variables.add(found[1])
    dims = _rows_of_buffers(stmt, local, loops, variables, row.extent)
    if dims is None or not all(_of_one_row(s, local, dims, variables) for s in statements):
        return None
    return _Tile(row, frozenset(variables), dims, frozenset(asked), _apart(stmt, statements, local, aliases))


def _apart(stmt: Stmt, statements: Sequence[_Statement], local: frozenset[str], aliases: Mapping[str, str]) -> bool:
    """Whether every buffer of outside that is stored is so by one statement, each time at another place, and not
    read."""
    same = {**{given: given for given in aliases.values()}, **aliases}
    stored = [(same.get(s.stmt.buffer.name, s.stmt.buffer.name), s) for s in statements if isinstance(s.stmt, Store)]
    outside = [(name, s) for name, s in stored if name not in local]
    read = {same.get(n.buffer.name, n.buffer.name) for s in walk_stmts(stmt) for n in _nodes(s) if isinstance(n, Load)}
    names = [name for name, _ in outside]
    return len(names) == len({*names}) and not {*names} & read and all(_each_elsewhere(s) for _, s in outside)


def _each_elsewhere(s: _Statement) -> bool:
    assert isinstance(s.stmt, Store)
    places = {v for index in s.stmt.indices for v in free_vars(index)}
    return all(b.var.name in places for b in s.binders if isinstance(b, For))


def _common_row(statements: Sequence[_Statement], local: frozenset[str], bound: frozenset[str]) -> _Row | None:
    """What everything that is stored outside of the tile asks for, of several the longest; None if there is no such
    row, or if something else than storing is done."""
    common: set[_Row] | None = None
    for s in statements:
        if isinstance(s.stmt, Evaluate) and s.stmt.call.name == PREFETCH:
            continue
        if not isinstance(s.stmt, Store):
            return None
        if s.stmt.buffer.name not in local:
            rows = {found[0] for cond, binders in s.asked if (found := _row(cond, binders, bound)) is not None}
            common = rows if common is None else common & rows
    return max(common, key=lambda r: (r.extent, str(r.rest))) if common else None


def _nodes(stmt: Stmt) -> Iterator[Expr]:
    for expr in stmt_exprs(stmt):
        yield from walk(expr)


def _rows_of_buffers(
    stmt: Stmt, local: frozenset[str], loops: dict[str, For | Let], variables: set[str], extent: int
) -> frozenset[tuple[str, int]] | None:
    """The dimensions of the tile's buffers that are its rows; None if an index of one is no row. `variables` of loops
    over rows get those that these dimensions show."""
    indices: dict[tuple[str, int], set[Expr]] = {}
    for name, at in _accesses(stmt):
        if name in local:
            for d, index in enumerate(at):
                indices.setdefault((name, d), set()).add(index)
    dims: set[tuple[str, int]] = set()
    grown = True
    while grown:
        grown = False
        for place, used in indices.items():
            if place in dims or not any(free_vars(i).keys() & variables for i in used):
                continue
            dims.add(place)
            grown = True
            for index in used:
                loop = loops.get(index.name) if isinstance(index, Var) else None
                if not isinstance(loop, For) or loop.kind != "unrolled" or int_const(loop.extent) != extent:
                    return None
                variables.add(loop.var.name)
    return frozenset(dims)


def _of_one_row(s: _Statement, local: frozenset[str], dims: frozenset[tuple[str, int]], variables: set[str]) -> bool:
    """Whether a statement is in no loop over rows, or in one, whose row it stores: not a sum of several."""
    around = [b.var for b in s.binders if b.var.name in variables]
    if not around:
        return True
    if len(around) > 1:
        return False
    if not isinstance(s.stmt, Store) or s.stmt.buffer.name not in local:
        return True
    return any((s.stmt.buffer.name, d) in dims and i == around[0] for d, i in enumerate(s.stmt.indices))


def _accesses(stmt: Stmt) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """Buffers and indices of everything that is read or stored."""
    if isinstance(stmt, Store):
        yield stmt.buffer.name, stmt.indices
    for node in _nodes(stmt):
        if isinstance(node, Load):
            yield node.buffer.name, node.indices
    for child in stmt_children(stmt):
        yield from _accesses(child)


def _shifted(stmt: Stmt, tile: _Tile, height: int, first: int) -> Stmt:
    """`stmt` with `height` rows: q stands for row first + q, and for element q of what the tile itself has in rows."""
    index = int64(0).dtype
    # An index "q." is that of the tile's own row, which stays where row first + q of everything else is meant.
    kept = {q: Var(f"{q}.", index) for q in tile.loops}
    values: dict[str, Expr] = {q: add(Var(q, index), first) for q in tile.loops}
    values |= {v.name: Var(q, index) for q, v in kept.items()}

    def own(name: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(
            kept[i.name] if (name, d) in tile.dims and isinstance(i, Var) else i for d, i in enumerate(indices)
        )

    def mark(e: Expr) -> Expr:
        children = e.children()
        new = tuple(mark(c) for c in children)
        if any(n is not c for n, c in zip(new, children)):
            e = e.with_children(new)
        return Load(e.buffer, own(e.buffer.name, e.indices), e.predicate) if isinstance(e, Load) else e

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            s = replace(s, indices=own(s.buffer.name, s.indices))
        s = map_stmt_exprs(s, lambda e: rewrite(mark(e), values, {}))
        if isinstance(s, For) and s.var.name in tile.loops:
            s = replace(s, extent=int64(height))
        children = stmt_children(s)
        return with_stmt_children(s, tuple(change(c) for c in children)) if children else s

    return change(stmt)
