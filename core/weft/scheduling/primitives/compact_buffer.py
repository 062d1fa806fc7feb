"""compact_buffer: reduces an intermediate buffer to what its uses need, and allocates it as close to them as
possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, const, free_vars, transform, walk
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    For,
    If,
    Load,
    Program,
    Region,
    Stmt,
    Store,
    While,
    int_const,
    map_stmt_exprs,
    stmt_children,
    stmt_exprs,
    transform_stmts,
    walk_stmts,
    with_stmt_children,
)
from weft.scheduling.dependence import writes
from weft.scheduling.region import Interval, accesses, at_least_zero, greatest, loops_under, poly, union_box, within
from weft.scheduling.rewrite import clean, domain
from weft.scheduling.tree import Path, Tree, blocks_in


def compact_buffer(program: Program, buffer: str, align: int = 1) -> tuple[Program, None]:
    """Moves the allocation of `buffer` to the innermost loop around all its uses and reduces it to the box that is live
    there.

        allocate t: float32[n, m] { for i in n { for j in 16 { … t[i, j] = … }  for k in 16 { … t[i, k] … } } }
        → compact_buffer("t")
        for i in n { allocate t: float32[16] { for j in 16 { … t[j] = … }  for k in 16 { … t[k] … } } }

    Dimensions of extent 1 are removed. The innermost dimension is rounded up to a multiple of `align` (whole vectors).
    The allocation enters a loop only if every iteration writes what it reads.
    """
    step = "compact_buffer"
    tree = Tree(program)
    if buffer not in tree.allocate_paths:
        why = f"'{buffer}' is a parameter" if tree.parameter(buffer) is not None else f"there is no buffer '{buffer}'"
        raise tree.error(step, why, (buffer,), "allocated: " + (", ".join(tree.allocate_paths) or "none"))
    path = tree.allocate_paths[buffer]
    old = path[-1]
    assert isinstance(old, Allocate)
    down = descend(old.body, old.buffer, domain(path))
    home = down[-1]
    outer = domain((*path, *down[:-1]))
    inner = loops_under(home, outer)
    uses = accesses(home, buffer)
    if not uses:
        raise tree.error(step, f"nothing uses '{buffer}'", (buffer,))
    keep: list[tuple[Expr, Expr]] = []  # (first index, extent) per dimension
    for k, ends in enumerate(union_box([u.box(inner) for u in uses])):
        keep.append(live(ends, old.buffer.shape[k], outer))
    if keep and (size := int_const(keep[-1][1])) is not None and size > 1:
        keep[-1] = (keep[-1][0], const(-(-size // align) * align))
    shrunk = Shrunk(old.buffer, [k for k, (_, extent) in enumerate(keep) if int_const(extent) != 1], keep)
    placed: Stmt = Allocate(shrunk.new, shrunk.rebase(home, tree, outer))
    for above, below in reversed(list(pairwise(down))):
        placed = with_stmt_children(above, tuple(placed if c is below else c for c in stmt_children(above)))
    return tree.replace(path, placed), None


def live(ends: Interval | None, extent: Expr, outer: Mapping[str, Expr]) -> tuple[Expr, Expr]:
    """First index and extent to keep of one dimension."""
    whole = (const(0), extent)
    if ends is None:
        return whole
    length = (ends[1] - ends[0]).plus(1)
    if length.names() & outer.keys():
        most = greatest(length, outer)  # every iteration gets the room that the greatest needs
        if most is None:
            return whole
        length = most
    size = length.expr()
    size = clean(size, outer)
    if at_least_zero(length - poly(extent)):  # the box may leave the buffer, uses do not
        if not isinstance(size, type(extent)) or int_const(size) is None or int_const(extent) is not None:
            return whole
    return clean(ends[0].expr(), outer), size


def descend(body: Stmt, buffer: Buffer, outer: Mapping[str, Expr]) -> Path:
    """The way down from `body` to where the allocation goes."""
    path: list[Stmt] = [body]
    best = 1
    while True:
        s = path[-1]
        if isinstance(s, (Block, Store, AtomicUpdate, While)):
            break
        holding = [c for c in stmt_children(s) if accesses(c, buffer.name)]
        if len(holding) != 1 or (isinstance(s, If) and holding[0] is not s.then):
            break
        if any(isinstance(n, Load) and n.buffer.name == buffer.name for e in stmt_exprs(s) for n in walk(e)):
            break
        if isinstance(s, For) and not enters(s, buffer, {**outer, **domain(path)}):
            break
        path.append(holding[0])
        if isinstance(s, For):
            best = len(path)
    return tuple(path[:best])


def enters(loop: For, buffer: Buffer, outer: Mapping[str, Expr]) -> bool:
    """Whether each iteration of `loop` may have the buffer for itself: it writes what it reads, first."""
    if loop.kind == "vectorized":
        return False
    if loop.kind.startswith("threadIdx") and buffer.scope not in ("local", "register"):
        return False
    if loop.kind.startswith("blockIdx") and buffer.scope == "global":
        return False
    moving = loops_under(loop.body, outer)
    written: list[list[Interval | None]] = []
    started: set[str] = set()
    for b in blocks_in(loop.body):
        uses = accesses(b, buffer.name)
        for i, x in zip(b.iters, b.bindings):
            if uses and i.kind == "reduce" and loop.var.name in free_vars(x) and buffer.name in writes(b):
                return False
        first_write = any(u.write for u in uses) and (b.init is not None or not any(not u.write for u in uses))
        for u in uses:
            if u.write or (b.init is not None and any(w.write for w in uses)):
                continue
            box = u.box(moving)
            if not any(covers(box, w, buffer) for w in written):
                return False
        for u in uses:
            if u.write and first_write and u.fills(moving):
                written.append(u.box(moving))
                started.add(b.name)
    return bool(written)


def covers(read: list[Interval | None], write: list[Interval | None], buffer: Buffer) -> bool:
    """Whether a box read lies in a box written; where the whole extent was written, nothing lies outside."""
    for k, (r, w) in enumerate(zip(read, write)):
        if w is None:
            return False
        if at_least_zero(w[0].scale(-1)) and at_least_zero((w[1] - poly(buffer.shape[k])).plus(1)):
            continue
        if r is None or not within([r], [w]):
            return False
    return True


class Shrunk:
    """A buffer reduced to a box: `keep` has first index and extent per dimension, `dims` are the dimensions that
    remain."""

    def __init__(self, old: Buffer, dims: list[int], keep: list[tuple[Expr, Expr]]) -> None:
        self.old, self.dims, self.keep = old, dims, keep
        self.new = replace(old, shape=tuple(keep[k][1] for k in dims) or (const(1),))

    def index(self, indices: tuple[Expr, ...], around: Mapping[str, Expr]) -> tuple[Expr, ...]:
        return tuple(clean(indices[k] - self.keep[k][0], around) for k in self.dims) or (const(0),)

    def rebase(self, stmt: Stmt, tree: Tree, around: Mapping[str, Expr]) -> Stmt:
        """`stmt` with every use moved to the new buffer."""
        if isinstance(stmt, Block):
            return self.rebase_block(stmt, tree, around)
        changed = self.rebase_here(stmt, lambda indices: self.index(indices, around))
        inside = {**around, stmt.var.name: stmt.extent} if isinstance(stmt, For) else around
        children = stmt_children(changed)
        return (
            with_stmt_children(changed, tuple(self.rebase(c, tree, inside) for c in children)) if children else changed
        )

    def rebase_here(self, stmt: Stmt, index: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]) -> Stmt:
        """The uses directly in `stmt`."""

        def load(node: Expr) -> Expr | None:
            return (
                Load(self.new, index(node.indices), node.predicate)
                if isinstance(node, Load) and node.buffer.name == self.old.name
                else None
            )

        changed = map_stmt_exprs(stmt, lambda e: transform(e, load))
        if isinstance(changed, (Store, AtomicUpdate)) and changed.buffer.name == self.old.name:
            changed = replace(changed, buffer=self.new, indices=index(changed.indices))
        return changed

    def rebase_block(self, block: Block, tree: Tree, around: Mapping[str, Expr]) -> Block:
        """A body uses its iterators only, so a value that depends on the loops around becomes an iterator: the index
        within the box, or its start."""
        if not accesses(block, self.old.name):
            return block
        extents = {**around, **{i.var.name: i.extent for i in block.iters}}
        values = {i.var.name: b for i, b in zip(block.iters, block.bindings)}
        kinds = {i.var.name: i.kind for i in block.iters}
        added: dict[tuple[int, Expr], tuple[BlockIter, Expr]] = {}

        def one(k: int, e: Expr) -> Expr:
            start, extent = self.keep[k]
            if not free_vars(start).keys() & around.keys():
                return clean(e - start, extents)
            alone = isinstance(e, Var) and e.name in values
            key = (k, e if alone else start)
            if key not in added:
                base = e.name if isinstance(e, Var) else f"{self.old.name}_start"
                v = Var(tree.fresh(f"{base}_in" if alone else base), dt.int64)
                if alone:
                    added[key] = BlockIter(v, extent, kinds[base]), clean(values[base] - start, around)
                else:
                    added[key] = BlockIter(v, self.old.shape[k], _kind_of(start, block)), start
            v = added[key][0].var
            extents[v.name] = added[key][0].extent
            return v if alone else clean(e - v, extents)

        def index(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(one(k, indices[k]) for k in self.dims) or (const(0),)

        def region(r: Region) -> Region:
            if r.buffer.name != self.old.name:
                return r
            return Region(
                self.new,
                tuple(zip(index(tuple(lo for lo, _ in r.ranges)), [r.ranges[k][1] for k in self.dims] or [const(1)])),
            )

        body = transform_stmts(block.body, lambda s: self.rebase_here(s, index))
        init = None if block.init is None else transform_stmts(block.init, lambda s: self.rebase_here(s, index))
        reads = None if block.reads is None else tuple(region(r) for r in block.reads)
        writes = None if block.writes is None else tuple(region(r) for r in block.writes)
        parts = [e for s in (body, init) if s is not None for x in walk_stmts(s) for e in stmt_exprs(x)]
        parts += [e for r in (*(reads or ()), *(writes or ())) for pair in r.ranges for e in pair]
        used = {v for e in parts for v in free_vars(e)}
        pairs = [(i, b) for i, b in zip(block.iters, block.bindings) if i.kind != "spatial" or i.var.name in used]
        pairs += list(added.values())
        return replace(
            block,
            iters=tuple(i for i, _ in pairs),
            bindings=tuple(b for _, b in pairs),
            body=body,
            init=init,
            reads=reads,
            writes=writes,
        )


def _kind_of(start: Expr, block: Block) -> Literal["spatial", "reduce", "scan"]:
    """The kind of an iterator bound to `start`: that of those which the same loops drive, if it is one. A mixture with
    loops of results is no reduction's: it does not begin at 0, where a sum is started."""
    kinds = {v: {i.kind for i, b in zip(block.iters, block.bindings) if v in free_vars(b)} for v in free_vars(start)}
    found = {kind for of_loop in kinds.values() for kind in of_loop or {"spatial"}}
    return found.pop() if len(found) == 1 else "spatial"
