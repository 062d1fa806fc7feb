"""Schedule rules of the target.

`as_it_is` leaves a program to the C compiler. The profiles that write a model as C have `nests`: what is computed once
per result stands in registers, not in memory. That for microcontrollers has `byte_sums` besides.
"""

from __future__ import annotations

from weft.expr.linear import linear
from weft.expr.nodes import Const, Expr, FloorDiv, Lt, Var, walk
from weft.loop.nodes import Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import inline_producers
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_c.mcu_intrinsics import ROWS

RESULTS = 32
"""Sums of a single row that are in memory at once."""
PLANES = 4
"""Channels whose pictures are widened at once, as four bytes are read at once."""
SCRATCH = 4096
"""Bytes of such pictures that may always be in memory."""


class AsItIs(Rule):
    """Every loop stays as the operator's definition has it: what the C compiler makes of it is its own affair."""

    name = "as_it_is"

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        pass


class Nests(Rule):
    """Pointwise blocks are computed where they are read; sums are held in registers, with what follows them."""

    name = "nests"
    priority = 1

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        if access.outside_blocks(program.body) or access.has_sequential_loop(program):
            return Decline("loops", "the program has loops of its own")
        return Offer(1.0)

    def apply(self, s: Schedule) -> None:
        inline_pointwise(s)
        for name in s.blocks():
            if name in s.blocks() and access.is_reduction(s.block(name)):
                hold_sum(s, name)


class ByteSums(Rule):
    """The operators of `weft_c.byte_sums`: some rows of int16 at a time, their sums by an intrinsic, and what follows
    on those."""

    name = "byte_sums"
    priority = 2

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        blocks = access.blocks_of(program)
        if not any(b.annotation("role") in ("window_sum", "channel_sum") for b in blocks):
            return Decline("no_sum", "the group has no sum of products of bytes")
        return Offer(1.0)

    def apply(self, s: Schedule) -> None:
        inline_pointwise(s)
        name = next(b for b in s.blocks() if access.is_reduction(s.block(b)) and s.block(b).annotation("role"))
        before, after = s.blocks()[: s.blocks().index(name)], s.blocks()[s.blocks().index(name) + 1 :]
        tail = after[-1] if after else s.cache_write(name, "local")
        if s.block(name).annotation("role") == "window_sum":
            schedule_rows(s, name, before[-1], tail)
        else:
            schedule_planes(s, name, before[-1], tail)


def inline_pointwise(s: Schedule) -> None:
    """Puts every pointwise block but those of the operators in `weft_c.byte_sums` into what reads it."""
    inline_producers(s, [b for b in s.blocks() if not s.block(b).annotation("role")], keep_shared=True)


def hold_sum(s: Schedule, name: str) -> None:
    """Holds the result of a reduction in a register, and computes what follows it at once."""
    kinds = {x: i.kind for x, i in zip(s.loops(name), s.block(name).iters)}
    spatial = [x for x, kind in kinds.items() if kind == "spatial"]
    reduced = [x for x, kind in kinds.items() if kind != "spatial"]
    consumers = s.consumers(name)
    with s.attempt():
        tail = consumers[0] if len(consumers) == 1 else s.cache_write(name, "register")
        if len(consumers) == 1:
            s.set_scope(name, "register")
        if not spatial:
            return
        s.reorder(*spatial, *reduced)
        s.decompose_reduction(name, reduced[0])
        buffer = access.target(s.block(name)).buffer.name
        s.reverse_compute_at(tail, spatial[-1])
        s.compact_buffer(buffer)


def schedule_rows(s: Schedule, name: str, columns: str, tail: str) -> None:
    """The columns of up to `ROWS` results, their products with all weights, and what follows on these."""
    *rows, results = spatial_loops(s, name)
    inner, under = results, None
    count = int_const(s.loop(results).extent) or 1
    if not rows and count % RESULTS == 0 and count > RESULTS:
        under, inner = s.split(results, [None, RESULTS])
        s.reverse_compute_at(tail, under)
    if count % 2 == 0:
        inner, _ = s.split(inner, [None, 2])
    if rows:
        under, inner = s.split(rows[-1], [None, ROWS])
        s.compute_at(columns, under)
        s.reverse_compute_at(tail, under)
    in_scratch(s, columns, name)
    s.tensorize(inner, "dot_rows" if count % 2 == 0 else "dot_row")
    rescale(s, tail, under)
    split_columns(s, columns)


def schedule_planes(s: Schedule, name: str, rows: str, tail: str) -> None:
    """Some rows of the picture of a few channels with their surroundings, their sums, and what follows on these."""
    *outer, channels = spatial_loops(s, name)
    count = int_const(s.loop(channels).extent) or 1
    together = next(k for k in (PLANES, 2, 1) if count % k == 0)
    inner = channels
    if together < count:
        channels, inner = s.split(channels, [None, together])
    under = channels if together < count else None
    if len(outer) > 1:
        strip, down = s.split(outer[-2], [None, strip_rows(s, name, rows, together)])
        s.reorder(strip, *([channels] if under else []), inner, down, outer[-1])
        under = under or strip
    elif outer:
        s.reorder(*([channels] if under else []), inner, outer[-1])
    if under is not None:
        s.compute_at(rows, under)
        s.reverse_compute_at(tail, under)
    in_scratch(s, rows, name)
    s.tensorize(inner, "dot_planes")
    rescale(s, tail, under, "rescale_planes")


def strip_rows(s: Schedule, name: str, rows: str, together: int) -> int:
    """Rows of results for which the rows that they read of a few channels take no more memory than those of all
    channels that one row of results reads, or `SCRATCH` bytes."""
    block = s.block(name)
    source = next(x for x in access.loads(block) if x.buffer.name == access.target(s.block(rows)).buffer.name)
    channels, _, wide = [int_const(d) or 1 for d in source.buffer.shape][-3:]
    extents = {i.var.name: int_const(i.extent) or 1 for i in block.iters}
    factors = {v.name: k for v, k in linear(source.indices[-2]).atoms.items() if isinstance(v, Var)}
    result = [i.var.name for i in block.iters if i.kind == "spatial"][-3]
    span = 1 + sum(k * (extents[v] - 1) for v, k in factors.items() if v != result)
    allowed = max(span * wide * channels * 2, SCRATCH) // (2 * wide * together)
    fit = max(1, (allowed - span) // factors.get(result, 1) + 1)
    strips = -(-extents[result] // fit)
    return -(-extents[result] // strips)


def rescale(s: Schedule, tail: str, under: str | None, intrinsic: str = "rescale_rows") -> None:
    """What follows a sum by one call, where it is the scaling of quantised sums and no more."""
    loops = s.loops(tail)
    within = loops[loops.index(under) + 1 :] if under is not None else loops
    if within:
        with s.attempt():
            s.tensorize(within[0], intrinsic)


def spatial_loops(s: Schedule, name: str) -> list[str]:
    """The loops of a block that are no reduction."""
    return [x for x, i in zip(s.loops(name), s.block(name).iters) if i.kind == "spatial"]


def in_scratch(s: Schedule, *names: str) -> None:
    """Reduces what blocks compute to what one iteration of the loops that they share with their readers uses."""
    for name in names:
        s.compact_buffer(access.target(s.block(name)).buffer.name)


def split_columns(s: Schedule, name: str) -> None:
    """Loops over the taps and channels of a window in place of that over its elements, so that no index divides."""
    loop = s.loops(name)[-1]
    block = s.block(name)
    element = next(i.var.name for i, b in zip(block.iters, block.bindings) if is_var(b, loop))
    value = access.target(s.block(name)).value
    bounds = [
        int(e.b.value) for e in walk(value) if isinstance(e, Lt) and is_var(e.a, element) and isinstance(e.b, Const)
    ]
    if bounds:
        loop = s.partition(loop, bounds[:1])[0]
    steps = {
        int(e.b.value)
        for e in walk(value)
        if isinstance(e, FloorDiv) and is_var(e.a, element) and isinstance(e.b, Const)
    }
    factors: list[int | None] = []
    for step in sorted(steps):
        whole = step
        for f in factors:
            whole //= f or 1
        factors.insert(0, whole)
    loops = s.split(loop, [None, *factors]) if factors else [loop]
    for loop in loops[-2:]:
        s.annotate(loop, "unswitch", 1)


def is_var(e: Expr, name: str) -> bool:
    return isinstance(e, Var) and e.name == name


def rules(profile: str) -> tuple[Rule, ...]:
    """The rules of a profile."""
    if profile == "host":
        return (AsItIs(),)
    return (AsItIs(), Nests(), ByteSums()) if profile == "mcu" else (AsItIs(), Nests())
