"""The second part of the rule `searched`: places and loops of blocks, consumers first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.expr.nodes import Expr, free_vars
from weft.loop.nodes import Block, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule
from weft_tuning.moves import AGAIN, SIZES, attempt, no_part, of_whole, pointwise, sequential, sizes, too_short, within

BLOCKS = (1, 2, 4, 8, 16, 32, 64)
"""Options of how many tiles are a block."""
PARTS = (0, 32, 64, 128, 256, 512)
"""Options of how many steps are a part of a reduction; 0: it has no parts."""
VECTORS = (1, 2, 4, 8)
"""Options of how many vectors are side by side in a tile."""
UNROLLED = 48
"""Statements of a tile that are written out, at most."""
MOVED = 16
"""As `UNROLLED`, of a block that no tile of registers makes faster."""
STEPS = 96
"""Statements of a tile with the steps of a reduction that are written out, at most."""
FORMULA = 2048
"""Operations of a block that are written out, at most."""
SHORT = 4
"""Steps of a reduction up to which it is written out by default."""


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
            steps[x] = s.choose(f"{name}.steps.{axes[x]}", sizes(n), short, within(room, count))
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

    def _default_lanes(self, view: access.LoopView, ways: dict[str, str], options: Sequence[str]) -> str:
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
        return stored or ("none" if "none" in options else next(way for way, x in ways.items() if x == best))

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
                lambda k: too_short(n, k or most, lanes, room),
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
            fits = within(room, count)
            choices = (*(whole if n is not None else ()), *sizes(n))
            tile = s.choose(f"{name}.tile.{axes[x]}", choices, default, of_whole(fits, size))
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
            if not access.is_reduction(s.block(producer)) or not pointwise(s, name, written):
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
            block = s.choose(f"{name}.block.{axis}", BLOCKS, 1, within(around or BLOCKS[-1], 1))
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
            part = s.choose(f"{name}.part.{axis}", PARTS, 0, lambda p: no_part(n, p, steps))
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
        vectors = s.choose(f"{name}.vectors", VECTORS, most, lambda k: too_short(n, k, lanes, UNROLLED))
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
