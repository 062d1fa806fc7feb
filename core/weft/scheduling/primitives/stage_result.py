"""stage_result: stores the result that a block computes under a loop in a buffer of that loop, and copies it to its
place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, all_of, const, free_vars, substitute, transform
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Block,
    BlockIter,
    Buffer,
    For,
    Load,
    Program,
    Stmt,
    Store,
    map_stmt_exprs,
    seq,
    substitute_stmt,
    transform_stmts,
)
from weft.scheduling.dependence import writers, written_buffers
from weft.scheduling.region import block_accesses
from weft.scheduling.rewrite import domain
from weft.scheduling.tree import Tree, conjuncts, nest


def stage_result(program: Program, block: str, loop: str, scope: str) -> tuple[Program, str]:
    """`block`, a reduction, computes all of `loop` and the loops in it into a new buffer in memory `scope` (one for
    each of its results), with one dimension for each spatial loop; a new block after `loop` copies it out. Returns the
    copy block's name. The mirror of `stage`.

        for i in n { for k in 8 { for j in 16 {
          block C(bi: n = i, bj: 16 = j, rk: reduce 8 = k) { init { y[bi, bj//4, bj%4] = 0.0f32 } y[bi, bj//4, bj%4] =
              y[bi, bj//4, bj%4] + x[rk, bj] } } } }
        → stage_result("C", "k", "register") → "C_copy"
        for i in n { allocate C_register: float32[16] in register
          for k in 8 { for j in 16 { block C(…) { init { C_register[bj] = 0.0f32 } C_register[bj] = C_register[bj] +
              x[rk, bj] } } }
          for j_1 in 16 { block C_copy(bi_1: n = i, bj_1: 16 = j_1) { y[bi_1, bj_1//4, bj_1%4] = C_register[bj_1] } } }

    cache_write keeps the result's dimensions; this primitive keeps the loops, so that it is independent of the formulas
    by which the result is stored.
    """
    step = "stage_result"
    tree = Tree(program)
    path, spot, b = tree.block_path(block, step), tree.loop_path(loop, step), tree.block(block, step)
    loops = [s for s in path[len(spot) - 1 : -1] if isinstance(s, For)]
    if path[: len(spot)] != spot or len(loops) != len(path) - len(spot):
        raise tree.error(
            step,
            f"loop '{loop}' does not hold '{block}' alone, under nothing but loops",
            {loop: "wanted here", block: ""},
        )
    found = _places(tree, b, step)
    buffers = written_buffers(b)
    spatial, held = _elements(tree, b, loops, domain(path[: len(spot) - 1]), step)
    driven = {v for _, x in spatial for v in free_vars(x)}
    kept = [s for s in loops if s.var.name in driven]
    alone = {x.name: i for i, x in spatial if isinstance(x, Var)}
    added = {
        s.var.name: BlockIter(Var(tree.fresh(f"{s.var.name}_v"), dt.int64), s.extent)
        for s in kept
        if s.var.name not in alone
    }
    place = {s.var.name: (alone.get(s.var.name) or added[s.var.name]).var for s in kept}
    shape: tuple[Expr, ...] = tuple(s.extent for s in kept) or (const(1),)
    new = {old.name: Buffer(tree.fresh(f"{block}_{scope.split('.')[-1]}"), shape, old.dtype, scope) for old in buffers}
    at: tuple[Expr, ...] = tuple(place[s.var.name] for s in kept) or (const(0),)

    changed = replace(
        _moved(b, new, at),
        iters=(*b.iters, *added.values()),
        bindings=(*b.bindings, *(Var(v, dt.int64) for v in added)),
    )
    name = tree.fresh(f"{block}_copy")
    renamed = {s.var.name: Var(tree.fresh(s.var.name), dt.int64) for s in kept}
    pairs = [*spatial, *((i, Var(v, dt.int64)) for v, i in added.items())]
    iters = {i.var.name: Var(tree.fresh(i.var.name), dt.int64) for i, _ in pairs}
    copy = Block(
        name,
        tuple(BlockIter(iters[i.var.name], i.extent, i.kind) for i, _ in pairs),
        tuple(substitute(x, renamed) for _, x in pairs),
        substitute_stmt(seq(*(Store(old, found[old.name], Load(new[old.name], at)) for old in buffers)), iters),
        predicate=all_of(substitute(c, {**iters, **renamed}) for c in held),
        annotations=(("op", "copy"),),
    )
    fresh = [replace(s, var=renamed[s.var.name], annotations=()) for s in kept]
    again = Tree(tree.replace(path, changed))
    top = again.block_path(block, step)[: len(spot)]
    result: Stmt = seq(top[-1], nest(fresh, copy))
    for b_new in reversed(new.values()):
        result = Allocate(b_new, result)
    return again.replace(top, result), name


def _places(tree: Tree, block: Block, step: str) -> dict[str, tuple[Expr, ...]]:
    """By buffer that a reduction with an init writes, the one element of it that a step uses."""
    buffers = written_buffers(block)
    if not buffers or block.writes is not None or block.init is None:
        raise tree.error(
            step,
            f"'{block.name}' is no reduction with an init",
            (block.name,),
            "before decompose_reduction and tensorize",
        )
    found: dict[str, tuple[Expr, ...]] = {}
    for old in buffers:
        if writers(tree, [old.name]) != [block.name]:
            raise tree.error(
                step,
                f"blocks {writers(tree, [old.name])} all write '{old.name}'",
                (block.name,),
                "before decompose_reduction",
            )
        places = {a.indices for a in block_accesses(block, old.name)}
        if len(places) != 1:
            raise tree.error(step, f"'{block.name}' uses several elements of '{old.name}' in one step", (block.name,))
        (found[old.name],) = places
    return found


def _elements(
    tree: Tree, block: Block, loops: list[For], outside: Mapping[str, Expr], step: str
) -> tuple[list[tuple[BlockIter, Expr]], list[Expr]]:
    """What tells the elements of the result: iterators with what they are bound to, and conditions. The rest tells
    their terms."""
    pairs = list(zip(block.iters, block.bindings))
    # A step of a scan is one step: its scan iterators stay what they are outside.
    fixed = {i.var.name for i, x in pairs if i.kind == "scan" and free_vars(x).keys() <= outside.keys()}
    reduced = {v for i, x in pairs if i.kind != "spatial" and i.var.name not in fixed for v in free_vars(x)}
    spatial = [(i, x) for i, x in pairs if i.kind == "spatial" or i.var.name in fixed]
    driven = {v for _, x in spatial for v in free_vars(x)}
    late = sorted(reduced & outside.keys())
    if late:
        why = f"'{block.name}' is not complete there: its reduction over '{late[0]}' goes on outside"
        marks = {loops[0].var.name: "wanted here", late[0]: "reduction"}
        raise tree.error(step, why, marks, "choose a loop outside every reduction loop")
    both = [s.var.name for s in loops if s.var.name in reduced & driven]
    if both:
        raise tree.error(
            step,
            f"loop '{both[0]}' drives spatial and reduce iterators at once",
            (both[0],),
            "fuse spatial loops only with spatial ones",
        )
    known = {s.var.name for s in loops} | outside.keys()
    held: list[Expr] = []
    for c in conjuncts(block.predicate):
        asks = free_vars(_over_loops(c, block)).keys() & known
        if not asks & reduced:
            held.append(c)
        elif asks & driven:
            why = f"the condition {c} of '{block.name}' mixes spatial and reduction loops"
            raise tree.error(step, why, (block.name,))
    return spatial, held


def _moved(block: Block, new: Mapping[str, Buffer], at: tuple[Expr, ...]) -> Block:
    """The block with the element `at` of new buffers in the place of its results."""

    def load(e: Expr) -> Expr | None:
        return Load(new[e.buffer.name], at, e.predicate) if isinstance(e, Load) and e.buffer.name in new else None

    def moved(s: Stmt) -> Stmt:
        s = map_stmt_exprs(s, lambda e: transform(e, load))
        if isinstance(s, (Store, AtomicUpdate)) and s.buffer.name in new:
            return replace(s, buffer=new[s.buffer.name], indices=at)
        return s

    init = None if block.init is None else transform_stmts(block.init, moved)
    return replace(block, body=transform_stmts(block.body, moved), init=init)


def _over_loops(condition: Expr, block: Block) -> Expr:
    """A condition of a predicate, which may use iterators and loops, over loops alone."""
    return substitute(condition, {i.var.name: x for i, x in zip(block.iters, block.bindings)})
