"""reverse_compute_at: moves a consumer under a loop of its producer."""

from __future__ import annotations

from weft.expr.linear import Polynomial
from weft.expr.nodes import free_vars
from weft.loop.nodes import For, Program
from weft.scheduling.dependence import out_of_scope, readers, reads, writers, writes
from weft.scheduling.loop_kinds import still_independent
from weft.scheduling.primitives.compute_at import put
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
    entangled,
    free_names,
    iter_boxes,
    iter_limits,
    moved_outgrows,
    own_predicate,
    renest,
)
from weft.scheduling.tree import Tree, blocks_in


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
    if any(s is b for s in blocks_in(f.body)):
        raise tree.error(step, f"'{block}' is under '{loop}' already", (block, loop))
    needs, produced = set(reads(b)), set(writes(b))
    here = [x.name for x in blocks_in(f.body)]
    suppliers = writers(tree, needs, but=block)
    inside = [s for s in suppliers if s in here]
    if not inside:
        raise tree.error(
            step,
            f"no producer of '{block}' is under '{loop}'",
            {block: "consumer", loop: "wanted here", **dict.fromkeys(suppliers, "producer")},
        )
    several = writers(tree, produced)
    if several != [block]:
        raise tree.error(
            step,
            f"blocks {several} all write '{block}'s buffer",
            several,
            "reverse_compute_at before decompose_reduction",
        )
    steps = {i.var.name: binding for i, binding in zip(b.iters, b.bindings) if i.kind == "scan"}
    outside = {f.var.name for f in target[:-1] if isinstance(f, For)}
    strangers = [v for binding in steps.values() for v in free_vars(binding) if v not in outside]
    if strangers:
        raise tree.error(
            step,
            f"'{block}' is a step of a scan over '{strangers[0]}', which is not around '{loop}'",
            (block, loop, strangers[0]),
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
    order = [x.name for x in blocks_in(program.body)]
    last = max(order.index(h) for h in here)
    if order.index(block) < last:
        raise tree.error(step, f"'{block}' comes before the end of '{loop}'", (block, loop))
    for name in order[last + 1 : order.index(block)]:
        other = tree.block(name, step)
        if set(writes(other)) & needs:
            raise tree.error(
                step,
                f"'{name}' also writes what '{block}' reads, after '{loop}'",
                (block, loop, name),
                f"move '{name}' under '{loop}' first",
            )
        if (set(writes(other)) | set(reads(other))) & produced:
            raise tree.error(step, f"'{name}' uses what '{block}' writes, before it", (block, name))
    late = [r for r in readers(tree, produced, but=block) if order.index(r) <= last]
    if late:
        raise tree.error(step, f"'{late[0]}' reads what '{block}' writes, before it", (block, late[0]))
    around = domain(target)
    for name in inside:
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
    if b.init is None and produced & {a.buffer.name for a in block_accesses(b) if not a.write}:
        raise tree.error(step, f"'{block}' updates a buffer in place, so it may run only once per element", (block,))
    moving = loops_under(f.body, around)
    written: dict[str, list[Interval | None]] = {}
    limits: dict[str, list[Polynomial]] = {}
    for name in sorted(needs & {w for s in inside for w in writes(tree.block(s, step))}):
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
    moved = blocks_in(new)[0]
    inner = loops_under(new, around)
    for it, binding in zip(moved.iters, moved.bindings):
        if it.kind == "reduce":
            ends = interval(binding, inner)
            if (
                ends is None
                or not at_least_zero(ends[0].scale(-1))
                or not at_least_zero((ends[1] - poly(it.extent)).plus(1))
            ):
                why = f"'{block}' reduces over more than one iteration of '{loop}' completes"
                raise tree.error(step, why, {block: "consumer", loop: "wanted here"}, "choose an outer loop")
    for name, box in written.items():
        if not all(within(a.box(inner), box) for a in accesses(new, name) if not a.write):
            why = f"'{block}' reads more of '{name}' than one iteration of '{loop}' completes"
            raise tree.error(step, why, {block: "consumer", loop: "wanted here"}, "choose an outer loop")
    grown = moved_outgrows(path, b, target, new)
    if grown is not None:
        why = f"'{block}' would run over more of '{grown}' than one iteration's own buffers hold"
        raise tree.error(step, why, (block, loop), "move blocks before compact_buffer")
    removed = Tree(tree.replace(path, None))
    spot = removed.loop_path(loop, step)
    now = spot[-1]
    assert isinstance(now, For)
    result = removed.replace((*spot, now.body), put(now, new, inside, before=False))
    still_independent(result, block, step)
    return result, None
