"""Attention in one kernel: a group computes a tile of queries and visits the keys in tiles; no score is in global
memory.

For each tile of keys: scores by a register-tiled product over shared memory, with scale and mask as epilogue in
registers; their maximum, by threads and then by rows; exponentials, in registers; and the second product, which reads
them through shared memory and accumulates in registers. The maximum is a running one (`make_online`): if it grows, sums
are rescaled. Each thread sums its own exponentials; a row's sum is complete at the end. This is the order of
FlashAttention-2 (Dao, 2023), with Milakov and Gimelshein's online softmax (2018)."""

from __future__ import annotations

from math import prod

from weft.errors import ScheduleError
from weft.loop.nodes import For, Program, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.rule import Decline, Offer
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.attention_tiles import Attention, AttentionTile, candidates, choose_tile, values_of
from weft_gpu.schedules.contraction import Axis, cut_sum, threads_of, vectorizes
from weft_gpu.schedules.groups import bind_threads, kept, own, share
from weft_gpu.schedules.products import contiguous_loop, factors, narrow
from weft_gpu.schedules.reduction import in_register
from weft_ops.scheduling.attention import Parts, TiledAttention, find_parts, inline_formulas, move_results, tail_loops


class AttentionRule(TiledAttention):
    """See the module."""

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return (
            Decline("no_grid", "the machine runs no grids") if machine.grid is None else super().offer(program, machine)
        )

    def schedule(self, s: Schedule, machine: Machine) -> None:
        schedule_attention(s, machine)


def schedule_attention(s: Schedule, machine: Machine) -> None:
    """Schedules a group that holds one attention."""
    move_results(s)
    parts = find_parts(s.program)
    assert isinstance(parts, Parts)
    inline_formulas(s, parts, once=False)
    order = s.blocks()
    logits = order[order.index(parts.scores) + 1 : order.index(parts.greatest)]
    tail = order[-1]
    known = {parts.scores, *logits, parts.greatest, parts.exps, parts.total, parts.product, tail}
    if len(logits) > 1 or tail == parts.product or known != set(order):
        strangers = ", ".join(b for b in order if b not in known) or "its scores or its result"
        raise ScheduleError(
            "attention: blocks stand between its own", why=f"not everything is computed where it is used: {strangers}"
        )
    rows, others = tail_loops(s, parts, tail)
    tile = choose(s, parts, rows, machine)
    if rows is not None and tile.queries_inside > 1:
        group, inside = s.split(rows, [None, tile.queries_inside])
        s.reorder(*others[:-1], group, inside, others[-1])
    else:
        # One query at a time: a group's loop is the innermost there is, one iteration around all where there is none.
        *around, column = [*others[:-1], *([rows] if rows is not None else []), others[-1]]
        s.reorder(*around, column)
        group = around[-1] if around else s.split(column, [1, None])[0]
    for b in (parts.total, parts.product, parts.exps, parts.greatest, *logits, parts.scores):
        s.compute_at(b, group)
    plan = Plan(s, machine, tile, group, rows is not None and tile.queries_inside > 1)
    plan.join(parts, tail)
    plan.join_scores(parts, logits)
    plan.place()
    plan.bind()
    left = [x.var.name for x in walk_stmts(s.program.body) if isinstance(x, For) and x.kind == "parallel"]
    if left:
        raise ScheduleError("attention: loops are left over", why=f"no thread takes the loops {', '.join(left)}")


def choose(s: Schedule, parts: Parts, rows: str | None, machine: Machine) -> AttentionTile:
    """The tile of the cost model, or of a record."""
    scores, product = access.LoopView.of(s, parts.scores), access.LoopView.of(s, parts.product)
    *_, size = scores.loops
    column, key = product.loops[-2:]
    features, columns = (int_const(s.loop(x).extent) for x in (size, column))
    if features is None or columns is None:
        raise ScheduleError(
            "attention: the size of heads is known at a run only",
            why=f"heads have {s.loop(size).extent} and {s.loop(column).extent} features",
        )
    queries = 1 if rows is None else int_const(s.loop(rows).extent)
    batch = prod(scores.extent(x) for x in scores.loops[:-2]) // (1 if rows is None else access.extent(s.loop(rows)))
    keys, values = (narrow(factors(s.block(b))[1]).dtype.bytes for b in (parts.scores, parts.product))
    problem = Attention(batch, queries, product.extents[key], features, columns, keys, values)
    tiles = {str(t): t for t in candidates(problem, machine)}
    if not tiles:
        raise ScheduleError(
            "attention: no tile fits",
            why="shared memory, registers or threads of a group do not hold the smallest tile of queries and keys",
        )
    return tiles[s.choose("tile", list(tiles), str(choose_tile(problem, machine)))]


class Plan:
    """An attention on its way into tiles."""

    def __init__(self, s: Schedule, machine: Machine, tile: AttentionTile, group: str, rows: bool) -> None:
        self.s, self.machine, self.tile, self.group, self.rows = s, machine, tile, group, rows
        self.lanes = max(1, machine.vector_bits // 32)
        self.step = ""
        self.mine: dict[str, tuple[Axis, Axis]] = {}
        """Blocks of which each thread has elements of its own → their loops."""
        self.by_rows: list[str] = []
        """Blocks of one element for each row."""

    def inner(self, name: str, least: int = 1) -> list[str]:
        """The loops around a block inside the group, or inside a step of it.

        Raises:
            ScheduleError: there are fewer than `least`: an attention so small that the block does not go through what
                the tiles are cut from.
        """
        loops = self.s.loops(name)
        found = loops[loops.index(self.step if self.step in loops else self.group) + 1 :]
        if len(found) < least:
            raise ScheduleError(
                "attention: too few loops in a tile",
                why=f"'{name}' has {len(found)} loops there, {least} are cut into tiles",
            )
        return found

    def cut(self, loop: str, threads: int, each: int, spatial: bool = True) -> Axis:
        """A loop as pieces of one thread, threads, and neighbouring elements of one thread; whole tiles."""
        s, lane = self.s, min(self.lanes, each)
        if spatial:
            s.parallel(loop)
        n = int_const(s.loop(loop).extent)
        pieces = {"own": -(-each // lane), "thread": threads, "lane": lane}
        last = None
        if lane > 1 and n is not None and n % lane == 0 and n > lane:
            loop, last = s.split(loop, [None, lane])
            pieces["lane"] = 1
        found = [role for role, k in pieces.items() if k > 1]
        loops = (
            dict(zip(found, s.split(loop, [pieces[r] for r in found])))
            if len(found) > 1
            else {found[0]: loop}
            if found
            else {}
        )
        return Axis(None, loops.get("own"), loops.get("thread"), loops.get("lane") or last)

    def cut_rows(self, loops: list[str]) -> Axis:
        """The loop over a tile's rows, the first of `loops`, cut; none where there is one query."""
        if self.rows and not loops:
            raise ScheduleError(
                "attention: a block does not go through the queries of a tile",
                why="a part of it is one for all queries",
            )
        return self.cut(loops[0], self.tile.threads[0], self.tile.rows) if self.rows else Axis()

    def cut_keys(self, loop: str, spatial: bool = True) -> Axis:
        return self.cut(loop, self.tile.threads[1], self.tile.keys, spatial)

    def steps(self, loop: str) -> tuple[str, str]:
        """A loop over keys as steps and what is in one."""
        step, part = self.s.split(loop, [None, self.tile.keys_inside])
        return step, part

    def join(self, parts: Parts, tail: str) -> None:
        """Both sums in registers, and one loop over steps for all of the softmax and the second product."""
        s, (_, tx) = self.s, self.tile.threads
        greatest, exps, total, product = parts.greatest, parts.exps, parts.total, parts.product
        step, _ = self.steps(self.inner(greatest)[-1])
        self.top = s.rfactor(greatest, step)
        *rows, step_m = self.inner(greatest)
        s.reorder(step_m, *rows)
        *rows, key = self.inner(exps)
        step_e, _ = self.steps(key)
        s.reorder(step_e, *rows)

        *rows, key = self.inner(total)
        step_l, part = self.steps(key)
        axes = self.cut_rows(rows), self.cut_keys(part, False)
        thread = axes[1].thread
        summed = total
        if thread is not None:
            summed = s.rfactor(total, thread)
            self.by_rows.append(total)
        s.reorder(step_l, *axes[0].inner, *([thread] if thread else []), *axes[1].mine)
        self.sum_copy = s.stage_result(summed, step_l, "register")
        self.mine[summed] = axes

        *rows, column, key = self.inner(product, 2)
        step_o, part = self.steps(key)
        n = int_const(s.loop(column).extent)
        assert n is not None
        axes = self.cut_rows(rows), self.cut(column, tx, values_of(n, tx, self.lanes))
        s.reorder(step_o, *axes[0].inner, *axes[1].inner, part)
        self.out = s.stage_result(product, step_o, "register")
        s.reverse_compute_inline(tail)
        self.mine[product] = axes
        self.summed, self.product, self.greatest, self.exps, self.total = summed, product, greatest, exps, total

        self.starts = [
            s.decompose_reduction(b, x) for b, x in ((greatest, step_m), (summed, step_l), (product, step_o))
        ]
        self.before, self.factor, *self.scales = s.make_online(greatest, [step_m, step_e, step_l, step_o])
        # Whole steps without a condition would be most of the program once more: conditions are a small part of what a
        # step does.
        s.annotate(step_m, "partition", 0)
        self.step = step_m

    def join_scores(self, parts: Parts, logits: list[str]) -> None:
        """Scores, as the softmax wants them, and their maximum, step by step."""
        s = self.s
        for b in (self.top, *logits, parts.scores):
            s.compute_at(b, self.step)
        *rows, key, term = self.inner(parts.scores, 2)
        axes = self.cut_rows(rows), self.cut_keys(key)
        steps, self.terms = cut_sum(s, (term,), self.tile.depth, 1)
        self.scores = parts.scores
        s.reorder(*steps, *self.terms, *axes[0].inner, *axes[1].inner)
        self.logits = s.stage_result(self.scores, steps[0], "register")
        for b in logits:
            s.reverse_compute_inline(b)
        self.starts.append(s.decompose_reduction(self.scores, steps[0]))
        self.mine[self.scores] = axes

        *rows, key = self.inner(self.top)
        axes = self.cut_rows(rows), self.cut_keys(key, False)
        partial = self.top
        if axes[1].thread is not None:
            partial = s.rfactor(self.top, axes[1].thread)
            self.by_rows.append(self.top)
        s.reorder(*threads_of(*axes), *axes[0].mine, *axes[1].mine)
        self.top_copy = in_register(s, partial, axes[1].mine[0], None) if axes[1].mine else partial
        self.partial = partial
        self.mine[partial] = axes

    def place(self) -> None:
        """What threads share in shared memory, what each has in registers, all of it as large as a step needs."""
        s = self.s
        for b in (self.greatest, self.before, self.factor, self.top, self.top_copy, self.total, self.sum_copy):
            s.set_scope(b, "shared")
        for b in (self.logits, self.exps):
            s.set_scope(b, "register")
        names = dict.fromkeys(access.target(s.block(b)).buffer.name for b in s.blocks() if b != self.out)
        outputs = {b.name for b in s.program.outputs}
        for name in names:
            if name not in outputs:
                s.compact_buffer(name)

    def bind(self) -> None:
        """Operands staged, and loops given to threads and groups."""
        s = self.s
        starts = dict(zip((self.greatest, self.summed, self.product, self.scores), self.starts))
        self.stage_scores(starts[self.scores])
        self.stage_product(starts[self.product])
        rows, keys = self.mine[self.summed]
        thread = [x for x in (keys.thread,) if x]
        self.own(self.summed, rows, keys)
        for b in (starts[self.summed], self.scales[0], self.sum_copy):
            self.alike(b, rows, Axis(thread=keys.thread), [*rows.inner, *thread])
        rows, keys = self.mine[self.partial]
        own(s, [*rows.mine, *keys.mine], None)
        bind_threads(s, rows.thread, keys.thread)
        *found, key = self.inner(self.exps)
        self.own(self.exps, self.cut_rows(found), self.cut_keys(key))
        for b in self.by_rows:
            reduce = self.inner(b)[-1]
            in_register(s, b, reduce, None)
        for b in (starts[self.greatest], self.before, self.greatest, self.factor, *self.by_rows):
            if self.rows:
                share(s, b, self.inner(b, 0)[:1], self.tile.threads, 1)
        loops = s.loops(self.product)
        outer = loops[: loops.index(self.group) + 1]
        for x in outer:
            s.parallel(x)
        s.bind(outer[0] if len(outer) == 1 else s.fuse(*outer), "blockIdx.x")

    def own(self, name: str, rows: Axis, columns: Axis) -> None:
        """A block of which each thread has some elements, as they are cut."""
        s = self.s
        s.reorder(*threads_of(rows, columns), *rows.mine, *columns.mine)
        own(s, [*rows.mine, *columns.mine], None)
        bind_threads(s, rows.thread, columns.thread)

    def alike(self, name: str, rows: Axis, columns: Axis, order: list[str], lane: bool = False) -> None:
        """As `own`, of a block whose loops are copies of those of another, in this order."""
        place = dict(zip(order, self.inner(name, 0), strict=True))
        turned = [Axis(None, *(place[x] if x else None for x in (a.own, a.thread, a.lane))) for a in (rows, columns)]
        s, last = self.s, turned[1].lane
        s.reorder(*threads_of(*turned), *turned[0].mine, *turned[1].mine)
        own(s, [*turned[0].mine, *turned[1].mine], last if lane and last and vectorizes(s, name, last) else None)
        bind_threads(s, turned[0].thread, turned[1].thread)

    def staged(self, name: str, right: int, at: str) -> tuple[str, dict[str, str], str | None]:
        """A factor of a product in shared memory, before loop `at`: the copying block, its loops by those of the
        product, and that of neighbours in memory."""
        s = self.s
        formula = narrow(factors(s.block(name))[right])
        loops = s.loops(name)
        inside = kept(s, name, formula, loops[loops.index(at) :])
        along = contiguous_loop(s, name, formula)
        copy = s.stage(name, at, str(formula), "shared")
        place = dict(zip(inside, s.loops(copy)[-len(inside) :]))
        return copy, place, place.get(along or "")

    def fetch(self, name: str, right: int, at: str, order: list[str]) -> None:
        """As `staged`, by all threads: neighbours fetch what are neighbours in memory."""
        copy, place, along = self.staged(name, right, at)
        wanted = [place[x] for x in order if x in place]
        if along is not None:
            wanted = [*(x for x in wanted if x != along), along]
        size = access.target(self.s.block(copy)).buffer.dtype.bytes
        share(self.s, copy, wanted, self.tile.threads, max(1, self.machine.vector_bits // 8 // size))

    def in_parts(self, name: str, mine: list[str], lanes: tuple[str | None, ...]) -> None:
        """Elements of staged factors that a thread uses again and again, in registers."""
        s = self.s
        for k in range(2):
            formula = factors(s.block(name))[k]
            inside = kept(s, name, formula, mine)
            if inside:
                part = s.stage(name, mine[0], str(formula), "register")
                loops = s.loops(part)[-len(inside) :]
                own(s, loops, loops[-1] if inside[-1] in lanes else None)

    def stage_scores(self, start: str) -> None:
        s, name = self.s, self.scores
        rows, keys = self.mine[name]
        for b in (start, name, self.logits):
            s.specialize(b)
        for b in (start, name):
            s.pad_tile(b)
        for k, (at, order) in enumerate(
            ((self.step, [*self.terms, *rows.inner]), (self.terms[0], [*self.terms, *keys.inner]))
        ):
            self.fetch(name, k, at, order)
        s.reorder(*threads_of(rows, keys), *self.terms, *rows.mine, *keys.mine)
        mine = [*rows.mine, *keys.mine]
        self.in_parts(name, mine, (rows.lane, keys.lane))
        own(s, mine, None)
        bind_threads(s, rows.thread, keys.thread)
        for b in (start, self.logits):
            self.alike(b, rows, keys, [*rows.inner, *keys.inner])

    def stage_product(self, start: str) -> None:
        s, name = self.s, self.product
        rows, columns = self.mine[name]
        for b in (start, self.scales[1], name, self.out):
            s.specialize(b)
        for b in (start, name):
            s.pad_tile(b)
        part = self.inner(name)[-1]
        s.reorder(part, *rows.inner, *columns.inner)
        weights, place, _ = self.staged(name, 0, part)
        turned = Axis(None, *(place.get(x or "") for x in (rows.own, rows.thread, rows.lane)))
        self.own(weights, turned, self.cut_keys(place[part]))
        self.fetch(name, 1, part, [part, *columns.inner])
        s.reorder(*threads_of(rows, columns), part, *rows.mine, *columns.mine)
        mine = [*rows.mine, *columns.mine]
        self.in_parts(name, mine, (rows.lane, columns.lane))
        own(s, mine, None)
        bind_threads(s, rows.thread, columns.thread)
        for b in (start, self.scales[1], self.out):
            self.alike(b, rows, columns, [*rows.inner, *columns.inner], b == self.out)
