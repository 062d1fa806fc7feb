"""reorder: changes the order of the loops of a nest."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import pairwise

from weft.expr.nodes import free_vars
from weft.loop.grids import BLOCK_AXES, THREAD_AXES
from weft.loop.nodes import For, Program, Stmt
from weft.scheduling.dependence import carried
from weft.scheduling.tree import Tree, blocks_in

INDEPENDENT = ("parallel", *BLOCK_AXES, *THREAD_AXES)
"""Kinds of loops whose iterations are independent."""


def reorder(program: Program, *loops: str) -> tuple[Program, None]:
    """Puts the named loops of one nest into this order, outermost first; unnamed ones between them stay where they are.

        for i in n { for j in m { for k in 8 { block C(bi: n = i, bj: m = j, rk: reduce 8 = k) … } } }
        → reorder("k", "i")
        for k in 8 { for j in m { for i in n { block C(bi: n = i, bj: m = j, rk: reduce 8 = k) … } } }

    Spatial and reduce iterators commute. Loops of a scan iterator keep their place relative to every other loop. Under
    several blocks a parallel loop may move inside of others without a proof.
    """
    tree = Tree(program)
    if len(set(loops)) != len(loops):
        raise tree.error("reorder", "a loop is named twice", loops)
    if len(loops) < 2:
        for x in loops:
            tree.loop(x, "reorder")
        return program, None
    paths = {x: tree.loop_path(x, "reorder") for x in loops}
    innermost, deepest = max(paths.items(), key=lambda item: len(item[1]))
    for x, p in paths.items():
        if deepest[: len(p)] != p and not all(a is b for a, b in zip(p, deepest)):
            raise tree.error("reorder", f"loop '{x}' is not around '{innermost}'", loops, "name loops of one nest")
    start = min(len(p) for p in paths.values()) - 1
    chain = deepest[start:]
    for above, below in pairwise(chain):
        if not isinstance(above, For) or above.body is not below:
            raise tree.error(
                "reorder",
                "the loops are not a perfect nest",
                loops,
                "move what stands between them with compute_at or reverse_compute_at",
            )
    nest = [s for s in chain if isinstance(s, For)]
    wanted = iter(loops)
    order = [tree.loop(next(wanted), "reorder") if f.var.name in paths else f for f in nest]
    if all(a is b for a, b in zip(order, nest)):
        return program, None
    place = {f.var.name: k for k, f in enumerate(order)}
    for f in order:
        for name in free_vars(f.extent).keys() & place.keys():
            if place[name] > place[f.var.name]:
                raise tree.error(
                    "reorder", f"the extent of '{f.var.name}' needs '{name}' outside it", (f.var.name, name)
                )
    _check_commutes(tree, nest, order, paths)
    body: Stmt = nest[-1].body
    for f in reversed(order):
        body = replace(f, body=body)
    return tree.replace(deepest[: start + 1], body), None


def _check_commutes(tree: Tree, nest: Sequence[For], order: Sequence[For], named: Container[str]) -> None:
    """Checks that the blocks under a nest compute the same in another order of its loops; `named`: those that move."""
    place = {f.var.name: k for k, f in enumerate(order)}
    blocks = blocks_in(nest[-1].body)
    if len(blocks) == 1:
        before = {f.var.name: k for k, f in enumerate(nest)}
        for it, binding in zip(blocks[0].iters, blocks[0].bindings):
            if it.kind != "scan":
                continue
            for v in free_vars(binding).keys() & place.keys():
                for other in place:
                    if (place[other] < place[v]) != (before[other] < before[v]):
                        why = (
                            f"'{v}' runs the scan iterator '{it.var.name}', whose steps use one another; '{other}' may"
                            " not cross it"
                        )
                        raise tree.error("reorder", why, (v, other))
    else:
        unproven = _reversed_in_order(nest, order)
        for f in nest:
            reason = carried(tree, f.var.name, "reorder") if f.var.name in unproven and f.var.name in named else None
            if reason is not None:
                why = f"{len(blocks)} blocks are under the nest and loop '{f.var.name}' does not commute: {reason[0]}"
                raise tree.error(
                    "reorder", why, (f.var.name, reason[1]), "reorder before moving other blocks into the nest"
                )


def _reversed_in_order(nest: Sequence[For], order: Sequence[For]) -> set[str]:
    """Loops of pairs that change places, of which the one that was outside runs in order. Iterations of a parallel one
    are independent, whatever runs inside of them."""
    place = {f.var.name: k for k, f in enumerate(order)}
    pairs = [(a, b) for k, a in enumerate(nest) for b in nest[k + 1 :] if place[a.var.name] > place[b.var.name]]
    return {f.var.name for a, b in pairs if a.kind not in INDEPENDENT for f in (a, b)}
