"""Matrix products and convolutions on grids: a group computes a tile of the result, with operands in shared memory and
a part of the tile in the registers of each thread.

All products have the same plan, since `products` classifies loops by the operands that they move. Loops of the left
operand only are the rows, those of the right operand only the columns; loops of both (batches, groups) are distributed
to groups of threads. Rows and columns are one loop each, regardless of the number of axes (the pixels of a convolution:
an implicit GEMM). Operands are copied by these loops, independent of their indices; elements beyond a border or the end
of a tile are zeros in shared memory. What follows the product in its group is the epilogue of the thread's part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.errors import ScheduleError
from weft.expr.nodes import free_vars, walk
from weft.loop.nodes import Block, Load, Program, Stmt, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.patterns import inline_producers
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.fallback import schedule_launch
from weft_gpu.schedules.fragments import choose_warps, schedule_fragments
from weft_gpu.schedules.groups import absorb, bind_threads, bring_ahead, flatten, kept, own, share
from weft_gpu.schedules.products import Product, anchor_of, contiguous_loop, factors, find_product, narrow, split_groups
from weft_gpu.schedules.threads import most_threads, top_statements
from weft_gpu.schedules.tiles import Problem, Tile, candidates, choose_tile

TILE_ELEMENTS, WAVES = 64 * 64, 2
"""Elements of a tile that uses what it fetches well enough, and tiles that a core wants: with fewer of them, sums are
cut into parts."""
LEAST_TERMS, MOST_PARTS = 256, 32
"""Terms of one part at least; parts at most."""
DIRECT_THREADS = 128
"""Threads of a group in which each computes an element by itself."""
LARGEST_UNIT = 32
"""Taps of a window that a tile takes together, at most."""


class ContractionRule(Rule):
    """See the module."""

    name = "contraction"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if machine.grid is None:
            return Decline("no_grid", "the machine runs no grids")
        if access.has_sequential_loop(program) or access.outside_blocks(program.body):
            return Decline("loop_program", "statements or blocks stand outside a plain nest")
        block = anchor_of(program)
        if block is None:
            return Decline("no_contraction", "the group has no single sum of products")
        if all(i.kind == "reduce" for i in block.iters):
            return Decline("one_element", "the result is one number, which no tile shares out")
        return Offer(of_blocks(program, machine, tiled=[block.name]))

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        block = anchor_of(s.program)
        assert block is not None
        schedule_contraction(s, block.name, s.machine)


def schedule_contraction(s: Schedule, name: str, machine: Machine) -> None:
    """Schedules the product `name` with what precedes it (in its operands, or each a launch) and what follows it (on
    the tile, or each a launch)."""
    inline_producers(s)
    schedule_product(s, name, machine)
    schedule_others(s, machine)


def schedule_product(s: Schedule, name: str, machine: Machine) -> None:
    """Schedules the product `name` with what follows it on the tile; other blocks stay as they are."""
    split_groups(s, name)
    whole, name = name, split_sum(s, name, machine)
    product = find_product(s, name)
    if in_fragments(s, name, product, machine):
        pass
    elif product.rows or product.columns:
        schedule_tile(s, name, product, machine)
    else:
        schedule_direct(s, name, product, machine)
    if whole != name:
        sums = access.LoopView.of(s, whole)
        spatial = tuple(x for x in sums.loops if sums.kinds[x] != "reduce")
        schedule_direct(
            s, whole, Product(spatial, (), (), tuple(x for x in sums.loops if x not in spatial), 1), machine
        )


def schedule_others(s: Schedule, machine: Machine) -> None:
    """Whatever no group takes yet, each a launch."""
    for statement in top_statements(s.program.body):
        if not any(s.loop(x).kind.startswith("blockIdx") for x in _outer_loops(s, statement)):
            schedule_launch(s, statement, machine)


def split_sum(s: Schedule, name: str, machine: Machine) -> str:
    """Cuts a long sum into parts where the result has too few tiles for all cores: a launch for the parts, one that
    adds them up. The block of the parts, or `name` where it is none of these."""
    product, view = find_product(s, name), access.LoopView.of(s, name)
    if not (product.rows or product.columns) or view.extents[product.sums[0]] is None:
        return name
    elements = prod(view.extent(x) for x in (*product.batch, *product.rows, *product.columns))
    outermost = view.extent(product.sums[0])

    def cut_into(s: Schedule, parts: int) -> str:
        first, _ = s.split(product.sums[0], [parts, None])
        return s.rfactor(name, first)

    def refuse(parts: int) -> str | None:
        if parts < 2:
            return None
        try:
            cut_into(Schedule(s.program, machine), parts)
        except ScheduleError as error:
            return error.why or error.what
        return None

    usual = parts_of(elements, prod(view.extent(x) for x in product.sums), outermost, machine)
    declined = refuse(usual)
    if declined is not None:
        s.annotate(name, "parts_declined", declined)
        usual = 1
    # Each part is a sum, too: of an only loop, not as many parts as it has terms.
    most = min(MOST_PARTS, outermost if len(product.sums) > 1 else outermost - 1)
    able = [1, *(p for p in range(2, most + 1) if outermost % p == 0)]
    parts = s.choose("parts", able, usual, refuse)
    return name if parts < 2 else cut_into(s, parts)


def parts_of(elements: int, terms: int, outermost: int, machine: Machine) -> int:
    """Into how many parts sums of `terms`, of as many `elements`, are cut; parts divide their `outermost` loop."""
    most = min(machine.cores * WAVES * TILE_ELEMENTS // max(1, elements), terms // LEAST_TERMS)
    return max((p for p in range(1, min(most, MOST_PARTS, outermost) + 1) if outermost % p == 0), default=1)


def in_fragments(s: Schedule, name: str, product: Product, machine: Machine) -> bool:
    """Schedules the product by instructions of warps, if the target has some for it; False, with nothing done, if
    not."""
    before = s.checkpoint()
    chosen = choose_warps(s, name, product, machine)
    if chosen is None:
        return False
    with s.attempt() as tried:
        schedule_fragments(s, name, product, machine, *chosen)
    if not tried:
        s.rollback(before)
        s.annotate(name, "fragments_declined", tried.reason)
    return bool(tried)


def _outer_loops(s: Schedule, statement: Stmt) -> list[str]:
    first, *_ = [b.name for b in walk_stmts(statement) if isinstance(b, Block)]
    return s.loops(first)


def schedule_direct(s: Schedule, name: str, product: Product, machine: Machine) -> None:
    """Every element by a thread of its own, which reads both factors where they lie: depthwise convolutions, products
    element by element."""
    s.reorder(*product.batch, *product.sums)
    for x in product.batch:
        s.parallel(x)
    result = s.stage_result(name, product.sums[0], "register")
    absorb(s, result)
    s.decompose_reduction(name, product.sums[0])
    outer, size = list(product.batch), 1
    inner: list[str] = []
    while outer and size < DIRECT_THREADS:
        inner.insert(0, outer.pop())
        n = int_const(s.loop(inner[0]).extent)
        if n is None:
            break
        size *= n
    group, thread = s.split(
        s.fuse(*inner),
        [None, min(most_threads(machine), max(DIRECT_THREADS, machine.grid.warp if machine.grid else 1))],
    )
    s.bind(thread, "threadIdx.x")
    if outer:
        s.bind(s.fuse(*outer), "blockIdx.x")
    s.bind(group, "blockIdx.y" if outer else "blockIdx.x")


@dataclass(frozen=True)
class Axis:
    """The loops of a tile along one axis, in the order of memory: a group's, then those of a thread around its
    neighbours', then neighbouring elements.

    None where there is one iteration.
    """

    grid: str | None = None
    own: str | None = None
    thread: str | None = None
    lane: str | None = None

    @property
    def inner(self) -> list[str]:
        """The loops within a group."""
        return [x for x in (self.own, self.thread, self.lane) if x]

    @property
    def mine(self) -> list[str]:
        """The loops of one thread."""
        return [x for x in (self.own, self.lane) if x]


def cut(s: Schedule, loop: str | None, threads: int, each: int, lanes: int) -> Axis:
    """A loop as groups, threads and elements of one thread, neighbouring ones in lanes. No condition lies within lanes
    if the extent is a multiple."""
    if loop is None:
        return Axis()
    lane = min(lanes, each)
    n = int_const(s.loop(loop).extent)
    last = None
    if lane > 1 and n is not None and n % lane == 0:
        loop, last = s.split(loop, [None, lane])
    parts = [("own", each // lane), ("thread", threads), *([("lane", lane)] if last is None else [])]
    parts = [(role, k) for role, k in parts if k > 1]
    pieces = s.split(loop, [None, *(k for _, k in parts)]) if parts else [loop]
    found = dict(zip((role for role, _ in parts), pieces[1:]))
    return Axis(pieces[0], found.get("own"), found.get("thread"), found.get("lane") or last)


def cut_sum(s: Schedule, loops: tuple[str, ...], depth: int, lanes: int) -> tuple[list[str], list[str]]:
    """The loops of a sum in steps, and what is inside a step: whole inner loops, as far as they go, and a part of the
    next, as one loop of about `depth` terms; or of one loop that is a multiple of `lanes` pieces of so many, so that no
    condition lies within them.
    """
    inner: list[str] = []
    outer = list(loops)
    size = 1
    while len(outer) > 1 and (n := int_const(s.loop(outer[-1]).extent)) is not None and size * n <= LARGEST_UNIT:
        inner.insert(0, outer.pop())
        size *= n
    n = int_const(s.loop(outer[-1]).extent)
    if not inner and 1 < lanes < depth and n is not None and n % lanes == 0:
        pieces, lane = s.split(outer[-1], [None, lanes])
        first, part = s.split(pieces, [None, depth // lanes])
        return [*outer[:-1], first], [part, lane]
    first, part = s.split(outer[-1], [None, max(1, depth // size)])
    steps = [*outer[:-1], first]
    s.reorder(*steps, part, *inner)
    return steps, [s.fuse(part, *inner) if inner else part]


def unit(s: Schedule, loops: tuple[str, ...]) -> int:
    """Terms of a sum that `cut_sum` keeps together."""
    size = 1
    for x in reversed(loops[1:]):
        n = int_const(s.loop(x).extent)
        if n is None or size * n > LARGEST_UNIT:
            break
        size *= n
    return size


def schedule_tile(s: Schedule, name: str, product: Product, machine: Machine) -> None:
    """See the module."""
    view = access.LoopView.of(s, name)
    sizes = [
        prod(view.extent(x) for x in group) for group in (product.batch, product.rows, product.columns, product.sums)
    ]
    pair = factors(s.block(name))
    left, right = pair[1 - product.right], pair[product.right]
    dtype = view.store.buffer.dtype
    staged = (narrow(left).dtype.bytes, narrow(right).dtype.bytes)
    along = tuple(contiguous_loop(s, name, f) for f in (left, right))
    turned = (along[0] in product.sums, along[1] in product.sums)
    tile = choose(
        s, Problem(sizes[0], sizes[1], sizes[2], sizes[3], unit(s, product.sums), dtype, staged, turned), machine
    )

    s.reorder(*product.batch, *product.rows, *product.columns, *product.sums)
    batch, row, column = (flatten(s, group) for group in (product.batch, product.rows, product.columns))
    lanes = max(1, machine.vector_bits // 8 // max(staged))
    rows, columns = (cut(s, x, tile.threads[k], tile.each[k], lanes) for k, x in enumerate((row, column)))
    steps, terms = cut_sum(s, product.sums, tile.depth, lanes if set(along) & set(product.sums) else 1)
    outer = [x for x in (batch, rows.grid, columns.grid) if x]
    s.reorder(*outer, *steps, *terms, *rows.inner, *columns.inner)
    if tile.ahead and len(steps) > 1:
        steps = [s.fuse(*steps)]

    result = s.stage_result(name, steps[0], "register")
    absorb(s, result)
    start = s.decompose_reduction(name, steps[0])
    for b in (start, name, result):
        s.specialize(b)
    for b in (start, name):
        s.pad_tile(b)
    copies: dict[str, list[str]] = {}
    for k, axis in enumerate((rows, columns)):
        formula = narrow(factors(s.block(name))[product.right if k else 1 - product.right])
        if isinstance(formula, Load) and formula.buffer.scope == "shared":
            continue  # both factors are the same
        inner = kept(s, name, formula, [*terms, *axis.inner])
        copy = s.stage(name, terms[0], str(formula), "shared")
        place = dict(zip(inner, s.loops(copy)[-len(inner) :] if inner else ()))
        order = [*axis.inner, *terms] if along[k] in product.sums else [*terms, *axis.inner]
        copies[copy] = [place[x] for x in order if x in place]
    s.reorder(*threads_of(rows, columns), *terms, *rows.mine, *columns.mine)
    mine = [*rows.mine, *columns.mine]
    for k, axis in enumerate((rows, columns)):
        formula = factors(s.block(name))[product.right if k else 1 - product.right]
        if not axis.mine or not any(isinstance(e, Load) and e.buffer.scope == "shared" for e in walk(formula)):
            continue
        inner = kept(s, name, formula, mine)
        if inner:
            part = s.stage(name, mine[0], str(formula), "register")
            loops = s.loops(part)[-len(inner) :]
            own(s, loops, loops[-1] if inner[-1] == axis.lane else None)
    own(s, mine, None)
    bind_threads(s, rows.thread, columns.thread)
    for b in (start, result):
        place = dict(zip([*rows.inner, *columns.inner], s.loops(b)[len(outer) :]))
        threads = [place[x] for x in threads_of(rows, columns)]
        s.reorder(*threads, *(place[x] for x in mine))
        lane = place.get(columns.lane or "")
        own(s, [place[x] for x in mine], lane if lane and b == result and vectorizes(s, b, lane) else None)
        bind_threads(s, rows.thread and place[rows.thread], columns.thread and place[columns.thread])
    for copy, order in copies.items():
        share(s, copy, order, tile.threads, lanes)
    for x, axis_name in zip(reversed(outer), ("blockIdx.x", "blockIdx.y", "blockIdx.z")):
        s.bind(x, axis_name)
    for x in steps:
        if s.loop(x).kind == "parallel":
            s.serial(x)
    if tile.ahead:
        for copy in copies:
            bring_ahead(s, copy, steps[-1], machine)


def choose(s: Schedule, problem: Problem, machine: Machine) -> Tile:
    """The tile of the cost model, or of a record."""
    best, able = choose_tile(problem, machine), candidates(problem, machine)
    text = {str(t): t for t in able}
    return text[s.choose("tile", list(text), str(best))]


def threads_of(rows: Axis, columns: Axis) -> list[str]:
    return [x for x in (rows.thread, columns.thread) if x]


def vectorizes(s: Schedule, name: str, loop: str) -> bool:
    """Whether a loop's elements are stored side by side, all or none of them."""
    view = access.LoopView.of(s, name)
    return view.stride(view.store, loop) == 1 and loop not in free_vars(s.block(name).predicate)
