"""Windows: pooling and depthwise convolutions. Only the outputs of a window share an operand, so nothing is copied to
shared memory: a thread computes an output, its taps unrolled, and neighbouring threads share elements in L1."""

from __future__ import annotations

from weft.expr.nodes import free_vars
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.reduction import inline_into_reductions, schedule_apart

MOST_STEPS = 256
"""Taps of a window; longer sums are worth sharing."""


class WindowRule(Rule):
    """See the module."""

    name = "window"
    priority = 11

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if access.has_sequential_loop(program):
            return Decline("scan", "a block lies in a sequential loop")
        sums = [b for b in access.blocks_of(program) if access.is_reduction(b)]
        if len(sums) != 1 or len(list(access.stores(sums[0]))) != 1:
            return Decline("no_reduction", "not exactly one block reduces, to one result")
        trial = Schedule(program, machine)
        inline_into_reductions(trial)
        if not is_window(trial, sums[0].name):
            return Decline("no_window", "no operand is read by windows that move along every axis of the result")
        return Offer(of_blocks(program, machine, tiled=[b.name for b in access.blocks_of(program)]))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_into_reductions(s)
        schedule_apart(s, s.blocks(), s.machine)


def is_window(s: Schedule, name: str) -> bool:
    """Whether some operand has an element of its own for every output and tap, but where windows overlap, and there are
    few taps."""
    view = access.LoopView.of(s, name)
    spatial = {x for x in view.loops if view.kinds.get(x) != "reduce" and view.extents[x] != 1}
    reduce = {x for x in view.loops if view.kinds.get(x) == "reduce"}
    steps = 1
    for x in reduce:
        steps *= view.extent(x)
    if steps > MOST_STEPS:
        return False
    for read in view.loads:
        if read.buffer.name == view.store.buffer.name:
            continue
        used = [set(free_vars(i)) for i in read.indices]
        if spatial <= set().union(*used) and any(u & spatial and u & reduce for u in used):
            return True
    return False
