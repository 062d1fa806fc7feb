"""Reductions on their own: outputs in parallel, lanes along the output where it is contiguous, else along the reduction
in partial results.

A long sum is one of sums of pieces, which threads share, and which keeps its rounding errors small.

What follows a reduction element by element (the division of a mean, an activation) is computed before the result leaves
the registers.

Choices of each block: `BLOCK.lanes` (vectors along the outputs or along the steps), `BLOCK.vectors` (vectors of partial
results side by side), `BLOCK.rows` (iterations of an outer output loop beside a tile), `BLOCK.taps` (steps that are
unrolled), `BLOCK.chain` (steps of a partial result from which on a reduction is cut; the second stage's choices are
`combine.BLOCK.…`) and `BLOCK.tasks_per_core`.
"""

from __future__ import annotations

import math

from weft.expr.nodes import free_vars
from weft.loop.nodes import Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import follows, inline_producers, offer_for, split_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.emitter import CLOSE
from weft_llvm.schedules.elementwise import (
    TASKS_PER_CORE,
    VECTOR_COUNTS,
    parallelise,
    schedule_elementwise,
    too_short,
    worth_forking,
)

MOST_TAPS = 16
"""Steps of inner reduction loops that are unrolled, at most."""
TAPS = (1, 4, MOST_TAPS, 64)
"""Options of `taps`."""
VECTORS = 4
"""Vectors of partial results: a vector operation's latency in operations that begin meanwhile, one a load."""
SHORTEST = 4
"""Steps of a reduction from which on it is one of vectors, if of shorter ones than the machine has."""
CHAIN = 256
"""Steps of each partial result from which on a reduction is cut into pieces: a sum's error grows with them."""
CHAINS = (16, 32, 64, 128, CHAIN)
"""Options of `chain`."""
MOST_ROWS = 8
"""The greatest option of `rows`."""


class ReductionRule(Rule):
    """Groups with reductions that no more specific rule takes; also pooling."""

    name = "reduction"
    priority = 5

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "reduction", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_producers(s, keep_shared=True)
        names = s.blocks()
        *before, reduction, tail = names if len(names) > 1 else ["", *names]
        if (
            not reduction
            or not access.is_reduction(s.block(reduction))
            or not follows(s.block(tail), s.block(reduction))
        ):
            schedule_apart(s, names, s.machine)
            return
        schedule_apart(s, before, s.machine)
        schedule_reduction(s, reduction, s.machine, tail=tail)


def schedule_apart(s: Schedule, names: list[str], machine: Machine) -> None:
    """Schedules each of the blocks on its own."""
    for name in names:
        if access.is_reduction(s.block(name)):
            schedule_reduction(s, name, machine)
        else:
            schedule_elementwise(s, name, machine)


def schedule_reduction(
    s: Schedule, name: str, machine: Machine, parallel: bool = True, tail: str | None = None
) -> None:
    """Schedules one reduction block, accumulating in registers; `tail`, if given, takes the result out of them."""
    block = s.block(name)
    if len(list(access.stores(block))) != 1:
        if parallel:
            _parallel(s, [x for x, i in zip(s.loops(name), block.iters) if i.kind == "spatial"], name, machine)
        return
    dtype = access.target(block).buffer.dtype
    lanes = machine.lanes(dtype)
    split_blocks(s, name)
    lane, along = lane_loop(s, name, CLOSE), row_loop(s, name)
    options = [way for way, loop in (("outputs", lane), ("steps", along)) if loop is not None] + ["none"]
    way = s.choose(f"{name}.lanes", options, options[0])
    if way == "steps" and along is not None:
        schedule_along(s, name, along, machine, parallel, tail)
        return
    lane = lane if way == "outputs" else None
    view = access.LoopView.of(s, name)
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    if tail is None:
        copy = s.cache_write(name, "register")
    else:
        s.set_scope(name, "register")
        copy = tail
    buffer = access.target(s.block(name)).buffer.name
    outer = [x for x in spatial if x != lane]
    tile: list[str] = []
    rows = _rows(s, name, view, outer, lane, lanes)
    if rows is not None:
        across, count = rows
        first, inner = s.split(across, [None, count])
        outer[outer.index(across)] = first
        tile.append(inner)
    align = lanes if lane is not None else 1
    if lane is not None:
        n = int_const(s.loop(lane).extent)
        if n is None or n > lanes:
            width = lanes * _vectors(s, name, n, lanes, 4 if n is None or n >= 4 * lanes else 1)
            first, inner = s.split(lane, [None, width])
            outer.append(first)
            if width > lanes:
                column, inner = s.split(inner, [width // lanes, lanes])
                tile.append(column)
            tile.append(inner)
        elif (whole := _whole_lanes(view, lane, n)) > n:
            first, inner = s.split(lane, [None, whole])
            outer.append(first)
            tile.append(inner)
            align = whole
        else:
            tile.append(lane)
            align = 1  # rows of shorter vectors follow one another
    if not outer:
        # A single tile: an outer loop of one iteration gives the copy a place.
        first, inner = s.split(tile.pop(0) if tile else reduce[0], [1, None])
        outer = [first]
        if inner != reduce[0] and lane is not None:
            tile.insert(0, inner)
        else:
            reduce[0] = inner
    s.reorder(*outer, *reduce, *tile)
    init = s.decompose_reduction(name, reduce[0])
    s.reverse_compute_at(copy, outer[-1])
    s.compact_buffer(buffer, align=align)
    if tile:
        for b in (name, init):
            inner_loops = s.loops(b)[-len(tile) :]
            for loop in inner_loops[:-1]:
                s.unroll(loop)
            if lane is None:
                s.unroll(inner_loops[-1])
            else:
                s.vectorize(inner_loops[-1])
        copies = s.loops(copy)
        rest = [x for x in copies[copies.index(outer[-1]) + 1 :] if int_const(s.loop(x).extent) != 1]
        if rest:
            last = rest[-1]
            n = int_const(s.loop(last).extent)
            if n is not None and n > lanes and n % lanes == 0:
                column, last = s.split(last, [None, lanes])
                s.unroll(column)
            if lane is None:
                s.unroll(last)
            elif n is not None:
                s.vectorize(last)
            for x in rest[:-1]:
                s.unroll(x)
    _unroll_taps(s, name, reduce, outer)
    if parallel:
        _parallel(s, outer, name, machine)


def _whole_lanes(view: access.LoopView, lane: str, n: int) -> int:
    """Lanes of a vector that holds all `n` results along a loop: as many as there are, or the next power of two where
    operands are read with gaps, which only such vectors are shuffled out of."""
    apart = any(view.stride(x, lane) not in (0, 1) for x in view.loads)
    return 1 << (n - 1).bit_length() if apart else n


def row_loop(s: Schedule, name: str) -> str | None:
    """The reduction loop to vectorise: the innermost, if it is not too short and every load is contiguous or constant
    along it."""
    view = access.LoopView.of(s, name)
    loop = view.loops[-1] if view.loops else None
    n = view.extents[loop] if loop else 0
    if loop is None or view.kinds.get(loop) != "reduce" or (n is not None and n < SHORTEST):
        return None
    moves = {view.stride(x, loop) for x in view.loads if x.buffer.name != view.store.buffer.name}
    return loop if moves <= {0, 1} and 1 in moves else None


def row_width(s: Schedule, name: str, n: int | None, lanes: int) -> tuple[int, int]:
    """Partial results, side by side, of a reduction of `n` steps, and how many of them are a vector."""
    lanes = lanes if n is None else min(lanes, 1 << (n.bit_length() - 1))
    return lanes * _vectors(s, name, n, lanes, VECTORS if n is None or n >= 2 * VECTORS * lanes else 1), lanes


def _vectors(s: Schedule, name: str, n: int | None, lanes: int, default: int) -> int:
    return s.choose(f"{name}.vectors", VECTOR_COUNTS, default, lambda k: too_short(n, k, lanes))


def schedule_along(
    s: Schedule, name: str, loop: str, machine: Machine, parallel: bool, tail: str | None, cut: bool = True
) -> None:
    """Schedules a reduction with lanes along its innermost loop, in pieces where that is better unless not `cut`."""
    block = s.block(name)
    view = access.LoopView.of(s, name)
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    s.reorder(*spatial, *(x for x in view.loops if x not in spatial))
    width = row_width(s, name, view.extents[loop], machine.lanes(view.store.buffer.dtype))
    pieces = _pieces(s, name, view, loop, width[0], machine) if cut else None
    if pieces is not None:
        count = int_const(s.loop(pieces).extent)
        part = s.rfactor(name, pieces, True)
        schedule_along(s, part, loop if loop in s.loops(part) else s.loops(part)[-1], machine, parallel, None)
        with s.choices_of("combine"):
            schedule_along(s, name, s.loops(name)[-1], machine, parallel, tail, count is not None)
        return
    worth = worth_forking(access.block_work(block) * access.formula_cost(block), machine, per_cycle=2)
    if tail is not None:
        s.compute_at(name, s.loops(tail)[-1])
        s.compact_buffer(access.target(block).buffer.name)
    partial_reduction(s, name, s.loops(name)[-1], *width)
    if parallel and spatial:
        parallelise(s, f"{name}.tasks_per_core", s.loops(tail or name)[: len(spatial)], machine, worth)


def _pieces(s: Schedule, name: str, view: access.LoopView, loop: str, width: int, machine: Machine) -> str | None:
    """The reduction loop over pieces with results of their own, where a single chain would be long, or too few threads
    had work."""
    n = view.extents[loop]
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce" and view.extents[x] != 1]
    results = math.prod(view.extent(x) for x in view.loops if view.kinds.get(x) == "spatial")
    chain = math.prod(view.extent(x) for x in reduce) // width
    longest = s.choose(f"{name}.chain", CHAINS, CHAIN)
    if n is None and results < TASKS_PER_CORE * machine.cores:
        return str(s.split(loop, [None, longest * width])[0])
    if chain <= longest:
        return None
    if reduce[0] == loop:
        steps = -(-view.extent(loop) // (-(-chain // longest) * width))  # pieces of one size, in whole vectors
        return str(s.split(loop, [None, steps * width])[0])
    steps = longest * view.extent(reduce[0]) // chain
    return str(s.split(reduce[0], [None, steps])[0]) if steps > 1 else reduce[0]


def partial_reduction(s: Schedule, name: str, loop: str, width: int, lanes: int) -> None:
    """Reduces along `loop` into `width` partial results side by side, in vectors of `lanes`, then those into one."""
    n = int_const(s.loop(loop).extent)
    if n is not None and n < SHORTEST:
        return
    _, inner = s.split(loop, [None, width])
    partial = s.rfactor(name, inner)
    buffer = access.target(s.block(partial)).buffer.name
    loops, block = s.loops(partial), s.block(partial)
    reduced = {v for i, b in zip(block.iters, block.bindings) if i.kind == "reduce" for v in free_vars(b)}
    at = next((k for k, x in enumerate(loops) if x in reduced), loops.index(inner))
    if at and loops[at - 1] not in s.loops(name):
        # The partial results of one element at a time, or they would not fit into registers.
        s.reverse_compute_at(name, loops[at - 1])
    init = s.decompose_reduction(partial, loops[at])
    s.set_scope(partial, "register")
    s.compact_buffer(buffer)
    for b in (partial, init):
        lane = s.loops(b)[-1]
        if width > lanes:
            column, lane = s.split(lane, [width // lanes, lanes])
            s.unroll(column)
        s.vectorize(lane)
    fold_halves(s, name, width, lanes)


def fold_halves(s: Schedule, name: str, width: int, lanes: int) -> None:
    """Combines `width` partial results, the innermost loop of `name`: vectors one with another first, then halves of a
    vector, so that the chain is as long as the logarithm of the width."""
    left = width
    while left > 2:
        half = lanes if left > lanes else left // 2
        column, lane = s.split(s.loops(name)[-1], [left // half, half])
        folded = s.rfactor(name, lane, True)
        init = s.decompose_reduction(folded, column)
        s.set_scope(folded, "register")
        s.compact_buffer(access.target(s.block(folded)).buffer.name)
        s.unroll(column)
        for b in (folded, init):
            s.vectorize(s.loops(b)[-1])
        left = half
    s.unroll(s.loops(name)[-1])


def _rows(
    s: Schedule, name: str, view: access.LoopView, outer: list[str], lane: str | None, lanes: int
) -> tuple[str, int] | None:
    """An output loop, and how many of its iterations, beside a tile of few vectors or of one element: they hide the
    latency of each other's chains."""
    block, n = s.block(name), 1 if lane is None else view.extents[lane]
    whole = {lane} if lane is not None and n is not None and n <= lanes else set()

    def fitting(x: str) -> list[int]:
        # Of an axis of several loops it has to be the innermost that is not in the tile whole, or the tile has gaps.
        alone = all(free_vars(b).keys() <= {x, *whole} for b in block.bindings if x in free_vars(b))
        m = view.extents[x]
        if m is None or not alone or any(x in c for c in view.conditions):
            return []
        return [k for k in range(1, MOST_ROWS + 1) if m % k == 0]

    most = VECTORS if n is not None and n < 4 * lanes else 1
    found = {x: counts for x in reversed(outer) if len(counts := fitting(x)) > 1}
    usual = {x: max(k for k in counts if k <= most) for x, counts in found.items()}
    across = next((x for x in found if usual[x] > 1), next(iter(found), None))
    if across is None:
        return None
    count = s.choose(f"{name}.rows", found[across], usual[across])
    return (across, count) if count > 1 else None


def _unroll_taps(s: Schedule, name: str, reduce: list[str], outer: list[str]) -> None:
    """Unrolls few taps. Where borders make them depend on the innermost output loop, that loop is cut; along the other
    axes the taps get bounds."""
    view = access.LoopView.of(s, name)
    budget = s.choose(f"{name}.taps", TAPS, MOST_TAPS)
    for loop in reversed(reduce):
        n = int_const(s.loop(loop).extent)
        around = {x for c in view.conditions if loop in c for x in c if x in outer}
        for x in around - {outer[-1]}:
            s.annotate(x, "partition", 0)
        if not n or n > budget or around - {outer[-1]}:
            break
        if n > 1:
            s.unroll(loop)
        budget //= n


def lane_loop(s: Schedule, name: str, close: int = 1) -> str | None:
    """The output loop to vectorise: contiguous in the output, and constant or contiguous in every load, or with its
    lanes at most `close` apart."""
    view = access.LoopView.of(s, name)
    for x in reversed([x for x in view.loops if view.kinds.get(x) == "spatial"]):
        n = view.extents[x]
        if view.stride(view.store, x) == 1 and (n is None or n > 1):
            moves = [view.stride(load, x) for load in view.loads]
            if all(m is not None and 0 <= m <= close for m in moves):
                return x
    return None


def _parallel(s: Schedule, outer: list[str], name: str, machine: Machine) -> None:
    work = access.block_work(s.block(name)) * access.formula_cost(s.block(name))
    if outer:
        parallelise(s, f"{name}.tasks_per_core", outer, machine, worth_forking(work, machine, per_cycle=2))
