"""Prefetches that the hardware does not make: of the next panel of weights in memory, and of the next block of rows in
blocked layouts."""

from __future__ import annotations

from weft.loop.nodes import Load
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule

LEAST_SHARERS = 2
"""Tiles that use a panel. One that is used once is a stream, which hardware reads ahead in."""
MOST_PASSES = 2
"""Passes over all weights: what is read again comes from the third cache, from where hardware brings it in time."""
ROOM = 0.75
"""The part of the second cache that two panels, and what is computed with them, may take."""
LINES = 4
"""Steps of a reduction between requests, at most."""
MOST_LINES = 8
"""Lines of the next block of rows that are asked for at once, at most."""
LEAST_BLOCKS = 8
"""Blocks of rows of a tile. With few of them processors look far enough ahead by themselves."""
MANY_BLOCKS = 16
"""Blocks of channels from which on hardware has forgotten the first when a tile is through."""


def prefetches(machine: Machine) -> bool:
    """Whether it can be asked for lines; WebAssembly cannot."""
    return "wasm32" not in machine.features


def prefetch_panels(s: Schedule, name: str, reduce: list[str], machine: Machine) -> list[str]:
    """While a tile of the contraction `name` is computed its part of the next panel of weights is asked for, if that
    pays.

    It does where weights come from further away than the second cache, one panel after another, and the next panel has
    room there.

    Args:
        reduce: the loops of the reduction, outermost first. One that is alone is split, so that the tiles that use a
            panel share its lines.

    Returns:
        The loops of the reduction.
    """
    if not prefetches(machine):
        return reduce
    view = access.LoopView.of(s, name)
    inputs = {b.name for b in s.program.inputs}
    lane = view.loops[-1]
    wide = [x for x in view.loads if x.buffer.name in inputs and view.stride(x, lane) == 1]
    narrow = [x for x in view.loads if x.buffer.name != view.store.buffer.name and view.stride(x, lane) == 0]
    if len(wide) != 1 or not narrow:
        return reduce
    (weights,) = wide
    last = view.loops.index(reduce[0])
    moving = [k for k in range(last) if view.stride(weights, view.loops[k]) != 0]
    if not moving:
        return reduce
    before, between, inside = view.loops[: moving[-1]], view.loops[moving[-1] + 1 : last], view.loops[moving[-1] + 1 :]
    if any(view.extents[x] is None or view.stride(weights, x) is None for x in inside):
        return reduce

    def uses(loops: list[str]) -> int:
        total = 1
        for x in loops:
            total *= view.extent(x) if view.stride(weights, x) == 0 else 1
        return total

    def panel_bytes(x: Load) -> int:
        total = x.buffer.dtype.bytes
        for loop in inside:
            total *= view.extent(loop) if view.stride(x, loop) != 0 else 1
        return min(total, access.buffer_bytes(x))

    near, second = 2 * panel_bytes(weights) + sum(map(panel_bytes, narrow)), machine.caches[1]
    if (
        uses(between) < LEAST_SHARERS
        or uses(before) > MOST_PASSES
        or access.buffer_bytes(weights) <= second
        or near > ROOM * second
    ):
        return reduce
    ahead = view.loops[moving[-1]]
    if len(reduce) == 1:
        steps = max(k for k in range(1, LINES + 1) if view.extent(reduce[0]) % k == 0)
        reduce = s.split(reduce[0], [None, steps]) if steps > 1 else reduce
    s.prefetch(name, weights.buffer.name, ahead, reduce[0], machine.cache_line)
    return reduce


def prefetch_rows(s: Schedule, name: str, reduce: list[str], machine: Machine) -> None:
    """While a tile of the contraction `name` uses one block of its rows' channels the lines of the next block are asked
    for.

    With channels in blocks a tile reads a few lines in a row and then goes on a whole picture further, which hardware
    does not foresee. It pays where the rows do not stay in the first cache.

    Args:
        reduce: the loops of the reduction, outermost first; the first goes from block to block.
    """
    if not prefetches(machine):
        return
    view = access.LoopView.of(s, name)
    inputs = {b.name for b in s.program.inputs}
    lane, blocks = view.loops[-1], reduce[0]
    narrow = [x for x in view.loads if x.buffer.name in inputs and view.stride(x, lane) == 0]
    if (
        len(reduce) < 2
        or len(narrow) != 1
        or view.conditions
        or view.extents[blocks] is None
        or view.extent(blocks) < LEAST_BLOCKS
    ):
        return
    (rows,) = narrow
    inside = view.loops[view.loops.index(blocks) + 1 :]
    size = rows.buffer.dtype.bytes
    if (
        any(view.extents[x] is None or view.stride(rows, x) is None for x in (blocks, *inside))
        or access.buffer_bytes(rows) <= machine.caches[0]
    ):
        return
    lines, run = 1, size
    for x in inside:
        step = abs(view.stride(rows, x) or 0) * size
        lines *= -(-view.extent(x) // max(1, machine.cache_line // step)) if step else 1
        run += step * (view.extent(x) - 1)
    if lines <= MOST_LINES and abs(view.stride(rows, blocks) or 0) * size > run:
        s.prefetch(name, rows.buffer.name, blocks, blocks, machine.cache_line)


def prefetch_tiles(s: Schedule, name: str, reduce: list[str], machine: Machine) -> None:
    """While a tile of the contraction `name` is computed the rows of the next tile are asked for, block by block.

    With channels in blocks a tile's rows are as many short pieces as there are blocks, each a whole picture from the
    last. With many of them all that hardware could follow is long forgotten when the next tile comes to the same piece.
    Where they are few, or what lies between the rows would be fetched in vain, it does not pay.

    Args:
        reduce: the loops of the reduction, outermost first; the first goes from block to block.
    """
    if not prefetches(machine):
        return
    view = access.LoopView.of(s, name)
    inputs = {b.name for b in s.program.inputs}
    lane, blocks = view.loops[-1], reduce[0]
    narrow = [x for x in view.loads if x.buffer.name in inputs and view.stride(x, lane) == 0]
    if len(reduce) < 2 or len(narrow) != 1 or view.conditions or (view.extents[blocks] or 0) < MANY_BLOCKS:
        return
    (rows,) = narrow
    at = view.loops.index(blocks)
    inside, moving = view.loops[at + 1 :], [x for x in view.loops[:at] if view.stride(rows, x) != 0]
    if not moving or any(
        view.extents[x] is None or view.stride(rows, x) is None for x in (moving[-1], *view.loops[at:])
    ):
        return
    elements = 1
    for x in inside:
        elements *= view.extent(x) if view.stride(rows, x) else 1
    if abs(view.stride(rows, moving[-1]) or 0) == elements and access.buffer_bytes(rows) > machine.caches[0]:
        s.prefetch(name, rows.buffer.name, moving[-1], blocks, machine.cache_line)
