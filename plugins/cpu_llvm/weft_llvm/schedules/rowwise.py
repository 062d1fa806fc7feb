"""Softmax, normalisation and similar operators: several passes over each row, one loop over the rows, rows in parallel,
lanes along the row.

Choices: `rows` that go through all passes together, `parallel`, and for each block of a row `BLOCK.vectors`.
"""

from __future__ import annotations

import math

from weft.errors import ScheduleError
from weft.expr.nodes import free_vars
from weft.loop.nodes import Block, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.patterns import common_rows, inline_producers, row_iter, split_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.elementwise import TASKS_PER_CORE, lanes_of, worth_forking
from weft_llvm.schedules.reduction import SHORTEST, lane_loop, partial_reduction, row_width, schedule_apart

SHORT = 1 << 10
"""Elements of rows that are gone through together."""
TOGETHER = (1, 2, 4, 8)
"""Options of `rows`."""


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
        rows = common_rows(program)
        if rows == 0:
            return Decline("no_rows", "the blocks do not share their outer loops")
        if any(_slides(b) for b in blocks if access.is_reduction(b)):
            return Decline("window", "a reduction is one of windows that slide along its operand, which have no rows")
        if any(_lanes_across(program, b.name, machine) for b in blocks if access.is_reduction(b)):
            return Decline(
                "lanes_across_rows", "a reduction reads neighbouring elements for neighbouring rows, not along the row"
            )
        return Offer(of_blocks(program, machine))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s)
        names = s.blocks()
        rows = common_rows(s.program) if len(names) > 1 else _own_rows(s.block(names[0]))
        if rows == 0:
            schedule_apart(s, names, s.machine)  # inlining took the blocks that shared rows
            return
        last = names[-1]
        row = _several(s, last, s.loops(last)[rows - 1], s.machine)
        moved = {name for name in reversed(names[:-1]) if _moves(s, name, row)}
        together = [name for name in names if name in moved or name == last]
        schedule_apart(s, [name for name in names if name not in together], s.machine)
        # A reduction into several elements of the row moves its combination next to its steps, which it can before the
        # row's buffers shrink.
        wide = [name for name in together if access.is_reduction(s.block(name)) and _inner_spatial(s, name, row)]
        for name in wide:
            schedule_row(s, name, row, s.machine)
        for name in together[:-1]:
            s.compact_buffer(access.target(s.block(name)).buffer.name)
        for name in together:
            if name not in wide:
                schedule_row(s, name, row, s.machine)
        loops = s.loops(last)
        outer = loops[: loops.index(row) + 1]
        worth = worth_forking(sum(access.block_work(s.block(n)) for n in together), s.machine, per_cycle=1 / 4)
        if s.choose("parallel", [True, False], worth):
            s.parallel(outer[0] if len(outer) == 1 else str(s.fuse(*outer)))


def _several(s: Schedule, name: str, row: str, machine: Machine) -> str:
    """The loop over groups of short rows, whose passes go through all rows of a group: the end of one row's sum hides
    another's."""
    loops = s.loops(name)
    inner = [int_const(s.loop(x).extent) for x in loops[loops.index(row) + 1 :]]
    n, m = int_const(s.loop(row).extent), math.prod(x or access.UNKNOWN_EXTENT for x in inner)
    able = [k for k in TOGETHER if k == 1 or (n is not None and n % k == 0)]
    count = s.choose(
        "rows",
        able,
        max(k for k in able if k == 1 or (k * m <= SHORT and (n or 0) // k >= TASKS_PER_CORE * machine.cores)),
    )
    return row if count == 1 else str(s.split(row, [None, count])[0])


def _slides(block: Block) -> bool:
    """Whether steps of the reduction and its results move along the same axis of an operand."""
    kinds = {i.var.name: i.kind for i in block.iters}
    return any(
        {"spatial", "reduce"} <= {kinds[v] for v in free_vars(index) if v in kinds}
        for load in access.loads(block)
        for index in load.indices
    )


def _lanes_across(program: Program, name: str, machine: Machine) -> bool:
    trial = Schedule(program, machine)
    split_blocks(trial, name)
    if lane_loop(trial, name) is None:
        return False
    view = access.LoopView.of(trial, name)
    operands = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
    lanes = machine.lanes(view.store.buffer.dtype)
    # A row shorter than a vector is a window that slides along the outputs.
    rows = [x for x in view.loops if view.kinds.get(x) == "reduce" and (view.extents[x] or lanes) >= lanes]
    return not any(view.stride(x, loop) == 1 for x in operands for loop in rows)


def _moves(s: Schedule, name: str, row: str) -> bool:
    """Moves the block into the rows' loop if it may be there; one that writes an output, or more than its row, stays
    where it is."""
    try:
        s.compute_at(name, row)
    except ScheduleError:
        return False  # a primitive that may not act changes nothing
    return True


def _inner_spatial(s: Schedule, name: str, row: str) -> list[str]:
    """The loops inside `row` that drive spatial iterators of the block."""
    block, loops = s.block(name), s.loops(name)
    spatial = {v for i, b in zip(block.iters, block.bindings) if i.kind == "spatial" for v in free_vars(b)}
    return [x for x in loops[loops.index(row) + 1 :] if x in spatial]


def _own_rows(block: Block) -> int:
    k = 0
    while row_iter(block, k) and k < len([i for i in block.iters if i.kind == "spatial"]) - (
        0 if access.is_reduction(block) else 1
    ):
        k += 1
    return k


def schedule_row(s: Schedule, name: str, row: str, machine: Machine) -> None:
    """One pass over a row: lanes along the innermost loop; a reduction keeps a vector of partial results."""
    block = s.block(name)
    dtype = access.target(block).buffer.dtype
    lanes = machine.lanes(dtype)
    loops = s.loops(name)
    inner = [x for x in loops[loops.index(row) + 1 :] if int_const(s.loop(x).extent) != 1]
    if not inner:
        return
    loop = inner[-1]
    var = next((block.iters[k].var.name for k, b in enumerate(block.bindings) if loop in free_vars(b)), None)
    if var is None or any(access.stride_of(x, var) not in (0, 1) for x in access.loads(block)):
        return
    n = int_const(s.loop(loop).extent)
    if access.is_reduction(block):
        if n is None or n >= SHORTEST:
            partial_reduction(s, name, loop, *row_width(s, name, n, lanes))
        return
    if n is not None and n < SHORTEST:
        return
    if access.stride_of(access.target(block), var) != 1:
        return
    # Vectors of a short row are as long as those of its reductions.
    _, lane = lanes_of(s, name, loop, lanes if n is None else min(lanes, 1 << (n.bit_length() - 1)))
    s.vectorize(lane)
