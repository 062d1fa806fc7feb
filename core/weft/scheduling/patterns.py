"""Common analyses and first steps of rules of any target: inlining of producers, loops over stored blocks,
transpositions, rows that blocks share."""

from __future__ import annotations

from typing import Literal

from weft.expr.nodes import FloorDiv, FloorMod, Var
from weft.loop.nodes import Block, Program, int_const
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.costs import of_blocks
from weft.scheduling.rule import Decline, Offer
from weft.scheduling.schedule import Schedule

SHARED, SHARED_COST = 4, 12
"""Reads of each element, and operations of its formula, from which on it is computed once, stored and read."""
LONGEST = 1 << 14
"""Operations of a formula, times the places where it would stand, from which on it is stored: a program of a million
operations takes minutes to compile."""


def offer_for(program: Program, kind: Literal["elementwise", "reduction", "scan"], machine: Machine) -> Offer | Decline:
    """An offer for a group of this kind, block by block; a reason for one of another kind.

    "scan": some loop's iterations come one after another; "reduction": none do, and some block reduces; "elementwise":
    neither.
    """
    blocks = access.blocks_of(program)
    if access.outside_blocks(program.body):
        return Decline("loop_program", "statements stand outside blocks")
    scans, reduces = access.has_sequential_loop(program), any(access.is_reduction(b) for b in blocks)
    if kind != "scan" and scans:
        return Decline("scan", "a block lies in a sequential loop")
    if kind == "scan" and not scans:
        return Decline("no_scan", "no block lies in a sequential loop")
    if kind == "elementwise" and reduces:
        return Decline("reduction", "a block reduces")
    if kind == "reduction" and not reduces:
        return Decline("no_reduction", "no block reduces")
    return Offer(of_blocks(program, machine, loads=2 if kind == "reduction" else 1))


def inline_producers(s: Schedule, among: list[str] | None = None, keep_shared: bool = False) -> None:
    """Inlines every block without reduction whose result is only read inside the program.

    Args:
        keep_shared: not where consumers read each element often and its formula costs more than reading it (tables of
            places, blends of neighbours), nor where they would become too long to compile.
    """
    outputs = {b.name for b in s.program.outputs}
    for name in reversed(
        s.blocks() if among is None else among
    ):  # users first: those that end up in one block are one user
        block = s.block(name)
        store = access.target(block)
        if access.is_reduction(block) or store.buffer.name in outputs or len(list(access.stores(block))) != 1:
            continue
        consumers = s.consumers(name)
        if not consumers:
            continue
        cost = access.formula_cost(block)
        if (
            keep_shared
            and cost > SHARED_COST
            and _reads(s, store.buffer.name, consumers) >= SHARED * access.block_work(block)
        ):
            continue
        if keep_shared and cost * _places(s, store.buffer.name, consumers) > LONGEST:
            continue
        heavy = cost > 24 or access.calls_formula(block)
        if heavy and (len(consumers) > 1 or any(access.is_reduction(s.block(c)) for c in consumers)):
            continue
        s.compute_inline(name)


def _reads(s: Schedule, buffer: str, consumers: list[str]) -> int:
    """How many elements of the buffer are read in all."""
    total = 0
    for name in consumers:
        block = s.block(name)
        total += access.block_work(block) * len({x.indices for x in access.loads(block) if x.buffer.name == buffer})
    return total


def _places(s: Schedule, buffer: str, consumers: list[str]) -> int:
    """How often formulas mention the buffer."""
    return sum(x.buffer.name == buffer for name in consumers for x in access.loads(s.block(name)))


def split_blocks(s: Schedule, name: str, partial: bool = False) -> list[str]:
    """Splits output loops along which an operand is stored in blocks, so that inside and outside of a block are loops
    of their own.

    Args:
        partial: also where the last block is not whole.

    Returns:
        Loops over blocks of a group, the last of which is not whole: the next group begins inside of it, which makes
            neither loop fit for threads.
    """
    ends: list[str] = []
    for inside in (False, True):  # blocks within groups show once groups are loops of their own
        view = access.LoopView.of(s, name)
        factors = {
            index.a.name: int_const(index.b)
            for x in view.loads
            for index in x.indices
            if isinstance(index, (FloorDiv, FloorMod)) and isinstance(index.a, Var) and int_const(index.b) is not None
        }
        for loop, factor in factors.items():
            n = view.extents.get(loop)
            if factor is not None and n is not None and n > factor and (partial or n % factor == 0):
                outer, _ = s.split(loop, [None, factor])
                if inside and n % factor:
                    ends.append(outer)
    return ends


def crossing_loop(s: Schedule, name: str, inner: str, rest: list[str]) -> str | None:
    """The loop along which memory is read contiguously where `inner` steps over it: a transposition."""
    view = access.LoopView.of(s, name)
    for load in view.loads:
        if view.stride(load, inner) in (0, 1):
            continue
        found = next((x for x in reversed(rest) if view.stride(load, x) == 1), None)
        if found is not None:
            return found
    return None


def common_rows(program: Program) -> int:
    """How many leading loops all blocks of the program share: each is a spatial iterator of the same extent that
    indexes every store alike."""
    blocks = access.blocks_of(program)
    if len(blocks) < 2 or not any(access.is_reduction(b) for b in blocks):
        return 0
    depth = 0
    while all(row_iter(b, depth) for b in blocks) and len({str(b.iters[depth].extent) for b in blocks}) == 1:
        depth += 1
    return depth


def row_iter(block: Block, k: int) -> bool:
    """Whether iterator `k` of the block is spatial and, alone, an index of what it stores."""
    if k >= len(block.iters) or block.iters[k].kind != "spatial":
        return False
    return any(access.is_plain(i, block.iters[k].var) for i in access.target(block).indices)


def follows(block: Block, reduction: Block) -> bool:
    """Whether the block computes its elements one by one from those of the reduction at the same place."""
    spatial = [i for i in reduction.iters if i.kind == "spatial"]
    if (
        access.is_reduction(block)
        or len(list(access.stores(block))) != 1
        or [str(i.extent) for i in block.iters] != [str(i.extent) for i in spatial]
    ):
        return False
    result = access.target(reduction).buffer.name
    places = [x.indices for x in access.loads(block) if x.buffer.name == result]
    return bool(spatial) and bool(places) and all(p == tuple(i.var for i in block.iters) for p in places)
