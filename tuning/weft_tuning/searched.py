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
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from weft.dtypes import int64
from weft.expr.nodes import Const, Expr, free_vars, substitute
from weft.expr.simplify import simplify
from weft.loop.nodes import Allocate, Block, Buffer, For, Load, Program, Seq, Stmt, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft.scheduling.trace import CHOOSE, Step

NAME = "searched"
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sizes of tiles, besides the divisors of the loop's extent up to the last of these."""
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
"""Options of how many tiles are a block."""
PARTS = (0, 32, 64, 128, 256, 512)
"""Options of how many steps are a part of a reduction; 0: it has no parts."""
VECTORS = (1, 2, 4, 8)
"""Options of how many vectors are side by side in a tile."""
TASKS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Options of how many tasks each core gets; 0: one core does all."""
UNROLLED = 48
"""Statements of a tile that are written out, at most."""
MOVED = 16
"""As `UNROLLED`, of a block that no tile of registers makes faster."""
STEPS = 96
"""Statements of a tile with the steps of a reduction that are written out, at most."""
FORMULA = 2048
"""Operations of a block that are written out, at most."""
LIGHT = 12
"""Operations of a formula from which on it is stored rather than computed again."""
LONGEST = 4096
"""Operations of a formula that another is inlined into, at most."""
AGAIN = 8
"""How many times an element may be computed."""
COPIED = 4
"""Operands of a block that may be copied."""
SHORT = 4
"""Steps of a reduction up to which it is written out by default."""
REUSED = 16
"""Uses of an element from which on an operand is copied in another order by default."""
STACK = 1 << 16
"""Bytes up to which a buffer in a loop is local."""


class SearchedRule(Rule):
    """See the module. It is used only where a record, or a tuner, chooses it."""

    name = NAME

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body):
            return Decline("loop_program", "statements stand outside blocks")
        if machine.grid is not None:
            return Decline("grid", "the loops of a grid are bound to groups and threads")
        return Offer(of_blocks(program, machine), by_default=False)

    def apply(self, schedule: Schedule) -> None:
        rows_first(schedule)
        inline(schedule)
        for name in schedule.blocks():
            prepare(schedule, name)
        tiles = Tiles(schedule)
        for name in reversed(schedule.blocks()):
            tiles.schedule(name)
        tiles.finish()


def may(s: Schedule, step: Callable[[], object]) -> bool:
    """Whether a step may act; it does not."""
    before = s.checkpoint()
    with s.attempt() as tried:
        step()
    s.rollback(before)
    return bool(tried)


def attempt(s: Schedule, steps: Callable[[], None]) -> bool:
    """Applies steps all or none, as `Schedule.attempt`; choices that they have made stay, as records name all of
    them."""
    before = len(s.trace.steps)
    made: list[Step] = []

    def noted() -> None:
        try:
            steps()
        finally:
            made.extend(x for x in s.trace.steps[before:] if x.do == CHOOSE)

    with s.attempt() as tried:
        noted()
    if not tried:
        s.trace.steps.extend(made)
    return bool(tried)


def sequential(s: Schedule) -> set[str]:
    """Loops over the steps of scans."""
    blocks = access.blocks_of(s.program)
    return {v for b in blocks for i, x in zip(b.iters, b.bindings) if i.kind == "scan" for v in free_vars(x)}


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
    followed = [c for c in s.consumers(name) if _pointwise(s, c, own)]
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


def _pointwise(s: Schedule, consumer: str, buffer: str) -> bool:
    """Whether the block is no reduction, and reads the buffer at one place, along all of its loops."""
    view = access.LoopView.of(s, consumer)
    if access.is_reduction(s.block(consumer)):
        return False
    places = {x.indices for x in view.loads if x.buffer.name == buffer}
    used = {v for p in places for i in p for v in free_vars(i)}
    return len(places) == 1 and used >= {x for x in view.loops if view.extents[x] != 1}


def worth_forking(s: Schedule, name: str) -> bool:
    """Whether the block takes longer than a parallel loop's start and end."""
    assert isinstance(s.machine, Machine)
    rates, block = s.machine.rates, s.block(name)
    cycles = access.block_work(block) * access.formula_cost(block) / s.machine.lanes(access.target(block).buffer.dtype)
    return cycles >= rates.cycles(rates.fork_seconds + rates.join_seconds)


def sizes(n: int | None) -> list[int]:
    """Sizes of a tile along a loop of `n` iterations (None: known only at run time): a short list, the whole included
    where that is not large."""
    most = SIZES[-1]
    if n is None:
        return list(SIZES)
    divisors = {k for k in range(1, min(n, most) + 1) if n % k == 0}
    return sorted(k for k in {*SIZES, *divisors} if k <= n)


class Tiles:
    """The second part of the rule: places and loops of blocks, consumers first.

    Attributes:
        frame: block → how many of its loops are outside its tile, under which producers may be computed.
    """

    def __init__(self, s: Schedule) -> None:
        assert isinstance(s.machine, Machine)
        self.s, self.machine = s, s.machine
        self.frame: dict[str, int] = {}
        self.unrolled: list[str] = []
        self.vectorized: list[str] = []

    # -- places
    def schedule(self, name: str) -> None:
        """Places a block, and divides its loops."""
        fixed = self.place(name)
        self.frame[name] = len(self.s.loops(name))
        before = list(self.unrolled), list(self.vectorized), dict(self.frame)
        if not attempt(self.s, lambda: self.divide(name, fixed)):
            self.unrolled, self.vectorized, self.frame = before

    def place(self, name: str) -> int:
        """Computes a block at a loop of its consumers (choice `BLOCK.at`).

        Returns:
            How many loops around it are others' as well.
        """
        s = self.s
        steps = sequential(s)
        loops = s.loops(name)
        fixed = max((k + 1 for k, x in enumerate(loops) if x in steps), default=0)
        written, consumers = s.buffers(name), s.consumers(name)
        outputs = {b.name for b in s.program.outputs}
        if fixed or not consumers or set(written) & outputs or not all(c in self.frame for c in consumers):
            return fixed
        common = self._common(consumers)
        if not common:
            return 0
        default = self._default_place(written, consumers, common)
        again = self._again(written, consumers, common)
        depth = s.choose(
            f"{name}.at",
            list(range(len(common) + 1)),
            default,
            lambda d: None if again[d] <= AGAIN else f"elements would be computed {again[d]} times",
        )
        while depth:
            with s.attempt() as tried:
                s.compute_at(name, common[depth - 1])
            if tried:
                break
            depth -= 1
        return depth

    def _common(self, consumers: Sequence[str]) -> list[str]:
        """The loops around all of them, as far as they are outside of their tiles."""
        frames = [self.s.loops(c)[: self.frame[c]] for c in consumers]
        common: list[str] = []
        for loops in zip(*frames):
            if len(set(loops)) != 1:
                break
            common.append(loops[0])
        return common

    def _again(self, written: Sequence[str], consumers: Sequence[str], common: Sequence[str]) -> list[int]:
        """By how many of the common loops are around it: how often each element is computed at least, as consumers read
        the same ones in all iterations of a loop."""
        again = [1]
        for loop in common:
            same = not all(any(loop in free_vars(i) for i in p) for p in self._places(written, consumers))
            again.append(again[-1] * (access.extent(self.s.loop(loop)) if same else 1))
        return again

    def _places(self, written: Sequence[str], consumers: Sequence[str]) -> set[tuple[Expr, ...]]:
        views = [access.LoopView.of(self.s, c) for c in consumers]
        return {x.indices for view in views for x in view.loads if x.buffer.name in written}

    def _default_place(self, written: Sequence[str], consumers: Sequence[str], common: Sequence[str]) -> int:
        """As deep as nothing is computed again, outside of reductions; before all loops if neighbours are read as
        well."""
        if len(self._places(written, consumers)) > len(consumers):
            return 0
        kinds = [access.LoopView.of(self.s, c).kinds for c in consumers]
        summed = [k for k, x in enumerate(common) if any(of.get(x) == "reduce" for of in kinds)]
        most = min(summed, default=len(common))
        return max(k for k, n in enumerate(self._again(written, consumers, common)) if n == 1 and k <= most)

    # -- loops
    def divide(self, name: str, fixed: int) -> None:
        """The levels of a block's own loops, see the module."""
        s, machine = self.s, self.machine
        view, block = access.LoopView.of(s, name), s.block(name)
        own = [x for x in view.loops[fixed:] if view.extents[x] != 1]
        reduce = [x for x in own if view.kinds.get(x) == "reduce"]
        spatial = [x for x in own if x not in reduce]
        axes = {v: k for k, b in enumerate(block.bindings) for v in free_vars(b)}
        if not own or any(x not in axes for x in own):
            return
        lanes = machine.lanes(view.store.buffer.dtype)
        cost = max(1, access.formula_cost(block))
        near = [x for x in spatial if any(view.stride(a, x) == 1 for a in (view.store, *view.loads))]
        ways = {f"along {axes[x]}": x for x in near or spatial}
        options = [*ways, *(["steps"] if self._along_steps(view, reduce, block) else [])]
        options += [] if near else ["none"]
        way = s.choose(f"{name}.lanes", options, self._default_lanes(view, ways, options))
        if way == "steps":
            self.lanes_along_steps(name, fixed, spatial, reduce, lanes)
            return
        lane = ways.get(way)
        moves = lane is None or not (reduce or self._reused(name, view, spatial) or access.calls_formula(block))
        room = max(1, min(MOVED if moves else UNROLLED, FORMULA // cost))
        tile = self._tile(name, view, spatial, lane, lanes, room, fixed, axes)
        count = math.prod(t if x != lane else -(-t // lanes) for x, t in tile.items())
        steps: dict[str, int] = {}
        room = max(1, min(STEPS, FORMULA // cost))
        for x in reversed(reduce):
            n = view.extents[x]
            short = n if n is not None and n <= SHORT and count * n <= room else 1
            steps[x] = s.choose(f"{name}.steps.{axes[x]}", sizes(n), short, _within(room, count))
            count *= steps[x]
        levels = Levels()
        for x in spatial:
            self._spatial(name, x, axes[x], tile[x], view.extents[x], lanes if x == lane else None, levels)
        for x in reduce:
            self._reduce(name, x, axes[x], steps[x], view.extents[x], levels)
        labels = [f"{axes[x]}" for x in spatial if levels.first.get(x)]
        if len(labels) > 1:
            first = s.choose(f"{name}.outermost", labels, labels[0])
            found = next(levels.first[x] for x in spatial if f"{axes[x]}" == first)
            levels.s0 = [found, *(x for x in levels.s0 if x != found)]
        s.reorder(*levels.order()) if len(levels.order()) > 1 else None
        inner = [*levels.r2, *levels.tile]
        loops = s.loops(name)
        self.frame[name] = min((loops.index(x) for x in inner), default=len(loops))
        blocks = [name]
        summed = [x for x in levels.order() if x in {*levels.r0, *levels.r1, *levels.r2}]
        if block.init is not None and summed:
            with s.attempt() as tried:
                init = s.decompose_reduction(name, summed[0])
            if tried:
                blocks.append(init)
                self.frame[init] = len(s.loops(init)) - len(levels.tile)
        self.unrolled += levels.r2
        for b in blocks:
            *rest, last = s.loops(b)[-len(levels.tile) :] if levels.tile else [None]
            self.unrolled += [x for x in rest if x is not None]
            if last is not None:
                (self.vectorized if lane is not None else self.unrolled).append(last)

    def _along_steps(self, view: access.LoopView, reduce: Sequence[str], block: Block) -> bool:
        return bool(reduce) and block.init is not None and len(list(access.stores(block))) == 1

    def _default_lanes(
        self, view: access.LoopView, ways: dict[str, str], options: Sequence[str]
    ) -> str:
        """Where most accesses are contiguous, and the store is."""

        def contiguous(loop: str) -> tuple[bool, int]:
            near = [view.stride(x, loop) in (0, 1) for x in view.loads]
            return view.stride(view.store, loop) == 1 and all(near), sum(near)

        best = max(reversed(list(ways.values())), key=contiguous, default=None)
        if best is not None and contiguous(best)[0]:
            return next(way for way, x in ways.items() if x == best)
        last = view.loops[-1]
        if "steps" in options and view.kinds.get(last) == "reduce":
            n = view.extents[last]
            if all(view.stride(x, last) in (0, 1) for x in view.loads) and (n is None or n > SHORT):
                return "steps"
        stored = next((way for way, x in ways.items() if view.stride(view.store, x) == 1), None)
        return stored or "none"

    def _tile(
        self,
        name: str,
        view: access.LoopView,
        spatial: Sequence[str],
        lane: str | None,
        lanes: int,
        room: int,
        fixed: int,
        axes: dict[str, int],
    ) -> dict[str, int]:
        """Sizes of the tile, whose product is `room` statements at most."""
        s, found, count = self.s, dict[str, int](), 1
        rows = self._reused(name, view, [x for x in spatial if x != lane])
        n = view.extents[lane] if lane is not None else 1
        wanted = self._register_tile(n, lanes, view.extents[rows[-1]]) if rows else (1, 1)
        whole = (0,) if fixed else ()
        if lane is not None:
            most = 0 if n is None else -(-n // lanes)
            few = most in VECTORS
            default = 0 if fixed and few and most <= room else wanted[1]
            vectors = s.choose(
                f"{name}.vectors",
                (*(whole if few else ()), *VECTORS),
                default,
                lambda k: _too_short(n, k or most, lanes, room),
            )
            vectors = vectors or most
            found[lane] = vectors * lanes if n is None else min(n, vectors * lanes)
            count = vectors
        for x in reversed([x for x in spatial if x != lane]):
            n = view.extents[x]
            left, size = room // count, n or room + 1
            default = max(k for k in SIZES if k == 1 or (x in rows[-1:] and k <= min(left, wanted[0])))
            if fixed and size <= left:
                default = 0
            fits = _within(room, count)
            choices = (*(whole if n is not None else ()), *sizes(n))
            tile = s.choose(f"{name}.tile.{axes[x]}", choices, default, _of_whole(fits, size))
            found[x] = tile or size
            count *= found[x]
        return found

    def _register_tile(self, n: int | None, lanes: int, rows: int | None) -> tuple[int, int]:
        """Rows and vectors of a tile whose sums stay in registers beside a row of vectors and a broadcast: those of
        the most multiply-adds for each operand."""
        registers = self.machine.vector_registers
        found = [
            (r * v / (r + v), r, v)
            for v in VECTORS
            for r in SIZES
            if (rows is None or r <= rows) and (n is None or v == 1 or v * lanes <= n) and r * v + v < registers
        ]
        return max(found)[1:] if found else (1, 1)

    def _reused(self, name: str, view: access.LoopView, loops: Sequence[str]) -> list[str]:
        """Loops along which a reduction reads some operand again: its own, or those that its consumer has for them."""
        s = self.s
        if access.is_reduction(s.block(name)):
            operands = [a for a in view.loads if a.buffer.name != view.store.buffer.name]
            return [x for x in loops if any(view.stride(a, x) == 0 for a in operands)]
        for producer in s.producers(name):
            seen = access.LoopView.of(s, producer)
            written = seen.store.buffer.name
            if not access.is_reduction(s.block(producer)) or not _pointwise(s, name, written):
                continue
            own = self._reused(producer, seen, [x for x in seen.loops if seen.kinds.get(x) != "reduce"])
            dims = [k for k, i in enumerate(seen.store.indices) if free_vars(i).keys() & set(own)]
            read = next(x for x in view.loads if x.buffer.name == written)
            return [x for x in loops if any(x in free_vars(read.indices[k]) for k in dims)]
        return []

    def _spatial(
        self, name: str, loop: str, axis: int, tile: int, n: int | None, lanes: int | None, levels: Levels
    ) -> None:
        """Cuts a spatial loop into S0, S1 and its part of the tile, vectors of lanes in it."""
        s = self.s
        inside = [tile] if lanes is None or tile <= lanes else [tile // lanes, lanes]
        if lanes is None and tile == 1:
            inside = []
        around = None if n is None else -(-n // tile)
        block = 1
        if (around is None or around > 1) and self._blocked(name):
            block = s.choose(f"{name}.block.{axis}", BLOCKS, 1, _within(around or BLOCKS[-1], 1))
        parts: list[int | None] = [None] if around is None or around > block else []
        parts += [block] if block > 1 else []
        factors = [*parts, *inside]
        if None not in factors:
            factors[0] = None
        pieces = [loop] if len(factors) == 1 else s.split(loop, factors)
        heads = pieces[: len(parts)]
        if parts and parts[0] is None:
            levels.s0.append(heads[0])
            levels.first[loop] = heads[0]
            levels.s1 += heads[1:]
        else:
            levels.s1 += heads
        mine = pieces[len(parts) :]
        if lanes is not None:
            levels.columns, levels.lane = mine[:-1], mine[-1:]
        else:
            levels.rows += mine

    def _blocked(self, name: str) -> bool:
        """Whether the order of tiles may matter: a block that others are computed under, or that reads an element more
        than once or not along its loops."""
        view = access.LoopView.of(self.s, name)
        loads = set(view.loads)
        inner = view.loops[-1]
        return (
            bool(self.s.producers(name))
            or access.is_reduction(self.s.block(name))
            or len({x.buffer.name for x in loads}) < len(loads)
            or any(view.stride(x, inner) not in (0, 1) for x in loads)
        )

    def _reduce(self, name: str, loop: str, axis: int, steps: int, n: int | None, levels: Levels) -> None:
        """Cuts a reduction loop into R0, R1 and R2."""
        s = self.s
        part = 0
        if n is None or n > PARTS[1]:
            part = s.choose(f"{name}.part.{axis}", PARTS, 0, lambda p: _no_part(n, p, steps))
        factors: list[int | None] = [None] if part else []
        rest = part // steps if part else None
        if steps == n:
            levels.r2.append(loop)
            return
        factors += [rest]
        factors += [steps] if steps > 1 else []
        pieces = [loop] if len(factors) == 1 else s.split(loop, factors)
        if part:
            levels.r0.append(pieces.pop(0))
        levels.r1.append(pieces.pop(0))
        levels.r2 += pieces

    def lanes_along_steps(
        self, name: str, fixed: int, spatial: Sequence[str], reduce: Sequence[str], lanes: int
    ) -> None:
        """Partial results in the lanes of vectors along the innermost reduction loop, then these into one."""
        s = self.s
        loop = reduce[-1]
        n = int_const(s.loop(loop).extent)
        if n is not None:
            lanes = min(lanes, 1 << (n.bit_length() - 1))
        most = 4 if n is None or n >= 8 * lanes else 1
        vectors = s.choose(f"{name}.vectors", VECTORS, most, lambda k: _too_short(n, k, lanes, UNROLLED))
        if len(spatial) + len(reduce) > 1:
            s.reorder(*spatial, *reduce)
        width = vectors * lanes
        _, inner = s.split(loop, [None, width])
        partial = s.rfactor(name, inner)
        if spatial:
            s.reverse_compute_at(name, spatial[-1])
        loops = s.loops(partial)
        at = fixed + len(spatial)
        init = s.decompose_reduction(partial, loops[at])
        self.frame[partial] = len(loops) - 1
        self.frame[init] = self.frame[name] = at
        for b in (partial, init):
            lane = s.loops(b)[-1]
            if vectors > 1:
                column, lane = s.split(lane, [vectors, lanes])
                self.unrolled.append(column)
            self.vectorized.append(lane)
        left = width
        while left > 2:
            half = lanes if left > lanes else left // 2
            column, lane = s.split(s.loops(name)[-1], [left // half, half])
            folded = s.rfactor(name, lane, True)
            start = s.decompose_reduction(folded, column)
            self.unrolled.append(column)
            self.vectorized += [s.loops(b)[-1] for b in (folded, start)]
            self.frame[folded] = self.frame[start] = at
            left = half
        if left > 1:
            self.unrolled.append(s.loops(name)[-1])

    # -- the whole
    def finish(self) -> None:
        """Parallel loops, buffers, and what is written out."""
        s = self.s
        tops = [self._join(nest) for nest in self._nests()]
        for buffer in [x.buffer.name for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]:
            self._compact(buffer)
        for loop in dict.fromkeys(self.unrolled):
            with s.attempt():
                s.unroll(loop)
        for loop in dict.fromkeys(self.vectorized):
            with s.attempt():
                s.vectorize(loop)
        for top in tops:
            if top is not None:
                with s.attempt():
                    s.parallel(top)
        self._memories()

    def _nests(self) -> list[list[str]]:
        """Of each outermost nest its loops, as far as nothing else is between them, and the blocks in it."""
        s = self.s
        found: dict[str, list[str]] = {}
        for name in s.blocks():
            loops = s.loops(name)
            if loops:
                found.setdefault(loops[0], []).append(name)
        return list(found.values())

    def _join(self, blocks: Sequence[str]) -> str | None:
        """As few of the outermost loops as give every core several tasks (choice `BLOCK.tasks`), as one; its name."""
        s, cores = self.s, self.machine.cores
        last = blocks[-1]
        steps = sequential(s)
        kinds: dict[str, set[str]] = {}
        for b in blocks:
            for x, kind in access.LoopView.of(s, b).kinds.items():
                kinds.setdefault(x, set()).add(kind)
        able: list[str] = []
        stmt: Stmt = s.loop(s.loops(last)[0])
        tile = {*self.unrolled, *self.vectorized}
        while isinstance(stmt, For):
            v = stmt.var.name
            if v in steps or v in tile or kinds.get(v, {"spatial"}) != {"spatial"}:
                break
            able.append(v)
            stmt = stmt.body
        if not able or cores == 1:
            return None
        worth = any(worth_forking(s, b) for b in blocks)
        each = s.choose(f"{last}.tasks", TASKS, 8 if worth else 0)
        if each == 0:
            return None
        taken: list[str] = []
        tasks = 1
        for loop in able:
            if tasks >= each * cores:
                break
            taken.append(loop)
            tasks *= access.extent(s.loop(loop))
        if len(taken) > 1:
            with s.attempt() as tried:
                joined = str(s.fuse(*taken))
            if tried:
                return joined
        return taken[0]

    def _compact(self, buffer: str) -> None:
        s = self.s
        before = s.checkpoint()
        with s.attempt() as tried:
            s.compact_buffer(buffer)
        if not tried:
            return
        new = next(x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate) and x.buffer.name == buffer)
        lanes = self.machine.lanes(new.dtype)
        n = int_const(new.shape[-1]) if new.shape else None
        if n is not None and n > lanes and n % lanes:
            s.rollback(before)
            with s.attempt():
                s.compact_buffer(buffer, lanes)

    def _memories(self) -> None:
        """Buffers inside loops are local; those of tiles that are written out are registers."""
        s = self.s
        loops = {x.var.name: x for x in walk_stmts(s.program.body) if isinstance(x, For)}
        writers: dict[str, str] = {}
        uses: dict[str, list[tuple[access.LoopView, Load]]] = {}
        for name in s.blocks():
            for b in s.buffers(name):
                writers.setdefault(b, name)
            view = access.LoopView.of(s, name)
            for x in dict.fromkeys((view.store, *view.loads)):
                uses.setdefault(x.buffer.name, []).append((view, x))
        most = 2 * self.machine.vector_registers * self.machine.vector_bits // 8
        for buffer in [x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]:
            size = math.prod(int_const(d) or 0 for d in buffer.shape) * buffer.dtype.bytes
            if not size or size > STACK or buffer.name not in writers:
                continue
            single = len(list(access.stores(s.block(writers[buffer.name])))) == 1
            register = single and size <= most and _in_vectors(buffer, uses[buffer.name], loops)
            with s.attempt():
                s.set_scope(writers[buffer.name], "register" if register else "local")


def _in_vectors(
    buffer: Buffer, uses: Sequence[tuple[access.LoopView, Load]], loops: Mapping[str, For]
) -> bool:
    """Whether every access is one of constant elements, which are whole vectors of the widest, or a part of one whose
    length divides it: what registers are accessed by."""
    widths: list[int] = []
    for view, x in uses:
        moving = {v for i in x.indices for v in free_vars(i)}
        if any(v not in loops or loops[v].kind not in ("unrolled", "vectorized") for v in moving):
            return False
        strides = {v: view.stride(x, v) for v in moving}
        lanes = [v for v in moving if loops[v].kind == "vectorized"]
        if None in strides.values() or len(lanes) > 1 or any(strides[v] != 1 for v in lanes):
            return False
        width = int_const(loops[lanes[0]].extent) if lanes else 1
        at_zero = {v: Const(0, int64) for v in moving}
        start = [int_const(simplify(substitute(i, at_zero))) for i in x.indices]
        if width is None or None in start:
            return False
        first = sum(k * (int_const(n) or 0) for k, n in zip(start, access.strides(x)) if k)
        if first % width or any((n or 0) % width for v, n in strides.items() if v not in lanes):
            return False
        widths.append(width)
    widest = max(widths, default=1)
    row = int_const(buffer.shape[-1]) if buffer.shape else widest
    return all(widest % w == 0 for w in widths) and (row or 0) % widest == 0


class Levels:
    """The levels of a block's loops, each outermost first."""

    def __init__(self) -> None:
        self.s0: list[str] = []
        self.r0: list[str] = []
        self.s1: list[str] = []
        self.r1: list[str] = []
        self.r2: list[str] = []
        self.rows: list[str] = []
        self.columns: list[str] = []
        self.lane: list[str] = []
        self.first: dict[str, str] = {}
        """Loop as it was → its part in S0."""

    @property
    def tile(self) -> list[str]:
        return [*self.rows, *self.columns, *self.lane]

    def order(self) -> list[str]:
        return [*self.s0, *self.r0, *self.s1, *self.r1, *self.r2, *self.tile]


def _within(room: int, count: int) -> Callable[[int], str | None]:
    """The predicate of a size: as many statements fit."""
    return lambda t: None if t == 1 or t * count <= room else f"{t * count} is more than {room}"


def _of_whole(fits: Callable[[int], str | None], n: int) -> Callable[[int], str | None]:
    """The predicate `fits`, 0 standing for `n`."""
    return lambda t: fits(t or n)


def _too_short(n: int | None, vectors: int, lanes: int, room: int) -> str | None:
    if vectors > room:
        return f"{vectors} statements are more than {room}"
    if vectors == 1 or n is None or -(-n // lanes) >= vectors:
        return None
    return f"the loop has {n} iterations, {vectors} vectors have {vectors * lanes} elements"


def _no_part(n: int | None, part: int, steps: int) -> str | None:
    if part == 0:
        return None
    if part % steps:
        return f"a part of {part} is not whole in {steps} steps"
    return None if n is None or part < n else f"the reduction has {n} steps"
