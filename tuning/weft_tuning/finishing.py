"""The last part of the rule `searched`: parallel loops, sizes and memories of buffers, and what is written out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from weft.dtypes import int64
from weft.expr.nodes import Const, free_vars, substitute
from weft.expr.simplify import simplify
from weft.loop.nodes import Allocate, Buffer, For, Load, Stmt, int_const, walk_stmts
from weft.machine import Machine
from weft.scheduling import access
from weft.scheduling.schedule import Schedule
from weft_tuning.moves import sequential, worth_forking

TASKS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Options of how many tasks each core gets; 0: one core does all."""
STACK = 1 << 16
"""Bytes up to which a buffer in a loop is local."""


def finish(s: Schedule, unrolled: Sequence[str], vectorized: Sequence[str]) -> None:
    """Parallel loops, buffers, and what is written out."""
    tops = [_join(s, nest, {*unrolled, *vectorized}) for nest in _nests(s)]
    for buffer in [x.buffer.name for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]:
        _compact(s, buffer)
    for loop in dict.fromkeys(unrolled):
        with s.attempt():
            s.unroll(loop)
    for loop in dict.fromkeys(vectorized):
        with s.attempt():
            s.vectorize(loop)
    for top in tops:
        if top is not None:
            with s.attempt():
                s.parallel(top)
    _memories(s)


def _nests(s: Schedule) -> list[list[str]]:
    """Of each outermost nest its loops, as far as nothing else is between them, and the blocks in it."""
    found: dict[str, list[str]] = {}
    for name in s.blocks():
        loops = s.loops(name)
        if loops:
            found.setdefault(loops[0], []).append(name)
    return list(found.values())


def _join(s: Schedule, blocks: Sequence[str], tile: Set[str]) -> str | None:
    """As few of the outermost loops as give every core several tasks (choice `BLOCK.tasks`), as one; its name."""
    assert isinstance(s.machine, Machine)
    cores = s.machine.cores
    last = blocks[-1]
    steps = sequential(s)
    kinds: dict[str, set[str]] = {}
    for b in blocks:
        for x, kind in access.LoopView.of(s, b).kinds.items():
            kinds.setdefault(x, set()).add(kind)
    able: list[str] = []
    stmt: Stmt = s.loop(s.loops(last)[0])
    while isinstance(stmt, For):
        v = stmt.var.name
        if v in steps or v in tile or kinds.get(v, {"spatial"}) != {"spatial"}:
            break
        able.append(v)
        stmt = stmt.body
    if not able or cores == 1:
        return None
    worth = any(worth_forking(s, b) for b in blocks)
    each = s.choose(f"{last}.tasks", TASKS, 8 if worth else 0)
    if each == 0:
        return None
    taken: list[str] = []
    tasks = 1
    for loop in able:
        if tasks >= each * cores:
            break
        taken.append(loop)
        tasks *= access.extent(s.loop(loop))
    if len(taken) > 1:
        with s.attempt() as tried:
            joined = str(s.fuse(*taken))
        if tried:
            return joined
    return taken[0]


def _compact(s: Schedule, buffer: str) -> None:
    before = s.checkpoint()
    with s.attempt() as tried:
        s.compact_buffer(buffer)
    if not tried:
        return
    new = next(x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate) and x.buffer.name == buffer)
    lanes = s.machine.lanes(new.dtype)
    n = int_const(new.shape[-1]) if new.shape else None
    if n is not None and n > lanes and n % lanes:
        s.rollback(before)
        with s.attempt():
            s.compact_buffer(buffer, lanes)


def _memories(s: Schedule) -> None:
    """Buffers inside loops are local; those of tiles that are written out are registers."""
    loops = {x.var.name: x for x in walk_stmts(s.program.body) if isinstance(x, For)}
    writers: dict[str, str] = {}
    uses: dict[str, list[tuple[access.LoopView, Load]]] = {}
    for name in s.blocks():
        for b in s.buffers(name):
            writers.setdefault(b, name)
        view = access.LoopView.of(s, name)
        for x in dict.fromkeys((view.store, *view.loads)):
            uses.setdefault(x.buffer.name, []).append((view, x))
    most = 2 * s.machine.vector_registers * s.machine.vector_bits // 8
    for buffer in [x.buffer for x in walk_stmts(s.program.body) if isinstance(x, Allocate)]:
        size = math.prod(int_const(d) or 0 for d in buffer.shape) * buffer.dtype.bytes
        if not size or size > STACK or buffer.name not in writers:
            continue
        single = len(list(access.stores(s.block(writers[buffer.name])))) == 1
        register = single and size <= most and _in_vectors(buffer, uses[buffer.name], loops)
        with s.attempt():
            s.set_scope(writers[buffer.name], "register" if register else "local")


def _in_vectors(buffer: Buffer, uses: Sequence[tuple[access.LoopView, Load]], loops: Mapping[str, For]) -> bool:
    """Whether every access is one of constant elements, which are whole vectors of the widest, or a part of one whose
    length divides it: what registers are accessed by."""
    widths: list[int] = []
    for view, x in uses:
        moving = {v for i in x.indices for v in free_vars(i)}
        if any(v not in loops or loops[v].kind not in ("unrolled", "vectorized") for v in moving):
            return False
        strides = {v: view.stride(x, v) for v in moving}
        lanes = [v for v in moving if loops[v].kind == "vectorized"]
        if None in strides.values() or len(lanes) > 1 or any(strides[v] != 1 for v in lanes):
            return False
        width = int_const(loops[lanes[0]].extent) if lanes else 1
        at_zero = {v: Const(0, int64) for v in moving}
        start = [int_const(simplify(substitute(i, at_zero))) for i in x.indices]
        if width is None or None in start:
            return False
        first = sum(k * (int_const(n) or 0) for k, n in zip(start, access.strides(x)) if k)
        if first % width or any((n or 0) % width for v, n in strides.items() if v not in lanes):
            return False
        widths.append(width)
    widest = max(widths, default=1)
    row = int_const(buffer.shape[-1]) if buffer.shape else widest
    return all(widest % w == 0 for w in widths) and (row or 0) % widest == 0
