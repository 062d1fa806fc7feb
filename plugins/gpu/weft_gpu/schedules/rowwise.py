"""Softmax, normalisation and similar operators: rows that all blocks share. A group takes a row, or a few short ones,
whose intermediate values stay in shared memory; of very short rows a thread takes one, in registers.

Choices: `rows` (a group or a thread takes one), `row_threads`, `rows_of_group`, and those of `spread`.
"""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.expr.simplify import simplify
from weft.loop.nodes import Allocate, Program, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.patterns import common_rows, inline_producers
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.reduction import Shape, cooperate, in_register, schedule_apart, sum_threads
from weft_gpu.schedules.threads import (
    GROUP,
    choose_threads,
    grid_of,
    most_threads,
    share,
    shared_of_group,
    spread,
)

SHORT = 32
"""Elements of rows that one thread goes through where there are many rows."""
MOST_OF_A_THREAD = 2 * SHORT
"""Elements of rows that a thread may go through, in registers."""
LONG_ROW = 1 << 13
"""Elements of rows from which on as many threads as may be share one."""
SHARED_PART = 2
"""A group's rows take at most one part in so many of shared memory, so that a core keeps several groups."""


class RowwiseRule(Rule):
    """See the module."""

    name = "rowwise"
    priority = 8

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body) or access.has_sequential_loop(program):
            return Decline("loop_program", "statements or blocks stand outside a plain nest")
        blocks = access.blocks_of(program)
        if any(len(list(access.stores(b))) != 1 for b in blocks):
            return Decline("tuple_reduction", "a reduction has several results")
        if common_rows(program) == 0:
            return Decline("no_rows", "the blocks do not share their outer loops")
        trial = Schedule(program, machine)
        sums = [k for k, b in enumerate(blocks) if access.is_reduction(b)]
        if len(sums) == 1 and all(
            access.block_work(b) <= Shape.of(trial, blocks[sums[0]].name).outputs for b in blocks[sums[0] + 1 :]
        ):
            return Decline("one_pass", "nothing goes through the rows once more after the reduction")
        if any(Shape.of(trial, b.name).columns is not None for b in blocks if access.is_reduction(b)):
            return Decline(
                "columns", "a reduction reads neighbouring elements for neighbouring rows, not along the row"
            )
        return Offer(of_blocks(program, machine))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s)
        names = s.blocks()
        rows = common_rows(s.program)
        if rows == 0:
            schedule_apart(s, names, s.machine)  # inlining took the blocks that shared rows
            return
        schedule_rows(s, names, rows, s.machine)


def schedule_rows(s: Schedule, names: list[str], rows: int, machine: Machine) -> None:
    """Schedules blocks that share so many outer loops; those that may not move to the others' rows are launches of
    their own."""
    last = names[-1]
    around = s.loops(last)[:rows]
    count = length = 1
    for x in around:
        count *= access.extent(s.loop(x))
    for name in names:
        length = max(length, access.block_work(s.block(name)) // max(1, count))
    known = all(int_const(s.loop(x).extent) is not None for name in names for x in s.loops(name)[rows:])
    short = length <= SHORT and (count >= machine.cores * GROUP or length <= grid_of(machine).warp // 4)
    able = ["thread", "group"] if known and length <= MOST_OF_A_THREAD else ["group"]
    if s.choose("rows", able, "thread" if short and known else "group") == "thread":
        _by_thread(s, names, around, machine)
    else:
        _by_group(s, names, around, count, length, machine)


def _gather(s: Schedule, names: list[str], row: str, machine: Machine) -> list[str]:
    """Moves what may be under the last block's rows; the names of those that are there, in order. The others are
    scheduled apart."""
    last = names[-1]
    moved = {name for name in reversed(names[:-1]) if _moves(s, name, row)}
    together = [name for name in names if name in moved or name == last]
    schedule_apart(s, [name for name in names if name not in together], machine)
    return together


def _moves(s: Schedule, name: str, row: str) -> bool:
    try:
        s.compute_at(name, row)
    except ScheduleError:
        return False  # a primitive that may not act changes nothing
    return True


def _by_thread(s: Schedule, names: list[str], around: list[str], machine: Machine) -> None:
    """A thread takes a row, all of it in registers."""
    last = names[-1]
    together = _gather(s, names, around[-1], machine)
    for name in together[:-1]:
        buffer = access.target(s.block(name)).buffer.name
        s.set_scope(name, "register")
        s.compact_buffer(buffer)
    for name in together:
        inner = s.loops(name)[s.loops(name).index(around[-1]) + 1 :]
        if name == last and access.is_reduction(s.block(name)):
            shape = Shape.of(s, name)
            in_register(s, name, next(x for x in inner if x in shape.reduce), None)
        for x in inner:
            s.unroll(x)
    spread(s, last, around, machine, several=False)


def _by_group(s: Schedule, names: list[str], around: list[str], count: int, length: int, machine: Machine) -> None:
    """The threads of a group share a row, or some short ones."""
    wanted = grid_of(machine).threads if length >= LONG_ROW else GROUP
    usual, most = sum_threads(machine, length, wanted), most_threads(machine, grid_of(machine).threads)
    threads = choose_threads(s, "row_threads", usual, most)
    several = _rows_of_group(s, around[-1], threads, count, machine)
    group = around[-1]
    if several > 1:
        group, _ = s.split(group, [None, several])
    if len(around) > 1:
        group = s.fuse(*around[:-1], group)
    together = _gather(s, names, group, machine)
    room = (shared_of_group(machine) or 0) // SHARED_PART
    for name in together[:-1]:
        room -= _keep(s, name, room)
    for name in together:
        inner = s.loops(name)[s.loops(name).index(group) + 1 :]
        if access.is_reduction(s.block(name)):
            cooperate(s, name, group, machine, threads, "threadIdx.x")
            continue
        rows, elements = (inner[:1], inner[1:]) if several > 1 else ([], inner)
        share(s, name, elements, threads)
        share(s, name, rows, several, "threadIdx.y")
    s.parallel(group)
    s.bind(group, "blockIdx.x")


def _rows_of_group(s: Schedule, row: str, threads: int, count: int, machine: Machine) -> int:
    """Rows of one group: as many as fill it, if every core still has groups and the rows come out even."""
    n, grid = int_const(s.loop(row).extent), grid_of(machine)
    able = [1]
    while n is not None and n % (2 * able[-1]) == 0 and 2 * able[-1] <= grid.threads_per_axis[1]:
        if 2 * able[-1] * threads > grid.threads:
            break
        able.append(2 * able[-1])
    fitting = (k for k in able if k * threads <= min(GROUP, grid.threads) // 2 and count // k >= 2 * machine.cores)
    return s.choose("rows_of_group", able, max(fitting, default=1))


def _keep(s: Schedule, name: str, room: int) -> int:
    """Puts a block's values of a group's rows into shared memory if they fit into `room`; the bytes that they take."""
    buffer = access.target(s.block(name)).buffer.name
    trial = Schedule(s.program, s.machine)
    trial.set_scope(name, "shared")
    trial.compact_buffer(buffer)
    kept = next(x.buffer for x in walk_stmts(trial.program.body) if isinstance(x, Allocate) and x.buffer.name == buffer)
    size: int | None = kept.dtype.bytes
    for d in kept.shape:
        n = int_const(simplify(d))
        size = None if size is None or n is None else size * n
    if size is None or size > room:
        return 0
    s.set_scope(name, "shared")
    s.compact_buffer(buffer)
    return size
