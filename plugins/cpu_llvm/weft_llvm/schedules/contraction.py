"""Matrix products and convolutions: register tiles over two output loops, with the reduction directly around the tile.

All of them have the same plan. The vector loop is the contiguous loop of the output along which an operand is
contiguous, too. The column loop gives more vectors of the same operand row. The row loop is one along which the other
operand moves and the vector operand does not. What follows the contraction in its group is the epilogue of the tile.

Choices: `tile_rows`, `tile_columns` (vectors; of few rows by a transposed operand, columns), `row_parts`, of a tile of
one row `unrolled` (steps of the sum), and `tasks_per_core`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from weft.dtypes import DType, float32
from weft.errors import ScheduleError
from weft.expr.nodes import FloorDiv, FloorMod, Var, free_vars, walk
from weft.loop.nodes import Block, Load, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.intrinsics import Dot
from weft_llvm.schedules.elementwise import TASKS, TASKS_PER_CORE, schedule_elementwise, worth_forking
from weft_llvm.schedules.prefetch import prefetch_panels, prefetch_rows, prefetch_tiles
from weft_llvm.schedules.tiles import DOT_COLUMNS, Tile, Window, choose_dot_tile, choose_tile, rows_inside

MOST_PARTS = 8
"""Parts that rows are cut into for the sake of their last tiles, at most."""
LEAST_PANELS = 4
"""Panels per core from which on rows are cut into parts: cores share out panels then, and each part's last tile is
known when compiled."""
MOST_COLUMNS = 8
"""Vectors side by side in a tile, at most."""
PANEL_VECTORS = 2
"""Vectors in a panel of a packed operand, as weft_llvm.plugin offers it."""
FEW_TILES = 4
"""Tiles along a row that are unrolled, each with its own borders."""
MOST_TAPS = 7
"""Taps along one axis that are unrolled for the sake of borders."""
FAR, FEW_ROWS = 0.25, 7
"""The part of the last cache beyond which an operand is taken to come from memory; rows up to which one from there is
used as it lies."""
SHORT_SUM, PAGE = 32, 4096
"""Steps of a sum up to which writing its results counts; bytes between rows from which on each of them is a stream of
its own."""
REORDER_GAIN = 0.7
"""Traffic of the other order, of this one's, below which loops are reordered."""
UNROLLED_STEPS = 64
"""Most multiply-adds in the innermost body."""
UNROLLED_ROW, ENGINE_STEPS = (1, 2, 4, 8), 4
"""Options of `unrolled`; its default as WebAssembly, whose engines compute the addresses of every iteration anew: a
step of one row has too few multiply-adds to hide that."""


@dataclass(frozen=True)
class Roles:
    """Loops of a contraction by name: `vector` gives the lanes, `column` more vectors of the same row, `row` the rows
    (None if there is none)."""

    vector: str
    column: str | None
    row: str | None


def split_panels(s: Schedule, name: str, pad: bool = False) -> None:
    """Splits the loops along which an operand is stored in panels or goes by groups, so that inside and outside of one
    are loops of their own.

    `pad`: the last panel is computed whole, zeros and all; its result must be in a buffer of its own.
    """
    block = s.block(name)
    factors: dict[str, int] = {}
    for x in access.loads(block):
        for part in (p for index in x.indices for p in walk(index)):
            if (
                isinstance(part, (FloorDiv, FloorMod))
                and isinstance(part.a, Var)
                and (c := int_const(part.b)) is not None
            ):
                factors[part.a.name] = c
    for i, binding in zip(block.iters, block.bindings):
        if i.var.name not in factors or not isinstance(binding, Var):
            continue
        if pad and i.kind == "spatial" and int_const(i.extent) is not None:
            with suppress(ScheduleError):  # another operand may end with the loop
                s.pad_loop(name, binding.name, factors[i.var.name])
        if int_const(s.loop(binding.name).extent) != factors[i.var.name]:
            s.split(binding.name, [None, factors[i.var.name]])


def inline_moves(s: Schedule, name: str) -> None:
    """What only moves an operand is done as it is read."""
    for producer in s.producers(name):
        block = s.block(producer)
        if (
            len(list(access.stores(block))) == 1
            and isinstance(access.target(block).value, Load)
            and s.consumers(producer) == [name]
        ):
            with suppress(ScheduleError):
                s.compute_inline(producer)


def find_roles(s: Schedule, name: str, step: int = 1) -> Roles | None:
    """Which spatial loops of a contraction become lanes, columns and rows of the register tile; None if no loop gives
    lanes.

    `step`: elements of the vector operand from one lane to the next.
    """
    view = access.LoopView.of(s, name)
    store = view.store
    operands = [x for x in view.loads if x.buffer.name != store.buffer.name]
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    vector = None
    for x in reversed(spatial):
        n = view.extent(x)
        if (
            view.stride(store, x) == 1
            and n > 1
            and any(view.stride(o, x) == step for o in operands)
            and all(view.stride(o, x) in (0, step) for o in operands)
        ):
            vector = x
            break
    if vector is None:
        return None
    wide = [o for o in operands if view.stride(o, vector) == step]
    narrow = [o for o in operands if view.stride(o, vector) == 0]
    others = [x for x in spatial if x != vector and view.extent(x) > 1]
    rows = [
        x for x in others if any(view.stride(o, x) != 0 for o in narrow) and all(view.stride(o, x) == 0 for o in wide)
    ]
    if not rows and not narrow:
        # Depthwise: every operand moves along the lanes; a tile still reuses the weights along a spatial loop.
        rows = [x for x in others if any(view.stride(o, x) == 0 for o in wide)]
    columns = [
        x
        for x in others
        if narrow and any(view.stride(o, x) != 0 for o in wide) and all(view.stride(o, x) == 0 for o in narrow)
    ]
    return Roles(vector, columns[-1] if columns else None, rows[-1] if rows else None)


def anchor_of(program: Program) -> Block | None:
    """The contraction of a group: its one sum of products of two operands."""
    found = [b for b in access.blocks_of(program) if access.is_contraction(b)]
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
        trial = Schedule(program, machine)
        inline_moves(trial, block.name)
        split_panels(trial, block.name)
        if find_roles(trial, block.name) is None and find_packing(trial, block.name, machine) is None:
            return Decline("no_vector_loop", "no output loop is contiguous in the output and an operand")
        return Offer(of_blocks(program, machine, tiled=[block.name]))

    def apply(self, s: Schedule) -> None:
        block = anchor_of(s.program)
        assert block is not None and s.machine is not None
        schedule_contraction(s, block.name, s.machine)


def schedule_contraction(s: Schedule, name: str, machine: Machine) -> None:
    """Schedules the contraction `name` with what precedes it (each on its own) and what follows it (on the tile)."""
    inline_moves(s, name)
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
    packing = find_packing(s, name, machine)
    if packing is not None and packing.transposed and dots_pay(s, name, packing, machine):
        schedule_dots(s, name, tail, machine)
    else:
        schedule_tile(s, name, tail, machine, None if packing is None else pack_operand(s, name, packing))


def dots_pay(s: Schedule, name: str, packing: Packing, machine: Machine) -> bool:
    """Whether an operand that is contiguous along the reduction is read as it lies, results being added up across
    lanes, rather than copied into panels."""
    view = access.LoopView.of(s, name)
    dtype, columns = view.store.buffer.dtype, view.extent(packing.loop)
    dots, _ = choose_dot_tile(packing.rows, columns, packing.depth, machine, dtype)
    dots += packing.rows * columns * machine.rates.lane_sum_cycles * machine.lanes(dtype)
    vectors = -(-columns // machine.lanes(dtype))
    steps, _ = choose_tile(packing.rows, [min(PANEL_VECTORS, vectors)], vectors, machine, dtype, depth=packing.depth)
    return dots < packing.depth * (steps + columns * machine.rates.transpose_cycles)


def schedule_dots(s: Schedule, name: str, tail: str, machine: Machine) -> None:
    """Few rows by an operand that is contiguous along the reduction, which is read once, as it lies: the lanes are
    partial sums, added up at the end."""
    view = access.LoopView.of(s, name)
    dtype = view.store.buffer.dtype
    lanes = machine.lanes(dtype)
    (reduce,) = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    column = next(x for x in reversed(spatial) if view.extent(x) > 1 and view.stride(view.store, x) == 1)
    (operand,) = [x for x in view.loads if x.buffer.name != view.store.buffer.name and view.stride(x, column) != 0]
    row = next((x for x in reversed(spatial) if view.extent(x) > 1 and view.stride(operand, x) == 0), None)
    heights = 1 if row is None else view.extents[row]
    depth = view.extent(reduce)
    _, best = choose_dot_tile(heights or access.UNKNOWN_EXTENT, view.extent(column), depth, machine, dtype)
    columns = [c for c in DOT_COLUMNS if c <= view.extent(column)]
    tile = _chosen(s, columns, best)
    _, lane = s.split(reduce, [None, lanes])
    part = s.rfactor(name, lane, True)
    buffers = [access.target(s.block(b)).buffer.name for b in (part, name)]
    s.set_scope(part, "register")
    column_outer, column_inner = s.split(column, [None, tile.columns])
    outer, inner = [*(x for x in spatial if x not in (row, column)), column_outer], [column_inner]
    if row is not None:
        row_outer, row_inner = s.split(row, [None, tile.rows])
        outer.append(row_outer)
        inner.insert(0 if tile.columns <= tile.rows else 1, row_inner)
    steps = [x for x in s.loops(part) if x not in (*outer, *inner, lane)]
    s.reorder(*outer, *steps, *inner, lane)
    s.reverse_compute_at(name, outer[-1])
    s.reverse_compute_at(tail, outer[-1])
    init = s.decompose_reduction(part, steps[0])
    for buffer in buffers:
        s.compact_buffer(buffer, align=lanes)
    for b in (part, init):
        around = s.loops(b)
        for x in around[around.index(outer[-1]) + 1 : -1]:
            if x not in steps:
                s.unroll(x)
        s.vectorize(around[-1])
    for b in (name, tail):
        around = s.loops(b)
        for x in around[around.index(outer[-1]) + 1 :]:
            s.unroll(x)
    _parallelise(s, outer, part, machine)


@dataclass(frozen=True)
class Packing:
    """An operand that is copied into panels before it is used: its dimensions in the order of the copy, the last one
    cut into panels of `width`."""

    buffer: str
    order: tuple[int, ...]
    loop: str
    width: int
    rows: int
    depth: int
    transposed: bool


def find_packing(s: Schedule, name: str, machine: Machine) -> Packing | None:
    """Whether and how the operand that gives the lanes should be copied into panels; None if it is used as it lies.

    The copy pays where several row tiles read it again (rows of a wide matrix are far apart: a page and a cache set for
    each step of the reduction), where long vectors come from memory (a copy has more lines on their way than a tile),
    and always where the operand is contiguous along the reduction, not along the output's rows.
    """
    view = access.LoopView.of(s, name)
    operands = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial" and view.extent(x) > 1]
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    vector = next((x for x in reversed(spatial) if view.stride(view.store, x) == 1), None)
    if vector is None or len(operands) != 2 or len(reduce) != 1 or view.conditions:
        return None
    wide = [o for o in operands if view.stride(o, vector) != 0]
    if (
        len(wide) != 1
        or len({o.buffer.name for o in operands}) != 2
        or not all(isinstance(i, Var) for i in wide[0].indices)
    ):
        return None
    (operand,) = wide
    (narrow,) = [o for o in operands if o is not operand]
    names = [i.name for i in operand.indices if isinstance(i, Var)]
    if len(set(names)) != len(names) or vector not in names or reduce[0] not in names:
        return None
    rows = 1
    for x in spatial:
        if x not in names and view.stride(narrow, x) != 0:
            rows *= view.extent(x)
    width = PANEL_VECTORS * machine.lanes(operand.buffer.dtype)
    transposed = view.stride(operand, vector) != 1
    n = view.extents[vector]
    # Vectors as long as a cache line, of rows that begin anywhere, want two lines each: from memory that is too slow.
    far = machine.vector_bits // 8 >= machine.cache_line and access.buffer_bytes(operand) > FAR * machine.caches[2]
    few = FEW_ROWS if far else machine.vector_registers // 2
    if not transposed and (rows <= few or (n is not None and n <= 2 * width)):
        return None
    if transposed and view.stride(operand, reduce[0]) != 1:
        return None
    inner = [names.index(reduce[0]), names.index(vector)]
    return Packing(
        operand.buffer.name,
        (*(d for d in range(len(names)) if d not in inner), *inner),
        vector,
        width,
        rows,
        view.extent(reduce[0]),
        transposed,
    )


def pack_operand(s: Schedule, name: str, packing: Packing) -> str:
    """Makes the copy, whole for the time being, and cuts the loop along the panels; the name of the copying block."""
    copy = s.cache_read(name, packing.buffer, "local", list(packing.order))
    extent = int_const(s.loop(packing.loop).extent)
    if extent is not None and extent > packing.width:
        s.pad_loop(copy, s.loops(copy)[-1], packing.width)
        s.pad_loop(name, packing.loop, packing.width)
    if extent is None or extent > packing.width:
        s.split(packing.loop, [None, packing.width])
    return copy


def schedule_tile(
    s: Schedule,
    name: str,
    tail: str,
    machine: Machine,
    packed: str | None = None,
    part: bool = False,
    instruction: Dot | None = None,
) -> list[str]:
    """Tiles the contraction `name`, whose result is in registers, with the block `tail` that takes the tile out of
    them; the loops around the tile, as they are before any of them are joined.

    `packed`: the block that copies an operand into panels; each column of tiles copies its own.
    `part`: of something larger, which orders the outer loops and decides which of them run in parallel.
    `instruction`: takes the place of each vector of results and of its loop of the reduction.
    """
    # Of dot products as many start in a cycle as multiply-adds of floats.
    dtype = access.target(s.block(name)).buffer.dtype if instruction is None else float32
    lanes = machine.lanes(dtype)
    split_panels(s, name, pad=True)
    step = 1 if instruction is None else instruction.depth
    products: list[str] = []
    steps: list[str] = []
    if instruction is not None:
        order = _reduction_order(access.LoopView.of(s, name))
        if len(order) > 1 and int_const(s.loop(order[-1]).extent) == step:
            products = order[-1:]
        else:
            *steps, product = s.split(order[-1], [None, step])
            products = [product]
    roles = find_roles(s, name, step)
    assert roles is not None
    if instruction is not None and (int_const(s.loop(roles.vector).extent) or 0) % lanes:
        s.pad_loop(name, roles.vector, lanes)  # a panel that is not full
    view = access.LoopView.of(s, name)
    reduce = [
        x for x in _reduction_order(view) if x not in products
    ] or steps  # of a sum of one step the loop of one iteration
    if (
        instruction is not None
        and not instruction.adds
        and len(reduce) > 1
        and view.extent(reduce[-1]) < view.extent(reduce[-2])
    ):
        reduce[-2:] = reversed(reduce[-2:])  # steps are not unrolled (see below): the innermost loop should be long
    outer = [x for x in view.loops if view.kinds.get(x) == "spatial" and x not in (roles.row, roles.vector)]
    row_loop, vector_loop, column_loop = roles.row, roles.vector, None
    tile_order: list[str] = []

    apart = None if roles.row is None else _row_bytes(view, roles.row, roles.vector)
    window, spare = _window(view, roles, reduce), int(instruction is not None and not instruction.adds)
    depth = 1
    for x in reduce:
        depth *= view.extent(x)
    row_extent: int | None = 1
    if row_loop is not None:
        row_extent = int_const(s.loop(row_loop).extent)
    # Rows or columns of a group, behind which the next group's go on in the same dimension of the result.
    shared = {x for b in s.block(name).bindings if len(free_vars(b)) > 1 for x in free_vars(b)}
    grouped, grouped_columns = row_loop in shared, roles.column in shared
    width = int_const(s.loop(vector_loop).extent)
    panel = width is not None and (width <= lanes or width == PANEL_VECTORS * lanes)
    if roles.row is None and roles.column is not None and width is not None and width <= MOST_COLUMNS // 2 * lanes:
        # Rows of a picture whose weights are those of the rows beside them: with one alone each multiply-add would wait
        # for the last one.
        panel = True
    if panel:
        assert width is not None
        inside = -(-width // lanes)
        column_extent = view.extent(roles.column) if roles.column is not None else 1
        # A last tile of fewer columns: its condition leaves the hot loops, where those of borders do not stand in the
        # way; then it has to be rare.
        rare = 16 if view.conditions else 4
        candidates = [
            c * inside
            for c in range(1, MOST_COLUMNS // inside + 1)
            if c <= column_extent and (column_extent % c == 0 or (column_extent > rare * c and not grouped_columns))
        ]
        borders = bool(view.conditions) or len(reduce) > 2
        tile = _choose(
            s,
            row_extent,
            candidates,
            column_extent * inside,
            machine,
            dtype,
            depth,
            spare,
            window,
            borders,
            most_parts=1 if borders or grouped or column_extent < LEAST_PANELS * machine.cores else MOST_PARTS,
            apart=apart,
        )
        panels = max(1, tile.columns // inside)
        if roles.column is not None and panels > 1:
            outer_column, column_loop = s.split(roles.column, [None, panels])
            outer[outer.index(roles.column)] = outer_column
    else:
        vectors = -(-(width or access.UNKNOWN_EXTENT) // lanes)
        tile = _choose(
            s,
            row_extent,
            [c for c in (1, 2, 3, 4, 6, 8) if c <= vectors],
            vectors,
            machine,
            dtype,
            depth,
            spare,
            window,
            bool(view.conditions) or len(reduce) > 2,
            apart=apart,
        )
        vector_outer, vector_loop = s.split(vector_loop, [None, tile.columns * lanes])
        outer.append(vector_outer)
    if row_loop is not None:
        if tile.parts > 1:
            part_of_rows, row_loop = s.split(row_loop, [tile.parts, None])
            outer.append(part_of_rows)
        row_outer, row_inner = s.split(row_loop, [None, tile.rows])
        outer.append(row_outer)
        tile_order.append(row_inner)
    if column_loop is not None:
        # Columns inside rows: a broadcast is used up before the next one needs a register.
        tile_order.append(column_loop)
    inner_width = int_const(s.loop(vector_loop).extent)
    if inner_width is not None and inner_width > lanes:
        more_columns, vector_loop = s.split(vector_loop, [None, lanes])
        tile_order.append(more_columns)
    if row_loop is not None and rows_inside(tile):
        tile_order.append(tile_order.pop(0))
    tile_order.append(vector_loop)
    if not outer:
        # A single tile: an outer loop of one iteration gives the epilogue a place.
        whole, tile_order[0] = s.split(tile_order[0], [1, None])
        vector_loop = tile_order[-1]
        outer = [whole]
    outer, together = (
        (outer, outer)
        if part or packed is not None
        else _block_for_cache(s, name, outer, vector_loop, machine, step, grouped)
    )
    s.reorder(*outer, *reduce, *tile_order, *products)
    if packed is not None:
        together = _place_panels(s, packed, name, outer, together, lanes)
    init = s.decompose_reduction(name, reduce[0])
    s.reverse_compute_at(tail, outer[-1])
    s.compact_buffer(access.target(s.block(name)).buffer.name, align=int_const(s.loop(vector_loop).extent) or lanes)
    lane_loops: list[str] = []
    for b in (name, init):
        around = s.loops(b)
        inner = [x for x in around[around.index(outer[-1]) + 1 :] if x not in (*reduce, *products)]
        for loop in inner[:-1]:
            s.unroll(loop)
        if instruction is None:
            s.vectorize(inner[-1])
        else:
            lane_loops.append(inner[-1])
    _finish_tail(s, tail, outer[-1], lanes)
    if instruction is None and not any(reduce[0] in c for c in access.LoopView.of(s, name).conditions):
        # Weights tap by tap: which taps are read is settled below, by loops that share nothing out evenly.
        reduce = prefetch_panels(s, name, reduce, machine)
        prefetch_rows(s, name, reduce, machine)
        prefetch_tiles(s, name, reduce, machine)
    settled = instruction is None and _settle_conditions(s, name, reduce, tile_order, outer)
    # Additions of integers side by side are reordered by the compiler, which keeps every product in a register then.
    if not settled and (instruction is None or instruction.adds):
        _unroll_taps(s, reduce, tile.rows * tile.columns)
        if tile.rows == 1 and instruction is None:
            _unroll_row(s, reduce[-1], machine)
    if not part:
        _parallelise(s, together, name, machine)
    for loop in lane_loops:  # at last: what stands there then says nothing of loops
        assert instruction is not None
        s.tensorize(loop, instruction.name)
    return outer


def _block_for_cache(
    s: Schedule, name: str, outer: list[str], vector: str, machine: Machine, step: int, grouped: bool
) -> tuple[list[str], list[str]]:
    """The outer loops in an order that streams less through the second cache, and those of them that may run in
    parallel.

    Columns stand outside rows, so every column tile reads all rows again. Where those do not fit in half of the cache,
    rows are taken in groups that do, groups outside columns, if reading the weights once per group is less than what is
    saved. `step`: as `find_roles` has it. `grouped`: rows of a convolution in groups, of which no other group needs
    any.
    """
    view = access.LoopView.of(s, name)
    operands = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
    wide = [x for x in operands if view.stride(x, vector) == step]
    narrow = [x for x in operands if view.stride(x, vector) == 0]
    rows = [
        x for x in outer if any(view.stride(o, x) != 0 for o in narrow) and all(view.stride(o, x) == 0 for o in wide)
    ]
    columns = [x for x in outer if x not in rows]
    if not rows or not narrow or outer[-1] not in rows:
        return outer, outer
    column = outer[-2] if len(outer) > 1 else outer[-1]
    row_step = view.stride(view.store, outer[-1])
    if column in columns and all(view.stride(o, column) == 0 for o in narrow) and wide and row_step is not None:
        reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
        steps, needed = 1, wide[0].buffer.dtype.bytes
        for x in reduce:
            steps *= view.extent(x)
        for x in view.loops:
            if x in (column, *reduce) or (x not in outer and view.stride(wide[0], x) != 0):
                needed *= view.extent(x)
        if steps <= SHORT_SUM and row_step * wide[0].buffer.dtype.bytes >= PAGE and needed <= machine.caches[1] // 2:
            order = [*outer[:-2], outer[-1], column]
            return order, order
    if grouped or free_vars(s.block(name).predicate).keys() & set(columns):
        # The last column tile is not whole. Its condition leaves the hot loops only where the columns' loop runs in
        # parallel by itself.
        return outer, outer
    row_bytes = sum(access.buffer_bytes(x) for x in narrow)
    column_bytes = sum(access.buffer_bytes(x) for x in wide)
    repeats = 1
    for x in columns:
        repeats *= view.extent(x)
    trips = view.extents[rows[0]]
    limit = machine.caches[1] // 2
    if trips is None or trips < 2 or row_bytes <= limit:
        return outer, outer
    group = max(1, limit * trips // row_bytes)
    groups = min(trips, max(-(-trips // group), -(-TASKS_PER_CORE * machine.cores // repeats)))
    if any(rows[0] in c for c in view.conditions):
        # Borders: the loop is not cut (see _settle_conditions), so that a last group of another length would be a
        # condition on every step.
        groups = next(n for n in range(groups, trips + 1) if trips % n == 0)
    group = -(-trips // groups)  # of equal size
    if group >= trips or row_bytes + groups * column_bytes > REORDER_GAIN * (repeats * row_bytes + column_bytes):
        return outer, outer
    first, inside = s.split(rows[0], [None, group])
    return [first, *columns, inside, *rows[1:]], [first, *columns]


def _place_panels(s: Schedule, packed: str, name: str, outer: list[str], together: list[str], lanes: int) -> list[str]:
    """Copies a panel where its column of tiles begins; which of the loops that may run in parallel stand outside of
    it."""
    view = access.LoopView.of(s, name)
    buffer = s.buffers(packed)[0]
    (operand,) = [x for x in view.loads if x.buffer.name == buffer]
    last = max(k for k, x in enumerate(outer) if view.stride(operand, x) != 0 or x == outer[0])
    s.compute_at(packed, outer[last])
    s.compact_buffer(buffer, align=lanes)
    inside = s.loops(packed)[last + 1 :]
    n = int_const(s.loop(inside[-1]).extent)
    if n is not None and n > lanes and n % lanes == 0:
        across, inside[-1] = s.split(inside[-1], [None, lanes])
        s.unroll(across)
    s.vectorize(inside[-1])
    return [x for x in together if x in outer[: last + 1]]


def _finish_tail(s: Schedule, tail: str, at: str, lanes: int) -> None:
    """The epilogue on the tile: lanes vectorised, the rest unrolled."""
    loops = s.loops(tail)
    inner = loops[loops.index(at) + 1 :]
    view = access.LoopView.of(s, tail)
    tiles = [x for x in view.loads if x.buffer.scope == "register"]
    lane_loops = [
        x for x in inner if view.stride(view.store, x) == 1 and all(view.stride(t, x) in (0, 1) for t in tiles)
    ]
    contiguous = lane_loops[-1] if lane_loops else None
    for loop in inner:
        n = int_const(s.loop(loop).extent)
        if loop == contiguous:
            if n is not None and n > lanes and n % lanes == 0:
                outer, loop = s.split(loop, [None, lanes])
                s.unroll(outer)
            if n is not None and n > 1:
                s.vectorize(loop)
        elif n is not None and (n <= 32 or any(view.stride(t, loop) != 0 for t in tiles)):
            s.unroll(loop)  # registers have no addresses: a loop over them is written out, however long


def _window(view: access.LoopView, roles: Roles, reduce: list[str]) -> Window | None:
    """How rows of the tile and innermost taps of an unrolled body move over the same elements; None if they do not."""
    if (
        roles.row is None
        or not reduce
        or view.extents[reduce[-1]] is None
        or not 1 < view.extent(reduce[-1]) <= MOST_TAPS
    ):
        return None
    operands = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
    for x in operands:
        step, tap = view.stride(x, roles.row), view.stride(x, reduce[-1])
        if step and tap and step % tap == 0 and step // tap < view.extent(reduce[-1]):
            return Window(step // tap, view.extent(reduce[-1]), all(view.stride(o, roles.vector) for o in operands))
    return None


def _row_bytes(view: access.LoopView, row: str, vector: str) -> int | None:
    """Bytes from what one row of the tile broadcasts to what the next row does; None if that is not known or not the
    same everywhere."""
    steps = {
        abs(view.stride(x, row) or 0) * x.buffer.dtype.bytes for x in view.loads if view.stride(x, vector) == 0
    } - {0}
    return steps.pop() if len(steps) == 1 else None


def _choose(
    s: Schedule,
    rows: int | None,
    candidates: list[int],
    vectors: int,
    machine: Machine,
    dtype: DType,
    depth: int | None,
    spare: int = 0,
    window: Window | None = None,
    taps: bool = False,
    most_parts: int = 1,
    apart: int | None = None,
) -> Tile:
    _, tile = choose_tile(
        rows,
        candidates,
        vectors,
        machine,
        dtype,
        depth=depth,
        spare=spare,
        window=window,
        taps=taps,
        most_parts=most_parts,
        apart=apart,
    )
    return _chosen(s, candidates, tile, [n for n in range(1, most_parts + 1) if rows is not None and rows % n == 0])


def _chosen(s: Schedule, columns: list[int], tile: Tile, parts: list[int] | None = None) -> Tile:
    """The tile as a record or a tuner wants it, `tile` if nobody does."""
    assert s.machine is not None
    return Tile(
        int(s.choose("tile_rows", list(range(1, s.machine.vector_registers)), tile.rows)),
        int(s.choose("tile_columns", columns, tile.columns)),
        int(s.choose("row_parts", parts, tile.parts)) if parts and len(parts) > 1 else 1,
    )


def _reduction_order(view: access.LoopView) -> list[str]:
    """The reduction's loops in the order in which the last operand (the weights) lies in memory: it is streamed once
    per tile."""
    wide = [x for x in view.loads if x.buffer.name != view.store.buffer.name][-1]
    return sorted(
        (x for x in view.loops if view.kinds.get(x) == "reduce"), key=lambda x: -abs(view.stride(wide, x) or 0)
    )


def _settle_conditions(s: Schedule, name: str, reduce: list[str], tile: list[str], outer: list[str]) -> bool:
    """Makes conditions on taps (the borders of a convolution) settled when compiled, not run; whether there are any.

    Taps whose condition depends on the tile's own loops are unrolled, and so are the tiles along a row if there are
    few; along the other axes the loop over taps gets bounds.
    """
    view = access.LoopView.of(s, name)
    last = outer[-1]
    done = False
    for loop in reduce:
        n = int_const(s.loop(loop).extent)
        conditions = [c for c in view.conditions if loop in c]
        if n is not None and n <= MOST_TAPS and any(set(tile) & c for c in conditions):
            s.unroll(loop)
            done = True
            tiles = int_const(s.loop(last).extent)
            if tiles is not None and tiles <= FEW_TILES and any(last in c for c in conditions):
                s.unroll(last)
        for other in outer[:-1]:
            if any(other in c for c in conditions):
                s.annotate(other, "partition", 0)
    return done


def _unroll_taps(s: Schedule, reduce: list[str], accumulators: int) -> None:
    """Inner reduction loops with few iterations are unrolled while the body stays small; a loop that is long enough
    costs nothing."""
    budget = UNROLLED_STEPS // max(1, accumulators)
    for loop in reversed(reduce):
        n = int_const(s.loop(loop).extent)
        if n is None or n > budget:
            break
        if n > 1 and loop != reduce[0]:
            s.unroll(loop)
        budget //= max(1, n)


def _unroll_row(s: Schedule, loop: str, machine: Machine) -> None:
    """Some steps of a long sum are unrolled (choice `unrolled`), those of a tile of one row."""
    steps = int_const(s.loop(loop).extent)
    if s.loop(loop).kind != "serial" or steps is None or steps < UNROLLED_STEPS:
        return
    options = [n for n in UNROLLED_ROW if steps % n == 0]
    default = max(n for n in options if n <= ENGINE_STEPS) if "wasm32" in machine.features else 1
    if (n := s.choose("unrolled", options, default)) > 1:
        s.unroll(s.split(loop, [None, n])[1])


def _parallelise(s: Schedule, outer: list[str], name: str, machine: Machine) -> None:
    """As few of the outer loops as give every core several tasks (choice `tasks_per_core`), so that what the inner ones
    share stays in one core's cache."""
    worth = worth_forking(access.block_work(s.block(name), steps=False), machine, per_cycle=2)
    each = s.choose("tasks_per_core", TASKS, TASKS_PER_CORE if worth else 0)
    if each == 0:
        return
    while outer and int_const(s.loop(outer[0]).extent) == 1:
        outer = outer[1:]
    taken: list[str] = []
    tasks, wanted = 1, each * machine.cores
    for loop in outer:
        if tasks >= wanted or s.loop(loop).kind != "serial":
            break
        n = int_const(s.loop(loop).extent)
        uneven = loop in free_vars(s.block(name).predicate)
        if taken and uneven and tasks >= 2 * machine.cores and (n is None or n < 2 * -(-wanted // tasks)):
            # Of fused loops no iteration is known to be the last of one, so that every tile would ask whether it is
            # whole.
            break
        if uneven and any({loop, *taken} & free_vars(b).keys() > {loop} for b in s.block(name).bindings):
            # A last tile that is not whole and the first one of the next part of the same rows: fused, they could
            # not be told apart.
            break
        if taken and n is not None and n * tasks >= 2 * wanted:
            # Part of it: a fused loop's number says nothing about where the last tile is, which the loop inside still
            # does.
            uncut = dict(s.loop(loop).annotations).get("partition") == 0
            part = n // -(-wanted // tasks)
            if uncut or any({loop, *taken} & free_vars(b).keys() > {loop} for b in s.block(name).bindings):
                # A last part of another length would be a condition on every step of a loop that is not cut; and where
                # the loop counts on inside another one that is shared out (channels of a group), it would reach into
                # what comes next there.
                part = next(p for p in range(part, 0, -1) if n % p == 0)
            loop, inside = s.split(loop, [None, part])
            if uncut:
                s.annotate(inside, "partition", 0)
            n = int_const(s.loop(loop).extent)
        taken.append(loop)
        tasks *= n or access.UNKNOWN_EXTENT
    if taken:
        s.parallel(taken[0] if len(taken) == 1 else str(s.fuse(*taken)))
