"""Matrix products and convolutions: register tiles over two output loops, the reduction innermost but for the tile.

One plan serves all of them. The vector loop is the output's contiguous one along which an operand is contiguous too; the column loop
gives more vectors of the same operand row; the row loop is one along which the other operand moves and the vector operand does not.
What follows the contraction in its group is computed on the tile before it leaves the registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.loop.nodes import Block, Load, Program, int_const
from weft.machine import Machine
from weft.schedule.rule import Decline, Offer, Rule
from weft.schedule.schedule import Schedule
from weft_llvm.schedules import access
from weft_llvm.schedules.elementwise import schedule_elementwise
from weft_llvm.schedules.tiles import Tile, choose_tile


UNROLLED_STEPS = 64
"""Most multiply-adds in the innermost body."""


@dataclass(frozen=True)
class Roles:
    """Iterators of a contraction by position: `vector` (None if no loop vectorises), `column` and `row` (None if there is none)."""

    vector: int | None
    column: int | None
    row: int | None
    split_vector: bool  # the column loop is made by splitting the vector loop


def find_roles(block: Block, lanes: int) -> Roles:
    """Which spatial loops of a contraction become vector lanes, columns and rows of the register tile."""
    spatial = [k for k, i in enumerate(block.iters) if i.kind == "spatial"]
    store = access.target(block)
    operands = [x for x in access.loads(block) if x.buffer.name != store.buffer.name]

    def moves(x: Load, k: int) -> int | None:
        return access.stride_of(x, block.iters[k].var.name)

    vector = None
    for k in reversed(spatial):
        n = int_const(block.iters[k].extent)
        if access.stride_of(store, block.iters[k].var.name) != 1 or (n is not None and n < 2):
            continue
        if any(moves(x, k) == 1 for x in operands) and all(moves(x, k) in (0, 1) for x in operands):
            vector = k
            break
    if vector is None:
        return Roles(None, None, None, False)
    wide = [x for x in operands if moves(x, vector) == 1]
    narrow = [x for x in operands if moves(x, vector) == 0]
    extent = int_const(block.iters[vector].extent)

    def extent_of(k: int) -> int:
        n = int_const(block.iters[k].extent)
        return access.UNKNOWN_EXTENT if n is None else n

    others = [k for k in spatial if k != vector]
    rows = [k for k in others if extent_of(k) > 1 and any(moves(x, k) != 0 for x in narrow) and all(moves(x, k) == 0 for x in wide)]
    if not rows and not narrow:
        # Depthwise: every operand moves along the lanes; a tile still reuses the weights along a spatial loop.
        fixed = [k for k in others if extent_of(k) > 1 and any(moves(x, k) == 0 for x in wide)]
        rows = [k for k in fixed if k > min(others)] or fixed
    columns = [k for k in others if extent_of(k) > 1 and narrow and any(moves(x, k) != 0 for x in wide) and all(moves(x, k) == 0 for x in narrow)]
    row = rows[-1] if rows else None
    if extent is None or extent > lanes:
        return Roles(vector, vector, row, True)
    return Roles(vector, columns[-1] if columns else None, row, False)


def anchor_of(program: Program) -> Block | None:
    """The contraction of a group: its one reduction of a product."""
    found = [b for b in access.blocks_of(program) if access.is_reduction(b) and b.annotation("op") in ("Conv", "MatMul", "ConvTranspose")]
    return found[0] if len(found) == 1 else None


class ContractionRule(Rule):
    """See the module."""

    name = "contraction"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        block = anchor_of(program)
        if block is None:
            return Decline("no_contraction", "the group has no single matrix product or convolution")
        if access.has_sequential_loop(program):
            return Decline("scan", "the contraction lies in a sequential loop")
        if find_roles(block, machine.lanes(access.target(block).buffer.dtype)).vector is None:
            return Decline("no_vector_loop", "no output loop is contiguous in the output and an operand")
        return Offer(float(access.block_work(block)))

    def apply(self, s: Schedule) -> None:
        block = anchor_of(s.program)
        assert block is not None and s.machine is not None
        schedule_contraction(s, block.name, s.machine)


def schedule_contraction(s: Schedule, name: str, machine: Machine) -> None:
    """Schedules the contraction `name` with what precedes it (each on its own) and what follows it (on the tile)."""
    order = s.blocks()
    before, after = order[: order.index(name)], order[order.index(name) + 1 :]
    for b in before:
        schedule_elementwise(s, b, machine)
    for b in after[:-1]:
        s.compute_inline(b)
    if after:
        s.set_scope(name, "register")
        tail = after[-1]
    else:
        tail = s.cache_write(name, "register")
    schedule_tile(s, name, tail, machine)


def schedule_tile(s: Schedule, name: str, tail: str, machine: Machine) -> None:
    """Tiles the contraction `name`, whose result is in registers, with the block `tail` that takes the tile out of them."""
    dtype = access.target(s.block(name)).buffer.dtype
    lanes = machine.lanes(dtype)
    block = s.block(name)
    roles = find_roles(block, lanes)
    assert roles.vector is not None
    loops = s.loops(name)
    iters = block.iters
    reduce = _reduction_order(block, loops)
    spatial = [loops[k] for k, i in enumerate(iters) if i.kind == "spatial"]

    row_loop = loops[roles.row] if roles.row is not None else None
    vector_loop = loops[roles.vector]
    outer = [x for x in spatial if x not in (row_loop, vector_loop)]
    column_loop = None
    tile_order: list[str] = []

    row_extent = None if row_loop is None else int_const(s.loop(row_loop).extent)
    vectors = -(-(int_const(s.loop(vector_loop).extent) or access.UNKNOWN_EXTENT) // lanes)
    if roles.split_vector:
        candidates = [c for c in (1, 2, 3, 4, 6, 8) if c <= vectors]
        tile = choose_tile(row_extent if row_loop is not None else 1, candidates, vectors, machine, dtype)
        tile = Tile(int(s.choose("tile_rows", [tile.rows], tile.rows)), int(s.choose("tile_columns", [tile.columns], tile.columns)))
        vector_outer, vector_inner = s.split(vector_loop, [None, tile.columns * lanes])
        outer.append(vector_outer)
        column_loop, vector_loop = s.split(vector_inner, [tile.columns, lanes])
    else:
        column_extent = 1
        if roles.column is not None:
            column_extent = int_const(s.loop(loops[roles.column]).extent) or access.UNKNOWN_EXTENT
        candidates = [c for c in (1, 2, 3, 4) if column_extent % c == 0]
        tile = choose_tile(row_extent if row_loop is not None else 1, candidates, column_extent * vectors, machine, dtype)
        tile = Tile(int(s.choose("tile_rows", [tile.rows], tile.rows)), int(s.choose("tile_columns", [tile.columns], tile.columns)))
        if roles.column is not None and tile.columns > 1:
            outer_column, column_loop = s.split(loops[roles.column], [None, tile.columns])
            outer[outer.index(loops[roles.column])] = outer_column
    if row_loop is not None:
        row_outer, row_inner = s.split(row_loop, [None, tile.rows])
        outer.append(row_outer)
        tile_order.append(row_inner)
    if column_loop is not None:
        # Columns inside rows: a broadcast is used up before the next one needs a register.
        tile_order.append(column_loop)
    tile_order.append(vector_loop)
    s.reorder(*outer, *reduce, *tile_order)
    init = s.decompose_reduction(name, reduce[0])
    s.reverse_compute_at(tail, outer[-1])
    s.compact_buffer(access.target(s.block(name)).buffer.name, align=int_const(s.loop(vector_loop).extent) or lanes)
    for b in (name, init):
        inner = s.loops(b)[-len(tile_order) :]
        for loop in inner[:-1]:
            s.unroll(loop)
        s.vectorize(inner[-1])
    _finish_tail(s, tail, outer[-1], lanes)
    _unroll_taps(s, reduce, tile.rows * tile.columns)
    _parallelise(s, outer[:-1] or outer, name)


def _finish_tail(s: Schedule, tail: str, at: str, lanes: int) -> None:
    """The epilogue on the tile: lanes vectorised, the rest unrolled."""
    loops = s.loops(tail)
    inner = loops[loops.index(at) + 1 :]
    block = s.block(tail)
    store = access.target(block)
    contiguous = None
    for loop in reversed(inner):
        k = next((k for k, b in enumerate(block.bindings) if loop in access.free_vars(b)), None)
        if k is not None and access.stride_of(store, block.iters[k].var.name) == 1:
            contiguous = loop
            break
    for loop in inner:
        n = int_const(s.loop(loop).extent)
        if loop == contiguous:
            if n is not None and n > lanes and n % lanes == 0:
                outer, loop = s.split(loop, [None, lanes])
                s.unroll(outer)
            if n is not None and n > 1:
                s.vectorize(loop)
        elif n is not None and n <= 32:
            s.unroll(loop)


def _reduction_order(block: Block, loops: list[str]) -> list[str]:
    """The reduction's loops in the order in which the wide operand (the weights) lies in memory: it is streamed once per tile."""
    reduce = [k for k, i in enumerate(block.iters) if i.kind == "reduce"]
    store = access.target(block).buffer.name
    operands = [x for x in access.loads(block) if x.buffer.name != store]
    wide = operands[-1]

    def step(k: int) -> int:
        return access.stride_of(wide, block.iters[k].var.name) or 0

    return [loops[k] for k in sorted(reduce, key=lambda k: -abs(step(k)))]


def _unroll_taps(s: Schedule, reduce: list[str], accumulators: int) -> None:
    """Inner reduction loops with few trips are unrolled while the body stays small; a loop that is long enough costs nothing."""
    budget = UNROLLED_STEPS // max(1, accumulators)
    for loop in reversed(reduce):
        n = int_const(s.loop(loop).extent)
        if n is None or n > budget:
            break
        if n > 1 and loop != reduce[0]:
            s.unroll(loop)
        budget //= max(1, n)


def _parallelise(s: Schedule, outer: list[str], name: str) -> None:
    work = access.block_work(s.block(name), steps=False)
    if work < 1 << 15 or not outer:
        return
    loop = outer[0] if len(outer) == 1 else str(s.fuse(*outer))
    s.parallel(loop)
