"""compute_at: moves a producer under a loop of its consumers."""

from __future__ import annotations

from collections.abc import Mapping

from weft.expr.linear import Polynomial
from weft.expr.nodes import Expr
from weft.loop.nodes import Block, For, Program, Seq, Stmt, seq
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
from weft.scheduling.tree import Path, Tree, blocks_in


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
    used = _consumers(tree, b, f, step)
    check_movable(tree, b, target, step)
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
    boxes, limits = _wanted(b, f, outer)
    free_names(tree, path)
    new = renest(tree, b, boxes, outer, conditions(target[:-1], f), limits)
    return moved(tree, b, target, new, used, step), None


def _consumers(tree: Tree, block: Block, loop: For, step: str) -> list[str]:
    """The blocks that read what `block` writes, once it is known to be an intermediate result that only they want."""
    name, at, produced = block.name, loop.var.name, set(writes(block))
    for written in produced:
        if tree.is_output(written):
            why = f"'{name}' writes the output '{written}', which is wanted whole"
            raise tree.error(step, why, (name,), "compute_at moves producers of intermediate buffers")
    several = writers(tree, produced)
    if several != [name]:
        raise tree.error(
            step, f"blocks {several} all write '{name}'s buffer", several, "compute_at before decompose_reduction"
        )
    if any(s is block for s in blocks_in(loop.body)):
        raise tree.error(step, f"'{name}' is under '{at}' already", (name, at))
    used = readers(tree, produced, but=name)
    here = {x.name for x in blocks_in(loop.body)}
    outside = [u for u in used if u not in here]
    if not used or outside:
        why = f"its consumers {outside} are not under '{at}'" if used else "it has no consumer"
        raise tree.error(
            step,
            why,
            {name: "producer", at: "wanted here", **dict.fromkeys(outside, "consumer")},
            "choose a loop around all consumers",
        )
    return used


def _wanted(
    block: Block, loop: For, outer: Mapping[str, Expr]
) -> tuple[dict[str, Interval], dict[str, list[Polynomial]]]:
    """What one iteration of `loop` reads of what `block` writes: by iterator the box, and what it need not exceed."""
    moving = loops_under(loop.body, outer)
    produced = set(writes(block))
    boxes: dict[str, Interval] = {}
    unknown: set[str] = set()
    limits: dict[str, list[Polynomial]] = {}
    for name in produced:
        uses = [a for a in accesses(loop.body, name) if not a.write]
        if uses:
            if len(produced) == 1:
                limits = iter_limits(block, name, uses, moving, write=True)
            for v, box in iter_boxes(block, name, union_box([a.box(moving) for a in uses]), write=True).items():
                both = hull([boxes[v], box]) if v in boxes else box
                if both is None:
                    unknown.add(v)
                else:
                    boxes[v] = both
    return {v: box for v, box in boxes.items() if v not in unknown}, limits


def check_movable(tree: Tree, block: Block, target: Path, step: str) -> None:
    """Checks that a block may run under the loop at the end of `target`, as far as only the block decides it.

    Raises:
        ScheduleError: a buffer of it does not exist there, or its iterators are not free of one another, or it has a
        condition of its own.
    """
    name, loop = block.name, target[-1]
    assert isinstance(loop, For)
    lost = out_of_scope(tree, block, target)
    if lost is not None:
        raise tree.error(
            step,
            f"buffer '{lost}' of '{name}' does not exist under '{loop.var.name}'",
            (name, loop.var.name, lost),
            "move blocks before compact_buffer",
        )
    tied = entangled(block)
    if tied is not None:
        raise tree.error(
            step,
            f"iterators '{tied[0]}' and '{tied[1]}' of '{name}' depend on one another",
            (name,),
            "move blocks before compact_buffer",
        )
    extra = own_predicate(block)
    if extra:
        raise tree.error(step, f"'{name}' runs only where {extra[0]}, which cannot move along", (name,))


def moved(tree: Tree, block: Block, target: Path, new: Stmt, others: list[str], step: str) -> Program:
    """The Program with `new`, the nest of `block` over a box, under the loop at the end of `target`: in front of the
    first of its consumers (compute_at), or behind the last of its producers, which are `others`."""
    path, loop = tree.block_path(block.name, step), target[-1]
    assert isinstance(loop, For)
    grown = moved_outgrows(path, block, target, new)
    if grown is not None:
        why = f"'{block.name}' would run over more of '{grown}' than one iteration's own buffers hold"
        raise tree.error(step, why, (block.name, loop.var.name), "move blocks before compact_buffer")
    removed = Tree(tree.replace(path, None))
    spot = removed.loop_path(loop.var.name, step)
    now = spot[-1]
    assert isinstance(now, For)
    result = removed.replace((*spot, now.body), _put(now, new, others, before=step == "compute_at"))
    still_independent(result, block.name, step)
    return result


def _put(loop: For, new: Stmt, names: list[str], before: bool) -> Seq:
    """The body of `loop` with `new` before the first, or after the last, statement that holds one of the blocks."""
    children = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    at = child_index(children, names, last=not before)
    assert at is not None
    at += 0 if before else 1
    result = seq(*children[:at], new, *children[at:])
    assert isinstance(result, Seq)
    return result
