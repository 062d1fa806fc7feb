"""Schedule rules: products and convolutions on the matrix unit, everything else on the vector unit.

A rule tries: it schedules, lowers and lists what the code generator lacks. What comes of it is the offer, or the reason
to decline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft import dtypes as dt
from weft.errors import ScheduleError, WeftError
from weft.expr.nodes import Const, Expr, FloorDiv, FloorMod, Mul, Select, Var, free_vars, walk
from weft.expr.ranges import Range, range_of
from weft.loop.nodes import Block, Load, Program, Store, int_const
from weft.loop.pipeline import lower_program
from weft.machine import Machine
from weft.scheduling import Decline, Offer, Rule, Schedule
from weft_npu.codegen import NpuCodegen
from weft_npu.instructions import instructions
from weft_npu.intrinsics import A_SCOPE, B_SCOPE, C_SCOPE, INTRINSICS
from weft_npu.isa import MEMORIES, TILE
from weft_npu.simulator import DMA_BYTES, DMA_START, GEMM_CYCLES, estimate

PRODUCTS = frozenset({"MatMul", "Conv"})
LIMITS = (16384, 8192, 4096, 2048, 1024, 256, 64)
"""Elements of a result that the vector unit works on at once, tried from the first on."""


def memories(machine: Machine) -> tuple[int, int, int, int]:
    a, b, c, d = (machine.scopes[f"npu.{name}"].size or 0 for name in MEMORIES)
    return a, b, c, d


class NpuRule(Rule):
    """A rule that offers what it has tried. `beside`: while one unit works the others do the pieces before and
    after."""

    beside: ClassVar[bool] = True

    def __init__(self) -> None:
        self.known: dict[tuple[str, Machine], Offer | Decline] = {}

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        key = (str(program), machine)
        if key not in self.known:
            self.known[key] = self._tried(program, machine)
        return self.known[key]

    def _tried(self, program: Program, machine: Machine) -> Offer | Decline:
        if program.dims:
            return Decline("symbolic", f"sizes known only at run time: {', '.join(d.name for d in program.dims)}")
        other = next((b for b in program.params if b.dtype != dt.float32), None)
        if other is not None:
            return Decline("dtype", f"'{other.name}' holds {other.dtype}, the npu computes in float32")
        if any(int_const(d) == 0 for b in program.params for d in b.shape):
            return Decline("empty", "it has nothing to compute")
        try:
            schedule = Schedule(program, machine, intrinsics={i.name: i for i in INTRINSICS})
            self.apply(schedule)
        except ScheduleError as error:
            return Decline("schedule", error.why or error.what)
        try:
            generator = codegen(machine)
            lowered = lower_program(schedule.program, generator.functions)
            lacks = generator.check(lowered)
        except WeftError as error:
            lacks = [error.what]
        if lacks:
            return Decline("code", "; ".join(lacks[:3]))
        return Offer(estimate(generator.kernel(lowered), self.beside) / machine.rates.clock_hz)


def codegen(machine: Machine) -> NpuCodegen:
    return NpuCodegen(memories(machine), "double_buffer" in machine.features)


def lacking(program: Program, machine: Machine) -> list[str]:
    """What the code generator lacks for a scheduled program."""
    try:
        return codegen(machine).check(lower_program(program, NpuCodegen.functions))
    except WeftError as error:
        return [error.what]


def _extents(block: Block) -> dict[str, int]:
    found = {}
    for i in block.iters:
        n = int_const(i.extent)
        if n is None:
            raise ScheduleError(f"iterator '{i.var.name}' of '{block.name}' has no constant extent")
        found[i.var.name] = n
    return found


def _store(block: Block) -> Store:
    body = block.body
    while not isinstance(body, Store):
        inner = getattr(body, "then", None)
        if inner is None or getattr(body, "orelse", None) is not None:
            raise ScheduleError(f"the body of block '{block.name}' is not one store")
        body = inner
    return body


def _loads(e: Expr) -> list[Load]:
    return list(dict.fromkeys(x for x in walk(e) if isinstance(x, Load)))


def _operands(block: Block) -> list[str]:
    """Buffers that a block reads and does not write."""
    store = _store(block)
    return list(dict.fromkeys(x.buffer.name for x in _loads(store.value) if x.buffer.name != store.buffer.name))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _inline(s: Schedule, names: Sequence[str]) -> None:
    for name in names:
        s.compute_inline(name)


# -- the vector unit
# ------------------------------------------------------------------------------------------------------


class Vector(NpuRule):
    """Blocks one after another, each a piece at a time: operands are copied in, a vector formula is evaluated, the
    result is copied out."""

    name: ClassVar[str] = "vector"
    priority: ClassVar[int] = 0
    beside: ClassVar[bool] = False

    def apply(self, schedule: Schedule) -> None:
        s = schedule
        with s.attempt() as joined:
            for name in s.blocks()[:-1]:
                b = s.block(name)
                simple = (
                    b.init is None and name in s.blocks() and all(s.block(c).init is None for c in s.consumers(name))
                )
                if simple and s.consumers(name):
                    s.compute_inline(name)
            self.each(s)
        if not joined:  # formulas that fit one by one and not together
            self.each(s)

    def each(self, s: Schedule) -> None:
        """Every block by itself, what is between them in DRAM."""
        for name in s.blocks():
            self.alone(s, name)
        instructions(s)

    def alone(self, s: Schedule, name: str) -> None:
        """Schedules one block; what it reads and writes beyond is in DRAM."""
        self._whole_indices(s, name)
        self._block(s, name)

    def _whole_indices(self, s: Schedule, name: str) -> None:
        """Loops that are taken apart in indices, as i//8 and i%8, become two."""
        b = s.block(name)
        loops = {i.var.name: x.name for i, x in zip(b.iters, b.bindings) if isinstance(x, Var)}
        apart: dict[str, int] = {}
        for load in _loads(_store(b).value):
            for index in load.indices:
                for e in walk(index):
                    if (
                        isinstance(e, (FloorDiv, FloorMod))
                        and isinstance(e.a, Var)
                        and isinstance(e.b, Const)
                        and e.a.name in loops
                    ):
                        apart.setdefault(loops[e.a.name], int(e.b.value))
        for loop, size in apart.items():
            if (int_const(s.loop(loop).extent) or 1) % size == 0:
                s.split(loop, [None, size])

    def _block(self, s: Schedule, name: str) -> None:
        """The block with the largest pieces that fit."""
        before = s.checkpoint()
        why: list[str] = []
        for limit in LIMITS:
            s.rollback(before)
            self._piecewise(s, name, limit)
            why = codegen(s.machine).overflows(s.program)
            if not why:
                return
        raise ScheduleError(f"block '{name}' does not fit into the npu's memories", why=why[0])

    def _piecewise(self, s: Schedule, name: str, limit: int) -> None:
        b = s.block(name)
        moves = isinstance(_store(b).value, Load) or not any(
            isinstance(x, Load) and x.buffer.scope == "global" for x in walk(_arithmetic(_store(b).value))
        )
        copies = [] if moves and b.init is None else [s.cache_read(name, operand, A_SCOPE) for operand in _operands(b)]
        out = s.cache_write(name, C_SCOPE)
        b = s.block(name)
        loops = s.loops(name)
        spatial = [
            v for v in loops if any(i.kind == "spatial" and v in free_vars(x) for i, x in zip(b.iters, b.bindings))
        ]
        reduced = [v for v in loops if v not in spatial]
        size, at = 1, len(spatial)
        extents = {v: int_const(s.loop(v).extent) or 1 for v in spatial}
        while at and size * extents[spatial[at - 1]] <= limit:
            at -= 1
            size *= extents[spatial[at]]
        outer, inner = spatial[:at], spatial[at:]
        if outer and limit // size > 1:
            n = extents[outer[-1]]
            part = max(d for d in _divisors(n) if d * size <= limit)
            if part * 4 < limit // size:
                part = limit // size
            if part > 1:
                last, first = s.split(outer[-1], [None, part])
                outer, inner = [*outer[:-1], last], [first, *inner]
        order = [*outer, *reduced, *inner]
        if order and order != s.loops(name):
            s.reorder(*order)
        if outer:
            s.reverse_compute_at(out, outer[-1])
            for copy in copies:
                s.compute_at(copy, outer[-1])
            for buffer in (*s.buffers(name), *(x for copy in copies for x in s.buffers(copy))):
                s.compact_buffer(buffer)
        if b.init is not None:
            s.decompose_reduction(name, reduced[0])


def _arithmetic(value: Expr) -> Expr:
    """A formula, or a constant where it only chooses between elements and constants."""
    stack = [value]
    while stack:
        e = stack.pop()
        if isinstance(e, Select) and not any(isinstance(x, Load) for x in walk(e.cond)):
            stack += [e.a, e.b]
        elif not isinstance(e, (Load, Const)):
            return value
    return Const(0.0, dt.float32)


# -- the matrix unit
# ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product:
    """A sum of products C += A·B: which loads they are, and what each iterator of the block is.

    `row`, `column`, `depth`: the iterators of the tile, row None where the product has one row. `m`, `n`, `k`, `batch`:
    the others.
    """

    a: Load
    b: Load
    row: str | None
    column: str
    depth: str
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...]


def _last(load: Load | Store) -> str | None:
    """The iterator that is the last index."""
    e = load.indices[-1] if load.indices else None
    return e.name if isinstance(e, Var) else None


def _product(block: Block) -> _Product:
    """Raises ScheduleError where a block is no sum of products of this form."""
    store = _store(block)
    if block.init is None or store is not block.body:
        raise ScheduleError(f"block '{block.name}' is no plain sum")
    products = [e for e in walk(store.value) if isinstance(e, Mul) and isinstance(e.a, Load) and isinstance(e.b, Load)]
    if len(products) != 1 or str(store.value) != str(Load(store.buffer, store.indices) + products[0]):
        raise ScheduleError(f"block '{block.name}' is no sum of products of two buffers")
    column = _last(store)
    pair = [products[0].a, products[0].b]
    assert isinstance(pair[0], Load) and isinstance(pair[1], Load)
    kinds = {i.var.name: i.kind for i in block.iters}

    def has(load: Load | Store, v: str) -> bool:
        return any(v in free_vars(i) for i in load.indices)

    for a, b in (pair, pair[::-1]):
        assert isinstance(a, Load) and isinstance(b, Load)
        reduced = [v for v, kind in kinds.items() if kind == "reduce" and has(a, v) and has(b, v)]
        depth = next((v for v in reduced if v == _last(a)), None) or next(
            (v for v in reduced if v in free_vars(a.indices[-1])), None
        )
        if column is None or not has(b, column) or has(a, column) or depth is None:
            continue
        spatial = [v for v, kind in kinds.items() if kind == "spatial" and v != column]
        m = [v for v in spatial if has(a, v) and not has(b, v)]
        row = next((str(i) for i in reversed(store.indices) if isinstance(i, Var) and i.name in m), None)
        return _Product(
            a, b, row, column, depth,
            tuple(v for v in m if v != row),
            tuple(v for v in spatial if has(b, v) and not has(a, v)),
            tuple(v for v, kind in kinds.items() if kind == "reduce" and v != depth),
            tuple(v for v in spatial if has(a, v) == has(b, v)),
        )  # fmt: skip
    raise ScheduleError(f"block '{block.name}' is no product with elements side by side in its rows")


def _box(load: Load, tile: Mapping[str, int]) -> int:
    """Elements of what a tile of so many steps of each iterator reads."""
    ranges = {v: Range(0, n - 1) for v, n in tile.items()}
    total = 1
    for i in load.indices:
        r = range_of(i, ranges)
        total *= (r.hi or 0) - (r.lo or 0) + 1
    return total


@dataclass(frozen=True)
class _Plan:
    """Steps of the outermost loop of each kind in one piece."""

    n: int
    m: int
    k: int


class Gemm(NpuRule):
    """One product or convolution and what follows it: tiles of 8×8×8 on the matrix unit, the rest on the result in the
    accumulators."""

    name: ClassVar[str] = "gemm"
    priority: ClassVar[int] = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        found = [b.annotation("op") for b in _blocks(program) if b.init is not None]
        if len(found) != 1 or found[0] not in PRODUCTS:
            return Decline("no_product", "it is not one matrix product or convolution")
        return super().offer(program, machine)

    def apply(self, schedule: Schedule) -> None:
        with schedule.attempt() as joined:
            self.together(schedule)
        if joined:
            return
        with schedule.attempt() as apart:
            self.apart(schedule)
        if not apart:
            assert joined.error is not None
            raise joined.error

    def together(self, s: Schedule) -> None:
        """The product with what comes before and after it in one piece."""
        names = s.blocks()
        main = next(n for n in names if s.block(n).init is not None)
        at = names.index(main)
        _inline(s, names[:at])
        _inline(s, names[at + 1 : -1] if at < len(names) - 1 else [])
        self.product(s, main, names[-1] if at < len(names) - 1 else None)
        instructions(s)

    def apart(self, s: Schedule) -> None:
        """The product by itself, and so every other block, what is between them in DRAM: groups that fit one by one and
        not together."""
        vector = Vector()
        for name in s.blocks():
            if s.block(name).init is not None:
                self.product(s, name, None)
            else:
                vector.alone(s, name)
        instructions(s)

    def product(self, s: Schedule, main: str, last: str | None) -> None:
        """Schedules the block `main`, and with it `last`, which follows it on the result."""
        p = _product(s.block(main))
        a = s.cache_read(main, p.a.buffer.name, A_SCOPE)
        b = s.cache_read(main, p.b.buffer.name, B_SCOPE)
        if last is None:
            out = s.cache_write(main, C_SCOPE)
        else:
            s.set_scope(main, C_SCOPE)
            out = s.cache_write(last, C_SCOPE)
        self._pad(s, main, a, b)
        self._tile(s, main, a, b, last, out)

    # -- whole tiles
    def _pad(self, s: Schedule, main: str, a: str, b: str) -> None:
        """The copies on the chip and the accumulators as long as whole tiles need."""
        p = _product(s.block(main))
        sizes = _extents(s.block(main))
        if sizes[p.depth] % TILE:
            raise ScheduleError(
                f"the sum over '{p.depth}' has {sizes[p.depth]} steps",
                why=f"sums are computed {TILE} steps at once, {sizes[p.depth]} is no multiple",
            )
        for v in (p.row, p.column):
            if v is None or sizes[v] % TILE == 0:
                continue
            longer = {**sizes, v: -(-sizes[v] // TILE) * TILE}
            ranges = {w: Range(0, n - 1) for w, n in longer.items()}
            load, copy = (p.a, a) if v == p.row else (p.b, b)
            for d, index in enumerate(load.indices):
                if v in free_vars(index):
                    wanted, have = (range_of(index, ranges).hi or 0) + 1, int_const(load.buffer.shape[d]) or 0
                    if wanted > have:
                        s.pad_loop(copy, s.loops(copy)[d], wanted)
            (loop,) = [
                w for i, x in zip(s.block(main).iters, s.block(main).bindings) if i.var.name == v for w in free_vars(x)
            ]
            s.pad_loop(main, loop, TILE)

    # -- tiles
    def _tile(self, s: Schedule, main: str, a: str, b: str, last: str | None, out: str) -> None:
        block = s.block(main)
        p, sizes = _product(block), _extents(block)
        loop_of = {i.var.name: next(iter(free_vars(x)), "") for i, x in zip(block.iters, block.bindings)}

        def cut(v: str | None) -> tuple[str | None, str | None]:
            if v is None:
                return None, None
            if sizes[v] == TILE:
                return None, loop_of[v]
            outer, inner = s.split(loop_of[v], [None, TILE])
            return outer, inner

        (rows, row), (columns, column), (depths, depth) = cut(p.row), cut(p.column), cut(p.depth)
        m = [loop_of[v] for v in p.m] + ([rows] if rows else [])
        n = [loop_of[v] for v in p.n] + ([columns] if columns else [])
        # Sums may be cut where A is read block by block; taps, which move windows that overlap, are walked inside.
        blocks = [v for v in p.k if any(i == Var(v, dt.int64) for i in p.a.indices)]
        taps = [loop_of[v] for v in p.k if v not in blocks]
        k = ([depths] if depths else []) + [loop_of[v] for v in blocks]
        batch = [loop_of[v] for v in p.batch]
        extent = {w: int_const(s.loop(w).extent) or 1 for w in (*m, *n, *k, *taps)}
        more = [] if last is None else [x for x in _operands(s.block(last)) if x not in s.buffers(main)]
        plan = self._plan(s, p, sizes, loop_of, (m, n, k), extent, last is not None, len(more))

        def part(loops: list[str], steps: int, name: str) -> tuple[list[str], list[str]]:
            if not loops:
                return [], []
            steps = int(s.choose(f"{name}_steps", _divisors(extent[loops[0]]), steps))
            if steps == extent[loops[0]]:
                return [], loops
            outer, inner = s.split(loops[0], [None, steps])
            return [outer], [inner, *loops[1:]]

        (n_out, n_in), (m_out, m_in), (k_out, k_in) = part(n, plan.n, "n"), part(m, plan.m, "m"), part(k, plan.k, "k")
        k_in = [*k_in, *taps]
        assert depth is not None and column is not None
        tile = [*([row] if row else []), column, depth]
        s.reorder(*batch, *n_out, *m_out, *k_out, *n_in, *m_in, *k_in, *tile)
        outer = [*batch, *n_out, *m_out]
        home = outer[-1] if outer else None
        if home is not None and last is not None:
            s.reverse_compute_at(last, home)
        extras = [s.cache_read(last, x, A_SCOPE) for x in more] if last is not None else []
        if home is not None:
            s.reverse_compute_at(out, home)
            for x in extras:
                s.compute_at(x, home)
        inside = k_out[-1] if k_out else home
        if inside is not None:
            s.compute_at(a, inside)
        weights = next((loops[-1] for loops in (k_out, n_out, batch) if loops), None)
        if weights is not None:
            s.compute_at(b, weights)
        init = s.decompose_reduction(
            main,
            (
                (*k_out, *n_in, *m_in, *k_in, *tile)[0]
                if k_out
                else self._first(s, main, [*k_in, depth], [*n_in, *m_in], home)
            ),
        )
        written = [x for name in (a, b, main, *([last] if last else []), *extras) for x in s.buffers(name)]
        for buffer in dict.fromkeys(written):
            if home is not None or buffer not in {o.name for o in s.program.outputs}:
                s.compact_buffer(buffer)
        if row is not None:
            s.tensorize(next(x for x in s.loops(init) if x.startswith(row)), "gemm8x8")
        s.tensorize(row or column, "gemm8x8" if row else "gemm1x8")

    def _first(self, s: Schedule, main: str, reduced: Sequence[str], spatial: Sequence[str], home: str | None) -> str:
        """The loop before which the sums start: the outermost under the piece."""
        loops = s.loops(main)
        return loops[loops.index(home) + 1] if home is not None else loops[0]

    def _plan(
        self,
        s: Schedule,
        p: _Product,
        sizes: Mapping[str, int],
        loop_of: Mapping[str, str],
        loops: tuple[list[str], list[str], list[str]],
        extent: Mapping[str, int],
        epilogue: bool,
        extras: int,
    ) -> _Plan:
        """The pieces that take the fewest cycles: computation beside copies, two of each buffer on the chip."""
        m, n, k = loops
        room_a, room_b, room_c, _ = memories(s.machine)
        twice = 2 if "double_buffer" in s.machine.features else 1
        iterator = {w: v for v, w in loop_of.items()}
        tiles = math.prod(extent.values())

        def steps(loops: list[str], count: int) -> dict[str, int]:
            """Of each iterator in a piece of `count` steps of the first loop; where that is a loop of tiles, in
            elements."""
            if not loops:
                return {}
            w = loops[0]
            if w in iterator:
                return {iterator[w]: count}
            v = next(v for v in (p.row, p.column, p.depth) if v is not None and w.startswith(loop_of[v]))
            return {v: count * TILE}

        def pieces(loops: list[str]) -> list[int]:
            return _divisors(extent[loops[0]]) if loops else [1]

        one = dict.fromkeys(p.batch, 1)
        best: tuple[float, _Plan] | None = None
        rows = (sizes[p.row] if p.row else 1) * math.prod(sizes[v] for v in p.m)
        columns = sizes[p.column] * math.prod(sizes[v] for v in p.n)
        for tk in pieces(k):
            for tm in pieces(m):
                box_a = 4 * _box(p.a, {**sizes, **one, **steps(m, tm), **steps(k, tk)})
                for tn in pieces(n):
                    box_b = 4 * _box(p.b, {**sizes, **one, **steps(n, tn), **steps(k, tk)})
                    part_m, part_n = (tm / extent[m[0]] if m else 1), (tn / extent[n[0]] if n else 1)
                    box_c = 4 * int(rows * part_m * columns * part_n)
                    if (
                        twice * (box_a + extras * box_c) + 4096 > room_a
                        or twice * box_b > room_b
                        or (2 if epilogue else 1) * box_c > room_c
                    ):
                        continue
                    m_count, n_count = round(1 / part_m), round(1 / part_n)
                    k_count = extent[k[0]] // tk if k else 1
                    loads_b = n_count * (m_count * k_count if k_count > 1 else 1)
                    loads_a = n_count * m_count * k_count
                    load = (
                        loads_a * (box_a / DMA_BYTES + 4 * DMA_START)
                        + loads_b * (box_b / DMA_BYTES + DMA_START)
                        + 4 * rows * columns * extras / DMA_BYTES
                    )
                    compute = tiles * (min(TILE, rows) if p.row is None else GEMM_CYCLES) + 16 * loads_a
                    first = (box_a + box_b) / DMA_BYTES
                    cost = (max(load, compute) + first) if twice == 2 else load + compute
                    if best is None or cost < best[0]:
                        best = (cost, _Plan(tn, tm, tk))
        if best is None:
            raise ScheduleError(
                "no piece of the product fits into the npu's memories",
                why=f"there are {room_a}, {room_b} and {room_c} bytes",
            )
        return best[1]


def _blocks(program: Program) -> Iterator[Block]:
    from weft.loop.nodes import walk_stmts

    for stmt in walk_stmts(program.body):
        if isinstance(stmt, Block):
            yield stmt


def rules() -> Sequence[Rule]:
    return [Gemm(), Vector()]
