"""Common parts of the rule `searched`: steps that may or may not act, sizes of tiles and their predicates."""

from __future__ import annotations

from collections.abc import Callable

from weft.expr.nodes import free_vars
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule
from weft.scheduling.trace import CHOOSE, Step

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sizes of tiles, besides the divisors of the loop's extent up to the last of these."""
AGAIN = 8
"""How many times an element may be computed."""


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


def pointwise(s: Schedule, consumer: str, buffer: str) -> bool:
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


def within(room: int, count: int) -> Callable[[int], str | None]:
    """The predicate of a size: as many statements fit."""
    return lambda t: None if t == 1 or t * count <= room else f"{t * count} is more than {room}"


def of_whole(fits: Callable[[int], str | None], n: int) -> Callable[[int], str | None]:
    """The predicate `fits`, 0 standing for `n`."""
    return lambda t: fits(t or n)


def too_short(n: int | None, vectors: int, lanes: int, room: int) -> str | None:
    if vectors > room:
        return f"{vectors} statements are more than {room}"
    if vectors == 1 or n is None or -(-n // lanes) >= vectors:
        return None
    return f"the loop has {n} iterations, {vectors} vectors have {vectors * lanes} elements"


def no_part(n: int | None, part: int, steps: int) -> str | None:
    if part == 0:
        return None
    if part % steps:
        return f"a part of {part} is not whole in {steps} steps"
    return None if n is None or part < n else f"the reduction has {n} steps"
