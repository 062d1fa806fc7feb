"""decompose_reduction: stores the start value of a reduction in a block of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, all_of, const, free_vars, substitute
from weft.loop.nodes import Block, BlockIter, For, Program, int_const, seq, substitute_stmt
from weft.scheduling.dependence import disjoint, out_of_scope
from weft.scheduling.region import Access, accesses, interval, loops_under, poly
from weft.scheduling.rewrite import clean, domain, tidy
from weft.scheduling.tree import Tree, conjuncts, nest


def decompose_reduction(program: Program, block: str, loop: str) -> tuple[Program, str]:
    """The init of `block` becomes block `<block>_init` before `loop`, over the spatial loops inside. Returns its name.

        for k in 64 { for j in 16 { block C(bj: 16 = j, rk: reduce 64 = k) init { c[bj] = 0.0f32 } { c[bj] = c[bj] + … }
            } }
        → decompose_reduction("C", "k") → "C_init"
        for j_init in 16 { block C_init(bj_1: 16 = j_init) { c[bj_1] = 0.0f32 } }
        for k in 64 { for j in 16 { block C(…) { c[bj] = c[bj] + … } } }

    Kinds of the copied loops (vectorized, unrolled) are kept. A reduction without iterations gives its start value.
    """
    step = "decompose_reduction"
    tree = Tree(program)
    path, spot = tree.block_path(block, step), tree.loop_path(loop, step)
    b, f = tree.block(block, step), tree.loop(loop, step)
    if b.init is None:
        raise tree.error(step, f"'{block}' has no init", (block,), "it is no reduction, or is decomposed already")
    if not any(s is f for s in path):
        raise tree.error(step, f"loop '{loop}' is not around '{block}'", (block, loop))
    outer = domain(spot[:-1])
    inside = [s for s in path[len(spot) - 1 : -1] if isinstance(s, For)]
    _check_loops(tree, b, inside, outer, step)
    spatial = [(i, x) for i, x in zip(b.iters, b.bindings) if i.kind != "reduce"]
    used = {v for _, x in spatial for v in free_vars(x)}
    name = tree.fresh(f"{block}_init")
    kept = [s for s in inside if s.var.name in used]
    renamed = {s.var.name: Var(tree.fresh(f"{s.var.name}_init"), dt.int64) for s in kept}
    # What the condition says of reduction loops holds at their first step; with none the start value is the result.
    gone = {s.var.name: const(0) for s in inside if s.var.name not in used}
    around = {**outer, **{renamed[s.var.name].name: s.extent for s in kept}}
    asked = [
        c
        for c in conjuncts(b.predicate)
        if not (free_vars(c).keys() & gone.keys() and not free_vars(c).keys() & (used | outer.keys()))
    ]
    predicate = all_of(tidy(substitute(substitute(c, gone), renamed), around) for c in asked)
    lost = out_of_scope(tree, replace(b, body=b.init, init=None), spot)
    if lost is not None:
        marks = {loop: "wanted here", lost: "too late"}
        raise tree.error(
            step,
            f"buffer '{lost}' is allocated inside '{loop}'",
            marks,
            "choose an inner loop, or decompose before compact_buffer",
        )
    _check_elements(tree, b, inside, step)
    iters = {i.var.name: Var(tree.fresh(i.var.name), dt.int64) for i, _ in spatial}
    init = Block(
        name,
        tuple(BlockIter(iters[i.var.name], i.extent, i.kind) for i, _ in spatial),
        tuple(clean(substitute(x, renamed), around) for _, x in spatial),
        substitute_stmt(b.init, iters),
        predicate=predicate,
        annotations=b.annotations,
    )
    if b.writes is not None:  # its code does not show what the start writes
        held = tuple(
            replace(r, ranges=tuple((substitute(lo, iters), substitute(n, iters)) for lo, n in r.ranges))
            for r in b.writes
        )
        init = replace(init, reads=(), writes=held)
    loops = [replace(s, var=renamed[s.var.name], extent=substitute(s.extent, renamed), annotations=()) for s in kept]
    new = Tree(tree.replace(path, replace(b, init=None)))
    at = new.loop_path(loop, step)
    return new.replace(at, seq(nest(loops, init), at[-1])), name


def _check_loops(tree: Tree, block: Block, inside: list[For], outer: Mapping[str, Expr], step: str) -> None:
    """Checks that the block's reduction is whole in the loops `inside`, and that none of them drives both kinds of
    iterators."""
    pairs, loop = list(zip(block.iters, block.bindings)), inside[0].var.name
    reduced = {v for i, x in pairs if i.kind == "reduce" for v in free_vars(x)}
    above = [v for v in outer if v in reduced]
    if above:
        why = (
            f"the reduction loop '{above[0]}' is outside '{loop}': the start would be stored again in each of its steps"
        )
        raise tree.error(
            step, why, {loop: "wanted here", above[0]: "reduction"}, f"decompose at '{above[0]}' or outside it"
        )
    used = {v for i, x in pairs if i.kind != "reduce" for v in free_vars(x)}
    both = [s.var.name for s in inside if s.var.name in used & reduced]
    if both:
        raise tree.error(
            step,
            f"loop '{both[0]}' drives spatial and reduce iterators at once",
            (both[0],),
            "fuse spatial loops only with spatial ones",
        )


def _check_elements(tree: Tree, block: Block, inside: list[For], step: str) -> None:
    """Checks that no element is computed again in these loops, as in a border that tiles share: each time it has to
    start again."""
    loop = inside[0].var.name
    reduced = {v for i, x in zip(block.iters, block.bindings) if i.kind == "reduce" for v in free_vars(x)}
    uses: dict[str, list[Access]] = {}
    for a in accesses(block):
        if a.write:
            uses.setdefault(a.buffer.name, []).append(a)
    moving = {s.var.name: s.extent for s in inside if s.var.name not in reduced}
    driving = {v for x in block.bindings for v in free_vars(x)}
    overlaps = any(_overlaps(x, moving) for i, x in zip(block.iters, block.bindings) if i.kind != "reduce")
    for s in inside:
        if s.var.name not in moving or int_const(s.extent) == 1 or not (overlaps or s.var.name not in driving):
            continue
        for name, stores in uses.items():
            if not any(disjoint(stores, s, loops_under(s.body), predicates) for predicates in (True, False)):
                why = f"iterations of '{s.var.name}' may compute the same element of '{name}', each from its start"
                marks = {loop: "wanted here", s.var.name: "again"}
                raise tree.error(step, why, marks, f"decompose inside '{s.var.name}'")


def _overlaps(binding: Expr, moving: Mapping[str, Expr]) -> bool:
    """Whether an iterator has a value twice: its formula is a sum of which a term moves it no further than the terms
    of lesser coefficients do together. A quotient or remainder is one term, as a loop is: that a fused loop is taken
    apart by them completely is not checked. Nor are
    sums whose coefficients are known only at run time."""
    steps: list[tuple[int, float]] = []
    for monomial, factor in poly(binding).terms.items():
        if not any(free_vars(atom).keys() & moving.keys() for atom in monomial):
            continue
        if len(monomial) > 1:
            return False
        values = interval(monomial[0], moving)
        known = None if values is None else (values[1] - values[0]).value
        steps.append((abs(factor), math.inf if known is None else known))
    total = 0.0
    for step, reach in sorted(steps):
        if total >= step and reach > 0:
            return True
        total += step * reach
    return False
