"""fuse: makes one loop of a perfect nest."""

from __future__ import annotations

from itertools import pairwise

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, floordiv, floormod, free_vars
from weft.loop.nodes import For, Program, int64, int_const
from weft.scheduling.rewrite import clean, domain, rewrite_loops
from weft.scheduling.tree import Tree


def fuse(program: Program, *loops: str, name: str | None = None) -> tuple[Program, str]:
    """Makes one loop of loops that are directly inside one another, outermost first.

        for i in n { for j in 16 { block C(bi: n = i, bj: 16 = j) … } }
        → fuse("i", "j")
        for i_j in n*16 { block C(bi: n = i_j//16, bj: 16 = i_j % 16) … }

    Fused parallel loops are a parallel loop.
    """
    tree = Tree(program)
    if not loops:
        raise tree.error("fuse", "no loops are named")
    path = tree.loop_path(loops[0], "fuse")
    nest = [tree.loop(x, "fuse") for x in loops]
    for outer, inner in pairwise(nest):
        if outer.body is not inner:
            names = outer.var.name, inner.var.name
            raise tree.error(
                "fuse", f"loop '{names[1]}' is not directly inside '{names[0]}'", names, "reorder them first"
            )
        if free_vars(inner.extent).keys() & set(loops):
            raise tree.error("fuse", f"the extent of '{inner.var.name}' varies in the nest", (inner.var.name,))
    for f in nest:
        if f.kind not in ("serial", "parallel") or f.kind != nest[0].kind:
            hint = "fuse first, then bind, vectorize or unroll; parallel loops go with parallel ones"
            raise tree.error("fuse", f"loop '{f.var.name}' is {f.kind} already", {f.var.name: f.kind}, hint)
    if len(nest) == 1 and name is None:
        return program, loops[0]
    around = domain(path[:-1])
    tree.names.difference_update(loops)
    v = Var(tree.fresh(name or "_".join(loops)), dt.int64)
    extent: Expr = nest[0].extent
    for f in nest[1:]:
        extent = extent * f.extent
    extent = clean(extent, around)
    within = {**around, v.name: extent}
    values: dict[str, Expr] = {}
    rest: Expr = v
    for k in reversed(range(len(nest))):
        by = (
            int64(1) if int_const(nest[k].extent) == 0 else nest[k].extent
        )  # of a loop without steps no index is wanted
        values[loops[k]] = clean(floormod(rest, by), within) if k else rest
        rest = clean(floordiv(rest, by), within) if k else rest
    annotations = dict(a for f in nest for a in f.annotations)
    body = rewrite_loops(nest[-1].body, values, within)
    return tree.replace(path, For(v, extent, body, nest[0].kind, tuple(annotations.items()))), v.name
