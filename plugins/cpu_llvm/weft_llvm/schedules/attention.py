"""Attention as one kernel: for each tile of queries the scores, their softmax and the weighted sum of values, with
scores in L2.

The loop over tiles of queries of the second product contains all steps: the scores of a tile and all keys, in register
tiles with scale and mask as epilogue; the softmax of the tile's rows; the second product, in register tiles whose
epilogue divides by the rows' sums and stores in the layout of the group's output. Keys (and values) in panels are
packed before, once for all tiles. The tiling over queries is that of FlashAttention (Dao et al., 2022). Keys are not
tiled, since rows of scores fit into a core's L2, so that no running maximum is needed."""

from __future__ import annotations

from collections.abc import Iterable

from weft.dtypes import DType
from weft.expr.nodes import FloorDiv, FloorMod, free_vars
from weft.loop.nodes import int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.contraction import PANEL_VECTORS, UNROLLED_STEPS, find_roles, split_panels
from weft_llvm.schedules.elementwise import parallelise, schedule_elementwise, worth_forking
from weft_llvm.schedules.reduction import fold_halves
from weft_llvm.schedules.rowwise import SHORT, TOGETHER, schedule_row
from weft_llvm.schedules.tiles import Tile, fits, step_cycles
from weft_ops.scheduling.attention import (
    PACKED,
    Parts,
    TiledAttention,
    find_parts,
    inline_formulas,
    move_results,
    row_flags,
    tail_loops,
)

LEAST_ROWS, MOST_ROWS, WHOLE_ROWS = 6, 64, 256
"""Queries in a tile: so many at least, however many the keys; so many at most; so many at most if there are no more."""
UNKNOWN_KEYS = 2048
"""What a symbolic number of keys is taken for: the scores of a tile stay in the second cache up to so many."""

STREAM_ROWS, STREAM_SUMS = 8, 4
"""Of a product of few rows: rows of the right operand that pass together, and vectors of sums in registers
meanwhile."""


class AttentionRule(TiledAttention):
    """See the module."""

    def schedule(self, s: Schedule, machine: Machine) -> None:
        schedule_attention(s, machine)


def schedule_attention(s: Schedule, machine: Machine) -> None:
    """Schedules a group that holds one attention."""
    move_results(s)
    parts = find_parts(s.program)
    assert isinstance(parts, Parts)
    inline_formulas(s, parts, once=True)
    order, flags = s.blocks(), row_flags(s, parts)
    early = order[: order.index(parts.scores)]
    packs = [b for b in order if s.block(b).annotation("role") == PACKED]
    for b in packs:
        schedule_elementwise(s, b, machine)
    between = [b for b in order[order.index(parts.scores) + 1 : order.index(parts.greatest)] if b not in packs]
    logits = between or [s.cache_write(parts.scores, "register")]
    s.set_scope(parts.scores, "register")
    tail = order[-1]
    if tail == parts.product:
        tail = s.cache_write(parts.product, "register")
    s.set_scope(parts.product, "register")
    late = [b for b in s.blocks()[s.blocks().index(parts.total) :] if b not in (parts.product, tail, *packs)]
    rows, others = tail_loops(s, parts, tail)
    if rows is not None:
        size = choose_rows(s, parts, rows, machine)
        tiles, inside = s.split(rows, [None, size])
        s.reorder(*others[:-1], tiles, inside, others[-1])
    else:
        # One query per head: a head is a tile; without heads, one iteration around all gives the rest a place.
        s.reorder(*others)
        tiles = others[-2] if len(others) > 1 else s.split(others[-1], [1, None])[0]
    moved = [*reversed(late), parts.product, parts.exps, *flags, parts.greatest, *reversed(logits), parts.scores]
    moved += [b for b in reversed(early) if b not in packs]
    for b in moved:
        s.compute_at(b, tiles)
    inner = s.loops(parts.exps)[s.loops(parts.exps).index(tiles) + 1 :]
    row = tiles
    if len(inner) > 1:
        # One row at a time goes through the softmax: it stays in the first cache from its maximum to its sum.
        row = inner[0] if not flags else s.loops(parts.greatest)[s.loops(parts.greatest).index(tiles) + 1]
        row = several_rows(s, parts, row)
        if not flags:
            s.compute_at(parts.greatest, row)
        for b in (*flags, parts.exps) if flags else ():
            s.reverse_compute_at(b, row)
        s.reverse_compute_at(parts.total, row)
    tiled, streamed = [], False
    for p, t in ((parts.scores, logits[-1]), (parts.product, tail)):
        if p == parts.product and few_rows(s, p, tiles, machine):
            streamed = True
        elif tile_product(s, p, t, tiles, machine) or tile_dots(s, p, t, tiles, machine):
            tiled.append(p)
            continue
        s.set_scope(p, "global")
    rest = [b for b in moved if b not in tiled]
    for b in rest:
        s.compact_buffer(access.target(s.block(b)).buffer.name)
    for b in rest:
        if streamed and b == parts.product:
            stream_product(s, b, tiles, machine)
        elif b not in logits or parts.scores not in tiled:
            schedule_row(s, b, row if b in (parts.greatest, *flags, parts.exps, parts.total) else tiles, machine)
    if parts.product not in tiled:
        schedule_row(s, tail, tiles, machine)
    around = s.loops(tail)[: s.loops(tail).index(tiles) + 1]
    around = [x for x in around if int_const(s.loop(x).extent) != 1]
    if around:
        work = sum(access.block_work(s.block(p)) for p in (parts.scores, parts.product))
        parallelise(s, "tasks_per_core", around, machine, worth_forking(work, machine))


def several_rows(s: Schedule, parts: Parts, row: str) -> str:
    """The loop over groups of short rows, whose passes go through all rows of a group: the end of one row's maximum
    hides another's."""
    n, keys = int_const(s.loop(row).extent), int_const(access.target(s.block(parts.exps)).buffer.shape[-1])
    able = [k for k in TOGETHER if k == 1 or (n is not None and n >= k)]
    count = s.choose("rows", able, max(k for k in able if k == 1 or (keys is not None and k * keys <= SHORT)))
    return row if count == 1 else str(s.split(row, [None, count])[0])


def tile_product(s: Schedule, name: str, tail: str, around: str, machine: Machine) -> bool:
    """Register tiles of a product under the loop `around`, with the block `tail` that takes the tile out of them.

    Panels of columns stand outside rows: a panel stays in the first cache while all rows of the tile of queries pass.
    False if no loop gives lanes.
    """
    block = s.block(name)
    dtype = access.target(block).buffer.dtype
    lanes = machine.lanes(dtype)
    split_panels(s, name)
    roles = find_roles(s, name)
    if roles is None:
        return False
    view = access.LoopView.of(s, name)
    shared = view.loops[: view.loops.index(around) + 1]
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    row = roles.row if roles.row is not None and roles.row not in shared else None
    rows, width = 1 if row is None else view.extent(row), view.extents[roles.vector]
    whole = row is None or int_const(block.iters[position(s, name, row)].extent) == rows
    inner: list[str] = []
    outer: list[str] = []
    vector = roles.vector
    if width is not None and width == PANEL_VECTORS * lanes and roles.column is not None and roles.column not in shared:
        _, tile = choose_height(rows, whole, [PANEL_VECTORS], PANEL_VECTORS, machine, dtype)
        outer.append(roles.column)
        column, vector = s.split(vector, [None, lanes])
        inner += [column, vector]
    else:
        vectors = -(-(width or access.UNKNOWN_EXTENT) // lanes)
        _, tile = choose_height(rows, whole, [c for c in (1, 2, 3, 4) if c <= vectors], vectors, machine, dtype)
        panel, vector = s.split(vector, [None, tile.columns * lanes])
        outer.append(panel)
        column, vector = s.split(vector, [None, lanes])
        inner += [column, vector]
    if row is not None:
        row, height = s.split(row, [None, tile.rows])
        outer.append(row)
        inner.insert(0, height)
    s.reorder(*outer, *reduce, *inner)
    init = s.decompose_reduction(name, reduce[0])
    s.reverse_compute_at(tail, outer[-1])
    s.compact_buffer(access.target(s.block(name)).buffer.name, align=lanes)
    for b in (name, init):
        loops = s.loops(b)
        loops = [x for x in loops[loops.index(outer[-1]) + 1 :] if x not in reduce]
        for x in loops[:-1]:
            s.unroll(x)
        s.vectorize(loops[-1])
    finish_tail(s, tail, outer[-1], lanes)
    return True


def few_rows(s: Schedule, name: str, around: str, machine: Machine) -> bool:
    """Whether a product has so few rows that a register tile holds all of them, and its right operand is not packed."""
    roles, view = find_roles(s, name), access.LoopView.of(s, name)
    if roles is None or view.extents[roles.vector] is None or roles.vector in view.loops[: view.loops.index(around)]:
        return False
    inner = view.loops[view.loops.index(around) + 1 :]
    rows = [x for x in inner if view.kinds.get(x) == "spatial" and x != roles.vector and view.extent(x) > 1]
    packed = any(isinstance(i, (FloorDiv, FloorMod)) for x in access.loads(s.block(name)) for i in x.indices)
    return (
        not packed
        and rows in ([], [roles.row])
        and (not rows or (view.extents[rows[0]] or machine.vector_registers) <= machine.vector_registers // 2)
    )


def stream_product(s: Schedule, name: str, around: str, machine: Machine) -> None:
    """A product of few rows, as fast as its right operand comes from memory: a few of its rows at a time, each from end
    to end, the sums in the first cache."""
    roles, view = find_roles(s, name), access.LoopView.of(s, name)
    assert roles is not None
    lanes = machine.lanes(view.store.buffer.dtype)
    inner = view.loops[view.loops.index(around) + 1 :]
    row = roles.row if roles.row in inner else None
    reduce = next(x for x in inner if view.kinds.get(x) == "reduce")
    columns = max(1, STREAM_SUMS // (1 if row is None else view.extent(row)))
    first, steps = s.split(reduce, [None, STREAM_ROWS])
    panel, column, lane = s.split(roles.vector, [None, columns, lanes])
    s.reorder(first, panel, steps, *([] if row is None else [row]), column, lane)
    init = s.decompose_reduction(name, first)
    for b in (name, init):
        loops = s.loops(b)
        loops = loops[loops.index(around) + 1 :]
        for x in loops[2 if b == name else 1 : -1]:
            s.unroll(x)
        s.vectorize(loops[-1])


def tile_dots(s: Schedule, name: str, tail: str, around: str, machine: Machine) -> bool:
    """Register tiles of a product whose right operand is contiguous along the sum, read once, as it lies: lanes are
    partial sums, added up at the end.

    A tile is one column, so that memory is read from one end to the other: four columns side by side took a tenth
    longer, eight a third. The block `tail` takes the results. False if that operand is not so, or the sum is shorter
    than a vector.
    """
    view = access.LoopView.of(s, name)
    lanes = machine.lanes(view.store.buffer.dtype)
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    inner = view.loops[view.loops.index(around) + 1 :]
    spatial = [x for x in inner if x not in reduce and view.extent(x) > 1]
    column = next((x for x in reversed(spatial) if view.stride(view.store, x) == 1), None)
    loads = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
    if (
        len(reduce) != 1
        or column is None
        or view.extent(reduce[0]) < lanes
        or any(view.stride(x, reduce[0]) != 1 for x in loads)
    ):
        return False
    right = [x for x in loads if view.stride(x, column) != 0]
    if len(right) != 1:
        return False
    row = next((x for x in reversed(spatial) if x != column and view.stride(right[0], x) == 0), None)
    rows = 1 if row is None else view.extent(row)
    height = -(-rows // -(-rows // (machine.vector_registers // 2)))
    _, lane = s.split(reduce[0], [None, lanes])
    part = s.rfactor(name, lane, True)
    buffers = [access.target(s.block(b)).buffer.name for b in (part, name)]
    s.set_scope(part, "register")
    outer, kept = [*(x for x in spatial if x not in (row, column)), column], []
    if row is not None:
        row, inside = s.split(row, [None, height])
        outer.append(row)
        kept.append(inside)
    loops = s.loops(part)
    steps = [x for x in loops[loops.index(around) + 1 :] if x not in (*outer, *kept, lane)]
    s.reorder(*outer, *steps, *kept, lane)
    s.reverse_compute_at(name, outer[-1])
    s.reverse_compute_at(tail, outer[-1])
    init = s.decompose_reduction(part, steps[0])
    for buffer in buffers:
        s.compact_buffer(buffer, align=lanes)
    for b in (part, init):
        loops = s.loops(b)
        for x in loops[loops.index(outer[-1]) + 1 : -1]:
            if x not in steps or (int_const(s.loop(x).extent) or UNROLLED_STEPS + 1) * height <= UNROLLED_STEPS:
                s.unroll(x)
        s.vectorize(loops[-1])
    # One result at a time: its sums stay in registers.
    fold_halves(s, name, lanes, lanes)
    for b in s.blocks()[s.blocks().index(part) + 1 : s.blocks().index(tail) + 1]:
        loops = s.loops(b)
        for x in loops[loops.index(outer[-1]) + 1 :]:
            if s.loop(x).kind == "serial":
                s.unroll(x)
    return True


def position(s: Schedule, name: str, loop: str) -> int:
    """Which iterator of a block a loop drives."""
    return next(k for k, b in enumerate(s.block(name).bindings) if loop in free_vars(b))


def finish_tail(s: Schedule, tail: str, at: str, lanes: int) -> None:
    """The epilogue on the tile: its contiguous loop in vectors, the rest unrolled."""
    loops = s.loops(tail)
    inner = loops[loops.index(at) + 1 :]
    view = access.LoopView.of(s, tail)
    tiles = [x for x in view.loads if x.buffer.scope == "register"]
    lane_loops = [
        x for x in inner if view.stride(view.store, x) == 1 and all(view.stride(t, x) in (0, 1) for t in tiles)
    ]
    for x in inner:
        n = int_const(s.loop(x).extent)
        if lane_loops and x == lane_loops[-1]:
            if n is not None and n > lanes and n % lanes == 0:
                outer, x = s.split(x, [None, lanes])
                s.unroll(outer)
            if n is not None and n > 1:
                s.vectorize(x)
        elif n is not None and n <= 32:
            s.unroll(x)


def choose_height(
    rows: int, whole: bool, columns: Iterable[int], vectors: int, machine: Machine, dtype: DType
) -> tuple[float, Tile]:
    """Cycles of one reduction step over all of a tile of queries, and the register tile that needs least.

    Args:
        rows: queries of the tile; a register tile's rows divide them unless they are `whole`, all queries that there
            are.
    """
    best: tuple[float, int, Tile] | None = None
    for c in columns:
        for r in range(1, min(rows, machine.vector_registers) + 1):
            tile = Tile(r, c)
            if not fits(tile, machine) or (rows % r and not whole):
                continue
            cycles = rows // r * (step_cycles(tile, machine, dtype) + machine.rates.loop_step_cycles)
            if rows % r:
                cycles += step_cycles(Tile(rows % r, c), machine, dtype) + machine.rates.loop_step_cycles
            key = (-(-vectors // c) * cycles, -r * c, tile)
            best = key if best is None or key[:2] < best[:2] else best
    assert best is not None
    return best[0], best[2]


def choose_rows(s: Schedule, parts: Parts, row: str, machine: Machine) -> int:
    """Queries of a tile: the fewer the more often keys and values are streamed, the more the sooner scores leave the
    second cache; all of them where that is few, as tiles that are not whole cost as much as whole ones."""
    store = access.target(s.block(parts.exps)).buffer
    dtype, keys = store.dtype, int_const(store.shape[-1]) or UNKNOWN_KEYS
    n = int_const(s.loop(row).extent)
    room = machine.caches[1] * 3 // 4
    best: tuple[float, int] | None = None
    for rows in range(1, min(n or MOST_ROWS, WHOLE_ROWS) + 1):
        if rows > MOST_ROWS and rows != n:
            continue
        size = 2 * rows * keys * dtype.bytes
        if size > room and rows > LEAST_ROWS:
            continue
        cycles, _ = choose_height(rows, rows == n, [PANEL_VECTORS], PANEL_VECTORS, machine, dtype)
        tiles = float(-(-n // rows)) if n is not None else 1 / rows
        key = (tiles * (cycles + machine.rates.new_vector_cycles), -rows)
        best = key if best is None or key < best else best
    assert best is not None
    return int(s.choose("query_rows", list(range(1, WHOLE_ROWS + 1)), -best[1]))
