"""specialize: replaces the iterators of a block by the loops around it."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, all_of, const, free_vars, substitute
from weft.loop.nodes import Block, BlockIter, If, Program, Stmt, int_const, map_exprs, substitute_stmt
from weft.scheduling.region import certain, greatest, poly
from weft.scheduling.rewrite import clean, conditions, domain
from weft.scheduling.tree import Tree, conjuncts


def specialize(program: Program, block: str) -> tuple[Program, None]:
    """Replaces the iterators of `block` by the loops around it, one for each loop with several iterations, and
    simplifies its formulas by their extents.

        for i in 56 { block C(bi: 58 = i + 1) { y[bi] = select(1 <= bi and bi < 57, x[bi - 1], 0.0f32) } }
        → specialize("C")
        for i in 56 { block C(bi: 56 = i) { y[bi + 1] = x[bi] } }

    A condition around the block's whole body becomes part of its predicate. A reduction has to be decomposed first,
    since its start is defined by its iterators.
    """
    step = "specialize"
    tree = Tree(program)
    path, b = tree.block_path(block, step), tree.block(block, step)
    if b.reads is not None or b.writes is not None:
        raise tree.error(step, f"'{block}' states what it reads and writes: its body is code", (block,))
    if b.init is not None:
        raise tree.error(
            step, f"'{block}' starts a reduction where its iterators are 0", (block,), "decompose_reduction first"
        )
    loops = domain(path[:-1])
    single = {v for v, n in loops.items() if int_const(n) == 1}
    old = {i.var.name: x for i, x in zip(b.iters, b.bindings)}
    tree.names -= old.keys()
    iters: dict[str, BlockIter] = {}
    for i, x in zip(b.iters, b.bindings):
        for v in (loops.keys() & free_vars(x).keys()) - single:
            known = iters.get(v)
            if known is not None and known.kind != i.kind:
                raise tree.error(
                    step, f"loop '{v}' drives a {known.kind} and a {i.kind} iterator of '{block}'", (block, v)
                )
            if known is None:
                most = greatest(poly(loops[v]), {k: e for k, e in loops.items() if k != v})
                if most is None or most.names() & loops.keys():
                    raise tree.error(step, f"the extent {loops[v]} of loop '{v}' has no bound that stays", (block, v))
                name = tree.fresh(i.var.name if x == Var(v, dt.int64) else f"{v}_v")
                iters[v] = BlockIter(Var(name, dt.int64), most.expr(), i.kind)
    order = [v for v in loops if v in iters]
    inside: dict[str, Expr] = {v: const(0) for v in single} | {v: iters[v].var for v in order}
    known_extents = {iters[v].var.name: loops[v] for v in order}
    values = {v: substitute(x, inside) for v, x in old.items()}

    def tidied(e: Expr) -> Expr:
        return clean(e, known_extents)

    body: Stmt = b.body
    asked = [clean(substitute(c, old), loops) for c in conjuncts(b.predicate)]
    while isinstance(body, If) and body.orelse is None:
        asked += [clean(substitute(c, old), loops) for c in conjuncts(body.cond)]
        body = body.then
    facts = conditions(path[:-1], path[-1])
    predicate = all_of(c for c in asked if not certain(c, loops, facts))
    new: Block = replace(
        b,
        iters=tuple(iters[v] for v in order),
        bindings=tuple(Var(v, dt.int64) for v in order),
        body=map_exprs(substitute_stmt(body, values), tidied),
        predicate=predicate,
    )
    return tree.replace(path, new), None
