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
from weft.scheduling.tree import Path, Tree, blocks_in, nest, with_conditions


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
    home = _checked(tree, b, f, spot, through, step)
    old = home.buffer
    _check_alignment(tree, f, old, intrinsics or {}, step)
    halves = replace(old, shape=(const(2), *old.shape))
    loops = [s for s in path[top:-1] if isinstance(s, For)]
    following = add(f.var, 1)

    def at(turn: Expr, half: Expr) -> Block:
        return _in_turn(tree, b, f, turn, half, old, halves)

    names = Names(tree.names)
    first = copy_stmt(nest(loops, at(const(0), const(0))), {loop: const(0)}, names)
    tree.names |= names.used
    here: Stmt = nest(_turned(loops, loop, following), at(following, floormod(following, 2)))
    after: Stmt | None = None
    waiting: Buffer | None = None
    if through is not None:
        stored, place = _by_loops(tree, at(following, floormod(following, 2)), loops)
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


def _in_turn(tree: Tree, block: Block, loop: For, turn: Expr, half: Expr, old: Buffer, halves: Buffer) -> Block:
    """The block in iteration `turn` of `loop`: it fills a half."""
    known, now = domain(tree.block_path(block.name, "double_buffer")), {loop.var.name: turn}
    bindings = [clean(substitute(x, now), known) for x in block.bindings]
    predicate = with_conditions(
        substitute(block.predicate, now),
        () if int_const(loop.extent) and not free_vars(turn) else (lt(turn, loop.extent),),
    )
    iters = list(block.iters)
    if int_const(half) is None:
        iters.append(BlockIter(Var(tree.fresh(f"{old.name}_half"), dt.int64), const(2)))
        bindings.append(half)
        half = iters[-1].var
    new = replace(block, iters=tuple(iters), bindings=tuple(bindings), predicate=predicate)
    return _in_half(new, half, old, halves)


def _by_loops(tree: Tree, block: Block, loops: list[For]) -> tuple[Block, tuple[Expr, ...]]:
    """The block with an iterator for each of its loops, and these."""
    alone = {x.name: i.var for i, x in zip(block.iters, block.bindings) if isinstance(x, Var)}
    added = {
        s.var.name: BlockIter(Var(tree.fresh(f"{s.var.name}_v"), dt.int64), s.extent)
        for s in loops
        if s.var.name not in alone
    }
    more = tuple(Var(v, dt.int64) for v in added)
    place = tuple(added[s.var.name].var if s.var.name in added else alone[s.var.name] for s in loops)
    return replace(block, iters=(*block.iters, *added.values()), bindings=(*block.bindings, *more)), place


def _checked(tree: Tree, block: Block, loop: For, spot: Path, through: str | None, step: str) -> Allocate:
    """The allocation in `loop` of the buffer that `block` fills, once it is known that it may do so an iteration
    earlier."""
    name, at, path = block.name, loop.var.name, tree.block_path(block.name, step)
    top = own_nest(path)
    if path[: len(spot)] != spot or not all(isinstance(s, (Seq, Allocate)) for s in path[len(spot) : top]):
        why = (
            f"'{name}' does not stand in '{at}' under nothing but loops of its own, beside those who read what it"
            " writes"
        )
        raise tree.error(step, why, {at: "wanted here", name: ""})
    coded = block.writes is not None
    if block.init is not None or not (coded or (isinstance(block.body, Store) and block.body.predicate is None)):
        raise tree.error(step, f"the body of '{name}' is not one store", (name,))
    if coded and through is not None:
        why = f"what '{name}' brings cannot wait in '{through}': it is an instruction, which moves all at once"
        raise tree.error(step, why, (name,), "leave out through")
    if len(written_buffers(block)) != 1:
        raise tree.error(step, f"'{name}' writes more than one buffer", (name,))
    (old,) = written_buffers(block)
    home = next((s for s in path[len(spot) : top] if isinstance(s, Allocate) and s.buffer.name == old.name), None)
    if home is None:
        raise tree.error(
            step,
            f"'{old.name}' is not allocated in '{at}'",
            (name, at),
            "compact_buffer brings it there, if an iteration may have it alone",
        )
    if writers(tree, [old.name]) != [name] or old.name in reads(block):
        raise tree.error(step, f"'{old.name}' is not written by '{name}' once and for all", (name,))
    inside = {s.buffer.name for s in path[len(spot) :] if isinstance(s, Allocate)} | {
        w.name for x in blocks_in(loop.body) for w in written_buffers(x)
    }
    late = sorted(set(reads(block)) & inside)
    if late:
        raise tree.error(
            step, f"'{name}' reads '{late[0]}', which the iteration before has not got for it", (name, late[0])
        )
    if any(a.block is None for a in accesses(loop.body, old.name)):
        raise tree.error(step, f"'{old.name}' is read outside of blocks", (old.name,))
    return home


def _check_alignment(tree: Tree, loop: For, old: Buffer, intrinsics: Mapping[str, Intrinsic], step: str) -> None:
    """Checks that the second half of a buffer is as aligned as the instructions in `loop` that use it ask."""
    bytes_ = clean(prod((d for d in old.shape), start=const(old.dtype.bytes)), {})
    for code in blocks_in(loop.body):
        if not any(r.buffer.name == old.name for r in (*(code.reads or ()), *(code.writes or ()))):
            continue
        known = intrinsics.get(str(code.annotation(ANNOTATION)))
        asked = old.align if known is None else _asked(known, old)
        if any(c % asked for c in poly(bytes_).terms.values()):
            size = int_const(bytes_)
            begins = "after a number of bytes known only at run time" if size is None else f"after {size} bytes"
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
