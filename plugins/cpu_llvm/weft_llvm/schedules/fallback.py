"""Programs that no other rule takes: the naive program with its outermost independent loops in parallel. Correct and
slow.

Choice of each block: `BLOCK.parallel`. Of a program with statements outside blocks, those of `elementwise` for each
block, and `LOOP.parallel` for each loop that is written as a parallel one.
"""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.loop.nodes import For, Program, walk_stmts
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
        for name in s.blocks():
            share_out(s, name)


def share_out(s: Schedule, name: str) -> None:
    """The outermost independent loop of a block, in parallel where that pays (choice `BLOCK.parallel`)."""
    assert s.machine is not None
    block = s.block(name)
    spatial = [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"]
    if not spatial:
        return
    reason = None
    try:
        Schedule(s.program, s.machine).parallel(spatial[0])
    except ScheduleError as error:
        reason = error.why or error.what
    worth = worth_forking(access.block_work(block), s.machine, per_cycle=1 / 4)
    if worth and reason is not None:
        s.annotate(name, "parallel_declined", reason)
    if s.choose(f"{name}.parallel", [True, False], worth and reason is None, lambda on: reason if on else None):
        s.parallel(spatial[0])


def schedule_copies(s: Schedule) -> None:
    """Blocks of a loop program, as copies are that it begins with, and its own parallel loops."""
    assert s.machine is not None
    for loop in [x for x in walk_stmts(s.program.body) if isinstance(x, For) and x.kind == "parallel"]:
        if not s.choose(f"{loop.var.name}.parallel", [True, False], True):
            s.serial(loop.var.name)
    for name in s.blocks():
        if s.loops(name) and not access.is_reduction(s.block(name)):
            schedule_elementwise(s, name, s.machine)
