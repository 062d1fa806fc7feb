"""Scans: steps in order; products keep their tile in registers, and blocks that depend on single units are computed
together with the units' tile.

A step of a cell is thus one parallel loop over panels of units: the gates of a panel, then its new states. Other blocks
of a step are scheduled as they would be alone.

Choices of the k-th product: those of its tile (see `contraction`), `productK.panels` of units in an iteration of that
loop, `productK.parallel`, and `productK.serpentine` (each step goes through the panels in the other direction).
"""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.expr.nodes import free_vars
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.patterns import offer_for
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.contraction import find_roles, schedule_tile, split_panels
from weft_llvm.schedules.elementwise import schedule_elementwise, worth_forking

VECTORS = 4
"""Vectors of units whose gates are computed side by side: formulas wait for their own steps, not for others'."""
TILE_VECTORS = 8
"""Vectors of gates that a tile of one row wants, so that its sums do not wait for one another."""
PANELS = (1, 2, 4, 8)
"""Options of `panels`."""


class RecurrenceRule(Rule):
    """See the module."""

    name = "recurrence"
    priority = 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return offer_for(program, "scan", machine)

    def apply(self, s: Schedule) -> None:
        assert s.machine is not None
        # A copy of a step's result is no step itself, but it lies among the steps: its loop runs in order, too.
        blocks = access.blocks_of(s.program)
        sequential = {v for b in blocks for i, x in zip(b.iters, b.bindings) if i.kind == "scan" for v in free_vars(x)}
        names = s.blocks()
        # The loops around a block that are not its own to schedule.
        outer = {
            name: max((k + 1 for k, x in enumerate(s.loops(name)) if x in sequential), default=0) for name in names
        }
        panels: list[tuple[str, str, str, bool]] = []
        for k, name in enumerate(names):
            block = s.block(name)
            if (
                not access.is_reduction(block)
                or len(list(access.stores(block))) != 1
                or len({x.buffer.name for x in access.loads(block)}) != 3
            ):
                continue
            with s.attempt() as tried, s.choices_of(f"product{len(panels)}"):
                panel = _tile(s, name)
            if not tried:
                s.annotate(name, "tile_declined", tried.reason)
                continue
            panels.append((name, access.target(block).buffer.name, panel, _streams(s, name)))
            for follower in names[k + 1 :]:
                if _is_step(s, follower) and _moves(s, follower, panel):
                    outer[follower] = s.loops(follower).index(panel) + 1
        for name in names:
            block = s.block(name)
            if len(list(access.stores(block))) == 1 and not access.is_reduction(block):
                schedule_elementwise(s, name, s.machine, outer=outer[name], parallel=False)
                _unroll_vectors(s, name, outer[name])
        for k, (name, gates, panel, streams) in enumerate(panels):
            s.compact_buffer(gates)  # each panel has gates of its own, unless something else of the step reads them
            with s.choices_of(f"product{k}"):
                _share_out(s, name, panel, streams)


def _share_out(s: Schedule, name: str, panel: str, streams: bool) -> None:
    """The panels of a step in parallel where that pays (choices `parallel` and `serpentine`). `streams`: as `_streams`
    says."""
    assert s.machine is not None
    if access.extent(s.loop(panel)) < 2:
        return
    worth = worth_forking(access.block_work(s.block(name), steps=False), s.machine, per_cycle=2)
    if not s.choose("parallel", [True, False], worth):
        return
    s.parallel(panel)
    reason = None
    try:
        _serpentine(Schedule(s.program, s.machine), name, panel)
    except ScheduleError as error:  # the last panels are a part only
        reason = error.why or error.what
    if s.choose("serpentine", [True, False], streams and reason is None, lambda on: reason if on else None):
        _serpentine(s, name, panel)


def _streams(s: Schedule, name: str) -> bool:
    """Whether each step reads all weights once, more than the second cache holds: with one row, that is what it takes
    time for."""
    assert s.machine is not None
    view = access.LoopView.of(s, name)
    lane = view.loops[-1]
    wide = [x for x in view.loads if x.buffer.scope != "register" and view.stride(x, lane) == 1]
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial" and view.extent(x) > 1]
    once = all(any(view.stride(x, loop) != 0 for x in wide) for loop in spatial)
    return once and sum(map(access.buffer_bytes, wide)) > s.machine.caches[1]


def _serpentine(s: Schedule, name: str, panel: str) -> None:
    """Steps go through the panels to and fro, each thread through its own: those that the step before read last are in
    its second cache.

    Raises:
        ScheduleError: that is not possible.
    """
    assert s.machine is not None
    around = s.loops(name)
    cores = s.machine.cores
    s.serpentine(panel, around[around.index(panel) - 1], cores if access.extent(s.loop(panel)) % cores == 0 else 1)


def _unroll_vectors(s: Schedule, name: str, outer: int) -> None:
    """Unrolls the few vectors of a formula that is computed beside its tile."""
    loops = [s.loop(x) for x in s.loops(name)[outer:]]
    if (
        len(loops) > 1
        and loops[-1].kind == "vectorized"
        and loops[-2].kind == "serial"
        and access.extent(loops[-2]) <= VECTORS
    ):
        s.unroll(loops[-2].var.name)


def _is_step(s: Schedule, name: str) -> bool:
    """Whether the block is a step of a scan, and no reduction."""
    kinds = {i.kind for i in s.block(name).iters}
    return "scan" in kinds and "reduce" not in kinds


def _moves(s: Schedule, name: str, loop: str) -> bool:
    """Moves the block into the loop over panels if it needs nothing but the panel."""
    try:
        s.reverse_compute_at(name, loop)
    except ScheduleError:
        return False  # a primitive that may not act changes nothing
    return True


def _tile(s: Schedule, name: str) -> str:
    """Tiles a product of the step under a loop over panels of units, whose name is returned.

    Raises:
        ScheduleError: that is not possible; `s` is left half done.
    """
    assert s.machine is not None
    tail = s.cache_write(name, "register")
    split_panels(s, name, pad=True)
    roles = find_roles(s, name)
    if roles is None:
        raise ScheduleError("no output loop is contiguous in the output and an operand")
    view = access.LoopView.of(s, name)
    spatial = [x for x in view.loops if view.kinds.get(x) == "spatial"]
    panels = next(
        (x for b in s.block(name).bindings for x in free_vars(b) if roles.vector in free_vars(b) and x != roles.vector),
        None,
    )
    if panels is None:
        units, vector = s.split(roles.vector, [1, None])
        spatial[spatial.index(roles.vector)] = vector
        inside = []
    else:
        spatial.remove(panels)
        vectors = max(1, view.extent(roles.vector) // s.machine.lanes(view.store.buffer.dtype))
        gates = 1
        for x in spatial:
            gates *= view.extent(x) if x != roles.vector and x != roles.row else 1
        group = min(-(-max(VECTORS, -(-TILE_VECTORS // gates)) // vectors), view.extent(panels))
        group = s.choose("panels", sorted({group, *(n for n in PANELS if n <= view.extent(panels))}), group)
        units, *inside = s.split(panels, [None, group]) if group > 1 else [panels]
    s.reorder(units, *inside, *spatial)
    return schedule_tile(s, name, tail, s.machine, part=True)[0]  # not `units` where columns are cut from it
