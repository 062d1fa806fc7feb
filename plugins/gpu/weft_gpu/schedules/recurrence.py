"""Scans: independent rows are distributed to groups, or, if no step mixes them, to threads, which run the steps in
order.

A group runs the steps of its rows. In each step its threads share the outputs. Several threads share a long sum of a
step, so that weights are read in their own layout.

Choices of each scan: `LOOP.lines` (a thread runs all steps of a row of its own) if rows do not depend on one another,
otherwise `LOOP.sum_threads` (threads that share a sum) if a step has long sums.
"""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.loop.nodes import For, Program, Seq, Stmt
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import offer_for
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in
from weft_gpu.schedules.reduction import LONG, Shape, cooperate, in_register, schedule_apart
from weft_gpu.schedules.threads import (
    GROUP,
    choose_threads,
    most_threads,
    sequential,
    share,
    share_both,
    top_statements,
)

SUM_THREADS = 32
"""Threads that share a long sum of a step."""


class RecurrenceRule(Rule):
    """See the module."""

    name = "recurrence"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "scan", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        steps = sequential(s)
        for statement in top_statements(s.program.body):
            names = [b.name for b in blocks_in(statement)]
            if isinstance(statement, For) and statement.var.name in steps:
                schedule_scan(s, statement, s.machine)
            else:
                schedule_apart(s, names, s.machine)


def schedule_scan(s: Schedule, scan: For, machine: Machine) -> None:
    """One launch: the steps of a scan, of as many lines at once as there are."""
    loop, names = scan.var.name, [b.name for b in blocks_in(scan)]
    if by_line(s, loop, names, machine):
        return
    nests = _nests(scan)
    group: str | None = None
    if nests is not None:
        trial = Schedule(s.program, machine)
        try:
            trial.lift(loop, nests)
        except ScheduleError as error:
            s.annotate(loop, "lift_declined", error.why or error.what)
        else:
            group = s.lift(loop, nests)
    most = most_threads(machine)
    along = 1
    if most > 1 and any(_has_long_sum(s, name, loop) for name in names):
        usual = SUM_THREADS if most // SUM_THREADS > 1 else 1
        along = choose_threads(s, f"{loop}.sum_threads", usual, most // 2)
    shared = {name for name in names if along > 1 and share_sums(s, name, loop, machine, along, most // along)}
    for name in names:
        if name not in shared:
            share_step(s, name, loop, machine, (along, most // along) if shared else (most, 1))
    if group is not None:
        s.parallel(group)
        s.bind(group, "blockIdx.x")


def _nests(scan: For) -> list[str] | None:
    """The outermost loops of the nests directly inside; None if something else is there."""
    inside: tuple[Stmt, ...] = scan.body.stmts if isinstance(scan.body, Seq) else (scan.body,)
    return [x.var.name for x in inside if isinstance(x, For)] if all(isinstance(x, For) for x in inside) else None


def by_line(s: Schedule, loop: str, names: list[str], machine: Machine) -> bool:
    """A thread takes a line of its own through all steps; False if steps use more than their line."""
    trial = Schedule(s.program, machine)
    try:
        _lines(trial, loop, names)
    except ScheduleError:
        return False
    if not s.choose(f"{loop}.lines", [True, False], True):
        return False
    flat = _lines(s, loop, names)
    s.parallel(flat)
    group, thread = s.split(flat, [None, most_threads(machine, GROUP // 4)])
    s.bind(group, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    return True


def _lines(s: Schedule, loop: str, names: list[str]) -> str:
    """All loops of each block of a step as one, lifted out of the steps."""
    found = []
    for name in names:
        own = s.loops(name)
        own = own[own.index(loop) + 1 :]
        if not own or any(i.kind == "reduce" for i in s.block(name).iters):
            raise ScheduleError(f"'{name}' is no line by line step")
        found.append(own[0] if len(own) == 1 else s.fuse(*own))
    return s.lift(loop, found)


def share_sums(s: Schedule, name: str, loop: str, machine: Machine, along: int, beside: int) -> bool:
    """Gives each long sum of a block of a step to so many threads of the group, so many sums at once; False if they are
    short or cannot be cut."""
    if not _has_long_sum(s, name, loop):
        return False
    outputs, _ = _own(s, name, loop)
    trial = Schedule(s.program, machine)
    try:
        _sums(trial, name, outputs, machine, along, beside)
    except ScheduleError as error:
        s.annotate(name, "sums_declined", error.why or error.what)
        return False
    _sums(s, name, outputs, machine, along, beside)
    return True


def _has_long_sum(s: Schedule, name: str, loop: str) -> bool:
    """Whether threads may share a sum of the block in a step."""
    outputs, shape = _own(s, name, loop)
    stores = len(list(access.stores(s.block(name))))
    return bool(outputs) and shape.steps >= LONG and shape.columns is None and stores == 1


def _sums(s: Schedule, name: str, outputs: list[str], machine: Machine, along: int, beside: int) -> None:
    flat = outputs[0] if len(outputs) == 1 else s.fuse(*outputs)
    turn, _ = s.split(flat, [None, beside])
    cooperate(s, name, turn, machine, along, "threadIdx.x")


def share_step(s: Schedule, name: str, loop: str, machine: Machine, threads: tuple[int, int]) -> None:
    """The group's threads share what a block computes in a step, an output each at a time."""
    outputs, shape = _own(s, name, loop)
    if shape.reduce and outputs:
        trial = Schedule(s.program, machine)
        try:
            in_register(trial, name, shape.reduce[0], None)
        except ScheduleError as error:
            s.annotate(name, "register_declined", error.why or error.what)
        else:
            in_register(s, name, shape.reduce[0], None)
    if threads[1] > 1:
        share_both(s, name, outputs, *threads)
    else:
        share(s, name, outputs, threads[0])


def _own(s: Schedule, name: str, loop: str) -> tuple[list[str], Shape]:
    """The loops of a block inside a step that are not its sum's, and its shape."""
    shape = Shape.of(s, name)
    loops = s.loops(name)
    return [x for x in loops[loops.index(loop) + 1 :] if x not in shape.reduce], shape
