"""A schedule rule for a search: it knows no operator, and every step is a choice.

The space is in the manner of Ansor (Zheng et al., OSDI 2020) and MetaSchedule (Shao et al., NeurIPS 2022), over the
public primitives. Blocks are scheduled from the last to the first, so that the loops of a block's consumers are decided
before the block is placed under one of them:

1. pointwise producers are inlined or not (`BLOCK.inline`); the loop of a scan goes inside its independent rows or not
   (`rows_first`); a reduction of few results is cut into pieces (`BLOCK.pieces`), gets a buffer of its own from which
   its results are copied (`BLOCK.write_back`), and reads an operand from a copy, perhaps in another order
   (`BLOCK.copy.BUFFER`);
2. a block is computed at a loop of its consumers, or before them (`BLOCK.at`: how many loops are around both);
3. its loops become levels S0 R0 S1 R1 R2 T of spatial (S) and reduction loops (R): T is a tile that is written out,
   whose innermost loop is the lanes of vectors (`BLOCK.lanes`, `.vectors`, `.tile`); S1 are several tiles (`.block`),
   R0 large parts of the reduction (`.part`), R2 steps that are written out (`.steps`); a reduction whose operands are
   contiguous along it may have its lanes there, as partial results;
4. the outermost loops become one parallel loop (`BLOCK.tasks`);
5. buffers are reduced to what an iteration uses; those of tiles that are written out become registers.

Names of loops in choices are numbers of a block's iterators: `C.tile.0`. A step that may not act is left out, so that
nearly every candidate is a program; none is a wrong one, as primitives check what they do.
"""

from __future__ import annotations

import math
from functools import partial

from weft.expr.nodes import free_vars
from weft.loop.nodes import For, Program, Seq, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_tuning.finishing import finish
from weft_tuning.levels import Tiles
from weft_tuning.moves import AGAIN, may, pointwise, sequential, worth_forking

NAME = "searched"
LIGHT = 12
"""Operations of a formula from which on it is stored rather than computed again."""
LONGEST = 4096
"""Operations of a formula that another is inlined into, at most."""
COPIED = 4
"""Operands of a block that may be copied."""
REUSED = 16
"""Uses of an element from which on an operand is copied in another order by default."""


class SearchedRule(Rule):
    """See the module. It is used only where a record, or a tuner, chooses it."""

    name = NAME
    by_default = False

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if machine.grid is not None:
            return Decline("grid", "the loops of a grid are bound to groups and threads")
        return Offer(of_blocks(program, machine))

    def apply(self, schedule: Schedule) -> None:
        rows_first(schedule)
        inline(schedule)
        for name in schedule.blocks():
            prepare(schedule, name)
        tiles = Tiles(schedule)
        for name in reversed(schedule.blocks()):
            tiles.schedule(name)
        finish(schedule, tiles.unrolled, tiles.vectorized)


def rows_first(s: Schedule) -> None:
    """Independent rows of a scan around its steps (choice `rows_first`)."""
    steps = sequential(s)
    for loop in [x for x in walk_stmts(s.program.body) if isinstance(x, For) and x.var.name in steps]:
        nests = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
        outer = [n.var.name for n in nests if isinstance(n, For)]
        name = loop.var.name
        if may(s, partial(s.lift, name, outer)) and s.choose(f"{name}.rows_first", [True, False], True):
            s.lift(name, outer)


def inline(s: Schedule) -> None:
    """Pointwise producers into their consumers (choice `BLOCK.inline`), the last ones first."""
    outputs = {b.name for b in s.program.outputs}
    for name in reversed(s.blocks()):
        block = s.block(name)
        written, consumers = s.buffers(name), s.consumers(name)
        if access.is_reduction(block) or len(written) != 1 or written[0] in outputs or not consumers:
            continue
        places = [x for c in consumers for x in access.loads(s.block(c)) if x.buffer.name == written[0]]
        cost = access.formula_cost(block)
        longest = cost * len(places) + sum(access.formula_cost(s.block(c)) for c in consumers)
        if longest > LONGEST or not may(s, partial(s.compute_inline, name)):
            continue
        again = len(places) * max(access.block_work(s.block(c)) for c in consumers) // access.block_work(block)
        if cost > LIGHT and again > AGAIN:
            continue
        if s.choose(f"{name}.inline", [True, False], cost <= LIGHT or again <= 1):
            s.compute_inline(name)


def prepare(s: Schedule, name: str) -> None:
    """Pieces of a reduction, the buffer of its results, and copies of its operands."""
    assert isinstance(s.machine, Machine)
    block = s.block(name)
    if not access.is_reduction(block) or any(i.kind == "scan" for i in block.iters):
        return
    view = access.LoopView.of(s, name)
    reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
    results = math.prod(view.extent(x) for x in view.loops if view.kinds.get(x) == "spatial")
    cores = s.machine.cores
    if reduce and results < cores:
        n = view.extents[reduce[0]]
        counts = [1, *(k * cores for k in (1, 2, 4, 8) if n is None or k * cores * 2 <= n)]
        worth = cores > 1 and worth_forking(s, name)
        pieces = s.choose(f"{name}.pieces", sorted(set(counts)), counts[min(2, len(counts) - 1)] if worth else 1)
        if pieces > 1:
            with s.attempt() as tried:
                outer, _ = s.split(reduce[0], [pieces, None])
                part = s.rfactor(name, outer)
            if tried:
                _prepare_buffers(s, part, True)
                return
    _prepare_buffers(s, name, False)


def _prepare_buffers(s: Schedule, name: str, part: bool) -> None:
    view = access.LoopView.of(s, name)
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    outputs = {b.name for b in s.program.outputs}
    own = view.store.buffer.name
    followed = [c for c in s.consumers(name) if pointwise(s, c, own)]
    if spatial and may(s, lambda: s.cache_write(name, "local")):
        wanted = own in outputs or part or not followed
        if s.choose(f"{name}.write_back", [True, False], wanted):
            s.cache_write(name, "local")
    inner, lane = view.loops[-1], next((x for x in spatial if view.stride(view.store, x) == 1), None)
    crossed = all(view.stride(x, inner) in (0, 1) for x in view.loads if x.buffer.name != own)
    inputs = {b.name for b in s.program.inputs}
    loads = {x.buffer.name: x for x in view.loads if x.buffer.name in inputs and x.indices}
    for buffer, x in list(loads.items())[:COPIED]:
        if not may(s, partial(s.cache_read, name, buffer, "local")):
            continue
        rank = len(x.indices)
        moved = [k for k, index in enumerate(x.indices[:-1]) if lane in free_vars(index)]
        orders: dict[str, tuple[int, ...] | None] = {"none": None, "same": None}
        if moved:
            orders["lanes last"] = (*(d for d in range(rank) if d != moved[-1]), moved[-1])
        reused = math.prod(view.extent(v) for v in spatial if view.stride(x, v) == 0)
        along = view.kinds.get(inner) == "reduce" and crossed and view.stride(x, inner) == 1
        wanted_order = "lanes last" if moved and along and reused >= REUSED else "none"
        order = s.choose(f"{name}.copy.{buffer}", list(orders), wanted_order)
        if order != "none":
            s.cache_read(name, buffer, "local", orders[order])
