"""Winograd convolutions: both transforms and the product in one kernel, in parts of the image that stay in cache.

A piece is some rows of tiles. Its transformed inputs V are made first, one row of tiles after another; then, for one
panel of output channels after another, the (m + 2)² products with the transformed weights U, whose results M stay in
cache, too, and from M the piece of the result with what follows it in the group. Where pieces are too few for the
machine's cores V is made for the whole picture, in parallel, before all products.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from weft.dtypes import float32
from weft.expr.nodes import free_vars
from weft.graph.nodes import Node
from weft.loop.nodes import Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.contraction import PANEL_VECTORS
from weft_llvm.schedules.prefetch import prefetch_panels
from weft_llvm.schedules.reduction import schedule_apart
from weft_llvm.schedules.tiles import Tile, choose_tile, fits, step_cycles
from weft_ops.contraction import Conv
from weft_ops.scheduling.winograd import SPARING, STAGES, stages_of
from weft_ops.winograd import POINTS, TAPS, WinogradConv

ROOM = 0.75
"""The part of the second cache that a piece's transformed inputs, and the weights and results of a group, may take
together."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Winograd convolution: channels in and out, tiles down and across, outputs of a tile along an axis.

    `spared`: whether the products at infinity are omitted for the last row and the last column of tiles. `open`: tiles
    down and across are those of a picture of typical size."""

    channels: int
    outputs: int
    down: int
    across: int
    m: int
    block: int
    spared: tuple[bool, bool] = (False, False)
    open: bool = False

    @property
    def products(self) -> int:
        return (self.m + 2) ** 2

    def parts(self, rows: int) -> list[tuple[int, int]]:
        """How many products there are on how many tiles, for `rows` rows of tiles."""
        a, (bottom, right) = self.m + 2, self.spared
        found = [((a - right) * (a - bottom), rows * self.across)]
        if right:
            found.append((a, rows * (self.across - 1)))
        if bottom:
            found.append((a - right, (rows - 1) * self.across))
        return found


def shape_of(program: Program) -> Shape | None:
    """The sizes, if all but the batch are above one (a dimension of one has no loop), channels are numbers and nothing
    comes before the convolution."""
    blocks = stages_of(program)
    if not blocks:
        return None
    rows, product, columns, result = (
        blocks[k] for k in ("winograd_rows", "winograd_product", "winograd_columns", "winograd")
    )
    if {b.name for b in access.blocks_of(program)[: len(blocks) - 1]} != {
        b.name for k, b in blocks.items() if k != "winograd"
    }:
        return None
    batch = len(result.iters) - 4
    ranks = [len(blocks[k].iters) - batch for k in (*STAGES, "winograd")]
    height, width = result.iters[batch + 1].extent, result.iters[batch + 2].extent
    open_sizes = int_const(height) is None or int_const(width) is None
    expected = ([5, 5, 7, 6, 4],) if open_sizes else ([5, 4, 6, 5, 4], [5, 4, 7, 5, 4])
    if batch not in (0, 1) or ranks not in expected:
        return None
    if any(len(blocks[k].iters) - batch != 6 for k in SPARING if k in blocks):
        return None

    inputs = {b.name for b in program.inputs}
    weights = next((x for x in access.loads(product) if x.buffer.name in inputs), None)
    if weights is None or not any(product.iters[batch].var.name in free_vars(i) for i in weights.indices):
        return None  # one block of channels: what stands there is the batch

    channel_blocks, block = (int_const(rows.iters[batch + k].extent) for k in (0, 4))
    outputs, m = (int_const(columns.iters[batch + k].extent) for k in (0, 3 if open_sizes else 2))
    if channel_blocks is None or block is None or outputs is None or m is None:
        return None
    found = Shape(
        channel_blocks * block,
        outputs * block,
        -(-access.typical(height, access.TYPICAL_LAYER) // m),
        -(-access.typical(width, access.TYPICAL_LAYER) // m),
        m,
        block,
        (SPARING[0] in blocks, SPARING[1] in blocks),
        open_sizes,
    )
    return None if min(channel_blocks, outputs, *(t for _, t in found.parts(found.down))) == 1 else found


class WinogradRule(Rule):
    """See the module."""

    name = "winograd"
    priority = 20

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        blocks = stages_of(program)
        if not blocks:
            return Decline("no_winograd", "the group has no single Winograd convolution")
        return Offer(of_blocks(program, machine, tiled=[b.name for b in access.blocks_of(program)]))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        shape = shape_of(s.program)
        if shape is None or shape.block != s.machine.lanes(
            access.target(stages_of(s.program)["winograd"]).buffer.dtype
        ):
            # No target chooses the algorithm for these. Put into one another the transforms would be long formulas, so
            # each stage stays alone.
            schedule_apart(s, s.blocks(), s.machine)
        else:
            schedule_winograd(s, shape, s.machine)


def schedule_winograd(s: Schedule, shape: Shape, machine: Machine) -> None:
    """Schedules the five stages of a Winograd convolution and what follows them in the group."""
    stages = stages_of(s.program)
    rows, v, _, columns, result = (stages[k].name for k in (*STAGES, "winograd"))
    products = [stages[k].name for k in (STAGES[2], *SPARING) if k in stages]
    order = s.blocks()
    after = order[order.index(result) + 1 :]
    for b in after[:-1]:
        s.compute_inline(b)
    tail = after[-1] if after else result
    panel = panel_blocks(shape)
    *batch, channel, height, width, lane = s.loops(tail)
    images = int_const(s.loop(batch[0]).extent) if batch else 1
    options = {str(p): p for p in able_pieces(shape, images or 1, machine)}
    pieces = options[s.choose("pieces", list(options), str(cheapest(options.values())))]

    # The result's loops: pieces of the picture, panels of channels; inside, tile by tile.
    if shape.open or pieces.rows < shape.down:
        piece, row, y = s.split(height, [None, pieces.rows, shape.m])
        outer = [*batch, piece]
    else:
        row, y = s.split(height, [None, shape.m])
        outer = list(batch)
    tile, x = s.split(width, [None, shape.m])
    panels, vector = s.split(channel, [None, panel * pieces.group])
    s.reorder(*outer, panels, vector, row, tile, y, x, lane)
    if tail != result:
        # A row of the tile in registers, so that what follows may read it more than once.
        s.compute_at(result, y)
        s.set_scope(result, "register")
        s.compact_buffer(access.target(s.block(result)).buffer.name)
        _finish(s, result, y)
    s.compute_at(columns, tile)
    copies = [s.cache_write(name, "register") for name in products]
    for name, copy in zip(products, copies):
        s.compute_at(copy, panels)
        s.compute_at(name, panels)
    if pieces.together:
        s.compute_at(v, outer[-1])
        # Before the product is tiled: its tiles reach beyond the piece, and what is written there is held back by
        # conditions only.
        s.compact_buffer(access.target(s.block(v)).buffer.name)
    for k, (name, copy) in enumerate(zip(products, copies)):
        with s.choices_of(f"product{k}"):
            _product(s, name, copy, panels, panel, pieces.group, machine, shape)
    _input(s, rows, v, outer[-1] if pieces.together else None, shape, pieces.rows)
    s.compact_buffer(access.target(s.block(columns)).buffer.name)
    *_, r, q, _ = s.loops(columns)
    s.reorder(q, r)
    _finish(s, columns, q)
    _finish(s, tail, y)
    if not pieces.together and int_const(s.loop(panels).extent) != 1:
        outer.append(panels)
    if not outer:
        s.annotate(row, "partition", 0)
        return
    together = outer[0] if len(outer) == 1 else s.fuse(*outer)
    # All pieces are alike but for the border, which `_input` keeps to itself, and for the last rows of results.
    for loop in (together,) if shape.open else (together, row):
        s.annotate(loop, "partition", 0)
    s.parallel(together)


def _finish(s: Schedule, block: str, at: str) -> None:
    """Everything inside loop `at` unrolled, but the innermost loop vectorized."""
    *around, last = inside(s, block, at)
    for loop in around:
        s.unroll(loop)
    s.vectorize(last)


def _product(
    s: Schedule,
    product: str,
    copy: str,
    panels: str,
    panel: int,
    group: int,
    machine: Machine,
    shape: Shape,
) -> None:
    """The products of one piece and one group of panels, result by result of the transform: tiles of rows × panel in
    registers."""
    dtype = access.target(s.block(product)).buffer.dtype
    *column, t, lane, cb, ci = inside(s, product, panels)
    row = [column.pop()] if shape.open and int_const(s.loop(column[-1]).extent) != 1 else []
    channels = column[: 1 if panel * group > 1 else 0]
    which = column[len(channels) :]
    if group > 1:
        # The panels of a group meet the same transformed inputs one after another.
        chosen, *channels = s.split(channels[0], [group, panel]) if panel > 1 else channels
        which.append(chosen)
    depth = (int_const(s.loop(cb).extent) or 1) * (int_const(s.loop(ci).extent) or 1)
    if shape.open:
        height = open_height(shape.across, panel, machine)
    else:
        height = choose_tile(int_const(s.loop(t).extent), [panel], panel, machine, dtype, depth=depth)[1].rows
    rows = s.choose("tile_rows", range(1, machine.vector_registers), height)
    t_outer, t_inner = s.split(t, [None, rows])
    s.reorder(*which, *row, t_outer, cb, ci, t_inner, *channels, lane)
    s.reverse_compute_at(copy, t_outer)
    init = s.decompose_reduction(product, cb)
    s.compact_buffer(access.target(s.block(product)).buffer.name)
    s.compact_buffer(access.target(s.block(copy)).buffer.name)
    if len(which) > 1:
        s.fuse(*which)
    prefetch_panels(s, product, [cb, ci], machine)
    for name, at in ((init, t_outer), (product, ci), (copy, t_outer)):
        _finish(s, name, at)


def _input(s: Schedule, rows: str, v: str, at: str | None, shape: Shape, count: int) -> None:
    """The transformed inputs under loop `at` (None: of the whole picture), one row of tiles of one channel block after
    another."""
    pq, *batch, channel, t, lane = inside(s, v, at)
    if not shape.open:
        row, tile = s.split(t, [None, shape.across])
    elif count > 1:
        *batch, channel, row, tile = *batch, channel, t
    else:
        row, tile = s.split(t, [1, None])
    p, q = s.split(pq, [shape.m + 2, shape.m + 2])
    # Row by row of the transform: few streams are written at once, each of them contiguous.
    s.reorder(*batch, channel, row, p, tile, q, lane)
    s.compute_at(rows, row)
    s.compact_buffer(access.target(s.block(rows)).buffer.name)
    p_of_rows, column, _ = inside(s, rows, row)
    s.reorder(column, p_of_rows)
    _finish(s, rows, column)
    _finish(s, v, tile)
    # Only the picture's first and last rows of tiles reach over its border.
    s.annotate(column, "unswitch", 1)
    together = row if at is not None else s.fuse(*batch, channel, row)
    s.annotate(together, "partition", 0)
    if at is None:
        s.parallel(together)


def inside(s: Schedule, block: str, loop: str | None) -> list[str]:
    """The loops around a block that lie in `loop`, all if it is None."""
    loops = s.loops(block)
    return loops if loop is None else loops[loops.index(loop) + 1 :]


class Pieces(NamedTuple):
    """`rows` of tiles in a piece; `together`: V is made piece by piece, each on one core; panels in a `group`; `cycles`
    of the products of one picture."""

    rows: int
    together: bool
    group: int = 1
    cycles: float = 0.0

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.group} panels" + (", together" if self.together else "")


def panel_blocks(shape: Shape) -> int:
    """Channel blocks in a panel of output channels, as the weights are packed."""
    return PANEL_VECTORS if (shape.outputs // shape.block) % PANEL_VECTORS == 0 else 1


def row_tiles_cycles(rows: int, panel: int, depth: int, machine: Machine) -> float:
    """Cycles of one step of a sum of `depth` for `rows` rows by a panel, in register tiles."""
    height = choose_tile(rows, [panel], panel, machine, float32, depth=depth)[1].rows
    return tiles_cycles(rows, height, panel, machine)


def tiles_cycles(rows: int, height: int, panel: int, machine: Machine) -> float:
    """Cycles of one step for `rows` rows by a panel in register tiles of `height` rows, the last of which has as many
    as are left."""

    def one(tile_rows: int) -> float:
        return step_cycles(Tile(tile_rows, panel), machine, float32) + machine.rates.loop_step_cycles

    return rows // height * one(height) + (one(rows % height) if rows % height else 0.0)


def open_height(across: int, panel: int, machine: Machine) -> int:
    """Rows of register tiles by a panel that take least time for numbers of tiles up to twice `across`, each as likely
    as the others."""
    able = [r for r in range(1, machine.vector_registers) if fits(Tile(r, panel), machine)]
    one = [0.0, *(tiles_cycles(r, r, panel, machine) for r in range(1, max(able) + 1))]
    return min(able, key=lambda r: sum(n // r * one[r] + one[n % r] for n in range(1, 2 * across + 1)))


def choose_pieces(shape: Shape, images: int, machine: Machine) -> Pieces:
    """The pieces that take least time."""
    return cheapest(able_pieces(shape, images, machine))


def cheapest(pieces: Iterable[Pieces]) -> Pieces:
    """Those of the least time."""
    return min(pieces, key=lambda p: (p.cycles, p.rows, -p.group))


def able_pieces(shape: Shape, images: int, machine: Machine) -> list[Pieces]:
    """All pieces there are, with what they take: what they leave of cores idle, and what they read from beyond the
    second cache again and again."""
    panel = panel_blocks(shape)
    panels = shape.outputs // (shape.block * panel)
    weights = 4 * shape.products * shape.channels * shape.outputs
    far = machine.rates.per_cycle(machine.rates.third_cache.exchange(machine.cores))
    height = open_height(shape.across, panel, machine) if shape.open else 0
    found: list[Pieces] = []
    for rows in range(1, shape.down + 1):
        if (
            (shape.down % rows and not shape.open)
            or (any(shape.spared) and rows < shape.down)
            or any(tiles == 1 for _, tiles in shape.parts(rows))
        ):
            continue  # a smaller last piece would have conditions in its innermost loops; a single tile has no loop
        count = shape.down / rows if shape.open else shape.down // rows
        v = 4 * shape.products * shape.channels * shape.across * rows
        if shape.open:
            work = shape.products * rows * tiles_cycles(shape.across, height, panel, machine)
        else:
            work = sum(n * row_tiles_cycles(tiles, panel, shape.channels, machine) for n, tiles in shape.parts(rows))
        cycles = count * work * shape.channels * panels
        for group in range(1, panels + 1):
            if panels % group:
                continue
            groups = panels // group
            products = 4 * shape.products * shape.across * rows * shape.block * panel * group
            for together in (True, False):
                if (together and count * images == 1) or (shape.open and not together):
                    continue
                tasks = images * count * (1 if together else groups)
                idle = -(-tasks // machine.cores) * machine.cores / tasks
                if machine.cores > 1:
                    idle += machine.rates.uneven * machine.cores / tasks
                # Whatever does not stay near is read anew: the weights by every piece, a piece's V by every group.
                # Transforms wait for what they write to and read from afar; the products do not.
                near = v + products + weights // groups <= ROOM * machine.caches[1]
                inputs_near = near and (together or machine.cores == 1)
                moved = (
                    (0 if near and groups == 1 else weights)
                    + (0 if inputs_near else groups * v)
                    + (0 if near else groups * products)
                )
                waited = (0 if inputs_near else v) + (0 if near else groups * products)
                total = overlapped(cycles * idle, count * moved / far, machine.rates.cache_unhidden)
                total += count * waited / far
                found.append(Pieces(rows, together, group, total))
    return found


def overlapped(work: float, reading: float, unhidden: float) -> float:
    """Cycles of work while data is read ahead for it: the longer of both, and what reading disturbs."""
    return max(work, reading) + unhidden * min(work, reading)


def choose_winograd(node: Node, machine: Machine) -> tuple[int, bool] | None:
    """Tile and `skip` of the WinogradConv that takes least time, None if the definition does: arithmetic, transforms,
    and weights from memory; of weights that a run gives, their transform too."""
    x, w = node.inputs
    assert x is not None and w is not None and isinstance(node.op, Conv)
    images, channels, *size = x.shape
    outputs, *result = node.output.shape[1:]
    assert isinstance(channels, int) and isinstance(outputs, int)
    open_sizes = not all(isinstance(n, int) for n in result)
    height, width = (access.typical(n) for n in result)
    count = images if isinstance(images, int) else 1
    block = machine.lanes(float32)
    # Weights are cold where others are used in between.
    from_memory = machine.rates.per_cycle(machine.rates.memory.read(machine.cores))
    panels = Shape(channels, outputs, 1, 1, 0, block)
    taps = 1.0
    for n, (low, _), inputs in zip((height, width), node.op.spatial(2)[1], map(access.typical, size)):
        inside = sum(max(0, min(n, inputs + low - k) - max(0, low - k)) for k in range(TAPS))
        taps *= inside / n
    steps = height * row_tiles_cycles(width, panel_blocks(panels), TAPS**2 * channels, machine)
    direct = count * steps * taps * channels * (outputs // (block * panel_blocks(panels)))
    direct = overlapped(direct, 4 * TAPS**2 * channels * outputs / from_memory, machine.rates.memory_unhidden)
    best, choice = direct, None
    for m, skip in product(POINTS, (False, True)):
        beyond = WinogradConv(m, skip=skip).spared(height, width)
        if skip and (open_sizes or not any(beyond)):
            continue
        shape = Shape(channels, outputs, -(-height // m), -(-width // m), m, block, beyond, open_sizes)
        if (
            min(height, width, channels // block, outputs // block, *(tiles for _, tiles in shape.parts(shape.down)))
            == 1
        ) or (open_sizes and 1 in (shape.down, shape.across)):
            continue  # the rule takes no dimension of one
        tiles = shape.down * shape.across
        reach = m + TAPS - 1
        # Transforms are stores: of rows, of columns; the product's results and what the rows and columns of tiles take
        # of them.
        moved = channels * (m * reach + reach**2) + outputs * (reach**2 + reach * m + m**2)
        cycles = choose_pieces(shape, count, machine).cycles
        cycles += machine.rates.transform_store_cycles * tiles * moved / block
        cold = 4 * shape.products * channels * outputs / from_memory
        total = overlapped(count * cycles, cold, machine.rates.memory_unhidden)
        if w.constant is None:
            pairs = channels * outputs
            total += pairs * reach**2 * (machine.rates.transform_store_cycles + TAPS**2 / 2) / block
        if total < best:
            best, choice = total, (m, skip)
    return choice
