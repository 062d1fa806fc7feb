"""Common steps of the schedules of products: work that the threads of a group share, and work of each thread."""

from __future__ import annotations

from contextlib import suppress

from weft.errors import ScheduleError
from weft.expr.nodes import Expr, Select, Var, free_vars, walk
from weft.loop.nodes import Load, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule

UNROLLED_TURNS, ASYNC_TURNS = 8, 16
"""Elements that a thread copies into shared memory one after another, all of them on their way at once; where no
register holds them meanwhile, more."""
COPIED_BYTES = (4, 8, 16)
"""What a thread copies at once into shared memory without waiting for it, where it can."""


def absorb(s: Schedule, copy: str) -> None:
    """Puts what follows, element by element, into the block that copies results out, as long as nobody else wants what
    is between."""
    with suppress(ScheduleError):
        while True:
            (consumer,) = s.consumers(copy) or ("",)
            if not consumer:
                return
            s.reverse_compute_inline(consumer)


def flatten(s: Schedule, loops: tuple[str, ...]) -> str | None:
    """One parallel loop of loops directly inside one another."""
    for x in loops:
        s.parallel(x)
    return None if not loops else loops[0] if len(loops) == 1 else s.fuse(*loops)


def bind_threads(s: Schedule, row: str | None, column: str | None) -> None:
    for x, axis in ((row, "threadIdx.y"), (column, "threadIdx.x")):
        if x:
            s.bind(x, axis)


def kept(s: Schedule, name: str, formula: Expr, loops: list[str]) -> list[str]:
    """Which of the loops around a block a formula varies with: the dimensions of what `stage` makes of it."""
    block = s.block(name)
    used = free_vars(formula)
    iters = {x.name: i.var.name for i, x in zip(block.iters, block.bindings) if isinstance(x, Var)}
    return [x for x in s.loops(name) if x in loops and iters.get(x) in used]


def own(s: Schedule, loops: list[str], lane: str | None) -> None:
    """Loops that a thread keeps to itself: unrolled, neighbouring elements as a vector."""
    for x in loops:
        if s.loop(x).kind == "parallel":
            s.serial(x)
        if x == lane:
            s.vectorize(x)
        else:
            s.unroll(x)


def share(
    s: Schedule, name: str, order: list[str], threads: tuple[int, int], lanes: int, unrolled: int = UNROLLED_TURNS
) -> None:
    """What all threads (down, across) of a group do together, each some elements of a block, neighbours neighbouring
    ones, several at once where memory allows.

    Args:
        order: the block's loops within the group, as they should follow one another.
        unrolled: turns of a thread that are unrolled, if there are no more.
    """
    if not order:
        return
    s.reorder(*order)
    *others, last = order
    lane = None
    n = int_const(s.loop(last).extent)
    if others and lanes > 1 and n is not None and n % lanes == 0:
        if n > lanes:
            piece, last = s.split(last, [None, lanes])
            others.append(piece)
            s.specialize(name)
        lane = last if in_lanes(s, name, last) else None
    shared = others if lane is not None else [*others, last]
    for loop in shared:
        if s.loop(loop).kind == "serial":
            s.parallel(loop)
    flat = s.fuse(*shared)
    down, across = threads
    total = int_const(s.loop(flat).extent)
    assert total is not None
    parts = [(role, k) for role, k in (("turns", -(-total // (across * down))), ("y", down), ("x", across)) if k > 1]
    pieces = dict(zip((role for role, _ in parts), s.split(flat, [k for _, k in parts]))) if parts else {}
    s.reorder(*(pieces[r] for r in ("y", "x", "turns") if r in pieces))
    bind_threads(s, pieces.get("y"), pieces.get("x"))
    if "turns" in pieces:
        s.serial(pieces["turns"])
        if (int_const(s.loop(pieces["turns"]).extent) or 0) <= unrolled:
            s.unroll(pieces["turns"])
    elif not parts:
        s.serial(flat)
    if lane is not None:
        own(s, [lane], lane)


def bring_ahead(s: Schedule, copy: str, step: str, machine: Machine) -> None:
    """What a block copies into shared memory in each iteration of `step` it copies one iteration ahead: by copies that
    nobody waits for, where the machine has them, else through registers, so that what comes between does not wait."""
    store = access.target(s.block(copy))
    value = store.value.a if isinstance(store.value, Select) else store.value
    last, view = s.loop(s.loops(copy)[-1]), access.LoopView.of(s, copy)
    lanes = (int_const(last.extent) or 0) if last.kind == "vectorized" else 1
    whole = lanes == 1 or (
        view.stride(view.store, last.var.name) == 1 and all(view.stride(x, last.var.name) == 1 for x in view.loads)
    )
    alone = (
        "cp.async" in machine.features
        and isinstance(value, Load)
        and whole
        and lanes * store.buffer.dtype.bytes in COPIED_BYTES
    )
    s.double_buffer(copy, step, None if alone else "register")


def in_lanes(s: Schedule, name: str, loop: str) -> bool:
    """Whether a block's loads along a loop are of elements side by side (or one for all), under no condition that
    changes on the way."""
    view, block = access.LoopView.of(s, name), s.block(name)
    iters = {i.var.name for i, x in zip(block.iters, block.bindings) if loop in free_vars(x)}
    conditions = [e.cond for e in walk(access.target(block).value) if isinstance(e, Select)]
    if loop in free_vars(block.predicate) or any(iters & free_vars(c).keys() for c in conditions if not _of_values(c)):
        return False
    steps = [view.stride(x, loop) for x in view.loads]
    return 1 in steps and all(k in (0, 1) for k in steps)


def _of_values(condition: Expr) -> bool:
    """Whether a condition asks what values are, not where they lie."""
    return any(isinstance(e, Load) for e in walk(condition))
