"""Programs that no other rule takes: the naive program with its outermost independent loops in parallel. Correct and
slow."""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import one_by_one, seconds
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.elementwise import schedule_elementwise, worth_forking


class FallbackRule(Rule):
    """Takes every program."""

    name = "fallback"
    priority = 0

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(seconds(program, machine, lambda b: one_by_one(b, machine)))

    def apply(self, s: Schedule) -> None:
        if access.has_sequential_loop(s.program):
            return
        if access.outside_blocks(s.program.body):
            schedule_copies(s)
            return
        assert s.machine is not None
        for name in s.blocks():
            block = s.block(name)
            if not worth_forking(access.block_work(block), s.machine, per_cycle=1 / 4):
                continue
            spatial = [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"]
            if not spatial:
                continue
            try:
                s.parallel(spatial[0])
            except ScheduleError as error:
                s.annotate(name, "parallel_declined", error.why or error.what)


def schedule_copies(s: Schedule) -> None:
    """Blocks of a loop program, as copies are that it begins with."""
    assert s.machine is not None
    for name in s.blocks():
        if s.loops(name) and not access.is_reduction(s.block(name)):
            schedule_elementwise(s, name, s.machine)
