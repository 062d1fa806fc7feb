"""double_buffer: loads what an iteration of a loop reads during the iteration before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, add, const, floormod, free_vars, lt, substitute, transform
from weft.loop.nodes import (
    Allocate,
    Block,
    BlockIter,
    Buffer,
    Evaluate,
    For,
    IterKind,
    Load,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    int_const,
    map_stmt_exprs,
    seq,
    stmt_children,
    transform_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names, copy_stmt
from weft.scheduling.dependence import reads, writers, written_buffers
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.loop_kinds import serial_loop
from weft.scheduling.primitives.tensorize import ANNOTATION
from weft.scheduling.region import accesses, block_accesses, poly
from weft.scheduling.rewrite import clean, domain, own_nest
from weft.scheduling.tree import Tree, blocks_in, nest, with_conditions


def double_buffer(
    program: Program,
    block: str,
    loop: str,
    through: str | None = None,
    *,
    intrinsics: Mapping[str, Intrinsic] | None = None,
) -> tuple[Program, str]:
    """`block` fills, in each iteration of `loop`, a buffer that other blocks read. Afterwards it fills the buffer one
    iteration ahead: the buffer has two halves, which iterations use alternately. Returns the name of the block that
    fills the first half before the loop.

        for k in n { allocate t: float32[16] in shared
          for i in 16 { block A(bk: n = k, bi: 16 = i) { t[bi] = x[bk, bi] } }
          for j in 16 { block B(bj: 16 = j) { y[bj] = y[bj] + t[bj] } } }
        → double_buffer("A", "k") → "A_1"
        allocate t: float32[2, 16] in shared
        for i_1 in 16 { block A_1(bi_1: 16 = i_1) where 0 < n { t[0, bi_1] = x[0, bi_1] } }
        for k in n {
          for i in 16 { block A(bk: n = k + 1, bi: 16 = i, h: 2 = (k + 1) % 2) where k + 1 < n { t[h, bi] = x[bk, bi] }
              }
          for j in 16 { block B(bj: 16 = j, h1: 2 = k % 2) { y[bj] = y[bj] + t[h1, bj] } } }

    `through`: loaded elements are held in a buffer of that memory, one for each iteration of the block's own loops, and
    are stored at the end of the iteration, so that the statements in between do not wait for the loads. Bind and
    vectorize the block's loops before.

    Tensorized blocks, `block` itself or readers of its result, get the addresses of the half that they use, so
    double_buffer and tensorize may be applied in any order. Both halves are aligned as the operands in them require;
    for code of an unknown intrinsic, as the buffer was. `intrinsics` come from the Schedule.
    """
    step = "double_buffer"
    tree = Tree(program)
    path, spot, b, f = (
        tree.block_path(block, step),
        tree.loop_path(loop, step),
        tree.block(block, step),
        serial_loop(tree, loop, step),
    )
    top = own_nest(path)
    if path[: len(spot)] != spot or not all(isinstance(s, (Seq, Allocate)) for s in path[len(spot) : top]):
        why = (
            f"'{block}' does not stand in '{loop}' under nothing but loops of its own, beside those who read what it"
            " writes"
        )
        raise tree.error(step, why, {loop: "wanted here", block: ""})
    coded = b.writes is not None
    if b.init is not None or not (coded or (isinstance(b.body, Store) and b.body.predicate is None)):
        raise tree.error(step, f"the body of '{block}' is not one store", (block,))
    if coded and through is not None:
        why = f"what '{block}' brings cannot wait in '{through}': it is an instruction, which moves all at once"
        raise tree.error(step, why, (block,), "leave out through")
    if len(written_buffers(b)) != 1:
        raise tree.error(step, f"'{block}' writes more than one buffer", (block,))
    (old,) = written_buffers(b)
    home = next((s for s in path[len(spot) : top] if isinstance(s, Allocate) and s.buffer.name == old.name), None)
    if home is None:
        raise tree.error(
            step,
            f"'{old.name}' is not allocated in '{loop}'",
            (block, loop),
            "compact_buffer brings it there, if an iteration may have it alone",
        )
    if writers(tree, [old.name]) != [block] or old.name in reads(b):
        raise tree.error(step, f"'{old.name}' is not written by '{block}' once and for all", (block,))
    inside = {s.buffer.name for s in path[len(spot) :] if isinstance(s, Allocate)} | {
        w.name for x in blocks_in(f.body) for w in written_buffers(x)
    }
    late = sorted(set(reads(b)) & inside)
    if late:
        raise tree.error(
            step, f"'{block}' reads '{late[0]}', which the iteration before has not got for it", (block, late[0])
        )
    if any(a.block is None for a in accesses(f.body, old.name)):
        raise tree.error(step, f"'{old.name}' is read outside of blocks", (old.name,))
    bytes_ = clean(prod((d for d in old.shape), start=const(old.dtype.bytes)), {})
    for code in (
        x for x in blocks_in(f.body) if any(r.buffer.name == old.name for r in (*(x.reads or ()), *(x.writes or ())))
    ):
        known = (intrinsics or {}).get(str(code.annotation(ANNOTATION)))
        asked = old.align if known is None else _asked(known, old)
        if any(c % asked for c in poly(bytes_).terms.values()):
            size = int_const(bytes_)
            begins = "after a number of bytes that only a run knows" if size is None else f"after {size} bytes"
            why = (
                f"the second half of '{old.name}' begins {begins}; the code of '{code.name}' takes for granted that it"
                f" is aligned to {asked}"
            )
            hint = "compact_buffer(…, align=…) before"
            raise tree.error(
                step,
                why,
                (code.name,),
                hint if known is not None else f"double_buffer first, tensorize later; or {hint}",
            )

    halves = replace(old, shape=(const(2), *old.shape))
    around = domain(path)
    loops = [s for s in path[top:-1] if isinstance(s, For)]
    following = add(f.var, 1)

    def at(turn: Expr, half: Expr) -> Block:
        """The block in iteration `turn`: it fills a half."""
        known = {**around, loop: f.extent}
        bindings = [clean(substitute(x, {loop: turn}), known) for x in b.bindings]
        predicate = with_conditions(
            substitute(b.predicate, {loop: turn}),
            () if int_const(f.extent) and not free_vars(turn) else (lt(turn, f.extent),),
        )
        iters = list(b.iters)
        if int_const(half) is None:
            iters.append(BlockIter(Var(tree.fresh(f"{old.name}_half"), dt.int64), const(2)))
            bindings.append(half)
            half = iters[-1].var
        return _in_half(
            replace(b, iters=tuple(iters), bindings=tuple(bindings), predicate=predicate), half, old, halves
        )

    def own_loops(x: Block) -> tuple[Block, tuple[Expr, ...]]:
        """The block with an iterator for each of its loops, and these."""
        alone = {y.name: i.var for i, y in zip(x.iters, x.bindings) if isinstance(y, Var)}
        added = {
            s.var.name: BlockIter(Var(tree.fresh(f"{s.var.name}_v"), dt.int64), s.extent)
            for s in loops
            if s.var.name not in alone
        }
        more = tuple(Var(v, dt.int64) for v in added)
        place = tuple(added[s.var.name].var if s.var.name in added else alone[s.var.name] for s in loops)
        return replace(x, iters=(*x.iters, *added.values()), bindings=(*x.bindings, *more)), place

    names = Names(tree.names)
    first = copy_stmt(nest(loops, at(const(0), const(0))), {loop: const(0)}, names)
    tree.names |= names.used
    here: Stmt = nest(_turned(loops, loop, following), at(following, floormod(following, 2)))
    after: Stmt | None = None
    waiting: Buffer | None = None
    if through is not None:
        stored, place = own_loops(at(following, floormod(following, 2)))
        assert isinstance(stored.body, Store)
        waiting = Buffer(
            tree.fresh(f"{block}_{through.split('.')[-1]}"), tuple(s.extent for s in loops), old.dtype, through
        )
        brought = replace(stored, name=tree.fresh(f"{block}_ahead"), body=Store(waiting, place, stored.body.value))
        kept = replace(stored, body=replace(stored.body, value=Load(waiting, place)))
        names = Names(tree.names - {brought.name})
        here = copy_stmt(nest(_turned(loops, loop, following), brought), {}, names)
        tree.names |= names.used
        after = nest(_turned(loops, loop, following), kept)

    def visit(s: Stmt) -> Stmt:
        if s is path[top]:
            return here
        if s is home:
            return visit(home.body)
        if isinstance(s, Block):
            return _from_half(tree, s, f, old, halves)
        children = stmt_children(s)
        return with_stmt_children(s, tuple(visit(c) for c in children)) if children else s

    body = visit(f.body) if after is None else seq(visit(f.body), after)
    if waiting is not None:
        body = Allocate(waiting, body)
    return tree.replace(spot, Allocate(halves, seq(first, replace(f, body=body)))), blocks_in(first)[0].name


def _asked(intrinsic: Intrinsic, buffer: Buffer) -> int:
    """What the operands of an instruction that may lie in a buffer must be aligned to."""
    fits = (
        o
        for o, t in zip(intrinsic.operands, intrinsic.tensors)
        if t.dtype == buffer.dtype and (not o.scopes or buffer.scope in o.scopes)
    )
    return max((o.align for o in fits), default=1)


def _turned(loops: list[For], loop: str, turn: Expr) -> list[For]:
    """The loops as they are in iteration `turn` of `loop`."""
    return [replace(s, extent=substitute(s.extent, {loop: turn})) for s in loops]


def _from_half(tree: Tree, block: Block, loop: For, old: Buffer, halves: Buffer) -> Block:
    """A block that reads the half of the iteration that it is in."""
    if not any(a.buffer.name == old.name for a in block_accesses(block)):
        return block
    own = next((i.var for i, x in zip(block.iters, block.bindings) if x == loop.var), None)
    if own is None:
        turn = Var(tree.fresh(f"{old.name}_half"), dt.int64)
        kind: IterKind = next(
            (i.kind for i, x in zip(block.iters, block.bindings) if loop.var.name in free_vars(x)), "spatial"
        )
        more = BlockIter(turn, const(2), kind)
        block = replace(block, iters=(*block.iters, more), bindings=(*block.bindings, floormod(loop.var, 2)))
    half = turn if own is None else floormod(own, 2)
    return _in_half(block, half, old, halves)


def _in_half(block: Block, half: Expr, old: Buffer, halves: Buffer) -> Block:
    """The block with a half of `halves` in the place of `old`: in formulas, stores, addresses, and in what it states
    that it touches."""

    def load(e: Expr) -> Expr | None:
        return (
            Load(halves, (half, *e.indices), e.predicate) if isinstance(e, Load) and e.buffer.name == old.name else None
        )

    def regions(found: tuple[Region, ...]) -> tuple[Region, ...]:
        return tuple(Region(halves, ((half, const(1)), *r.ranges)) if r.buffer.name == old.name else r for r in found)

    def changed(s: Stmt) -> Stmt:
        s = map_stmt_exprs(s, lambda e: transform(e, load))
        if isinstance(s, Store) and s.buffer.name == old.name:
            return replace(s, buffer=halves, indices=(half, *s.indices))
        return replace(s, within=regions(s.within)) if isinstance(s, Evaluate) and s.within else s

    init = None if block.init is None else transform_stmts(block.init, changed)
    reads, writes = (None if found is None else regions(found) for found in (block.reads, block.writes))
    return replace(block, init=init, body=transform_stmts(block.body, changed), reads=reads, writes=writes)
