"""Products by instructions of a whole warp: tensor cores, matrices of a SIMD group.

A group's tile is staged through shared memory as `contraction` has it, in pieces of one instruction's size; each warp (threadIdx.y) holds a part of the
result in fragments, which its lanes (threadIdx.x) keep together: loads of fragments, products and stores are instructions of the warp. Results go through
shared memory, where what follows is computed on them by all threads. Which instructions there are, the target says: intrinsics whose operands lie in the
scopes "shared" and "fragment…" (docs/architecture.md, "Grids").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import prod

from weft.dtypes import DType
from weft.errors import ScheduleError
from weft.expr.nodes import Mul, walk
from weft.loop.nodes import Load
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.intrinsic import Intrinsic
from weft.scheduling.schedule import Schedule
from weft.tensor.language import Read, Tensor
from weft_gpu.schedules.groups import absorb, bring_ahead, flatten, kept, share
from weft_gpu.schedules.products import Product, contiguous_loop, factors, narrow
from weft_gpu.schedules.threads import grid_of
from weft_gpu.schedules.tiles import AHEAD_THREADS, LEAST_STEPS

FRAGMENT = "fragment"


@dataclass(frozen=True)
class Kit:
    """What a product in fragments takes: the product itself, copies of its factors from shared memory, if it wants them in fragments, and of the result to it.

    `scopes`: where the factors lie; `right_across`: the right one is indexed [term, column], not [column, term].
    """

    product: Intrinsic
    loads: tuple[Intrinsic | None, Intrinsic | None]
    store: Intrinsic
    rows: int
    columns: int
    depth: int
    operands: tuple[DType, DType]
    result: DType
    scopes: tuple[str, str, str]
    right_across: bool


def kits(intrinsics: Iterable[Intrinsic]) -> list[Kit]:
    """The kits that a target's intrinsics make, each product with copies of its own sizes and dtypes."""
    every = list(intrinsics)
    return [kit for i in every if (kit := _kit(i, every)) is not None]


def _kit(i: Intrinsic, every: list[Intrinsic]) -> Kit | None:
    if i.reduction is None or i.update is None or i.reset is None or i.lengths or len(i.operands) != 3 or len(i.reduction.axes) != 1:
        return None
    if any(len(o.scopes) != 1 for o in i.operands) or not _is_fragment(i.operands[2].scopes[0]) or len(i.source.axes) != 2:
        return None
    (value,) = i.reduction.values
    reads = {x.tensor: x for x in walk(value) if isinstance(x, Read)}
    (row, column), term = i.source.axes, i.reduction.axes[0].var
    left = next((k for k in range(2) if i.tensors[k] in reads and reads[i.tensors[k]].indices == (row, term)), None)
    if left is None or not isinstance(value, Mul):
        return None
    right = reads.get(i.tensors[1 - left])
    if left != 0 or right is None or right.indices not in ((column, term), (term, column)):
        return None
    scopes = (i.operands[0].scopes[0], i.operands[1].scopes[0], i.operands[2].scopes[0])
    loads: list[Intrinsic | None] = []
    for scope, tensor in zip(scopes[:2], i.tensors[:2]):
        load = _copy(every, "shared", scope, tensor) if _is_fragment(scope) else None
        if load is None and scope != "shared":
            return None
        loads.append(load)
    store = _copy(every, scopes[2], "shared", i.meaning)
    if store is None:
        return None
    m, n, k = i.meaning.shape[0], i.meaning.shape[1], i.reduction.axes[0].extent
    assert isinstance(m, int) and isinstance(n, int) and isinstance(k, int)
    dtypes = i.tensors[0].dtype, i.tensors[1].dtype
    return Kit(i, (loads[0], loads[1]), store, m, n, k, dtypes, i.meaning.dtype, scopes, right.indices == (term, column))


def _is_fragment(scope: str) -> bool:
    return scope.partition(".")[0] == FRAGMENT


def _copy(every: list[Intrinsic], source: str, to: str, tensor: Tensor) -> Intrinsic | None:
    """The intrinsic that copies a tensor of this shape and dtype from one memory to another as it is."""
    for i in every:
        if i.reduction is None and len(i.operands) == 2 and (i.operands[0].scopes, i.operands[1].scopes) == ((source,), (to,)):
            body = i.source.bodies[0]
            same = isinstance(body, Read) and body.indices == i.source.axes
            if same and tuple(i.meaning.shape) == tuple(tensor.shape) and i.tensors[0].dtype == i.tensors[1].dtype == tensor.dtype:
                return i
    return None


@dataclass(frozen=True)
class WarpTile:
    """`warps` (rows, columns) of a group, the `fragments` (rows, columns) of a result that each holds, and the `steps` of an instruction staged at once;
    `ahead`: while those before are computed."""

    warps: tuple[int, int]
    fragments: tuple[int, int]
    steps: int
    ahead: bool = False

    def __str__(self) -> str:
        text = f"{self.warps[0]}x{self.warps[1]} of {self.fragments[0]}x{self.fragments[1]} by {self.steps}"
        return f"{text} ahead" if self.ahead else text


GLOBAL_BYTES, SHARED_BYTES = 16.0, 128.0
"""Of one core in a cycle: from far memory, second caches included; and from shared memory."""
STEP_CYCLES, AHEAD_CYCLES, GROUP_CYCLES = 80.0, 45.0, 2500.0
"""What a step of the sum, one whose operands were brought a step ahead, and a group cost beyond their work."""
MOST_ACCUMULATORS = 128
"""Registers of a thread for results."""
INSTRUCTION_GAIN = 8
"""How much faster than by themselves threads multiply by an instruction of which the machine does not say how fast it is."""
BUSY_WARPS = 8
"""Warps of a core that keep its units busy."""


def find_kit(s: Schedule, name: str, product: Product, machine: Machine) -> Kit | None:
    """The kit for a product's dtypes, if the target has one and the product is no smaller than half an instruction."""
    pair = factors(s.block(name))
    operands = narrow(pair[1 - product.right]).dtype, narrow(pair[product.right]).dtype
    view = access.LoopView.of(s, name)
    if not product.rows or not product.columns or grid_of(machine).warp < 2:
        return None
    rows, columns = (_size(view, loops) for loops in (product.rows, product.columns))
    fitting = [k for k in kits(s.intrinsics.values()) if k.operands == operands and k.result == view.store.buffer.dtype]
    fitting = [k for k in fitting if set(k.product.requires) <= machine.features and 2 * rows > k.rows and 2 * columns > k.columns]
    return max(fitting, key=lambda k: (k.rows * k.columns * k.depth, k.product.name), default=None)


def _size(view: access.LoopView, loops: Iterable[str]) -> int:
    total = 1
    for x in loops:
        total *= view.extent(x)
    return total


def warp_tiles(kit: Kit, machine: Machine) -> list[WarpTile]:
    """The tiles for which there are threads, registers and shared memory."""
    grid = grid_of(machine)
    shared = machine.scopes["shared"].size if "shared" in machine.scopes else None
    found = []
    for wm, wn, fm, fn, steps, ahead in combinations((1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (False, True)):
        tile = WarpTile((wm, wn), (fm, fn), steps, ahead)
        if wm * wn < 2:  # a loop over one warp would be no loop
            continue
        threads = wm * wn * grid.warp
        held = fm * fn * kit.rows * kit.columns * max(1, kit.result.bytes // 4) // grid.warp
        if threads > min(grid.threads, 512) or grid.warp > grid.threads_per_axis[0] or wm * wn > grid.threads_per_axis[1] or held > MOST_ACCUMULATORS:
            continue
        if shared is None or room(kit, tile) <= shared:
            found.append(tile)
    return found


def staged_bytes(kit: Kit, tile: WarpTile) -> int:
    """Of both operands' tiles."""
    rows, columns = (w * f for w, f in zip(tile.warps, tile.fragments))
    return tile.steps * kit.depth * (rows * kit.rows * kit.operands[0].bytes + columns * kit.columns * kit.operands[1].bytes)


def room(kit: Kit, tile: WarpTile) -> int:
    """Bytes of shared memory that a group takes."""
    return staged_bytes(kit, tile) * (2 if tile.ahead else 1) + result_bytes(kit, tile)


def result_bytes(kit: Kit, tile: WarpTile) -> int:
    """Of what goes through shared memory at a time: the first of a warp's rows of fragments, or columns if it has one row."""
    at_once = prod(tile.warps) * prod(tile.fragments) // next((n for n in tile.fragments if n > 1), 1)
    return at_once * kit.rows * kit.columns * kit.result.bytes


def rate(kit: Kit, machine: Machine) -> float:
    """Operations that a core starts in a cycle by the instruction, where the machine says so by its name; else a guess."""
    return max(1, machine.flops_per_cycle.get(kit.product.name, INSTRUCTION_GAIN * machine.flops(kit.operands[0])))


def warp_cycles(sizes: tuple[int, int, int, int], kit: Kit, tile: WarpTile, machine: Machine) -> float:
    """Of a product of sizes (batch, rows, columns, terms) on the machine."""
    batch, rows, columns, terms = sizes
    grid = grid_of(machine)
    across = tile.warps[1] * tile.fragments[1] * kit.columns
    down = tile.warps[0] * tile.fragments[0] * kit.rows
    groups = batch * -(-rows // down) * -(-columns // across)
    steps = -(-terms // (tile.steps * kit.depth))
    arithmetic = 2.0 * steps * tile.steps * kit.depth * down * across / max(1, rate(kit, machine))
    warps = tile.warps[0] * tile.warps[1]
    a, b = tile.fragments[0] * kit.rows * kit.operands[0].bytes, tile.fragments[1] * kit.columns * kit.operands[1].bytes
    read = steps * tile.steps * kit.depth * warps * (a + b)
    fetched = steps * staged_bytes(kit, tile)
    scope = machine.scopes.get("shared")
    resident = max(1, min(grid.resident // (warps * grid.warp), 2 * scope.size // room(kit, tile) if scope is not None and scope.size else 8))
    at_once = min(resident, -(-groups // machine.cores))
    waiting = max(1.0, BUSY_WARPS / (at_once * warps * (AHEAD_THREADS if tile.ahead else 1)))
    bound = max(arithmetic, read / SHARED_BYTES, fetched / GLOBAL_BYTES)
    group = bound * waiting**0.5 + (steps * (AHEAD_CYCLES if tile.ahead else STEP_CYCLES) + GROUP_CYCLES) / at_once
    return float(group * -(-groups // machine.cores))


def choose_warps(s: Schedule, sizes: tuple[int, int, int, int], kit: Kit, machine: Machine) -> WarpTile | None:
    """The tile of the least time, or a record's; None if none fits."""
    tiles = {str(t): t for t in warp_tiles(kit, machine) if not t.ahead or sizes[3] >= LEAST_STEPS * t.steps * kit.depth}
    if not tiles:
        return None
    best = min(tiles, key=lambda name: (warp_cycles(sizes, kit, tiles[name], machine), name))
    return tiles[str(s.choose("warp_tile", list(tiles), best))]


def pieces(s: Schedule, loop: str, sizes: Mapping[str, int]) -> dict[str, str]:
    """A loop cut into pieces of these sizes, outermost first; those of one iteration are left out. "grid" is whatever is left."""
    wanted = [(role, n) for role, n in sizes.items() if n > 1]
    return dict(zip(("grid", *(role for role, _ in wanted)), s.split(loop, [None, *(n for _, n in wanted)])))


def schedule_fragments(s: Schedule, name: str, product: Product, machine: Machine, kit: Kit) -> bool:
    """Schedules a product in fragments; False, with nothing done, if no tile fits."""
    view = access.LoopView.of(s, name)
    sizes = (_size(view, product.batch), _size(view, product.rows), _size(view, product.columns), _size(view, product.sums))
    tile = choose_warps(s, sizes, kit, machine)
    if tile is None:
        return False
    order = (1 - product.right, product.right)
    along = [contiguous_loop(s, name, factors(s.block(name))[k]) in product.sums for k in order]
    s.reorder(*product.batch, *product.rows, *product.columns, *product.sums)
    batch, row, column = (flatten(s, group) for group in (product.batch, product.rows, product.columns))
    assert row is not None and column is not None
    rows = pieces(s, row, {"warp": tile.warps[0], "fragment": tile.fragments[0], "element": kit.rows})
    columns = pieces(s, column, {"warp": tile.warps[1], "fragment": tile.fragments[1], "element": kit.columns})
    terms = pieces(s, s.fuse(*product.sums), {"fragment": tile.steps, "element": kit.depth})
    outer = [x for x in (batch, rows["grid"], columns["grid"]) if x]
    warps, mine = ([x[role] for x in (rows, columns) if role in x] for role in ("warp", "fragment"))
    steps = [terms["fragment"]] if "fragment" in terms else []
    last = [terms["element"], columns["element"]] if kit.right_across else [columns["element"], terms["element"]]
    s.reorder(*outer, terms["grid"], *steps, *warps, *mine, rows["element"], *last)

    copy = s.stage_result(name, terms["grid"], kit.scopes[2])
    absorb(s, copy)
    start = s.decompose_reduction(name, terms["grid"])
    for b in (start, name, copy):
        s.specialize(b)
    for b in (start, name):
        s.pad_tile(b)
    held = next(str(x) for x in access.loads(s.block(copy)) if x.buffer.scope == kit.scopes[2])
    results = dict(zip([*warps, *mine, rows["element"], columns["element"]], s.loops(copy)[len(outer) :]))
    turns = [results[x] for x in mine[:1]]  # one row of fragments at a time goes through shared memory
    s.reorder(*turns, *(results[x] for x in (*warps, *mine[1:])))
    _serial(s, turns)
    for x in turns:
        s.unroll(x)
    out = s.stage(copy, results[[*warps, *mine[1:], rows["element"]][0]], held, "shared")
    s.pad_tile(out)
    shared: list[tuple[str, list[str]]] = []
    for k, axis in enumerate((rows, columns)):
        formula = narrow(factors(s.block(name))[order[k]])
        if isinstance(formula, Load) and formula.buffer.scope == "shared":
            raise ScheduleError("contraction: both factors are the same, which fragments do not share")
        inner = kept(s, name, formula, [*steps, *warps, *mine, rows["element"], *last])
        made = s.stage(name, s.loops(name)[len(outer) + 1], str(formula), "shared")
        place = dict(zip(inner, s.loops(made)[-len(inner) :]))
        across = [axis[role] for role in ("warp", "fragment", "element") if role in axis]
        down = [*steps, terms["element"]]
        shared.append((made, [place[x] for x in ((*across, *down) if along[k] else (*down, *across)) if x in place]))
    lanes = grid_of(machine).warp
    threads = tile.warps[0] * tile.warps[1], lanes
    for made, loops in shared:
        share(s, made, loops, threads, max(1, machine.vector_bits // 8 // access.target(s.block(made)).buffer.dtype.bytes))
        if tile.ahead:
            bring_ahead(s, made, terms["grid"], machine)
    s.reorder(*warps, *steps, *mine, rows["element"], *last)
    for k in range(2):
        load = kit.loads[k]
        if load is not None:
            formula = narrow(factors(s.block(name))[order[k]])
            made = s.stage(name, [*mine, rows["element"]][0], str(formula), kit.scopes[k])
            instruct(s, made, s.loops(made)[len(outer) + 1 + len(warps) + len(steps) :], load)
    instruct(s, name, [*mine, rows["element"], *last], kit.product, 3)
    for b, instruction in ((start, kit.product), (out, kit.store)):
        loops = s.loops(b)[len(outer) + (len(turns) if b == out else 0) :]
        instruct(s, b, loops[len(warps) :], instruction)
        s.bind(s.fuse(*loops[: len(warps)]), "threadIdx.y")
    s.bind(s.fuse(*warps), "threadIdx.y")
    across = [x[role] for x in (rows, columns) for role in ("warp", "fragment", "element") if role in x and x[role] not in mine[:1]]
    width = access.target(s.block(copy)).buffer.dtype.bytes
    share(s, copy, [results[x] for x in across], threads, max(1, machine.vector_bits // 8 // width))
    for x, kind in zip(reversed(outer), ("blockIdx.x", "blockIdx.y", "blockIdx.z")):
        s.bind(x, kind)  # type: ignore[arg-type]
    return True


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
