"""Scans: the steps one after another, each step's blocks scheduled as they would be alone; products keep their tile in registers."""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.expr.nodes import free_vars
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules import access
from weft_llvm.schedules.contraction import find_roles, schedule_tile, split_panels
from weft_llvm.schedules.elementwise import schedule_elementwise


class RecurrenceRule(Rule):
    """See the module."""

    name = "recurrence"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if not access.has_sequential_loop(program):
            return Decline("no_scan", "no block lies in a sequential loop")
        return Offer(float(sum(access.block_work(b) for b in access.blocks_of(program))))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        # A copy of a step's result is no step itself, but it lies among the steps: its loop runs in order, too.
        blocks = access.blocks_of(s.program)
        sequential = {v for b in blocks for i, x in zip(b.iters, b.bindings) if i.kind == "scan" for v in free_vars(x)}
        for name in s.blocks():
            block = s.block(name)
            if len(list(access.stores(block))) != 1:
                continue
            if not access.is_reduction(block):
                outer = max((k + 1 for k, x in enumerate(s.loops(name)) if x in sequential), default=0)
                schedule_elementwise(s, name, s.machine, outer=outer, parallel=False)
                continue
            if len({x.buffer.name for x in access.loads(block)}) == 3:
                # Tried on a copy: the trace of `s` holds only steps that were kept.
                refusal = _tile(Schedule(s.program, s.machine), name)
                if refusal is None:
                    _tile(s, name)
                else:
                    s.annotate(name, "tile_declined", refusal)


def _tile(s: Schedule, name: str) -> str | None:
    """Tiles a product of the step; the reason if that is not possible, which leaves `s` half done."""
    assert s.machine is not None
    try:
        tail = s.cache_write(name, "register")
        split_panels(s, name)
        if find_roles(s, name) is None:
            return "no output loop is contiguous in the output and an operand"
        schedule_tile(s, name, tail, s.machine)
    except ScheduleError as error:
        return error.why or error.what
    return None
