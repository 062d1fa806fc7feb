"""Winograd convolutions on grids, in three launches: the inputs transformed, a product for each of the (m + 2)² places,
the results transformed back.

A thread of a transform has one tile of one channel, its neighbours the next tiles of the row; what is between the
transform of rows and that of columns stays in its registers. The products are `contraction`'s, of one batch: rows are
channels out, columns the tiles of all images. What follows the convolution element by element is computed on the tile
of the last transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isqrt, prod

from weft.dtypes import float32
from weft.errors import ScheduleError
from weft.expr.nodes import Select, Var, free_vars, walk
from weft.graph.nodes import Node
from weft.loop.nodes import Block, Load, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.patterns import inline_producers
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.contraction import parts_of, schedule_others, schedule_product, vectorizes
from weft_gpu.schedules.fragments import InstructionSet, instruction_sets, warp_cycles, warp_tiles
from weft_gpu.schedules.groups import absorb, own
from weft_gpu.schedules.threads import choose_threads, most_threads, threads_for
from weft_gpu.schedules.tiles import LEAST_STEPS, Problem, choose_tile, cycles, memory_bytes
from weft_ops.scheduling.winograd import RESULT, SPARING, STAGES, stages_of
from weft_ops.winograd import POINTS, TAPS

TRANSFORM_THREADS = 128
"""Threads of a group that transform tiles: each has many registers."""
MOST_TRANSFORMED = 1 << 30
"""Bytes of transformed inputs and products at most: unlike the definition, which needs none, all of them are in memory
at once."""


class WinogradRule(Rule):
    """See the module."""

    name = "winograd"
    priority = 12

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if machine.grid is None:
            return Decline("no_grid", "the machine runs no grids")
        blocks = stages_of(program)
        if not blocks:
            return Decline("no_winograd", "the group has no single Winograd convolution")
        if any(k in blocks for k in SPARING):
            return Decline(
                "spared", "products are left out at the picture's border, which would be launches of their own"
            )
        if int_const(blocks["winograd_columns"].iters[-2].extent) != tile_of(blocks["winograd_input"]):
            return Decline(
                "blocks",
                "channels stand together in blocks, so that neighbouring threads' tiles are not neighbours in memory",
            )
        return Offer(of_blocks(program, machine, tiled=[b.name for b in access.blocks_of(program)]))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        machine = s.machine
        rows, inputs, product, columns, result = (stages_of(s.program)[k].name for k in (*STAGES, RESULT))
        order = s.blocks()
        inline_producers(s, order[: order.index(rows)], keep_shared=True)
        in_one_launch(s, inputs, lambda: transform_inputs(s, rows, inputs, machine))
        in_one_launch(s, result, lambda: transform_outputs(s, columns, result, machine))
        schedule_product(s, product, machine)
        schedule_others(s, machine)


def tile_of(inputs: Block) -> int:
    """Outputs of a tile along an axis, m, by the (m + 2)² places of transformed inputs."""
    return isqrt(int_const(inputs.iters[0].extent) or 0) - TAPS + 1


def in_one_launch(s: Schedule, name: str, schedule: Callable[[], None]) -> None:
    """Schedules both halves of a transform together; where that cannot be, the block says why, and each half stays
    alone."""
    with s.attempt() as tried:
        schedule()
    if not tried:
        s.annotate(name, "tiles_declined", tried.reason)


def transform_inputs(s: Schedule, rows: str, inputs: str, machine: Machine) -> None:
    """Schedules V = Bᵀ d B: of each tile and channel its (m + 2)² pixels, the transform of rows in registers, and the
    (m + 2)² results."""
    places, *others = s.loops(inputs)
    m = tile_of(s.block(inputs))
    side = m + TAPS - 1
    across = (access.extent(s.loop(s.loops(rows)[-1])) - TAPS + 1) // m
    if across > 1:
        *others, tiles = others
        others += s.split(tiles, [None, across])
    if not others:
        unit, places = s.split(places, [1, None])
        others = [unit]
    of_tile = s.split(places, [side, side])
    s.reorder(*others, *of_tile)
    s.specialize(inputs)
    s.compute_at(rows, others[-1])
    keep(s, rows)
    # Columns outermost: from the pixels of one, which are read once, all its results.
    s.reorder(*reversed(inside(s, rows, others[-1])))
    for name in (rows, inputs):
        s.specialize(name)
        own(s, inside(s, name, others[-1]), None)
    to_threads(s, inputs, others, machine)


def transform_outputs(s: Schedule, columns: str, result: str, machine: Machine) -> None:
    """Schedules Aᵀ M A: of each tile and channel its (m + 2)² products, the transform of columns in registers, and the
    m² results with what follows them."""
    place = access.target(s.block(result)).indices
    along = axes_of(s, result, columns)
    m = access.extent(s.loop(s.loops(columns)[-2]))
    copy = s.cache_write(result, "register")
    absorb(s, copy)
    outer, of_tile = [], []
    for index, loop in zip(place, s.loops(copy)):
        if isinstance(index, Var) and index.name in along:
            tiles, pixel = s.split(loop, [None, m])
            of_tile.append(pixel)
            outer.append(tiles)
        else:
            outer.append(loop)
    if not outer:
        raise ScheduleError("winograd: no tiles", why="the result is a single element")
    s.reorder(*outer, *of_tile)
    s.specialize(copy)
    for name in (result, columns):
        s.compute_at(name, outer[-1])
        s.specialize(name)
    for name in (result, columns):
        keep(s, name)
    s.reorder(*reversed(inside(s, columns, outer[-1])))
    for name in (columns, result, copy):
        s.specialize(name)
        loops = inside(s, name, outer[-1])
        own(s, loops, loops[-1] if name == copy and loops and vectorizes(s, name, loops[-1]) else None)
    to_threads(s, result, outer, machine)


def axes_of(s: Schedule, result: str, columns: str) -> set[str]:
    """The iterators of a Winograd convolution's result that go over the picture's rows and columns, which its formula
    takes apart by tiles."""
    store = access.target(s.block(result))
    half = access.target(s.block(columns)).buffer.name
    row = next(x.indices[-2] for x in walk(store.value) if isinstance(x, Load) and x.buffer.name == half)
    return {v for e in (row, *(x.cond for x in walk(store.value) if isinstance(x, Select))) for v in free_vars(e)}


def keep(s: Schedule, name: str) -> None:
    """What a block computes stays in registers."""
    buffer = access.target(s.block(name)).buffer
    if buffer.scope != "register":
        s.set_scope(buffer.name, "register")
    s.compact_buffer(buffer.name)


def inside(s: Schedule, name: str, loop: str) -> list[str]:
    """The loops around a block that lie in `loop`."""
    loops = s.loops(name)
    return loops[loops.index(loop) + 1 :]


def to_threads(s: Schedule, name: str, loops: list[str], machine: Machine) -> None:
    """Loops of a block directly inside one another, the outermost, become groups and threads (choice
    `BLOCK.threads`)."""
    for x in loops:
        s.parallel(x)
    flat = s.fuse(*loops) if len(loops) > 1 else loops[0]
    usual = threads_for(machine, int_const(s.loop(flat).extent), TRANSFORM_THREADS)
    threads = choose_threads(s, f"{name}.threads", usual, most_threads(machine))
    group, thread = s.split(flat, [None, threads])
    s.bind(group, "blockIdx.x")
    s.bind(thread, "threadIdx.x")


def choose_winograd(node: Node, machine: Machine, intrinsics: Iterable[Intrinsic] = ()) -> tuple[int, bool] | None:
    """Tile and `skip` of the WinogradConv that takes least time on a grid, None if the definition does.

    Both are products by the tiles that schedules choose for them, fragments where the target's intrinsics multiply
    float32; Winograd's is of (m + 2)² batches, whose weights, 16/9 (m = 2) or 36/9 (m = 4) as large, count as what
    groups fetch. Beside it the transforms move bytes, in two more launches.
    """
    x, w = node.inputs
    assert x is not None and w is not None
    if w.constant is None:
        return None  # the transform of weights that a run gives is not part of the cost
    if not all(isinstance(d, int) for d in node.output.shape[2:]):
        return None  # the rule takes tiles of a number of rows and columns
    images, channels, *picture = (d if isinstance(d, int) else access.UNKNOWN_EXTENT for d in x.shape)
    outputs, height, width = (d for d in node.output.shape[1:] if isinstance(d, int))
    if min(height, width) == 1 or 0 in (images, channels, outputs, *picture, height, width):
        return None
    able = [
        k
        for k in instruction_sets(intrinsics)
        if k.operands == (float32, float32) and k.result == float32 and set(k.product.requires) <= machine.features
    ]
    direct = Problem(1, outputs, images * height * width, TAPS**2 * channels, TAPS**2, float32, (4, 4), (True, False))
    best = product_cycles(direct, channels, machine, able)
    choice = None
    for m in POINTS:
        if m > 2 and any(o.bits is not None for k in able for o in k.product.operands):
            # What larger tiles lose of float32 is little; of factors that are rounded they lose several times what the
            # definition does.
            continue
        batch, tiles = (m + TAPS - 1) ** 2, images * -(-height // m) * -(-width // m)
        if 4 * batch * tiles * (channels + outputs) > MOST_TRANSFORMED:
            continue
        total = product_cycles(Problem(batch, outputs, tiles, channels, 1, float32, (4, 4)), channels, machine, able)
        moved = 4 * (images * channels * prod(picture) + batch * tiles * (channels + 2 * outputs))
        total += moved / (memory_bytes(machine) * machine.cores) + 2 * launch_cycles(machine)
        if total < best:
            best, choice = total, (m, False)
    return choice


def launch_cycles(machine: Machine) -> float:
    """What a launch costs beyond its groups' work."""
    return machine.rates.cycles(machine.rates.grid.launch_seconds)


def product_cycles(p: Problem, outermost: int, machine: Machine, able: Iterable[InstructionSet]) -> float:
    """Cycles of a product as `schedule_product` schedules it, the `outermost` loop of its sum cut into parts where
    there are few tiles."""
    elements = p.batch * p.rows * p.columns
    parts = parts_of(elements, p.terms, outermost, machine)
    if parts > 1:
        p = replace(p, batch=p.batch * parts, terms=p.terms // parts)
    sizes = p.batch, p.rows, p.columns, p.terms
    fitting = [k for k in able if 2 * p.rows > k.rows and 2 * p.columns > k.columns]
    tiles = [
        (k, t)
        for k in fitting
        for t in warp_tiles(k, machine)
        if not t.ahead or p.terms >= LEAST_STEPS * t.steps * k.depth
    ]
    total = (
        min(warp_cycles(sizes, k, t, machine, p.turned) for k, t in tiles)
        if tiles
        else cycles(p, choose_tile(p, machine), machine)
    )
    if parts == 1:
        return total
    return total + 8 * parts * elements / (memory_bytes(machine) * machine.cores) + launch_cycles(machine)
