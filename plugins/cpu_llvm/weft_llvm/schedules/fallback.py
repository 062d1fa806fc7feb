"""What no other rule takes: the naive program as it is, its outermost independent loops in parallel. Correct, not fast."""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule


class FallbackRule(Rule):
    """Takes every program."""

    name = "fallback"
    priority = 0

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(float("inf"))

    def apply(self, s: Schedule) -> None:
        if access.outside_blocks(s.program.body) or access.has_sequential_loop(s.program):
            return
        for name in s.blocks():
            block = s.block(name)
            if access.block_work(block) < 1 << 12:
                continue
            spatial = [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"]
            if not spatial:
                continue
            try:
                s.parallel(spatial[0])
            except ScheduleError as error:
                s.annotate(name, "parallel_declined", error.why or error.what)
