"""Reductions on their own: outputs in parallel, lanes along the output where it is contiguous, else along the reduction in partial results."""

from __future__ import annotations

from weft.loop.nodes import Program, int_const
from weft.machine import Machine
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules import access
from weft_llvm.schedules.elementwise import inline_producers, schedule_elementwise


class ReductionRule(Rule):
    """Groups with reductions that no more special rule takes; also pooling."""

    name = "reduction"
    priority = 5

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if access.has_sequential_loop(program):
            return Decline("scan", "a block lies in a sequential loop")
        if not any(access.is_reduction(b) for b in access.blocks_of(program)):
            return Decline("no_reduction", "no block reduces")
        return Offer(float(sum(access.block_work(b) for b in access.blocks_of(program))))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s)
        schedule_apart(s, s.blocks(), s.machine)


def schedule_apart(s: Schedule, names: list[str], machine: Machine) -> None:
    """Schedules each of the blocks on its own."""
    for name in names:
        if access.is_reduction(s.block(name)):
            schedule_reduction(s, name, machine)
        else:
            schedule_elementwise(s, name, machine)


def schedule_reduction(s: Schedule, name: str, machine: Machine, parallel: bool = True) -> None:
    """Schedules one reduction block, accumulating in registers."""
    block = s.block(name)
    if len(list(access.stores(block))) != 1:
        if parallel:
            _parallel(s, [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"], name)
        return
    dtype = access.target(block).buffer.dtype
    lanes = machine.lanes(dtype)
    loops = s.loops(name)
    spatial = [x for x, i in zip(loops, block.iters) if i.kind == "spatial"]
    reduce = [x for x, i in zip(loops, block.iters) if i.kind == "reduce"]
    lane = _lane_loop(s, name, spatial)
    copy = s.cache_write(name, "register")
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
    if parallel:
        _parallel(s, outer, name)


def _lane_loop(s: Schedule, name: str, spatial: list[str]) -> str | None:
    """The output loop to vectorise: contiguous in the output, and constant or contiguous in every load."""
    block = s.block(name)
    loops = s.loops(name)
    store = access.target(block)
    for x in reversed(spatial):
        var = block.iters[loops.index(x)].var.name
        n = int_const(s.loop(x).extent)
        if access.stride_of(store, var) == 1 and (n is None or n > 1):
            if all(access.stride_of(load, var) in (0, 1) for load in access.loads(block)):
                return x
    return None


def _parallel(s: Schedule, outer: list[str], name: str) -> None:
    if not outer or access.block_work(s.block(name)) * access.formula_cost(s.block(name)) < 1 << 15:
        return
    s.parallel(outer[0] if len(outer) == 1 else str(s.fuse(*outer)))
