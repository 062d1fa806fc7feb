"""Reductions on their own: outputs in parallel, lanes along the output where it is contiguous, else along the reduction in partial results.

What follows a reduction element by element (the division of a mean, an activation) is computed before the result leaves the registers.
"""

from __future__ import annotations

from weft.loop.nodes import Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import follows, inline_producers, offer_for, split_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.elementwise import parallelise, schedule_elementwise

MOST_TAPS = 16
"""Steps of inner reduction loops that are unrolled, at most."""


class ReductionRule(Rule):
    """Groups with reductions that no more special rule takes; also pooling."""

    name = "reduction"
    priority = 5

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "reduction")

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s)
        names = s.blocks()
        reductions = [n for n in names if access.is_reduction(s.block(n))]
        tail = names[-1] if len(reductions) == 1 and names[-2:-1] == reductions and follows(s.block(names[-1]), s.block(reductions[0])) else None
        if tail is None:
            schedule_apart(s, names, s.machine)
            return
        schedule_apart(s, names[:-2], s.machine)
        schedule_reduction(s, reductions[0], s.machine, tail=tail)


def schedule_apart(s: Schedule, names: list[str], machine: Machine) -> None:
    """Schedules each of the blocks on its own."""
    for name in names:
        if access.is_reduction(s.block(name)):
            schedule_reduction(s, name, machine)
        else:
            schedule_elementwise(s, name, machine)


def schedule_reduction(s: Schedule, name: str, machine: Machine, parallel: bool = True, tail: str | None = None) -> None:
    """Schedules one reduction block, accumulating in registers; `tail`, if given, takes the result out of them."""
    block = s.block(name)
    if len(list(access.stores(block))) != 1:
        if parallel:
            _parallel(s, [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"], name, machine)
        return
    dtype = access.target(block).buffer.dtype
    lanes = machine.lanes(dtype)
    split_blocks(s, name)
    view = access.LoopView.of(s, name)
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    lane = lane_loop(s, name)
    if tail is None:
        copy = s.cache_write(name, "register")
    else:
        s.set_scope(name, "register")
        copy = tail
    buffer = access.target(s.block(name)).buffer.name
    outer = [x for x in spatial if x != lane]
    tile: list[str] = []
    if lane is not None:
        n = int_const(s.loop(lane).extent)
        if n is None or n > lanes:
            width = lanes * (4 if n is None or n >= 4 * lanes else 1)
            first, inner = s.split(lane, [None, width])
            outer.append(first)
            if width > lanes:
                column, inner = s.split(inner, [width // lanes, lanes])
                tile.append(column)
            tile.append(inner)
        else:
            tile.append(lane)
    if not outer:
        # A single tile: an outer loop of one trip gives the copy a place.
        first, inner = s.split(tile.pop(0) if tile else reduce[0], [1, None])
        outer = [first]
        if inner != reduce[0] and lane is not None:
            tile.insert(0, inner)
        else:
            reduce[0] = inner
    s.reorder(*outer, *reduce, *tile)
    init = s.decompose_reduction(name, reduce[0])
    s.reverse_compute_at(copy, outer[-1])
    s.compact_buffer(buffer, align=lanes)
    if tile:
        for b in (name, init):
            inner_loops = s.loops(b)[-len(tile) :]
            for loop in inner_loops[:-1]:
                s.unroll(loop)
            s.vectorize(inner_loops[-1])
        copies = s.loops(copy)
        rest = [x for x in copies[copies.index(outer[-1]) + 1 :] if int_const(s.loop(x).extent) != 1]
        if rest:
            last = rest[-1]
            n = int_const(s.loop(last).extent)
            if n is not None and n > lanes and n % lanes == 0:
                column, last = s.split(last, [None, lanes])
                s.unroll(column)
            if n is not None:
                s.vectorize(last)
            for x in rest[:-1]:
                s.unroll(x)
    _unroll_taps(s, name, reduce, outer)
    if parallel:
        _parallel(s, outer, name, machine)


def _unroll_taps(s: Schedule, name: str, reduce: list[str], outer: list[str]) -> None:
    """Unrolls few taps. Where borders make them depend on the innermost output loop, that loop is cut; along the other axes the taps get bounds."""
    view = access.LoopView.of(s, name)
    budget = MOST_TAPS
    for loop in reversed(reduce):
        n = int_const(s.loop(loop).extent)
        around = {x for c in view.conditions if loop in c for x in c if x in outer}
        for x in around - {outer[-1]}:
            s.annotate(x, "partition", 0)
        if not n or n > budget or around - {outer[-1]}:
            break
        if n > 1:
            s.unroll(loop)
        budget //= n


def lane_loop(s: Schedule, name: str) -> str | None:
    """The output loop to vectorise: contiguous in the output, and constant or contiguous in every load."""
    view = access.LoopView.of(s, name)
    for x in reversed([x for x in view.loops if view.kinds.get(x) == "spatial"]):
        n = view.extents[x]
        if view.stride(view.store, x) == 1 and (n is None or n > 1) and all(view.stride(load, x) in (0, 1) for load in view.loads):
            return x
    return None


def _parallel(s: Schedule, outer: list[str], name: str, machine: Machine) -> None:
    if outer and access.block_work(s.block(name)) * access.formula_cost(s.block(name)) >= 1 << 15:
        parallelise(s, outer, machine)
