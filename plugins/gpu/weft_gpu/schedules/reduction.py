"""Reductions: one thread per output if there are many outputs; otherwise the threads of a group share each sum, and for
few groups there are two launches.

A sum that threads share is divided into partial sums, each in a register of its thread. Threads of a warp combine
theirs by shuffles, if the machine has them, and warps combine theirs in shared memory; otherwise all threads do, in a
tree of few, wide levels. What follows a reduction element by element is computed before the result leaves the
registers.

Choices of each sum: `BLOCK.sums` (one thread, one group or two launches compute it), `BLOCK.sum_threads` of the group,
`BLOCK.parts` of the first launch (the second one's choices are `combine.BLOCK.…`), and those of `spread`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from weft.dtypes import DType
from weft.errors import ScheduleError
from weft.loop.nodes import LoopKind, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import follows, inline_producers, offer_for
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_gpu.schedules.elementwise import schedule_elementwise
from weft_gpu.schedules.threads import GROUP, choose_threads, grid_of, most_threads, share, spread

FAN = 16
"""Partial sums that one thread adds up on a level of the tree: reads of shared memory overlap, barriers do not."""
LONG = 32
"""Steps of a sum from which on several threads share it."""
COLUMNS = 32
"""Neighbouring outputs of a group that shares sums over memory which is contiguous along the outputs."""
MOST_TAPS = 16
"""Steps of inner reduction loops that are unrolled, at most."""
PARTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Options of `parts`."""


class ReductionRule(Rule):
    """Groups with reductions that no more specific rule takes; also windows."""

    name = "reduction"
    priority = 5

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "reduction", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        inline_into_reductions(s)
        schedule_apart(s, s.blocks(), s.machine)


def schedule_apart(s: Schedule, names: list[str], machine: Machine) -> None:
    """Schedules each of the blocks as a launch of its own, but for what follows a reduction element by element."""
    done: set[str] = set()
    for name, after in zip(names, [*names[1:], None]):
        if name in done:
            continue
        if not access.is_reduction(s.block(name)):
            schedule_elementwise(s, name, machine)
            continue
        tail = (
            after
            if after is not None and s.consumers(name) == [after] and follows(s.block(after), s.block(name))
            else None
        )
        done |= {name} | ({tail} if tail is not None else set())
        schedule_reduction(s, name, machine, tail)


def inline_into_reductions(s: Schedule) -> None:
    """Inlines producers, those of long formulas as well where each of their elements is read once: a thread that waits
    for memory has time for them."""
    inline_producers(s, keep_shared=True)
    outputs = {b.name for b in s.program.outputs}
    for name in reversed(s.blocks()):
        block = s.block(name)
        if (
            access.is_reduction(block)
            or len(list(access.stores(block))) != 1
            or access.target(block).buffer.name in outputs
        ):
            continue
        users = s.consumers(name)
        if (
            len(users) != 1
            or not access.is_reduction(s.block(users[0]))
            or access.block_work(s.block(users[0])) > access.block_work(block)
        ):
            continue
        trial = Schedule(s.program, s.machine)
        try:
            trial.compute_inline(name)
        except ScheduleError:
            continue
        s.compute_inline(name)


@dataclass(frozen=True)
class Shape:
    """A reduction as a choice of threads sees it.

    Args:
        outputs, steps: how many, symbolic extents guessed.
        along: the sum's steps are neighbours in memory.
        columns: the innermost output loop, if neighbouring outputs read neighbouring elements.
    """

    outputs: int
    steps: int
    along: bool
    columns: str | None
    spatial: tuple[str, ...]
    reduce: tuple[str, ...]

    @classmethod
    def of(cls, s: Schedule, name: str) -> Shape:
        view = access.LoopView.of(s, name)
        spatial = [x for x in view.loops if view.kinds.get(x) != "reduce"]
        reduce = [x for x in view.loops if view.kinds.get(x) == "reduce"]
        outputs = steps = 1
        for x in spatial:
            outputs *= view.extent(x)
        for x in reduce:
            steps *= view.extent(x)
        operands = [x for x in view.loads if x.buffer.name != view.store.buffer.name]
        last = next((x for x in reversed(spatial) if view.extents[x] != 1), None)
        across = (
            last is not None
            and bool(operands)
            and all(view.stride(x, last) in (0, 1) for x in operands)
            and any(view.stride(x, last) for x in operands)
        )
        along = bool(reduce) and any(view.stride(x, reduce[-1]) == 1 for x in operands)
        return cls(outputs, steps, along and not across, last if across else None, tuple(spatial), tuple(reduce))


def schedule_reduction(s: Schedule, name: str, machine: Machine, tail: str | None = None) -> None:
    """Schedules one reduction under loops of its own, as one launch or two; `tail` computes its elements from those of
    the result, one by one."""
    shape = Shape.of(s, name)
    usual = sum_threads(machine, shape.steps)
    able = ["output"]
    if shape.reduce and _may_share(s, name):
        able += ["group", "launches"] if _most_parts(s, name, shape) > 1 else ["group"]
    most = most_threads(machine) // max(1, columns_of(s, shape, machine))

    @cache
    def refuse(way: str) -> str | None:
        if way != "group":
            return None
        try:
            by_group(Schedule(s.program, machine), name, machine, shape, min(usual, most), tail)
        except ScheduleError as error:
            return error.why or error.what
        return None

    groups = max(1, shape.outputs if shape.columns is None else -(-shape.outputs // COLUMNS))
    parts = min(-(-2 * machine.cores // groups), shape.steps // (4 * usual))
    busy = machine.cores * grid_of(machine).resident // 2
    if "group" not in able or shape.steps < LONG or shape.outputs >= busy:
        best = "output"
    else:
        two = groups < machine.cores and 1 < parts <= _most_parts(s, name, shape)
        best = "launches" if two else "group"
    way = s.choose(f"{name}.sums", able, best if refuse(best) is None else "output", refuse)
    if way == "output":
        by_output(s, name, machine, tail)
    elif way == "group":
        threads = choose_threads(s, f"{name}.sum_threads", min(usual, most), most)
        by_group(s, name, machine, shape, threads, tail)
    else:
        most = _most_parts(s, name, shape)
        parts = min(max(2, parts), most)
        parts = s.choose(f"{name}.parts", sorted({parts, *(k for k in PARTS if k <= most)}), parts)
        outer, _ = s.split(shape.reduce[0], [parts, None])
        first = s.rfactor(name, outer)
        s.reorder(outer, *(x for x in s.loops(first) if x != outer))
        schedule_reduction(s, first, machine)
        with s.choices_of("combine"):
            schedule_reduction(s, name, machine, tail)


def _most_parts(s: Schedule, name: str, shape: Shape) -> int:
    """Into how many parts a first launch may cut the outermost loop of a sum; 1 where it is not innermost, or too
    short."""
    n = int_const(s.loop(shape.reduce[0]).extent)
    return max(1, n // 2) if n is not None and s.loops(name)[-1] == shape.reduce[-1] else 1


def _may_share(s: Schedule, name: str) -> bool:
    """Whether the sum may be cut into partial sums."""
    trial = Schedule(s.program, s.machine)
    shape = Shape.of(s, name)
    try:
        trial.reorder(*shape.spatial, *shape.reduce)
        trial.rfactor(name, shape.reduce[-1])
    except ScheduleError:
        return False
    return True


def columns_of(s: Schedule, shape: Shape, machine: Machine) -> int:
    """Neighbouring outputs of a group, each by as many threads as share a sum; 1 where neighbours do not lie side by
    side."""
    if shape.columns is None:
        return 1
    return min(COLUMNS, most_threads(machine), access.extent(s.loop(shape.columns)))


def sum_threads(machine: Machine, steps: int, wanted: int = GROUP) -> int:
    """Threads that share a sum of so many steps: each has a few, and there are whole warps; a power of two."""
    most = most_threads(machine, wanted)
    threads = 1
    while threads * 2 <= most and (threads < grid_of(machine).warp or threads * 8 <= steps):
        threads *= 2
    return threads


def by_output(s: Schedule, name: str, machine: Machine, tail: str | None) -> None:
    """A thread computes an output, the sum in a register."""
    shape = Shape.of(s, name)
    spatial, reduce = list(shape.spatial), list(shape.reduce)
    if not spatial:
        unit, first = s.split(reduce[0], [1, None])
        spatial, reduce[0] = [unit], first
    s.reorder(*spatial, *reduce)
    in_register(s, name, reduce[0], tail)
    unroll_taps(s, name, reduce)
    spread(s, name, spatial, machine, several=False)


def in_register(s: Schedule, name: str, loop: str, tail: str | None) -> str:
    """The block's sums over `loop` are kept in registers, then copied out, through the formula of `tail`; the copying
    block's name."""
    copy = s.stage_result(name, loop, "register")
    s.decompose_reduction(name, loop)
    take_in(s, tail)
    return copy


def take_in(s: Schedule, tail: str | None) -> None:
    """Puts what follows a block, if anything does, into its store; or schedules it by itself."""
    if tail is None:
        return
    trial = Schedule(s.program, s.machine)
    try:
        trial.reverse_compute_inline(tail)
    except ScheduleError:
        assert s.machine is not None
        schedule_elementwise(s, tail, s.machine)
    else:
        s.reverse_compute_inline(tail)


def unroll_taps(s: Schedule, name: str, reduce: list[str]) -> None:
    """Unrolls few steps of a sum, from the innermost loop on."""
    budget = MOST_TAPS
    for loop in reversed(reduce):
        n = int_const(s.loop(loop).extent)
        if not n or n > budget:
            break
        s.unroll(loop)
        budget //= n


def by_group(s: Schedule, name: str, machine: Machine, shape: Shape, threads: int, tail: str | None) -> None:
    """The threads of a group share the sums of one output, of a few, or of some neighbouring columns."""
    spatial, reduce = list(shape.spatial), list(shape.reduce)
    if not spatial:
        unit, first = s.split(reduce[0], [1, None])
        spatial, reduce[0] = [unit], first
    s.reorder(*spatial, *reduce)
    most = most_threads(machine)
    inside = columns_of(s, shape, machine)
    if shape.columns is None and threads < most and shape.outputs >= 4 * machine.cores * (most // threads):
        inside = most // threads  # short sums: several in a group
    last = shape.columns or spatial[-1]
    if inside > 1:
        outer, _ = s.split(last, [None, inside])
        spatial[spatial.index(last)] = outer
    spatial = [x for x in spatial if x in s.loops(name)]
    at = spatial.index(last) if inside <= 1 else spatial.index(outer)
    group = spatial[at] if len(spatial) == 1 else str(s.fuse(*_directly(s, name, spatial)))
    cooperate(s, name, group, machine, threads, "threadIdx.x" if shape.columns is None else "threadIdx.y", tail)
    s.parallel(group)
    s.bind(group, "blockIdx.x")


def _directly(s: Schedule, name: str, loops: list[str]) -> list[str]:
    """The loops, brought directly into one another at the top of the block's nest."""
    rest = [x for x in s.loops(name) if x not in loops]
    s.reorder(*loops, *rest)
    return loops


def cooperate(
    s: Schedule, name: str, group: str, machine: Machine, threads: int, axis: LoopKind, tail: str | None = None
) -> None:
    """The sums of a block inside of loop `group` are shared by so many threads along `axis`; the block's own output
    loops go to the other axis.

    Along x partial sums lie side by side, and threads of a warp hand theirs to each other, if they can; along y the
    outputs do.
    """
    other: LoopKind = "threadIdx.y" if axis == "threadIdx.x" else "threadIdx.x"
    last = axis == "threadIdx.x"
    outputs, reduce = _inside(s, name, group)
    beside = max(1, most_threads(machine, grid_of(machine).threads) // threads)
    if not reduce:  # sums of one term
        share(s, name, outputs, beside, other)
        return
    s.reorder(*outputs, *reduce)
    k = reduce[0] if len(reduce) == 1 else s.fuse(*reduce)
    n = int_const(s.loop(k).extent)
    warps = last and shuffles(machine, access.target(s.block(name)).buffer.dtype, threads)
    _, mine = s.split(k, [None, threads if n is None or warps else min(threads, n)])
    left = access.extent(s.loop(mine))
    if left > 1:
        part = s.rfactor(name, mine, last)
        partial = access.target(s.block(part)).buffer.name
        if group not in s.loops(name):
            s.reverse_compute_at(name, group)
        if warps:
            _by_warps(s, name, part, group, mine, machine, beside)
            left = 1
        else:
            _level(s, part, group, partial, [mine], machine, axis, other, beside)
        fan = _fan(left)
        while left > fan:
            kk = s.loops(name)[-1]
            left = -(-left // fan)
            _, lane = s.split(kk, [None, left])
            folded = s.rfactor(name, lane, last)
            _level(s, folded, group, access.target(s.block(folded)).buffer.name, [lane], machine, axis, other, beside)
    outputs, reduce = _inside(s, name, group)
    if reduce:
        s.reorder(*outputs, *reduce)
        in_register(s, name, reduce[0], tail)
    else:
        take_in(s, tail)
    share(s, name, outputs, beside, other)


def shuffles(machine: Machine, dtype: DType, threads: int) -> bool:
    """Whether so many threads beside each other add up values of a type by handing them to each other: words of 32
    bits, which every language shuffles."""
    return (
        "shuffle" in machine.features
        and grid_of(machine).warp > 1
        and dtype.bytes == 4
        and threads > 1
        and threads & (threads - 1) == 0
    )


def _by_warps(s: Schedule, name: str, part: str, group: str, mine: str, machine: Machine, beside: int) -> None:
    """Partial sums in registers of their threads, which a warp adds up without leaving them: each of its threads has
    the whole in the end. The warps' sums are what is left for `name`, in shared memory."""
    threads, warp = access.extent(s.loop(mine)), grid_of(machine).warp
    outputs, reduce = _inside(s, part, group)
    outputs = [x for x in outputs if x != mine]
    s.reorder(*outputs, mine, *reduce)
    s.set_scope(part, "register")
    s.compact_buffer(access.target(s.block(part)).buffer.name)
    if reduce:
        s.decompose_reduction(part, reduce[0])
    share(s, part, [mine], threads)
    share(s, part, outputs, beside, "threadIdx.y")
    folded, lane = name, s.loops(name)[-1]
    if threads > warp:
        own, lane = s.split(lane, [None, warp])
        folded = s.rfactor(name, own, True)
    levels = s.butterfly(folded, lane)
    if folded != name:
        s.compute_inline(folded)
    for level in levels:
        s.set_scope(level, "shared" if level == levels[-1] else "register")
        s.compact_buffer(level)
        inner = s.loops(level)[s.loops(level).index(group) + 1 :]
        lanes = inner[-2:] if threads > warp else inner[-1:]
        share(s, level, lanes, threads)
        share(s, level, inner[: -len(lanes)], beside, "threadIdx.y")


def _fan(partial: int) -> int:
    """Partial sums that a thread adds up on each level of the tree, a power of two: as few levels as FAN allows, all
    about as wide."""
    levels, fan = 1, 2
    while FAN**levels < partial:
        levels += 1
    while fan**levels < partial:
        fan *= 2
    return fan


def _inside(s: Schedule, name: str, group: str) -> tuple[list[str], list[str]]:
    """The loops of a block inside of `group`: those of outputs, and those of the sum."""
    view = access.LoopView.of(s, name)
    own = view.loops[view.loops.index(group) + 1 :]
    return [x for x in own if view.kinds.get(x) != "reduce"], [x for x in own if view.kinds.get(x) == "reduce"]


def _level(
    s: Schedule,
    name: str,
    group: str,
    buffer: str,
    mine: list[str],
    machine: Machine,
    axis: LoopKind,
    other: LoopKind,
    beside: int,
) -> None:
    """One level of the tree: partial sums, each in a register of its thread, then in shared memory."""
    outputs, reduce = _inside(s, name, group)
    outputs = [x for x in outputs if x not in mine]
    s.reorder(*outputs, *mine, *reduce)
    copy = in_register(s, name, reduce[0], None) if reduce else name
    s.set_scope(copy, "shared")
    s.compact_buffer(buffer)
    share(s, name, mine, most_threads(machine, grid_of(machine).threads), axis)
    share(s, name, outputs, beside, other)
