"""Products by instructions of a whole warp: tensor cores, matrices of a SIMD group.

A group's tile is copied through shared memory as in `contraction`, in parts of one instruction's size. Each warp
(threadIdx.y) has a part of the result in fragments, which its lanes (threadIdx.x) hold together: loads of fragments,
products and stores are instructions of the warp. Results go through shared memory, where all threads compute the
epilogue. The target declares the instructions: intrinsics whose operands are in the scopes "shared" and "fragment…"
(docs/architecture.md, "Grids")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Literal

from weft.dtypes import DType
from weft.errors import ScheduleError
from weft.expr.nodes import Mul, Var, walk
from weft.loop.nodes import Load
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.schedule import Schedule
from weft.tensor.language import Read, Tensor
from weft_gpu.schedules.bulk_copies import bring_box
from weft_gpu.schedules.groups import ASYNC_TURNS, UNROLLED_TURNS, absorb, bring_ahead, flatten, kept, share
from weft_gpu.schedules.products import Product, contiguous_loop, factors, narrow
from weft_gpu.schedules.threads import grid_of, shared_of_core
from weft_gpu.schedules.tiles import AHEAD_THREADS, LEAST_STEPS

FRAGMENT = "fragment"


Role = tuple[Literal["row", "column", "term"], int]
"""An axis of an instruction: what it moves, and its number among those that do."""


@dataclass(frozen=True)
class InstructionSet:
    """What a product in fragments takes: the product itself, copies of its factors from shared memory, if it wants them
    in fragments, and of the result to it.

    `extents`: of the instruction's axes, the first of rows, of columns and of terms outermost; `orders`: by which of
    them the left and the right factor are indexed; `scopes`: where the factors and the result lie.
    """

    product: Intrinsic
    loads: tuple[Intrinsic | None, Intrinsic | None]
    store: Intrinsic
    extents: Mapping[Role, int]
    orders: tuple[tuple[Role, ...], tuple[Role, ...]]
    operands: tuple[DType, DType]
    result: DType
    scopes: tuple[str, str, str]

    def roles(self, kind: str) -> list[Role]:
        return [r for r in self.extents if r[0] == kind]

    def size(self, kind: str) -> int:
        return prod(self.extents[r] for r in self.roles(kind))

    @property
    def rows(self) -> int:
        return self.size("row")

    @property
    def columns(self) -> int:
        return self.size("column")

    @property
    def depth(self) -> int:
        return self.size("term")

    def lanes(self, machine: Machine) -> int:
        """Threads that execute an instruction together."""
        return self.product.warps * grid_of(machine).warp


def instruction_sets(intrinsics: Iterable[Intrinsic]) -> list[InstructionSet]:
    """The instruction sets that a target's intrinsics make, each product with copies of its own sizes and dtypes."""
    every = list(intrinsics)
    return [mma for i in every if (mma := _instruction_set(i, every)) is not None]


def _instruction_set(i: Intrinsic, every: list[Intrinsic]) -> InstructionSet | None:
    if i.reduction is None or i.update is None or i.reset is None or i.lengths or len(i.operands) != 3:
        return None
    if any(len(o.scopes) != 1 for o in i.operands) or not _is_fragment(i.operands[2].scopes[0]):
        return None
    (value,) = i.reduction.values
    if not isinstance(value, Mul):
        return None
    reads = {x.tensor: x for x in walk(value) if isinstance(x, Read)}
    if set(reads) != set(i.tensors[:2]) or any(not isinstance(x, Var) for r in reads.values() for x in r.indices):
        return None
    left, right = ([x.name for x in reads[t].indices if isinstance(x, Var)] for t in i.tensors[:2])
    names: dict[str, Role] = {}
    extents: dict[Role, int] = {}
    for name, extent, kind in i.axes:
        moved: Literal["row", "column", "term"] = (
            "term" if kind == "reduce" else "row" if name.name in left else "column"
        )
        if (moved != "column") != (name.name in left) or (moved != "row") != (name.name in right):
            return None  # an axis that moves both factors, or none
        names[name.name] = moved, sum(r[0] == moved for r in extents)
        extents[names[name.name]] = extent
    if [r[0] for r in extents] != sorted((r[0] for r in extents), key=("row", "column", "term").index) or {
        r[0] for r in extents
    } != {"row", "column", "term"}:
        return None
    scopes = (i.operands[0].scopes[0], i.operands[1].scopes[0], i.operands[2].scopes[0])
    loads: list[Intrinsic | None] = []
    for scope, tensor in zip(scopes[:2], i.tensors[:2]):
        load = _copy(every, "shared", scope, tensor) if _is_fragment(scope) else None
        if load is None and scope != "shared":
            return None
        loads.append(load)
    store = _copy(every, scopes[2], "shared", i.meaning)
    if store is None or any(x is not None and x.warps != i.warps for x in (store, *loads)):
        return None
    dtypes = i.tensors[0].dtype, i.tensors[1].dtype
    orders = tuple(names[x] for x in left), tuple(names[x] for x in right)
    return InstructionSet(i, (loads[0], loads[1]), store, extents, orders, dtypes, i.meaning.dtype, scopes)


def _is_fragment(scope: str) -> bool:
    return scope.partition(".")[0] == FRAGMENT


def _copy(every: list[Intrinsic], source: str, to: str, tensor: Tensor) -> Intrinsic | None:
    """The intrinsic that copies a tensor of this shape and dtype from one memory to another as it is."""
    for i in every:
        if (
            i.reduction is None
            and len(i.operands) == 2
            and (i.operands[0].scopes, i.operands[1].scopes) == ((source,), (to,))
        ):
            body = i.source.bodies[0]
            same = isinstance(body, Read) and body.indices == i.source.axes
            if (
                same
                and tuple(i.meaning.shape) == tuple(tensor.shape)
                and i.tensors[0].dtype == i.tensors[1].dtype == tensor.dtype
            ):
                return i
    return None


@dataclass(frozen=True)
class WarpTile:
    """`warps` (rows, columns) of a group, or as many times those that an instruction takes together, the `fragments`
    (rows, columns) of a result that each holds, and the `steps` of an instruction staged at once; `ahead`: while those
    before are computed."""

    warps: tuple[int, int]
    fragments: tuple[int, int]
    steps: int
    ahead: bool = False

    def __str__(self) -> str:
        text = f"{self.warps[0]}x{self.warps[1]} of {self.fragments[0]}x{self.fragments[1]} by {self.steps}"
        return f"{text} ahead" if self.ahead else text


MOST_ACCUMULATORS = 128
"""Registers of a thread for results."""
SPARE_REGISTERS = 64
"""Registers of a thread that addresses, counters and what is on its way from memory take."""


def find_instruction_sets(s: Schedule, name: str, product: Product, machine: Machine) -> list[InstructionSet]:
    """The instruction sets for a product's dtypes; none if the target has none, or the product is smaller than half an
    instruction of each."""
    pair = factors(s.block(name))
    operands = narrow(pair[1 - product.right]).dtype, narrow(pair[product.right]).dtype
    view = access.LoopView.of(s, name)
    if not product.rows or not product.columns or grid_of(machine).warp < 2:
        return []
    rows, columns = (_size(view, loops) for loops in (product.rows, product.columns))
    fitting = [
        k
        for k in instruction_sets(s.intrinsics.values())
        if k.operands == operands and k.result == view.store.buffer.dtype
    ]
    return [
        k
        for k in fitting
        if set(k.product.requires) <= machine.features and 2 * rows > k.rows and 2 * columns > k.columns
    ]


def _size(view: access.LoopView, loops: Iterable[str]) -> int:
    total = 1
    for x in loops:
        total *= view.extent(x)
    return total


def warp_tiles(mma: InstructionSet, machine: Machine) -> list[WarpTile]:
    """The tiles for which there are threads, registers and shared memory."""
    grid = grid_of(machine)
    shared = machine.scopes["shared"].size if "shared" in machine.scopes else None
    found = []
    for wm, wn, fm, fn, steps, ahead in combinations(
        (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (False, True)
    ):
        tile = WarpTile((wm, wn), (fm, fn), steps, ahead)
        if wm * wn < 2:  # a loop over one warp would be no loop
            continue
        lanes = mma.lanes(machine)
        threads = wm * wn * lanes
        held = results_held(mma, tile, machine)
        if threads > min(grid.threads, 512) or lanes > grid.threads_per_axis[0] or wm * wn > grid.threads_per_axis[1]:
            continue
        if held > MOST_ACCUMULATORS or threads * (held + SPARE_REGISTERS) > grid.registers:
            continue
        if shared is None or room(mma, tile) <= shared:
            found.append(tile)
    return found


def results_held(mma: InstructionSet, tile: WarpTile, machine: Machine) -> int:
    """Registers of a thread for results."""
    return prod(tile.fragments) * mma.rows * mma.columns * max(1, mma.result.bytes // 4) // mma.lanes(machine)


def staged_bytes(mma: InstructionSet, tile: WarpTile) -> int:
    """Of both operands' tiles."""
    rows, columns = (w * f for w, f in zip(tile.warps, tile.fragments))
    return (
        tile.steps
        * mma.depth
        * (rows * mma.rows * mma.operands[0].bytes + columns * mma.columns * mma.operands[1].bytes)
    )


def room(mma: InstructionSet, tile: WarpTile) -> int:
    """Bytes of shared memory that a group takes."""
    return staged_bytes(mma, tile) * (2 if tile.ahead else 1) + result_bytes(mma, tile)


def result_bytes(mma: InstructionSet, tile: WarpTile) -> int:
    """Of what goes through shared memory at a time: the first of a warp's rows of fragments, or columns if it has one
    row."""
    at_once = prod(tile.warps) * prod(tile.fragments) // next((n for n in tile.fragments if n > 1), 1)
    return at_once * mma.rows * mma.columns * mma.result.bytes


def rate(mma: InstructionSet, machine: Machine) -> float:
    """Operations that a core starts in a cycle by the instruction, where the machine says so by its name; else a
    guess."""
    guess = machine.rates.grid.matrix_speedup * machine.flops(mma.operands[0])
    return max(1, machine.flops_per_cycle.get(mma.product.name, guess))


def warp_cycles(
    sizes: tuple[int, int, int, int],
    mma: InstructionSet,
    tile: WarpTile,
    machine: Machine,
    along: tuple[bool, bool] | None = None,
) -> float:
    """Of a product of sizes (batch, rows, columns, terms) on the machine; `along`: whether each factor is contiguous
    along the sum, where that is known."""
    batch, rows, columns, terms = sizes
    grid, costs, shared_bytes = grid_of(machine), machine.rates.grid, machine.rates.grid.shared_bytes_per_cycle
    # Groups side by side find each other's tiles in the second cache.
    from_cache = machine.rates.per_cycle(machine.rates.second_cache.read(machine.cores))
    across = tile.warps[1] * tile.fragments[1] * mma.columns
    down = tile.warps[0] * tile.fragments[0] * mma.rows
    groups = batch * -(-rows // down) * -(-columns // across)
    steps = -(-terms // (tile.steps * mma.depth))
    arithmetic = 2.0 * steps * tile.steps * mma.depth * down * across / max(1, rate(mma, machine))
    each, warps = tile.warps[0] * tile.warps[1], tile.warps[0] * tile.warps[1] * mma.product.warps
    a, b = tile.fragments[0] * mma.rows * mma.operands[0].bytes, tile.fragments[1] * mma.columns * mma.operands[1].bytes
    read = steps * tile.steps * mma.depth * each * (a + b)
    sides = down * mma.operands[0].bytes, across * mma.operands[1].bytes
    turned = (
        0.0 if along is None else sum(x for k, x in enumerate(sides) if along[k] != (mma.orders[k][-1][0] == "term"))
    )
    fetched = steps * staged_bytes(mma, tile)
    threads, registers = warps * grid.warp, results_held(mma, tile, machine) + SPARE_REGISTERS
    resident = min(
        grid.resident // threads,
        grid.registers // (threads * registers),
        (shared_of_core(machine) or 8 * room(mma, tile)) // room(mma, tile),
    )
    resident = max(1, resident)
    at_once = max(1, min(resident, -(-groups // machine.cores)))
    waiting = max(1.0, costs.busy_threads / grid.warp / (at_once * warps * (AHEAD_THREADS if tile.ahead else 1)))
    # A group that waits for what it computes with.
    alone = 0.0 if tile.ahead else max(arithmetic, read / shared_bytes) + fetched / from_cache
    bound = max(arithmetic, read / shared_bytes, fetched / from_cache, alone / at_once)
    bound += steps * tile.steps * mma.depth * turned * costs.bank_conflicts / shared_bytes
    step = costs.matrix_ahead_step_cycles if tile.ahead else costs.matrix_step_cycles
    group = bound * waiting**0.5 + (steps * step + costs.matrix_group_cycles) / at_once
    return float(group * -(-groups // machine.cores))


def choose_warps(s: Schedule, name: str, product: Product, machine: Machine) -> tuple[InstructionSet, WarpTile] | None:
    """The instruction set and the tile of the least time for a product, or a record's; None if the target has no
    instruction for it or no tile fits.

    Raises:
        ChoiceError: the record's is none of those that fit.
    """
    found, view = find_instruction_sets(s, name, product, machine), access.LoopView.of(s, name)
    sizes = (
        _size(view, product.batch),
        _size(view, product.rows),
        _size(view, product.columns),
        _size(view, product.sums),
    )
    along = along_sum(s, name, product)
    able: dict[str, tuple[InstructionSet, dict[str, WarpTile]]] = {}
    times: dict[str, tuple[float, str]] = {}
    for mma in found:
        tiles = {
            str(t): t for t in warp_tiles(mma, machine) if not t.ahead or sizes[3] >= LEAST_STEPS * t.steps * mma.depth
        }
        if tiles:
            able[mma.product.name] = mma, tiles
            times[mma.product.name] = min(
                (warp_cycles(sizes, mma, t, machine, along), text) for text, t in tiles.items()
            )
    if not able:
        return None
    best = min(able, key=lambda n: (times[n][0], n))
    mma, tiles = able[str(s.choose("fragments", list(able), best))]
    return mma, tiles[str(s.choose("warp_tile", list(tiles), times[mma.product.name][1]))]


def along_sum(s: Schedule, name: str, product: Product) -> tuple[bool, bool]:
    """Whether the left and the right factor are contiguous along the sum."""
    left, right = (
        contiguous_loop(s, name, factors(s.block(name))[k]) in product.sums for k in (1 - product.right, product.right)
    )
    return left, right


def schedule_fragments(
    s: Schedule, name: str, product: Product, machine: Machine, mma: InstructionSet, tile: WarpTile
) -> None:
    """Schedules a product in fragments.

    Raises:
        ScheduleError: a step may not act.
    """
    order, along = (1 - product.right, product.right), along_sum(s, name, product)
    s.reorder(*product.batch, *product.rows, *product.columns, *product.sums)
    batch, row, column = (flatten(s, group) for group in (product.batch, product.rows, product.columns))
    assert row is not None and column is not None
    rows = pieces(s, row, {"warp": tile.warps[0], "fragment": tile.fragments[0]}, mma, "row")
    columns = pieces(s, column, {"warp": tile.warps[1], "fragment": tile.fragments[1]}, mma, "column")
    terms = pieces(s, s.fuse(*product.sums), {"fragment": tile.steps}, mma, "term")
    element = {role: x for part in (rows, columns, terms) for role, x in part.items() if isinstance(role, tuple)}
    outer = [x for x in (batch, rows["grid"], columns["grid"]) if x]
    warps, mine = ([x[role] for x in (rows, columns) if role in x] for role in ("warp", "fragment"))
    steps = [terms["fragment"]] if "fragment" in terms else []
    inner, spatial = list(element.values()), [x for role, x in element.items() if role[0] != "term"]
    s.reorder(*outer, terms["grid"], *steps, *warps, *mine, *inner)

    copy = s.stage_result(name, terms["grid"], mma.scopes[2])
    absorb(s, copy)
    start = s.decompose_reduction(name, terms["grid"])
    for b in (start, name, copy):
        s.specialize(b)
    for b in (start, name):
        s.pad_tile(b)
    held = next(str(x) for x in access.loads(s.block(copy)) if x.buffer.scope == mma.scopes[2])
    results = dict(zip([*warps, *mine, *spatial], s.loops(copy)[len(outer) :]))
    turns = [results[x] for x in mine[:1]]  # one row of fragments at a time goes through shared memory
    s.reorder(*turns, *(results[x] for x in (*warps, *mine[1:])))
    _serial(s, turns)
    for x in turns:
        s.unroll(x)
    out = s.stage(copy, results[[*warps, *mine[1:], *spatial][0]], held, "shared")
    s.pad_tile(out)
    shared: list[tuple[str, list[str]]] = []
    for k, axis in enumerate((rows, columns)):
        formula = narrow(factors(s.block(name))[order[k]])
        if isinstance(formula, Load) and formula.buffer.scope == "shared":
            raise ScheduleError("contraction: both factors are the same, which fragments do not share")
        place = [element[role] for role in mma.orders[k]]
        s.reorder(*steps, *warps, *mine, *(x for x in inner if x not in place), *place)
        inside = kept(s, name, formula, [*steps, *warps, *mine, *place])
        made = s.stage(name, s.loops(name)[len(outer) + 1], str(formula), "shared")
        copied = dict(zip(inside, s.loops(made)[-len(inside) :]))
        shared.append((made, [copied[x] for x in _neighbours(mma, k, axis, steps, element, along[k]) if x in copied]))
    lanes = mma.lanes(machine)
    threads = tile.warps[0] * tile.warps[1], lanes
    for operand, (made, loops) in zip(("rows", "columns"), shared):
        with s.choices_of(operand):
            if bring_box(s, made, terms["grid"], machine, tile.ahead):
                continue
        lane = max(1, machine.vector_bits // 8 // access.target(s.block(made)).buffer.dtype.bytes)
        share(s, made, loops, threads, lane, ASYNC_TURNS if "cp.async" in machine.features else UNROLLED_TURNS)
        if tile.ahead:
            bring_ahead(s, made, terms["grid"], machine)
    s.reorder(*warps, *steps, *mine, *inner)
    for k in range(2):
        load = mma.loads[k]
        if load is not None:
            formula = narrow(factors(s.block(name))[order[k]])
            s.reorder(
                *(x for x in inner if x not in [element[role] for role in mma.orders[k]]),
                *(element[role] for role in mma.orders[k]),
            )
            made = s.stage(name, [*mine, *s.loops(name)[-len(inner) :]][0], str(formula), mma.scopes[k])
            instruct(s, made, s.loops(made)[len(outer) + 1 + len(warps) + len(steps) :], load, len(mma.orders[k]))
    s.reorder(*inner)
    instruct(s, name, [*mine, *inner], mma.product, len(inner))
    for b, instruction in ((start, mma.product), (out, mma.store)):
        loops = s.loops(b)[len(outer) + (len(turns) if b == out else 0) :]
        instruct(s, b, loops[len(warps) :], instruction, len(spatial))
        s.bind(s.fuse(*loops[: len(warps)]), "threadIdx.y")
    s.bind(s.fuse(*warps), "threadIdx.y")
    across = [x[role] for x in (rows, columns) for role in x if role != "grid" and x[role] not in mine[:1]]
    width = access.target(s.block(copy)).buffer.dtype.bytes
    share(s, copy, [results[x] for x in across], threads, max(1, machine.vector_bits // 8 // width))
    for x, kind in zip(reversed(outer), ("blockIdx.x", "blockIdx.y", "blockIdx.z")):
        s.bind(x, kind)


def pieces(s: Schedule, loop: str, sizes: Mapping[str, int], mma: InstructionSet, kind: str) -> dict[str | Role, str]:
    """A loop cut into pieces of these sizes, outermost first, and the axes of an instruction within them; pieces of one
    iteration are left out. "grid" is whatever is left."""
    wanted: dict[str | Role, int] = {role: n for role, n in sizes.items() if n > 1}
    wanted |= {role: mma.extents[role] for role in mma.roles(kind)}
    return dict(zip(("grid", *wanted), s.split(loop, [None, *wanted.values()])))


def _neighbours(
    mma: InstructionSet,
    k: int,
    axis: Mapping[str | Role, str],
    steps: list[str],
    element: Mapping[Role, str],
    along: bool,
) -> list[str]:
    """The loops that copy a factor's tile to shared memory as threads should share them: the last ones are what
    neighbouring threads take.

    These read neighbours in global memory. Where the tile lies in core matrices, neighbours store the rows of one of
    them, and a warp reads some core matrices side by side.
    """
    others, terms = (
        [axis[role] for role in axis if isinstance(role, str) and role != "grid"],
        [element[r] for r in mma.roles("term")],
    )
    *_, line, vector = mma.orders[k]
    kind = vector[0]
    side = [element[r] for r in mma.orders[k] if r[0] != "term"]
    if len(mma.roles(kind)) == 1 or (kind == "term") != along:
        return [*others, *side, *steps, *terms] if along else [*steps, *terms, *others, *side]
    core_matrix = [r for r in mma.orders[k] if r[0] == kind and r != vector]
    rest = [element[r] for r in mma.orders[k] if r not in (line, vector, *core_matrix)]
    outside = [*others, *steps, *rest] if kind == "term" else [*steps, *rest, *others]
    return [*outside, *(element[r] for r in (*core_matrix, line, vector))]


def instruct(s: Schedule, name: str, loops: list[str], instruction: Intrinsic, elements: int = 2) -> None:
    """The innermost loops of a block become an instruction, those around them are unrolled."""
    _serial(s, loops)
    for x in loops[:-elements]:
        s.unroll(x)
    s.tensorize(loops[-elements], instruction.name)


def _serial(s: Schedule, loops: list[str]) -> None:
    for x in loops:
        if s.loop(x).kind == "parallel":
            s.serial(x)
