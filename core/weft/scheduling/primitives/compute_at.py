"""compute_at: moves a producer under a loop of its consumers."""

from __future__ import annotations

from weft.expr.linear import Polynomial
from weft.loop.nodes import For, Program, Seq, Stmt, seq
from weft.scheduling.dependence import child_index, out_of_scope, readers, reads, writers, writes
from weft.scheduling.loop_kinds import still_independent
from weft.scheduling.region import Interval, accesses, hull, loops_under, union_box
from weft.scheduling.rewrite import (
    conditions,
    domain,
    entangled,
    free_names,
    iter_boxes,
    iter_limits,
    moved_outgrows,
    own_predicate,
    renest,
)
from weft.scheduling.tree import Tree, blocks_in


def compute_at(program: Program, block: str, loop: str) -> tuple[Program, None]:
    """Moves producer `block` into `loop`, before its first consumer there; it computes the box that one iteration
    reads.

        for i in n { for j in m { block A(ai: n = i, aj: m = j) { a[ai, aj] = x[ai, aj]*2.0f32 } } }
        for r in n { for c in m - 2 { block B(…) { y[br, bc] = a[br, bc] + a[br, bc + 2] } } }
        → compute_at("A", "r")
        for r in n {
          for j in m { block A(ai: n = r, aj: m = j) { … } }
          for c in m - 2 { block B(…) { … } }
        }

    The box is found by interval analysis with symbolic outer loops; indices that may leave the buffer are guarded. The
    buffer keeps its shape (see compact_buffer), and the block gets fresh loops: schedule its inside after moving it.
    """
    step = "compute_at"
    tree = Tree(program)
    path, target = tree.block_path(block, step), tree.loop_path(loop, step)
    b, f = tree.block(block, step), tree.loop(loop, step)
    produced = set(writes(b))
    for name in produced:
        if tree.is_output(name):
            why = f"'{block}' writes the output '{name}', which is wanted whole"
            raise tree.error(step, why, (block,), "compute_at moves producers of intermediate buffers")
    several = writers(tree, produced)
    if several != [block]:
        raise tree.error(
            step, f"blocks {several} all write '{block}'s buffer", several, "compute_at before decompose_reduction"
        )
    if any(s is path[-1] for s in blocks_in(f.body)):
        raise tree.error(step, f"'{block}' is under '{loop}' already", (block, loop))
    used = readers(tree, produced, but=block)
    here = {x.name for x in blocks_in(f.body)}
    outside = [u for u in used if u not in here]
    if not used or outside:
        why = f"its consumers {outside} are not under '{loop}'" if used else "it has no consumer"
        raise tree.error(
            step,
            why,
            {block: "producer", loop: "wanted here", **dict.fromkeys(outside, "consumer")},
            "choose a loop around all consumers",
        )
    lost = out_of_scope(tree, b, target)
    if lost is not None:
        raise tree.error(
            step,
            f"buffer '{lost}' of '{block}' does not exist under '{loop}'",
            (block, loop, lost),
            "move blocks before compact_buffer",
        )
    tied = entangled(b)
    if tied is not None:
        raise tree.error(
            step,
            f"iterators '{tied[0]}' and '{tied[1]}' of '{block}' depend on one another",
            (block,),
            "move blocks before compact_buffer",
        )
    extra = own_predicate(b)
    if extra:
        raise tree.error(step, f"'{block}' runs only where {extra[0]}, which cannot move along", (block,))
    if any(i.kind == "scan" for i in b.iters):
        raise tree.error(step, f"'{block}' is a step of a scan", (block,))
    needs = set(reads(b))
    order = [x.name for x in blocks_in(program.body)]
    late = [w for w in writers(tree, needs, but=block) if order.index(w) > order.index(block)]
    if late:
        raise tree.error(step, f"'{late[0]}' changes what '{block}' reads before it would run", (block, late[0]))
    outer = domain(target)
    early = [u for u in used if order.index(u) < order.index(block)]
    if early:
        raise tree.error(
            step, f"'{early[0]}' reads the buffer of '{block}' before '{block}' writes it", (early[0], block)
        )
    moving = loops_under(f.body, outer)
    boxes: dict[str, Interval] = {}
    unknown: set[str] = set()
    limits: dict[str, list[Polynomial]] = {}
    for name in produced:
        uses = [a for a in accesses(f.body, name) if not a.write]
        if uses:
            if len(produced) == 1:
                limits = iter_limits(b, name, uses, moving, write=True)
            for v, box in iter_boxes(b, name, union_box([a.box(moving) for a in uses]), write=True).items():
                both = hull([boxes[v], box]) if v in boxes else box
                if both is None:
                    unknown.add(v)
                else:
                    boxes[v] = both
    free_names(tree, path)
    new = renest(
        tree, b, {v: box for v, box in boxes.items() if v not in unknown}, outer, conditions(target[:-1], f), limits
    )
    grown = moved_outgrows(path, b, target, new)
    if grown is not None:
        why = f"'{block}' would run over more of '{grown}' than one iteration's own buffers hold"
        raise tree.error(step, why, (block, loop), "move blocks before compact_buffer")
    removed = Tree(tree.replace(path, None))
    spot = removed.loop_path(loop, step)
    now = spot[-1]
    assert isinstance(now, For)
    result = removed.replace((*spot, now.body), put(now, new, used, before=True))
    still_independent(result, block, step)
    return result, None


def put(loop: For, new: Stmt, names: list[str], before: bool) -> Seq:
    """The body of `loop` with `new` before the first, or after the last, statement that holds one of the blocks."""
    children = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    at = child_index(children, names, last=not before)
    assert at is not None
    at += 0 if before else 1
    result = seq(*children[:at], new, *children[at:])
    assert isinstance(result, Seq)
    return result
