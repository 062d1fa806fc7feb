"""split: divides one loop into a nest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft import dtypes as dt
from weft.expr.nodes import Expr, Var, ceildiv, const, lt
from weft.loop.nodes import For, Program, int_const
from weft.scheduling.rewrite import clean, domain, guard, rewrite_loops
from weft.scheduling.tree import Tree


def split(
    program: Program, loop: str, factors: Sequence[int | None], names: Sequence[str] | None = None
) -> tuple[Program, list[str]]:
    """Replaces `loop` by a nest of loops with these extents, outermost first; one may be None: whatever is left.

        for i in n { block C(bi: n = i) … }
        → split("i", [None, 16])
        for i_0 in (n + 15)//16 { for i_1 in 16 { block C(bi: n = i_0*16 + i_1) where i_0*16 + i_1 < n … } }

    The condition exists only if the factors may exceed the extent. New loops are called i_0, i_1, … unless `names` says
    otherwise. Parts of a parallel loop are parallel.
    """
    tree = Tree(program)
    path = tree.loop_path(loop, "split")
    f = path[-1]
    assert isinstance(f, For)
    _check_factors(tree, f, factors, names)
    product, size = math.prod(x for x in factors if x is not None), int_const(f.extent)
    rest = clean(ceildiv(f.extent, product), domain(path[:-1]))
    extents: list[Expr] = [rest if x is None else const(x) for x in factors]
    tree.names.discard(loop)
    if names is None:
        variables = [Var(tree.fresh(f"{loop}_{k}"), dt.int64) for k in range(len(factors))]
    else:
        taken = [n for n in names if n in tree.names or names.count(n) > 1]
        if taken:
            raise tree.error("split", f"the name '{taken[0]}' is taken", (loop, taken[0]))
        variables = [Var(n, dt.int64) for n in names]
    index: Expr = variables[0]
    for v, extent in zip(variables[1:], extents[1:]):
        index = index * extent + v
    index = clean(index, {**domain(path[:-1]), **{v.name: x for v, x in zip(variables, extents)}})
    loops = {**domain(path[:-1]), **{v.name: x for v, x in zip(variables, extents)}}
    if size is None:
        overshoots = clean(f.extent % product, loops) != const(0)
    else:
        overshoots = size % product != 0 if None in factors else size != product
    body = rewrite_loops(f.body, {loop: index}, loops)
    if overshoots:
        body = guard(body, lt(index, f.extent))
    for k in reversed(range(len(factors))):
        body = For(variables[k], extents[k], body, f.kind, f.annotations if k == 0 else ())
    return tree.replace(path, body), [v.name for v in variables]


def _check_factors(tree: Tree, f: For, factors: Sequence[int | None], names: Sequence[str] | None) -> None:
    """Checks that a loop may be split by these factors."""
    loop = f.var.name
    if f.kind not in ("serial", "parallel"):
        raise tree.error(
            "split",
            f"loop '{loop}' is {f.kind} already",
            {loop: f.kind},
            "split first, then bind, vectorize, unroll or parallel the pieces",
        )
    if sum(x is None for x in factors) > 1 or not factors:
        raise tree.error(
            "split",
            f"factors {list(factors)} leave the extents open",
            (loop,),
            "give at least one factor, at most one of them None",
        )
    if any(x is not None and x < 1 for x in factors):
        raise tree.error("split", f"factors {list(factors)} are not all positive", (loop,))
    if names is not None and len(names) != len(factors):
        raise tree.error("split", f"{len(names)} names for {len(factors)} factors", (loop,))
    product, size = math.prod(x for x in factors if x is not None), int_const(f.extent)
    if None not in factors and size is not None and product < size:
        raise tree.error(
            "split",
            f"factors {list(factors)} cover {product} of {size} iterations",
            {loop: f"{size} iterations"},
            "make one factor None",
        )
    if None not in factors and size is None:
        raise tree.error(
            "split",
            f"nothing says that {product} iterations are enough",
            {loop: f"{f.extent} iterations"},
            "make one factor None",
        )
