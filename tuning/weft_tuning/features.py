"""What a cost model knows of a scheduled program: numbers that say how its work is divided, by block.

As in Ansor (Zheng et al., OSDI 2020) they are sizes of loops by kind. They are of the blocks that are executed most, so
that programs of different numbers of blocks have vectors of one length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.loop.nodes import Allocate, Block, For, Program, Stmt, int_const, stmt_children

BLOCKS = 4
"""Blocks that are described, those with the most executions."""
ASSUMED = 64
"""Extent of a loop whose size is open."""
KINDS = ("serial", "parallel", "vectorized", "unrolled")


def features(program: Program) -> tuple[float, ...]:
    """A vector of `LENGTH` numbers: sizes are logarithms to base 2.

    Args:
        program: scheduled, before loop passes.
    """
    blocks = sorted(_blocks(program.body, ()), key=lambda found: -_executions(found[1]))
    rows = [_of_block(block, loops) for block, loops in blocks[:BLOCKS]]
    rows += [(0.0,) * PER_BLOCK] * (BLOCKS - len(rows))
    local = [s for s in _allocations(program.body) if s.buffer.scope != "global"]
    held = sum(_elements(a) * a.buffer.dtype.bytes for a in local)
    whole = (float(len(blocks)), float(len(local)), _log(held))
    return (*whole, *(value for row in rows for value in row))


def _of_block(block: Block, loops: tuple[For, ...]) -> tuple[float, ...]:
    by_kind = {kind: math.prod(_extent(loop) for loop in loops if loop.kind == kind) for kind in KINDS}
    serial = [loop for loop in loops if loop.kind == "serial"]
    reduced = {iter.var.name for iter in block.iters if iter.kind != "spatial"}
    inner = _extent(serial[-1]) if serial else 1
    second = _extent(serial[-2]) if len(serial) > 1 else 1
    return (
        _log(_executions(loops)),
        *(_log(size) for size in by_kind.values()),
        _log(inner),
        _log(second),
        float(len(loops)),
        float(len(reduced)),
        float(sum(loop.kind == "parallel" for loop in loops)),
        float(block.predicate is not None),
    )


PER_BLOCK = 1 + len(KINDS) + 6
LENGTH = 3 + BLOCKS * PER_BLOCK


def _blocks(stmt: Stmt, loops: tuple[For, ...]) -> Iterator[tuple[Block, tuple[For, ...]]]:
    if isinstance(stmt, Block):
        yield stmt, loops
    inside = (*loops, stmt) if isinstance(stmt, For) else loops
    for child in stmt_children(stmt):
        yield from _blocks(child, inside)


def _allocations(stmt: Stmt) -> Iterator[Allocate]:
    if isinstance(stmt, Allocate):
        yield stmt
    for child in stmt_children(stmt):
        yield from _allocations(child)


def _extent(loop: For) -> int:
    known = int_const(loop.extent)
    return ASSUMED if known is None else max(1, known)


def _elements(allocated: Allocate) -> int:
    sizes = [int_const(size) for size in allocated.buffer.shape]
    return math.prod(ASSUMED if size is None else max(1, size) for size in sizes)


def _executions(loops: tuple[For, ...]) -> int:
    return math.prod(map(_extent, loops))


def _log(value: float) -> float:
    return math.log2(max(1.0, value))
