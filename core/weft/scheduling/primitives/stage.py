"""stage: makes a part of a block's formula a block of its own."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, free_vars, substitute, transform, walk
from weft.loop.nodes import Allocate, Block, BlockIter, Buffer, For, Load, Program, Seq, Stmt, Store, seq
from weft.scheduling.region import accesses
from weft.scheduling.rewrite import domain
from weft.scheduling.tree import Tree, nest


def stage(program: Program, block: str, loop: str, formula: str, scope: str) -> tuple[Program, str]:
    """Computes the part of the value of `block`, or all of it, that prints as `formula` before, for all of `loop` and
    the loops in it, into a buffer in memory `scope`. Returns the new block's name. If `loop` is the block's own name:
    one element at a time.

        for i in n { for j in 16 { block C(bi: n = i, bj: 16 = j) { y[bi, bj] = exp(x[bi, bj])*2.0f32 } } }
        → stage("C", "j", "exp(x[bi, bj])", "register") → "C_part"
        for i in n { allocate C_register: float32[16] in register
          for j_1 in 16 { block C_part(bi_1: n = i, bj_1: 16 = j_1) { C_register[bj_1] = exp(x[bi_1, bj_1]) } }
          for j in 16 { block C(bi: n = i, bj: 16 = j) { y[bi, bj] = C_register[bj]*2.0f32 } } }

    The opposite of compute_inline, for formulas of which an instruction computes a part. Each iterator of the block
    must be one loop (see specialize). `loop` may hold other blocks as well, if the formula reads nothing that they
    write: a value that does not vary with a loop is computed before it.
    """
    step = "stage"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    spot = path if loop == block else tree.loop_path(loop, step)
    loops = path[len(spot) - 1 : -1]  # none for the block itself
    if path[: len(spot)] != spot or not all(isinstance(s, (For, Seq, Allocate)) for s in loops):
        raise tree.error(
            step, f"loop '{loop}' does not hold '{block}', under nothing but loops", {loop: "wanted here", block: ""}
        )
    driven = [x.name for x in b.bindings if isinstance(x, Var)]
    if len(set(driven)) != len(b.bindings):
        raise tree.error(
            step, f"an iterator of '{block}' is not one loop of its own", (block,), f"specialize('{block}') first"
        )
    if not isinstance(b.body, Store) or b.init is not None or b.writes is not None:
        raise tree.error(
            step, f"the body of '{block}' is not one store", (block,), "decompose_reduction and specialize first"
        )
    found = _part(tree, b, b.body, loop, spot[-1], formula)
    used = free_vars(found)
    inner = [s for s in loops if isinstance(s, For)]
    iter_of = {x.name: i for i, x in zip(b.iters, b.bindings) if isinstance(x, Var)}
    kept = [s for s in inner if s.var.name in iter_of and iter_of[s.var.name].var.name in used]
    name = tree.fresh(f"{block}_part")
    buffer = Buffer(tree.fresh(f"{block}_{scope.split('.')[-1]}"), tuple(s.extent for s in kept), found.dtype, scope)
    renamed = {s.var.name: Var(tree.fresh(s.var.name), dt.int64) for s in kept}
    around = [v for v in domain(path[:-1]) if v in iter_of and iter_of[v].var.name in used]
    new_iters = {v: Var(tree.fresh(iter_of[v].var.name), dt.int64) for v in around}
    values: dict[str, Expr] = {iter_of[v].var.name: new_iters[v] for v in around}
    part = Block(
        name,
        tuple(BlockIter(new_iters[v], iter_of[v].extent) for v in around),
        tuple(renamed.get(v, Var(v, dt.int64)) for v in around),
        Store(buffer, tuple(new_iters[s.var.name] for s in kept), substitute(found, values)),
        predicate=substitute(b.predicate, {**values, **renamed}),
        annotations=b.annotations,
    )
    load = Load(buffer, tuple(iter_of[s.var.name].var for s in kept))

    def rule(e: Expr) -> Expr | None:
        return load if e == found else None

    changed = replace(b, body=replace(b.body, value=transform(b.body.value, rule)))
    fresh_loops = [replace(s, var=renamed[s.var.name], annotations=()) for s in kept]
    new = Tree(tree.replace(path, changed))
    after = new.block_path(block, step)[: len(spot)]
    return new.replace(after, Allocate(buffer, seq(nest(fresh_loops, part), after[-1]))), name


def _part(tree: Tree, block: Block, store: Store, loop: str, inside: Stmt, formula: str) -> Expr:
    """The part of the stored value that is printed as `formula`, once it is known to be the same in all of `inside`:
    the loop, or the block, called `loop`."""
    step = "stage"
    found = next((e for e in walk(store.value) if str(e) == formula), None)
    if found is None:
        raise tree.error(step, f"'{formula}' is no part of the value {store.value}", (block.name,))
    if any(isinstance(e, Load) and e.buffer.name == store.buffer.name for e in walk(found)):
        why = f"'{formula}' reads '{store.buffer.name}', which '{block.name}' changes meanwhile"
        raise tree.error(step, why, (block.name,))
    changed_there = {a.buffer.name for a in accesses(inside) if a.write}
    early = next((e.buffer.name for e in walk(found) if isinstance(e, Load) and e.buffer.name in changed_there), None)
    if early is not None:
        raise tree.error(
            step,
            f"'{formula}' reads '{early}', which is written in '{loop}'",
            {loop: "wanted here", block.name: ""},
            "choose an inner loop",
        )
    return found
