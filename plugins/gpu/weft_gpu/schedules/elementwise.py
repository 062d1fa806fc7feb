"""Groups without reduction: one nest, flattened over groups and threads; vectors for contiguous memory, tiles for
transpositions.

Choices of each block: `BLOCK.tile` (elements along each side of a tile; 0: none), `BLOCK.lanes` (elements of a vector),
and those of `spread`.
"""

from __future__ import annotations

import math

from weft.errors import ScheduleError
from weft.expr.affine import affine
from weft.expr.nodes import Expr
from weft.loop.nodes import Allocate, Load, Program, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import inline_producers, offer_for, split_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.threads import GROUP, grid_of, most_threads, share, spread

TILE = 32
"""Elements along each side of a tile that is transposed."""
SIDES = (8, 16, TILE)
"""Options of `tile`, but 0: no tiles."""


class ElementwiseRule(Rule):
    """Groups whose blocks are all without reductions."""

    name = "elementwise"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "elementwise", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s, keep_shared=True)
        for name in s.blocks():
            schedule_elementwise(s, name, s.machine)


def schedule_elementwise(s: Schedule, name: str, machine: Machine) -> None:
    """Schedules one block without reduction, under loops of its own, as a launch."""
    if not s.loops(name) or transpose(s, name, machine):
        return
    loops = s.loops(name)
    lanes = vector_lanes(s, name, machine)
    if lanes > 1:
        if access.LoopView.of(s, name).extents[loops[-1]] == lanes:
            *loops, lane = loops
        else:
            *loops, rows, lane = [*loops[:-1], *s.split(loops[-1], [None, lanes])]
            loops.append(rows)
        s.vectorize(lane)
    if loops:
        spread(s, name, loops, machine)


def transpose(s: Schedule, name: str, machine: Machine) -> bool:
    """Schedules a block that reads memory across the direction in which it writes it, by tiles in shared memory; False
    if it is none.

    A tile's rows are read contiguously and its columns written so; its rows are one element longer, so that a column
    lies in as many banks as it has elements.
    """
    found = _crossing(s, name)
    if found is None:
        return False
    buffer, across, inner = found
    grid = grid_of(machine)

    def beside(side: int) -> int:
        return max(1, min(TILE // 4, grid.threads // side, grid.threads_per_axis[1]))

    def refuse(side: int) -> str | None:
        if side == 0:
            return None
        trial = Schedule(s.program, machine)
        try:
            size = _tile(trial, name, buffer, across, inner, side, beside(side))
        except ScheduleError as error:
            return error.why or error.what
        return "a tile of shared memory would be larger" if size is None or size > side * (side + 1) else None

    usual, most = min(TILE, most_threads(machine)), most_threads(machine)
    options = sorted({0, usual, *(x for x in SIDES if x <= most)})
    side = s.choose(f"{name}.tile", options, usual if refuse(usual) is None else 0, refuse)
    if side == 0:
        return False
    _tile(s, name, buffer, across, inner, side, beside(side))
    return True


def _crossing(s: Schedule, name: str) -> tuple[str, str, str] | None:
    """The buffer that a block reads across, the loop along which its elements are neighbours, and the one along which
    the block's are."""
    if len(list(access.stores(s.block(name)))) != 1:
        return None
    view = access.LoopView.of(s, name)
    inner = view.loops[-1]
    if view.stride(view.store, inner) != 1 or view.extent(inner) < TILE // 4:
        return None
    for x in view.loads:
        across = next((y for y in view.loops[:-1] if view.stride(x, y) == 1), None)
        several = len({y.indices for y in view.loads if y.buffer.name == x.buffer.name}) > 1
        if (
            across is not None
            and view.stride(x, inner) not in (0, 1)
            and not several
            and view.extent(across) >= TILE // 4
        ):
            return x.buffer.name, across, inner
    return None


def _tile(s: Schedule, name: str, buffer: str, across: str, inner: str, side: int, beside: int) -> int | None:
    """Schedules the block by tiles of `side` in both directions; elements of the tile in shared memory."""
    loops = s.loops(name)
    outer = [x for x in loops if x not in (across, inner)]
    rows, row = s.split(across, [None, side])
    columns, column = s.split(inner, [None, side])
    s.reorder(*outer, rows, columns, row, column)
    copy = s.cache_read(name, buffer, "shared")
    shared = access.target(s.block(copy)).buffer.name
    s.compute_at(copy, columns)
    s.compact_buffer(shared, align=side + 1)
    held = next(x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate) and x.buffer.name == shared)
    size: int | None = 1
    for d in held.shape:
        n = int_const(d)
        size = None if size is None or n is None else size * n
    group = s.fuse(*outer, rows, columns)
    own = s.loops(copy)[s.loops(copy).index(group) + 1 :]
    for block, down, along in ((copy, own[:-1], own[-1:]), (name, [row], [column])):
        share(s, block, along, side)
        share(s, block, down, beside, "threadIdx.y")
    s.parallel(group)
    s.bind(group, "blockIdx.x")
    return size


def vector_lanes(s: Schedule, name: str, machine: Machine) -> int:
    """Neighbouring elements that one thread moves at once; 1 where memory does not lie that way, or where they leave
    threads without work."""
    if len(list(access.stores(s.block(name)))) != 1:
        return 1
    split_blocks(s, name)
    view = access.LoopView.of(s, name)
    inner = view.loops[-1]
    n = view.extents[inner]
    widest = max(x.buffer.dtype.scalar.bytes for x in [view.store, *view.loads])
    if n is None or view.stride(view.store, inner) != 1:
        return 1
    able = [1]
    while 2 * able[-1] * 8 * widest <= machine.vector_bits:
        able.append(2 * able[-1])
    every = [view.store, *view.loads]
    able = [k for k in able if k == 1 or (n % k == 0 and all(_aligned(view, x, inner, k) for x in every))]
    total = math.prod(view.extent(x) for x in view.loops)
    usual = max(k for k in able if k == 1 or total // k >= machine.cores * GROUP)
    return s.choose(f"{name}.lanes", able, usual)


def _aligned(view: access.LoopView, x: Load, inner: str, lanes: int) -> bool:
    """Whether the access does not move along `inner`, or is contiguous along it and begins at a multiple of `lanes`
    elements."""
    stride = view.stride(x, inner)
    if stride == 0:
        return True
    place = flat_index(x)
    form = None if place is None else affine(place, view.loops)
    if stride != 1 or form is None:
        return False
    others = [int_const(c) for v, c in form.coefficients.items() if v != inner]
    rest = int_const(form.rest)
    return rest is not None and rest % lanes == 0 and all(c is not None and c % lanes == 0 for c in others)


def flat_index(x: Load) -> Expr | None:
    """Where in memory the access is, in elements, as a formula; None of a buffer without dimensions."""
    total: Expr | None = None
    for index, stride in zip(x.indices, access.strides(x)):
        total = index * stride if total is None else total + index * stride
    return total
