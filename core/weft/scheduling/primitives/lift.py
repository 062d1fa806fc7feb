"""lift: moves a loop that is the outermost of every nest inside another loop around that loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft import dtypes as dt
from weft.expr.nodes import Var, free_vars
from weft.loop.nodes import For, Program, Seq, seq
from weft.scheduling.dependence import carried
from weft.scheduling.rewrite import clean, domain, rewrite_loops
from weft.scheduling.tree import Tree


def lift(program: Program, loop: str, inner: Sequence[str]) -> tuple[Program, str]:
    """`inner`, the outermost loops of all nests directly inside `loop`, become one loop around it. Returns its name,
    that of the first of them.

        for t in 9 { for i in n { block A(…) { … } } for j in n { block B(…) { … } } }
        → lift("t", ["i", "j"])
        for i in n { for t in 9 { block A(…) { … } block B(…) { … } } }

    They must have the same extent, and independent iterations. With a scan as `loop`, they are its independent rows.
    """
    step = "lift"
    tree = Tree(program)
    path = tree.loop_path(loop, step)
    f = path[-1]
    assert isinstance(f, For)
    nests = f.body.stmts if isinstance(f.body, Seq) else (f.body,)
    found = [s.var.name for s in nests if isinstance(s, For)]
    if len(found) != len(nests) or found != list(inner):
        raise tree.error(
            step,
            f"the nests inside '{loop}' begin with {found}, not with {list(inner)}",
            (loop, *inner),
            "name the outermost loop of each nest",
        )
    loops = [s for s in nests if isinstance(s, For)]
    around = domain(path[:-1])
    extents = [clean(s.extent, around) for s in loops]
    if any(e != extents[0] for e in extents) or loop in free_vars(extents[0]):
        raise tree.error(step, f"the loops {found} have extents {', '.join(str(e) for e in extents)}", found)
    decided = next((s for s in (f, *loops) if s.kind != "serial"), None)
    if decided is not None:
        raise tree.error(
            step,
            f"loop '{decided.var.name}' is {decided.kind} already",
            (decided.var.name,),
            "lift first, then bind or parallel",
        )
    tree.names.difference_update(found)
    v = Var(tree.fresh(found[0]), dt.int64)
    inside = {**around, v.name: extents[0], loop: f.extent}
    bodies = [rewrite_loops(s.body, {s.var.name: v}, {**inside}) for s in loops]
    result = tree.replace(path, For(v, extents[0], replace(f, body=seq(*bodies))))
    again = Tree(result)
    reason = carried(again, v.name, step)
    if reason is not None:
        raise again.error(step, f"the iterations of '{v.name}' are not independent: {reason[0]}", (v.name, reason[1]))
    return result, v.name
