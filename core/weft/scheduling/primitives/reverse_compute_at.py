"""reverse_compute_at: moves a consumer under a loop of its producer."""

from __future__ import annotations

from collections.abc import Mapping

from weft.expr.linear import Polynomial
from weft.expr.nodes import Expr, free_vars
from weft.loop.nodes import Block, For, Program, Stmt
from weft.scheduling.dependence import readers, reads, writers, writes
from weft.scheduling.primitives.compute_at import check_movable, moved
from weft.scheduling.region import (
    Interval,
    accesses,
    at_least_zero,
    block_accesses,
    interval,
    loops_under,
    poly,
    union_box,
    within,
)
from weft.scheduling.rewrite import (
    conditions,
    domain,
    free_names,
    iter_boxes,
    iter_limits,
    renest,
)
from weft.scheduling.tree import Path, Tree, blocks_in


def reverse_compute_at(program: Program, block: str, loop: str) -> tuple[Program, None]:
    """Moves consumer `block` into `loop`, after its producers there; it reads the box that one iteration has completed.

        for i in n { for j in m { block A(ai: n = i, aj: m = j) { a[ai, aj] = … } } }
        for r in n { for c in m { block B(br: n = r, bc: m = c) { y[br, bc] = a[br, bc] + 1.0f32 } } }
        → reverse_compute_at("B", "i")
        for i in n {
          for j in m { block A(…) { … } }
          for c in m { block B(br: n = i, bc: m = c) { … } }
        }

    Every reduction of the producers must be inside `loop`. A step of a scan moves within its step: the loop over steps
    must be around both.
    """
    step = "reverse_compute_at"
    tree = Tree(program)
    path, target = tree.block_path(block, step), tree.loop_path(loop, step)
    b, f = tree.block(block, step), tree.loop(loop, step)
    inside = _producers(tree, b, f, step)
    steps = _steps(tree, b, target, step)
    check_movable(tree, b, target, step)
    _check_order(tree, b, f, step)
    around = domain(target)
    _check_complete(tree, inside, loop, around, step)
    if b.init is None and set(writes(b)) & {a.buffer.name for a in block_accesses(b) if not a.write}:
        raise tree.error(step, f"'{block}' updates a buffer in place, so it may run only once per element", (block,))
    moving = loops_under(f.body, around)
    written: dict[str, list[Interval | None]] = {}
    limits: dict[str, list[Polynomial]] = {}
    for name in sorted(set(reads(b)) & {w for s in inside for w in writes(tree.block(s, step))}):
        uses = [a for a in accesses(f.body, name) if a.write]
        if not any(a.fills(moving) for a in uses):
            why = f"one iteration of '{loop}' does not complete a box of '{name}', only scattered elements"
            raise tree.error(step, why, {loop: "wanted here"}, "choose an outer loop, or reorder the producer's loops")
        written[name] = union_box([a.box(moving) for a in uses if a.fills(moving)])
        for v, most in iter_limits(b, name, uses, moving, write=False).items():
            limits.setdefault(v, []).extend(most)
    boxes = max((iter_boxes(b, name, box, write=False) for name, box in written.items()), key=len)
    boxes |= {name: (poly(binding), poly(binding)) for name, binding in steps.items()}  # the same step as its producers
    free_names(tree, path)
    new = renest(tree, b, boxes, around, conditions(target[:-1], f), limits)
    _check_covered(tree, new, loop, written, around, step)
    return moved(tree, b, target, new, inside, step), None


def _producers(tree: Tree, block: Block, loop: For, step: str) -> list[str]:
    """The blocks under `loop` that write what `block` reads, once it is known to be the only one that writes its own
    results."""
    name, at = block.name, loop.var.name
    if any(s is block for s in blocks_in(loop.body)):
        raise tree.error(step, f"'{name}' is under '{at}' already", (name, at))
    here = [x.name for x in blocks_in(loop.body)]
    suppliers = writers(tree, set(reads(block)), but=name)
    inside = [s for s in suppliers if s in here]
    if not inside:
        raise tree.error(
            step,
            f"no producer of '{name}' is under '{at}'",
            {name: "consumer", at: "wanted here", **dict.fromkeys(suppliers, "producer")},
        )
    several = writers(tree, set(writes(block)))
    if several != [name]:
        raise tree.error(
            step,
            f"blocks {several} all write '{name}'s buffer",
            several,
            "reverse_compute_at before decompose_reduction",
        )
    return inside


def _steps(tree: Tree, block: Block, target: Path, step: str) -> dict[str, Expr]:
    """The block's scan iterators with what they are bound to: loops that are around its producers, too."""
    steps = {i.var.name: binding for i, binding in zip(block.iters, block.bindings) if i.kind == "scan"}
    outside, loop = domain(target[:-1]), target[-1]
    assert isinstance(loop, For)
    strangers = [v for binding in steps.values() for v in free_vars(binding) if v not in outside]
    if strangers:
        raise tree.error(
            step,
            f"'{block.name}' is a step of a scan over '{strangers[0]}', which is not around '{loop.var.name}'",
            (block.name, loop.var.name, strangers[0]),
        )
    return steps


def _check_order(tree: Tree, block: Block, loop: For, step: str) -> None:
    """Checks that nothing between the end of `loop` and `block` needs the block where it is."""
    name, at = block.name, loop.var.name
    needs, produced = set(reads(block)), set(writes(block))
    order = [x.name for x in blocks_in(tree.program.body)]
    last = max(order.index(x.name) for x in blocks_in(loop.body))
    if order.index(name) < last:
        raise tree.error(step, f"'{name}' comes before the end of '{at}'", (name, at))
    for between in order[last + 1 : order.index(name)]:
        other = tree.block(between, step)
        if set(writes(other)) & needs:
            raise tree.error(
                step,
                f"'{between}' also writes what '{name}' reads, after '{at}'",
                (name, at, between),
                f"move '{between}' under '{at}' first",
            )
        if (set(writes(other)) | set(reads(other))) & produced:
            raise tree.error(step, f"'{between}' uses what '{name}' writes, before it", (name, between))
    late = [r for r in readers(tree, produced, but=name) if order.index(r) <= last]
    if late:
        raise tree.error(step, f"'{late[0]}' reads what '{name}' writes, before it", (name, late[0]))


def _check_complete(tree: Tree, producers: list[str], loop: str, around: Mapping[str, Expr], step: str) -> None:
    """Checks that no producer goes on with a reduction outside `loop`."""
    for name in producers:
        p = tree.block(name, step)
        for it, binding in zip(p.iters, p.bindings):
            over = free_vars(binding).keys() & around.keys()
            if it.kind == "reduce" and over:
                why = f"'{name}' is not complete there: its reduction over '{min(over)}' goes on outside"
                raise tree.error(
                    step,
                    why,
                    {loop: "wanted here", min(over): "reduction"},
                    "choose a loop outside every reduction loop of the producer",
                )


def _check_covered(
    tree: Tree,
    new: Stmt,
    loop: str,
    written: Mapping[str, list[Interval | None]],
    around: Mapping[str, Expr],
    step: str,
) -> None:
    """Checks that the block in its new nest reads no more than what one iteration of `loop` has written."""
    (consumer,) = blocks_in(new)
    inner = loops_under(new, around)
    marks, hint = {consumer.name: "consumer", loop: "wanted here"}, "choose an outer loop"
    for it, binding in zip(consumer.iters, consumer.bindings):
        if it.kind == "reduce":
            ends = interval(binding, inner)
            if (
                ends is None
                or not at_least_zero(ends[0].scale(-1))
                or not at_least_zero((ends[1] - poly(it.extent)).plus(1))
            ):
                why = f"'{consumer.name}' reduces over more than one iteration of '{loop}' completes"
                raise tree.error(step, why, marks, hint)
    for name, box in written.items():
        if not all(within(a.box(inner), box) for a in accesses(new, name) if not a.write):
            why = f"'{consumer.name}' reads more of '{name}' than one iteration of '{loop}' completes"
            raise tree.error(step, why, marks, hint)
