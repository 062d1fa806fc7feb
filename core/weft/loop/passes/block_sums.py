"""Divides long sums of floats into sums of blocks, so that the rounding error does not grow with their length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.expr.nodes import (
    Const,
    Eq,
    Expr,
    Var,
    all_of,
    any_of,
    const,
    floordiv,
    free_vars,
    has,
    le,
    lt,
    maximum,
    minimum,
    not_,
    substitute,
)
from weft.expr.ranges import Range, range_of
from weft.expr.simplify import prove
from weft.loop.nodes import (
    Allocate,
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    int64,
    int_const,
    seq,
    stmt_children,
    stmt_exprs,
    substitute_stmt,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.block_prefixes import PREFIX, block_prefixes
from weft.loop.passes.copies import EMPTY, Names
from weft.loop.passes.simplify import fails, holds, simplify
from weft.loop.passes.totals import accesses_of, accumulated, loads_of, total_stmt

LONGEST = 8192
"""Steps of a sum that are one chain. A chain of n steps may be off by n/2 units in the last place of the sum of its
terms' sizes (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), but for terms of one sign only: what
convolutions and products of usual lengths add up comes out in one."""
BLOCK = 1024
"""Steps of a block of a longer sum, or of one whose length is known only at run time."""
ELEMENTS = 1 << 14
"""Elements that are summed side by side, at most: they need room for their totals."""


def block_sums(program: Program, longest: int = LONGEST, block: int = BLOCK) -> Program:
    """Sums of floats that may have more than `longest` steps are added up in blocks of `block`; totals of blocks by
    compensated summation (Kahan, 1965).

    Behind every block but the last what was added up goes to a total and starts again from 0; where there is one block
    only, nothing changes. A sum is a store `acc[i] = acc[i] + value` in serial loops whose variables `i` does not have.
    Sums that other statements of their loops change, and those of target's instructions, stay. Of a sum that its loop
    reads on the way (a prefix sum) the reads take the total so far and the block's part.

    for k in n { acc[] = acc[] + x[k] }
    → if 1024 < n { total[] = 0; lost[] = 0 }
      for b in (n + 1023)//1024 {
        if 0 < b { let y = acc[] - lost[]  let t = total[] + y  lost[] = t - total[] - y  total[] = t  acc[] = 0 }
        for k in min(1024, n - b*1024) { acc[] = acc[] + x[b*1024 + k] }
      }
      if 1024 < n { acc[] = total[] + (acc[] - lost[]) }
    """
    program = block_prefixes(program, longest, min(block, PREFIX))
    found = _sums(program)
    if not found:
        return program
    names = Names.of(program)
    tops: dict[str, list[_Sum]] = {}
    for s in found:
        length = s.length()
        if length is None or length > longest:
            here = tops.setdefault(s.top.var.name, [])
            # What two branches add to an element has one total.
            if all(s.place() != x.place() for x in here):
                here.append(s)
    if not tops:
        return program

    def visit(stmt: Stmt) -> Stmt:
        children = stmt_children(stmt)
        if children:
            stmt = with_stmt_children(stmt, tuple(visit(c) for c in children))
        if isinstance(stmt, For) and stmt.var.name in tops:
            # Sums that begin at one loop share its blocks.
            return _blocked(stmt, tops[stmt.var.name], block, names)
        return stmt

    return simplify(program.with_body(visit(program.body)))


# -- which stores are sums -------------------------------------------------------------------------------------------


@dataclass
class _Sum:
    """An accumulating store and the loops that it adds up over, outermost first."""

    store: Store
    chain: tuple[For, ...]
    tile: tuple[For, ...]
    """Loops inside the outermost of the chain whose variables the element has."""
    guards: tuple[Expr, ...]
    """Conditions inside of it that none of the chain's variables is in."""

    @property
    def top(self) -> For:
        return self.chain[0]

    def place(self) -> tuple[object, ...]:
        """What tells its elements and their loops from those of another sum."""
        loops = tuple(f.var.name for f in (*self.chain, *self.tile))
        return self.store.buffer.name, self.store.indices, loops, self.guards

    def length(self) -> int | None:
        result = 1
        for loop in self.chain:
            n = int_const(loop.extent)
            if n is None:
                return None
            result *= n
        return result

    def steps_inside(self, loop: str, unknown: int) -> Expr:
        """The steps of one iteration of the chain's loop of this name; where they differ, the most, or `unknown` if
        nothing says how many."""
        at = next(k for k, f in enumerate(self.chain) if f.var.name == loop)
        inside = {s.var.name for s in walk_stmts(self.chain[at]) if isinstance(s, (For, Let))}
        result: Expr = int64(1)
        for f in self.chain[at + 1 :]:
            if free_vars(f.extent).keys() & inside:
                most = range_of(f.extent, {v: Range(0, None) for v in inside}).hi
                result = result * int64(unknown if most is None else most)
            else:
                result = result * f.extent
        return result


def _sums(program: Program) -> list[_Sum]:
    found: list[_Sum] = []

    def visit(stmt: Stmt, path: tuple[Stmt, ...]) -> None:
        if isinstance(stmt, Store) and accumulated(stmt):
            s = _sum_of(stmt, path)
            if s is not None:
                found.append(s)
        for c in stmt_children(stmt):
            visit(c, (*path, stmt))

    visit(program.body, ())
    return found


def _sum_of(store: Store, path: tuple[Stmt, ...]) -> _Sum | None:
    """The chain of a store, or None: it grows outwards as long as nothing else in its loops uses the sum."""
    element = {v for i in store.indices for v in free_vars(i)}
    chain: list[For] = []
    depth = 0
    for k in range(len(path) - 1, -1, -1):
        s = path[k]
        if isinstance(s, (While, Block)) or (isinstance(s, Allocate) and s.buffer.name == store.buffer.name):
            break
        if not isinstance(s, For) or s.var.name in element:
            continue
        if s.kind not in ("serial", "unrolled") or not _alone(s, store.buffer.name):
            break
        chain.append(s)
        depth = k
    while chain and chain[-1].kind != "serial":
        chain.pop()
    if not chain:
        return None
    depth = next(k for k, s in enumerate(path) if s is chain[-1])
    inside = path[depth + 1 :]
    tile = tuple(s for s in inside if isinstance(s, For) and s.var.name in element)
    variables = {f.var.name for f in chain}
    bound = {s.var.name for s in inside if isinstance(s, Let)}
    own = {f.var.name for f in tile}
    private = store.buffer.scope in ("register", "local")
    guards: list[Expr] = []
    here: Stmt = store
    for s in reversed(inside):
        if isinstance(s, If):
            parts = holds(s.cond) if here is s.then else fails(s.cond)
            fixed = [c for c in parts if not (free_vars(c).keys() & (variables | bound) or has(c, Load))]
            # Of a tile of one's own all elements are there, whatever asks for the step.
            guards += fixed if len(fixed) == len(parts) or not private else []
            if len(fixed) < len(parts) and not private and not _exists(store, path[: depth + 1], tile, guards):
                return None
        here = s
    if element & bound or any(free_vars(f.extent).keys() & (variables | own | bound) for f in tile):
        return None
    sizes = [int_const(f.extent) for f in tile]
    room = 1
    for n in sizes:
        if n is None:
            return None
        room *= n
    return _Sum(store, tuple(reversed(chain)), tile, tuple(guards)) if room <= ELEMENTS else None


def _exists(store: Store, around: Sequence[Stmt], tile: Sequence[For], guards: Sequence[Expr]) -> bool:
    """Whether the buffer has all elements of the tile, wherever the statements around it run, the last of which is the
    chain's outermost loop."""
    loops = [*(s for s in around[:-1] if isinstance(s, For)), *tile]
    facts = [*guards, *(lt(f.var, f.extent) for f in loops)]
    for s, inside in pairwise(around):
        if isinstance(s, If) and not has(s.cond, Load):
            facts += holds(s.cond) if inside is s.then else fails(s.cond)
    ranges = {f.var.name: Range(0, None) for f in loops} | {
        v: Range(0, None) for n in store.buffer.shape for v in free_vars(n)
    }
    return all(
        prove(le(int64(0), i), ranges, facts) and prove(lt(i, n), ranges, facts)
        for i, n in zip(store.indices, store.buffer.shape)
    )


def _alone(loop: For, name: str) -> bool:
    """Whether all that the loop does with the buffer is to add to elements that do not vary in it, and to start sums in
    its first iteration."""
    later = {loop.var.name: Range(1, None)}
    for access in accesses_of(loop.body, name):
        s = access.stmt
        if isinstance(s, Store) and accumulated(s):
            if any(loop.var.name in free_vars(i) for i in s.indices):
                return False
        elif isinstance(s, Store) and s.buffer.name == name and not any(loads_of(e, name) for e in stmt_exprs(s)):
            ranges = {**later, **{p.var.name: Range(0, None) for p in access.path if isinstance(p, For)}}
            if not access.conditions or not prove(not_(all_of(access.conditions)), ranges):
                return False
        else:
            return False
    return True


# -- blocks ------------------------------------------------------------------------------------------------------------


def _blocked(top: For, sums: Sequence[_Sum], block: int, names: Names) -> Stmt:
    """The loop in blocks, with the totals of its sums around it."""
    totals = [_Total.of(s, names) for s in sums]
    first, top = _start_before(top, sums, names)
    chains = {f.var.name for s in sums for f in s.chain if f.kind == "serial"}
    splits: list[Expr] = []

    def width(loop: For) -> Expr:
        """Iterations of the loop that make a block."""
        most: Expr = int64(1)
        for s in sums:
            if any(f.var.name == loop.var.name for f in s.chain):
                most = maximum(most, s.steps_inside(loop.var.name, block))
        return maximum(floordiv(int64(block), maximum(most, int64(1))), int64(1))

    def visit(stmt: Stmt) -> Stmt:
        children = stmt_children(stmt)
        if children:
            stmt = with_stmt_children(stmt, tuple(visit(c) for c in children))
        if not isinstance(stmt, For) or stmt.var.name not in chains:
            return stmt
        step = width(stmt)
        n, b = int_const(stmt.extent), int_const(step)
        if n is not None and b is not None and n <= b:
            return stmt
        splits.append(lt(step, stmt.extent))
        outer = Var(names.fresh(f"{stmt.var.name}_block"), stmt.var.dtype)
        inner = Var(names.fresh(f"{stmt.var.name}_step"), stmt.var.dtype)
        mine = [t for s, t in zip(sums, totals) if any(f.var.name == stmt.var.name for f in s.chain)]
        body = substitute_stmt(stmt.body, {stmt.var.name: outer * step + inner})
        loop = For(
            inner,
            minimum(step, stmt.extent - outer * step),
            body,
            stmt.kind,
            tuple(a for a in stmt.annotations if a[0] != "unswitch"),
        )
        # Behind a block, not before the next one: LLVM would take the first iteration out, and have the whole of the
        # loop twice.
        flush = If(lt((outer + 1) * step, stmt.extent), seq(*(t.flush(names) for t in mine)))
        return For(outer, floordiv(stmt.extent + step - 1, step), seq(loop, flush), stmt.kind, stmt.annotations)

    inside = visit(top)
    bound = {s.var.name for s in walk_stmts(top) if isinstance(s, (For, Let))}
    # Where the length of an inner loop varies in an outer one, whether there is more than one block is not known
    # before.
    several = None if any(free_vars(c).keys() & bound for c in splits) else any_of(splits)

    def where(stmt: Stmt) -> Stmt:
        return stmt if several is None else If(several, stmt)

    result: Stmt = seq(
        *first, where(seq(*(t.start(names) for t in totals))), inside, where(seq(*(t.finish(names) for t in totals)))
    )
    for t in totals:
        result = Allocate(t.total, Allocate(t.lost, result))
    return result


def _start_before(top: For, sums: Sequence[_Sum], names: Names) -> tuple[list[Stmt], For]:
    """The starts of sums in the first step of their loops, as statements before, and the loop without: else each step
    of each block would ask."""
    before: list[Stmt] = []
    gone: set[int] = set()
    for s in sums:
        access = next(accesses_of(top, s.store.buffer.name))
        start = access.stmt
        if (
            start is s.store
            or not isinstance(start, Store)
            or not isinstance(start.value, Const)
            or start.predicate is not None
        ):
            continue
        path = access.path
        loops = [x for x in path if isinstance(x, For)]
        chain = {x.var.name for x in loops} & {f.var.name for f in s.chain}
        parts = [c for cond in access.conditions for c in holds(cond)]
        first = {
            c.a.name for c in parts if isinstance(c, Eq) and isinstance(c.a, Var) and c.b == const(0, c.a.dtype)
        } & chain
        rest = [c for c in parts if not (isinstance(c, Eq) and isinstance(c.a, Var) and c.a.name in chain)]
        inside = {x.var.name for x in walk_stmts(top) if isinstance(x, (For, Let))}
        some = [lt(const(0, x.var.dtype), x.extent) for x in loops if x.var.name in chain]
        own = {x.var.name: Var(names.fresh(x.var.name), x.var.dtype) for x in loops if x.var.name not in chain}
        asked = {v for e in (*rest, *start.indices) for v in free_vars(e)} & inside
        if (
            first != chain
            or asked - own.keys()
            or any(has(c, Load) for c in rest)
            or any(free_vars(x.extent).keys() & inside for x in loops)
        ):
            continue
        if any(not isinstance(x, (For, If, Seq)) for x in path):
            continue
        body: Stmt = replace(start, indices=tuple(substitute(i, own) for i in start.indices))
        conditions = [*some, *(substitute(c, own) for c in rest)]
        body = If(all_of(conditions), body) if conditions else body
        for x in reversed(loops):
            body = body if x.var.name in chain else For(own[x.var.name], x.extent, body, x.kind, x.annotations)
        before.append(body)
        gone.add(id(start))
    if not gone:
        return [], top

    def visit(stmt: Stmt) -> Stmt:
        if id(stmt) in gone:
            return EMPTY
        children = stmt_children(stmt)
        return with_stmt_children(stmt, tuple(visit(c) for c in children)) if children else stmt

    result = visit(top)
    assert isinstance(result, For)
    return before, result


@dataclass(frozen=True)
class _Total:
    """The totals of the blocks of a sum, an element for each of its tile, and what rounding has lost of each."""

    sum: _Sum
    total: Buffer
    lost: Buffer

    @staticmethod
    def of(s: _Sum, names: Names) -> _Total:
        acc = s.store.buffer
        shape = tuple(f.extent for f in s.tile)
        scope = acc.scope if acc.scope == "register" else "local"
        return _Total(
            s,
            *(
                Buffer(names.fresh(f"{acc.name}_{what}"), shape, acc.dtype, scope, acc.align)
                for what in ("total", "lost")
            ),
        )

    def _each(self, names: Names, make: str) -> Stmt:
        """The statement of each element, under loops of its own."""
        fresh = {f.var.name: Var(names.fresh(f.var.name), f.var.dtype) for f in self.sum.tile}
        acc = self.sum.store.buffer
        at = tuple(substitute(i, fresh) for i in self.sum.store.indices)
        mine = tuple(fresh[f.var.name] for f in self.sum.tile)
        total, lost, own = Load(self.total, mine), Load(self.lost, mine), Load(acc, at)
        body = total_stmt(make, own, total, lost, (acc,), names)
        guards = [substitute(g, fresh) for g in self.sum.guards]
        if guards and make != "start":
            body = If(all_of(guards), body)
        for f in reversed(self.sum.tile):
            body = For(fresh[f.var.name], f.extent, body, f.kind, f.annotations)
        return body

    def start(self, names: Names) -> Stmt:
        return self._each(names, "start")

    def flush(self, names: Names) -> Stmt:
        return self._each(names, "flush")

    def finish(self, names: Names) -> Stmt:
        return self._each(names, "finish")
