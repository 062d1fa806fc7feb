"""Elementwise and data-moving groups: one nest, loops joined where every access lets them, lanes on the contiguous one,
transpositions in tiles.

Choices of each block: `BLOCK.lanes` (which loop vectors lie along), `BLOCK.block` (lines along each side of a block of
squares), `BLOCK.line` (elements along each side of a tile), `BLOCK.vectors` (vectors unrolled), `BLOCK.rows` (rows side
by side) and `BLOCK.tasks_per_core`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.expr.nodes import free_vars
from weft.loop.nodes import Block, Load, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import crossing_loop, inline_producers, offer_for, split_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.emitter import MOST_INTERLEAVED

VECTORS = 4
"""Vectors of a long formula that are unrolled."""
VECTOR_COUNTS = (1, 2, 4, 8)
"""Options of what is unrolled, or computed side by side, in vectors."""
GAPS = 4
"""Elements from lane to lane up to which a vector is loaded with what lies between, in a transposition: that takes as
many loads and shuffles, and a square one load and the logarithm of its side."""
ROWS = 4
"""Rows of what is gathered from shared places that are computed side by side."""
TASKS_PER_CORE = 8
"""Tasks that even out cores of unequal speed."""
TASKS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Options of `tasks_per_core`; 0: one core does all."""


class ElementwiseRule(Rule):
    """Groups whose blocks are all without reductions."""

    name = "elementwise"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "elementwise", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s, [name for name in s.blocks() if not stored_for_gathers(s, name)], keep_shared=True)
        for name in s.blocks():
            schedule_elementwise(s, name, s.machine)


def stored_for_gathers(s: Schedule, name: str) -> bool:
    """Whether the elements of the block are stored because it, or a block that reads it, gathers from places that
    memory tells: computed where they are read, more elements would be gathered."""
    block = s.block(name)
    buffer, consumers = access.target(block).buffer.name, s.consumers(name)
    if len(list(access.stores(block))) != 1 or not consumers or not block.iters:
        return False
    reads = {(c, x) for c in consumers for x in access.loads(s.block(c)) if x.buffer.name == buffer}
    count = sum(access.block_work(s.block(c)) for c, _ in reads)
    if gathers(block, access.loads(block)):
        return count > access.block_work(block)
    moving = {x for x in access.loads(block) if access.stride_of(x, block.iters[-1].var.name) != 0}
    several = len(moving) > 1 and count >= access.block_work(block)
    return several and any(gathers(s.block(c), [x]) for c, x in reads)


def gathers(block: Block, loads: Iterable[Load]) -> bool:
    """Whether neighbouring iterations of the block load from places no constant distance apart."""
    return bool(block.iters) and any(access.stride_of(x, block.iters[-1].var.name) is None for x in loads)


def schedule_elementwise(s: Schedule, name: str, machine: Machine, outer: int = 0, parallel: bool = True) -> None:
    """Schedules one block without reduction.

    Args:
        outer: loops around the block that belong to others and stay as they are.
    """
    block = s.block(name)
    work = access.block_work(block) * access.formula_cost(block)
    loops = s.loops(name)[outer:]
    first = len(s.loops(name)) - len(loops)
    if not loops:
        return
    lanes = machine.lanes(access.target(block).buffer.dtype)
    ends: list[str] = []
    vector = contiguous_loop(s, name, loops[-1])
    if vector and any(stride not in (0, 1) for stride in _strides(s, name, loops[-1])):
        ends = split_blocks(s, name, partial=True)
        loops = s.loops(name)[outer:]
    *rest, inner = loops
    n = int_const(s.loop(inner).extent)
    along = interleaved_loop(s, name, inner, rest, lanes)
    across = crossing_loop(s, name, inner, rest) if vector else None
    square = square_of(s, name, inner, rest, machine) if not ends else None
    able = {
        "interleaved": along is not None,
        "squares": square is not None,
        "tiles": across is not None and (n is None or n >= 2 * lanes),
        "contiguous": vector and n != 1,
        "none": True,
    }
    options = [way for way, can in able.items() if can]
    way = s.choose(f"{name}.lanes", options, options[0])
    if way == "interleaved" and along is not None:
        rest = interleave(s, rest, along, inner, lanes)
    elif way == "squares" and square is not None:
        rest = transpose_squares(s, name, rest, inner, *square, machine)
    elif way == "tiles" and across is not None:
        rest = tile_lines(s, name, rest, across, inner, lanes, machine, ends)
    elif way == "contiguous":
        if n is None or n > lanes:
            outer_part, inner = lanes_of(s, name, inner, lanes)
            rest.append(outer_part)
        s.vectorize(inner)
    elif rest and (count := rows_beside(s, name, rest[-1], inner)) > 1:
        rest[-1], row = s.split(rest[-1], [None, count])
        s.reorder(rest[-1], inner, row)
        s.unroll(row)
    elif not rest:
        rest.append(inner)  # otherwise it stays a loop: indices come from a fused one by division
    if ends and way != "tiles":
        rest = []
    if parallel and first == 0 and rest:
        parallelise(s, f"{name}.tasks_per_core", rest, machine, worth_forking(work, machine))


def rows_beside(s: Schedule, name: str, row: str, inner: str) -> int:
    """How many rows are computed side by side, an element of each at a time, where elements are gathered from places
    that rows share (choice `BLOCK.rows`): a place, and what else rows share, is loaded once."""
    view = access.LoopView.of(s, name)
    gathered = [x for x in view.loads if view.stride(x, inner) is None]
    shared = [x for x in view.loads if view.stride(x, row) == 0]
    block, n = s.block(name), view.extents[row]
    if not gathered or not shared or view.stride(view.store, inner) != 1 or access.calls_formula(block):
        return 1
    options = [k for k in VECTOR_COUNTS if n is None or k <= n]
    return int(s.choose(f"{name}.rows", options, max(k for k in options if k <= ROWS)))


def worth_forking(operations: int, machine: Machine, per_cycle: float = 1.0) -> bool:
    """Whether operations, of which a core does so many in a cycle, take longer than a parallel loop's start and end."""
    return operations / per_cycle >= machine.rates.cycles(machine.rates.fork_seconds + machine.rates.join_seconds)


def interleaved_loop(s: Schedule, name: str, inner: str, rest: list[str], lanes: int) -> str | None:
    """The loop around a short inner one that gives lanes instead: memory is read along it, and its results lie as far
    apart as `inner` is long."""
    n = int_const(s.loop(inner).extent)
    if not rest or n is None or not 2 <= n <= min(lanes, MOST_INTERLEAVED):
        return None
    view, along = access.LoopView.of(s, name), rest[-1]
    if (
        view.stride(view.store, inner) != 1
        or view.stride(view.store, along) != n
        or access.extent(s.loop(along)) < lanes
    ):
        return None
    strides = [view.stride(load, along) for load in view.loads]
    return along if 1 in strides and all(stride in (0, 1) for stride in strides) else None


def interleave(s: Schedule, rest: list[str], along: str, inner: str, lanes: int) -> list[str]:
    """Lanes on `along`, a vector for each iteration of `inner` beside it: the compiler shuffles them into each other;
    the loops around."""
    outer, lane = s.split(along, [None, lanes])
    s.reorder(outer, inner, lane)
    s.unroll(inner)
    s.vectorize(lane)
    return [*(x for x in rest if x != along), outer]


def square_of(s: Schedule, name: str, inner: str, rest: list[str], machine: Machine) -> tuple[str, int] | None:
    """Of a transposition that can be one of squares in registers: the loop along which memory is read, and the side of
    a square; None if it cannot.

    Elements that lie `GAPS` or less apart are loaded by vectors and shuffles as they are.
    """
    view = access.LoopView.of(s, name)
    buffer = view.store.buffer
    if view.stride(view.store, inner) != 1 or buffer.dtype.kind == "complex" or view.conditions:
        return None
    far = [x for x in view.loads if view.stride(x, inner) not in (0, 1)]
    if not far or all(abs(view.stride(x, inner) or GAPS + 1) <= GAPS for x in far):
        return None
    across = next((x for x in reversed(rest) if any(view.stride(load, x) == 1 for load in far)), None)
    if across is None or any(view.stride(load, across) not in (0, 1) for load in view.loads):
        return None
    apart = view.stride(view.store, across)
    n, m = view.extents[inner], view.extents[across]
    side = min(machine.lanes(buffer.dtype), 1 << (machine.vector_registers // 2).bit_length() - 1)
    if m is not None:
        side = min(side, 1 << (m - 1).bit_length())
    if apart is None or apart < side or side < 2 or n is None or n < side:
        return None
    return across, side


def transpose_squares(
    s: Schedule, name: str, rest: list[str], inner: str, across: str, side: int, machine: Machine
) -> list[str]:
    """Squares that are read by rows and stored by columns, which the compiler makes of each other by shuffles; the
    loops around them.

    A matrix that the second cache does not hold is gone through in blocks of squares (choice `BLOCK.block`, in lines
    along each side; 0: none), so that lines and pages that a square does not use up are still near for the next one.
    """
    each = access.target(s.block(name)).buffer.dtype.bytes
    n, m = access.extent(s.loop(inner)), access.extent(s.loop(across))
    column, columns = s.split(inner, [None, side])
    # Squares that read the same lines come one after the other; those that store to the same lines do anyway.
    near = min(max(1, machine.cache_line // (side * each)), max(1, m // side))
    row, *beside, rows = s.split(across, [None, *([near] if near > 1 else []), side])
    outer = [x for x in rest if x != across]
    around = [row, column]
    # What is read and what is stored of a block lie in the first cache.
    fits = 1 << (math.isqrt(machine.caches[0] // (2 * each)) // (near * side)).bit_length() - 1
    usual = fits if fits > 1 and 2 * n * m * each > machine.caches[1] else 0
    block = s.choose(f"{name}.block", sorted({0, 2, 4, 8, 16, usual}), usual)
    if block:
        (row_block, row), (column_block, column) = s.split(row, [None, block]), s.split(column, [None, block * near])
        around = [row_block, column_block, row, column]
    s.reorder(*outer, *around, *beside, columns, rows)
    s.unroll(columns)
    s.vectorize(rows)
    return [*outer, *around]


def _strides(s: Schedule, name: str, loop: str) -> list[int | None]:
    view = access.LoopView.of(s, name)
    return [view.stride(load, loop) for load in view.loads]


def tile_lines(
    s: Schedule, name: str, rest: list[str], across: str, inner: str, lanes: int, machine: Machine, ends: list[str]
) -> list[str]:
    """Tiles a transposition so that the cache lines that a tile touches are read and written whole; the loops around
    the tiles.

    `ends`: loops over blocks that are not all whole, see `split_blocks`: what can be told apart goes outside.
    """
    least = max(lanes, machine.cache_line // access.target(s.block(name)).buffer.dtype.bytes)
    line = s.choose(f"{name}.line", sorted({least, *(k * lanes for k in VECTOR_COUNTS)}), least)
    n = int_const(s.loop(inner).extent)
    columns, vectors, lane = s.split(inner, [None, line // lanes, lanes])
    outer = [x for x in rest if x != across]
    rows = across
    m = int_const(s.loop(across).extent)
    if m is None or m > line:
        first, rows = s.split(across, [None, line])
        outer.insert(rest.index(across), first)
    if n is None or n > line:
        outer.append(columns)
    if ends and columns in outer:
        outer = [columns, *(x for x in outer if x != columns)]
    s.reorder(*outer, *([] if columns in outer else [columns]), rows, vectors, lane)
    s.unroll(vectors)
    s.vectorize(lane)
    return [columns] if ends and columns in outer else [] if ends else outer


def lanes_of(s: Schedule, name: str, loop: str, lanes: int) -> tuple[str, str]:
    """Splits a loop into vectors; (outer loop, lanes). Several vectors of a long formula are unrolled, to be computed
    side by side (choice `BLOCK.vectors`)."""
    n = int_const(s.loop(loop).extent)
    long = access.calls_formula(s.block(name)) and (n is None or n >= 4 * VECTORS * lanes)
    count = s.choose(f"{name}.vectors", VECTOR_COUNTS, VECTORS if long else 1, lambda k: too_short(n, k, lanes))
    if count == 1:
        outer, inner = s.split(loop, [None, lanes])
        return outer, inner
    outer, vectors, inner = s.split(loop, [None, count, lanes])
    s.unroll(vectors)
    return outer, inner


def too_short(n: int | None, vectors: int, lanes: int) -> str | None:
    """Why a loop of `n` iterations has not so many vectors of `lanes` side by side; None if it has, or `n` is None."""
    if vectors == 1 or n is None or n >= vectors * lanes:
        return None
    return f"the loop has {n} iterations, {vectors} vectors have {vectors * lanes} elements"


def parallelise(s: Schedule, choice: str, loops: list[str], machine: Machine, worth: bool = True) -> None:
    """As few of the loops, from the outermost on, as give every core several tasks: indices come from a joined loop by
    division.

    Args:
        choice: the name of the choice of how many.
        worth: whether they are computed in parallel unless a record says so.
    """
    each = s.choose(choice, TASKS, TASKS_PER_CORE if worth else 0)
    if each == 0:
        return
    taken: list[str] = []
    tasks, wanted = 1, each * machine.cores
    for loop in loops:
        if tasks >= wanted:
            break
        n = access.extent(s.loop(loop))
        if taken and n * tasks >= 2 * wanted:
            # Part of it: what is left inside can be cut where its last, partial vectors begin, which a joined loop
            # cannot.
            whole = dict(s.loop(loop).annotations).get("partition") == 0
            loop, inside = s.split(loop, [None, n // -(-wanted // tasks)])
            if whole:
                s.annotate(inside, "partition", 0)
            n = access.extent(s.loop(loop))
        taken.append(loop)
        tasks *= n
    if taken:
        s.parallel(taken[0] if len(taken) == 1 else str(s.fuse(*taken)))


def contiguous_loop(s: Schedule, name: str, loop: str) -> bool:
    """Whether the block stores contiguously along `loop` and its loads are contiguous, constant, or gathered where that
    pays: one, or before a long formula."""
    block = s.block(name)
    bound = [k for k, b in enumerate(block.bindings) if loop in free_vars(b)]
    if not bound:
        return False
    var = block.iters[bound[-1]].var.name
    store = access.target(block)
    if len(bound) == 1 and access.stride_of(store, var) == 1:
        gathered = [x for x in dict.fromkeys(access.loads(block)) if access.stride_of(x, var) not in (0, 1)]
        return len(gathered) <= 1 or access.calls_formula(block)
    return False
