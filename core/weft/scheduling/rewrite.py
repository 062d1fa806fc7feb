"""Common parts of several primitives: simplification of formulas, nests over boxes, blocks moved to other loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from weft import dtypes as dt
from weft.expr.linear import Polynomial
from weft.expr.nodes import Const, Expr, Var, all_of, const, free_vars, le, lt, substitute, walk
from weft.expr.ranges import Range
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    Load,
    Seq,
    Stmt,
    Store,
    int_const,
    map_stmt_exprs,
    stmt_children,
    walk_stmts,
    with_stmt_children,
)
from weft.scheduling.region import (
    Access,
    Interval,
    block_accesses,
    certain,
    greatest,
    interval,
    loops_under,
    poly,
    within,
)
from weft.scheduling.tree import Path, Tree, blocks_in, conjuncts, nest, with_conditions


def ranges(loops: Mapping[str, Expr]) -> dict[str, Range]:
    """Ranges of loop variables for `simplify`."""
    result = {}
    for name, extent in loops.items():
        size = int_const(extent)
        result[name] = Range(0, None if size is None else size - 1)
    return result


def clean(e: Expr, loops: Mapping[str, Expr], facts: Iterable[Expr] = ()) -> Expr:
    """`e` simplified, given the loops around and what else holds."""
    return e if isinstance(e, (Const, Var)) else simplify(e, ranges(loops), facts)


def tidy(e: Expr, loops: Mapping[str, Expr]) -> Expr:
    """As `clean`; conditions that the loops make certain go."""
    return (
        all_of(clean(c, loops) for c in conjuncts(e) if not certain(c, loops)) if e.dtype.is_bool else clean(e, loops)
    )


def domain(path: Iterable[Stmt]) -> dict[str, Expr]:
    """The loops of a path with their extents, outermost first."""
    return {s.var.name: s.extent for s in path if isinstance(s, For)}


def conditions(path: Iterable[Stmt], inside: Stmt) -> list[Expr]:
    """What the If statements of a path make true of `inside`, the next statement of it."""
    steps = [*path, inside]
    return [c for s, below in pairwise(steps) if isinstance(s, If) and s.then is below for c in conjuncts(s.cond)]


def entangled(block: Block) -> tuple[str, str] | None:
    """Two iterators that are not free of one another (as after compact_buffer), so that loops of their own would not
    do."""
    seen: dict[Expr, str] = {}
    for i, b in zip(block.iters, block.bindings):
        for m in poly(b).terms:
            for atom in m:
                if any(isinstance(n, Var) for n in walk(atom)) and seen.setdefault(atom, i.var.name) != i.var.name:
                    return seen[atom], i.var.name
    return None


def own_predicate(block: Block) -> list[Expr]:
    """The conditions of a block's predicate that say more than that its iterators stay in range."""
    known = [c for i, b in zip(block.iters, block.bindings) for c in (lt(b, i.extent), le(const(0), b))]
    return [c for c in conjuncts(block.predicate) if not certain(c, {}, known)]


def renest(
    tree: Tree,
    block: Block,
    boxes: Mapping[str, Interval],
    outer: Mapping[str, Expr],
    facts: Iterable[Expr],
    limits: Mapping[str, list[Polynomial]] | None = None,
) -> Stmt:
    """The block under fresh loops of its own: an iterator runs over its box, or over all of its extent if it has none,
    but not beyond its limits.

    An iterator that had a loop to itself keeps that loop's name.
    """
    loops: list[For] = []
    bindings: list[Expr] = []
    checks: list[tuple[Expr, Expr]] = []
    beyond: list[Expr] = []
    inside = dict(outer)
    for it, old in zip(block.iters, block.bindings):
        box = boxes.get(it.var.name)
        start: Expr = const(0)
        extent = it.extent
        if box is not None:
            most = greatest((box[1] - box[0]).plus(1), outer)
            if most is not None:
                start, extent = clean(box[0].expr(), outer), clean(most.expr(), outer)
        if int_const(extent) == 1:
            bindings.append(start)
        else:
            name = tree.fresh(old.name if isinstance(old, Var) else it.var.name + "_0")
            v = Var(name, dt.int64)
            loops.append(For(v, extent, block))
            inside[name] = extent
            bindings.append(clean(start + v, inside))
        checks.append((bindings[-1], it.extent))
        held = [m for m in (limits or {}).get(it.var.name, []) if m.plus(1) != poly(it.extent)]
        beyond += [le((poly(bindings[-1]) - m).expr(), const(0)) for m in held]
    facts = list(facts)
    beyond = [c for c in (clean(c, inside) for c in beyond) if not certain(c, inside, facts)]
    wanted = [
        c for b, extent in checks for c in (le(const(0), b), lt(b, extent)) if not certain(c, inside, [*facts, *beyond])
    ]
    predicate = all_of([*wanted, *beyond])
    return nest(loops, replace(block, bindings=tuple(bindings), predicate=predicate))


def free_names(tree: Tree, path: Path) -> None:
    """Frees the names of the loops that only the block at the end of `path` used: it leaves them."""
    for s in reversed(path[:-1]):
        if not isinstance(s, For):
            break
        tree.names.discard(s.var.name)


def iter_boxes(block: Block, buffer: str, box: Sequence[Interval | None], write: bool) -> dict[str, Interval]:
    """Which iterators of `block` a box of the buffer bounds: those that alone (plus a number) index it, in the access
    that does so most."""
    best: dict[str, Interval] = {}
    iters = {i.var for i in block.iters}
    for a in block_accesses(block, buffer):
        if a.write != write or a.extents is not None:
            continue
        found: dict[str, Interval] = {}
        for index, ends in zip(a.indices, box):
            p = poly(index)
            offset = p.terms.get((), 0)
            (monomial, factor), *others = list(p.plus(-offset).terms.items()) or [((), 0)]
            alone = monomial[0] if len(monomial) == 1 and factor == 1 and not others else None
            if ends is not None and isinstance(alone, Var) and alone in iters and alone.name not in found:
                found[alone.name] = (ends[0].plus(-offset), ends[1].plus(-offset))
        if len(found) > len(best):
            best = found
    return best


def iter_limits(
    block: Block, buffer: str, uses: Sequence[Access], moving: Mapping[str, Expr], write: bool
) -> dict[str, list[Polynomial]]:
    """What iterators of `block` need not exceed, because no predicate of the `uses` of a buffer lets them touch
    more."""
    result: dict[str, list[Polynomial]] = {}
    first, *others = [a.limits(moving) for a in uses]
    for k, found in enumerate(first):
        for most in found:
            if all(most in other[k] for other in others):
                alone = [(most, most) if d == k else None for d in range(len(first))]
                for v, (limit, _) in iter_boxes(block, buffer, alone, write).items():
                    result.setdefault(v, []).append(limit)
    return result


def rewrite_loops(body: Stmt, values: Mapping[str, Expr], loops: Mapping[str, Expr]) -> Stmt:
    """`body` with loop variables replaced by formulas of new loops; the changed formulas tidied."""

    def change(e: Expr) -> Expr:
        return tidy(substitute(e, values), loops) if values.keys() & free_vars(e).keys() else e

    body = map_stmt_exprs(body, change)
    if isinstance(body, For):
        loops = {**loops, body.var.name: body.extent}
    children = stmt_children(body)
    return with_stmt_children(body, tuple(rewrite_loops(c, values, loops) for c in children)) if children else body


def guard(body: Stmt, condition: Expr) -> Stmt:
    """`body` where `condition` holds: in the predicates of its blocks; around statements without blocks, whose bounds,
    conditions and definitions may read memory, too."""
    if isinstance(body, Block):
        return replace(body, predicate=with_conditions(body.predicate, [condition]))
    if not isinstance(body, Allocate) and not any(isinstance(s, Block) for s in walk_stmts(body)):
        return If(condition, body)
    return with_stmt_children(body, tuple(guard(c, condition) for c in stmt_children(body)))


def clean_extents(block: Block) -> dict[str, Expr]:
    """The iterators of a block with their extents: what holds inside it."""
    return {i.var.name: i.extent for i in block.iters}


def copy_block(tree: Tree, name: str, to: Buffer, source: Buffer, order: Sequence[int] | None = None) -> Stmt:
    """A block called `name` (and its nest) that copies `source` to `to`, of one shape or with the dimensions in
    `order`."""
    loops: list[For] = []
    iters: list[BlockIter] = []
    bindings: list[Expr] = []
    for k, extent in enumerate(to.shape):
        iters.append(BlockIter(Var(tree.fresh(f"{name}_v{k}"), dt.int64), extent))
        v = Var(tree.fresh(f"{name}_i{k}"), dt.int64)
        bindings.append(v)
        loops.append(For(v, extent, Seq(())))
    index = tuple(i.var for i in iters)
    place = index if order is None else tuple(index[list(order).index(d)] for d in range(len(index)))
    block = Block(
        name, tuple(iters), tuple(bindings), Store(to, index, Load(source, place)), annotations=(("op", "copy"),)
    )
    return nest(loops, block)


def own_nest(path: Path) -> int:
    """Where in the path of a block the nest starts that holds nothing but it."""
    top = len(path) - 1
    while top > 0 and isinstance(path[top - 1], For):
        top -= 1
    return top


def private_depth(path: Path, block: Block) -> int | None:
    """Where in the path of a block the innermost allocation inside a loop is that it uses: such a buffer has other
    contents in each iteration."""
    used = {a.buffer.name for a in block_accesses(block)}
    inside = next((k for k, s in enumerate(path) if isinstance(s, For)), len(path))
    return next(
        (k for k in reversed(range(inside, len(path))) if isinstance(s := path[k], Allocate) and s.buffer.name in used),
        None,
    )


def outgrows(path: Path, block: Block, boxes: Mapping[str, Interval | None]) -> str | None:
    """An iterator that would leave, with these boxes, what it runs over now while the buffers of `private_depth`
    live."""
    k = private_depth(path, block)
    if k is None:
        return None
    moving = loops_under(path[k], domain(path[:k]))
    for i, b in zip(block.iters, block.bindings):
        if not within([boxes.get(i.var.name)], [interval(b, moving)]):
            return i.var.name
    return None


def moved_outgrows(path: Path, block: Block, target: Path, new: Stmt) -> str | None:
    """As `outgrows`, for the block moved as `new` to the end of the path `target`."""
    k = private_depth(path, block)
    if k is None:
        return None
    moved = blocks_in(new)[0]
    moving = {**loops_under(Seq(()), domain(target[:k])), **domain(target[k:]), **loops_under(new)}
    return outgrows(path, block, {i.var.name: interval(b, moving) for i, b in zip(moved.iters, moved.bindings)})
