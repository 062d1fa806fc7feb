"""Programs that no other rule takes: independent outer loops on groups and threads, everything else by one thread.
Correct and slow.

Choices: `BLOCK.threads` of the groups of a block under its own loops, or of blocks that share loops, by the first of
them; `LOOP.threads` of the groups of a loop that is written as a parallel one.
"""

from __future__ import annotations

from weft.loop.nodes import Block, For, Program, Stmt, int_const, stmt_children, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import one_by_one, seconds
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.threads import (
    choose_threads,
    most_threads,
    nest_of,
    sequential,
    share,
    spatial_loops,
    spread,
    top_statements,
)

LINES = 32
"""Threads of a group that go through loops written by hand, each through memory of its own."""


class FallbackRule(Rule):
    """Takes every program."""

    name = "fallback"
    priority = 0

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(seconds(program, machine, lambda b: one_by_one(b, machine)))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        for statement in top_statements(s.program.body):
            schedule_launch(s, statement, s.machine)


def schedule_launch(s: Schedule, statement: Stmt, machine: Machine) -> None:
    """One launch: a block under its own loops, the steps of a scan, or loops written by hand."""
    blocks = [x for x in walk_stmts(statement) if isinstance(x, Block)]
    steps = sequential(s)
    if access.outside_blocks(statement):
        schedule_loops(s, statement, machine)
    elif len(blocks) == 1 and not steps & set(s.loops(blocks[0].name)):
        spread(s, blocks[0].name, spatial_loops(s, blocks[0].name), machine, several=False)
    else:
        schedule_group(s, [b.name for b in blocks], machine, steps)


def schedule_group(s: Schedule, names: list[str], machine: Machine, steps: set[str]) -> None:
    """Blocks under loops that they share, all in one group: each block's own independent loops are its threads'."""
    uses = [x for name in names for x in s.loops(name)]
    shared: dict[str, list[str]] = {}
    for name in names:
        own = [x for x in s.loops(name) if uses.count(x) == 1 and x not in steps]
        spatial = {x for x in own if _is_spatial(s, name, x)}
        shared[name] = [x for k, x in enumerate(own) if all(y in spatial for y in own[: k + 1])]
    most = most_threads(machine)
    first = next((name for name, loops in shared.items() if loops), None)
    threads = most if first is None else choose_threads(s, f"{first}.threads", most, most)
    for name, loops in shared.items():
        share(s, name, loops, threads)


def _is_spatial(s: Schedule, name: str, loop: str) -> bool:
    view = access.LoopView.of(s, name) if len(list(access.stores(s.block(name)))) else None
    return view is not None and view.kinds.get(loop) == "spatial"


def schedule_loops(s: Schedule, statement: Stmt, machine: Machine) -> None:
    """Loops written by hand: those that say that they are parallel, outermost, become threads; each thread does what is
    inside alone."""
    nest = nest_of(statement)
    if nest and nest[0].kind == "parallel":
        outer = nest[0].var.name
        n = int_const(nest[0].extent)
        usual = most_threads(machine, LINES if n is None else min(n, LINES))
        group, thread = s.split(outer, [None, choose_threads(s, f"{outer}.threads", usual, most_threads(machine))])
        s.bind(group, "blockIdx.x")
        s.bind(thread, "threadIdx.x")
    for inner in _parallel(statement):
        if not nest or inner != nest[0].var.name:
            s.serial(inner)


def _parallel(stmt: Stmt) -> list[str]:
    found = [stmt.var.name] if isinstance(stmt, For) and stmt.kind == "parallel" else []
    return found + [x for c in stmt_children(stmt) for x in _parallel(c)]
